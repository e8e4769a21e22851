"""Plots of score, latency and size: one for each device that tells a time, or counts work, of files with a score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.measurement import BenchmarkResult, Measurement
from pocketbert.benchmarks.records import Compilation
from pocketbert.benchmarks.report import plots
from pocketbert.benchmarks.report.figures import (
    ModelRow,
    ReportData,
    condition_words,
    headline_condition,
    measurement_stamp,
    score_stamp,
)
from pocketbert.benchmarks.report.plots import Bubble, Figure, plotted
from pocketbert.core.artefacts.search import BudgetSearch, Candidate, RoleRow, Sensitivities, Sensitivity, in_one_line
from pocketbert.core.formats import FORMATS
from pocketbert.core.metrics import METRICS, Direction, Unit
from pocketbert.core.types import Provenance

_MILLION = 1e6


@dataclass(frozen=True)
class Costs:
    """What one device tells of the files.

    Attributes:
        device: The device.
        provenance: How the costs came about.
        what: What an inference costs, with its unit, for the axis.
        condition: Threads and length in words.
        stamp: Where the costs come from.
        points: One for each file with a score.
        partial: Names of files of which only a part is in the cost: they are on no front.
        note: What else a reader must know of the costs.
    """

    device: str
    provenance: Provenance
    what: str
    condition: str
    stamp: str
    points: Sequence[Bubble]
    partial: frozenset[str] = frozenset()
    note: str = ""


def front_figures(data: ReportData, numbers: Mapping[str, int]) -> list[Figure]:
    """A plot for each device; devices on which no file with a score has a cost are left out.

    Args:
        data: What the report shows.
        numbers: Number of the look of each file.
    """
    if data.benchmark is None:
        return []
    rows = _Rows(data, numbers)
    sessions = data.timed.sessions if data.timed is not None else []
    first = data.timed.headline if data.timed is not None else None
    found = [_of_session(session, rows) for session in sorted(sessions, key=lambda s: s is not first)]
    compiled: dict[str, list[Compilation]] = {}
    for one in data.benchmark.compilations:
        if one.estimate is not None and not one.failed:
            compiled.setdefault(one.device, []).append(one)
    found += [_of_estimates(made, rows) for made in compiled.values()]
    shown = [costs for costs in found if costs.points]
    return [_figure(costs, number, data) for number, costs in enumerate(shown)]


def unbeaten(rows: Sequence[tuple[float, ...]]) -> list[bool]:
    """Whether no other row is at most as large in every figure and smaller in one of them.

    Args:
        rows: Figures of each file, all the better the smaller.
    """
    return [
        not any(other != row and all(a <= b for a, b in zip(other, row, strict=True)) for other in rows) for row in rows
    ]


class _Rows:
    """The files with a score, found by the names or the digests of what was measured.

    Args:
        data: What the report shows.
        numbers: Number of the look of each file.
    """

    def __init__(self, data: ReportData, numbers: Mapping[str, int]) -> None:
        self._metric, self._numbers = data.metric, numbers
        scored = [row for row in data.rows if row.eval_score is not None and row.eval_score.finite]
        self._by_name = {row.name: row for row in scored}
        # a Mac's variants are one file on several compute units, each with a name
        self._by_digest = {row.sha256: row for row in scored if row.sha256}

    def point(self, name: str, sha256: str, cost: float, interval: tuple[float, float] | None = None) -> Bubble | None:
        """A file in the plot; None where it has no score."""
        row = self._by_name.get(name) or self._by_digest.get(sha256)
        if row is None or row.eval_score is None:
            return None
        low, high = interval or (cost, cost)
        return Bubble(name, cost, low, high, self._printed(row), row.bytes, self._numbers[name])

    def _printed(self, row: ModelRow) -> float:
        """A score on the scale it is printed on."""
        assert row.eval_score is not None
        return row.eval_score.value * 100 if self._metric.unit is Unit.FRACTION else row.eval_score.value


def _of_session(session: BenchmarkResult, rows: _Rows) -> Costs:
    threads, length = headline_condition(session)
    points, shown = list[Bubble](), list[Measurement]()
    for variant in session.variants:
        m = session.find(variant.name, threads, length)
        point = _point(m, rows) if m is not None else None
        if m is not None and point is not None:
            points.append(point)
            shown.append(m)
    timed, provenance = session.timed, session.measurements[0].provenance
    condition = condition_words(session)
    return Costs(
        device=session.device,
        provenance=provenance,
        what=f"{'p50 latency in ms' if timed else f'million guest instructions, {provenance}'}, log scale",
        condition=condition,
        stamp=measurement_stamp(*shown) if shown else "",
        points=points,
        note="" if timed else "Instructions are work, not time. ",
    )


def _point(m: Measurement, rows: _Rows) -> Bubble | None:
    if m.wall is not None:
        spread = m.wall_interval
        return rows.point(m.variant, m.sha256, m.wall.p50, (spread.low, spread.high) if spread else None)
    if m.guest_instructions is not None:
        return rows.point(m.variant, m.sha256, m.guest_instructions.p50 / _MILLION)
    return None


def _of_estimates(made: Sequence[Compilation], rows: _Rows) -> Costs:
    """The estimates of one device at the first length that was compiled for it."""
    length = made[0].length
    points, partial = list[Bubble](), set[str]()
    for one in made:
        if one.length == length and one.estimate is not None:
            point = rows.point(one.variant, one.sha256, one.estimate.time_ms)
            points += [point] if point is not None else []
            partial |= {one.variant} if point is not None and one.estimate.products_left else set()
    first = made[0]
    return Costs(
        device=first.device,
        provenance=Provenance.ESTIMATED,
        what="estimated ms on the NPU, log scale",
        condition=f"{wording.length(length)}, batch 1",
        stamp=f"{Provenance.ESTIMATED} · {first.engine} {first.engine_version} · {first.device}: {first.target}",
        points=points,
        partial=frozenset(partial),
        note="Times are what the vendor's compiler expects of the operators on the NPU: nothing was run. "
        + (f"On no front, since matrix products stay on the CPU: {', '.join(sorted(partial))}. " if partial else ""),
    )


def _figure(costs: Costs, number: int, data: ReportData) -> Figure:
    metric = data.metric
    points = _with_front(costs, 1 if metric.direction is Direction.LOWER else -1)
    measured = costs.provenance is Provenance.MEASURED
    against = (
        "latency" if measured else "estimated time" if costs.provenance is Provenance.ESTIMATED else "instructions"
    )
    on = costs.device if measured else f"{costs.device} ({costs.provenance})"
    svg = plots.bubbles(
        points,
        f"{costs.what}\n({costs.condition})",
        f"{metric.name}, {wording.scale(metric)}",
        f"{metric.name} against {against} and size, {on}, {number + 1}",
    )
    bars = ", a bar the 95 % interval of the latency" if any(p.low < p.high for p in points) else ""
    caption = f"Score against {against} on {on}. The area of a point is the file size{bars}. {costs.note}{_front_words(points, against)}"
    return plotted(
        svg,
        caption.strip(),
        f"{costs.stamp}; scores: {score_stamp(data)}{_emulated(data, points)}",
        [(f"{p.name}, {wording.size(p.bytes)}", p.number) for p in points],
    )


def _with_front(costs: Costs, sign: int) -> list[Bubble]:
    """The points, with those that are on the front and those that another one beats.

    Args:
        costs: What the device tells.
        sign: 1 where a lower score is better, -1 where a higher one is.
    """
    whole = [p for p in costs.points if p.name not in costs.partial]
    in_two = dict(zip((p.name for p in whole), unbeaten([(p.cost, sign * p.score) for p in whole]), strict=True))
    in_all = dict(
        zip((p.name for p in whole), unbeaten([(p.cost, sign * p.score, p.bytes) for p in whole]), strict=True)
    )
    return [replace(p, line=in_two.get(p.name, False), beaten=not in_all.get(p.name, False)) for p in costs.points]


def _front_words(points: Sequence[Bubble], cost: str) -> str:
    """What the line and the pale points mean, where there are some."""
    out = []
    if sum(p.line for p in points) > 1:
        out.append(f"The dashed line joins the files that no other one beats in score and {cost}.")
    if any(p.beaten for p in points):
        out.append(f"Of pale ones another file is at least as good in score, {cost} and size.")
    return " ".join(out)


def _emulated(data: ReportData, points: Sequence[Bubble]) -> str:
    """The files that have emulated scores, and rows that differ between files."""
    shown = {p.name for p in points}
    rows = [row for row in data.rows if row.name in shown and row.eval_score is not None]
    names = [row.name for row in rows if row.provenance is Provenance.EMULATED]
    counts = sorted({row.eval_score.rows for row in rows if row.eval_score is not None})
    told = f", {counts[0]:,}{f' to {counts[-1]:,}' if len(counts) > 1 else ''} rows" if counts else ""
    return told + (f"; of {', '.join(names)}: emulated by the project's evaluator" if names else "")


# --- budget ---
# The report's part on a search inside a budget: a plot for each format, and the table of everything considered.


_WORDS = {"max_drop": "loss at most {}", "max_size_mb": "size at most {:g} MB", "max_p90_ms": "p90 at most {:g} ms"}


@dataclass(frozen=True)
class SearchRow:
    """One candidate as the table prints it.

    Attributes:
        name: Its path.
        student: The student that it is made of; empty where there is one only.
        size: Its size.
        error: How far it is from the exported file.
        same: Share of rows with the same label.
        lost: Loss of the score.
        p90: Latency.
        verdict: Whether it is inside.
        note: Why it was not measured or not taken.
        chosen: Whether it was chosen.
    """

    name: str
    student: str
    size: str
    error: str
    same: str
    lost: str
    p90: str
    verdict: str
    note: str
    chosen: bool


def search_rows(search: BudgetSearch) -> list[SearchRow]:
    """The table of all candidates, in the order in which they were considered."""
    return [_row(c, search.metric) for c in search.candidates]


def _row(candidate: Candidate, metric: str) -> SearchRow:
    none = wording.NONE
    return SearchRow(
        name=candidate.name,
        student=candidate.student or "",
        size=none if candidate.bytes is None else wording.size(candidate.bytes),
        error=none if candidate.rel is None else f"{candidate.rel:.4f}",
        same=none if candidate.agreement is None else f"{candidate.agreement:.1%}",
        lost=none if candidate.drop is None else METRICS[metric].lost(candidate.drop),
        p90=none if candidate.p90_ms is None else wording.milliseconds(candidate.p90_ms),
        verdict={True: "inside", False: "outside", None: "not scored"}[candidate.inside],
        note=candidate.note,
        chosen=candidate.chosen,
    )


def limits_in_words(search: BudgetSearch) -> str:
    """The budget as a reader of the page sees it."""
    unit = "points" if METRICS[search.metric].unit is Unit.FRACTION else "per cent"
    shown = {name: f"{100 * v:g} {unit}" if name == "max_drop" else v for name, v in search.budget.items()}
    return ", ".join(_WORDS[name].format(value) for name, value in shown.items() if name in _WORDS)


def search_plots(search: BudgetSearch) -> list[tuple[str, str]]:
    """A drawing and its caption for each format with candidates that were scored."""
    metric, out = METRICS[search.metric], []
    points = metric.unit is Unit.FRACTION
    loss = search.budget.get("max_drop")
    limits = (search.budget.get("max_size_mb"), None if loss is None else 100 * loss)
    scale = f"{metric.name} lost, {'points' if points else 'per cent'}"
    for format in dict.fromkeys(c.format for c in search.candidates):
        title = FORMATS[format].title
        found = [c for c in search.candidates if c.format is format]
        shown = [_budget_point(c) for c in found if c.drop is not None and math.isfinite(c.drop)]
        if shown:
            caption = (
                f"{title}: what the files of the front lose on the {search.chosen_on:,} rows that chose, and their size. "
                "Candidates that are not drawn were too large, failed a gate, or are larger than one of these and further from "
                "the exported file."
            )
            if len({c.student for c in found}) > 1:
                caption += " Names that would cover others are left out; the table has all."
            out.append((plots.front(shown, limits, scale, f"{title} files inside and outside the budget"), caption))
    return out


def _budget_point(c: Candidate) -> plots.Considered:
    assert c.drop is not None and c.bytes is not None
    name = f"{c.scheme}, {len(c.left)} role{'s' if len(c.left) > 1 else ''} float" if c.left else c.scheme
    return plots.Considered(name, c.bytes / 1e6, 100 * c.drop, c.front, bool(c.inside), c.chosen, c.student or "")


def student_rows(search: BudgetSearch) -> list[tuple[str, str, str, str]]:
    """Name, weights, loss before any scheme, and what became of each student, where several were considered."""
    metric, none = METRICS[search.metric], wording.NONE
    return [
        (
            s.name,
            none if s.parameters is None else f"{s.parameters / 1e6:.2f} M",
            none if s.lost is None else metric.lost(s.lost),
            "chosen" if s.chosen else s.note,
        )
        for s in search.students
    ]


# --- sensitivity ---
# The report's part on sensitivity: a bar for each role, the prediction and the whole.


@dataclass(frozen=True)
class Bar:
    """One bar.

    Attributes:
        name: The role, or which file with all roles it is.
        share: Length, relative to the longest one of the format and scheme.
        error: RMS difference.
        part: Share of the sum of squares.
        saved: What the file is smaller.
        note: Why there is no figure.
        whole: Whether it is of all roles.
    """

    name: str
    share: float
    error: str
    part: str
    saved: str
    note: str = ""
    whole: bool = False


@dataclass(frozen=True)
class Bars:
    """The bars of one format and scheme.

    Attributes:
        title: Format and scheme.
        bars: The roles, then the prediction and the whole.
        note: Why there are none.
    """

    title: str
    bars: Sequence[Bar]
    note: str


def sensitivity_bars(found: Sensitivities | None) -> list[Bars]:
    """What is drawn of each format and scheme."""
    schemes = found.schemes if found is not None else []
    return [Bars(f"{FORMATS[one.format].title} {one.scheme}", _bars(one), one.note) for one in schemes]


def _bars(one: Sensitivity) -> list[Bar]:
    if one.note:
        return []
    values = [*(r.rel for r in one.roles), one.predicted, one.whole]
    most = max((v for v in values if v is not None), default=0.0) or 1.0

    def bar(name: str, value: float | None, part: float | None, saved: int | None, note: str, whole: bool) -> Bar:
        return Bar(
            name=name,
            share=(value or 0.0) / most,
            error=wording.NONE if value is None else f"{value:.4f}",
            part=wording.NONE if part is None else wording.share(part),
            saved=wording.NONE if saved is None else wording.size(saved),
            note=note,
            whole=whole,
        )

    return [
        *(bar(r.role, r.rel, one.share(r), r.saved, r.note, whole=False) for r in one.roles),
        bar("all, predicted", one.predicted, None, None, "", whole=True),
        bar("all, measured", one.whole, None, one.saved, "", whole=True),
    ]


# --- roles ---
# The report's part on roles: what each smaller file makes of the weights.


@dataclass(frozen=True)
class FileRoles:
    """The table of one file.

    Attributes:
        name: The file.
        line: The table in one line.
        rows: The table.
        chosen: Whether the recipe chose some of it; the other tables are folded.
    """

    name: str
    line: str
    rows: Sequence[RoleRow]
    chosen: bool


def file_roles(rows: Sequence[ModelRow]) -> list[FileRoles]:
    """The tables of the files that have one, those with choices first."""
    tables = [
        FileRoles(row.name, in_one_line(row.roles), row.roles, any(r.chosen for r in row.roles))
        for row in rows
        if row.roles
    ]
    return sorted(tables, key=lambda t: not t.chosen)
