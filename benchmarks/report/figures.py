"""The figures of each model of a run as numbers, for programs; the tables for people round them into words."""

from __future__ import annotations

from dataclasses import dataclass

from pocketbert.benchmarks.report.data import ModelRow, ReportData
from pocketbert.benchmarks.report.summary import headline_condition
from pocketbert.core.types import Status


@dataclass(frozen=True)
class ModelFigures:
    """What was measured of one model file; None where a figure was not measured.

    Attributes:
        name: As in the tables.
        file: Path of the file; of the teacher's that in the run folder.
        default: Whether `pocketbert.load` opens it.
        bytes: Size of the file.
        metric: Name of the metric of the scores.
        score: Score on the evaluation rows, in the metric's unit: a fraction for accuracy.
        holdout_score: Score on rows that no choice was made on.
        kept: Share of the teacher's score that is left, a fraction.
        p50_ms: Median latency in ms, in the condition that the tables show first.
        p90_ms: 90th percentile in ms.
        time_ratio: Time relative to the first model, below 1 for a faster one: the median of the rounds' ratios.
        time_ratio_low: Lower end of its 95 % interval.
        time_ratio_high: Upper end of that interval.
        passed: Whether every gate passed.
    """

    name: str
    file: str
    default: bool
    bytes: int
    metric: str
    score: float | None = None
    holdout_score: float | None = None
    kept: float | None = None
    p50_ms: float | None = None
    p90_ms: float | None = None
    time_ratio: float | None = None
    time_ratio_low: float | None = None
    time_ratio_high: float | None = None
    passed: bool | None = None


def model_figures(data: ReportData) -> list[ModelFigures]:
    """Collect the figures of every model, in the order of the report's headline table."""
    return [_of(row, data) for row in data.rows]


def _of(row: ModelRow, data: ReportData) -> ModelFigures:
    session = data.timed.headline if data.timed is not None else None
    wall = ratio = None
    if session is not None:
        threads, length = headline_condition(session)
        measured, compared = session.find(row.name, threads, length), session.compare(row.name, threads, length)
        wall, ratio = measured.wall if measured else None, compared.wall if compared else None
    return ModelFigures(
        name=row.name,
        file=row.path,
        default=row.is_default,
        bytes=row.bytes,
        metric=data.metric.name,
        score=row.eval_score.value if row.eval_score else None,
        holdout_score=row.holdout_score.value if row.holdout_score else None,
        kept=row.kept,
        p50_ms=wall.p50 if wall else None,
        p90_ms=wall.p90 if wall else None,
        time_ratio=ratio.median if ratio else None,
        time_ratio_low=ratio.low if ratio else None,
        time_ratio_high=ratio.high if ratio else None,
        passed=row.status is Status.PASSED if row.status is not None else None,
    )
