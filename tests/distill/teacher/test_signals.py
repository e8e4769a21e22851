"""The signals of a teacher that runs beside the student."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pocketbert.distill.capture import record_attention
from pocketbert.distill.teacher.signals import OnlineTeacher, Wanted

TEXTS = ["a good film", "not bad", "the day was far better than I had expected, never again", "ok"]
FAMILIES = ("bert", "distilbert", "mobilebert", "deberta-v2")
"""What each of the other families computes is compared in tests/distill/capture."""
ALL = Wanted(hidden=(0, 1, 2, 3), attention=(0, 1, 2), relations=(1,))


def batch_of(tokenizer: Any) -> dict[str, Tensor]:
    return {k: torch.from_numpy(v) for k, v in tokenizer.pad(tokenizer.encode(TEXTS)).items()}


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_every_signal_is_what_the_model_computes(name, open_tiny):
    model, folder, tokenizer = open_tiny(name, 3)
    batch = batch_of(tokenizer)
    taught = OnlineTeacher(model, folder.family, ALL)(batch)
    alone = OnlineTeacher(model, folder.family, Wanted(outputs=False, relations=(1,)))(batch)
    with record_attention(model, folder.family, range(3), [1]) as recorder:
        made = model(**{k: batch[k] for k in folder.family.inputs}, output_hidden_states=True)
    assert set(taught.outputs) == {"logits"} and list(taught.hidden) == [0, 1, 2, 3]
    assert torch.equal(taught.outputs["logits"], made.logits)
    assert all(torch.equal(taught.hidden[n], made.hidden_states[n]) for n in range(4))
    assert all(torch.equal(taught.scores[n], recorder.scores[n]) for n in range(3))
    assert list(taught.relations) == list(alone.relations) == [1]
    for vectors in ("query", "key", "value"):
        wanted = getattr(recorder.relations[1], vectors)
        for found in (getattr(t.relations[1], vectors) for t in (taught, alone)):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_the_teacher_has_neither_dropout_nor_gradient(open_tiny):
    model, folder, tokenizer = open_tiny("bert", 3)
    online = OnlineTeacher(model, folder.family, ALL)
    model.train()
    first, second = online(batch_of(tokenizer)), online(batch_of(tokenizer))
    assert torch.equal(first.outputs["logits"], second.outputs["logits"])
    values = [*first.outputs.values(), *first.hidden.values(), *first.scores.values()]
    assert len(values) == 8 and not any(v.requires_grad for v in values)


@pytest.mark.parametrize(
    ("wanted", "layers"),
    [
        (Wanted(outputs=False, relations=(1,)), 2),
        (Wanted(outputs=False, attention=(0,)), 1),
        (Wanted(outputs=False, attention=(0,), hidden=(1,)), 3),
        (Wanted(relations=(0,)), 3),
    ],
)
def test_the_teacher_runs_no_further_than_it_must(wanted, layers, open_tiny):
    model, folder, tokenizer = open_tiny("bert", 3)
    begun: list[int] = []
    for number, layer in enumerate(model.get_submodule(folder.family.layer_path)):
        layer.register_forward_pre_hook(lambda *_, n=number: begun.append(n))
    taught = OnlineTeacher(model, folder.family, wanted)(batch_of(tokenizer))
    assert begun == list(range(layers))
    assert (tuple(taught.scores), tuple(taught.relations)) == (wanted.attention, wanted.relations)
