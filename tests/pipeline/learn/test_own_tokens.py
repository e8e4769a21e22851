"""Students with another vocabulary than their teacher: each reads the texts with its own tokenizer, and whole texts are compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import pocketbert
from pocketbert import api
from pocketbert.core.data.source import DataSource
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.file import load_recipe
from pocketbert.distill.teacher.signals import select_teacher_inputs
from pocketbert.pipeline.learn.data import load_data
from pocketbert.pipeline.learn.finishing import read_training
from pocketbert.pipeline.learn.training import Learning, _prepare_stage_rows
from pocketbert.pipeline.run_folder import StepPaths
from support.launches import run_with_torchrun
from support.tiny import tiny_classifier, write_bert, write_own_tokenizer
from support.tiny_task import Task
from support.tiny_texts import LABELS, LENGTH, task_rows, vocabulary, write_lines
from support.tiny_tokenizers import write_wordpiece

Cli = Callable[..., Any]
STAGE = {"method": "task", "steps": 1, "batch": 8, "lr": 1e-3, "dropout": 0.0, "precision": "fp32"}
OUTPUTS = {**STAGE, "signals": {"logits": 1, "hidden": 0, "attention": 0}}
HIDDEN = {**STAGE, "signals": {"logits": 1, "hidden": 1, "attention": 0}}
GOLD = {**STAGE, "signals": {"logits": 0, "hidden": 0, "attention": 0, "labels": 1}}


def write_student(folder: Path, kind: str) -> Path:
    """An encoder with a byte-level vocabulary (``roberta``), or with another WordPiece vocabulary than the tiny teacher's."""
    folder.mkdir()
    if kind == "roberta":
        sizes = write_own_tokenizer(folder, kind)
        tiny_classifier(kind, 2, (), 5, "AutoModel", **sizes).save_pretrained(folder)
        return folder
    tokens = sorted(vocabulary(), key=lambda token: (token[0] != "[", token))[:-3]
    tiny_classifier("bert", 2, (), 5, "AutoModel", vocab_size=len(tokens)).save_pretrained(folder)
    write_wordpiece(folder, tokens)
    return folder


def rows_of(task: str, seed: int, count: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of a task with their labels, and the keys that name their columns."""
    rows = task_rows(count + 1, seed)
    if task == "multi-label":
        return [
            {"text": f"{a['text']} {b['text']}", "label": sorted({a["label"], b["label"]})} for a, b in pairwise(rows)
        ], {}
    if task == "regression":
        return [{"text": a["text"], "label": len(a["text"]) / 50} for a in rows], {}
    if task == "pairs":
        return [{"text": a["text"], "other": b["text"], "label": a["label"]} for a, b in pairwise(rows)], {
            "text_pair": "other"
        }
    if task == "feature-extraction":
        return [{"text": row["text"]} for row in rows], {}
    return rows, {}


TASKS = {
    "text-classification": (LABELS, {}),
    "pairs": (LABELS, {}),
    "multi-label": (LABELS, {"problem_type": "multi_label_classification"}),
    "regression": (("score",), {"problem_type": "regression"}),
    "feature-extraction": ((), {}),
}
"""Labels of the teacher of each task, and what its configuration says of it."""


def write_case(task: Task, folder: Path, name: str, kind: str, stage: Any, **changes: Any) -> Path:
    """A recipe whose ready teacher and whose student have other vocabularies."""
    labels, more = TASKS[name]
    teacher = folder / "teacher"
    if not teacher.exists():
        write_bert(teacher, ())
        auto_class = "AutoModelForSequenceClassification" if labels else "AutoModel"
        sizes = {"vocab_size": len(vocabulary()), "num_attention_heads": 2}
        tiny_classifier("bert", 2, labels, 0, auto_class, **sizes, **more).save_pretrained(teacher)
        write_student(folder / "start", kind)
        for split, seed, count in (("train", 1, 60), ("eval", 2, 20)):
            write_lines(folder / f"{split}.jsonl", rows_of(name, seed, count)[0])
    columns = rows_of(name, 1, 1)[1]
    data = {split: {"path": str(folder / f"{split}.jsonl"), **columns} for split in ("train", "eval")}
    named = list(LABELS) if labels == LABELS else None
    changes = {"teacher": {"model": str(teacher), "finetune": None}, **changes}
    return task.variant(
        folder / "recipe.yaml",
        task="text-classification" if name == "pairs" else name,
        data={**data, "labels": named, **changes.pop("data", {})},
        student={"model": str(folder / "start"), "layers": None, **changes.pop("student", {})},
        distill=stage if isinstance(stage, list) else [stage],
        **changes,
    )


def first_losses(recipe: Path, output: Path) -> dict[str, list[float]]:
    (curve,) = read_training(api.distill(api.load_recipe(recipe), output)).curves
    return curve.terms


SLOW = ("pairs", "multi-label", "regression")


@pytest.mark.parametrize(
    ("name", "student"),
    [
        *(pytest.param(name, "roberta", marks=pytest.mark.slow if name in SLOW else ()) for name in TASKS),
        pytest.param("text-classification", "another WordPiece", marks=pytest.mark.slow),
    ],
)
def test_a_student_learns_in_the_loop_what_it_learns_from_a_column(
    name: str, student: str, task: Task, tmp_path: Path
) -> None:
    asked = first_losses(write_case(task, tmp_path, name, student, OUTPUTS), tmp_path / "asked")
    cached = first_losses(
        write_case(task, tmp_path, name, student, {**OUTPUTS, "cache_teacher": "fp32"}), tmp_path / "cached"
    )
    assert asked.keys() == {"logits"}
    assert asked["logits"][0] > 1e-3, "the student would have nothing to learn"
    assert cached["logits"] == pytest.approx(asked["logits"], rel=1e-5, abs=1e-6)
    more, data = rows_of(name, 1, 1)[1], {}
    for split in ("train", "eval"):
        taught = tmp_path / f"{split}-taught.jsonl"
        source = DataSource.at(str(tmp_path / f"{split}.jsonl"), text="text", **more)
        api.teach([str(tmp_path / "teacher")], source, taught, api.TeachOptions(task=None if TASKS[name][0] else name))
        data[split] = {"path": str(taught), "teacher": "teacher", **more}
    recipe = write_case(
        task,
        tmp_path,
        name,
        student,
        OUTPUTS,
        teacher=None,
        data=data,
    )
    assert first_losses(recipe, tmp_path / "column")["logits"] == pytest.approx(asked["logits"], rel=1e-6, abs=1e-6)


MORE: list[dict[str, Any]] = [
    {"data": {"transfer": True}},
    {"data": {"augment": {"copies": 2, "candidates": 3}}, "stage": {"augmented": True}},
    {"data": {"augment": {"copies": 2, "candidates": 3}, "transfer": True}, "stage": {"augmented": True}},
    {"name": "feature-extraction", "data": {}},
]


@pytest.mark.parametrize("case", MORE, ids=["transfer", "augmented", "both", "vectors of pairs"])
def test_student_and_teacher_read_the_same_texts_in_every_row_and_every_part_of_a_batch(
    case: dict[str, Any], task: Task, tmp_path: Path
) -> None:
    name, data = case.get("name", "text-classification"), dict(case["data"])
    if data.get("transfer"):
        texts = write_lines(tmp_path / "texts.jsonl", [{"text": row["text"]} for row in task_rows(40, 7)])
        data["transfer"] = {"sources": [{"path": str(texts)}]}
    stage = {**OUTPUTS, **case.get("stage", {})}
    if name == "feature-extraction":
        pairs = [{"a": a["text"], "b": b["text"], "s": i % 4} for i, (a, b) in enumerate(pairwise(task_rows(21, 3)))]
        data["train"] = {
            "path": str(write_lines(tmp_path / "p.jsonl", pairs)),
            "text": "a",
            "text_pair": "b",
            "label": "s",
        }
        stage["signals"] = {**OUTPUTS["signals"], "labels": 1}
    recipe = load_recipe(write_case(task, tmp_path, name, "roberta", stage, data=data))
    model = open_model_folder(recipe.teacher.model)
    rows_data = load_data(recipe, model)
    folder = None
    if "transfer" in data:
        from pocketbert.pipeline.learn.transfer import write_transfer

        folder = tmp_path / "transfer"
        folder.mkdir()
        write_transfer(recipe, rows_data, folder)
    places = StepPaths(tmp_path / "out", tmp_path / "work", tmp_path / "metrics.jsonl")
    places.work.mkdir()
    learning = Learning(recipe, model, Path(recipe.teacher.model), rows_data, LENGTH, tmp_path, transfer=folder)
    rows, _ = _prepare_stage_rows(learning, 0, places)
    readers = [TextTokenizer(tmp_path / name, LENGTH) for name in ("start", "teacher")]
    count = len(rows.lengths)
    assert count >= 40
    whole = rows.batch(range(count), 0)
    for batch in (whole, rows.part(range(count), 0, slice(5, 30))):
        own, taught = batch["input_ids"].tolist(), select_teacher_inputs(batch)["input_ids"].tolist()
        assert len(own) == len(taught) in (25, count)
        texts = [
            ["".join(reader.decode(ids).split()) for ids in read]
            for reader, read in zip(readers, (own, taught), strict=True)
        ]
        # a long text has more than 40 tokens of one vocabulary
        assert all(a.startswith(b) or b.startswith(a) for a, b in zip(*texts, strict=True))
        assert sum(a == b for a, b in zip(*texts, strict=True)) > len(own) * 0.8
    assert rows.part(range(count), 0, slice(5, 30))["input_ids"].shape[1] == whole["input_ids"].shape[1]


@pytest.mark.slow
def test_a_run_of_another_vocabulary_ships_the_students_tokenizer(task: Task, cli: Cli, tmp_path: Path) -> None:
    texts = write_lines(tmp_path / "texts.jsonl", [{"text": row["text"]} for row in task_rows(300, 7)])
    recipe = write_case(
        task,
        tmp_path,
        "text-classification",
        "roberta",
        {**OUTPUTS, "steps": 200, "batch": 32, "lr": 3e-3, "cache_teacher": "fp16"},
        data={
            "train": {"path": str(task.folder / "train.jsonl")},
            "eval": {"path": str(task.folder / "eval.jsonl")},
            "transfer": {"sources": [{"path": str(texts)}]},
            "validation": {"fraction": 0.2},
        },
        teacher={"model": str(task.folder / "teacher"), "finetune": {}},
        training={"evaluate_every": 100},
        quantize={"files": ["a8w8"]},
        verify={"max_drop": 1, "min_kept": 0.5},
    )
    made = cli("run", recipe, "-o", tmp_path / "run")
    assert made.exit_code == 0, made.output + made.stderr
    assert made.stderr.count("distill.0: each step has") == 1
    phone = tmp_path / "run/phone"
    shipped, own = (TextTokenizer(folder, LENGTH) for folder in (phone, tmp_path / "start"))
    text = task_rows(1, 3)[0]["text"]
    assert shipped.encode([text])[0].ids.tolist() == own.encode([text])[0].ids.tolist()
    rows = task_rows(60, 4)
    answers = pocketbert.load(phone).predict([row["text"] for row in rows])
    assert sum(answer.label == row["label"] for answer, row in zip(answers, rows, strict=True)) > 30
    curve = read_training(tmp_path / "run/student").curves[-1]
    assert [step for step, _ in curve.scores] == [100, 200]


def test_vectors_of_a_narrower_student_with_its_own_tokens_have_the_teachers_width(task: Task, tmp_path: Path) -> None:
    from pocketbert.core.predict.sentence_settings import read_pooling, vector_width

    write_case(task, tmp_path, "feature-extraction", "roberta", OUTPUTS)
    sizes = write_own_tokenizer(tmp_path / "start", "roberta")
    narrow = tiny_classifier("roberta", 1, (), 5, "AutoModel", hidden_size=16, intermediate_size=32, **sizes)
    narrow.save_pretrained(tmp_path / "start")
    recipe = write_case(task, tmp_path, "feature-extraction", "roberta", OUTPUTS)
    student = api.distill(api.load_recipe(recipe), tmp_path / "run")
    pooling = read_pooling(student)
    assert pooling is not None
    assert vector_width(pooling, 16) == 32


RELATIONS = {"method": "minilm", "steps": 1, "batch": 4}
LAYERS = {"method": "tinybert-intermediate", "steps": 1}
PREDICTION = {"method": "tinybert-prediction", "steps": 1}
CONTEXT = {"data": {"train": {"text_pair": "c"}, "eval": {"text_pair": "c"}}}
COLUMN = "Fix: Answer the rows with `pocketbert teach`, and learn from the column (data.train.teacher)."
OTHER = "and '{start}' (student.model) has another vocabulary than the teacher '{teacher}'."
REFUSED: dict[str, tuple[list[dict[str, Any]], str, dict[str, Any], tuple[str, ...]]] = {
    "hidden": (
        [OUTPUTS, HIDDEN],
        "",
        {},
        (f"distill.1.signals.hidden: is about single tokens, {OTHER} Fix: Set hidden: 0.",),
    ),
    "attention": (
        [STAGE],
        "",
        {},
        ("distill.0.signals.hidden:", f"distill.0.signals.attention: is about single tokens, {OTHER}"),
    ),
    "layers": (
        [LAYERS, OUTPUTS],
        "",
        {},
        (
            f"distill.0: method tinybert-intermediate is about single tokens, {OTHER}",
            "Fix: Set method: task, with signals: {{logits: 1, hidden: 0, attention: 0}}.",
        ),
    ),
    "relations": (
        [RELATIONS, OUTPUTS],
        "",
        {"data": {"corpus": True}},
        ("distill.0: method minilm is about single tokens",),
    ),
    "tags": (
        [OUTPUTS],
        "token-classification",
        {},
        (f"distill.0.signals.logits: is about single tokens, {OTHER} {COLUMN}",),
    ),
    "gold tags": (
        [GOLD],
        "token-classification",
        {},
        (f"distill.0.signals.labels: is about single tokens, {OTHER} {COLUMN}",),
    ),
    "predicted tags": (
        [PREDICTION],
        "token-classification",
        {},
        ("distill.0: method tinybert-prediction is about", COLUMN),
    ),
    "spans": ([OUTPUTS], "question-answering", CONTEXT, ("distill.0.signals.logits: is about single tokens", COLUMN)),
    "pruned": (
        [OUTPUTS],
        "",
        {"student": {"vocabulary": {}}},
        (f"student.vocabulary: is a part of the teacher's vocabulary, {OTHER}",),
    ),
    "too long": (
        [OUTPUTS],
        "",
        {"data": {"max_length": 512}},
        ("data.max_length: 512 tokens, '{start}' (student.model) takes at most",),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_equal_tokens_is_refused_before_anything_is_trained(
    name: str, task: Task, cli: Cli, tmp_path: Path
) -> None:
    stages, kind, changes, words = REFUSED[name]
    if "corpus" in changes.get("data", {}):
        text = write_lines(tmp_path / "text.jsonl", [{"text": row["text"]} for row in task_rows(40, 7)])
        changes = {"data": {"corpus": {"sources": [{"path": str(text)}], "length": 32}}}
    recipe = write_case(task, tmp_path, "text-classification", "roberta", stages, **changes)
    if name == "too long":
        longer = {"vocab_size": len(vocabulary()), "num_attention_heads": 2, "max_position_embeddings": 600}
        tiny_classifier("bert", 2, LABELS, 0, **longer).save_pretrained(tmp_path / "teacher")
    refused = cli("distill", recipe, "-o", tmp_path / "run", *([f"task={kind}", "data.labels=null"] if kind else []))
    assert refused.exit_code == 2, refused.output
    said = " ".join(refused.stderr.split())
    places = {key: str(tmp_path / key) for key in ("start", "teacher")}
    assert [part for part in words if part.format(**places) not in said] == [], said
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_processes_with_a_sharded_teacher_learn_what_one_process_learns(task: Task, tmp_path: Path) -> None:
    stages = [
        {**OUTPUTS, "steps": 6, "precision": "fp32"},
        {**OUTPUTS, "steps": 6, "precision": "fp32", "micro_batch": 3, "cache_teacher": "fp32"},
    ]
    recipe = write_case(task, tmp_path, "text-classification", "roberta", stages, verify={"min_kept": 0})
    for output, processes, more in (("one", 1, []), ("two", 2, ["teacher.shard=true"])):
        command = ("-m", "pocketbert.cli.main", "distill", recipe, "-o", output, *more)
        ended = run_with_torchrun(processes, *command, folder=tmp_path)
        assert ended.returncode == 0, ended.stderr
    one, two = (
        [json.loads(line) for line in (tmp_path / output / "metrics.jsonl").read_text().splitlines()]
        for output in ("one", "two")
    )
    assert [row["stage"] for row in one] == ["distill.0", "distill.1"]
    assert [row["loss"] for row in two] == pytest.approx([row["loss"] for row in one], rel=1e-5)
