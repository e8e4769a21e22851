"""Feed-forward neurons are chosen by what they add on real tokens, and cut so that nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pocketbert.core.errors import InputError
from pocketbert.core.families import Family, find_family
from pocketbert.core.recipe.student import StudentSection
from pocketbert.distill.students.build import build_student
from pocketbert.distill.students.pruning import _find_feed_forward_parts, _measure_importance, pruned
from support.tiny import EXPORTED

PRUNED = tuple(name for name in EXPORTED if find_family(name).feed_forward)
ROWS = ([2, 5, 6, 3], [2, 7, 8, 9, 10, 11, 3], [2, 12, 3])


def batch(rows: tuple[list[int], ...], row: Family, padding: int = 0, width: int = 8) -> dict[str, Tensor]:
    """Rows of ids as a model of a family takes them, padded on its side with any id."""
    ids, mask = torch.full((len(rows), width), padding), torch.zeros((len(rows), width), dtype=torch.long)
    for number, values in enumerate(rows):
        own = slice(width - len(values), width) if row.padding_side == "left" else slice(0, len(values))
        ids[number, own], mask[number, own] = torch.tensor(values), 1
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return {name: inputs[name] for name in row.inputs}


def logits(model: Any, row: Family) -> list[Tensor]:
    with torch.no_grad():
        return [model(**batch((ids,), row, width=len(ids))).logits for ids in ROWS]


@pytest.mark.parametrize("name", PRUNED)
def test_neurons_that_add_nothing_go_first_and_no_answer_changes(
    name: str, make_classifier: Callable[..., Any]
) -> None:
    row, model = find_family(name), make_classifier(name, 2, ("a", "b", "c"))
    parts = _find_feed_forward_parts(model, row)
    neurons = parts[0].down.in_features
    dead = torch.arange(neurons) % 3 == 1
    live = int((~dead).sum())
    with torch.no_grad():
        for part in parts:
            part.down.weight[:, dead] = 0.0
    before, weights = logits(model, row), {k: v.clone() for k, v in model.state_dict().items()}
    scores = _measure_importance(model, row, [batch(ROWS, row)])
    result = pruned(model, row, live, [batch(ROWS, row)])
    for path, score in scores.items():
        assert not score[dead].any()
        active = set(score.nonzero()[:, 0].tolist())  # of ReLU some other neurons are silent on these rows, too
        assert active <= set(result.kept[path].tolist())
        assert len(active) == live or name == "mobilebert"
        assert result.shares[path] == pytest.approx(1.0)
    for ours, theirs in zip(logits(result.model, row), before, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5, rtol=1e-5)
    assert {p.down.in_features for p in _find_feed_forward_parts(result.model, row)} == {live}
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items()), "the model itself stays as it was"
    # a neuron of weight is missed: the law above holds for dead ones only
    fewer = pruned(model, row, max(1, neurons // 8), [batch(ROWS, row)])
    assert any(not torch.allclose(a, b, atol=1e-5) for a, b in zip(logits(fewer.model, row), before, strict=True))


def test_importance_is_the_mean_activation_times_the_norm_of_what_leaves_the_neuron(
    make_classifier: Callable[..., Any],
) -> None:
    row, model = find_family("bert"), make_classifier("bert", 2, ("a", "b"))
    seen = list[Tensor]()
    last = model.bert.encoder.layer[1].output.dense
    handle = last.register_forward_pre_hook(lambda _, given: seen.append(given[0][0].abs()))
    logits(model, row)
    handle.remove()
    wanted = torch.cat(seen).mean(0) * last.weight.norm(dim=0)
    found = _measure_importance(model, row, [batch(ROWS, row)])
    assert torch.allclose(found["bert.encoder.layer.1.intermediate.dense"], wanted.double(), rtol=1e-5)
    assert not last._forward_pre_hooks


@pytest.mark.parametrize("name", ["bert", "longformer", "xlnet", "albert"])
def test_padding_decides_nothing(name: str, make_classifier: Callable[..., Any]) -> None:
    row, model = find_family(name), make_classifier(name, 2, ("a", "b"))
    alone = _measure_importance(model, row, [batch((ids,), row, width=len(ids)) for ids in ROWS])
    for padding in (0, 13):
        padded = _measure_importance(model, row, [batch(ROWS, row, padding, width=24)])
        assert alone.keys() == padded.keys()
        assert all(torch.equal(alone[path], padded[path]) for path in alone)
    # the same rows without their mask: padding would have counted
    shown = batch(ROWS, row, 13, width=24)
    shown["attention_mask"] = torch.ones_like(shown["attention_mask"])
    counted = _measure_importance(model, row, [shown])
    assert all(not torch.allclose(alone[path], counted[path]) for path in alone)


def test_neurons_are_not_chosen_without_text(make_classifier: Callable[..., Any]) -> None:
    model = make_classifier("bert", 1, ("a", "b"))
    with pytest.raises(ValueError, match="at least one row"):
        _measure_importance(model, find_family("bert"), [])


@pytest.mark.parametrize(
    ("name", "intermediate", "message"),
    [
        ("xlm", 8, "feed-forward neurons of XLM cannot be pruned: its feed-forward part is always four times as wide"),
        ("ernie-thu", 8, "cannot be pruned: .*neurons serve the text and the entities"),
        ("bert", 64, "64 neurons are to stay, and each layer of BERT has 64.*below 64, for example 32"),
        ("distilbert", 70, "70 neurons are to stay, and each layer of DistilBERT has 64"),
    ],
)
def test_what_cannot_be_pruned_is_refused(
    name: str, intermediate: int, message: str, make_classifier: Callable[..., Any]
) -> None:
    row, model = find_family(name), make_classifier(name, 1, ("a", "b"))
    with pytest.raises(InputError, match=message):
        pruned(model, row, intermediate, [batch(ROWS, row)])


@pytest.mark.parametrize("name", PRUNED)
def test_heads_cannot_be_pruned_because_fewer_heads_are_larger(name: str, make_classifier: Callable[..., Any]) -> None:
    """Why `heads` is refused with ``init: pruned``. Where this fails, transformers has a size of heads of its own."""
    row, model = find_family(name), make_classifier(name, 1, ("a", "b"))
    config = model.config
    shapes = {
        n: p.shape[0] * (p.shape[1] if p.ndim > 1 else 1) for n, p in model.named_parameters() if "attention" in n
    }
    config.num_attention_heads //= 2
    if row.head_size is not None:
        setattr(config, row.head_size, config.hidden_size // config.num_attention_heads)
    fewer = dict(type(model)(config).named_parameters())
    assert all(
        fewer[n].shape[0] * (fewer[n].shape[1] if fewer[n].ndim > 1 else 1) == size for n, size in shapes.items()
    )


def test_a_student_of_fewer_layers_starts_from_the_pruned_ones(make_classifier: Callable[..., Any]) -> None:
    row, teacher = find_family("bert"), make_classifier("bert", 4, ("a", "b"))
    wanted = StudentSection(layers=2, init="pruned", intermediate=16)
    small = pruned(teacher, row, 16, [batch(ROWS, row)])
    student = build_student(small.model, row, wanted, 0)
    assert (student.config.num_hidden_layers, student.config.intermediate_size) == (2, 16)
    for ours, number in enumerate((2, 4)):
        path = f"bert.encoder.layer.{number - 1}.intermediate.dense"
        rows = teacher.state_dict()[f"{path}.weight"][small.kept[path]]
        assert torch.equal(student.bert.encoder.layer[ours].intermediate.dense.weight, rows)
    other = build_student(small.model, row, wanted.model_copy(update={"family": "distilbert"}), 0)
    assert other.config.hidden_dim == 16
    path = "bert.encoder.layer.1"
    assert torch.equal(
        other.distilbert.transformer.layer[0].ffn.lin2.weight, small.model.state_dict()[f"{path}.output.dense.weight"]
    )
