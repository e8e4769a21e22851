"""Texts without labels in a run: mixed with training rows, or alone with a ready teacher; what is refused, and what reports say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from pocketbert import api
from pocketbert.core.errors import InputError
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.tasks import TaskName
from pocketbert.distill.training.data import MixedSet
from pocketbert.pipeline.learn.data import AGREEMENT, load_data
from pocketbert.pipeline.reference import label_by_model
from support.tiny_task import Task
from support.tiny_texts import LABELS, task_rows, write_lines

SHORT = {"steps": 4, "batch": 8, "lr": 1e-3}
READY = {"finetune": None}
OUTPUTS = {"method": "task", **SHORT, "signals": {"hidden": 0, "attention": 0}}
Run = Callable[..., Any]


def write_texts(path: Path, count: int, seed: int) -> Path:
    path.write_text("".join(row["text"] + "\n" for row in task_rows(count, seed)))
    return path


# --- mixed with training rows ---


@pytest.mark.parametrize(
    ("data", "stage", "wanted"),
    [
        ({}, {}, {"labelled": 1.0, "transfer": 2.0}),
        ({"mix": {"transfer": 1}}, {}, {"labelled": 1.0, "transfer": 1.0}),
        ({"augment": {"copies": 2}}, {"augmented": True}, {"labelled": 1.0, "augmented": 2.0, "transfer": 2.0}),
    ],
    ids=["default", "mix", "augmented"],
)
def test_a_stage_mixes_rows_by_their_weights(
    data: dict[str, Any], stage: dict[str, Any], wanted: dict[str, float], task: Task, stage_rows: Run, tmp_path: Path
) -> None:
    rows = write_lines(tmp_path / "rows.jsonl", task_rows(40, 1))
    held = write_lines(tmp_path / "held.jsonl", task_rows(20, 5))
    transfer = {"sources": [{"path": str(write_texts(tmp_path / "t.txt", 30, 5))}]}
    said = {"train": {"path": str(rows)}, "eval": {"path": str(held)}, "transfer": transfer, **data}
    recipe = task.variant(tmp_path / "r.yaml", data=said, distill=[{**OUTPUTS, **stage}])
    mixed, (counts, note) = stage_rows(recipe, tmp_path / "run")
    assert isinstance(mixed, MixedSet)
    assert [weight for _, weight in mixed.shares] == [*wanted.values()]
    assert (mixed.shares[0][0], mixed.shares[-1][0]) == (40, 10), "the other 20 texts are evaluation rows"
    assert "left out: 20 evaluation or held-out rows" in counts
    assert note.startswith("distill.0: each step has ")
    assert all(name in note for name in wanted)


def test_training_rows_without_a_label_are_taught(task: Task, stage_rows: Run, tmp_path: Path) -> None:
    rows = [{**row, "label": None if i % 4 == 3 else row["label"]} for i, row in enumerate(task_rows(40, 1))]
    said = {"train": {"path": str(write_lines(tmp_path / "rows.jsonl", rows))}}
    mixed, _ = stage_rows(task.variant(tmp_path / "r.yaml", data=said, distill=[OUTPUTS]), tmp_path / "run")
    assert [part.labelled for part in mixed.parts] == [True, False]
    assert [rows for rows, _ in mixed.shares] == [30, 10]
    gold = {**OUTPUTS, "signals": {"logits": 0, "hidden": 0, "attention": 0, "labels": 1}}
    alone, notes = stage_rows(task.variant(tmp_path / "g.yaml", data=said, distill=[gold]), tmp_path / "gold")
    assert (len(alone.lengths), notes) == (30, []), "a stage of gold labels has no use for them"


def test_a_run_with_texts_says_what_it_learnt_from_and_continues(
    task: Task, succeed: Run, refuse: Run, tmp_path: Path
) -> None:
    texts = write_texts(tmp_path / "texts.txt", 50, 7)
    said = {"train": {"path": str(write_lines(tmp_path / "r.jsonl", task_rows(60, 1)))}}
    said["transfer"] = {"sources": [{"path": str(texts)}]}
    stage = {"method": "task", **SHORT, "cache_teacher": "fp32", "signals": {"labels": 1}}
    recipe = task.variant(tmp_path / "r.yaml", data=said, teacher={"finetune": SHORT}, distill=[stage])
    command = ("distill", recipe, "-o", tmp_path / "run")
    first = succeed(*command)
    assert "50 rows without labels from texts.txt (50)" in first.stderr
    assert "each step has 33% of 60 labelled rows, 67% of 50 transfer rows" in first.stderr
    training = json.loads((tmp_path / "run/student/training.json").read_text())
    assert [note.split(" ")[0] for note in training["notes"]] == ["50", "distill.0:"]
    assert set(training["curves"][-1]["terms"]) == {"logits", "hidden", "attention", "labels"}
    assert "train" not in succeed(*command).stderr, "all steps are finished"
    texts.write_text(texts.read_text() + "one more text\n")
    assert "data.transfer.sources.0" in refuse(*command)


# --- no labels at all ---


@pytest.fixture(scope="module")
def unlabelled(
    task: Task, tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """`unlabelled(name, data, **changes)`: a recipe with a ready teacher and texts only."""
    base = tmp_path_factory.mktemp("unlabelled")
    write_texts(base / "texts.txt", 120, 3)

    def write(name: str, data: dict[str, Any], **changes: Any) -> Path:
        teacher = {"model": str(tiny_model("bert", 2, LABELS)), "finetune": None}
        changes = {"distill": [{"method": "task", **SHORT}], **changes}
        return Path(task.variant(base / name, data=data, teacher=teacher, **changes))

    return write


@pytest.mark.parametrize("key", ["train", "transfer"])
def test_texts_alone_are_trained_on_and_scored_by_agreement(
    key: str, unlabelled: Callable[..., Path], stage_rows: Run, tmp_path: Path
) -> None:
    texts = {"path": str(unlabelled("r.yaml", {}).parent / "texts.txt")}
    source = texts if key == "train" else {"sources": [texts]}
    path = unlabelled("r.yaml", {"train": None, "eval": {"path": None, "fraction": 0.3}, "labels": None, key: source})
    recipe = load_recipe(path)
    model = open_model_folder(recipe.teacher.model)
    data = load_data(recipe, model)
    held = data.splits["eval"]
    assert (data.labelled, data.scores_agreement) == (False, True)
    assert len(data.splits["train"].examples) + len(held.examples) == 120
    assert {e.digest for e in held.examples}.isdisjoint(e.digest for e in data.splits["train"].examples)
    assert AGREEMENT in data.report.lines()
    wanted = label_by_model(recipe, model, data.head.task, held.examples, 40)
    assert [e.label for e in wanted] == [e.label for e in sorted(held.examples, key=lambda e: e.digest)]
    assert set(np.asarray(held.truth)) <= set(range(3))
    assert data.labels.names == tuple(model.labels or ())
    mixed, notes = stage_rows(path, tmp_path / "run")
    assert (len(mixed.lengths), notes) == (120 - len(held.examples), [])


@pytest.mark.slow
def test_a_run_without_labels_packs_a_model_whose_card_says_what_its_score_is(
    task: Task, unlabelled: Callable[..., Path], succeed: Run, tmp_path: Path
) -> None:
    succeed("finetune", task.recipe, "-o", tmp_path / "ready")
    texts = {"path": str(unlabelled("r.yaml", {}).parent / "texts.txt")}
    said = {"train": None, "eval": {"path": None, "fraction": 0.3}, "labels": None, "transfer": {"sources": [texts]}}
    stage = {"method": "task", "steps": 80, "batch": 32, "lr": 3e-3, "dropout": 0.0}
    recipe = unlabelled("whole.yaml", said, distill=[stage], verify={"max_drop": 0.5})
    succeed("run", recipe, f"teacher.model={tmp_path / 'ready/teacher'}", "-o", tmp_path / "run")
    for page in ("phone/README.md", "report.html"):
        assert "the agreement with the teacher" in (tmp_path / "run" / page).read_text()


@pytest.mark.parametrize(
    ("name", "head", "labels"),
    [
        (TaskName.MULTI_LABEL, "ForSequenceClassification", ("a", "b")),
        (TaskName.REGRESSION, "ForSequenceClassification", ("score",)),
        (TaskName.TOKEN_CLASSIFICATION, "ForTokenClassification", ("O", "B-a", "I-a")),
        (TaskName.QUESTION_ANSWERING, "ForQuestionAnswering", ("a", "b")),
        (TaskName.FEATURE_EXTRACTION, "", ("a", "b")),
    ],
)
def test_every_task_learns_from_texts_alone(
    name: TaskName, head: str, labels: tuple[str, ...], tiny_model: Callable[..., Path], succeed: Run, tmp_path: Path
) -> None:
    rows = [{"text": row["text"], "other": f"{row['text']} now"} for row in task_rows(40, 1)]
    questions = name is TaskName.QUESTION_ANSWERING
    pair = {"text_pair": "other"} if questions else {}
    texts = {"path": str(write_lines(tmp_path / "t.jsonl", rows)), **pair}
    content = {
        "schema": 1,
        "name": "tiny",
        "task": name.value,
        "data": {"transfer": {"sources": [texts]}, "eval": {"fraction": 0.3}, "max_length": 64},
        "teacher": {"model": str(tiny_model("bert", 2, labels, f"AutoModel{head}"))},
        "student": {"layers": 1},
        "distill": [{"method": "task", **SHORT}],
        "export": {"formats": ["onnx"]},
        "answer": {"stride": 8} if questions else {},
    }
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(content))
    succeed("distill", tmp_path / "r.yaml", "-o", tmp_path / "run")
    teacher, student = (
        json.loads((tmp_path / "run" / part / "training.json").read_text()) for part in ("teacher", "student")
    )
    assert teacher["score"]["value"] == pytest.approx(1.0, abs=1e-4), "a model agrees with itself"
    assert (AGREEMENT in student["notes"]) is (name is not TaskName.FEATURE_EXTRACTION)


# --- what is refused ---

TEXTS = {"sources": [{"path": "texts.txt"}]}
PAIRED = {"sources": [{"path": "texts.csv", "text_pair": "other"}]}
GOLD = {"method": "task", **SHORT, "signals": {"labels": 1}}
ALONE = {"train": None, "transfer": TEXTS}
PRUNED = {"vocabulary": {"at_least": 2}}


@pytest.mark.parametrize(
    ("name", "data", "changes", "message"),
    [
        ("fill-mask", {"transfer": TEXTS, "labels": None}, {}, "data.transfer: has no use for fill-mask"),
        ("token-classification", {"transfer": PAIRED}, {}, "text_pair: token-classification takes one text"),
        ("question-answering", {"transfer": TEXTS, "labels": None}, {}, "question-answering needs the column of"),
        ("text-classification", {"transfer": TEXTS}, {"student": None, "distill": None}, "is read by stages that"),
        ("text-classification", ALONE, {"distill": [GOLD], "teacher": READY}, "gold labels"),
        ("text-classification", ALONE, {}, "data: training needs data.train"),
        ("text-classification", {**ALONE, "eval": None}, {"teacher": READY}, "data.eval"),
        ("text-classification", {"transfer": {"sources": []}}, {}, "is empty; give at least 1"),
        ("text-classification", {"mix": {"transfer": 0}}, {}, "greater than 0"),
        ("text-classification", {"mix": {"gold": 1}}, {}, "gold"),
        (
            "text-classification",
            {"transfer": TEXTS},
            {"student": PRUNED, "distill": [OUTPUTS]},
            "learns on labelled rows only",
        ),
    ],
)
def test_a_recipe_that_cannot_use_its_texts_is_refused(
    name: str, data: dict[str, Any], changes: dict[str, Any], message: str, task: Task, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        load_recipe(task.variant(tmp_path / "r.yaml", task=name, data=data, **changes))
    assert message in str(caught.value)


def test_rows_that_cannot_be_learnt_from_end_the_run_before_the_teacher_is_trained(
    task: Task, refuse: Run, tmp_path: Path
) -> None:
    rows = [{"text": row["text"] if i else 5} for i, row in enumerate(task_rows(9, 1))]
    bad = {"transfer": {"sources": [{"path": str(write_lines(tmp_path / "bad.jsonl", rows))}]}}
    unlabelled = {"train": {"path": str(write_texts(tmp_path / "t.txt", 30, 1))}}
    for data, said in ((bad, "bad.jsonl:1: column 'text' holds int, not text"), (unlabelled, "no column 'label'")):
        recipe = task.variant(tmp_path / "r.yaml", data=data, teacher={"finetune": SHORT}, distill=[OUTPUTS])
        assert said in refuse("distill", recipe, "-o", tmp_path / "run")
        assert not (tmp_path / "run/teacher").exists()


# --- the command line ---


def test_run_takes_files_of_texts_beside_the_data(task: Task, succeed: Run, refuse: Run, tmp_path: Path) -> None:
    rows = write_lines(tmp_path / "r.jsonl", [{"utterance": r["text"], "intent": r["label"]} for r in task_rows(60, 1)])
    lines, table = write_texts(tmp_path / "lines.txt", 20, 2), tmp_path / "table.csv"
    table.write_text("id,utterance,note\n" + "".join(f"{i},{r['text']},x\n" for i, r in enumerate(task_rows(20, 4))))
    model = f"teacher.model={task.folder / 'teacher'}"
    more = ("--unlabelled", lines, "--unlabelled", table, model)
    result = succeed("run", "--data", rows, *more, "-o", tmp_path / "run", "--dry-run", "--json")
    assert [step["name"] for step in json.loads(result.stdout)][:4] == ["data", "transfer", "teacher", "distill.0"]
    start = api.starting_recipe(api.DataFiles(rows, unlabelled=(lines, table)), tmp_path / "x", [model])
    transfer = start.recipe.data.transfer
    found = {Path(s.title).name: s.text for s in transfer.sources}
    assert found == {"lines.txt": "text", "table.csv": "utterance"}
    assert "--unlabelled" in refuse("run", task.recipe, "--unlabelled", lines)
