"""`quantize --budget` fits temperature and threshold of each file on the rows that chose the files, and scores on the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pocketbert
from pocketbert import api
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.data.source import DataSource
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.pipeline.options import AnswerOptions, BudgetOptions
from support.tiny_texts import LABELS, task_rows, write_lines

TRAIN = 80


def rows(folder: Path, count: int) -> tuple[DataSource, DataSource]:
    """Rows to score on, of which every fifth has another label than its text says, and rows to calibrate on."""
    wrong = dict(zip(LABELS, (*LABELS[1:], LABELS[0]), strict=True))
    made = [{**r, "label": wrong[r["label"]] if i % 5 == 0 else r["label"]} for i, r in enumerate(task_rows(count, 5))]
    data = write_lines(folder / "dev.jsonl", made)
    train = write_lines(folder / "train.jsonl", task_rows(TRAIN, 9))
    return DataSource.at(str(data)), DataSource.at(str(train))


def chosen(phone: Path, output: Path, source: tuple[DataSource, DataSource], answer: AnswerOptions) -> Path:
    budget = BudgetOptions(limits=BudgetSection(max_drop=0.2), data=source[0], answer=answer)
    return api.quantize(phone, output, ["int8"], calibrate=source[1], budget=budget)


def test_each_file_gets_a_temperature_and_a_threshold(phone: Path, tmp_path: Path) -> None:
    source = rows(tmp_path, 400)
    made = chosen(phone, tmp_path / "made", source, {"unknown": {"accuracy": 0.5}})
    artefacts = read_artefacts(made)
    assert artefacts.search is not None
    assert (artefacts.processing.unknown, artefacts.processing.unknown_accuracy) == (None, 0.5)
    for record in artefacts.models():
        sure = record.confidence
        assert sure is not None
        assert (sure.fitted_rows, sure.unknown_rows) == (artefacts.search.chosen_on, artefacts.search.chosen_on)
        assert (sure.measured_on, sure.rows) == ("eval", artefacts.search.scored_on)
        assert [*record.scores] == ["eval"], "the rows that chose are not scored"
        assert sure.unknown is not None
        assert sure.answered is not None
        assert f"`{record.path}` {sure.unknown:g}" in (made / "README.md").read_text()
        for answer in pocketbert.load(made, file=record.path).predict(["please dim the lamp", "my"]):
            told = answer.fields()
            assert told["unknown"] == (told["score"] < sure.unknown) or abs(told["score"] - sure.unknown) < 1e-5
    assert "Thresholds for unknown answers were fitted" in (made / "report.html").read_text()
    # a folder that is made of it has no rows, and says so
    again = chosen(made, tmp_path / "again", source, {})
    assert read_artefacts(again).processing.unknown_accuracy == 0.5, "asked for as in the folder that is read"
    own = chosen(made, tmp_path / "own", source, {"unknown": 0.7, "temperature": 1.5})
    assert {(r.temperature, read_artefacts(own).unknown_below(r)) for r in read_artefacts(own).models()} == {(1.5, 0.7)}


def test_a_folder_without_rows_loses_thresholds_and_says_so(
    phone: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    made = chosen(phone, tmp_path / "made", rows(tmp_path, 400), {"unknown": {"accuracy": 0.5}})
    told = cli("quantize", "-m", made, "-o", tmp_path / "small")
    assert told.exit_code == 0, told.output
    assert "has temperatures and thresholds for unknown answers that were fitted on rows of its run" in told.stderr
    small = read_artefacts(tmp_path / "small")
    assert {small.unknown_below(r) for r in small.models()} == {None}
    assert pocketbert.load(tmp_path / "small").predict("my")[0].fields().get("unknown") is None


def test_what_cannot_be_fitted_is_refused_before_anything_is_made(
    phone: Path, tmp_path: Path, cli: Callable[..., Any], tiny_model: Callable[..., Path], task: Any
) -> None:
    data, train = rows(tmp_path, 60)
    flags = ["--data", data.path, "--calibrate", train.path, "--budget", "max_drop=0.2", "--scheme", "int8"]
    few = cli("quantize", "-m", phone, *flags, "--answer", "unknown.accuracy=0.9", "-o", tmp_path / "made")
    assert few.exit_code == 2, few.output
    assert "--answer unknown accuracy: a threshold is fitted on held-out rows, of which there are" in few.stderr
    assert "Give more rows to --data" in few.stderr
    other = cli("quantize", "-m", phone, *flags, "--answer", "stride=3", "-o", tmp_path / "made")
    assert other.exit_code == 2
    assert "--answer stride: is decided by the folder that is read. Fix: Set temperature or unknown" in other.stderr
    alone = cli("quantize", "-m", phone, "--answer", "unknown=0.5", "-o", tmp_path / "made")
    assert alone.exit_code == 2
    assert "--answer: has no meaning without --budget" in alone.stderr
    exported = cli("export", "-m", tiny_model("bert"), "--answer", "unknown.accuracy=0.9", "-o", tmp_path / "made")
    assert exported.exit_code == 2
    assert "--answer unknown accuracy: a threshold is fitted on held-out rows, of which there are 0" in exported.stderr
    recipe = cli("run", task.recipe, "answer.unknown.accuracy=0.9", "-o", tmp_path / "run")
    assert recipe.exit_code == 2
    assert "answer.unknown.accuracy: a threshold is fitted on held-out rows" in recipe.stderr
    assert "Set data.holdout to 500 or more" in recipe.stderr
    assert not (tmp_path / "made").exists()


def test_an_accuracy_that_the_files_do_not_reach_fails_their_gates(
    phone: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    data, train = rows(tmp_path, 300)
    flags = ["--data", data.path, "--calibrate", train.path, "--budget", "max_drop=0.2", "--scheme", "int8"]
    told = cli("quantize", "-m", phone, *flags, "--answer", "unknown.accuracy=0.99", "-o", tmp_path / "made")
    assert told.exit_code == 3, told.output
    assert "onnx/model.onnx: gate 'unknown' failed" in told.stderr
    assert "onnx/model_int8.onnx: gate 'unknown' failed" in told.stderr
    assert "Ask for less (answer.unknown.accuracy)" in told.stderr
    assert not (tmp_path / "made").exists()
