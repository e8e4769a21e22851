"""The figures of a run in one small table, for the terminal and the head of the report alike."""

from __future__ import annotations

from dataclasses import dataclass

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.measurement import BenchmarkResult
from pocketbert.benchmarks.records import TEXT, Length
from pocketbert.benchmarks.report.against import same_file_ratio
from pocketbert.benchmarks.report.data import ModelRow, ReportData
from pocketbert.core.metrics import METRICS
from pocketbert.core.predict.score import Score
from pocketbert.core.types import Provenance


@dataclass(frozen=True)
class DeviceFigures:
    """What one device says of one model file, in words; a dash where it says nothing.

    Attributes:
        p50: Median latency in ms.
        p90: 90th percentile in ms.
        speed: Against the session's baseline, with interval.
        same: Against the same file of the first folder, where several folders were measured.
        instructions: Instructions that an emulated processor executes per inference.
    """

    p50: str = wording.NONE
    p90: str = wording.NONE
    speed: str = wording.NONE
    same: str = wording.NONE
    instructions: str = wording.NONE


@dataclass(frozen=True)
class SummaryRow:
    """One model file, in words; a dash where there is no figure.

    Attributes:
        name: The model.
        size: Of the file, e.g. ``12.4 MB``.
        smaller: How many times smaller than the reference (the teacher).
        score: Deciding metric on the eval rows, in points or with its unit.
        holdout: The same on rows that no choice was made on.
        kept: Share of the teacher's score that is left.
        headline: Figures of the device that is shown first.
        devices: Figures of every device of `shown_sessions`, in that order.
        status: ``passed``, ``failed``.
        is_default: Whether `pocketbert.load` opens it.
    """

    name: str
    size: str
    smaller: str
    score: str
    holdout: str
    kept: str
    headline: DeviceFigures
    devices: tuple[DeviceFigures, ...]
    status: str
    is_default: bool


def headline_condition(result: BenchmarkResult) -> tuple[int, Length]:
    """Threads and length of the latencies that are shown first: one thread and real text, where measured.

    One thread, since a phone's other cores are used by other apps; real text, since that is what users type.
    """
    threads = min(result.protocol.threads)
    lengths = result.protocol.lengths
    return threads, TEXT if TEXT in lengths else lengths[0]


def condition_words(result: BenchmarkResult) -> str:
    """The headline condition in words, e.g. ``1 thread, real text, batch 1``."""
    threads, length = headline_condition(result)
    return f"{wording.threads(threads)}, {wording.length(length)}, batch 1"


def shown_sessions(data: ReportData) -> list[BenchmarkResult]:
    """The sessions that measured model files of the headline table, the one shown first in front.

    A Mac's variants are one file on several compute units; they have a section of their own instead.
    """
    if data.timed is None:
        return []
    names = {row.name for row in data.rows}
    first = data.timed.headline
    sessions = [first, *(s for s in data.timed.sessions if s is not first)]
    return [s for s in sessions if names & {v.name for v in s.variants}]


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
    rows = summary_rows(data)
    columns = [
        ("model", [r.name + (" *" if r.is_default else "") for r in rows]),
        ("size", [r.size for r in rows]),
        (metric, [r.score for r in rows]),
        (f"{metric} holdout", [r.holdout for r in rows]),
        ("kept", [r.kept for r in rows]),
    ]
    sessions = shown_sessions(data)
    for number, session in enumerate(sessions):
        device = f"{session.device}: " if len(sessions) > 1 or not session.timed else ""
        provenance = session.measurements[0].provenance
        told = "" if provenance is Provenance.MEASURED else f", {provenance}"
        figures = [r.devices[number] for r in rows]
        columns += [
            (f"{device}p50 ms{told} ({condition_words(session)})", [f.p50 for f in figures]),
            (f"{device}vs {session.protocol.baseline}", [f.speed for f in figures]),
            (f"{device}guest instructions{told} ({condition_words(session)})", [f.instructions for f in figures]),
        ]
    columns.append(("gates", [r.status for r in rows]))
    shown = [(title, cells) for title, cells in columns if any(c != wording.NONE for c in cells)]
    return [title for title, _ in shown], [list(cells) for cells in zip(*(c for _, c in shown), strict=True)]


def _figures(name: str, session: BenchmarkResult) -> DeviceFigures:
    threads, length = headline_condition(session)
    measured = session.find(name, threads, length)
    compared = session.compare(name, threads, length)
    if measured is None:
        return DeviceFigures()
    work, same = measured.guest_instructions, same_file_ratio(session, measured)
    return DeviceFigures(
        p50=wording.milliseconds(measured.wall.p50) if measured.wall else wording.NONE,
        p90=wording.milliseconds(measured.wall.p90) if measured.wall else wording.NONE,
        speed=wording.speed(compared.wall) if compared else wording.NONE,
        same=wording.speed(same) if same else wording.NONE,
        instructions=wording.count(round(work.p50)) if work else wording.NONE,
    )


def _row(row: ModelRow, data: ReportData) -> SummaryRow:
    reference = data.reference
    ratio = reference.bytes / row.bytes if reference is not None and reference is not row and row.bytes else None
    return SummaryRow(
        name=row.name,
        size=wording.size(row.bytes),
        smaller=_times(ratio),
        score=_printed(row.eval_score),
        holdout=_printed(row.holdout_score),
        kept=wording.share(row.kept),
        headline=_figures(row.name, data.timed.headline) if data.timed else DeviceFigures(),
        devices=tuple(_figures(row.name, session) for session in shown_sessions(data)),
        status=str(row.status) if row.status else wording.NONE,
        is_default=row.is_default,
    )


def _printed(score: Score | None) -> str:
    return wording.NONE if score is None else METRICS[score.metric].format(score.value)


def _times(ratio: float | None) -> str:
    if ratio is None or wording.factor(max(ratio, 1 / ratio)) == wording.factor(1):
        return wording.NONE  # "1.00 times smaller" says nothing
    if ratio >= 1:
        return f"{wording.factor(ratio)} smaller"
    return f"{wording.factor(1 / ratio)} larger"
