"""Confidence of a classifier's files: temperature, "unknown" threshold, and the self-test of an app.

- `fit_confidence` fits the temperature (Guo et al. 2017) and the threshold of a file on held-out rows and measures
  both on other rows; `check_unknown_threshold` is the gate of a threshold that was asked for,
- `write_selftest` writes ``selftest.json``: five golden rows as an app compares them, with a label and probabilities
  instead of raw outputs. `check_temperatures` compares these probabilities with the recorded outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from pocketbert.core.artefacts import Artefacts, ModelRecord
from pocketbert.core.compare.evaluate import EvalSet, worst_difference
from pocketbert.core.compare.golden import GOLDEN_FILE, GOLDEN_TOKENS_FILE, GoldenRow, read_golden, read_golden_tokens
from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.heads import AnswerSettings
from pocketbert.core.predict.predictor import PROBABILITIES, Matrix, join_texts
from pocketbert.core.predict.scores import (
    Confidence,
    TemperatureFit,
    ThresholdFit,
    apply_score_function,
    apply_temperature,
    calibration_error,
    fit_temperature,
    fit_threshold,
    measure_coverage,
    to_logits,
)
from pocketbert.core.tasks import Level, ScoreFunction, TaskName
from pocketbert.core.types import Client
from pocketbert.pipeline.results import Gate, Subject

SELFTEST_FILE = "selftest.json"
HELD_OUT = "holdout"
"""The set that is fitted on: rows that trained nothing and do not decide the score."""
_NO_ROWS = "no training rows are held out (data.holdout)"
_Logits = NDArray[np.float64]
_Gold = NDArray[np.int64]


# --- fitting ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KnownConfidence:
    """Temperature and "unknown" threshold of a file, as far as a recipe or artifacts.json sets them.

    Attributes:
        temperature: Temperature of the file; None to fit one.
        unknown: Probability below which an answer counts as unknown; None if none is set.
        accuracy: Accuracy of the answers above the threshold, for which a threshold is fitted; None to fit none.
    """

    temperature: float | None = None
    unknown: float | None = None
    accuracy: float | None = None


FIT_TEMPERATURE = KnownConfidence()
"""A temperature is fitted, a threshold is not."""


def confidence_of_recipe(answer: AnswerSettings) -> KnownConfidence:
    """Return the temperature, threshold and accuracy that a recipe's `answer` section sets for all files."""
    return KnownConfidence(answer.temperature, answer.unknown_below, answer.unknown_accuracy)


def fit_confidence(
    subject: Subject, outputs: Sequence[tuple[EvalSet, Sequence[Matrix]]], known: KnownConfidence = FIT_TEMPERATURE
) -> Confidence | None:
    """Fit a classifier file's softmax temperature and "unknown" threshold, and measure its calibration.

    Temperature and threshold are fitted on held-out rows. The calibration error is measured on other rows if there are
    any, else on the held-out ones.

    Args:
        subject: The file, opened for verification.
        outputs: For each set of rows, the set and the file's outputs, one matrix per row.
        known: Temperature or threshold that the recipe or artifacts.json sets already. These are not fitted.

    Returns:
        Temperature, threshold and calibration error of the file. None if the task is not text-classification, or if
        there is nothing to fit or to measure: no rows, no threshold, and no temperature other than 1.
    """
    if subject.task.name is not TaskName.TEXT_CLASSIFICATION:
        return None
    inside = PROBABILITIES in subject.predictor.outputs if outputs else False
    rows = {s.name: (to_logits(join_texts(kept), inside), np.asarray(s.rows.truth, np.int64)) for s, kept in outputs}
    held_out = rows.get(HELD_OUT)
    if known.temperature is not None:
        fit = TemperatureFit(known.temperature)
    else:
        fit = TemperatureFit(why_not=_NO_ROWS) if held_out is None else fit_temperature(*held_out)
    is_fitted = known.temperature is None and held_out is not None and not fit.why_not
    fitted_rows = len(held_out[1]) if held_out is not None and is_fitted else 0
    confidence = Confidence(temperature=fit.temperature, fitted_rows=fitted_rows, note=fit.why_not)
    if known.accuracy is not None:
        confidence = _with_fitted_threshold(confidence, held_out, known.accuracy)
    elif known.unknown is not None:
        confidence = confidence.model_copy(update={"unknown": known.unknown})
    name = next((n for n in rows if n != HELD_OUT), next(iter(rows), None))
    if name is None:
        is_trivial = known.temperature in (None, 1) and known.unknown is None and known.accuracy is None
        return None if is_trivial else confidence.model_copy(update={"note": ""})
    return _with_measurements(confidence, name, *rows[name])


def _with_fitted_threshold(
    confidence: Confidence, held_out: tuple[_Logits, _Gold] | None, accuracy: float
) -> Confidence:
    """Fit the "unknown" threshold for an accuracy on held-out rows, and return a copy of `confidence` with it.

    If none can be fitted, the copy has the reason.

    Args:
        confidence: The fitted temperature and what is known of the file.
        held_out: Logits [N, labels] and gold labels [N] of the held-out rows; None if there are none.
        accuracy: Accuracy that the answers above the threshold must have.
    """
    if held_out is None:
        fit = ThresholdFit(why_not=_NO_ROWS)
    else:
        fit = fit_threshold(*_top_probabilities(*held_out, confidence.temperature), accuracy)
    rows = len(held_out[1]) if held_out is not None and fit.value is not None else 0
    return confidence.model_copy(update={"unknown": fit.value, "unknown_rows": rows, "unknown_note": fit.why_not})


def _with_measurements(confidence: Confidence, name: str, logits: _Logits, gold: _Gold) -> Confidence:
    """Measure the calibration error, and share and accuracy of answers above the threshold, on one set of rows.

    Args:
        confidence: The fitted temperature and threshold, which are used.
        name: Name of the rows.
        logits: Logits of the rows, [N, labels].
        gold: Gold labels of the rows, [N].

    Returns:
        A copy of `confidence` with the measured numbers.
    """

    def error(divided: _Logits) -> float | None:
        if not np.isfinite(divided).all():
            return None
        return calibration_error(apply_score_function(divided, ScoreFunction.SOFTMAX), gold)

    before, after = error(logits), error(logits / confidence.temperature)
    figures: dict[str, object] = {"measured_on": name, "rows": len(gold), "error_before": before, "error": after}
    if confidence.unknown is not None and after is not None:
        answers = measure_coverage(*_top_probabilities(logits, gold, confidence.temperature), confidence.unknown)
        figures |= {"answered": answers.share, "answered_accuracy": answers.accuracy}
    return confidence.model_copy(update=figures)


def _top_probabilities(
    logits: _Logits, gold: _Gold, temperature: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the largest probability of each row [N], and whether the predicted label is the gold label [N]."""
    scores = apply_score_function(logits / temperature, ScoreFunction.SOFTMAX)
    return scores.max(-1).astype(np.float64), scores.argmax(-1) == gold


def check_unknown_threshold(file: str, confidence: Confidence | None, known: KnownConfidence) -> list[Gate]:
    """Check that an "unknown" threshold could be fitted for the accuracy that the recipe asks for.

    Args:
        file: Path of the file.
        confidence: Fitted temperature and threshold of the file.
        known: What the recipe sets, with the accuracy that it asks for.

    Returns:
        A list with one gate; empty if no threshold was to be fitted.
    """
    accuracy = known.accuracy
    if confidence is None or accuracy is None:
        return []
    least, rows = confidence.unknown, confidence.unknown_rows
    if least is not None:
        detail = f"answers below {least:g} are unknown; {rows:,} held-out rows show that {accuracy:g} of the others are right."
        return [Gate(name="unknown", file=file, passed=True, value=least, bound=accuracy, detail=detail)]
    fix = "Ask for less (answer.unknown.accuracy), or give more held-out rows (data.holdout, or --data of quantize --budget)."
    return [Gate(name="unknown", file=file, passed=False, bound=accuracy, detail=f"{confidence.unknown_note}. {fix}")]


# --- selftest.json ----------------------------------------------------------------------------------------------------

_ROWS = 5
_DIGITS = 7
_ROUNDED = 1e-6
"""Probabilities of ``selftest.json`` have seven digits."""
_STEEPEST = {ScoreFunction.SOFTMAX: 0.5, ScoreFunction.SIGMOID: 0.25}
"""How far a probability moves at most if every output moves by 1."""


class Expected(BaseModel):
    """The expected output of a file for one text, with a tolerance.

    Attributes:
        values: The expected numbers, in the order of ``id2label`` or of ``columns``.
        tolerance: Largest difference from a number that an engine may have if it computes the file correctly.
    """

    values: list[float]
    tolerance: float


class AppRow(BaseModel):
    """One text of the self-test, with its token ids, its label and the expected output of each file.

    Attributes:
        text: The text, or the two texts of a pair.
        ids: Token ids with special tokens, without padding.
        label: Label that the torch model predicts, and that the files should; None for tasks without one label per text.
        places: Rows of the output (tokens) that are recorded; empty if the output has one row.
        columns: Columns that are recorded; empty for all.
        answers: Expected output of each file, by its path.
    """

    text: str | tuple[str, str]
    ids: list[int]
    label: str | None = None
    places: list[int] = []
    columns: list[int] = []
    answers: dict[str, Expected]


class AppSelfTest(BaseModel):
    """The content of ``selftest.json``: texts with expected outputs, with which an app checks its inference.

    Attributes:
        schema_version: Version of the file's form. Files with the same major version can be read.
        task: Hub task name.
        values: Kind of the numbers: probabilities, or outputs of the file as they are, row by row.
        rows: The texts.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_version: str = "1.0"
    task: TaskName
    values: Literal["probabilities", "outputs"]
    rows: list[AppRow]


def write_selftest(folder: Path, artefacts: Artefacts) -> None:
    """Choose some golden rows and write them to ``selftest.json``, with which an app checks its own inference.

    Args:
        folder: The folder, with its golden rows.
        artefacts: Content of the folder's ``artifacts.json``. The expected outputs of its model files are written.
    """
    golden, tokens = read_golden(folder / GOLDEN_FILE), read_golden_tokens(folder / GOLDEN_TOKENS_FILE, 1)
    by_text = {_text_key(t.input): t for t in tokens}
    as_read = artefacts.processing.named_prompts.put_before([row.input for row in golden])
    tokens_of = {
        _text_key(row.input): by_text[_text_key(text)]
        for row, text in zip(golden, as_read, strict=True)
        if _text_key(text) in by_text
    }
    chosen = _choose_rows(artefacts, [row for row in golden if _text_key(row.input) in tokens_of])
    # a score function turns whole outputs of texts into probabilities
    is_whole = not any(r.columns or r.places for r in chosen)
    of_texts = artefacts.task_row.level is not Level.TOKEN
    as_probabilities = is_whole and of_texts and artefacts.processing.score in _STEEPEST
    rows = [
        AppRow(
            text=row.text,
            ids=list(tokens_of[_text_key(row.input)].ids),
            label=row.label if artefacts.task is TaskName.TEXT_CLASSIFICATION else None,
            places=list(row.places),
            columns=list(row.columns),
            answers={
                r.path: _expected_answer(artefacts, r, row, as_probabilities)
                for r in artefacts.models()
                if r.path in row.outputs
            },
        )
        for row in chosen
    ]
    values: Literal["probabilities", "outputs"] = "probabilities" if as_probabilities else "outputs"
    write_json(
        folder / SELFTEST_FILE, AppSelfTest(task=artefacts.task, values=values, rows=rows).model_dump(mode="json")
    )


def _text_key(text: object) -> tuple[str, ...]:
    """Return a text as a tuple of one and a pair as a tuple of two, to look them up; empty for other inputs."""
    return (text,) if isinstance(text, str) else tuple(text) if isinstance(text, tuple) else ()


def _choose_rows(artefacts: Artefacts, rows: Sequence[GoldenRow]) -> list[GoldenRow]:
    """Choose up to `_ROWS` golden rows for the self-test, of as many labels as possible.

    If there are any, only real texts that every file answered are taken, and only pairs (or single texts) if the model is
    for these. Of them rows with a clear answer in every file are preferred, then ASCII texts, then short ones.
    """
    paths = [r.path for r in artefacts.models()]
    answered_by_all = [r for r in rows if not r.drawn and all(p in r.outputs for p in paths)] or list(rows)
    fitting = [r for r in answered_by_all if isinstance(r.text, str) != artefacts.pair] or answered_by_all

    def order(row: GoldenRow) -> tuple[bool, bool, int]:
        is_ascii = all(part.isascii() for part in _text_key(row.text))
        return not _is_clear(artefacts, row), not is_ascii, len(str(row.text))

    ordered = sorted(fitting, key=order)
    first_of_label = {r.label: r for r in reversed(ordered)}
    distinct = sorted(first_of_label.values(), key=ordered.index)
    return [*distinct, *(r for r in ordered if first_of_label[r.label] is not r)][:_ROWS]


def _is_clear(artefacts: Artefacts, row: GoldenRow) -> bool:
    """Return whether the recorded label leads in the outputs of every file by more than twice the tolerance.

    It is true for tasks other than text-classification.
    """
    if artefacts.task is not TaskName.TEXT_CLASSIFICATION:
        return True
    names = row.names(artefacts.labels)
    for path, recorded in row.outputs.items():
        values = np.asarray(recorded)
        best = int(values.argmax())
        others = np.delete(values, best)
        if best >= len(names) or names[best] != row.label:
            return False
        if others.size and values[best] - others.max() <= 2 * row.tolerance[path]:
            return False
    return True


def _expected_answer(artefacts: Artefacts, record: ModelRecord, row: GoldenRow, as_probabilities: bool) -> Expected:
    """Return what an app must compute for a row: a file's recorded outputs or probabilities, with the allowed difference."""
    values, tolerance = np.asarray(row.outputs[record.path], np.float64), row.tolerance[record.path]
    if as_probabilities:
        score = artefacts.processing.score
        inside = record.client is Client.MEDIAPIPE  # MediaPipe's files have the score function inside
        if inside:
            tolerance = _tolerance_at_temperature(values, tolerance, record.temperature)
        values = apply_temperature(values, record.temperature, inside)
        if not inside:
            values, tolerance = apply_score_function(values, score), tolerance * _STEEPEST[score] / record.temperature
    return Expected(values=[round(float(v), _DIGITS) for v in values.ravel()], tolerance=tolerance + 10.0**-_DIGITS)


def _tolerance_at_temperature(values: NDArray[np.float64], tolerance: float, temperature: float) -> float:
    """Return the tolerance of probabilities after temperature scaling, given that of a file's probabilities.

    The scaled probability is p^(1/T) / S, where S is the sum of p^(1/T) over K labels. Its numerator moves by at most
    e: tolerance^(1/T) for T above 1, and tolerance / T below. The fraction then moves by at most e (K + 1) / S.

    Args:
        values: Probabilities of a file, [K].
        tolerance: Largest difference of one of them.
        temperature: The temperature T.
    """
    if temperature == 1:
        return tolerance
    moved = tolerance ** (1 / temperature) if temperature > 1 else tolerance / temperature
    return float(min(1.0, moved * (values.size + 1) / (values ** (1 / temperature)).sum()))


def _read_selftest(folder: Path) -> AppSelfTest:
    """Read ``selftest.json`` of an artefact folder.

    Raises:
        InputError: If the file is missing, too long, no JSON or no self-test.
    """
    path = folder / SELFTEST_FILE
    try:
        return AppSelfTest.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(Problem(f"{path} {place}".rstrip(), f"{first['msg']}.", "Copy the folder again.")) from error


def check_temperatures(folder: Path, artefacts: Artefacts) -> list[Gate]:
    """Compare the probabilities in ``selftest.json`` with those that each file's outputs and listed temperature give.

    An app checks its answers with these probabilities. With the temperature of another file they would be wrong,
    although every output is right.

    Args:
        folder: An artefact folder.
        artefacts: Content of the folder's ``artifacts.json``.

    Returns:
        A gate for each file in it that has a temperature other than 1, or wrong probabilities. Empty for other tasks than
        text-classification, and if the folder has no ``selftest.json`` or one without probabilities.
    """
    if artefacts.task is not TaskName.TEXT_CLASSIFICATION or not (folder / SELFTEST_FILE).is_file():
        return []
    test, golden = _read_selftest(folder), read_golden(folder / GOLDEN_FILE)
    if test.values != "probabilities":
        return []
    recorded = {(r.text, path): values for r in golden for path, values in r.outputs.items()}
    gates = []
    for record in artefacts.models():
        pairs = [
            (row.answers[record.path].values, recorded[row.text, record.path])
            for row in test.rows
            if record.path in row.answers and (row.text, record.path) in recorded
        ]
        if not pairs:
            continue
        worst = _worst_probability_difference(pairs, record)
        is_right = worst <= _ROUNDED
        if record.temperature == 1 and is_right:
            continue
        detail = (
            f"temperature {record.temperature:g} gives the probabilities of {SELFTEST_FILE}."
            if is_right
            else f"temperature {record.temperature:g} gives other probabilities than {SELFTEST_FILE} has: they differ by "
            f"{worst:.3g}, allowed {_ROUNDED:.0e}. It belongs to another file, or was changed. Copy the folder again."
        )
        gates.append(
            Gate(name="temperature", file=record.path, passed=is_right, value=worst, bound=_ROUNDED, detail=detail)
        )
    return gates


def _worst_probability_difference(pairs: Sequence[tuple[list[float], list[float]]], record: ModelRecord) -> float:
    """Return the largest difference between the self-test's probabilities and those of recorded outputs.

    Args:
        pairs: For each row the probabilities in ``selftest.json`` and the recorded outputs.
        record: The file, with its temperature.

    Returns:
        The difference; infinite if a number is not finite.
    """
    inside = record.client is Client.MEDIAPIPE
    worst = 0.0
    for written, outputs in pairs:
        scaled = apply_temperature(np.asarray(outputs), record.temperature, inside)
        expected = scaled if inside else apply_score_function(scaled, ScoreFunction.SOFTMAX)
        worst = max(worst, worst_difference(np.asarray(written), expected))
        if not np.isfinite(worst):
            return float("inf")
    return worst
