"""Parts of the report's page that are more than figures of one table.

`make_front_figures` plots score against cost and size for each device that measures time, or counts work, of files with a
score; without a device it plots score against size. `draw_tried_students` plots the students among which a run chose one.
Of a search inside a budget, `describe_limits`, `make_student_table`, `draw_searches` and `make_search_table` show the limits, the
students, a plot for each format, and everything that was considered. `make_sensitivity_tables` and `make_role_tables` show what
compressing each role costs, and what each smaller file stores. `compare_with_plan` sets a plan beside the finished files.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.measurement import BenchmarkResult
from pocketbert.benchmarks.records import TEXT, Compilation
from pocketbert.benchmarks.report import plots
from pocketbert.benchmarks.report.figures import (
    ModelRow,
    ReportData,
    describe_condition,
    headline_condition,
)
from pocketbert.benchmarks.report.plots import Figure, FilePoint, make_figure
from pocketbert.benchmarks.report.sources import (
    Citation,
    Sources,
    cite_compilations,
    cite_scores,
    cite_session,
)
from pocketbert.core.artefacts.search import BudgetSearch, Sensitivities, Sensitivity, TriedStudents, summarize_roles
from pocketbert.core.formats import FORMATS
from pocketbert.core.metrics import METRICS, Direction, Unit
from pocketbert.core.recipe.planned import PlannedFile
from pocketbert.core.types import Provenance

# --- score, cost and size --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _DeviceCosts:
    """The cost of each file on one device: latency, estimated time, instructions, or its size.

    Attributes:
        device: The device; empty for sizes.
        cost: The cost in words.
        provenance: How the costs came about.
        axis: Label of the cost axis, with unit.
        condition: Threads and length as text, e.g. ``1 thread, real text, batch 1``.
        sources: Where the costs come from.
        points: One for each file with a score.
        partial: Names of files whose cost covers only some operators: they are left out of the Pareto front.
        note: A remark on the costs for the caption; empty for none.
    """

    device: str
    cost: str
    provenance: Provenance
    axis: str
    condition: str
    sources: Sequence[Citation]
    points: Sequence[FilePoint]
    partial: frozenset[str] = frozenset()
    note: str = ""


def make_front_figures(
    data: ReportData,
    numbers: Mapping[str, int],
    sources: Sources,
    chosen: Collection[str] = (),
    all_devices: bool = True,
) -> list[Figure]:
    """Plot the files' scores over the cost of an inference, one plot for each device with costs of scored files.

    Without such a device the only plot has the files' scores over their sizes, if there are several with a score.

    Args:
        data: The content of the report.
        numbers: For each file the number from which its colour and shape derive.
        sources: The page's list of machines.
        chosen: Names of the files to take, which are written in bold.
        all_devices: Whether there is a plot for more than the first device.
    """
    files = _ScoredFiles(data, numbers, chosen)
    costs = _collect_costs(data, files, sources)
    shown = [device_costs for device_costs in costs if device_costs.points]
    if not shown and len(files.names) > 1:
        shown = [_size_costs(data, files)]
    shown = shown if all_devices else shown[:1]
    return [_draw_front(device_costs, number, data, sources) for number, device_costs in enumerate(shown)]


def _collect_costs(data: ReportData, files: _ScoredFiles, sources: Sources) -> list[_DeviceCosts]:
    """Return the costs of the scored files on each device of a benchmark, the device that tables show first first."""
    if data.benchmark is None:
        return []
    sessions = data.timed.sessions if data.timed is not None else []
    first = data.timed.headline if data.timed is not None else None
    costs = [_session_costs(session, files, sources) for session in sorted(sessions, key=lambda s: s is not first)]
    estimated: dict[str, list[Compilation]] = {}
    for compilation in data.benchmark.compilations:
        if compilation.estimate is not None and not compilation.failed:
            estimated.setdefault(compilation.device, []).append(compilation)
    return [*costs, *(_estimated_costs(compilations, files, sources) for compilations in estimated.values())]


class _ScoredFiles:
    """The report's files that have a score, found by name or by digest.

    Args:
        data: The content of the report.
        numbers: Number of the look of each file.
        chosen: Names of the files to take.
    """

    def __init__(self, data: ReportData, numbers: Mapping[str, int], chosen: Collection[str]) -> None:
        scored = [row for row in data.rows if row.eval_score is not None and row.eval_score.finite]
        self._scale = 100 if data.metric.unit is Unit.FRACTION else 1
        self._numbers = numbers
        self._chosen = chosen
        self._by_name = {row.name: row for row in scored}
        # a Mac's variants are one file on several compute units, each with a name
        self._by_digest = {row.sha256: row for row in scored if row.sha256}

    @property
    def names(self) -> list[str]:
        """Names of the files with a score."""
        return list(self._by_name)

    def point(
        self, name: str, sha256: str, cost: float, interval: tuple[float, float] | None = None
    ) -> FilePoint | None:
        """Return a file's point in the plot of score over cost; None if the file has no score."""
        row = self._by_name.get(name) or self._by_digest.get(sha256)
        if row is None or row.eval_score is None:
            return None
        low, high = interval or (cost, cost)
        score = row.eval_score.value * self._scale
        return FilePoint(name, cost, low, high, score, row.bytes, self._numbers[name], chosen=row.name in self._chosen)


def _size_costs(data: ReportData, files: _ScoredFiles) -> _DeviceCosts:
    """Return the sizes of the scored files as costs for the plot of a report without latencies."""
    sizes = {row.name: row.bytes for row in data.rows}
    points = [files.point(name, "", sizes[name] / 1e6) for name in files.names]
    return _DeviceCosts(
        device="",
        cost="size",
        provenance=Provenance.MEASURED,
        axis="file size in MB, log scale",
        condition="",
        sources=(),
        points=[p for p in points if p is not None],
        note="Latency was not measured. ",
    )


def _session_costs(session: BenchmarkResult, files: _ScoredFiles, sources: Sources) -> _DeviceCosts:
    """Return the files' median latencies on one device (or instruction counts in an emulator) as costs for the plot."""
    threads, length = headline_condition(session)
    points = list[FilePoint]()
    for variant in session.variants:
        point, m = None, session.find(variant.name, threads, length)
        if m is not None and m.wall is not None:
            interval = (m.wall_interval.low, m.wall_interval.high) if m.wall_interval else None
            point = files.point(m.variant, m.sha256, m.wall.p50, interval)
        elif m is not None and m.guest_instructions is not None:
            point = files.point(m.variant, m.sha256, m.guest_instructions.p50 / 1e6)
        if point is not None:
            points.append(point)
    provenance = session.measurements[0].provenance
    unit = "p50 latency in ms" if session.timed else f"million guest instructions, {provenance}"
    return _DeviceCosts(
        device=session.device,
        cost="latency" if session.timed else "instructions",
        provenance=provenance,
        axis=f"{unit}, log scale",
        condition=describe_condition(session),
        sources=[cite_session(sources, session)] if points else [],
        points=points,
        note="" if session.timed else "Instructions are work, not time. ",
    )


def _estimated_costs(compilations: Sequence[Compilation], files: _ScoredFiles, sources: Sources) -> _DeviceCosts:
    """Return the files' estimated times on one NPU as costs for the plot, at the first length that was compiled."""
    first = compilations[0]
    points, partial = list[FilePoint](), set[str]()
    for compilation in compilations:
        if compilation.length != first.length or compilation.estimate is None:
            continue
        point = files.point(compilation.variant, compilation.sha256, compilation.estimate.time_ms)
        if point is not None:
            points.append(point)
            partial |= {compilation.variant} if compilation.estimate.products_left else set()
    note = "Times are what the vendor's compiler expects of the operators on the NPU: nothing was run. "
    if partial:
        note += f"On no front, since matrix products stay on the CPU: {', '.join(sorted(partial))}. "
    marks = cite_compilations(sources, compilations)
    return _DeviceCosts(
        device=first.device,
        cost="estimated time",
        provenance=Provenance.ESTIMATED,
        axis="estimated ms on the NPU, log scale",
        condition=f"{wording.length(first.length)}, batch 1",
        sources=[mark for mark in marks if mark.provenance == Provenance.ESTIMATED],
        points=points,
        partial=frozenset(partial),
        note=note,
    )


def _draw_front(costs: _DeviceCosts, number: int, data: ReportData, sources: Sources) -> Figure:
    """Draw the plot of score over cost of one device; `number` makes its title unique."""
    metric, cost = data.metric, costs.cost
    points = _mark_front(costs, 1 if metric.direction is Direction.LOWER else -1)
    measured = costs.provenance is Provenance.MEASURED
    device = costs.device if measured else f"{costs.device} ({costs.provenance})"
    on = f" on {device}" if device else ""
    svg = plots.draw_score_over_cost(
        points,
        f"{costs.axis}\n({costs.condition})" if costs.condition else costs.axis,
        f"{metric.name}, {wording.scale(metric)}",
        f"{metric.name} against {cost}{' and size' * (cost != 'size')}, {device or 'all files'}, {number + 1}",
    )
    bars = ", a bar the 95 % interval of the latency" if any(p.low < p.high for p in points) else ""
    marks = []
    if any(p.chosen for p in points):
        marks.append("The files to take are in bold.")
    if sum(p.line for p in points) > 1:
        marks.append(f"The dashed line joins the files that no other one beats in score and {cost}.")
    if any(p.beaten for p in points):
        in_all = "score and size" if cost == "size" else f"score, {cost} and size"
        marks.append(f"Of pale ones another file is at least as good in {in_all}.")
    caption = f"Score against {cost}{on}. The area of a point is the file size{bars}. {costs.note}{' '.join(marks)}"
    marks_of = [cite_scores(sources, data), *costs.sources]
    legend = [(f"{p.name}, {wording.size(p.bytes)}", p.number) for p in points]
    return make_figure(svg, caption.strip(), list(dict.fromkeys(marks_of)), legend)


def _mark_front(costs: _DeviceCosts, sign: int) -> list[FilePoint]:
    """Set `line` on the Pareto front of score and cost, and `beaten` on points that are not on the front of score, cost and size.

    Points whose cost is partial are on no front.

    Args:
        costs: The costs on one device.
        sign: 1 where a lower score is better, -1 where a higher one is.
    """
    whole = [p for p in costs.points if p.name not in costs.partial]
    names = [p.name for p in whole]
    in_two = dict(zip(names, _mark_unbeaten([(p.cost, sign * p.score) for p in whole]), strict=True))
    in_three = dict(zip(names, _mark_unbeaten([(p.cost, sign * p.score, p.bytes) for p in whole]), strict=True))
    return [replace(p, line=in_two.get(p.name, False), beaten=not in_three.get(p.name, False)) for p in costs.points]


def _mark_unbeaten(rows: Sequence[tuple[float, ...]]) -> list[bool]:
    """Return for each row whether it is Pareto-optimal: no other row is smaller in one figure and larger in none."""
    return [
        not any(other != row and all(a <= b for a, b in zip(other, row, strict=True)) for other in rows) for row in rows
    ]


# --- students --------------------------------------------------------------------------------------------------------------------


def draw_tried_students(tried: TriedStudents, source: Citation) -> list[Figure]:
    """Plot score over latency of the students among which a run chose one, with a line at the score that had to be kept.

    Students without score, size or latency are left out; there is no plot without any.
    """
    metric, scale = METRICS[tried.metric], 100 if METRICS[tried.metric].unit is Unit.FRACTION else 1
    points, legend = list[FilePoint](), list[tuple[str, int]]()
    for number, s in enumerate(tried.students):
        if s.p50_ms is None or s.bytes is None or s.score is None or s.low is None or s.high is None:
            continue
        spread = (s.low * tried.teacher * scale, s.high * tried.teacher * scale)
        score = s.score * scale
        points.append(
            FilePoint(
                s.name, s.p50_ms, s.p50_ms, s.p50_ms, score, s.bytes, number, beaten=s.trained != "fully", spread=spread
            )
        )
        outcome = ", chosen" if s.chosen else ", trained briefly" if s.trained == "briefly" else ""
        legend.append((f"{s.name}, {wording.size(s.bytes)}{outcome}", number))
    if not points:
        return []
    svg = plots.draw_score_over_cost(
        points,
        f"p50 latency in ms, log scale\n({tried.file}, 1 thread, real text, batch 1)",
        f"{metric.name}, {wording.scale(metric)}",
        "Score against latency and size of the students that were tried",
        least=tried.keep * tried.teacher * scale,
    )
    caption = (
        f"Score on {tried.rows:,} validation rows, which are in no other score, against latency. The area of a point is the size of the "
        f"student's file, a bar the {tried.confidence:.0%} interval of the score; pale ones were trained briefly, and size and latency of "
        "those are estimated from the others where they were not measured. Dashed: "
        f"{100 * tried.keep:g} % of the teacher's {metric.format(tried.teacher)}."
    )
    return [make_figure(svg, caption, [source], legend)]


# --- search inside a budget ------------------------------------------------------------------------------------------------------

_LIMITS = {"max_drop": "loss at most {}", "max_size_mb": "size at most {:g} MB", "max_p90_ms": "p90 at most {:g} ms"}


def describe_limits(search: BudgetSearch) -> str:
    """Return the limits of a budget search as text: size, loss of score and so on, comma-separated."""
    unit = "points" if METRICS[search.metric].unit is Unit.FRACTION else "per cent"
    values = {name: f"{100 * v:g} {unit}" if name == "max_drop" else v for name, v in search.budget.items()}
    return ", ".join(_LIMITS[name].format(value) for name, value in values.items() if name in _LIMITS)


def make_student_table(search: BudgetSearch) -> list[tuple[str, str, str, str]]:
    """Return (name, weights, score lost before quantization, outcome) for each student that a budget search considered."""
    return [
        (
            student.name,
            wording.NONE if student.parameters is None else f"{student.parameters / 1e6:.2f} M",
            wording.NONE if student.lost is None else METRICS[search.metric].lost(student.lost),
            "chosen" if student.chosen else student.note,
        )
        for student in search.students
    ]


def draw_searches(search: BudgetSearch, source: Citation) -> list[Figure]:
    """Plot score lost over file size of a budget search, one plot per file format with scored candidates.

    Args:
        search: What the search considered.
        source: Where its figures come from.
    """
    metric, figures = METRICS[search.metric], []
    max_drop = search.budget.get("max_drop")
    limits = (search.budget.get("max_size_mb"), None if max_drop is None else 100 * max_drop)
    scale = f"{metric.name} lost, {'points' if metric.unit is Unit.FRACTION else 'per cent'}"
    for format in dict.fromkeys(c.format for c in search.candidates):
        title = FORMATS[format].title
        candidates = [c for c in search.candidates if c.format is format]
        points = []
        for c in candidates:
            if c.drop is None or not math.isfinite(c.drop):
                continue
            assert c.bytes is not None
            name = f"{c.scheme}, {len(c.left)} role{'s' if len(c.left) > 1 else ''} float" if c.left else c.scheme
            place = (c.bytes / 1e6, 100 * c.drop)
            points.append(
                plots.CandidatePoint(
                    name, *place, c.front, bool(c.inside), c.chosen, f"student {c.student}" if c.student else ""
                )
            )
        if points:
            caption = (
                f"{title}: what the files of the front lose on the {search.chosen_on:,} rows that chose, and their size. "
                "Candidates that are not drawn were too large, failed a gate, or are larger than one of these and further from "
                "the exported file."
            )
            if len({c.student for c in candidates}) > 1:
                caption += " Names that would cover others are left out; the table has all."
            svg = plots.draw_search(points, limits, scale, f"{title} files inside and outside the budget")
            figures.append(make_figure(svg, caption, [source]))
    return figures


def make_search_table(search: BudgetSearch) -> list[dict[str, Any]]:
    """Return the table cells of every candidate file of a budget search, in the order in which they were considered.

    Returns:
        For each candidate ``name``, ``student`` (empty if there is only one), ``size``, ``error`` (RMS difference from the
        exported file), ``same`` (share of rows with the same label), ``lost``, ``p90``, ``verdict``, ``note`` and ``chosen``.
    """
    none = wording.NONE
    return [
        {
            "name": c.name,
            "student": c.student or "",
            "size": none if c.bytes is None else wording.size(c.bytes),
            "error": none if c.rel is None else f"{c.rel:.4f}",
            "same": none if c.agreement is None else f"{c.agreement:.1%}",
            "lost": none if c.drop is None else METRICS[search.metric].lost(c.drop),
            "p90": none if c.p90_ms is None else wording.milliseconds(c.p90_ms),
            "verdict": {True: "inside", False: "outside", None: "not scored"}[c.inside],
            "note": c.note,
            "chosen": c.chosen,
        }
        for c in search.candidates
    ]


# --- roles -----------------------------------------------------------------------------------------------------------------------


def make_sensitivity_tables(sensitivities: Sensitivities | None) -> list[tuple[str, list[dict[str, Any]], str]]:
    """Return (title, rows, reason for no rows) per format and scheme: how much each role's weights matter.

    A role is the place of a weight in a layer, such as query or ffn_down.
    """
    schemes = sensitivities.schemes if sensitivities is not None else []
    return [(f"{FORMATS[one.format].title} {one.scheme}", _sensitivity_rows(one), one.note) for one in schemes]


def _sensitivity_rows(sensitivity: Sensitivity) -> list[dict[str, Any]]:
    """Return the table rows on how much error each role (place of weights, such as query) adds when quantized.

    The last two rows are the predicted sum and all roles together. A row has ``name``, ``length`` of its bar relative to the
    longest one, ``error`` (RMS difference), ``part`` of the sum of squares, ``saved`` (bytes saved), ``note`` (why there is no
    figure), and ``whole`` (whether it is of all roles).
    """
    if sensitivity.note:
        return []
    rows: list[tuple[str, float | None, float | None, int | None, str, bool]] = [
        (r.role, r.rel, sensitivity.share(r), r.saved, r.note, False) for r in sensitivity.roles
    ]
    rows.append(("all, predicted", sensitivity.predicted, None, None, "", True))
    rows.append(("all, measured", sensitivity.whole, None, sensitivity.saved, "", True))
    largest = max((error for _, error, *_ in rows if error is not None), default=0.0) or 1.0
    return [
        {
            "name": name,
            "length": (error or 0.0) / largest,
            "error": wording.NONE if error is None else f"{error:.4f}",
            "part": wording.NONE if part is None else wording.share(part),
            "saved": wording.NONE if saved is None else wording.size(saved),
            "note": note,
            "whole": whole,
        }
        for name, error, part, saved, note, whole in rows
    ]


def make_role_tables(rows: Sequence[ModelRow]) -> list[tuple[ModelRow, str, bool]]:
    """Return (file, its roles' schemes as a line, whether the recipe set any) for each file with known roles.

    Files for which the recipe set a role's scheme come first.
    """
    tables = [(row, summarize_roles(row.roles), any(r.chosen for r in row.roles)) for row in rows if row.roles]
    return sorted(tables, key=lambda table: not table[2])


# --- planned and measured ---------------------------------------------------------------------------------------------


def compare_with_plan(
    planned: Sequence[PlannedFile], rows: Sequence[ModelRow], result: BenchmarkResult | None
) -> list[list[str]]:
    """Return the rows of the table that sets a plan beside the finished files.

    Args:
        planned: The planned files of the run's student.
        rows: The finished files.
        result: Their latencies.

    Returns:
        For each planned file that was written: path, planned and written size with the difference. For each latency that was
        planned and measured on the same device: p50 and p90 likewise.
    """
    table = []
    for file in planned:
        row = next((row for row in rows if row.path == file.file), None)
        if row is None or row.bytes is None:
            continue
        table.append(
            [file.file, "size", wording.size(file.bytes), wording.size(row.bytes), _off(row.bytes, file.bytes)]
        )
        for time in file.times:
            for session in result.sessions if result is not None else ():
                m = session.find(row.name, time.threads, TEXT)
                if m is None or m.wall is None or m.device != time.device:
                    continue
                for name, was, now in (("p50", time.p50_ms, m.wall.p50), ("p90", time.p90_ms, m.wall.p90)):
                    figure = f"{name} on {time.device}, {wording.threads(time.threads)}, real text"
                    cells = (f"{wording.milliseconds(value)} ms" for value in (was, now))
                    table.append([file.file, figure, *cells, _off(now, was)])
    return table


def _off(now: float, was: float) -> str:
    """Return how far a measured figure is from the planned one: ``+3.1 %``."""
    return f"{100 * (now / was - 1):+.1f} %" if was else wording.NONE
