"""Temperatures of files: fitted on held-out rows only, one for each file, and caught where they are another file's."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pocketbert
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.compare.evaluate import EvalSet
from pocketbert.core.data.labels import Labels
from pocketbert.core.heads import Prepared, make_head
from pocketbert.core.predict.scores import Confidence, apply_score_function, fit_temperature, fit_threshold, to_logits
from pocketbert.core.tasks import TASKS, ScoreFunction, TaskName
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.gates.confidence import (
    KnownConfidence,
    _read_selftest,
    check_unknown_threshold,
    fit_confidence,
)
from pocketbert.pipeline.results import Subject, _summarize_confidence
from support.commands import completed_run

TASK = TASKS[TaskName.TEXT_CLASSIFICATION]
HEAD = make_head(TASK, Labels(("a", "b", "c")))
RANDOM = np.random.default_rng(3)


class Predictor:
    engine, engine_version, inputs, lengths = "toy", "1", ("input_ids",), ()

    def __init__(self, output: str = "logits") -> None:
        self.outputs = (output,)


def subject(task: TaskName = TaskName.TEXT_CLASSIFICATION, output: str = "logits") -> Subject:
    given: dict[str, Any] = {
        "name": "onnx/model.onnx",
        "format": Format.ONNX,
        "scheme": Scheme.FP32,
        "predictor": Predictor(output),
        "labels": ["a", "b", "c"],
        "task": TASKS[task],
    }
    return Subject(path=Path(), client=None, runtime=None, tokenizer=None, folder=Path(), **given)  # type: ignore[arg-type]


def rows(name: str, temperature: float, count: int = 600) -> tuple[EvalSet, list[Any]]:
    """A set whose labels follow the softmax at a temperature, and the logits on it."""
    logits = RANDOM.normal(0, 3, (count, 3)).astype(np.float32)
    chances = apply_score_function(logits / temperature, ScoreFunction.SOFTMAX).cumsum(-1)
    gold = (RANDOM.random((count, 1)) > chances).sum(-1).clip(0, 2)
    return EvalSet(name, HEAD, Prepared([], [], np.arange(count), truth=gold)), list(logits[:, None])


EVAL, HELD = rows("eval", 2.0), rows("holdout", 2.0)


def test_the_temperature_comes_from_the_held_out_rows_and_the_error_from_the_others() -> None:
    found = fit_confidence(subject(), [EVAL, HELD])
    assert found is not None
    held, logits = HELD
    assert found.temperature == fit_temperature(np.concatenate(logits), np.asarray(held.rows.truth)).temperature
    assert 1.5 < found.temperature < 2.5
    assert (found.fitted_rows, found.measured_on, found.rows, found.note) == (600, "eval", 600, "")
    assert found.error is not None
    assert found.error_before is not None
    assert found.error < found.error_before / 2


def test_rows_that_decide_the_score_move_no_temperature() -> None:
    other = rows("eval", 0.5)
    first, second = (fit_confidence(subject(), [s, HELD]) for s in (EVAL, other))
    assert first is not None
    assert second is not None
    assert first.temperature == second.temperature
    assert first.error != second.error


def test_without_held_out_rows_nothing_is_fitted_and_the_reason_is_told() -> None:
    found = fit_confidence(subject(), [EVAL])
    assert found is not None
    assert (found.temperature, found.fitted_rows) == (1.0, 0)
    assert found.note == "no training rows are held out (data.holdout)"
    assert found.error == found.error_before
    few = fit_confidence(subject(), [EVAL, rows("holdout", 2.0, 20)])
    assert few is not None
    assert few.note.startswith("20 held-out rows are too few")
    assert (few.temperature, few.fitted_rows) == (1.0, 0)


def test_a_known_temperature_is_measured_and_not_fitted() -> None:
    found = fit_confidence(subject(), [EVAL, HELD], KnownConfidence(3.0))
    assert found is not None
    assert (found.temperature, found.fitted_rows, found.note) == (3.0, 0, "")
    assert fit_confidence(subject(), [], KnownConfidence(3.0)) == Confidence(temperature=3.0)
    assert fit_confidence(subject(), [], KnownConfidence(1.0)) is None is fit_confidence(subject(), [])


def test_the_threshold_comes_from_the_held_out_rows_and_its_worth_from_the_others() -> None:
    found = fit_confidence(subject(), [EVAL, HELD], KnownConfidence(accuracy=0.75))
    assert found is not None
    held, logits = HELD
    scores = apply_score_function(np.concatenate(logits).astype(np.float64) / found.temperature, ScoreFunction.SOFTMAX)
    right = scores.argmax(-1) == np.asarray(held.rows.truth)
    assert found.unknown == fit_threshold(scores.max(-1), right, 0.75).value
    assert found.unknown is not None
    assert (found.unknown_rows, found.unknown_note) == (600, "")
    other = fit_confidence(subject(), [rows("eval", 0.5), HELD], KnownConfidence(accuracy=0.75))
    assert other is not None
    assert other.unknown == found.unknown
    rows_, kept = EVAL
    told = apply_score_function(np.concatenate(kept).astype(np.float64) / found.temperature, ScoreFunction.SOFTMAX)
    sure = told.max(-1) >= found.unknown
    assert found.answered == pytest.approx(sure.mean())
    hits = told.argmax(-1) == np.asarray(rows_.rows.truth)
    assert found.answered_accuracy == pytest.approx(hits[sure].mean())
    assert found.answered_accuracy > hits.mean() + 0.03
    [gate] = check_unknown_threshold("onnx/model.onnx", found, KnownConfidence(accuracy=0.75))
    assert (gate.passed, gate.value, gate.bound) == (True, found.unknown, 0.75)
    assert f"unknown below {found.unknown:g}: answers {found.answered:.1%}"[:-1] in _summarize_confidence(found)


def test_a_file_that_is_less_sure_gets_another_threshold() -> None:
    held, logits = HELD
    noise = np.random.default_rng(1).normal(0, 2, (600, 1, 3)).astype(np.float32)
    changed = (held, [m + n for m, n in zip(logits, noise, strict=True)])
    sharp, dull = (fit_confidence(subject(), [EVAL, s], KnownConfidence(accuracy=0.8)) for s in (HELD, changed))
    assert sharp is not None
    assert dull is not None
    assert (sharp.temperature, sharp.unknown) != (dull.temperature, dull.unknown)
    assert check_unknown_threshold("a", dull, KnownConfidence(accuracy=0.8))[0].passed == (dull.unknown is not None)


def test_a_threshold_that_cannot_be_fitted_fails_its_gate_with_the_nearest_accuracy() -> None:
    for sets, why in (
        ([EVAL, HELD], "600 held-out rows do not show an accuracy of 0.999"),
        ([EVAL], "no training rows are"),
    ):
        found = fit_confidence(subject(), sets, KnownConfidence(accuracy=0.999))
        assert found is not None
        assert found.unknown is None
        [gate] = check_unknown_threshold("onnx/model.onnx", found, KnownConfidence(accuracy=0.999))
        assert not gate.passed
        assert why in gate.failure
        assert "Ask for less (answer.unknown.accuracy)" in gate.failure
    assert check_unknown_threshold("onnx/model.onnx", found, KnownConfidence()) == []
    assert check_unknown_threshold("onnx/model.onnx", None, KnownConfidence(accuracy=0.9)) == []


def test_a_threshold_that_is_given_is_measured() -> None:
    found = fit_confidence(subject(), [EVAL], KnownConfidence(temperature=2.0, unknown=0.8))
    assert found is not None
    assert (found.unknown, found.unknown_rows) == (0.8, 0)
    assert found.answered is not None
    assert 0 < found.answered < 1
    assert fit_confidence(subject(), [], KnownConfidence(unknown=0.8)) == Confidence(unknown=0.8)


def test_a_file_with_the_softmax_inside_gets_the_same_temperature() -> None:
    inside = [
        (s, [apply_score_function(m, ScoreFunction.SOFTMAX).astype(np.float32) for m in kept])
        for s, kept in (EVAL, HELD)
    ]
    plain, other = (
        fit_confidence(subject(), [EVAL, HELD]),
        fit_confidence(subject(output="probabilities"), inside),
    )
    assert plain is not None
    assert other is not None
    assert other.temperature == pytest.approx(plain.temperature, abs=2e-3)
    assert to_logits(np.array([0.0, 1.0]), True)[0] < -80  # a probability of 0 has a logit


@pytest.mark.parametrize("task", [t for t in TaskName if t is not TaskName.TEXT_CLASSIFICATION])
def test_other_tasks_have_none(task: TaskName) -> None:
    assert fit_confidence(subject(task), [EVAL, HELD], KnownConfidence(unknown=0.5)) is None


def test_numbers_that_are_not_finite_have_no_error() -> None:
    broken = [m.copy() for m in EVAL[1]]
    broken[0][:] = np.nan
    found = fit_confidence(subject(), [(EVAL[0], broken), HELD])
    assert found is not None
    assert found.error is None
    assert _summarize_confidence(found) == "" == _summarize_confidence(None)


def listed(phone: Path, **temperatures: float | None) -> None:
    """Change the temperatures in a folder's list; None removes one."""
    content = json.loads((phone / "artifacts.json").read_text())
    for record in content["files"]:
        stem = Path(record["path"]).stem
        if stem in temperatures:
            value = temperatures[stem]
            record.pop("confidence", None)
            record |= {} if value is None else {"confidence": {"temperature": value}}
    (phone / "artifacts.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def warm(finished: Path, tmp_path_factory: pytest.TempPathFactory, task: Any) -> Path:
    """The tiny task's run with a temperature from the recipe: only verify, report and pack are made again."""
    folder = tmp_path_factory.mktemp("warm") / "run"
    shutil.copytree(finished, folder)
    completed_run(folder, task.recipe, "answer={temperature: 2.5, unknown: 0.4}")
    return folder


def test_a_temperature_of_the_recipe_reaches_the_whole_folder(warm: Path, finished: Path) -> None:
    phone, before = read_artefacts(warm / "phone"), read_artefacts(finished / "phone")
    assert {r.temperature for r in phone.models()} == {2.5}
    assert {r.temperature for r in before.models()} == {1.0}
    assert [r.sha256 for r in phone.models()] == [r.sha256 for r in before.models()]
    own, plain = pocketbert.load(warm / "phone"), pocketbert.load(finished / "phone")
    texts = [str(r.text) for r in _read_selftest(warm / "phone").rows]
    for told, a, b in zip(_read_selftest(warm / "phone").rows, own.predict(texts), plain.predict(texts), strict=True):
        assert a.fields()["label"] == b.fields()["label"]
        assert a.fields()["score"] < b.fields()["score"]
        assert a.fields()["unknown"] == (a.fields()["score"] < 0.4)
        assert {own.artefacts.unknown_below(r) for r in phone.models()} == {0.4}
        assert "unknown" not in b.fields()
        values = told.answers[own.file].values
        assert list(a.scores.values()) == pytest.approx(values, abs=1e-3)  # type: ignore[attr-defined]
    assert "temperature 2.5)" in (warm / "report.html").read_text()
    assert "`onnx/model_int8.onnx` 2.5" in (warm / "phone" / "README.md").read_text()


def test_the_code_of_the_card_answers_as_predict_does(warm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = (warm / "phone" / "README.md").read_text()
    found = re.search(r"Python, with only ONNX Runtime.*?```python\n(.*?)```", card, re.S)
    assert found is not None
    assert "/ 2.5" in found[1]
    monkeypatch.chdir(warm / "phone")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(found[1], {})
    [answer] = pocketbert.load(warm / "phone").predict(["your text"])
    given = ast.literal_eval(printed.getvalue())[0]
    assert given == (None if answer.fields()["unknown"] else answer.fields()["label"])
    assert float(printed.getvalue().split(", ")[1].rstrip(")\n")) == pytest.approx(answer.fields()["score"], abs=1e-4)


def test_the_temperature_of_another_file_is_caught(
    warm: Path, tmp_path: Path, cli: Callable[..., Any], finished: Path
) -> None:
    phone = Path(shutil.copytree(warm / "phone", tmp_path / "phone"))
    assert cli("verify", "-m", phone).exit_code == 0
    for wrong in (2.4, None):
        listed(phone, model_int8=wrong)
        result = cli("verify", "-m", phone)
        assert result.exit_code == 3, result.output
        assert "onnx/model_int8.onnx: gate 'temperature' failed" in result.stderr
        assert "gives other probabilities than selftest.json has" in result.stderr
    listed(phone, model_int8=2.5)
    assert cli("verify", "-m", phone).exit_code == 0
    plain = Path(shutil.copytree(finished / "phone", tmp_path / "plain"))
    listed(plain, model=2.0)  # a temperature that nobody fitted
    assert "onnx/model.onnx: gate 'temperature' failed" in cli("verify", "-m", plain).stderr


@pytest.mark.slow
def test_a_run_with_held_out_rows_fits_temperature_and_threshold_for_each_file(task: Any, tmp_path: Path) -> None:
    steps = ["teacher.finetune.steps=60", "distill.0.steps=30", "verify.max_drop=0.2"]
    completed_run(tmp_path / "run", task.recipe, "data.holdout=200", "answer.unknown.accuracy=0.6", *steps)
    found = {r.path: r.confidence for r in read_artefacts(tmp_path / "run" / "phone").models()}
    assert len(found) == 2
    for confidence in found.values():
        assert confidence is not None
        assert (confidence.fitted_rows, confidence.measured_on, confidence.rows, confidence.note) == (
            200,
            "eval",
            150,
            "",
        )
        assert confidence.temperature != 1
        assert confidence.unknown_rows == 200
        assert confidence.answered is not None
    assert "200 held-out rows" in (tmp_path / "run" / "report.html").read_text()
