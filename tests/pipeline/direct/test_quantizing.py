"""`quantize`: how ranges are measured, and temperature and threshold that are fitted on the rows that chose the files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pocketbert
from pocketbert import api
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.types import Calibration, Format
from pocketbert.pipeline.options import AnswerOptions, BudgetOptions, CalibrationOptions
from pocketbert.quantize import Plan
from support.tiny_task import Task
from support.tiny_texts import LABELS, task_rows, write_lines

Run = Callable[..., Any]
Refuse = Callable[..., str]


@pytest.mark.parametrize(
    ("folder", "formats"),
    [
        ("finished_tflite", {Format.TFLITE, Format.ONNX}),
        pytest.param("finished_coreml", {Format.COREML, Format.ONNX}, marks=pytest.mark.slow),
    ],
)
def test_the_method_of_calibration_arrives_in_every_static_file_and_these_pass_their_gates(
    folder: str, formats: set[Format], task: Task, plans: list[Plan], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    phone, rows = request.getfixturevalue(folder) / "phone", DataSource.at(str(task.folder / "train.jsonl"))
    method = CalibrationOptions(rows=rows, method="mse")
    made = api.quantize(phone, tmp_path / "phone", ["int8", "a8w8"], calibrate=method)
    static = [p for p in plans if p.scheme.static]
    assert {p.format for p in static} == formats
    assert {p.calibration for p in static} == {Calibration.MSE}
    assert {p.calibration for p in plans if not p.scheme.static} == {Calibration.MINMAX}
    assert load_recipe(made / "recipe.resolved.yaml").quantize.calibration is Calibration.MSE
    assert [r.path for r in read_artefacts(made).models() if r.scheme.static]


def test_a_method_that_is_unknown_or_that_nothing_reads_is_refused(
    task: Task, finished: Path, refuse: Refuse, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        load_recipe(task.recipe, ["quantize={files: [int8, a8w8], calibration: entropy}"])
    rows = ("--scheme", "a8w8", "--calibrate", task.folder / "train.jsonl", "--calibration", "entropy")
    told = refuse("quantize", "-m", finished / "phone", "-o", tmp_path / "phone", *rows)
    for words, key in ((str(caught.value), "quantize.calibration"), (told, "--calibration")):
        assert all(word in words for word in (key, *Calibration)), words
    assert not (tmp_path / "phone").exists()
    with pytest.raises(InputError, match="int8 measures no ranges: add a static scheme, such as a8w8"):
        load_recipe(task.recipe, ["quantize.calibration=mse"])
    kept = load_recipe(task.recipe, ["quantize={files: [int8, a8w8], calibration: percentile}"])
    assert kept.quantize.calibration is Calibration.PERCENTILE
    assert "calibration" not in load_recipe(task.recipe).quantize.model_dump(), "finished runs keep their digests"


# --- temperature and threshold ---


def write_rows(folder: Path, count: int) -> tuple[DataSource, DataSource]:
    """Rows to score on, of which every fifth has another label than its text says, and rows to calibrate on."""
    wrong = dict(zip(LABELS, (*LABELS[1:], LABELS[0]), strict=True))
    made = [{**r, "label": wrong[r["label"]] if i % 5 == 0 else r["label"]} for i, r in enumerate(task_rows(count, 5))]
    data, train = write_lines(folder / "dev.jsonl", made), write_lines(folder / "train.jsonl", task_rows(80, 9))
    return DataSource.at(str(data)), DataSource.at(str(train))


def choose(phone: Path, output: Path, source: tuple[DataSource, DataSource], answer: AnswerOptions) -> Path:
    budget = BudgetOptions(limits=BudgetSection(max_drop=0.2), data=source[0], answer=answer)
    return api.quantize(phone, output, ["int8"], calibrate=source[1], budget=budget)


def test_each_file_gets_a_temperature_and_a_threshold(phone: Path, tmp_path: Path, succeed: Run) -> None:
    source = write_rows(tmp_path, 400)
    made = choose(phone, tmp_path / "made", source, {"unknown": {"accuracy": 0.5}})
    artefacts = read_artefacts(made)
    assert artefacts.search is not None
    assert (artefacts.processing.unknown, artefacts.processing.unknown_accuracy) == (None, 0.5)
    for record in artefacts.models():
        sure = record.confidence
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
    again = choose(made, tmp_path / "again", source, {})
    assert read_artefacts(again).processing.unknown_accuracy == 0.5, "asked for as in the folder that is read"
    own = read_artefacts(choose(made, tmp_path / "own", source, {"unknown": 0.7, "temperature": 1.5}))
    assert {(r.temperature, own.unknown_below(r)) for r in own.models()} == {(1.5, 0.7)}
    # a folder that is made of it without rows loses them, and says so
    told = succeed("quantize", "-m", made, "-o", tmp_path / "small")
    assert "has temperatures and thresholds for unknown answers that were fitted on rows of its run" in told.stderr
    small = read_artefacts(tmp_path / "small")
    assert {small.unknown_below(r) for r in small.models()} == {None}
    assert pocketbert.load(tmp_path / "small").predict("my")[0].fields().get("unknown") is None


def test_what_cannot_be_fitted_is_refused_before_anything_is_made(
    phone: Path, tmp_path: Path, refuse: Refuse, tiny_model: Callable[..., Path], task: Task
) -> None:
    data, train = write_rows(tmp_path, 60)
    accurate = "unknown.accuracy=0.9"
    rows = ["--data", data.path, "--calibrate", train.path, "--budget", "max_drop=0.2", "--scheme", "int8"]
    few = "a threshold is fitted on held-out rows"
    stride = "--answer stride: is decided by the folder that is read. Fix: Set temperature or unknown"
    for command, *words in (
        (
            ("quantize", "-m", phone, *rows, "--answer", accurate),
            f"--answer unknown accuracy: {few}, of which there are",
            "Give more rows to --data",
        ),
        (("quantize", "-m", phone, *rows, "--answer", "stride=3"), stride),
        (("quantize", "-m", phone, "--answer", "unknown=0.5"), "--answer: has no meaning without --budget"),
        (
            ("export", "-m", tiny_model("bert"), "--answer", accurate),
            f"--answer unknown accuracy: {few}, of which there are 0",
        ),
        (
            ("run", task.recipe, f"answer.{accurate}"),
            f"answer.unknown.accuracy: {few}",
            "Set data.holdout to 500 or more",
        ),
    ):
        told = refuse(*command, "-o", tmp_path / "made")
        assert [w for w in words if w not in told] == [], told
    assert not (tmp_path / "made").exists()


def test_an_accuracy_that_the_files_do_not_reach_fails_their_gates(phone: Path, tmp_path: Path, refuse: Refuse) -> None:
    data, train = write_rows(tmp_path, 300)
    flags = ["--data", data.path, "--calibrate", train.path, "--budget", "max_drop=0.2", "--scheme", "int8"]
    command = ("quantize", "-m", phone, *flags, "--answer", "unknown.accuracy=0.99", "-o", tmp_path / "made")
    told = refuse(*command, code=3)
    for file in ("model", "model_int8"):
        assert f"onnx/{file}.onnx: gate 'unknown' failed" in told
    assert "Ask for less (answer.unknown.accuracy)" in told
    assert not (tmp_path / "made").exists()
