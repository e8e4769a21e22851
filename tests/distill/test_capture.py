from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pocketbert.core.sample_texts import SENTENCES
from pocketbert.distill.capture import record_attention
from pocketbert.distill.capture.recorder import active_recorder

FAMILIES = ("bert", "roberta", "distilbert", "mobilebert")
Opened = tuple[Any, Any, dict[str, Tensor]]


@pytest.fixture(params=FAMILIES)
def opened(request: pytest.FixtureRequest, open_tiny: Callable[..., Any]) -> Opened:
    """A tiny 3-layer model, its family, and a padded batch."""
    model, folder, tokenizer = open_tiny(request.param, 3)
    batch = tokenizer.pad(tokenizer.encode(list(SENTENCES[:5])))
    return model, folder.family, {name: torch.from_numpy(batch[name]) for name in folder.family.inputs}


@torch.no_grad()
def test_every_layer_is_captured_once(opened: Opened) -> None:
    model, family, inputs = opened
    recorder = record_attention(model, family, range(3))
    for _ in range(2):
        with recorder:
            model(**inputs)
        assert sorted(recorder.scores) == [0, 1, 2]
    rows, length = inputs["input_ids"].shape
    assert all(s.shape == (rows, 4, length, length) for s in recorder.scores.values())


@torch.no_grad()
def test_captured_scores_are_those_of_eager_attention(opened: Opened) -> None:
    model, family, inputs = opened
    model.set_attn_implementation("eager")
    maps = model(**inputs, output_attentions=True).attentions
    assert len(maps) == 3
    with record_attention(model, family, range(3)) as recorder:
        model(**inputs)
    real = inputs["attention_mask"].bool()
    for layer, wanted in enumerate(maps):
        found = recorder.scores[layer].softmax(-1)
        torch.testing.assert_close(
            found.transpose(1, 2)[real], wanted.transpose(1, 2)[real], rtol=0, atol=1e-5
        )
        assert float(found[..., ~real.all(0)].masked_select(~real[:, None, None, ~real.all(0)]).max()) == 0.0


@torch.no_grad()
@pytest.mark.parametrize("layers", [(), (1,), (0, 1, 2)])
def test_capture_changes_no_output(opened: Opened, layers: tuple[int, ...]) -> None:
    model, family, inputs = opened
    model.set_attn_implementation("sdpa")
    wanted = model(**inputs, output_hidden_states=True)
    with record_attention(model, family, layers) as recorder:
        found = model(**inputs, output_hidden_states=True)
    assert tuple(sorted(recorder.scores)) == layers
    assert len(found.hidden_states) == 4
    torch.testing.assert_close(found.logits, wanted.logits, rtol=1e-5, atol=1e-5)
    real = inputs["attention_mask"].bool()
    for a, b in zip(found.hidden_states, wanted.hidden_states, strict=True):
        scale = float(b.abs().max())
        torch.testing.assert_close(a[real] / scale, b[real] / scale, rtol=1e-5, atol=1e-5)
    outside = model(**inputs)
    torch.testing.assert_close(outside.logits, wanted.logits, rtol=1e-5, atol=1e-5)


def test_gradients_flow_through_captured_scores(opened: Opened) -> None:
    model, family, inputs = opened
    with record_attention(model, family, [1]) as recorder:
        model(**inputs)
    recorder.scores[1].softmax(-1).square().sum().backward()
    layers = model.get_submodule(family.layer_path)
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in layers[0].parameters())
    assert all(p.grad is None for p in layers[2].parameters())


def test_a_model_that_does_not_use_the_interface_is_an_error(opened: Opened) -> None:
    model, family, inputs = opened
    recorder = record_attention(model, family, range(3))
    model.set_attn_implementation("sdpa")
    with pytest.raises(RuntimeError, match="captured 0 times, the model has 3 layers"), recorder:
        model(**inputs)


@torch.no_grad()
def test_two_passes_or_none_are_an_error(opened: Opened) -> None:
    model, family, inputs = opened
    recorder = record_attention(model, family, range(3))
    with pytest.raises(RuntimeError, match="captured 6 times"), recorder:
        model(**inputs)
        model(**inputs)
    with pytest.raises(RuntimeError, match="captured 0 times"), recorder:
        pass


def test_an_error_inside_is_not_hidden_and_stops_the_recording(opened: Opened) -> None:
    model, family, _ = opened
    with pytest.raises(ZeroDivisionError), record_attention(model, family, range(3)):
        raise ZeroDivisionError
    assert active_recorder() is None


@torch.no_grad()
def test_teacher_and_student_are_recorded_apart(open_tiny: Callable[..., Any]) -> None:
    teacher, folder, tokenizer = open_tiny("bert", 3)
    student, *_ = open_tiny("bert", 2)
    batch = tokenizer.pad(tokenizer.encode(["good film", "bad"]))
    inputs = {k: torch.from_numpy(v) for k, v in batch.items()}
    theirs, ours = (
        record_attention(teacher, folder.family, range(3)),
        record_attention(student, folder.family, range(2)),
    )
    with theirs:
        teacher(**inputs)
        with ours:
            student(**inputs)
    assert (len(theirs.scores), len(ours.scores)) == (3, 2)
    assert not torch.equal(theirs.scores[0], ours.scores[0]) or teacher is not student
