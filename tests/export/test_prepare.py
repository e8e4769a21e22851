from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pocketbert.core.compare.parity import build_probe, compare_with_probe, measure_padding_effect
from pocketbert.core.compare.sample_texts import SENTENCES, sample_pairs
from pocketbert.core.errors import InputError
from pocketbert.core.predict.predictor import Arrays, TorchPredictor
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.export.adapters import mask_4d
from pocketbert.export.prepare import PreparedPredictor, prepare
from support.tiny import EXPORTED as FAMILIES

TASK = TASKS[TaskName.TEXT_CLASSIFICATION]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_prepared_module_computes_what_the_model_computes(name: str, open_tiny: Callable[..., Any]) -> None:
    model, folder, tokenizer = open_tiny(name, 3)
    family = folder.family
    reference = TorchPredictor(model, TASK, family.inputs)
    probe = build_probe(reference, tokenizer, [*SENTENCES, *sample_pairs()[:8]], [16, 32, 48], TASK, ["logits"])
    prepared = PreparedPredictor(prepare(model, family, TASK), family, TASK)
    found = compare_with_probe(prepared, "prepared", "model", probe, ["logits"], family.parity_atol)
    assert found.passed, found
    assert found.mask_effect > 0.1
    rows = tokenizer.encode(list(SENTENCES[:6]))
    assert measure_padding_effect(prepared, tokenizer, rows, TASK) < 1e-4


@pytest.mark.parametrize("name", FAMILIES)
def test_the_model_is_not_touched(name: str, open_tiny: Callable[..., Any]) -> None:
    model, folder, _ = open_tiny(name, 2)
    model.set_attn_implementation("sdpa")
    implementation = model.config._attn_implementation  # "eager" where the class knows no other
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    module = prepare(model, folder.family, TASK)
    assert model.config._attn_implementation == implementation
    assert model.training
    assert not module.training
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_inputs_are_explicit_and_named(open_tiny: Callable[..., Any]) -> None:
    import inspect

    for name in FAMILIES:
        model, folder, _ = open_tiny(name, 2)
        module = prepare(model, folder.family, TASK)
        assert tuple(inspect.signature(module.forward).parameters) == folder.family.inputs


def test_masked_scores_fit_into_half_precision() -> None:
    assert np.isfinite(np.float16(mask_4d.MASK_VALUE))


def test_a_family_that_no_exporter_writes_is_refused(open_tiny: Callable[..., Any]) -> None:
    model, folder, _ = open_tiny("ib-bert", 2)
    with pytest.raises(InputError, match=r"no exporter writes IB-BERT.*Distil a MobileBERT student"):
        prepare(model, folder.family, TASK)


def test_an_adapter_that_forgets_the_mask_is_caught(
    open_tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder, tokenizer = open_tiny("bert", 2)
    reference = TorchPredictor(model, TASK, folder.family.inputs)
    probe = build_probe(reference, tokenizer, SENTENCES, [32], TASK, ["logits"])
    monkeypatch.setattr(mask_4d, "MASK_VALUE", 0.0)
    broken = PreparedPredictor(prepare(model, folder.family, TASK), folder.family, TASK)
    found = compare_with_probe(broken, "prepared", "model", probe, ["logits"], folder.family.parity_atol)
    assert not found.passed
    assert found.worst == pytest.approx(found.mask_effect, rel=0.05)


class Permuted:
    """Gives the inputs in an order that swaps mask and ids."""

    engine, engine_version, outputs = "broken", "1", ("logits",)

    def __init__(self, right: PreparedPredictor) -> None:
        self.right, self.inputs = right, right.inputs

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        return self.right.run(
            {**inputs, "input_ids": inputs["attention_mask"], "attention_mask": inputs["attention_mask"]}
        )


def test_swapped_inputs_are_caught(open_tiny: Callable[..., Any]) -> None:
    model, folder, tokenizer = open_tiny("distilbert", 2)
    reference = TorchPredictor(model, TASK, folder.family.inputs)
    probe = build_probe(reference, tokenizer, SENTENCES, [32], TASK, ["logits"])
    broken = Permuted(PreparedPredictor(prepare(model, folder.family, TASK), folder.family, TASK))
    assert not compare_with_probe(broken, "prepared", "model", probe, ["logits"], 1e-4).passed
