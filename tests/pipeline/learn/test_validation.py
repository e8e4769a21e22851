"""Validation rows: where they come from, and what they choose in a run: checkpoints, seeds, and where a student loses."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from pocketbert.cli.main import app
from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of
from pocketbert.core.heads import make_head
from pocketbert.core.predict.examples import Example, HeadLabels
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.file import recipe_from_values
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import several_task
from pocketbert.pipeline.learn import validation
from pocketbert.pipeline.learn.finishing import read_training
from pocketbert.pipeline.learn.validation import add_validation, make_validation
from support.tiny_texts import task_rows, write_lines

Run = Callable[..., Any]


def recipe_with(
    training: dict[str, Any] | None = None, data: dict[str, Any] | None = None, steps: int = 100, **more: Any
) -> Recipe:
    """A recipe that trains a teacher in batches of 32 and a student in as many steps."""
    content = {
        "schema": 1,
        "name": "a",
        "task": "text-classification",
        "data": {"train": {"path": "train.csv"}, "eval": {"path": "eval.csv"}, **(data or {})},
        "teacher": {"model": "m", "finetune": {"steps": steps, "batch": 32}},
        "student": {"layers": 1},
        "distill": [{"method": "task", "steps": 1, "batch": 1}],
        "training": training or {},
        **more,
    }
    return recipe_from_values(content, "test")


def examples(count: int) -> list[Example]:
    """Rows of three labels; every tenth text occurs twice."""
    return [Example(f"text {i - (i % 10 == 1)}", None, "abc"[i % 3], i) for i in range(count)]


@pytest.mark.parametrize(
    ("training", "data", "rows", "steps", "wanted"),
    [
        ({}, {}, 2000, 125, 200),  # two passes
        ({}, {}, 2000, 124, 0),  # fewer: nothing is learnt by heart
        ({}, {}, 990, 1000, 0),  # a tenth of few rows chooses at random
        ({}, {}, 9000, 900, 500),
        ({"evaluate_every": 0}, {}, 2000, 125, 0),
        ({"evaluate_every": 5}, {}, 300, 1, 30),
        ({"seeds": 2}, {}, 300, 1, 30),
        ({}, {"validation": {"fraction": 0.2}}, 300, 1, 60),
        ({}, {"validation": {"fraction": 0.2, "at_most": 40}}, 300, 1, 40),
    ],
    ids=str,
)
def test_validation_rows_are_taken_from_the_training_rows_where_they_can_tell_something(
    training: dict[str, Any], data: dict[str, Any], rows: int, steps: int, wanted: int
) -> None:
    parts = {"train": examples(rows), "eval": [Example("other", None, "a", 1)]}
    notes = add_validation(parts, recipe_with(training, data, steps))
    taken = parts.get("validation", [])
    assert abs(len(taken) - wanted) <= 3
    assert len(notes) == (wanted > 0)
    assert sorted(e.row for e in (*taken, *parts["train"])) == [*range(rows)]
    assert not {e.digest for e in taken} & {e.digest for e in parts["train"]}, "equal texts stay together"
    assert all(abs(count - wanted / 3) <= 3 for count in Counter(e.label for e in taken).values())


def test_phrases_of_a_sentence_that_chooses_checkpoints_are_left_out_while_enough_rows_stay() -> None:
    sentences = [f"the film number {i} is a fine thing of {i} parts" for i in range(520)]
    rows = [Example(t, None, "ab"[i % 2], i) for i, s in enumerate(sentences) for t in (s, " ".join(s.split()[3:]))]
    parts = {"train": rows}  # 1,040 rows, of which a tenth and what overlaps with it would leave fewer than 1,000
    assert add_validation(parts, recipe_with(steps=1000)) == []
    assert parts == {"train": rows}
    [note] = add_validation(parts, recipe_with(data={"validation": {"fraction": 0.2}}))
    left_out = len(rows) - len(parts["validation"]) - len(parts["train"])
    assert left_out > 20
    said = "more are not trained on either: their text contains a validation text or is part of one"
    assert f"; {left_out} {said}" in note


def test_the_rows_that_are_scored_have_labels_of_each_head(
    tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers stand at the rows with the largest hashes, which a budget of 120 of 600 rows leaves out."""
    heads = {"intent": "text-classification", "mood": "regression"}
    head = make_head(several_task(heads, labels := ("intent: a", "intent: b", "mood: number")), Labels(labels))
    made = [Example(f"text {i}", None, HeadLabels(("ab"[i % 2], None)), i) for i in range(600)]
    last = {e.digest for e in sorted(made, key=lambda e: e.digest)[-70:]}
    made = [replace(e, label=HeadLabels((e.label.labels[0], e.row / 600))) if e.digest in last else e for e in made]  # type: ignore[union-attr]
    tokenizer, scored = TextTokenizer(tiny_model("bert", 2, ("a", "b")), 8), list[Any]()
    splits: Any = {
        "train": SimpleNamespace(examples=[None] * 2000),
        "validation": head.prepare(made, tokenizer, "rows"),
    }

    def evaluate(_: Any, __: Any, rows: Any, batch: int) -> Any:
        scored.append(rows.rows)
        return head.score([torch.randn(1, 3).numpy() for _ in rows.rows.encoded], rows.rows), []

    monkeypatch.setattr(validation, "evaluate", evaluate)
    for metric in ("mood.pearson", None):
        tasks = {name: {"task": own, "label": name} for name, own in heads.items()}
        recipe = recipe_with({"metric": metric} if metric else {}, steps=150, task=None, tasks=tasks)
        settings = recipe.teacher.finetune
        assert settings is not None
        found = make_validation(recipe, head, splits, settings, family_of("bert"), tokenizer, DEFAULT_POOLING)
        assert -1 <= found.score(torch.nn.Identity()) <= 1
        assert len(scored[-1].examples) == 120
        assert sum(truth[1] is not None for truth in scored[-1].truth) == 60
        assert [e.row for e in scored[-1].examples] == sorted(e.row for e in scored[-1].examples)


def test_rare_labels_stay_in_training_and_the_seed_decides_which_rows_go() -> None:
    rows = [*examples(200), Example("once", None, "rare", 200)]
    chosen = []
    for seed in (1, 1, 2):
        parts = {"train": list(rows)}
        add_validation(parts, recipe_with({"evaluate_every": 5}, seed=seed))
        assert "rare" in {e.label for e in parts["train"]}
        chosen.append([e.row for e in parts["validation"]])
    assert chosen[0] == chosen[1] != chosen[2]


def test_rows_of_a_file_are_neither_trained_on_nor_reported(tmp_path: Path) -> None:
    rows = [{"text": f"text {i}", "label": "abc"[i % 3]} for i in range(9)]
    source = write_lines(tmp_path / "validation.jsonl", rows)
    recipe = recipe_with(data={"validation": {"path": str(source)}})
    parts = {"train": examples(30), "eval": [Example("Text 8", None, "a", 1)]}
    (note,) = add_validation(parts, recipe)
    assert [e.text for e in parts["validation"]] == [f"text {i}" for i in range(8)]
    assert note.startswith("8 validation rows choose checkpoints; left out because a text is there twice: 1 of them (")
    assert note.endswith(" and 8 training rows")
    with pytest.raises(InputError, match="leaves 0 rows to train on and 9 to choose"):
        add_validation({"train": examples(3)}, recipe)


UNMEASURED = "training.metric: 'bleu' is not measured .* allowed: accuracy, macro_f1, mcc"
ALONE = {"training": {"seeds": 2}, "student": None, "distill": []}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"training": {"metric": "bleu"}}, UNMEASURED),
        (ALONE, "training.seeds: trains the student several times"),
        ({"task": "fill-mask", "data": {"validation": {"path": "a.csv"}}}, "data.validation: checkpoints of fill-mask"),
        ({"training": {"trackers": ["excel"]}}, "training.trackers"),
    ],
    ids=str,
)
def test_settings_that_mean_nothing_are_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        recipe_with(**more)


# --- in a run ---


@pytest.fixture(scope="module")
def seeded(task: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two seeds whose trainings are scored every 10 steps; read-only by convention."""
    folder = tmp_path_factory.mktemp("seeded")
    training = {"evaluate_every": 10, "seeds": 2, "metric": "macro_f1"}
    short = {"steps": 20, "batch": 32, "lr": 3e-3, "checkpoint": 100}
    recipe = task.variant(
        folder / "recipe.yaml",
        training=training,
        teacher={"finetune": short},
        distill=[{"method": "task", **short, "signals": {"hidden": 0, "attention": 0}}],
    )
    done = CliRunner().invoke(app, ["distill", str(recipe), "-o", str(folder / "run")])
    assert done.exit_code == 0, done.output
    folder.joinpath("said").write_text(done.stderr)
    return folder / "run"


def test_a_run_keeps_the_best_weights_and_the_best_seed(seeded: Path) -> None:
    teacher, student = (read_training(seeded / name) for name in ("teacher", "student"))
    (curve,) = teacher.curves
    assert curve.metric == "macro_f1"
    assert len(curve.rates) == len(curve.steps)
    assert [step for step, _ in curve.scores] == [10, 20]
    assert curve.best_step == max(curve.scores, key=lambda score: (score[1], score[0]))[0]
    assert [s.seed for s in student.seeds] == [3, 4]
    (chosen,) = [s for s in student.seeds if s.chosen]
    assert chosen.validation == max(s.validation for s in student.seeds)
    assert student.score.value == chosen.value
    lines = [json.loads(line) for line in (seeded / "metrics.jsonl").read_text().splitlines()]
    runs = {(line["stage"], line["seed"]) for line in lines}
    assert runs == {("finetune", 3), ("distill.0", 3), ("distill.0", 4)}
    said = (seeded.parent / "said").read_text()
    assert "60 of 600 training rows choose checkpoints" in said
    assert "train: 540 rows" in said
    assert f"seed {chosen.seed}: {chosen.validation:.4f} on validation rows" in said


def test_seeds_of_several_labels_are_compared_with_the_thresholds_that_they_ship(
    task: Any, succeed: Run, tmp_path: Path
) -> None:
    sources = {}
    for name, count in (("train", 120), ("eval", 60)):
        rows = [{**row, "label": [row["label"]]} for row in task_rows(count, count)]
        sources[name] = {"path": str(write_lines(tmp_path / f"{name}.jsonl", rows))}
    short = {"steps": 4, "batch": 16, "lr": 3e-3}
    recipe = task.variant(
        tmp_path / "recipe.yaml",
        task="multi-label",
        data=sources,
        training={"seeds": 2},
        teacher={"finetune": short},
        distill=[{"method": "task", **short, "signals": {"hidden": 0, "attention": 0}}],
    )
    succeed("distill", recipe, "-o", tmp_path / "run")
    student = read_training(tmp_path / "run" / "student")
    (chosen,) = [s for s in student.seeds if s.chosen]
    assert student.thresholds is not None
    assert student.score is not None
    assert student.score.value == chosen.value


def test_the_command_tells_where_the_student_loses(succeed: Run, refuse: Run, seeded: Path, tmp_path: Path) -> None:
    lines = succeed("diagnose", seeded).stdout.splitlines()
    header, everything, *groups = (line.split("\t") for line in lines if "\t" in line)
    assert header == ["rows by", "group", "rows", "teacher accuracy", "student", "kept", "agreement"]
    assert everything[:3] == ["all", "unseen rows", "150"]
    assert {g[0] for g in groups} >= {"label", "length", "teacher confidence", "training rows"}
    recorded = json.loads(succeed("diagnose", seeded, "--json").stdout)
    assert recorded["overall"]["rows"] == 150
    assert all(advice["figure"] and advice["key"] for advice in recorded["advice"])
    before = {p: p.stat().st_mtime_ns for p in seeded.rglob("*")}
    asked_again = json.loads(succeed("diagnose", seeded, "--rows", "40", "--json").stdout)
    assert asked_again["overall"]["rows"] == 40
    assert before == {p: p.stat().st_mtime_ns for p in seeded.rglob("*")}, "a finished run is not changed"
    (tmp_path / "none").mkdir()
    assert "has no recipe.resolved.yaml, teacher, student" in refuse("diagnose", tmp_path / "none")


# --- trackers ---

WRITER = """
class SummaryWriter:
    def __init__(self, folder, **more):
        self.file = open(folder + ".txt", "w")
    def add_hparams(self, values, metric_dict):
        print("hparams", values["lr"], file=self.file)
    def add_scalar(self, name, value, global_step=None, **more):
        print(name, global_step, file=self.file)
    def flush(self):
        self.file.flush()
    def close(self):
        self.file.close()
"""


def test_a_tracker_gets_the_losses_and_none_is_imported_unless_asked_for(
    succeed: Run, task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = task.variant(tmp_path / "recipe.yaml", training={"trackers": ["tensorboard"]})
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "tensorboardX.py").write_text(WRITER)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    steps = "teacher.finetune.steps=2"
    succeed("finetune", recipe, "-o", tmp_path / "without", steps, "training.trackers=[]")
    assert "tensorboardX" not in sys.modules
    done = succeed("finetune", recipe, "-o", tmp_path / "run", steps)
    assert "finetune: tensorboard in " in done.stderr
    lines = (tmp_path / "run" / "trackers" / "finetune.seed-3.txt").read_text().splitlines()
    assert lines == ["hparams 0.003", *(f"{name} 2" for name in ("loss", "lr", "terms/labels"))]
    one, other = ((tmp_path / name / "teacher" / "model.safetensors").read_bytes() for name in ("run", "without"))
    assert one == other


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_tracker_that_is_not_installed_is_named_before_training(
    name: str, refuse: Run, task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pocketbert.distill.training.monitor.find_spec", lambda package: None)
    recipe = task.variant(tmp_path / "recipe.yaml", training={"trackers": [name]})
    assert f"pip install {name}" in refuse("finetune", recipe, "-o", tmp_path / "run", code=4)
    assert not (tmp_path / "run" / "teacher").exists()
