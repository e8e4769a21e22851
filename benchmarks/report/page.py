"""The report: one HTML file with everything inside, readable without network or this toolkit.

`write_report` writes the page of a run or a benchmark, `render_report` returns its text: first what decides (the file to take on
each platform, one picture, the gates with failures first, the frontier of a search, where the student loses), then
where the figures come from, and folded away all details. The templates lie beside this module and share one style, one script that sorts
and filters tables, and the same macros; `open_template` opens one of them, also for the comparison of two benchmarks.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.measurement import BenchmarkResult, Measurement
from pocketbert.benchmarks.records import Profile
from pocketbert.benchmarks.report import plots
from pocketbert.benchmarks.report.choice import (
    RULE,
    choose_files,
    collect_times,
    describe_choice,
    list_files,
)
from pocketbert.benchmarks.report.compiled import (
    ESTIMATES,
    NO_LATENCY,
    REPORTED,
    collect_cpu_operators,
    describe_compilation,
    describe_estimates,
    make_reported_stamps,
    make_reported_table,
)
from pocketbert.benchmarks.report.figures import (
    GateRow,
    ModelRow,
    ReportData,
    describe_condition,
    headline_condition,
    make_summary_rows,
    shown_sessions,
)
from pocketbert.benchmarks.report.plots import Figure, make_figure
from pocketbert.benchmarks.report.sections import (
    compare_with_plan,
    describe_limits,
    draw_searches,
    draw_tried_students,
    make_front_figures,
    make_role_tables,
    make_search_table,
    make_sensitivity_tables,
    make_student_table,
)
from pocketbert.benchmarks.report.sources import (
    Citation,
    Sources,
    cite_compilations,
    cite_run,
    cite_scores,
    cite_session,
)
from pocketbert.core.disk.files import write_atomic
from pocketbert.core.metrics import Direction

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

_TEMPLATE = "report.html.j2"
_SCRIPT = "tables.js.j2"
_OPERATORS_SHOWN = 8
_MOST_BYTES = 1_900_000
"""Largest page that is written with all details; a larger one is made again with fewer of them."""
_DETAILS = ((2, 100_000), (1, 400), (0, 60))
"""Plots (2: all, 1: no box plots by length, 0: score against latency only) and most rows of a table, until the page is small enough."""
_FEW, _MANY = 800, 3000
"""Measurements up to which a page is first tried with all details, and with some."""


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
    """Return the report as HTML text. If it would exceed 1.9 MB, folded details are cut, and the page says so."""
    measured = sum(len(session.measurements) for session in data.timed.sessions) if data.timed else 0
    page = ""
    for plots_shown, most_rows in _DETAILS[(measured > _FEW) + (measured > _MANY) :]:
        page = _render(data, plots_shown, most_rows)
        if len(page.encode()) <= _MOST_BYTES:
            break
    return page


def _render(data: ReportData, plots_shown: int, most_rows: int) -> str:
    """Return the report as HTML text.

    Args:
        data: The content of the report.
        plots_shown: Which plots it has; see `_DETAILS`.
        most_rows: Number of rows of a table that are shown.
    """
    colors, sources = _number_files(data), Sources()
    values = {
        "d": data,
        "b": data.timed,
        "w": wording,
        "most": most_rows,
        "metric": data.metric,
        "rows": make_summary_rows(data),
        "shown": shown_sessions(data),
        "condition": describe_condition(data.timed.headline) if data.timed else "",
        "fastest": _find_fastest_file(data),
        "colors": colors,
        **_decision_values(data, colors, sources, all_devices=plots_shown > 0),
        **_check_values(data, sources),
        **_search_values(data, sources),
        "sessions": _session_parts(data.timed, colors, sources, plots_shown) if data.timed else [],
        "curves": _draw_training(data, sources),
        "by_role": make_role_tables(data.rows),
        **_npu_values(data, sources),
    }
    if data.data is not None or data.rows:
        values["counted"] = cite_run(sources, data, "rows, labels, bytes and weights, counted")
    return open_template(_TEMPLATE).render(**values, sources=sources)


def _decision_values(
    data: ReportData, colors: Mapping[str, int], sources: Sources, all_devices: bool
) -> dict[str, Any]:
    """Return the template's values for what comes first: the file to take on each platform, its figures, the picture."""
    times = collect_times(data.rows, data.timed)
    choices = choose_files(data.rows, times)
    files = list_files(choices)
    lead = files[0][0] if files else None
    fronts = make_front_figures(data, colors, sources, [row.name for row, _ in files], all_devices)
    first = data.timed.headline if data.timed else None
    scored = [row for row in data.rows if row.eval_score is not None or row.holdout_score is not None]
    return {
        "choices": [(choice, list(describe_choice(choice, data.reference))) for choice in choices],
        "takes": files,
        "without": [choice.place for choice in choices if choice.row is None and choice.place],
        "rule": RULE,
        "tiles": _make_tiles(data, lead) if lead is not None else [],
        "front": fronts[0] if fronts else None,
        "fronts": fronts[1:],
        "score_source": cite_scores(sources, data) if scored else None,
        "time_source": cite_session(sources, first) if first else None,
        "failed_files": [row.name for row in data.rows if row.status == "failed"],
    }


def _check_values(data: ReportData, sources: Sources) -> dict[str, Any]:
    """Return the template's values for the gates, the parity of the files and the diagnosis of the student."""
    checked = [what for what, there in (("gates", data.gates), ("parity", data.parity)) if there]
    checked += ["confusions"] if data.confusion else []
    words = f"{', '.join(checked)} of this run" if checked else "figures of this run"
    diagnosed = data.diagnosis is not None
    return {
        "gates": _arrange_gates(data.gates),
        "failures": [gate for gate in data.gates if not gate.passed],
        "run_source": cite_run(sources, data, words) if checked else None,
        "diagnosis_source": cite_run(sources, data, "diagnosis, both models in torch fp32") if diagnosed else None,
    }


def _search_values(data: ReportData, sources: Sources) -> dict[str, Any]:
    """Return the template's values for a plan, the students that were tried, a search inside a budget and the sensitivity of roles."""
    search, sensitivity = data.search, data.sensitivity
    values: dict[str, Any] = {"planned": [], "tried": [], "searched": [], "considered": [], "contest": [], "limits": ""}
    values["sensitive"] = make_sensitivity_tables(sensitivity)
    if planned := compare_with_plan(data.planned, data.rows, data.benchmark):
        what = "finished files beside the plan, whose figures are estimated or of random weights"
        values |= {"planned": planned, "planned_source": cite_run(sources, data, what)}
    if data.tried is not None:
        what = f"{data.tried.file} · {data.tried.latency}, one file after another"
        source = sources.cite(data.tried.machine, "measured", f"students that were tried, {what}")
        values |= {"tried": draw_tried_students(data.tried, source), "tried_source": source}
    if search is not None:
        machine = search.machine or data.machine.summary
        source = sources.cite(machine, "measured", "search inside the budget")
        values |= {
            "searched": draw_searches(search, source),
            "considered": make_search_table(search),
            "contest": make_student_table(search),
            "limits": describe_limits(search),
            "search_source": source,
        }
    if sensitivity is not None:
        machine = sensitivity.machine or data.machine.summary
        values["sensitivity_source"] = sources.cite(machine, "measured", "sensitivity of roles")
    return values


def _npu_values(data: ReportData, sources: Sources) -> dict[str, Any]:
    """Return the template's values for compiled files, their estimates, and the texts of measuring programs."""
    compilations = data.benchmark.compilations if data.benchmark else []
    reported = data.benchmark.reported if data.benchmark else []
    return {
        "compiled": [describe_compilation(compilation) for compilation in compilations],
        "npu_sources": cite_compilations(sources, compilations),
        "left": collect_cpu_operators(compilations),
        "estimated": describe_estimates(compilations),
        "reported": make_reported_table(reported) if reported else None,
        "reported_stamps": make_reported_stamps(reported),
        "reported_profiles": [(one, p, _largest_operators(p)) for one in reported if (p := one.profile) is not None],
        "as_reported": REPORTED,
        "no_latency": NO_LATENCY,
        "estimates": ESTIMATES,
    }


def open_template(name: str) -> Template:
    """Open a Jinja template of this package by its file name, with HTML escaping on.

    Templates may use `script`, which sorts and filters tables, and `script_digest`, by which the page allows this script and no other.

    Raises:
        MissingBackendError: If matplotlib or jinja2 is not installed.
    """
    plots.require_report_packages()
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    files = resources.files(__package__)
    environment = Environment(
        loader=FunctionLoader(lambda name: files.joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = files.joinpath(_SCRIPT).read_text(encoding="utf-8")
    digest = hashlib.sha256(script.encode()).digest()
    environment.globals["script"] = Markup(script)  # noqa: S704
    environment.globals["script_digest"] = Markup(f"sha256-{base64.b64encode(digest).decode()}")  # noqa: S704
    environment.filters["swatch"] = _legend_swatch
    return environment.get_template(name)


def _legend_swatch(number: int) -> Markup:
    """Return the HTML of a legend's dot with the colour and shape of file number `number`."""
    from markupsafe import Markup

    shape = plots.SHAPES.index(plots.look_of(number).shape)
    style = f"dot s{shape}" if shape else "dot"
    return Markup(f'<span class="{style}" style="background:var(--c{number % len(plots.SERIES)})"></span>')  # noqa: S704


def _number_files(data: ReportData) -> dict[str, int]:
    """Give each file of the report a number, from which plots derive its colour and shape; return the numbers by name."""
    names = [row.name for row in data.rows]
    if data.timed is not None:
        names += [variant.name for session in data.timed.sessions for variant in session.variants]
    if data.benchmark is not None:
        names += [compilation.variant for compilation in data.benchmark.compilations]
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _make_tiles(data: ReportData, chosen: ModelRow) -> list[tuple[str, str]]:
    """Return (value, label) of the large figures at the top of the report: score kept, size and speed of a file."""
    reference = data.reference
    if reference is None:
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
    """Return the name of the file with the lowest of the median latencies that tables show first.

    It is empty if fewer than two files were timed so.
    """
    if data.timed is None or not data.timed.headline.timed:
        return ""
    threads, length = headline_condition(data.timed.headline)
    measurements = [(row.name, data.timed.headline.find(row.name, threads, length)) for row in data.rows]
    medians = {name: m.wall.p50 for name, m in measurements if m is not None and m.wall is not None}
    return min(medians, key=lambda name: medians[name]) if len(medians) > 1 else ""


def _arrange_gates(gates: Sequence[GateRow]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Arrange the gates' results (checks) as a table with a row for each file and a column for each gate, failures first.

    Returns:
        Gate names (columns), and (file, verdicts) rows: ``passed``, ``failed`` (if any check failed), ``skipped``, or empty if a
        gate does not concern the file.
    """
    verdicts: dict[tuple[str, str], str] = {}
    for gate in gates:
        verdict = "skipped" if gate.skipped else "passed" if gate.passed else "failed"
        cell = (gate.file, gate.name)
        verdicts[cell] = "failed" if "failed" in (verdict, verdicts.get(cell)) else verdict

    def failures(name: str, axis: int) -> int:
        return -sum(cell[axis] == name and verdict == "failed" for cell, verdict in verdicts.items())

    files = sorted(dict.fromkeys(gate.file for gate in gates), key=lambda file: failures(file, 0))
    names = sorted(dict.fromkeys(gate.name for gate in gates), key=lambda name: failures(name, 1))
    return names, [(file, [verdicts.get((file, name), "") for name in names]) for file in files]


def _session_parts(
    result: BenchmarkResult, colors: dict[str, int], sources: Sources, plots_shown: int
) -> list[dict[str, Any]]:
    """Return the values for the report's template on each device; devices are neither plotted nor compared together.

    Returns:
        For each device its ``result``; a ``title`` (the device, if there are several or its figures are no times; else empty);
        the ``source`` of its figures; ``latency`` plots; ``cold`` starts (one measurement per variant and thread count,
        because load time and memory do not depend on the length); and ``profiles`` with their largest operators.
    """
    devices = [session.device for session in result.sessions]
    parts = []
    for number, (session, device) in enumerate(zip(result.sessions, devices, strict=True), 1):
        title = ""
        if len(devices) > 1 or not result.timed:
            title = device if devices.count(device) == 1 else f"{device}, session {number}"
        first = {(m.variant, m.threads): m for m in reversed(session.measurements)}
        cold = [m for m in session.measurements if m.cold is not None and first[m.variant, m.threads] is m]
        source = cite_session(sources, session)
        parts.append(
            {
                "result": session,
                "title": title,
                "source": source,
                "latency": _draw_latency(session, colors, title, source, plots_shown),
                "cold": cold,
                "profiles": [
                    (
                        profile,
                        _largest_operators(profile),
                        sources.cite(session.machine.summary, profile.provenance, f"operators on {session.device}"),
                    )
                    for profile in session.profiles
                ],
            }
        )
    return parts


def _draw_latency(
    result: BenchmarkResult, colors: dict[str, int], device: str, source: Citation, plots_shown: int
) -> list[Figure]:
    """Draw a device's latency distribution, then box plots by length per thread count, also after idle times.

    Args:
        result: The measurements of one device.
        colors: For each file the number from which its colour and shape derive.
        device: The device where a page has several; else empty.
        source: Where the figures come from.
        plots_shown: Which plots are drawn; see `_DETAILS`.
    """
    if not result.timed or not plots_shown:
        return []
    suffix = f", {device}" if device else ""
    shown = _headline_measurements(result)
    samples = {m.variant: [time for repeat in m.wall_ms for time in repeat] for m in shown}
    svg = plots.draw_distribution(samples, colors, describe_condition(result) + suffix)
    caption = (
        f"Share of inferences that finish within a given time ({describe_condition(result)}); dashed: p50 and p90."
    )
    figures = [make_figure(svg, caption, [source], [(name, colors[name]) for name in samples])]
    if plots_shown < 2:
        return figures
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
        figures.append(make_figure(svg, caption, [source], legend))
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


def _draw_training(data: ReportData, sources: Sources) -> list[Figure]:
    """Draw each model's training loss with its terms, then its learning rate with scores on validation rows.

    Layers that are trained separately have a plot of their own.
    """
    if not data.curves and not data.courses:
        return []
    source = cite_run(sources, data, "training losses, rates and validation scores")
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
        figures.append(make_figure(svg, f"Training loss of the {title}{terms}", [source]))
    for course in data.courses:
        if course.rates:
            svg = plots.draw_course(
                course.rates, course.scores, course.best_step, course.metric, f"Rate and score of {course.name}"
            )
            kept = f" The weights of step {course.best_step:,}, the large dot, were kept." if course.best_step else ""
            scores = f" and {course.metric} on validation rows" if course.scores else ""
            figures.append(make_figure(svg, f"Learning rate{scores}: {course.name}.{kept}", [source]))
    return figures
