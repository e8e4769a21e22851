from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError
from pocketbert.distill.capture.outputs import LmHead, flat_indices
from support.tiny import GUESSING, PRETRAINED

MODELS = [
    *((f, "AutoModelForMaskedLM") for f in GUESSING),
    *((f, "AutoModelForPreTraining") for f in PRETRAINED),
]


class Wrapper(nn.Module):
    """As a data-parallel wrapper: another module around the model."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def batch() -> dict[str, Tensor]:
    ids = torch.randint(5, 100, (3, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3, [1] * 6 + [0]])
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize(("family", "auto_class"), MODELS)
@torch.no_grad()
def test_selected_logits_and_last_states_are_the_models_own(
    family: str, auto_class: str, make_classifier: Callable[..., Any]
) -> None:
    model = make_classifier(family, 2, ("a", "b"), auto_class=auto_class)
    inputs = batch()
    whole = model(**inputs, output_hidden_states=True)
    logits = whole.logits if "logits" in whole else whole.prediction_logits
    head = LmHead(model, "teacher")
    selected = flat_indices(inputs["attention_mask"])
    for caller in (model, Wrapper(model)):
        made = head.run(caller, inputs, selected)
        torch.testing.assert_close(made.logits, logits[inputs["attention_mask"] == 1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(made.hidden, whole.hidden_states[-1])
        assert head.has_next_sentence == (made.next_sentence is not None) == (auto_class == "AutoModelForPreTraining")
        if made.next_sentence is not None:
            torch.testing.assert_close(made.next_sentence, whole.seq_relationship_logits)
    assert head.run(model, inputs, selected[:0]).logits.shape == (0, logits.shape[-1])
    assert model(**inputs)[0].shape == logits.shape  # the hook is gone


def test_a_model_without_such_a_head_is_refused(make_classifier: Callable[..., Any]) -> None:
    with pytest.raises(
        InputError, match=r"teacher: BertForSequenceClassification has no known masked.*BertForMaskedLM"
    ):
        LmHead(make_classifier("bert", 1, ("a", "b")), "teacher")


def test_a_head_that_did_not_run_is_noticed(make_classifier: Callable[..., Any]) -> None:
    one, other = (make_classifier("bert", 1, ("a", "b"), auto_class="AutoModelForMaskedLM") for _ in range(2))
    with pytest.raises(RuntimeError, match="ran 0 times"):
        LmHead(one, "teacher").run(other, batch(), torch.tensor([0]))


def test_the_hook_goes_when_the_model_fails(make_classifier: Callable[..., Any]) -> None:
    model = make_classifier("bert", 1, ("a", "b"), auto_class="AutoModelForMaskedLM")
    with pytest.raises(IndexError):
        LmHead(model, "teacher").run(model, batch(), torch.tensor([21]))
    assert model(**batch()).logits.shape[:2] == (3, 7)
