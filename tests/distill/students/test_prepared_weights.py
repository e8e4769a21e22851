"""Weights of a module that was rewritten for export follow the student that is trained, or the rewriting is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pocketbert.core.families import find_family
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Format
from pocketbert.distill.students.fake_quantization import Prepare, trace_prepared_weights
from pocketbert.export.prepare import prepare
from support.tiny import BASIC

TASK = task_of("text-classification")


def exporter(family: str, format: Format = Format.ONNX) -> Prepare:
    return lambda model, divide: prepare(model, find_family(family), TASK, format)


def trained(model: nn.Module, names: set[str]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in names:
                parameter.add_(0.05 * torch.randn_like(parameter))


@pytest.mark.parametrize("family", BASIC)
def test_the_module_follows_its_student(family: str, make_classifier: Callable[..., Any]) -> None:
    model, how = make_classifier(family, 2, ("a", "b", "c")), exporter(family)
    found = trace_prepared_weights(model, how)
    assert found is not None
    trained(model, {origin.name for origin in found.origins.values()})
    again = dict(how(model, True).named_parameters())
    for name, weight in found.compute(model).items():
        assert torch.allclose(weight, again[name], rtol=1e-5, atol=1e-7), name
    constant = {
        n for n, p in again.items() if n not in found.origins and not torch.equal(p, found.module.get_parameter(n))
    }
    assert not constant, "what is no student's weight must not change with it"
    assert not any("embeddings.weight" in origin.name for origin in found.origins.values())


def test_divided_channels_are_multiplied_by_the_same_powers(make_classifier: Callable[..., Any]) -> None:
    model, plain = make_classifier("bert", 2, ("a", "b", "c")), exporter("bert")

    def divided(student: Any, divide: bool) -> nn.Module:
        made = plain(student, divide)
        if divide:
            with torch.no_grad():
                made.get_parameter("model.classifier.weight")[:, 3] *= 8
        return made

    found = trace_prepared_weights(model, divided)
    assert found is not None
    trained(model, {"classifier.weight"})
    weight = found.compute(model)["model.classifier.weight"]
    assert torch.equal(weight[:, 3], model.classifier.weight[:, 3] * 8)
    assert torch.equal(weight[:, 4], model.classifier.weight[:, 4])


@pytest.mark.parametrize("family", ["deberta-v2", "xlnet"])
def test_a_rewriting_that_training_cannot_follow_is_refused(family: str, make_classifier: Callable[..., Any]) -> None:
    assert trace_prepared_weights(make_classifier(family, 2, ("a", "b")), exporter(family)) is None


def test_weights_that_are_mixed_are_refused(make_classifier: Callable[..., Any]) -> None:
    def mixing(student: Any, divide: bool) -> nn.Module:
        made = exporter("bert")(student, divide)
        with torch.no_grad():
            made.get_parameter("model.classifier.weight").copy_(student.classifier.weight.square())
        return made

    assert trace_prepared_weights(make_classifier("bert", 2, ("a", "b")), mixing) is None
