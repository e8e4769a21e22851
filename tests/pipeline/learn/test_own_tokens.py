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
from pocketbert.core.predict.sentence_settings import read_pooling, vector_width
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.distill.teacher.signals import select_teacher_inputs
from pocketbert.pipeline.learn.finishing import read_training
from support.launches import run_with_torchrun
from support.tiny import tiny_classifier, write_bert, write_own_tokenizer
from support.tiny_task import Task
from support.tiny_texts import LABELS, LENGTH, task_rows, vocabulary, write_lines
from support.tiny_tokenizers import write_wordpiece

Run = Callable[..., Any]
STAGE = {"method": "task", "steps": 1, "batch": 8, "lr": 1e-3, "dropout": 0.0, "precision": "fp32"}
OUTPUTS = {**STAGE, "signals": {"logits": 1, "hidden": 0, "attention": 0}}
HIDDEN = {**STAGE, "signals": {"logits": 1, "hidden": 1, "attention": 0}}
GOLD = {**STAGE, "signals": {"logits": 0, "hidden": 0, "attention": 0, "labels": 1}}


def write_student(folder: Path, kind: str, layers: int = 2, **sizes: int) -> None:
    """An encoder with a byte-level vocabulary (``roberta``), or with another WordPiece vocabulary than the tiny teacher's."""
    folder.mkdir(exist_ok=True)
    if kind == "roberta":
        sizes |= write_own_tokenizer(folder, kind)
        tiny_classifier(kind, layers, (), 5, "AutoModel", **sizes).save_pretrained(folder)
        return
    tokens = sorted(vocabulary(), key=lambda token: (token[0] != "[", token))[:-3]
    tiny_classifier("bert", layers, (), 5, "AutoModel", vocab_size=len(tokens)).save_pretrained(folder)
    write_wordpiece(folder, tokens)


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
        pairs = [{"text": a["text"], "other": b["text"], "label": a["label"]} for a, b in pairwise(rows)]
        return pairs, {"text_pair": "other"}
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


@pytest.fixture
def write_case(task: Task, tmp_path: Path) -> Callable[..., Path]:
    """`write_case(name, kind, *stages, **changes)`: a recipe whose ready teacher and whose student have other vocabularies."""

    def write(name: str, kind: str, *stages: dict[str, Any], **changes: Any) -> Path:
        labels, more = TASKS[name]
        teacher = tmp_path / "teacher"
        if not teacher.exists():
            write_bert(teacher, ())
            auto_class = "AutoModelForSequenceClassification" if labels else "AutoModel"
            sizes = {"vocab_size": len(vocabulary()), "num_attention_heads": 2}
            tiny_classifier("bert", 2, labels, 0, auto_class, **sizes, **more).save_pretrained(teacher)
            write_student(tmp_path / "start", kind)
            for split, seed, count in (("train", 1, 60), ("eval", 2, 20)):
                write_lines(tmp_path / f"{split}.jsonl", rows_of(name, seed, count)[0])
        columns = rows_of(name, 1, 1)[1]
        data = {split: {"path": str(tmp_path / f"{split}.jsonl"), **columns} for split in ("train", "eval")}
        named = list(LABELS) if labels == LABELS else None
        changes = {"teacher": {"model": str(teacher), "finetune": None}, **changes}
        return task.variant(
            tmp_path / "recipe.yaml",
            task="text-classification" if name == "pairs" else name,
            data={**data, "labels": named, **changes.pop("data", {})},
            student={"model": str(tmp_path / "start"), "layers": None, **changes.pop("student", {})},
            distill=list(stages),
            **changes,
        )

    return write


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
    name: str, student: str, write_case: Callable[..., Path], tmp_path: Path
) -> None:
    asked = first_losses(write_case(name, student, OUTPUTS), tmp_path / "asked")
    cached = first_losses(write_case(name, student, {**OUTPUTS, "cache_teacher": "fp32"}), tmp_path / "cached")
    assert asked.keys() == {"logits"}
    assert asked["logits"][0] > 1e-3, "the student would have nothing to learn"
    assert cached["logits"] == pytest.approx(asked["logits"], rel=1e-5, abs=1e-6)
    more, data = rows_of(name, 1, 1)[1], {}
    for split in ("train", "eval"):
        taught = tmp_path / f"{split}-taught.jsonl"
        source = DataSource.at(str(tmp_path / f"{split}.jsonl"), text="text", **more)
        api.teach([str(tmp_path / "teacher")], source, taught, api.TeachOptions(task=None if TASKS[name][0] else name))
        data[split] = {"path": str(taught), "teacher": "teacher", **more}
    recipe = write_case(name, student, OUTPUTS, teacher=None, data=data)
    assert first_losses(recipe, tmp_path / "column")["logits"] == pytest.approx(asked["logits"], rel=1e-6, abs=1e-6)


COPIES = {"augment": {"copies": 2, "candidates": 3}}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("text-classification", {"transfer": True}),
        ("text-classification", COPIES),
        ("text-classification", {**COPIES, "transfer": True}),
        ("feature-extraction", {}),
    ],
    ids=["transfer", "augmented", "both", "vectors of pairs"],
)
def test_student_and_teacher_read_the_same_texts_in_every_row_and_every_part_of_a_batch(
    name: str,
    data: dict[str, Any],
    write_case: Callable[..., Path],
    stage_rows: Callable[[Path, Path], Any],
    scored_pairs: Callable[[int], dict[str, str]],
    tmp_path: Path,
) -> None:
    data, stage = dict(data), {**OUTPUTS, "augmented": "augment" in data}
    if "transfer" in data:
        texts = write_lines(tmp_path / "texts.jsonl", [{"text": row["text"]} for row in task_rows(40, 7)])
        data["transfer"] = {"sources": [{"path": str(texts)}]}
    if name == "feature-extraction":
        data["train"] = scored_pairs(3)
        stage["signals"] = {**OUTPUTS["signals"], "labels": 1}
    rows, _ = stage_rows(write_case(name, "roberta", stage, data=data), tmp_path / "step")
    readers = [TextTokenizer(tmp_path / name, LENGTH) for name in ("start", "teacher")]
    count = len(rows.lengths)
    assert count >= 40
    whole, part = rows.batch(range(count), 0), rows.part(range(count), 0, slice(5, 30))
    for batch in (whole, part):
        own, taught = batch["input_ids"].tolist(), select_teacher_inputs(batch)["input_ids"].tolist()
        assert len(own) == len(taught) in (25, count)
        texts = [
            ["".join(reader.decode(ids).split()) for ids in read]
            for reader, read in zip(readers, (own, taught), strict=True)
        ]
        # a long text has more than 40 tokens of one vocabulary
        assert all(a.startswith(b) or b.startswith(a) for a, b in zip(*texts, strict=True))
        assert sum(a == b for a, b in zip(*texts, strict=True)) > len(own) * 0.8
    assert part["input_ids"].shape[1] == whole["input_ids"].shape[1]


@pytest.mark.slow
def test_a_run_of_another_vocabulary_ships_the_students_tokenizer(
    task: Task, write_case: Callable[..., Path], succeed: Run, tmp_path: Path
) -> None:
    texts = write_lines(tmp_path / "texts.jsonl", [{"text": row["text"]} for row in task_rows(300, 7)])
    recipe = write_case(
        "text-classification",
        "roberta",
        {**OUTPUTS, "steps": 200, "batch": 32, "lr": 3e-3, "cache_teacher": "fp16"},
        data={
            **{split: {"path": str(task.folder / f"{split}.jsonl")} for split in ("train", "eval")},
            "transfer": {"sources": [{"path": str(texts)}]},
            "validation": {"fraction": 0.2},
        },
        teacher={"model": str(task.folder / "teacher"), "finetune": {}},
        training={"evaluate_every": 100},
        quantize={"files": ["a8w8"]},
        verify={"max_drop": 1, "min_kept": 0.5},
    )
    made = succeed("run", recipe, "-o", tmp_path / "run")
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


def test_vectors_of_a_narrower_student_with_its_own_tokens_have_the_teachers_width(
    write_case: Callable[..., Path], tmp_path: Path
) -> None:
    recipe = write_case("feature-extraction", "roberta", OUTPUTS)
    write_student(tmp_path / "start", "roberta", 1, hidden_size=16, intermediate_size=32)
    pooling = read_pooling(api.distill(api.load_recipe(recipe), tmp_path / "run"))
    assert pooling is not None
    assert vector_width(pooling, 16) == 32


CONTEXT = {split: {"text_pair": "c"} for split in ("train", "eval")}
COLUMN = "Fix: Answer the rows with `pocketbert teach`, and learn from the column (data.train.teacher)."
OTHER = "and '{start}' (student.model) has another vocabulary than the teacher '{teacher}'."
SINGLE = "is about single tokens"
METHOD = "Fix: Set method: task, with signals: {{logits: 1, hidden: 0, attention: 0}}."
REFUSED: dict[str, tuple[list[dict[str, Any]], str, dict[str, Any], tuple[str, ...]]] = {
    "hidden": (
        [OUTPUTS, HIDDEN],
        "",
        {},
        (f"distill.1.signals.hidden: {SINGLE}, {OTHER} Fix: Set hidden: 0.",),
    ),
    "attention": ([STAGE], "", {}, ("distill.0.signals.hidden:", f"distill.0.signals.attention: {SINGLE}, {OTHER}")),
    "layers": (
        [{"method": "tinybert-intermediate", "steps": 1}, OUTPUTS],
        "",
        {},
        (f"distill.0: method tinybert-intermediate {SINGLE}, {OTHER}", METHOD),
    ),
    "relations": (
        [{"method": "minilm", "steps": 1, "batch": 4}, OUTPUTS],
        "",
        {"corpus": True},
        (f"distill.0: method minilm {SINGLE}",),
    ),
    "tags": ([OUTPUTS], "token-classification", {}, (f"distill.0.signals.logits: {SINGLE}, {OTHER} {COLUMN}",)),
    "gold tags": ([GOLD], "token-classification", {}, (f"distill.0.signals.labels: {SINGLE}, {OTHER} {COLUMN}",)),
    "predicted tags": (
        [{"method": "tinybert-prediction", "steps": 1}],
        "token-classification",
        {},
        ("distill.0: method tinybert-prediction is about", COLUMN),
    ),
    "spans": ([OUTPUTS], "question-answering", CONTEXT, (f"distill.0.signals.logits: {SINGLE}", COLUMN)),
    "pruned": ([OUTPUTS], "", {}, (f"student.vocabulary: is a part of the teacher's vocabulary, {OTHER}",)),
    "too long": (
        [OUTPUTS],
        "",
        {"max_length": 512},
        ("data.max_length: 512 tokens, '{start}' (student.model) takes at most",),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_equal_tokens_is_refused_before_anything_is_trained(
    name: str, write_case: Callable[..., Path], refuse: Run, tmp_path: Path
) -> None:
    stages, kind, data, words = REFUSED[name]
    if "corpus" in data:
        text = write_lines(tmp_path / "text.jsonl", [{"text": row["text"]} for row in task_rows(40, 7)])
        data = {"corpus": {"sources": [{"path": str(text)}], "length": 32}}
    student = {"vocabulary": {}} if name == "pruned" else {}
    recipe = write_case("text-classification", "roberta", *stages, data=data, student=student)
    if name == "too long":
        longer = {"vocab_size": len(vocabulary()), "num_attention_heads": 2, "max_position_embeddings": 600}
        tiny_classifier("bert", 2, LABELS, 0, **longer).save_pretrained(tmp_path / "teacher")
    edits = [f"task={kind}", "data.labels=null"] if kind else []
    said = refuse("distill", recipe, "-o", tmp_path / "run", *edits)
    places = {key: str(tmp_path / key) for key in ("start", "teacher")}
    assert [part for part in words if part.format(**places) not in said] == [], said
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_processes_with_a_sharded_teacher_learn_what_one_process_learns(
    write_case: Callable[..., Path], tmp_path: Path
) -> None:
    first = {**OUTPUTS, "steps": 6}
    stages = [first, {**first, "micro_batch": 3, "cache_teacher": "fp32"}]
    recipe = write_case("text-classification", "roberta", *stages, verify={"min_kept": 0})
    rows = {}
    for output, processes, more in (("one", 1, []), ("two", 2, ["teacher.shard=true"])):
        command = ("-m", "pocketbert.cli.main", "distill", recipe, "-o", output, *more)
        ended = run_with_torchrun(processes, *command, folder=tmp_path)
        assert ended.returncode == 0, ended.stderr
        rows[output] = [json.loads(line) for line in (tmp_path / output / "metrics.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows["one"]] == ["distill.0", "distill.1"]
    losses = {output: [row["loss"] for row in lines] for output, lines in rows.items()}
    assert losses["two"] == pytest.approx(losses["one"], rel=1e-5)
