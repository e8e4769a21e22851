"""The report: one HTML file with everything inside, readable without network, scripts or this toolkit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.measurement import BenchmarkResult, Measurement
from pocketbert.benchmarks.records import Profile
from pocketbert.benchmarks.report import plots
from pocketbert.benchmarks.report.compiled import (
    ESTIMATES,
    NO_LATENCY,
    REPORTED,
    compiled_row,
    compiled_stamps,
    estimated_rows,
    left_rows,
    reported_stamps,
    reported_table,
)
from pocketbert.benchmarks.report.figures import (
    GateRow,
    ReportData,
    condition_words,
    headline_condition,
    measurement_stamp,
    result_stamp,
    run_stamp,
    score_stamp,
    shown_sessions,
    summary_rows,
)
from pocketbert.benchmarks.report.plots import Figure, plotted
from pocketbert.benchmarks.report.sections import (
    file_roles,
    front_figures,
    limits_in_words,
    search_plots,
    search_rows,
    sensitivity_bars,
    student_rows,
)
from pocketbert.core.disk.files import write_atomic
from pocketbert.core.metrics import Direction

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup


# --- templates ---
# The templates of the pages, which share one style and the same macros.


def open_template(name: str) -> Template:
    """A template of this package, in which everything that is filled in is escaped.

    Args:
        name: File name.

    Raises:
        MissingBackendError: If matplotlib or jinja2 is not installed.
    """
    plots.require()
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    files = resources.files(__package__)
    environment = Environment(
        loader=FunctionLoader(lambda name: files.joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["swatch"] = swatch
    return environment.get_template(name)


def swatch(number: int) -> Markup:
    """The point of a legend: the colour and the shape of the file of a number; see `plots.look_of`."""
    from markupsafe import Markup

    shape = plots.SHAPES.index(plots.look_of(number).shape)
    style = f"dot s{shape}" if shape else "dot"
    return Markup(f'<span class="{style}" style="background:var(--c{number % len(plots.SERIES)})"></span>')  # noqa: S704


TEMPLATE = "report.html.j2"
OPS_SHOWN = 8


@dataclass(frozen=True)
class Session:
    """One device's part of the benchmark.

    Attributes:
        result: Its figures.
        title: The device, where there are several sessions or its figures are no times.
        stamp: Where the figures come from.
        latency: Plots.
        cold: One measurement per variant and thread count.
        profiles: What is shown of each profile.
    """

    result: BenchmarkResult
    title: str
    stamp: str
    latency: list[Figure]
    cold: list[Measurement]
    profiles: list[tuple[Profile, list[tuple[str, int, float, float]]]]


@dataclass(frozen=True)
class Tile:
    """One figure in large type.

    Attributes:
        value: The figure.
        label: What it is.
    """

    value: str
    label: str


@dataclass(frozen=True)
class GateMatrix:
    """Verdicts of all gates, one row for each file.

    Attributes:
        names: The gates, one column each.
        files: Each file with its verdicts: ``passed``, ``failed``, ``skipped``, or empty where a gate does not concern it.
    """

    names: list[str]
    files: list[tuple[str, list[str]]]


def gate_matrix(gates: Sequence[GateRow]) -> GateMatrix:
    """Arrange gates by file and name; of several with one name, a failed one decides."""
    names = list(dict.fromkeys(g.name for g in gates))
    found: dict[tuple[str, str], str] = {}
    for gate in gates:
        verdict = "skipped" if gate.skipped else "passed" if gate.passed else "failed"
        place = (gate.file, gate.name)
        found[place] = "failed" if "failed" in (verdict, found.get(place)) else verdict
    files = dict.fromkeys(g.file for g in gates)
    return GateMatrix(names, [(file, [found.get((file, name), "") for name in names]) for file in files])


def fastest_name(data: ReportData) -> str:
    """The file with the lowest median of the headline table; empty where fewer than two were timed."""
    if data.timed is None or not data.timed.headline.timed:
        return ""
    threads, length = headline_condition(data.timed.headline)
    found = {row.name: data.timed.headline.find(row.name, threads, length) for row in data.rows}
    timed = {name: m.wall.p50 for name, m in found.items() if m is not None and m.wall is not None}
    return min(timed, key=lambda name: timed[name]) if len(timed) > 1 else ""


def write_report(data: ReportData, path: Path) -> None:
    """Write the report.

    Args:
        data: What it shows.
        path: The HTML file.

    Raises:
        MissingBackendError: If matplotlib or jinja2 is not installed.
    """
    write_atomic(path, render_report(data))


def render_report(data: ReportData) -> str:
    """The report as HTML text; see `write_report`."""
    template = open_template(TEMPLATE)
    colors = _colors(data)
    compilations = data.benchmark.compilations if data.benchmark else []
    reported = data.benchmark.reported if data.benchmark else []
    return template.render(
        d=data,
        b=data.timed,
        compiled=[compiled_row(one) for one in compilations],
        compiled_stamps=compiled_stamps(compilations),
        left=left_rows(compilations),
        estimated=estimated_rows(compilations),
        reported=reported_table(reported) if reported else None,
        reported_stamps=reported_stamps(reported),
        reported_profiles=[(one, p, _shown_ops(p)) for one in reported if (p := one.profile) is not None],
        as_reported=REPORTED,
        no_latency=NO_LATENCY,
        estimates=ESTIMATES,
        w=wording,
        metric=data.metric,
        rows=summary_rows(data),
        shown=shown_sessions(data),
        condition=condition_words(data.timed.headline) if data.timed else "",
        tiles=_tiles(data),
        fastest=fastest_name(data),
        gates=gate_matrix(data.gates),
        stamp=run_stamp(data),
        score_stamp=score_stamp(data),
        headline_stamp=_headline_stamp(data.timed.headline) if data.timed else "",
        colors=colors,
        overview=_overview(data, colors),
        sessions=_sessions(data.timed, colors) if data.timed else [],
        curves=_curves(data),
        searched=_searched(data),
        considered=search_rows(data.search) if data.search else [],
        contest=student_rows(data.search) if data.search else [],
        limits=limits_in_words(data.search) if data.search else "",
        by_role=file_roles(data.rows),
        sensitive=sensitivity_bars(data.sensitivity),
    )


def _headline_stamp(result: BenchmarkResult) -> str:
    threads, length = headline_condition(result)
    shown = [m for m in result.measurements if (m.threads, m.length, m.gap_ms) == (threads, length, 0)]
    return measurement_stamp(*shown)


def _colors(data: ReportData) -> dict[str, int]:
    """Number of the look of each file."""
    names = [r.name for r in data.rows]
    if data.timed is not None:
        names += [v.name for s in data.timed.sessions for v in s.variants]
    if data.benchmark is not None:
        names += [c.variant for c in data.benchmark.compilations]
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _tiles(data: ReportData) -> list[Tile]:
    """What matters of the default file: score kept, size, speed."""
    chosen, reference = data.default, data.reference
    if chosen is None or reference is None:
        return []
    row = next(r for r, m in zip(summary_rows(data), data.rows, strict=True) if m is chosen)
    out = []
    metric = data.metric
    if metric.direction is Direction.HIGHER and chosen.kept is not None and chosen is not reference:
        out.append(Tile(row.kept, f"of the teacher's {metric.name} kept by {chosen.name}"))
    elif chosen.eval_score is not None:
        # a share of something that should be small says nothing
        theirs = reference.eval_score if chosen is not reference else None
        of_reference = f"; {reference.name} {metric.format(theirs.value)}" if theirs is not None else ""
        out.append(Tile(row.score, f"{metric.name} of {chosen.name}, {wording.scale(metric)}{of_reference}"))
    smaller = f", {row.smaller} than {reference.name}" if row.smaller != wording.NONE else ""
    out.append(Tile(row.size, f"on disk{smaller}"))
    if data.timed is not None and row.headline.p50 != wording.NONE:
        head, speed = data.timed.headline, row.headline.speed
        faster = f", {speed} than {head.protocol.baseline}" if "faster" in speed or "slower" in speed else ""
        out.append(Tile(f"{row.headline.p50} ms", f"median latency (p50), {condition_words(head)}{faster}"))
    return out


def _overview(data: ReportData, colors: dict[str, int]) -> list[Figure]:
    out = front_figures(data, colors)
    if data.rows:
        names = [r.name for r in data.rows]
        svg = plots.sizes(names, [r.bytes for r in data.rows], [colors[n] for n in names])
        out.append(plotted(svg, "Size of the model files.", "measured · bytes on disk"))
    return out


def _searched(data: ReportData) -> list[Figure]:
    if data.search is None:
        return []
    stamp = f"measured · {data.search.machine}"
    return [plotted(svg, caption, stamp) for svg, caption in search_plots(data.search)]


def _sessions(result: BenchmarkResult, colors: dict[str, int]) -> list[Session]:
    """Device by device: nothing is plotted or compared across them."""
    devices = [s.device for s in result.sessions]
    titles = [
        device if devices.count(device) == 1 else f"{device}, session {number}"
        for number, device in enumerate(devices, 1)
    ]
    return [
        Session(
            s, title, result_stamp(s), _latency(s, colors, title), _cold(s), [(p, _shown_ops(p)) for p in s.profiles]
        )
        for s, title in zip(result.sessions, titles if len(titles) > 1 or not result.timed else [""], strict=True)
    ]


def _latency(result: BenchmarkResult, colors: dict[str, int], device: str) -> list[Figure]:
    if not result.timed:
        return []
    on = f", {device}" if device else ""
    threads, length = headline_condition(result)
    shown = [m for m in result.measurements if (m.threads, m.length, m.gap_ms) == (threads, length, 0)]
    samples = {m.variant: [x for repeat in m.wall_ms for x in repeat] for m in shown}
    svg = plots.distribution(samples, colors, condition_words(result) + on)
    caption = f"Share of inferences that finish within a given time ({condition_words(result)}); dashed: p50 and p90."
    legend = [(name, colors[name]) for name in samples]
    out = [plotted(svg, caption, measurement_stamp(*shown), legend)]
    for count, idle in [(count, idle) for count in result.protocol.threads for idle in (False, True)]:
        groups: dict[str, dict[str, list[float]]] = {}
        here = [m for m in result.measurements if (m.threads, bool(m.gap_ms)) == (count, idle)]
        if not here:
            continue
        for m in here:
            groups.setdefault(wording.pace(m.length, m.gap_ms), {})[m.variant] = [x for r in m.wall_ms for x in r]
        words = wording.threads(count) + ", single inferences after idle times" * idle
        svg = plots.boxes(groups, colors, f"Latency by length, {words}{on}")
        caption = f"Latency by length, {words}: box p25 to p75, line p50, whiskers p10 to p90, dot p99."
        legend = [(name, colors[name]) for name in dict.fromkeys(m.variant for m in here)]
        out.append(plotted(svg, caption, measurement_stamp(*here), legend))
    return out


def _cold(result: BenchmarkResult) -> list[Measurement]:
    """One measurement per variant and thread count: load time and memory do not depend on the length."""
    seen = {(m.variant, m.threads): m for m in reversed(result.measurements)}
    return [m for m in result.measurements if m.cold is not None and seen[m.variant, m.threads] is m]


def _shown_ops(profile: Profile) -> list[tuple[str, int, float, float]]:
    """(operator type, nodes, share, ms), small ones added up."""
    first, rest = profile.ops[:OPS_SHOWN], profile.ops[OPS_SHOWN:]
    out = [(o.op_type, o.nodes, o.share, o.ms) for o in first]
    if rest:
        out.append(
            (
                f"{len(rest)} other types",
                sum(o.nodes for o in rest),
                sum(o.share for o in rest),
                sum(o.ms for o in rest),
            )
        )
    return out


def _curves(data: ReportData) -> list[Figure]:
    """One plot per trained model: its loss, and the loss's terms when there are any; layers that learn apart have their own."""
    groups: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for name, points in data.curves.items():
        if points:
            owner, _, term = name.partition("/")
            of_layer = term.startswith("layer_")
            groups.setdefault(f"{owner}, layer by layer" if of_layer else owner, {})[term or "loss"] = points
    out = []
    for owner, lines in groups.items():
        terms = " and of its terms." if len(lines) > 1 and "loss" in lines else "."
        caption = f"Training loss of the {owner}{terms}"
        out.append(plotted(plots.curve(lines, f"Training of {owner}"), caption, run_stamp(data)))
    return out
