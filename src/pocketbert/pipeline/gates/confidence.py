"""The temperature of each file, fitted on held-out rows, and the calibration error of its probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.artefacts import Artefacts, ModelRecord
from pocketbert.core.compare.evaluate import EvalSet, worst_difference
from pocketbert.core.compare.golden import FILE_NAME as GOLDEN_FILE
from pocketbert.core.compare.golden import read_golden
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
from pocketbert.core.tasks import ScoreFunction, TaskName
from pocketbert.core.types import Client
from pocketbert.pipeline.formats.gate import Gate, Subject
from pocketbert.pipeline.gates.selftest import FILE_NAME as SELFTEST_FILE
from pocketbert.pipeline.gates.selftest import read_selftest

HELD_OUT = "holdout"
"""The set that temperatures are fitted on: training rows that trained nothing and do not decide the score."""
_ROUNDED = 1e-6
"""Probabilities of ``selftest.json`` have seven digits."""


def confidence_of(
    subject: Subject, outputs: Sequence[tuple[EvalSet, Sequence[Matrix]]], known: float | None
) -> Confidence | None:
    """Fit the temperature of one file, where it is not known, and measure the calibration error with and without it.

    Args:
        subject: The file.
        outputs: Its outputs on each set, one row at a time.
        known: Its temperature: from the recipe, or from the folder's list; None to fit one on the held-out rows.

    Returns:
        None for other tasks than text-classification, and where there are neither rows nor a temperature other than 1.
    """
    if subject.task.name is not TaskName.TEXT_CLASSIFICATION:
        return None
    inside = PROBABILITIES in subject.predictor.outputs if outputs else False
    rows = {s.name: (logits_of(whole(kept), inside), np.asarray(s.rows.truth, np.int64)) for s, kept in outputs}
    held = rows.get(HELD_OUT)
    if known is not None:
        fit = Fit(known)
    elif held is None:
        fit = Fit(why_not="no training rows are held out (data.holdout)")
    else:
        fit = fit_temperature(*held)
    fitted = len(held[1]) if known is None and held is not None and not fit.why_not else 0
    name = next((n for n in rows if n != HELD_OUT), next(iter(rows), None))
    if name is None:
        return None if known in (None, 1) else Confidence(temperature=known)
    before, after = _error(*rows[name]), _error(rows[name][0] / fit.temperature, rows[name][1])
    return Confidence(
        temperature=fit.temperature,
        fitted_rows=fitted,
        note=fit.why_not,
        measured_on=name,
        rows=len(rows[name][1]),
        error_before=before,
        error=after,
    )


def _error(logits: NDArray[np.float64], gold: NDArray[np.int64]) -> float | None:
    """Calibration error of a softmax; None where a number is not finite."""
    if not np.isfinite(logits).all():
        return None
    return calibration_error(probabilities(logits, ScoreFunction.SOFTMAX), gold)


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
