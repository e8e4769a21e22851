"""The temperature and the "unknown" threshold of each file, fitted on held-out rows, and what they are worth on others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.artefacts import Artefacts, ModelRecord
from pocketbert.core.compare.evaluate import EvalSet, worst_difference
from pocketbert.core.compare.golden import FILE_NAME as GOLDEN_FILE
from pocketbert.core.compare.golden import read_golden
from pocketbert.core.heads import AnswerSettings
from pocketbert.core.predict.confidence import (
    Confidence,
    Fit,
    calibration_error,
    fit_temperature,
    logits_of,
    tempered,
)
from pocketbert.core.predict.predictor import PROBABILITIES
from pocketbert.core.predict.readout import Matrix, whole
from pocketbert.core.predict.score import probabilities
from pocketbert.core.predict.threshold import Threshold, answered, fit_threshold
from pocketbert.core.tasks import ScoreFunction, TaskName
from pocketbert.core.types import Client
from pocketbert.pipeline.formats.gate import Gate, Subject
from pocketbert.pipeline.gates.selftest import FILE_NAME as SELFTEST_FILE
from pocketbert.pipeline.gates.selftest import read_selftest

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
    if artefacts.task is not TaskName.TEXT_CLASSIFICATION or not (folder / SELFTEST_FILE).is_file():
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
        f"temperature {record.temperature:g} gives the probabilities of {SELFTEST_FILE}."
        if right
        else f"temperature {record.temperature:g} gives other probabilities than {SELFTEST_FILE} has: they differ by "
        f"{worst:.3g}, allowed {_ROUNDED:.0e}. It belongs to another file, or was changed. Copy the folder again."
    )
    return Gate(name="temperature", file=record.path, passed=right, value=worst, bound=_ROUNDED, detail=detail)
