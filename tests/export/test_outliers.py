"""Outlier channels are found, divided and brought back; in fp32 no answer changes by a bit."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pocketbert.core.families import Family, find_family
from pocketbert.core.tasks import TASKS, Task, TaskName
from pocketbert.core.types import Format, Layout
from pocketbert.export.adapters.outliers import RATIO, divide_outliers, find_places, measure_channels
from pocketbert.export.prepare import list_divided_outliers, prepare
from support.outliers import ROWS, answers, feed, plant
from support.tiny import EXPORTED, NAMES, noisy_model

CLASSIFY = TASKS[TaskName.TEXT_CLASSIFICATION]
HEADS = {
    TaskName.TEXT_CLASSIFICATION: "AutoModelForSequenceClassification",
    TaskName.TOKEN_CLASSIFICATION: "AutoModelForTokenClassification",
    TaskName.QUESTION_ANSWERING: "AutoModelForQuestionAnswering",
    TaskName.FILL_MASK: "AutoModelForMaskedLM",
    TaskName.FEATURE_EXTRACTION: "AutoModel",
}
KNOWN = ("bert", "ernie", "electra", "roberta", "xlm-r", "distilbert", "albert", "mpnet", "camembert")
FORMS = [(Format.ONNX, Layout.PLAIN), (Format.TFLITE, Layout.PLAIN), (Format.COREML, Layout.ANE)]
CELLS = [(n, f) for n in KNOWN for f in FORMS if n in ("bert", "distilbert", "albert") or f == FORMS[0]]


def prepare_noisy(
    name: str, task: Task = CLASSIFY, form: tuple[Format, Layout] = FORMS[0], **changes: Any
) -> tuple[nn.Module, Family]:
    family = find_family(name)
    labels = NAMES[:2] if task.name is TaskName.QUESTION_ANSWERING else NAMES
    return prepare(noisy_model(name, 2, HEADS[task.name], labels, **changes), family, task, *form), family


@pytest.mark.parametrize(("name", "form"), CELLS, ids=str)
def test_no_answer_changes_by_a_bit(name: str, form: tuple[Format, Layout]) -> None:
    module, family = prepare_noisy(name, form=form)
    places = plant(module, family.inputs, 64.0, values=True)
    treated = copy.deepcopy(module)
    found = divide_outliers(treated, family.inputs, ROWS)
    assert [o.name for o in found] == [p.removeprefix("model.") for p in places]
    assert all(o.channels == 2 and o.ratio > RATIO for o in found)
    for before, after in zip(answers(module, family.inputs), answers(treated, family.inputs), strict=True):
        assert torch.equal(before, after)
    assert divide_outliers(treated, family.inputs, ROWS) == ()  # nothing is left


@pytest.mark.parametrize(
    ("name", "task", "changes", "count"),
    [
        # two of each layer and that of the embeddings; the last states are the answer of feature extraction
        *(("bert", task, {}, 4 if task is TaskName.FEATURE_EXTRACTION else 5) for task in HEADS),
        # layers that run several times share their factors
        ("albert", CLASSIFY.name, {"num_hidden_layers": 4, "num_hidden_groups": 2}, None),
        ("albert", CLASSIFY.name, {"num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2}, None),
        ("albert", CLASSIFY.name, {"num_hidden_layers": 4, "embedding_size": 32}, None),
    ],
    ids=str,
)
def test_every_head_and_layers_that_run_several_times(
    name: str, task: TaskName, changes: dict[str, Any], count: int | None
) -> None:
    module, family = prepare_noisy(name, TASKS[task], **changes)
    places = plant(module, family.inputs, 64.0)
    treated = copy.deepcopy(module)
    found = divide_outliers(treated, family.inputs, ROWS)
    assert found
    assert count is None or len(found) == len(places) == count
    for before, after in zip(answers(module, family.inputs), answers(treated, family.inputs), strict=True):
        assert torch.equal(before, after)


def test_what_one_call_measures_serves_the_next() -> None:
    module, family = prepare_noisy("bert")
    plant(module, family.inputs, 64.0)
    first, second = copy.deepcopy(module), copy.deepcopy(module)
    known: dict[str, torch.Tensor] = {}
    found = divide_outliers(first, family.inputs, ROWS, known)
    empty = [{name: row[name] * 0 for name in row} for row in ROWS]  # no token counts: nothing can be measured on these
    assert found == divide_outliers(second, family.inputs, empty, known)
    for weight, again in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(weight, again)


def test_a_model_without_outliers_is_left_as_it_is() -> None:
    module, family = prepare_noisy("bert")
    before = {name: value.clone() for name, value in module.state_dict().items()}
    assert divide_outliers(module, family.inputs, ROWS) == ()
    after = module.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in after.items())


def test_layers_that_are_not_known_are_left_as_they_are() -> None:
    for name in (n for n in EXPORTED if n not in (*KNOWN, "squeezebert")):  # which is split after the division
        module, family = prepare_noisy(name)
        assert find_places(module, feed(family.inputs)) == []


def test_a_head_that_reads_its_states_twice_is_left_alone() -> None:
    class Twice(nn.Module):
        def __init__(self, dense: nn.Module) -> None:
            super().__init__()
            self.dense = dense

        def forward(self, states: torch.Tensor) -> Any:
            return self.dense(states) + states.sum(-1, keepdim=True)

    module, family = prepare_noisy("bert", TASKS[TaskName.TOKEN_CLASSIFICATION])
    whole = [p.name for p in find_places(module, feed(family.inputs))]
    model: Any = module
    model.model.classifier = Twice(model.model.classifier)
    assert [p.name for p in find_places(module, feed(family.inputs))] == whole[:-1]


def test_without_rows_nothing_is_looked_for() -> None:
    model, family = noisy_model("bert", 2, HEADS[CLASSIFY.name]), find_family("bert")
    with torch.no_grad():
        model.bert.encoder.layer[0].output.LayerNorm.weight[5] = 400
    assert list_divided_outliers(prepare(model, family, CLASSIFY)) == ()
    found = list_divided_outliers(prepare(model, family, CLASSIFY, sentences=ROWS))
    assert "bert.encoder.layer.0.output_norm" in [o.name for o in found]


@pytest.mark.parametrize("part", [1.0, 0.6])
def test_a_head_of_zeros_gives_finite_factors(part: float) -> None:
    module, family = prepare_noisy("bert")
    head: Any = module.get_submodule("model.bert.pooler.dense")
    with torch.no_grad():
        head.weight[:, : int(part * head.in_features)] = 0
    plant(module, family.inputs, 64.0)
    right = answers(module, family.inputs)
    assert len(divide_outliers(module, family.inputs, ROWS)) == 5
    assert all(torch.equal(a, b) for a, b in zip(right, answers(module, family.inputs), strict=True))
    assert all(bool(torch.isfinite(p).all()) for p in module.parameters())


def test_padding_does_not_count() -> None:
    module, family = prepare_noisy("bert")
    places = find_places(module, feed(family.inputs))
    short = [{name: value[1:2, :8] for name, value in ROWS[0].items()}]
    padded = [{name: value[1:2] for name, value in ROWS[0].items()}]
    sizes = [measure_channels(module, places, family.inputs, rows) for rows in (short, padded)]
    assert all(torch.allclose(a, b, rtol=1e-3) for a, b in zip(*sizes, strict=True))
    padded[0]["attention_mask"] = np.ones_like(padded[0]["attention_mask"])
    counted = measure_channels(module, places, family.inputs, padded)
    assert not all(torch.allclose(a, b, rtol=1e-3) for a, b in zip(sizes[0], counted, strict=True))
