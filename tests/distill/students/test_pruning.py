"""Feed-forward neurons are chosen by what they add on real tokens, and cut so that nothing else changes."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError
from pocketbert.core.families import Family, find_family
from pocketbert.core.recipe.student import StudentSection
from pocketbert.distill.students.build import build_student
from pocketbert.distill.students.pruning import pruned
from support.tiny import EXPORTED

PRUNED = tuple(name for name in EXPORTED if find_family(name).feed_forward)
ROWS = ([2, 5, 6, 3], [2, 7, 8, 9, 10, 11, 3], [2, 12, 3])


def make_batch(rows: Sequence[list[int]], row: Family, padding: int = 0, width: int = 8) -> dict[str, Tensor]:
    """Rows of ids as a model of a family takes them, padded on its side with any id."""
    ids, mask = torch.full((len(rows), width), padding), torch.zeros((len(rows), width), dtype=torch.long)
    for number, values in enumerate(rows):
        own = slice(width - len(values), width) if row.padding_side == "left" else slice(0, len(values))
        ids[number, own], mask[number, own] = torch.tensor(values), 1
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return {name: inputs[name] for name in row.inputs}


def logits(model: Any, row: Family) -> list[Tensor]:
    with torch.no_grad():
        return [model(**make_batch((ids,), row, width=len(ids))).logits for ids in ROWS]


def outgoing(model: Any, row: Family) -> list[nn.Linear]:
    """The matrices out of the neurons."""
    entries = "|".join(re.escape(down).replace(r"\*", r"\d+") for down in row.feed_forward.values())
    return [m for path, m in model.named_modules() if re.fullmatch(rf".*\.\d+\.(?:{entries})", path)]


@pytest.mark.parametrize("name", PRUNED)
def test_neurons_that_add_nothing_go_first_and_no_answer_changes(name, make_classifier):
    row, model = find_family(name), make_classifier(name, 2, ("a", "b", "c"))
    neurons = outgoing(model, row)[0].in_features
    dead = torch.arange(neurons) % 3 == 1
    with torch.no_grad():
        for down in outgoing(model, row):
            down.weight[:, dead] = 0.0
    live, batches = int((~dead).sum()), [make_batch(ROWS, row)]
    before, weights = logits(model, row), {k: v.clone() for k, v in model.state_dict().items()}
    result = pruned(model, row, live, batches)
    for path, kept in result.kept.items():
        assert kept.tolist() == sorted(set(kept.tolist())) and len(kept) == live
        # of ReLU some other neurons are silent on these rows, too
        assert name == "mobilebert" or not dead[kept].any()
        assert result.shares[path] == pytest.approx(1.0)
    for ours, theirs in zip(logits(result.model, row), before, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5, rtol=1e-5)
    assert {down.in_features for down in outgoing(result.model, row)} == {live}
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items()), "the model itself stays as it was"
    # a neuron of weight is missed: the law above holds for dead ones only
    fewer = pruned(model, row, max(1, neurons // 8), batches)
    assert any(not torch.allclose(a, b, atol=1e-5) for a, b in zip(logits(fewer.model, row), before, strict=True))


def test_importance_is_the_mean_activation_times_the_norm_of_what_leaves_the_neuron(make_classifier):
    row, model = find_family("bert"), make_classifier("bert", 2, ("a", "b"))
    seen, last = list[Tensor](), model.bert.encoder.layer[1].output.dense
    handle = last.register_forward_pre_hook(lambda _, given: seen.append(given[0][0].abs()))
    logits(model, row)
    handle.remove()
    wanted = torch.cat(seen).mean(0) * last.weight.detach().norm(dim=0)
    best = wanted.topk(20).indices
    result, path = pruned(model, row, 20, [make_batch(ROWS, row)]), "bert.encoder.layer.1.intermediate.dense"
    assert result.kept[path].tolist() == best.sort().values.tolist()
    assert result.shares[path] == pytest.approx(float(wanted[best].sum() / wanted.sum()), rel=1e-5)
    assert result.sentence.startswith("pruned: 20 of 64 feed-forward neurons stay in each layer, with ")
    assert not last._forward_pre_hooks


@pytest.mark.parametrize("name", ["bert", "longformer", "xlnet", "albert"])
def test_padding_decides_nothing(name, make_classifier):
    row, model = find_family(name), make_classifier(name, 2, ("a", "b"))
    alone = pruned(model, row, 20, [make_batch((ids,), row, width=len(ids)) for ids in ROWS])
    shown = make_batch(ROWS, row, 13, width=24)
    for padding in (0, 13):
        padded = pruned(model, row, 20, [make_batch(ROWS, row, padding, width=24)])
        assert padded.shares == alone.shares
        assert all(torch.equal(kept, padded.kept[path]) for path, kept in alone.kept.items())
    shown["attention_mask"] = torch.ones_like(shown["attention_mask"])
    counted = pruned(model, row, 20, [shown]).shares
    assert all(counted[path] != pytest.approx(share) for path, share in alone.shares.items()), "it would have counted"


@pytest.mark.parametrize(
    ("name", "intermediate", "message"),
    [
        ("xlm", 8, "feed-forward neurons of XLM cannot be pruned: its feed-forward part is always four times as wide"),
        ("ernie-thu", 8, "cannot be pruned: .*neurons serve the text and the entities"),
        ("bert", 64, "64 neurons are to stay, and each layer of BERT has 64.*below 64, for example 32"),
        ("distilbert", 70, "70 neurons are to stay, and each layer of DistilBERT has 64"),
    ],
)
def test_what_cannot_be_pruned_is_refused(name, intermediate, message, make_classifier):
    row, model = find_family(name), make_classifier(name, 1, ("a", "b"))
    with pytest.raises(InputError, match=message):
        pruned(model, row, intermediate, [make_batch(ROWS, row)])


def test_a_student_of_fewer_layers_starts_from_the_pruned_ones(make_classifier):
    row, teacher = find_family("bert"), make_classifier("bert", 4, ("a", "b"))
    wanted = StudentSection(layers=2, init="pruned", intermediate=16)
    small = pruned(teacher, row, 16, [make_batch(ROWS, row)])
    student = build_student(small.model, row, wanted, 0)
    assert (student.config.num_hidden_layers, student.config.intermediate_size) == (2, 16)
    for ours, number in enumerate((2, 4)):
        path = f"bert.encoder.layer.{number - 1}.intermediate.dense"
        rows = teacher.state_dict()[f"{path}.weight"][small.kept[path]]
        assert torch.equal(student.bert.encoder.layer[ours].intermediate.dense.weight, rows)
    other = build_student(small.model, row, wanted.model_copy(update={"family": "distilbert"}), 0)
    assert other.config.hidden_dim == 16
    kept = small.model.bert.encoder.layer[1].output.dense.weight
    assert torch.equal(other.distilbert.transformer.layer[0].ffn.lin2.weight, kept)
