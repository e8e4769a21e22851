"""The temperature and the "unknown" threshold of each file, fitted on held-out rows, and what they are worth on others."""

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
from pocketbert.core.compare.golden import GOLDEN_FILE as GOLDEN_FILE
from pocketbert.core.compare.golden import TOKENS_FILE_NAME, GoldenRow, TokenRow, read_golden, read_golden_tokens
from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.heads import AnswerSettings
from pocketbert.core.predict.predictor import PROBABILITIES, Matrix, whole
from pocketbert.core.predict.scores import (
    Confidence,
    Fit,
    Threshold,
    answered,
    calibration_error,
    fit_temperature,
    fit_threshold,
    logits_of,
    probabilities,
    tempered,
)
from pocketbert.core.tasks import TASKS, Level, ScoreFunction, TaskName
from pocketbert.core.types import Client
from pocketbert.pipeline.results import Gate, Subject

# --- selftest ---
# ``selftest.json``: five golden rows as an app compares them, with a label and probabilities instead of raw outputs.


FILE_NAME = "selftest.json"
ROWS = 5
_DIGITS = 7
_STEEPEST = {ScoreFunction.SOFTMAX: 0.5, ScoreFunction.SIGMOID: 0.25}
"""How far a probability moves at most where every output moves by 1."""


class Expected(BaseModel):
    """What a file answers to a text.

    Attributes:
        values: Numbers, in the order of ``id2label`` or of ``columns``.
        tolerance: Largest difference of a number that a right engine may show.
    """

    values: list[float]
    tolerance: float


class AppRow(BaseModel):
    """One text.

    Attributes:
        text: The text, or the two texts of a pair.
        ids: Token ids with special tokens, without padding.
        label: The label that the files answer; None for tasks without one label per text.
        places: Rows of the output that are recorded (tokens); empty where the output has one row.
        columns: Columns that are recorded; empty for all.
        answers: What each file answers, by its path.
    """

    text: str | tuple[str, str]
    ids: list[int]
    label: str | None = None
    places: list[int] = []
    columns: list[int] = []
    answers: dict[str, Expected]


class AppSelfTest(BaseModel):
    """The content of ``selftest.json``.

    Attributes:
        schema_version: Major part equal means readable.
        task: Hub task name.
        values: What the numbers are: probabilities, or outputs of the file as they are, row by row.
        rows: The texts.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_version: str = "1.0"
    task: TaskName
    values: Literal["probabilities", "outputs"]
    rows: list[AppRow]


def write_selftest(folder: Path, artefacts: Artefacts) -> None:
    """Write ``selftest.json`` from the golden rows of a folder.

    Args:
        folder: The folder, with its golden rows.
        artefacts: Its list; answers of its model files are written.
    """
    golden, tokens = read_golden(folder / GOLDEN_FILE), read_golden_tokens(folder / TOKENS_FILE_NAME, 1)
    prompts = artefacts.processing.named_prompts
    by_text = {_key(t.input): t for t in tokens}
    read = zip(golden, prompts.put_before([row.input for row in golden]), strict=True)
    ids = {_key(row.input): by_text[_key(text)] for row, text in read if _key(text) in by_text}
    chosen = _chosen(artefacts, [row for row in golden if _key(row.input) in ids])
    likely = _are_probabilities(artefacts, chosen)
    made = AppSelfTest(
        task=artefacts.task,
        values="probabilities" if likely else "outputs",
        rows=[_row(artefacts, row, ids[_key(row.input)], likely) for row in chosen],
    )
    write_json(folder / FILE_NAME, made.model_dump(mode="json"))


def read_selftest(folder: Path) -> AppSelfTest:
    """Read ``selftest.json``.

    Raises:
        InputError: If the file is missing, too long, no JSON or no self-test.
    """
    path = folder / FILE_NAME
    try:
        return AppSelfTest.model_validate(read_json(path))
    except ValidationError as error:
        found = error.errors()[0]
        place = ".".join(map(str, found["loc"]))
        raise InputError(Problem(f"{path} {place}".rstrip(), f"{found['msg']}.", "Copy the folder again.")) from error


def _key(text: object) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else tuple(text) if isinstance(text, tuple) else ()


def _chosen(artefacts: Artefacts, rows: Sequence[GoldenRow]) -> list[GoldenRow]:
    """Short texts that every file answers, each with another label as far as possible, and clearly."""
    paths = [r.path for r in artefacts.models()]
    whole = [r for r in rows if not r.drawn and all(p in r.outputs for p in paths)] or list(rows)
    fitting = [r for r in whole if isinstance(r.text, str) != artefacts.pair] or whole
    ordered = sorted(fitting, key=lambda r: (not _is_clear(artefacts, r), not _is_ascii(r), len(str(r.text))))
    first = {r.label: r for r in reversed(ordered)}
    distinct = sorted(first.values(), key=ordered.index)
    return [*distinct, *(r for r in ordered if first[r.label] is not r)][:ROWS]


def _is_ascii(row: GoldenRow) -> bool:
    return all(part.isascii() for part in _key(row.text))


def _is_clear(artefacts: Artefacts, row: GoldenRow) -> bool:
    """Whether all files answer with the row's label, however an engine rounds; tasks without one label do not ask."""
    if artefacts.task is not TaskName.TEXT_CLASSIFICATION:
        return True
    names = row.names(artefacts.labels)
    for path, recorded in row.outputs.items():
        values = np.asarray(recorded)
        best = int(values.argmax())
        others = np.delete(values, best)
        if (
            best >= len(names)
            or names[best] != row.label
            or (others.size and values[best] - others.max() <= 2 * row.tolerance[path])
        ):
            return False
    return True


def _are_probabilities(artefacts: Artefacts, rows: Sequence[GoldenRow]) -> bool:
    """Whether whole outputs of texts are recorded, which a score function turns into probabilities."""
    task = TASKS[artefacts.task]
    whole = not any(r.columns or r.places for r in rows)
    return whole and task.level is not Level.TOKEN and artefacts.processing.score in _STEEPEST


def _row(artefacts: Artefacts, row: GoldenRow, tokens: TokenRow, likely: bool) -> AppRow:
    models = [r for r in artefacts.models() if r.path in row.outputs]
    return AppRow(
        text=row.text,
        ids=list(tokens.ids),
        label=row.label if artefacts.task is TaskName.TEXT_CLASSIFICATION else None,
        places=list(row.places),
        columns=list(row.columns),
        answers={r.path: _expected(artefacts, r, row, likely) for r in models},
    )


def _expected(artefacts: Artefacts, record: ModelRecord, row: GoldenRow, likely: bool) -> Expected:
    values, tolerance = np.asarray(row.outputs[record.path], np.float64), row.tolerance[record.path]
    if likely:
        inside, score = (
            record.client is Client.MEDIAPIPE,
            artefacts.processing.score,
        )  # MediaPipe's files have it inside
        if inside:
            tolerance = raised_tolerance(values, tolerance, record.temperature)
        values = tempered(values, record.temperature, inside)
        if not inside:
            values, tolerance = probabilities(values, score), tolerance * _STEEPEST[score] / record.temperature
    return Expected(values=[round(float(v), _DIGITS) for v in values.ravel()], tolerance=tolerance + 10.0**-_DIGITS)


def raised_tolerance(values: NDArray[np.float64], tolerance: float, temperature: float) -> float:
    """How far probabilities may be apart at a temperature where those of the file may be `tolerance` apart.

    Of p^(1/T) / S, where S is the sum over K labels, the numerator moves by at most e: tolerance^(1/T) where T is above 1, and
    tolerance / T below. The fraction then moves by at most e (K + 1) / S.

    Args:
        values: Probabilities of a file, [K].
        tolerance: Largest difference of one of them.
        temperature: T.
    """
    if temperature == 1:
        return tolerance
    moved = tolerance ** (1 / temperature) if temperature > 1 else tolerance / temperature
    return float(min(1.0, moved * (values.size + 1) / (values ** (1 / temperature)).sum()))


HELD_OUT = "holdout"
"""The set that is fitted on: rows that trained nothing and do not decide the score."""
NO_ROWS = "no training rows are held out (data.holdout)"
_ROUNDED = 1e-6
"""Probabilities of ``selftest.json`` have seven digits."""
Logits = NDArray[np.float64]
Gold = NDArray[np.int64]


@dataclass(frozen=True)
class Settled:
    """What of a file's confidence a recipe or a folder's list decides; the rest is fitted.

    Attributes:
        temperature: Its temperature; None to fit one.
        unknown: Its "unknown" threshold; None for none.
        accuracy: The accuracy to fit a threshold for instead; None to fit none.
    """

    temperature: float | None = None
    unknown: float | None = None
    accuracy: float | None = None


def settled_by(answer: AnswerSettings) -> Settled:
    """What a recipe decides for all files."""
    return Settled(answer.temperature, answer.unknown_below, answer.unknown_accuracy)


NOTHING = Settled()
"""A temperature is fitted, a threshold is not."""


def confidence_of(
    subject: Subject, outputs: Sequence[tuple[EvalSet, Sequence[Matrix]]], settled: Settled = NOTHING
) -> Confidence | None:
    """Fit what is not settled of one file's confidence on the held-out rows, and measure it on the others.

    Args:
        subject: The file.
        outputs: Its outputs on each set, one row at a time.
        settled: What the recipe or the folder's list decides.

    Returns:
        None for other tasks than text-classification, and where there are neither rows nor a temperature other than 1 nor a
        threshold.
    """
    if subject.task.name is not TaskName.TEXT_CLASSIFICATION:
        return None
    inside = PROBABILITIES in subject.predictor.outputs if outputs else False
    rows = {s.name: (logits_of(whole(kept), inside), np.asarray(s.rows.truth, np.int64)) for s, kept in outputs}
    held = rows.get(HELD_OUT)
    fit = _temperature(held, settled.temperature)
    fitted = len(held[1]) if settled.temperature is None and held is not None and not fit.why_not else 0
    found = Confidence(temperature=fit.temperature, fitted_rows=fitted, note=fit.why_not)
    if settled.accuracy is not None:
        found = _with_threshold(found, held, settled.accuracy)
    elif settled.unknown is not None:
        found = found.model_copy(update={"unknown": settled.unknown})
    name = next((n for n in rows if n != HELD_OUT), next(iter(rows), None))
    if name is None:
        nothing = settled.temperature in (None, 1) and settled.unknown is None and settled.accuracy is None
        return None if nothing else found.model_copy(update={"note": ""})
    return _measured(found, name, *rows[name])


def _temperature(held: tuple[Logits, Gold] | None, known: float | None) -> Fit:
    if known is not None:
        return Fit(known)
    return Fit(why_not=NO_ROWS) if held is None else fit_temperature(*held)


def _with_threshold(found: Confidence, held: tuple[Logits, Gold] | None, accuracy: float) -> Confidence:
    """The confidence with a threshold for an accuracy, or with the reason why there is none."""
    fit = Threshold(why_not=NO_ROWS) if held is None else fit_threshold(*_sure(*held, found.temperature), accuracy)
    rows = len(held[1]) if held is not None and fit.value is not None else 0
    return found.model_copy(update={"unknown": fit.value, "unknown_rows": rows, "unknown_note": fit.why_not})


def _sure(logits: Logits, gold: Gold, temperature: float) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The largest probability of each row, and whether its label is right."""
    scores = probabilities(logits / temperature, ScoreFunction.SOFTMAX)
    return scores.max(-1).astype(np.float64), scores.argmax(-1) == gold


def _measured(found: Confidence, name: str, logits: Logits, gold: Gold) -> Confidence:
    """The confidence with what it is worth on a set."""
    before, after = _error(logits, gold), _error(logits / found.temperature, gold)
    figures: dict[str, object] = {"measured_on": name, "rows": len(gold), "error_before": before, "error": after}
    if found.unknown is not None and after is not None:
        told = answered(*_sure(logits, gold, found.temperature), found.unknown)
        figures |= {"answered": told.share, "answered_accuracy": told.accuracy}
    return found.model_copy(update=figures)


def _error(logits: Logits, gold: Gold) -> float | None:
    """Calibration error of a softmax; None where a number is not finite."""
    if not np.isfinite(logits).all():
        return None
    return calibration_error(probabilities(logits, ScoreFunction.SOFTMAX), gold)


def unknown_gates(file: str, confidence: Confidence | None, settled: Settled) -> list[Gate]:
    """Whether a file has the threshold that was asked for.

    Args:
        file: Its path.
        confidence: What was fitted for it.
        settled: Whether one was asked for.

    Returns:
        One gate; none where no threshold was to be fitted.
    """
    wanted = settled.accuracy
    if confidence is None or wanted is None:
        return []
    least, rows = confidence.unknown, confidence.unknown_rows
    if least is not None:
        detail = (
            f"answers below {least:g} are unknown; {rows:,} held-out rows show that {wanted:g} of the others are right."
        )
        return [Gate(name="unknown", file=file, passed=True, value=least, bound=wanted, detail=detail)]
    fix = "Ask for less (answer.unknown.accuracy), or give more held-out rows (data.holdout, or --data of quantize --budget)."
    return [Gate(name="unknown", file=file, passed=False, bound=wanted, detail=f"{confidence.unknown_note}. {fix}")]


def temperature_gates(folder: Path, artefacts: Artefacts) -> list[Gate]:
    """Compare the probabilities of ``selftest.json`` with the recorded outputs at the temperatures that the list names.

    An app checks its answers with these probabilities: with the temperature of another file they would be wrong, although
    every output is right.

    Args:
        folder: An artefact folder.
        artefacts: Its list.

    Returns:
        A gate for each file with a temperature; none where the folder has no ``selftest.json``.
    """
    if artefacts.task is not TaskName.TEXT_CLASSIFICATION or not (folder / FILE_NAME).is_file():
        return []
    test, golden = read_selftest(folder), read_golden(folder / GOLDEN_FILE)
    if test.values != "probabilities":
        return []
    recorded = {(r.text, path): values for r in golden for path, values in r.outputs.items()}
    out = []
    for record in artefacts.models():
        pairs = [
            (row.answers[record.path].values, recorded[row.text, record.path])
            for row in test.rows
            if record.path in row.answers and (row.text, record.path) in recorded
        ]
        if pairs and (record.temperature != 1 or _differs(pairs, record)):
            out.append(_gate(record, _worst(pairs, record)))
    return out


def _differs(pairs: Sequence[tuple[list[float], list[float]]], record: ModelRecord) -> bool:
    return not _worst(pairs, record) <= _ROUNDED


def _worst(pairs: Sequence[tuple[list[float], list[float]]], record: ModelRecord) -> float:
    """Largest difference between probabilities as they are told and as they follow from outputs."""
    inside = record.client is Client.MEDIAPIPE
    worst = 0.0
    for told, outputs in pairs:
        scaled = tempered(np.asarray(outputs), record.temperature, inside)
        expected = scaled if inside else probabilities(scaled, ScoreFunction.SOFTMAX)
        worst = max(worst, worst_difference(np.asarray(told), expected))
        if not np.isfinite(worst):
            return float("inf")
    return worst


def _gate(record: ModelRecord, worst: float) -> Gate:
    right = worst <= _ROUNDED
    detail = (
        f"temperature {record.temperature:g} gives the probabilities of {FILE_NAME}."
        if right
        else f"temperature {record.temperature:g} gives other probabilities than {FILE_NAME} has: they differ by "
        f"{worst:.3g}, allowed {_ROUNDED:.0e}. It belongs to another file, or was changed. Copy the folder again."
    )
    return Gate(name="temperature", file=record.path, passed=right, value=worst, bound=_ROUNDED, detail=detail)
