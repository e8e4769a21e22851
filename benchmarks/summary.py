"""The figures of a run in one small table, for the terminal and the head of the report alike."""

from __future__ import annotations

from dataclasses import dataclass

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.measurement import TEXT, BenchmarkResult, Length
from pocketbert.benchmarks.report_data import ModelRow, ReportData
from pocketbert.core.metrics import METRICS
from pocketbert.core.predict.score import Score


@dataclass(frozen=True)
class SummaryRow:
    """One model file, in words; a dash stands where there is no figure.

    Attributes:
        name: The model.
        size: Of the file, e.g. ``12.4 MB``.
        smaller: How many times smaller than the reference (the teacher).
        score: Deciding metric on the eval rows, in points or with its unit.
        holdout: The same on rows that no choice was made on.
        kept: Share of the teacher's score that is left.
        p50: Median latency in ms.
        p90: 90th percentile in ms.
        speed: Against the benchmark's baseline, with interval.
        status: ``passed``, ``failed``.
        is_default: Whether `pocketbert.load` opens it.
    """

    name: str
    size: str
    smaller: str
    score: str
    holdout: str
    kept: str
    p50: str
    p90: str
    speed: str
    status: str
    is_default: bool


def headline_condition(result: BenchmarkResult) -> tuple[int, Length]:
    """Threads and length of the latencies that are shown first: one thread and real text, where measured.

    One thread, since a phone's other cores are somebody else's; real text, since that is what users type.
    """
    threads = min(result.protocol.threads)
    lengths = result.protocol.lengths
    return threads, TEXT if TEXT in lengths else lengths[0]


def condition_words(result: BenchmarkResult) -> str:
    """The headline condition in words, e.g. ``1 thread, real text, batch 1``."""
    threads, length = headline_condition(result)
    return f"{wording.threads(threads)}, {wording.length(length)}, batch 1"


def summary_rows(data: ReportData) -> list[SummaryRow]:
    """One row per model file, in the order of `data.rows`."""
    return [_row(row, data) for row in data.rows]


def summary_table(data: ReportData) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the final table of a run, as plain text.

    Args:
        data: What the report is made from.

    Returns:
        Column titles, and one list of cells per model file. Columns without any figure are left out.
    """
    metric = data.metric.name
    latency = condition_words(data.benchmark) if data.benchmark else ""
    rows = summary_rows(data)
    columns = [
        ("model", [r.name + (" *" if r.is_default else "") for r in rows]),
        ("size", [r.size for r in rows]),
        (metric, [r.score for r in rows]),
        (f"{metric} holdout", [r.holdout for r in rows]),
        ("kept", [r.kept for r in rows]),
        (f"p50 ms ({latency})", [r.p50 for r in rows]),
        (f"vs {data.benchmark.protocol.baseline}" if data.benchmark else "", [r.speed for r in rows]),
        ("gates", [r.status for r in rows]),
    ]
    shown = [(title, cells) for title, cells in columns if any(c != wording.NONE for c in cells)]
    return [title for title, _ in shown], [list(cells) for cells in zip(*(c for _, c in shown), strict=True)]


def _row(row: ModelRow, data: ReportData) -> SummaryRow:
    measured = compared = None
    if data.benchmark is not None:
        threads, length = headline_condition(data.benchmark)
        measured = data.benchmark.find(row.name, threads, length)
        compared = data.benchmark.compare(row.name, threads, length)
    reference = data.reference
    ratio = reference.bytes / row.bytes if reference is not None and reference is not row and row.bytes else None
    return SummaryRow(
        name=row.name,
        size=wording.size(row.bytes),
        smaller=_times(ratio),
        score=_printed(row.eval_score),
        holdout=_printed(row.holdout_score),
        kept=wording.share(row.kept),
        p50=wording.milliseconds(measured.wall.p50) if measured else wording.NONE,
        p90=wording.milliseconds(measured.wall.p90) if measured else wording.NONE,
        speed=wording.speed(compared.wall) if compared else wording.NONE,
        status=str(row.status) if row.status else wording.NONE,
        is_default=row.is_default,
    )


def _printed(score: Score | None) -> str:
    return wording.NONE if score is None else METRICS[score.metric].format(score.value)


def _times(ratio: float | None) -> str:
    if ratio is None:
        return wording.NONE
    if ratio >= 1:
        return f"{wording.factor(ratio)} smaller"
    return f"{wording.factor(1 / ratio)} larger"
