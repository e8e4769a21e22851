"""A recipe for a data file alone: what is found in the rows, what is kept in the run folder, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pocketbert import api
from pocketbert.core.errors import InputError
from pocketbert.core.recipe.file import load_recipe
from pocketbert.pipeline.recipes import StartingRecipe, recipe_path
from support.tiny_task import Task
from support.tiny_texts import LABELS, task_rows, write_lines

TRAINING = "epochs: 8, batch: 32, lr: 0.003, dropout: 0.0"
QUICK = (
    f"teacher.finetune={{{TRAINING}}}",
    f"distill=[{{method: task, {TRAINING}}}]",
    "student.layers=1",
    "export.formats=[onnx]",
    "benchmark=null",
)


def table(path: Path, rows: list[dict[str, Any]], text: str = "utterance", label: str = "intent") -> Path:
    lines = [f"id,{text},{label}", *(f"{i},{row['text']},{row['label']}" for i, row in enumerate(rows))]
    path.write_text("\n".join(lines) + "\n")
    return path


def made(tiny: Task, data: Path, **said: Any) -> StartingRecipe:
    return api.starting_recipe(api.DataFiles(data, **said), "runs/x", [f"teacher.model={tiny.folder / 'teacher'}"])


def test_a_table_alone(task: Task, tmp_path: Path) -> None:
    start = made(task, table(tmp_path / "my rows.csv", task_rows(600, 1)))
    recipe = start.recipe
    assert (recipe.name, recipe.task.value, recipe.data.max_length) == ("my-rows", "text-classification", 32)
    assert recipe.data.train is not None and (recipe.data.train.text, recipe.data.train.label) == (
        "utterance",
        "intent",
    )
    assert recipe.data.eval is not None and recipe.data.eval.fraction == 0.1
    assert recipe.export.lengths == [16, 32]
    assert recipe.teacher.finetune is not None and recipe.teacher.finetune.epochs == 8  # 4,800 rows are seen
    assert start.notes[:2] == (
        "text: column 'utterance', label: column 'intent' (3 names)",
        "task: text-classification, from the labels",
    )
    assert yaml.safe_load(start.text)["teacher"]["model"] == "minilm-l6"
    assert sum(line.lstrip().startswith("#") for line in start.text.splitlines()) > 5


def test_a_table_without_a_header(task: Task, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(
        "".join(f"{i},{row['text']},{LABELS.index(row['label']) + 1}\n" for i, row in enumerate(task_rows(600, 1)))
    )
    dev = tmp_path / "dev.csv"
    dev.write_text(
        "".join(f"{i},{row['text']} again,{LABELS.index(row['label']) + 1}\n" for i, row in enumerate(task_rows(60, 2)))
    )
    start = made(task, path, evaluation=dev)
    assert start.notes[0] == "no header: column 2 is the text, column 3 the label (3 numbers)"
    for source in (start.recipe.data.train, start.recipe.data.eval):
        assert source is not None and (source.text, source.label) == ("column 2", "column 3")
    assert start.recipe.data.train is not None and start.recipe.data.train.header is False
    report = api.data_check(start.recipe)
    assert report is not None and {split.name: split.rows for split in report.splits} == {"train": 600, "eval": 60}
    assert set(report.splits[0].labels) == {"1", "2", "3"}
    assert "label names are the numbers in the training data, in numeric order" in report.notes
    decided = made(task, path, header=False, evaluation=dev)
    assert decided.recipe.data.eval is not None and decided.recipe.data.eval.header is False


def test_a_recipe_names_a_file_without_a_header_in_its_notes(task: Task, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("".join(f"{row['text']},{row['label']}\n" for row in task_rows(60, 1)))
    source = {"path": str(path), "text": "column 1", "label": "column 2"}
    report = api.data_check(load_recipe(task.variant(tmp_path / "r.yaml", data={"train": source})))
    assert report is not None
    [note] = [n for n in report.notes if "header" in n]
    assert note.startswith("rows.csv: no header was found, the first row is data")
    decided = api.data_check(
        load_recipe(task.variant(tmp_path / "r.yaml", data={"train": {**source, "header": False}}))
    )
    assert decided is not None and not [n for n in decided.notes if "header" in n]
    with pytest.raises(InputError, match="no column 'column 1'") as caught:
        api.data_check(load_recipe(task.variant(tmp_path / "r.yaml", data={"train": {**source, "header": True}})))
    assert "header: false" in caught.value.problems[0].fix


def test_another_installation_continues_a_run_and_an_edited_recipe_is_refused(task: Task, tmp_path: Path) -> None:
    start = made(task, table(tmp_path / "rows.csv", task_rows(600, 1)))
    (tmp_path / "run").mkdir()
    start.keep(tmp_path / "run", overwrite=False)
    kept = tmp_path / "run" / "recipe.yaml"
    header, rest = kept.read_text().split("\n", 1)
    elsewhere = f"{header}-elsewhere\n{rest}"
    kept.write_text(elsewhere)
    start.keep(tmp_path / "run", overwrite=False)
    assert kept.read_text() == elsewhere
    kept.write_text(elsewhere.replace("seed: 7", "seed: 8"))
    with pytest.raises(InputError, match="differs from the recipe for this data"):
        start.keep(tmp_path / "run", overwrite=False)


def test_many_rows_are_seen_less_often(task: Task, tmp_path: Path) -> None:
    rows = [{"text": f"{row['text']} {i}", "label": row["label"]} for i, row in enumerate(task_rows(24_000, 1))]
    start = made(task, table(tmp_path / "rows.csv", rows), evaluation=tmp_path / "rows.csv")
    assert start.recipe.distill[0].epochs == 2
    assert start.recipe.data.eval is not None and start.recipe.data.eval.path == str(tmp_path / "rows.csv")


@pytest.mark.parametrize(
    ("labels", "task_name"),
    [
        ([i / 7 for i in range(60)], "regression"),
        ([list(LABELS[: i % 4]) for i in range(60)], "multi-label"),
        ([[{"start": 0, "end": 2, "label": "thing"}] for _ in range(60)], "token-classification"),
        ([i % 3 for i in range(60)], "text-classification"),
    ],
)
def test_the_labels_tell_the_task(task: Task, tmp_path: Path, labels: list[Any], task_name: str) -> None:
    rows = [{"text": row["text"], "label": label} for row, label in zip(task_rows(60, 1), labels, strict=True)]
    assert made(task, write_lines(tmp_path / "rows.jsonl", rows)).recipe.task.value == task_name


def test_labels_that_could_be_several_things_are_a_question(task: Task, tmp_path: Path) -> None:
    rows = [{"text": row["text"], "label": i} for i, row in enumerate(task_rows(60, 1))]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    with pytest.raises(InputError, match="--task text-classification, or --task regression"):
        made(task, path)
    assert made(task, path, task="regression").recipe.task.value == "regression"
    assert made(task, path, task="feature-extraction").recipe.teacher.finetune is None
    with pytest.raises(InputError, match="recipes cp fill-mask"):
        made(task, path, task="fill-mask")


def test_from_a_table_to_the_phone(task: Task, tmp_path: Path, cli: Callable[..., Any]) -> None:
    data, run = table(tmp_path / "rows.csv", task_rows(600, 1)), tmp_path / "run"
    command = ("run", "--data", data, *QUICK, f"teacher.model={task.folder / 'teacher'}", "-o", run)
    result = cli(*command)
    assert result.exit_code == 0, result.output
    assert "text: column 'utterance', label: column 'intent' (3 names)" in result.stderr
    assert f"recipe:          {run}/recipe.yaml" in result.stdout
    report = json.loads((run / "data.json").read_text())
    sizes = {split["name"]: split["rows"] for split in report["splits"]}
    assert sum(sizes.values()) + report["train_in_eval"] == 600
    assert 30 < sizes["eval"] < 100
    passes = f"{-(-8 * sizes['train'] // 32)} steps of 32 rows: 8"
    assert f"train finetune: {passes}" in result.stderr

    kept = load_recipe(run / "recipe.yaml")
    assert kept.data.eval is not None and kept.data.eval.fraction == 0.1
    again = cli(*command)
    assert again.exit_code == 0, again.output
    assert "teacher" in again.stderr and "finished before, skipped" in again.stderr

    (run / "recipe.yaml").write_text((run / "recipe.yaml").read_text() + "# mine\n")
    refused = cli(*command)
    assert refused.exit_code == 2
    assert "it was edited, or the data changed" in refused.stderr
    assert (run / "recipe.yaml").read_text().endswith("# mine\n")


def test_what_does_not_go_together(tmp_path: Path, cli: Callable[..., Any]) -> None:
    data = table(tmp_path / "rows.csv", task_rows(60, 1))
    for args, message in (
        (("run", "--data", data, "sst2"), "together with the recipe 'sst2'"),
        (("run", "sst2", "--label", "intent"), "--label: belong to --data"),
        (("run", "sst2", "--no-header"), "--header, --no-header: belong to --data"),
        (("run",), "no recipe and no data"),
        (("run", data), f"pocketbert run --data {data}"),
        (("run", "--data", tmp_path / "none.csv"), "none.csv"),
    ):
        result = cli(*args, "-o", tmp_path / "run")
        assert (result.exit_code, message in result.stderr) == (2, True), result.stderr
        assert not (tmp_path / "run").exists()


def test_a_dry_run_writes_nothing(task: Task, tmp_path: Path, cli: Callable[..., Any]) -> None:
    data = table(tmp_path / "rows.csv", task_rows(60, 1))
    result = cli("run", "--data", data, f"teacher.model={task.folder / 'teacher'}", "-o", tmp_path / "run", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "distill.0" in result.stdout
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("task_name", ["text-classification", "multi-label", "regression", "fill-mask"])
def test_the_starts_are_recipes(task_name: str) -> None:
    recipe = load_recipe(recipe_path(task_name))
    assert recipe.task.value == task_name
    assert all(stage.epochs for stage in recipe.distill)


@pytest.mark.parametrize("command", [("recipes", "validate"), ("run", "--dry-run")])
def test_what_a_run_would_find_is_found_before(
    task: Task, tmp_path: Path, cli: Callable[..., Any], command: tuple[str, ...]
) -> None:
    for changes, message in (
        ({"teacher": {"finetune": None}}, "has no trained head for text-classification"),
        ({"data": {"train": {"label": "intent"}}}, "no column 'intent'"),
        ({"data": {"labels": ["lamp", "music"]}}, "label 'timer' is not in the label set"),
        ({"data": {"eval": {"path": str(tmp_path / "none.jsonl")}}}, "none.jsonl"),
        ({}, ""),
    ):
        recipe = task.variant(tmp_path / "r.yaml", **changes)
        result = cli(*command, recipe)
        assert result.exit_code == (2 if message else 0), result.output
        assert message in result.stderr
