"""The signals of a teacher that runs beside the student."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pocketbert.core.families import family_of
from pocketbert.distill.capture import record_attention
from pocketbert.distill.teacher.signals import OnlineTeacher, Wanted

TEXTS = ["a good film", "not bad", "the day was far better than I had expected, never again", "ok"]
FAMILIES = ("bert", "distilbert", "mobilebert", "deberta-v2")
"""What each of the other families computes is compared in tests/distill/capture."""
ALL = Wanted(hidden=(0, 1, 2, 3), attention=(0, 1, 2))


def batch_of(tokenizer: Any) -> dict[str, Tensor]:
    return {k: torch.from_numpy(v) for k, v in tokenizer.pad(tokenizer.encode(TEXTS)).items()}


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_every_signal_is_what_the_model_computes(name: str, open_tiny: Callable[..., Any]) -> None:
    model, folder, tokenizer = open_tiny(name, 3)
    batch = batch_of(tokenizer)
    taught = OnlineTeacher(model, folder.family, ALL)(batch)
    with record_attention(model, folder.family, range(3)) as recorder:
        made = model(**{k: batch[k] for k in folder.family.inputs}, output_hidden_states=True)
    assert set(taught.outputs) == {"logits"} and list(taught.hidden) == [0, 1, 2, 3]
    assert torch.equal(taught.outputs["logits"], made.logits)
    assert all(torch.equal(taught.hidden[n], made.hidden_states[n]) for n in range(4))
    assert all(torch.equal(taught.scores[n], recorder.scores[n]) for n in range(3))


@pytest.mark.parametrize(
    ("auto_class", "names"),
    [
        ("AutoModelForQuestionAnswering", {"start_logits", "end_logits"}),
        ("AutoModelForTokenClassification", {"logits"}),
        ("AutoModel", {"last_hidden_state"}),
        ("AutoModelForPreTraining", {"prediction_logits", "seq_relationship_logits"}),
    ],
)
def test_outputs_go_by_their_task(
    auto_class: str, names: set[str], make_classifier: Callable[..., Any], open_tiny: Callable[..., Any]
) -> None:
    _, folder, tokenizer = open_tiny("bert", 2)
    model = make_classifier("bert", 2, ("a", "b"), auto_class=auto_class)
    taught = OnlineTeacher(model, folder.family, Wanted())(batch_of(tokenizer))
    assert set(taught.outputs) == names


def test_only_what_is_wanted_is_returned(open_tiny: Callable[..., Any]) -> None:
    model, folder, tokenizer = open_tiny("bert", 3)
    batch = batch_of(tokenizer)
    taught = OnlineTeacher(model, folder.family, Wanted(outputs=False, hidden=(2,), attention=(1,)))(batch)
    assert (list(taught.outputs), list(taught.hidden), list(taught.scores)) == ([], [2], [1])
    model.forward = None  # nothing wanted: not even run
    nothing = OnlineTeacher(model, folder.family, Wanted(outputs=False))(batch)
    assert not (nothing.outputs or nothing.hidden or nothing.scores)


def test_the_teacher_has_neither_dropout_nor_gradient(open_tiny: Callable[..., Any]) -> None:
    model, folder, tokenizer = open_tiny("bert", 3)
    online = OnlineTeacher(model, folder.family, ALL)
    model.train()
    first, second = online(batch_of(tokenizer)), online(batch_of(tokenizer))
    assert torch.equal(first.outputs["logits"], second.outputs["logits"])
    values = [*first.outputs.values(), *first.hidden.values(), *first.scores.values()]
    assert len(values) == 8 and not any(v.requires_grad for v in values)


def test_wanted_ignores_order_and_repetition() -> None:
    assert Wanted(hidden=(3, 1, 3), relations=(2, 0, 2)) == Wanted(hidden=(1, 3), relations=(0, 2))
    wide = Wanted(hidden=(1, 2), attention=(0, 1), relations=(0, 1))
    for name in ("hidden", "attention", "relations"):
        narrow = Wanted(outputs=False, **{name: (1,)})
        assert narrow
        assert wide.covers(narrow)
        assert not narrow.covers(wide)
        assert not wide.covers(Wanted(**{name: (3,)}))
    assert not Wanted(outputs=False)
    assert not Wanted(outputs=False, hidden=(1,)).covers(Wanted(hidden=(1,)))


def test_layers_that_the_teacher_does_not_have_are_refused(open_tiny: Callable[..., Any]) -> None:
    model, _, _ = open_tiny("bert", 3)
    with pytest.raises(ValueError, match=r"hidden states \[4\] or attention layers \[3\].*0 to 3.*0 to 2"):
        OnlineTeacher(model, family_of("bert"), Wanted(hidden=(3, 4), attention=(2, 3)))
    with pytest.raises(ValueError, match=r"attention layers \[3\]"):
        OnlineTeacher(model, family_of("bert"), Wanted(relations=(3,)))


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_relations_are_what_the_model_computes_alone_or_beside_other_signals(
    name: str, open_tiny: Callable[..., Any]
) -> None:
    model, folder, tokenizer = open_tiny(name, 3)
    batch = batch_of(tokenizer)
    beside = OnlineTeacher(model, folder.family, Wanted(hidden=(3,), attention=(0,), relations=(1,)))(batch)
    alone = OnlineTeacher(model, folder.family, Wanted(outputs=False, relations=(1,)))(batch)
    with record_attention(model, folder.family, (), range(3)) as recorder:
        model(**{k: batch[k] for k in folder.family.inputs})
    assert list(beside.relations) == list(alone.relations) == [1]
    for vectors in ("query", "key", "value"):
        wanted = getattr(recorder.relations[1], vectors)
        for found in (getattr(t.relations[1], vectors) for t in (beside, alone)):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
            assert not found.requires_grad


@pytest.mark.parametrize(
    ("wanted", "layers"),
    [
        (Wanted(outputs=False, relations=(1,)), 2),
        (Wanted(outputs=False, attention=(0,)), 1),
        (Wanted(outputs=False, attention=(0,), hidden=(1,)), 3),
        (Wanted(relations=(0,)), 3),
    ],
)
def test_the_teacher_runs_no_further_than_it_must(wanted: Wanted, layers: int, open_tiny: Callable[..., Any]) -> None:
    model, folder, tokenizer = open_tiny("bert", 3)
    begun: list[int] = []
    for number, layer in enumerate(model.get_submodule(folder.family.layer_path)):
        layer.register_forward_pre_hook(lambda *_, n=number: begun.append(n))
    taught = OnlineTeacher(model, folder.family, wanted)(batch_of(tokenizer))
    assert begun == list(range(layers))
    assert (tuple(taught.scores), tuple(taught.relations)) == (wanted.attention, wanted.relations)
