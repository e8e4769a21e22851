"""Temperatures and thresholds of files, fitted on held-out rows only; selftest.json, with which an app checks its answers."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import pocketbert
from pocketbert.core.artefacts import Artefacts, read_artefacts
from pocketbert.core.compare.evaluate import EvalSet
from pocketbert.core.compare.golden import GoldenRow
from pocketbert.core.data.labels import Labels
from pocketbert.core.heads import Prepared, make_head
from pocketbert.core.predict.scores import (
    Confidence,
    apply_score_function,
    apply_temperature,
    fit_temperature,
    fit_threshold,
    to_logits,
)
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, ScoreFunction, TaskName
from pocketbert.core.types import Format, Scheme, Status
from pocketbert.pipeline.gates.confidence import (
    SELFTEST_FILE,
    AppSelfTest,
    KnownConfidence,
    check_unknown_threshold,
    fit_confidence,
    write_selftest,
)
from pocketbert.pipeline.results import Gate, Subject, Verification
from support import card_folders
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


def draw_set(name: str, temperature: float, count: int = 600) -> tuple[EvalSet, list[Any]]:
    """A set whose labels follow the softmax at a temperature, and the logits on it."""
    logits = RANDOM.normal(0, 3, (count, 3)).astype(np.float32)
    chances = apply_score_function(logits / temperature, ScoreFunction.SOFTMAX).cumsum(-1)
    gold = (RANDOM.random((count, 1)) > chances).sum(-1).clip(0, 2)
    return EvalSet(name, HEAD, Prepared([], [], np.arange(count), truth=gold)), list(logits[:, None])


EVAL, HELD = draw_set("eval", 2.0), draw_set("holdout", 2.0)
OTHER = draw_set("eval", 0.5)


def fit(sets: Sequence[Any], known: KnownConfidence = KnownConfidence(), **of: Any) -> Confidence:  # noqa: B008
    found = fit_confidence(subject(**of), sets, known)
    assert found is not None
    return found


def summarize(found: Confidence | None) -> str:
    """The line that a person reads of a file."""
    gates, confidence = [Gate(name="a", file="f", passed=True)], {} if found is None else {"f": found}
    return Verification(status=Status.PASSED, gates=gates, confidence=confidence).summary()[0][0]


def test_the_temperature_comes_from_the_held_out_rows_and_the_error_from_the_others() -> None:
    found, other = fit([EVAL, HELD]), fit([OTHER, HELD])
    held, logits = HELD
    assert found.temperature == fit_temperature(np.concatenate(logits), np.asarray(held.rows.truth)).temperature
    assert 1.5 < found.temperature < 2.5
    assert (found.fitted_rows, found.measured_on, found.rows, found.note) == (600, "eval", 600, "")
    assert found.error is not None and found.error_before is not None
    assert found.error < found.error_before / 2
    assert other.temperature == found.temperature, "rows that decide the score move no temperature"
    assert other.error != found.error


def test_without_held_out_rows_nothing_is_fitted_and_the_reason_is_told() -> None:
    none, few = fit([EVAL]), fit([EVAL, draw_set("holdout", 2.0, 20)])
    assert (none.temperature, none.fitted_rows) == (few.temperature, few.fitted_rows) == (1.0, 0)
    assert none.note == "no training rows are held out (data.holdout)"
    assert none.error == none.error_before
    assert few.note.startswith("20 held-out rows are too few")


def test_what_is_known_is_measured_and_not_fitted() -> None:
    found = fit([EVAL, HELD], KnownConfidence(3.0))
    assert (found.temperature, found.fitted_rows, found.note) == (3.0, 0, "")
    given = fit([EVAL], KnownConfidence(temperature=2.0, unknown=0.8))
    assert (given.unknown, given.unknown_rows) == (0.8, 0)
    assert given.answered is not None
    assert 0 < given.answered < 1
    assert fit([], KnownConfidence(3.0)) == Confidence(temperature=3.0)
    assert fit([], KnownConfidence(unknown=0.8)) == Confidence(unknown=0.8)
    assert fit_confidence(subject(), [], KnownConfidence(1.0)) is None is fit_confidence(subject(), [])


def test_the_threshold_comes_from_the_held_out_rows_and_its_worth_from_the_others() -> None:
    known = KnownConfidence(accuracy=0.75)
    found, other = fit([EVAL, HELD], known), fit([OTHER, HELD], known)

    def answer(rows: tuple[EvalSet, list[Any]]) -> tuple[Any, Any]:
        """The largest probability of each row, and whether its label is right."""
        logits = np.concatenate(rows[1]).astype(np.float64) / found.temperature
        scores = apply_score_function(logits, ScoreFunction.SOFTMAX)
        return scores.max(-1), scores.argmax(-1) == np.asarray(rows[0].rows.truth)

    assert found.unknown == other.unknown == fit_threshold(*answer(HELD), 0.75).value
    assert found.unknown is not None and found.answered is not None
    assert (found.unknown_rows, found.unknown_note) == (600, "")
    sure, hits = answer(EVAL)[0] >= found.unknown, answer(EVAL)[1]
    assert found.answered == pytest.approx(sure.mean())
    assert found.answered_accuracy == pytest.approx(hits[sure].mean())
    assert found.answered_accuracy > hits.mean() + 0.03
    [gate] = check_unknown_threshold("onnx/model.onnx", found, known)
    assert (gate.passed, gate.value, gate.bound) == (True, found.unknown, 0.75)
    assert f"unknown below {found.unknown:g}: answers {100 * found.answered:.1f} %" in summarize(found)


@pytest.mark.parametrize(
    ("sets", "why"),
    [([EVAL, HELD], "600 held-out rows do not show an accuracy of 0.999"), ([EVAL], "no training rows are")],
    ids=["too much", "no rows"],
)
def test_a_threshold_that_cannot_be_fitted_fails_its_gate(sets: list[Any], why: str) -> None:
    known = KnownConfidence(accuracy=0.999)
    found = fit(sets, known)
    assert found.unknown is None
    [gate] = check_unknown_threshold("onnx/model.onnx", found, known)
    assert not gate.passed
    assert why in gate.failure
    assert "Ask for less (answer.unknown.accuracy)" in gate.failure
    assert check_unknown_threshold("a", found, KnownConfidence()) == []
    assert check_unknown_threshold("a", None, known) == []


def test_a_file_with_the_softmax_inside_gets_the_same_temperature() -> None:
    inside = [
        (s, [apply_score_function(m, ScoreFunction.SOFTMAX).astype(np.float32) for m in kept])
        for s, kept in (EVAL, HELD)
    ]
    other = fit(inside, output="probabilities")
    assert other.temperature == pytest.approx(fit([EVAL, HELD]).temperature, abs=2e-3)
    assert to_logits(np.array([0.0, 1.0]), True)[0] < -80  # a probability of 0 has a logit


def test_other_tasks_have_no_confidence_and_numbers_that_are_not_finite_no_error() -> None:
    for task in TASKS:
        found = fit_confidence(subject(task), [EVAL, HELD], KnownConfidence(unknown=0.5))
        assert (found is None) is (task is not TaskName.TEXT_CLASSIFICATION)
    broken = [m.copy() for m in EVAL[1]]
    broken[0][:] = np.nan
    found = fit([(EVAL[0], broken), HELD])
    assert found.error is None
    assert summarize(found) == summarize(None)


# selftest.json: what an app compares its answers with is what the files answer.


def read_selftest(folder: Path) -> AppSelfTest:
    return AppSelfTest.model_validate_json((folder / SELFTEST_FILE).read_text())


def test_the_default_file_answers_as_the_self_test_says(finished_tflite: Path) -> None:
    phone = finished_tflite / "phone"
    artefacts, test = read_artefacts(phone), read_selftest(phone)
    assert SELFTEST_FILE in {r.path for r in artefacts.files}
    assert (test.values, len(test.rows)) == ("probabilities", 5)
    assert {p for row in test.rows for p in row.answers} == {r.path for r in artefacts.models()}
    tokenizer, model = TextTokenizer(phone, artefacts.processing.max_length), pocketbert.load(phone)
    for row in test.rows:
        assert tokenizer.encode([row.text])[0].ids.tolist() == row.ids
        prediction, expected = model.predict([row.text])[0], row.answers[artefacts.default_model().path]
        answered = [prediction.scores[name] for name in artefacts.labels]
        np.testing.assert_allclose(answered, expected.values, rtol=0, atol=min(expected.tolerance, 1e-3))
        assert sum(expected.values) == pytest.approx(1, abs=1e-5)


ONNX, MEDIAPIPE = "onnx/model.onnx", "tflite/mediapipe.tflite"
PATHS = [r.path for r in card_folders.folder(TaskName.TEXT_CLASSIFICATION).models()]


def golden(text: str, label: str, outputs: list[float], **more: object) -> GoldenRow:
    recorded = {"outputs": dict.fromkeys(PATHS, outputs), "tolerance": dict.fromkeys(PATHS, 0.2)}
    return GoldenRow.model_validate({"text": text, "label": label, "reference": outputs, **recorded, **more})


def choose(folder: Path, rows: list[GoldenRow], artefacts: Artefacts | None = None) -> AppSelfTest:
    """The self-test of a folder with these golden rows."""
    (folder / "golden.jsonl").write_text("".join(r.model_dump_json() + "\n" for r in rows))
    tokens = [json.dumps({"text": r.text, "ids": [1, 5, 2]}) + "\n" for r in rows]
    (folder / "golden_tokens.jsonl").write_text("".join(tokens))
    write_selftest(folder, artefacts or card_folders.folder(TaskName.TEXT_CLASSIFICATION))
    return read_selftest(folder)


def test_clear_short_texts_with_different_labels_come_first(tmp_path: Path) -> None:
    rows = [
        golden("drawn", "no", [3.0, 0.0], drawn=True),
        golden("close to the other label", "yes", [0.0, 0.3]),
        golden("wrong", "no", [0.0, 3.0]),
        golden("a longer clear text", "no", [3.0, 0.0]),
        golden("clear", "no", [3.0, 0.0]),
        golden("clear as well", "yes", [0.0, 3.0]),
        golden("very clear, too", "yes", [0.0, 3.0]),
    ]
    found = choose(tmp_path, rows).rows
    wanted = ["clear", "clear as well", "very clear, too", "a longer clear text", "wrong"]
    assert [row.text for row in found] == wanted
    assert (found[0].ids, found[0].label) == ([1, 5, 2], "no")
    assert found[0].answers[ONNX].values == pytest.approx([0.9525741, 0.0474259])
    assert found[0].answers[ONNX].tolerance == pytest.approx(0.1, abs=1e-6)
    assert found[0].answers[MEDIAPIPE].values == [3.0, 0.0], "it answers with probabilities itself"
    assert found[0].answers[MEDIAPIPE].tolerance == pytest.approx(0.2, abs=1e-6)
    assert [row.text for row in choose(tmp_path, rows[4:6]).rows] == ["clear", "clear as well"]


def test_parts_of_outputs_stay_outputs(tmp_path: Path) -> None:
    test = choose(tmp_path, [golden(f"text {i}", "", [1.0, 2.0], columns=[4, 7]) for i in range(6)])
    assert test.values == "outputs"
    assert test.rows[0].columns == [4, 7]
    assert test.rows[0].answers[ONNX].values == [1.0, 2.0]


@settings(max_examples=25)
@given(arrays(np.float64, (4,), elements=st.floats(0.001, 1)), st.floats(0.2, 5), st.floats(0, 0.05), st.integers(0, 3))
def test_the_tolerance_of_probabilities_holds_at_a_temperature(
    tmp_path_factory: pytest.TempPathFactory, numbers: np.ndarray, temperature: float, step: float, place: int
) -> None:
    first = numbers / numbers.sum()
    second = np.abs(first + step * (np.arange(4) == place) - step * (np.arange(4) == (place + 1) % 4))
    second /= second.sum()
    recorded = dict.fromkeys(PATHS, float(np.abs(first - second).max()))
    artefacts = card_folders.folder(TaskName.TEXT_CLASSIFICATION)
    heated = {"confidence": Confidence(temperature=temperature)}
    files = [r.model_copy(update=heated if r.path == MEDIAPIPE else {}) for r in artefacts.files]
    row = golden("a", "no", first.tolist(), tolerance=recorded)
    folder = tmp_path_factory.mktemp("heated")
    test = choose(folder, [row], artefacts.model_copy(update={"files": files}))
    apart = np.abs(apply_temperature(first, temperature, True) - apply_temperature(second, temperature, True)).max()
    allowed = test.rows[0].answers[MEDIAPIPE].tolerance
    assert apart <= allowed + 1e-9
    assert temperature != 1 or allowed == pytest.approx(recorded[MEDIAPIPE] + 1e-7)


# Temperatures of an artefact folder.


def set_temperatures(phone: Path, **temperatures: float | None) -> None:
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
    texts = [str(r.text) for r in read_selftest(warm / "phone").rows]
    for told, a, b in zip(read_selftest(warm / "phone").rows, own.predict(texts), plain.predict(texts), strict=True):
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
    set_temperatures(phone, model_int8=2.4, model=None)
    result = cli("verify", "-m", phone)
    assert result.exit_code == 3, result.output
    for file in ("onnx/model.onnx", "onnx/model_int8.onnx"):
        assert f"{file}: gate 'temperature' failed" in result.stderr
    assert "gives other probabilities than selftest.json has" in result.stderr
    set_temperatures(phone, model_int8=2.5, model=2.5)
    assert cli("verify", "-m", phone).exit_code == 0
    plain = Path(shutil.copytree(finished / "phone", tmp_path / "plain"))
    set_temperatures(plain, model=2.0)  # a temperature that nobody fitted
    assert "onnx/model.onnx: gate 'temperature' failed" in cli("verify", "-m", plain).stderr


@pytest.mark.slow
def test_a_run_with_held_out_rows_fits_temperature_and_threshold_for_each_file(task: Any, tmp_path: Path) -> None:
    steps = ["teacher.finetune.steps=60", "distill.0.steps=30", "verify.max_drop=0.2"]
    completed_run(tmp_path / "run", task.recipe, "data.holdout=200", "answer.unknown.accuracy=0.6", *steps)
    found = {r.path: r.confidence for r in read_artefacts(tmp_path / "run" / "phone").models()}
    assert len(found) == 2
    for confidence in found.values():
        assert confidence is not None
        fitted = (confidence.fitted_rows, confidence.unknown_rows, confidence.measured_on, confidence.rows)
        assert (*fitted, confidence.note) == (200, 200, "eval", 150, "")
        assert confidence.temperature != 1
        assert confidence.answered is not None
    assert "200 held-out rows" in (tmp_path / "run" / "report.html").read_text()
