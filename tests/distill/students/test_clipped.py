"""ReLU6 in place of ReLU: in the modules and in config.json, undone, and refused where it is another function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from pocketbert.core.errors import InputError
from pocketbert.distill.students.fake_quantization import clip_activations

WHERE = "distill.0.activation"


def answers(model: Any) -> torch.Tensor:
    ids = torch.arange(5, 13)[None]
    with torch.inference_mode():
        return torch.as_tensor(model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits)


def large(model: Any) -> Any:
    """The model with feed-forward numbers far beyond 6."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "intermediate" in name:
                parameter.mul_(400)
    return model


@pytest.mark.parametrize("family", ["mobilebert", "bert", "distilbert"])
def test_the_folder_builds_the_clipped_model(family: str, make_classifier: Callable[..., Any], tmp_path: Path) -> None:
    key = "activation" if family == "distilbert" else "hidden_act"
    model = large(make_classifier(family, 2, ("a", "b", "c"), **{key: "relu"}))
    before = answers(model)
    undo = clip_activations(model, WHERE)
    clipped = answers(model)
    assert not any(type(m) is nn.ReLU for m in model.modules())
    if family == "mobilebert":
        assert (clipped - before).abs().max() > 1e-2, "numbers beyond 6 are cut"
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert getattr(again.config, key) == "relu6"
    torch.testing.assert_close(answers(again.eval()), clipped)
    assert clip_activations(model, WHERE)() is None, "a clipped model stays one"
    assert torch.equal(answers(model), clipped)
    undo()
    assert torch.equal(answers(model), before)
    assert getattr(model.config, key) == "relu"


@pytest.mark.parametrize("family", ["bert", "xlm"])
def test_another_activation_is_refused(family: str, make_classifier: Callable[..., Any]) -> None:
    with pytest.raises(
        InputError, match=r"distill\.0\.activation: relu6 takes the place of relu.* Leave activation out"
    ):
        clip_activations(make_classifier(family, 2, ("a", "b")), WHERE)


def test_a_relu_that_the_configuration_does_not_name_is_refused(make_classifier: Callable[..., Any]) -> None:
    model = make_classifier("mobilebert", 2, ("a", "b"))
    model.dropout = nn.ReLU()
    with pytest.raises(InputError, match="hidden_act is not read at every relu"):
        clip_activations(model, WHERE)
    assert model.config.hidden_act == "relu"
    assert not any(isinstance(m, nn.ReLU6) for m in model.modules())
