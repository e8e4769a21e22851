"""The report: one HTML file with everything inside, readable without network, scripts or this toolkit.

`write_report` writes the page of a run or a benchmark, `render_report` returns its text. The templates lie beside this module
and share one style and the same macros; `open_template` opens one of them, also for the comparison of two benchmarks.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.measurement import BenchmarkResult, Measurement
from pocketbert.benchmarks.records import Profile
from pocketbert.benchmarks.report import plots
from pocketbert.benchmarks.report.compiled import (
    ESTIMATES,
    NO_LATENCY,
    REPORTED,
    collect_cpu_operators,
    describe_compilation,
    describe_estimates,
    make_compilation_stamps,
    make_reported_stamps,
    make_reported_table,
)
from pocketbert.benchmarks.report.figures import (
    GateRow,
    ReportData,
    describe_condition,
    headline_condition,
    make_summary_rows,
    measurement_stamp,
    result_stamp,
    run_stamp,
    score_stamp,
    shown_sessions,
)
from pocketbert.benchmarks.report.plots import Figure, make_figure
from pocketbert.benchmarks.report.sections import (
    describe_limits,
    draw_searches,
    make_front_figures,
    make_role_tables,
    make_search_table,
    make_sensitivity_tables,
    make_student_table,
)
from pocketbert.core.disk.files import write_atomic
from pocketbert.core.metrics import Direction

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

_TEMPLATE = "report.html.j2"
_OPERATORS_SHOWN = 8


def write_report(data: ReportData, path: Path) -> None:
    """Write the report as one HTML file.

    Args:
        data: The content of the report.
        path: The HTML file.

    Raises:
        MissingBackendError: If matplotlib or jinja2 is not installed.
    """
    write_atomic(path, render_report(data))


def render_report(data: ReportData) -> str:
    """Return the report as HTML text."""
    template = open_template(_TEMPLATE)
    colors = _number_files(data)
    compilations = data.benchmark.compilations if data.benchmark else []
    reported = data.benchmark.reported if data.benchmark else []
    return template.render(
        d=data,
        b=data.timed,
        compiled=[describe_compilation(compilation) for compilation in compilations],
        compiled_stamps=make_compilation_stamps(compilations),
        left=collect_cpu_operators(compilations),
        estimated=describe_estimates(compilations),
        reported=make_reported_table(reported) if reported else None,
        reported_stamps=make_reported_stamps(reported),
        reported_profiles=[(one, p, _largest_operators(p)) for one in reported if (p := one.profile) is not None],
        as_reported=REPORTED,
        no_latency=NO_LATENCY,
        estimates=ESTIMATES,
        w=wording,
        metric=data.metric,
        rows=make_summary_rows(data),
        shown=shown_sessions(data),
        condition=describe_condition(data.timed.headline) if data.timed else "",
        tiles=_make_tiles(data),
        fastest=_find_fastest_file(data),
        gates=_arrange_gates(data.gates),
        stamp=run_stamp(data),
        score_stamp=score_stamp(data),
        headline_stamp=measurement_stamp(*_headline_measurements(data.timed.headline)) if data.timed else "",
        colors=colors,
        overview=_draw_overview(data, colors),
        sessions=_session_parts(data.timed, colors) if data.timed else [],
        curves=_draw_training(data),
        searched=draw_searches(data.search) if data.search else [],
        considered=make_search_table(data.search) if data.search else [],
        contest=make_student_table(data.search) if data.search else [],
        limits=describe_limits(data.search) if data.search else "",
        by_role=make_role_tables(data.rows),
        sensitive=make_sensitivity_tables(data.sensitivity),
    )


def open_template(name: str) -> Template:
    """Open a Jinja template of this package by its file name, with HTML escaping on.

    Raises:
        MissingBackendError: If matplotlib or jinja2 is not installed.
    """
    plots.require_report_packages()
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    files = resources.files(__package__)
    environment = Environment(
        loader=FunctionLoader(lambda name: files.joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["swatch"] = _legend_swatch
    return environment.get_template(name)


def _legend_swatch(number: int) -> Markup:
    """Return the HTML of a legend's dot with the colour and shape of file number `number`."""
    from markupsafe import Markup

    shape = plots.SHAPES.index(plots.look_of(number).shape)
    style = f"dot s{shape}" if shape else "dot"
    return Markup(f'<span class="{style}" style="background:var(--c{number % len(plots.SERIES)})"></span>')  # noqa: S704


def _number_files(data: ReportData) -> dict[str, int]:
    """Assign each file of the report a number, from which plots derive its colour and shape."""
    names = [row.name for row in data.rows]
    if data.timed is not None:
        names += [variant.name for session in data.timed.sessions for variant in session.variants]
    if data.benchmark is not None:
        names += [compilation.variant for compilation in data.benchmark.compilations]
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _make_tiles(data: ReportData) -> list[tuple[str, str]]:
    """Return (value, label) of the large figures on top: score kept, size and speed of the default file."""
    chosen, reference = data.default, data.reference
    if chosen is None or reference is None:
        return []
    row = next(r for r, m in zip(make_summary_rows(data), data.rows, strict=True) if m is chosen)
    tiles = []
    metric = data.metric
    if metric.direction is Direction.HIGHER and chosen.kept is not None and chosen is not reference:
        tiles.append((row.kept, f"of the teacher's {metric.name} kept by {chosen.name}"))
    elif chosen.eval_score is not None:
        # a share of something that should be small says nothing
        compared = reference.eval_score if chosen is not reference else None
        of_reference = f"; {reference.name} {metric.format(compared.value)}" if compared is not None else ""
        tiles.append((row.score, f"{metric.name} of {chosen.name}, {wording.scale(metric)}{of_reference}"))
    smaller = f", {row.smaller} than {reference.name}" if row.smaller != wording.NONE else ""
    tiles.append((row.size, f"on disk{smaller}"))
    if data.timed is not None and row.headline.p50 != wording.NONE:
        session, speed = data.timed.headline, row.headline.speed
        faster = f", {speed} than {session.protocol.baseline}" if "faster" in speed or "slower" in speed else ""
        tiles.append((f"{row.headline.p50} ms", f"median latency (p50), {describe_condition(session)}{faster}"))
    return tiles


def _find_fastest_file(data: ReportData) -> str:
    """Return the file with the lowest median latency; empty if fewer than two files were timed."""
    if data.timed is None or not data.timed.headline.timed:
        return ""
    threads, length = headline_condition(data.timed.headline)
    measurements = [(row.name, data.timed.headline.find(row.name, threads, length)) for row in data.rows]
    medians = {name: m.wall.p50 for name, m in measurements if m is not None and m.wall is not None}
    return min(medians, key=lambda name: medians[name]) if len(medians) > 1 else ""


def _arrange_gates(gates: Sequence[GateRow]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the table of gate results: files as rows, gates as columns.

    Returns:
        Gate names (columns), and (file, verdicts) rows: ``passed``, ``failed`` (if any check failed), ``skipped``, or
        empty where a gate does not concern it.
    """
    names = list(dict.fromkeys(gate.name for gate in gates))
    verdicts: dict[tuple[str, str], str] = {}
    for gate in gates:
        verdict = "skipped" if gate.skipped else "passed" if gate.passed else "failed"
        cell = (gate.file, gate.name)
        verdicts[cell] = "failed" if "failed" in (verdict, verdicts.get(cell)) else verdict
    files = dict.fromkeys(gate.file for gate in gates)
    return names, [(file, [verdicts.get((file, name), "") for name in names]) for file in files]


def _draw_overview(data: ReportData, colors: dict[str, int]) -> list[Figure]:
    """Draw score against latency or other cost for each device, and the sizes of the files."""
    figures = make_front_figures(data, colors)
    if data.rows:
        names = [row.name for row in data.rows]
        svg = plots.draw_sizes(names, [row.bytes for row in data.rows], [colors[name] for name in names])
        figures.append(make_figure(svg, "Size of the model files.", "measured · bytes on disk"))
    return figures


def _session_parts(result: BenchmarkResult, colors: dict[str, int]) -> list[dict[str, Any]]:
    """Return the template's values for each device; nothing is plotted or compared across devices.

    Returns:
        For each session its ``result``, a ``title`` (the device, where there are several sessions or its figures are no times;
        else empty), the ``stamp`` of its figures, ``latency`` plots, ``cold`` starts (one measurement per variant and thread
        count, because load time and memory do not depend on the length), and ``profiles`` with their largest operators.
    """
    devices = [session.device for session in result.sessions]
    parts = []
    for number, (session, device) in enumerate(zip(result.sessions, devices, strict=True), 1):
        title = ""
        if len(devices) > 1 or not result.timed:
            title = device if devices.count(device) == 1 else f"{device}, session {number}"
        first = {(m.variant, m.threads): m for m in reversed(session.measurements)}
        cold = [m for m in session.measurements if m.cold is not None and first[m.variant, m.threads] is m]
        parts.append(
            {
                "result": session,
                "title": title,
                "stamp": result_stamp(session),
                "latency": _draw_latency(session, colors, title),
                "cold": cold,
                "profiles": [(profile, _largest_operators(profile)) for profile in session.profiles],
            }
        )
    return parts


def _draw_latency(result: BenchmarkResult, colors: dict[str, int], device: str) -> list[Figure]:
    """Draw a device's latency distribution, then box plots by length per thread count, also after idle times."""
    if not result.timed:
        return []
    suffix = f", {device}" if device else ""
    shown = _headline_measurements(result)
    samples = {m.variant: [time for repeat in m.wall_ms for time in repeat] for m in shown}
    svg = plots.draw_distribution(samples, colors, describe_condition(result) + suffix)
    caption = (
        f"Share of inferences that finish within a given time ({describe_condition(result)}); dashed: p50 and p90."
    )
    figures = [make_figure(svg, caption, measurement_stamp(*shown), [(name, colors[name]) for name in samples])]
    for threads, idle in [(threads, idle) for threads in result.protocol.threads for idle in (False, True)]:
        shown = [m for m in result.measurements if (m.threads, bool(m.gap_ms)) == (threads, idle)]
        if not shown:
            continue
        groups: dict[str, dict[str, list[float]]] = {}
        for m in shown:
            times = [time for repeat in m.wall_ms for time in repeat]
            groups.setdefault(wording.pace(m.length, m.gap_ms), {})[m.variant] = times
        words = wording.threads(threads) + ", single inferences after idle times" * idle
        svg = plots.draw_boxes(groups, colors, f"Latency by length, {words}{suffix}")
        caption = f"Latency by length, {words}: box p25 to p75, line p50, whiskers p10 to p90, dot p99."
        legend = [(name, colors[name]) for name in dict.fromkeys(m.variant for m in shown)]
        figures.append(make_figure(svg, caption, measurement_stamp(*shown), legend))
    return figures


def _headline_measurements(result: BenchmarkResult) -> list[Measurement]:
    """Return the measurements at the threads and length that tables show first, without idle time."""
    threads, length = headline_condition(result)
    return [m for m in result.measurements if (m.threads, m.length, m.gap_ms) == (threads, length, 0)]


def _largest_operators(profile: Profile) -> list[tuple[str, int, float, float]]:
    """Return (type, nodes, share, ms) of the operators that take most time, and one entry for all others."""
    first, rest = profile.ops[:_OPERATORS_SHOWN], profile.ops[_OPERATORS_SHOWN:]
    rows = [(op.op_type, op.nodes, op.share, op.ms) for op in first]
    if rest:
        nodes, share, ms = sum(op.nodes for op in rest), sum(op.share for op in rest), sum(op.ms for op in rest)
        rows.append((f"{len(rest)} other types", nodes, share, ms))
    return rows


def _draw_training(data: ReportData) -> list[Figure]:
    """Plot the training loss of each model, with the loss's terms; layers trained apart have a plot of their own."""
    groups: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for name, points in data.curves.items():
        if points:
            owner, _, term = name.partition("/")
            title = f"{owner}, layer by layer" if term.startswith("layer_") else owner
            groups.setdefault(title, {})[term or "loss"] = points
    figures = []
    for title, lines in groups.items():
        terms = " and of its terms." if len(lines) > 1 and "loss" in lines else "."
        svg = plots.draw_losses(lines, f"Training of {title}")
        figures.append(make_figure(svg, f"Training loss of the {title}{terms}", run_stamp(data)))
    return figures
