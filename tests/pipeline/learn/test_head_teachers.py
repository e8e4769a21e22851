"""Heads with a teacher of their own: columns of answers teach them what they teach a single head, beside labels and a common teacher."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import pocketbert
from pocketbert.core.errors import InputError
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.file import recipe_from_values
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import Level
from pocketbert.distill.losses.common import Term
from pocketbert.distill.losses.task import count_labelled_tokens, gold_terms, head_weights, soft_terms
from pocketbert.distill.teacher.column import ColumnTeacher
from pocketbert.distill.teacher.signals import Taught, Wanted
from pocketbert.distill.training.data import ROW_NUMBERS, TrainSet
from pocketbert.pipeline.learn.answers import column_outputs
from pocketbert.pipeline.learn.data import load_data
from pocketbert.pipeline.learn.finishing import column_settings, read_training
from pocketbert.pipeline.learn.training import read_head_answers
from pocketbert.pipeline.learn.validation import scored_by_default_up_to
from support.tiny import write_bert
from support.tiny_texts import KEYWORDS, LABELS, LENGTH, task_rows, write_lines

Run = Callable[..., Any]
STAGE = {"method": "task", "steps": 5}
HEADS: dict[str, dict[str, Any]] = {
    "intent": {"task": "text-classification"},
    "topics": {"task": "multi-label"},
    "mood": {"task": "regression"},
    "slots": {"task": "token-classification"},
}
TAGS = ("O", *(f"{mark}-{name}" for name in LABELS for mark in "BI"))


def softmax(values: Any) -> Any:
    powers = np.exp(values - values.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def named(names: Any, values: Any) -> dict[str, float]:
    return dict(zip(names, map(float, values), strict=True))


def head_rows(count: int, seed: int, turned: bool = False) -> list[dict[str, Any]]:
    """Rows with a label and a sure answer for each head; answers that are `turned` name the label after the right one."""
    rows, draw = list[dict[str, Any]](), np.random.default_rng(seed)
    for row in task_rows(count, seed):
        tokens, label = row["text"].split(), row["label"]
        said = LABELS[(LABELS.index(label) + turned) % len(LABELS)]
        tags = [f"B-{label}" if token in KEYWORDS[label] else "O" for token in tokens]
        sure = [tag.replace(label, said) for tag in tags]
        rows.append(
            {
                "tokens": tokens,
                "intent": label,
                "topics": [label],
                "mood": float(LABELS.index(label)),
                "slots": tags,
                "intent_probs": named(LABELS, softmax(draw.normal(size=3) + 9 * np.eye(3)[LABELS.index(said)])),
                "topics_probs": named(LABELS, 1 / (1 + np.exp(-draw.normal(size=3) * 3))),
                "mood_probs": float(draw.normal()),
                "slots_probs": [
                    named(TAGS, softmax(draw.normal(size=7) + 9 * np.eye(7)[TAGS.index(tag)])) for tag in sure
                ],
            }
        )
    return rows


def several(at: Path, taught: dict[str, Any], **changes: Any) -> Recipe:
    """A recipe with the heads of `taught`, and keys added to their sections."""
    content = {
        "schema": 1,
        "name": "taught",
        "tasks": {name: {**HEADS[name], **own} for name, own in taught.items()},
        "data": {
            "train": {"path": str(at / "train.jsonl"), "text": "tokens"},
            "eval": {"path": str(at / "eval.jsonl"), "text": "tokens"},
            "max_length": LENGTH,
        },
        "student": {"layers": 1},
        "distill": [STAGE],
        "export": {"formats": ["onnx"], "lengths": [16]},
    }
    return recipe_from_values({k: v for k, v in {**content, **changes}.items() if v is not None}, "recipe")


@pytest.mark.parametrize(
    ("teacher", "epochs", "wanted"),
    [({"model": "./any"}, 4, "any"), ({"model": "./any"}, 1, None), ("intent_probs", 4, None)],
)
def test_answers_of_a_heads_model_depend_on_whether_validation_rows_are_taken(
    teacher: Any, epochs: int, wanted: Any, tmp_path: Path
) -> None:
    """They lie in the order of the training rows, of which a longer first stage takes some away."""
    stage = {"method": "task", "epochs": epochs, "signals": {"logits": 1, "labels": 1}}
    recipe = several(tmp_path, {"intent": {"teacher": teacher}, "mood": {}}, distill=[stage])
    assert scored_by_default_up_to(recipe) == wanted


# --- losses ---


def terms_of(recipe: Recipe, model: Path, students: Any, name: str, temperature: float) -> dict[str, Term]:
    """Terms of one head of a recipe, or of the only one, for students that say the same of a row in both."""
    folder = open_model_folder(str(model))
    data = load_data(recipe, folder)
    task, rows = data.head.task, data.splits["train"]
    batch = TrainSet(rows, TextTokenizer(folder.tokenizer_folder, LENGTH)).batch(range(len(rows.encoded)), 0)
    width, length = len(students[0][0]), batch["input_ids"].shape[1]
    logits = np.stack([students[example.row][:length] for example in rows.examples])
    if task.heads:
        outputs: Any = read_head_answers(recipe, data)
        by_token = [head.output for head in task.heads if head.task.level is Level.TOKEN]
        [head] = [head for head in task.heads if head.name == name]
        joint = np.full((*logits.shape[:2], task.heads[-1].stop), 7.0, np.float32)
        joint[..., head.columns], logits = logits, joint
        assert head.stop - head.start == width
        logits = logits if task.level is Level.TOKEN else logits[:, 0]
    else:
        outputs = column_outputs(rows, column_settings(recipe, data))
        by_token = [*outputs] if task.level is Level.TOKEN else []
        logits = logits if task.level is Level.TOKEN else logits[:, 0]
    student, taught = SimpleNamespace(logits=torch.from_numpy(logits)), ColumnTeacher(outputs, by_token)(batch).outputs
    terms = soft_terms(task, student, taught, batch, temperature, DEFAULT_POOLING) | gold_terms(task, student, batch)
    counts = count_labelled_tokens(task, batch)
    for key, term in terms.items():
        assert float(term.count) == float(counts.get(key, len(rows.encoded))), f"{key}: what is counted beforehand"
    return {key.partition(".")[0]: term for key, term in terms.items() if name in key or not task.heads}


FORMS: dict[str, tuple[str, Callable[[Any], Any], dict[str, Any]]] = {
    "probabilities by name": ("intent", lambda p: p, {}),
    "logits by name": (
        "intent",
        lambda p: {k: float(np.log(v)) + 3 for k, v in p.items()},
        {"teacher": {"kind": "logits"}},
    ),
    "probabilities in label order": ("intent", lambda p: [*p.values()], {"labels": [*LABELS]}),
    "labels, smoothed": ("intent", lambda p: max(p, key=p.get), {"teacher": {"smoothing": 0.1}}),
    "probabilities of several labels": ("topics", lambda p: p, {}),
    "a score": ("mood", lambda p: p, {}),
    "probabilities of words": ("slots", lambda p: p, {}),
}
LACKING: list[tuple[str, ...]] = [(), ("{}",), ("{}_probs",), ("{}", "{}_probs")]
"""Columns that a row lacks: none, the label, the answer, both."""


@pytest.mark.parametrize(
    ("form", "others"),
    [*((form, ("slots", "mood")) for form in FORMS), ("a score", ("intent",)), ("labels, smoothed", ("mood",))],
)
def test_a_column_gives_a_head_the_losses_that_it_gives_alone(
    form: str, others: tuple[str, ...], tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    name, write, keys = FORMS[form]
    rows = [{**row, f"{name}_probs": write(row[f"{name}_probs"])} for row in head_rows(24, 1)]
    for i, row in enumerate(rows[8:] if "labels" not in keys else []):  # positions in a list give no names
        for column in LACKING[i % 4]:
            del row[column.format(name)]
    write_lines(tmp_path / "train.jsonl", rows)
    write_lines(tmp_path / "eval.jsonl", head_rows(6, 2))
    labels, model = {k: v for k, v in keys.items() if k == "labels"}, tiny_model("bert")
    column = {"column": f"{name}_probs", **keys.get("teacher", {})}
    heads = {name: {**labels, "teacher": column}} | {n: {"teacher": f"{n}_probs"} for n in others if n != name}
    both = several(tmp_path, dict(sorted(heads.items())))
    data = {
        split: {"path": str(tmp_path / f"{split}.jsonl"), "text": "tokens", "label": name}
        for split in ("train", "eval")
    }
    data["train"]["teacher"] = column
    own = {"tasks": None, "task": HEADS[name]["task"], "data": {**data, "max_length": LENGTH, **labels}}
    width = {"intent": 3, "topics": 3, "mood": 1, "slots": 7}[name]
    students = np.random.default_rng(4).normal(size=(25, LENGTH, width), scale=2).astype(np.float32)
    found, wanted = (terms_of(recipe, model, students, name, 2.0) for recipe in (both, several(tmp_path, {}, **own)))
    assert {*found} == {*wanted} == {"logits", "labels"}
    for key, term in wanted.items():
        assert float(found[key].mean) == pytest.approx(float(term.mean), rel=1e-6, abs=1e-6), key
        assert float(found[key].count) == float(term.count), key
        assert float(term.mean) > 0.01


def test_a_model_beside_columns_teaches_the_heads_without_one() -> None:
    class Model:
        wanted = Wanted(hidden=(1,))

        def __call__(self, batch: Any) -> Taught:
            return Taught({"logits": torch.zeros(2, 3, 4)}, {1: torch.ones(2, 3, 5)})

    column = ColumnTeacher({"intent_logits": [np.full(2, i, np.float32) for i in range(4)]}, ())
    batch = {ROW_NUMBERS: torch.tensor([3, 1]), "input_ids": torch.zeros(2, 3), "attention_mask": torch.ones(2, 3)}
    assert column.wanted == Wanted(outputs=True)
    both = column.with_model(Model())
    taught = both(batch)
    assert both.wanted == Model.wanted
    assert {name: value.tolist() for name, value in taught.outputs.items()} == {
        "logits": torch.zeros(2, 3, 4).tolist(),
        "intent_logits": [[3, 3], [1, 1]],
    }
    assert [*taught.hidden] == [1]


# --- recipes ---


def test_a_recipe_without_a_common_teacher_learns_columns_and_labels(tmp_path: Path) -> None:
    labelled = [{**STAGE, "signals": {"labels": 1}}]
    recipe = several(tmp_path, {"intent": {"teacher": "p"}, "slots": {}}, distill=labelled)
    assert (recipe.teacher.model, recipe.teacher.start_only, recipe.asks_model) == ("minilm-l6", True, False)
    assert [head.learns_from for head in recipe.task_row.heads] == ["column", "labels"]
    weights = head_weights(recipe.task_row, {"logits": 2.0, "labels": 1.0})
    assert weights == {"logits.intent": 2.0, "labels.intent": 1.0, "labels.slots": 1.0}
    signals = recipe.distill[0].model_dump()["signals"]
    assert {name for name, weight in signals.items() if weight} == {"logits", "labels"}
    assert recipe_from_values(recipe.model_dump(mode="json", by_alias=True), "again") == recipe
    started = several(tmp_path, BOTH, student={"model": "org/encoder"})
    assert (started.teacher.model, started.teacher.start_only, started.asks_model) == ("org/encoder", False, False)


def test_heads_without_a_column_keep_the_common_teacher(tmp_path: Path) -> None:
    finetune = {"model": "org/model", "finetune": {"steps": 5}}
    stages = [{"method": "tinybert-intermediate", "steps": 2}, {**STAGE, "cache_teacher": "fp32"}]
    recipe = several(tmp_path, {"intent": {"teacher": "p"}, "slots": {}}, teacher=finetune, distill=stages)
    assert recipe.asks_model
    assert [head.learns_from for head in recipe.task_row.heads] == ["column", "model"]
    assert recipe.distill[1].model_dump()["signals"]["hidden"] == 1
    plain = several(tmp_path, {"intent": {}, "slots": {}}, teacher=finetune).model_dump(mode="json")
    assert {*plain["tasks"]["intent"]} == {"task", "label", "labels", "weight"}, "older runs keep their digests"
    assert "start_only" not in plain["teacher"]


BOTH = {"intent": {"teacher": "p"}, "slots": {"teacher": "q"}}
ONE = {"intent": {"teacher": "p"}, "slots": {}}
NEITHER: dict[str, Any] = {"intent": {}, "slots": {}}
MODEL = {"model": "m"}
CONTRADICTIONS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        BOTH,
        {"teacher": {**MODEL, "finetune": {"steps": 5}}},
        "teacher.finetune: the teacher is a column of answers (tasks.intent.teacher, tasks.slots.teacher): leave one of",
    ),
    (
        BOTH,
        {"distill": [{**STAGE, "signals": {"hidden": 1}}]},
        "distill.0.signals: hidden states and attention are in no column",
    ),
    (
        BOTH,
        {"distill": [{**STAGE, "cache_teacher": "fp32"}]},
        "distill.0.cache_teacher: the answers of a column are stored already",
    ),
    (
        BOTH,
        {"distill": [{"method": "tinybert-intermediate", "steps": 5}]},
        "distill.0: method tinybert-intermediate compares layers",
    ),
    (BOTH, {"student": None, "distill": None}, "tasks.intent.teacher: a column teaches a student: add student"),
    (ONE, {}, "distill.0.signals.labels: is 0, and a head has no teacher (slots): set it to 1"),
    (
        ONE,
        {"teacher": MODEL, "distill": [{"method": "tinybert-prediction", "steps": 5}]},
        "distill.0: method tinybert-prediction asks a model about all heads, and one has a column: take method task",
    ),
    (NEITHER, {"teacher": {**MODEL, "start_only": True}}, "teacher.start_only: no column has answers"),
    (
        {**NEITHER, "intent": {"teacher": {"colum": "p"}}},
        {},
        "tasks.intent.teacher.colum: unknown key 'colum'; did you mean 'column'?",
    ),
]


@pytest.mark.parametrize(
    ("taught", "changes", "message"), CONTRADICTIONS, ids=[case[2][:50] for case in CONTRADICTIONS]
)
def test_what_columns_of_heads_cannot_serve_is_refused(
    taught: dict[str, Any], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        several(tmp_path, taught, **changes)
    assert message in str(caught.value)


# --- rows ---

Spoil = Callable[[list[dict[str, Any]]], object]
NO_ROW = (
    "tasks.{0}.teacher: no row has an answer in column '{0}_probs'. Fix: Name the column of the answers in tasks.{0}"
)
WRONG: dict[str, tuple[Spoil, list[str]]] = {
    "columns that are not there": (
        lambda rows: [row.pop("intent_probs") and row.pop("slots_probs") for row in rows],
        [NO_ROW.format("intent"), NO_ROW.format("slots")],
    ),
    "cells that are no answers": (
        lambda rows: (rows[0].update(intent_probs=[[1]]), rows[1].update(slots_probs="B-lamp")),
        [
            "column 'intent_probs': [1] is no finite number",
            "column 'slots_probs': 'B-lamp' is no list with an answer for each word",
        ],
    ),
    "lists without an order": (
        lambda rows: [row.update(intent_probs=[*row["intent_probs"].values()]) for row in rows],
        [
            "tasks.intent.teacher: the answers are lists of numbers",
            "Give the names in the order of the numbers: tasks.intent.labels",
        ],
    ),
    "tags that are none": (
        lambda rows: [unit.update({"Q": unit.pop("O")}) for row in rows for unit in row["slots_probs"]],
        ["tasks.slots.teacher: tag 'Q' of column 'slots_probs' is not in the label set"],
    ),
    "sums above 1": (
        lambda rows: rows[2].update(intent_probs=dict.fromkeys(LABELS, 0.9)),
        [
            "column 'intent_probs': the numbers 0.9, 0.9, 0.9 (sum 2.7) are no probabilities",
            "write kind: logits in the recipe's tasks.intent.teacher",
        ],
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_columns_are_refused_together(case: str, tmp_path: Path, tiny_model: Callable[..., Path]) -> None:
    spoil, messages = WRONG[case]
    rows = head_rows(24, 1)
    spoil(rows)
    write_lines(tmp_path / "train.jsonl", rows)
    write_lines(tmp_path / "eval.jsonl", head_rows(6, 2))
    recipe = several(tmp_path, {"intent": {"teacher": "intent_probs"}, "slots": {"teacher": "slots_probs"}})
    with pytest.raises(InputError) as caught:
        read_head_answers(recipe, load_data(recipe, open_model_folder(str(tiny_model("bert")))))
    assert [message for message in messages if message not in str(caught.value)] == []


def test_a_bare_model_is_no_common_teacher(tmp_path: Path, tiny_model: Callable[..., Path]) -> None:
    write_lines(tmp_path / "train.jsonl", head_rows(24, 1))
    write_lines(tmp_path / "eval.jsonl", head_rows(6, 2))
    model = tiny_model("bert")
    recipe = several(tmp_path, {"intent": {"teacher": "intent_probs"}, "slots": {}}, teacher={"model": str(model)})
    with pytest.raises(InputError, match=r"the model has one head; the recipe lists intent .*start_only: true"):
        load_data(recipe, open_model_folder(str(model)))


def test_labels_of_their_own_judge_each_head(tmp_path: Path, tiny_model: Callable[..., Path]) -> None:
    write_lines(tmp_path / "train.jsonl", head_rows(24, 1))
    rows = head_rows(24, 2, turned=True)
    for i, row in enumerate(rows):
        del row["slots"]
        if i % 3:
            del row["intent"]
        if i % 3 == 2:
            del row["slots_probs"]
    write_lines(tmp_path / "eval.jsonl", rows)
    recipe = several(tmp_path, {"intent": {"teacher": "intent_probs"}, "slots": {"teacher": "slots_probs"}})
    data = load_data(recipe, open_model_folder(str(tiny_model("bert"))))
    given = [example.label.labels for example in data.splits["eval"].examples]  # type: ignore[union-attr]
    assert len(given) == 16, "a row of which only an answer tells the intent, and that has no tags, judges nothing"
    assert sum(intent is not None for intent, _ in given) == 8
    assert sum(slots is not None for _, slots in given) == 16, "no row has tags of its own: the answers judge"


# --- students ---

TRAINED = {"batch": 32, "lr": 3e-3, "dropout": 0.0, "checkpoint": 50}


def write_recipe(path: Path, recipe: Recipe, **changes: Any) -> Path:
    values = recipe.model_dump(mode="json", by_alias=True)
    path.write_text(yaml.safe_dump({**values, **changes}, sort_keys=False))
    return path


def scores_of(folder: Path) -> dict[str, float]:
    """Score of each head that was scored, as the folder of a teacher or student records it."""
    score = read_training(folder).score
    return {name: own.value for name, own in score.heads.items() if own.rows}


@pytest.mark.slow
def test_a_column_teaches_its_head_and_the_common_teacher_the_others(tmp_path: Path, succeed: Run) -> None:
    """The column names another intent than the labels, on which the teacher is fine-tuned: the student follows the column."""
    turned = head_rows(150, 2, turned=True)
    for row in turned:
        row["intent"] = LABELS[(LABELS.index(row["intent"]) + 1) % len(LABELS)]
    write_lines(tmp_path / "train.jsonl", head_rows(600, 1, turned=True))
    write_lines(tmp_path / "eval.jsonl", turned)
    teacher = {"model": str(write_bert(tmp_path / "start")), "finetune": {**TRAINED, "steps": 200}}
    stage = {"method": "task", **TRAINED, "steps": 200, "cache_teacher": "fp32"}
    recipe = several(tmp_path, {"slots": {}, "intent": {"teacher": "intent_probs"}}, teacher=teacher, distill=[stage])
    succeed("distill", write_recipe(tmp_path / "recipe.yaml", recipe), "-o", tmp_path / "run")
    judged, learnt = (scores_of(tmp_path / "run" / name) for name in ("teacher", "student"))
    assert judged["intent"] == 1.0, "the answers of the column are judged, not the model's"
    assert min(judged["slots"], learnt["intent"], learnt["slots"]) > 0.9


@pytest.mark.slow
def test_two_teachers_of_one_task_each_become_one_student(tmp_path: Path, succeed: Run, refuse: Run) -> None:
    """By the commands of the docs; of the rows that the student reads, only those of a third head have labels of their own."""
    rows = head_rows(600, 1)
    write_lines(tmp_path / "train.jsonl", [{k: row[k] for k in ("tokens", "intent", "slots")} for row in rows])
    taught = write_lines(tmp_path / "bare.jsonl", [{"tokens": row["tokens"], "topics": row["topics"]} for row in rows])
    write_lines(tmp_path / "eval.jsonl", head_rows(150, 2))
    start = str(write_bert(tmp_path / "start"))
    finetune = {"model": start, "finetune": {**TRAINED, "steps": 200}}
    for name in ("intent", "slots"):
        data: dict[str, Any] = {"max_length": LENGTH}
        for part in ("train", "eval"):
            data[part] = {"path": str(tmp_path / f"{part}.jsonl"), "text": "tokens", "label": name}
        own = {"tasks": None, "task": HEADS[name]["task"], "data": data, "teacher": finetune, "student": None}
        recipe = several(tmp_path, {}, **own, distill=None)
        succeed("finetune", write_recipe(tmp_path / f"{name}.yaml", recipe), "-o", tmp_path / name)
        options = ("--text", "tokens", "--column", f"{name}_said", "-o", tmp_path / f"{name}-taught.jsonl")
        succeed("teach", "-m", tmp_path / name / "teacher", "--data", taught, *options)
        taught = options[-1]
    heads = {"slots": {"teacher": "slots_said"}, "intent": {"teacher": "intent_said"}, "topics": {}}
    recipe = several(tmp_path, heads, distill=[{**TRAINED, "method": "task", "steps": 250, "signals": {"labels": 1}}])
    values = recipe.model_dump(mode="json", by_alias=True)
    values["data"]["train"]["path"] = str(taught)
    values |= {"teacher": None, "student": {"model": start}, "verify": {"max_drop": 0.03}}
    path = write_recipe(tmp_path / "recipe.yaml", recipe, **values)
    run = succeed("run", path, "-o", tmp_path / "run")
    learnt = scores_of(tmp_path / "run/student")
    assert min(learnt.values()) > 0.9, learnt
    columns = "column 'slots_said' for the head 'slots' and column 'intent_said' for the head 'intent' in"
    assert f"teacher: answers of {columns}" in (tmp_path / "run/phone/README.md").read_text()
    answer = pocketbert.load(tmp_path / "run/phone").predict(["please dim the kitchen lamp now"])[0].fields()
    assert answer["intent"]["label"] == "lamp"
    assert {span["label"] for span in answer["slots"]["spans"]} == {"lamp"}
    assert answer["topics"]["labels"] == ["lamp"]
    assert "train distill.0" in run.stderr
    assert "train distill.0" not in succeed("run", path, "-o", tmp_path / "run").stderr, "nothing is trained again"
    values["tasks"]["intent"]["teacher"]["smoothing"] = 0.1
    changed = refuse("distill", write_recipe(path, recipe, **values), "-o", tmp_path / "run")
    assert "tasks was" in changed, "another reading of a column is another student"
