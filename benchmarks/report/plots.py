"""Plots of the report as SVG text without colours or identifiers of their own, so that the page's theme applies.

Latency: `draw_distribution` and `draw_boxes`. Two benchmarks: `draw_changes` and `draw_two_distributions`. Files:
`draw_score_over_cost`, `draw_sizes`, and `draw_search` for what a search inside a budget considered. Training: `draw_losses`.
`make_figure` adds caption, stamp and legend to a drawing; `look_of` gives each file its colour, marker, dashes and hatching.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.statistics import nearest_rank
from pocketbert.core.errors import MissingBackendError

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing
    from matplotlib.typing import LineStyleType

SERIES = tuple(
    "#64748b #2563eb #d97706 #059669 #9333ea #dc2626 #0891b2 #be185d #65a30d #7c2d12 #1e3a8a #e879f9 #0f5132 #eab308".split()
)
"""Colours of files. They are drawn and then renamed to the page's variables, because matplotlib needs real colours."""
SHAPES = "os^DvP"
"""Markers, also of the students in the plot of a search; the page's style has them as `.s0` to `.s5`."""
_LOOKS = len(SERIES) * len(SHAPES)
"""Number of files that differ in colour or shape; further ones repeat the first."""

_INK, _MUTED, _LINE = "#1f2328", "#57606a", "#d8dee4"
_VARIABLES = {_INK: "--ink", _MUTED: "--muted", _LINE: "--line", **{c: f"--c{i}" for i, c in enumerate(SERIES)}}
_DASHES: tuple[str | tuple[float, tuple[float, ...]], ...] = (
    "solid",
    (0, (6, 2)),
    (0, (1.5, 1.5)),
    (0, (6, 1.5, 1.5, 1.5)),
    (0, (3, 3)),
    (0, (9, 2, 2, 2, 2, 2)),
)
_HATCHES = ("", "/////", "....", "xxxxx", "-----", "+++++")
_WIDTH = 5.2
"""Inches. At 72 units an inch a phone's screen shows the text at about its nominal size."""
_STYLE = {
    "svg.fonttype": "none", "text.parse_math": False, "svg.hashsalt": "pocketbert", "font.size": 9.0, "axes.titlesize": 9.0,
    "text.color": _INK, "axes.edgecolor": _MUTED, "axes.labelcolor": _INK, "axes.linewidth": 0.6,
    "xtick.color": _MUTED, "ytick.color": _MUTED, "xtick.labelsize": 8.0, "ytick.labelsize": 8.0,
    "axes.grid": True, "grid.color": _LINE, "grid.linewidth": 0.6, "axes.axisbelow": True,
    "hatch.linewidth": 0.7, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "legend.fontsize": 8.0,
}  # fmt: skip


def require_report_packages() -> None:
    """Check that the packages that render a report are installed.

    Raises:
        MissingBackendError: If matplotlib or jinja2 is not installed.
    """
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingBackendError("matplotlib and jinja2", "pip install 'pocketbert[report]'") from error


@dataclass(frozen=True)
class Figure:
    """A plot with the words under it.

    Attributes:
        svg: The drawing.
        caption: Sentences on what the plot shows.
        stamp: Provenance, engine, machine, load.
        legend: Names with the numbers of their looks, written below the drawing, where long names find room.
    """

    svg: Markup
    caption: str
    stamp: str
    legend: Sequence[tuple[str, int]] = ()


def make_figure(svg: str, caption: str, stamp: str, legend: Sequence[tuple[str, int]] = ()) -> Figure:
    """Wrap a drawing of this module as a figure with caption, stamp and legend; the SVG is already escaped."""
    from markupsafe import Markup

    return Figure(Markup(svg), caption, stamp, legend)  # noqa: S704


@dataclass(frozen=True)
class _Look:
    """Colour, marker, dashes and hatch of a file in all plots. Files of one colour differ in everything else.

    Attributes:
        color: Its colour.
        shape: Marker of its points.
        dash: Dashes of its lines.
        hatch: Pattern of its bars; empty for none.
    """

    color: str
    shape: str
    dash: str | tuple[float, tuple[float, ...]]
    hatch: str


def look_of(number: int) -> _Look:
    """Return the look of file number `number`: first all colours in one style, then all again in the next style."""
    style = number // len(SERIES) % len(SHAPES)
    return _Look(SERIES[number % len(SERIES)], SHAPES[style], _DASHES[style], _HATCHES[style])


# --- latency ---------------------------------------------------------------------------------------------------------------------


def draw_distribution(samples: Mapping[str, Sequence[float]], colors: Mapping[str, int], condition: str) -> str:
    """Draw cumulative latency curves (share of inferences done after a time) as SVG text.

    Args:
        samples: Wall times in ms by variant.
        colors: Number of the look by variant.
        condition: Threads and length as text, e.g. ``1 thread, real text, batch 1``.
    """
    with _new_axes(3.0) as (drawing, axes):
        for name, values in samples.items():
            look = look_of(colors[name])
            _draw_share_curve(axes, values, look, look.dash)
        _set_share_axes(axes, f"latency in ms, log scale ({condition})", (3, 3))
        return _to_svg(drawing, f"Distribution of latency, {condition}")


def draw_boxes(groups: Mapping[str, Mapping[str, Sequence[float]]], colors: Mapping[str, int], title: str) -> str:
    """Draw latency per length as SVG text: box p25 to p75, line p50, whiskers p10 to p90, dot p99.

    Args:
        groups: Wall times in ms by length (in words) and variant.
        colors: Number of the look by variant.
        title: Title of the plot for screen readers; unique on a page.
    """
    with _new_axes(3.0) as (drawing, axes):
        names = list(dict.fromkeys(name for group in groups.values() for name in group))
        width = 0.8 / max(1, len(names))
        for group_number, group in enumerate(groups.values()):
            for name, values in group.items():
                x = group_number + (names.index(name) - (len(names) - 1) / 2) * width
                _draw_box(axes, x, width, values, look_of(colors[name]))
        # in two lines, since "real text, after 100 ms idle" covers its neighbour
        axes.set_xticks(range(len(groups)), [name.replace(", ", ",\n") for name in groups])
        axes.tick_params(axis="x", length=0, labelcolor=_INK)
        axes.grid(visible=False, axis="x")
        _set_log_scale(axes, "y")
        axes.set_ylabel("latency in ms, log scale")
        return _to_svg(drawing, title)


def _draw_box(axes: Axes, x: float, width: float, values: Sequence[float], look: _Look) -> None:
    """Draw the box, whiskers and p99 of one file's times."""
    color, box = look.color, width * 0.72
    p10, p25, p50, p75, p90, p99 = (nearest_rank(values, p) for p in (10, 25, 50, 75, 90, 99))
    axes.vlines(x, p10, p90, color=color, linewidth=1.0)
    axes.bar(x, p75 - p25, box, bottom=p25, color=color, alpha=0.45, edgecolor=color, linewidth=0.8)
    if look.hatch:
        axes.bar(x, p75 - p25, box, bottom=p25, fill=False, edgecolor=color, hatch=look.hatch)
    axes.hlines(p50, x - width * 0.36, x + width * 0.36, color=color, linewidth=2.0)
    axes.plot([x], [p99], look.shape, color=color, markersize=2.5)


# --- two benchmarks --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A file's ratio of later to earlier time, with its interval, for the plot of changes.

    Attributes:
        name: The file.
        ratio: Later / earlier.
        low: Lower end of its interval.
        high: Upper end.
        number: Number of the file's look.
    """

    name: str
    ratio: float
    low: float
    high: float
    number: int


def draw_changes(rows: Sequence[Change], label: str, title: str) -> str:
    """Draw ratios of two benchmarks with their intervals as SVG text, each file's name above its own.

    Args:
        rows: The figures, first on top.
        label: Label of the axis: the figure that the ratio compares.
        title: Title of the plot for screen readers; unique on a page.
    """
    with _new_axes(0.8 + 0.42 * len(rows)) as (drawing, axes):
        axes.axvline(1.0, color=_INK, linewidth=0.9)
        for y, row in enumerate(rows):
            look = look_of(row.number)
            axes.plot([row.low, row.high], [y, y], color=look.color, linewidth=2.0, solid_capstyle="butt")
            axes.plot([row.ratio], [y], marker=look.shape, color=look.color, markersize=6)
            place, system = (0, y - 0.34), ("axes fraction", "data")
            axes.annotate(row.name, place, xycoords=system, ha="left", va="center", fontsize=8, color=_INK)
        axes.set_ylim(len(rows) - 0.4, -0.75)
        axes.set_yticks([])
        axes.grid(visible=False, axis="y")
        ends = [1.0, *(end for row in rows for end in (row.low, row.high))]
        margin = max(0.02, 0.1 * (max(ends) - min(ends)))
        axes.set_xlim(max(0.0, min(ends) - margin), max(ends) + margin)
        axes.set_xlabel(label)
        return _to_svg(drawing, title)


def draw_two_distributions(rows: Sequence[tuple[int, Sequence[float], Sequence[float]]], label: str, title: str) -> str:
    """Draw cumulative latency curves of two benchmarks as SVG text, the earlier one dashed and pale.

    Args:
        rows: Number of the look, earlier and later times in ms of each file.
        label: Label of the horizontal axis.
        title: Title of the plot for screen readers; unique on a page.
    """
    with _new_axes(3.0) as (drawing, axes):
        for number, earlier, later in rows:
            _draw_share_curve(axes, earlier, look_of(number), (0, (3, 2)), 0.6)
            _draw_share_curve(axes, later, look_of(number), "solid", 1.0)
        _set_share_axes(axes, label, (1, 3))
        return _to_svg(drawing, title)


# --- files -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FilePoint:
    """One file in the plot of score, cost and size.

    Attributes:
        name: The file.
        cost: Cost of an inference: median latency in ms, estimated ms, or million instructions.
        low: Lower end of its interval; `cost` where there is none.
        high: Upper end.
        score: Deciding metric as printed.
        bytes: Size of the file.
        number: Number of its look.
        line: Whether it is on the front of score and cost, which is drawn as a line.
        beaten: Whether another file is at least as good in score, cost and size and better in one of them.
    """

    name: str
    cost: float
    low: float
    high: float
    score: float
    bytes: int
    number: int
    line: bool = False
    beaten: bool = False


def draw_score_over_cost(points: Sequence[FilePoint], cost: str, score: str, title: str) -> str:
    """Draw score over cost of an inference as SVG text, areas by file size, with the Pareto front.

    Args:
        points: The files.
        cost: Label of the horizontal axis, with unit, threads and length.
        score: Label of the vertical axis, with unit, and a hint if lower is better.
        title: Title of the plot for screen readers; unique on a page.
    """
    with _new_axes(3.3) as (drawing, axes):
        front = sorted((p for p in points if p.line), key=lambda p: p.cost)
        if len(front) > 1:
            costs, scores = [p.cost for p in front], [p.score for p in front]
            axes.step(costs, scores, where="post", color=_INK, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
        largest = max(p.bytes for p in points)
        for p in sorted(points, key=lambda p: -p.bytes):  # small ones on top
            look = look_of(p.number)
            if p.low < p.high:
                axes.plot([p.low, p.high], [p.score, p.score], color=look.color, linewidth=1.2, zorder=2)
            axes.scatter(
                [p.cost],
                [p.score],
                s=max(16.0, 1500 * p.bytes / largest),
                color=look.color,
                marker=look.shape,
                alpha=0.18 if p.beaten else 0.6,
                edgecolors=look.color,
                zorder=3,
            )
        _set_log_scale(axes, "x")
        axes.margins(x=0.22, y=0.35)
        axes.set_xlabel(cost)
        axes.set_ylabel(score)
        return _to_svg(drawing, title)


def draw_sizes(names: Sequence[str], sizes: Sequence[int], numbers: Sequence[int]) -> str:
    """Draw file sizes as horizontal bars; return the SVG text.

    Args:
        names: The files.
        sizes: Their sizes in bytes.
        numbers: Numbers of their looks.
    """
    with _new_axes(0.7 + 0.36 * len(names)) as (drawing, axes):
        rows = range(len(names))
        for row, size, number in zip(rows, sizes, numbers, strict=True):
            look, end = look_of(number), (size / 1e6, row)
            axes.barh(row, size / 1e6, color=look.color, alpha=0.3 if look.hatch else None, height=0.62)
            if look.hatch:  # in a bar without a face: the drawing would give a pale face and the lines one opacity
                axes.barh(row, size / 1e6, fill=False, edgecolor=look.color, hatch=look.hatch, height=0.62)
            axes.annotate(wording.size(size), end, (4, 0), textcoords="offset points", va="center", fontsize=8)
        axes.set_yticks(list(rows), list(names))
        axes.tick_params(axis="y", labelcolor=_INK, length=0)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.2)
        axes.set_xlabel("file size in MB")
        return _to_svg(drawing, "File sizes")


@dataclass(frozen=True)
class CandidatePoint:
    """One file in the plot of a search inside a budget.

    Attributes:
        name: The file.
        megabytes: Its size.
        lost: Loss of the score as printed.
        front: Whether no other file is both smaller and closer to the exported one.
        inside: Whether it is inside every limit.
        chosen: Whether it was chosen.
        student: The student that it is made of, which gives it its shape; empty where there is one only.
    """

    name: str
    megabytes: float
    lost: float
    front: bool
    inside: bool
    chosen: bool
    student: str = ""


def draw_search(
    points: Sequence[CandidatePoint], limits: tuple[float | None, float | None], scale: str, title: str
) -> str:
    """Draw score lost over file size of candidate files as SVG text, with the Pareto front and the limits.

    Args:
        points: The files that were scored.
        limits: Largest size in MB and largest loss on the printed scale; None where there is none.
        scale: Unit of the loss, with the metric.
        title: Title of the plot for screen readers; unique on a page.
    """
    with _new_axes(3.0) as (drawing, axes):
        students = list(dict.fromkeys(p.student for p in points))
        if len(students) == 1:
            front = sorted((p for p in points if p.front), key=lambda p: p.megabytes)
            axes.plot([p.megabytes for p in front], [p.lost for p in front], color=SERIES[1], linewidth=1.2)
        for p in points:
            shape = SHAPES[students.index(p.student) % len(SHAPES)]
            color, area = SERIES[1 if p.inside else 0], 90 if p.chosen else 34
            axes.scatter([p.megabytes], [p.lost], s=area, color=color, marker=shape, zorder=3)
        size, loss = limits
        if size is not None:
            axes.axvline(size, color=SERIES[5], linewidth=1.0, linestyle=(0, (4, 3)))
        if loss is not None:
            axes.axhline(loss, color=SERIES[5], linewidth=1.0, linestyle=(0, (4, 3)))
        axes.margins(x=0.18, y=0.3)
        axes.set_xlabel("file size in MB")
        axes.set_ylabel(scale)
        entries = [("inside", 1), ("outside", 0)] + ([("limit", 5)] if limits != (None, None) else [])
        shapes = {name: SHAPES[i % len(SHAPES)] for i, name in enumerate(students) if name}
        _add_legend(drawing, entries, columns=3, shapes=shapes)
        _write_names(drawing, axes, points)
        return _to_svg(drawing, title)


_POINT = 9
"""Width of a point in the drawing's pixels."""
_PLACES = ((0, 11, "center"), (0, -11, "center"), (7, 0, "left"), (-7, 0, "right"))
"""Where a name may be: above its point, below it, on its right, on its left."""


def _write_names(drawing: Drawing, axes: Axes, points: Sequence[CandidatePoint]) -> None:
    """Write the candidates' names next to their points, the chosen one's first, without covering anything.

    A name that has no place is left out: the table has them all.
    """
    from matplotlib.transforms import Bbox

    drawing.draw_without_rendering()  # decides where everything else is
    centres = [axes.transData.transform((p.megabytes, p.lost)) for p in points]
    taken = [Bbox.from_bounds(x - _POINT / 2, y - _POINT / 2, _POINT, _POINT) for x, y in centres]
    for p in sorted(points, key=lambda p: (not p.chosen, not p.inside, p.megabytes)):
        for x, y, side in _PLACES:
            name = axes.annotate(
                f"{p.name}, chosen" if p.chosen else p.name,
                (p.megabytes, p.lost),
                (x, y),
                textcoords="offset points",
                ha=side,
                va="center",
                fontsize=8,
                fontweight="bold" if p.chosen else "normal",
            )
            box = name.get_window_extent()
            inside = axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 and axes.bbox.y0 <= box.y0
            if inside and box.y1 <= axes.bbox.y1 and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            name.remove()


# --- training --------------------------------------------------------------------------------------------------------------------

_MAX_CURVE_POINTS = 400
"""Points of a curve that are drawn; more only make the page heavy."""


def draw_losses(lines: Mapping[str, Sequence[tuple[int, float]]], title: str) -> str:
    """Draw training losses over steps as SVG text; long curves are pale, with their running mean.

    Args:
        lines: (step, loss) by name.
        title: Title of the plot for screen readers; unique on a page.
    """
    with _new_axes(2.8) as (drawing, axes):
        values = [v for points in lines.values() for _, v in points if np.isfinite(v)]
        for number, points in enumerate(lines.values()):
            every = -(-len(points) // _MAX_CURVE_POINTS)
            steps, losses = (np.asarray(column, np.float64) for column in zip(*points[::every], strict=True))
            color = SERIES[(number + 1) % len(SERIES)]
            mean = _running_mean(losses)
            axes.plot(
                steps,
                losses,
                color=color,
                linewidth=0.8,
                marker="o" if len(steps) < 3 else "",  # a line of two points is short, of one point nothing
                markersize=2.5,
                alpha=0.35 if mean is not None else 1.0,
            )
            if mean is not None:
                axes.plot(steps, mean, color=color, linewidth=1.5)
        if values and min(values) > 0 and max(values) > 30 * min(values):
            _set_log_scale(axes, "y")
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        _add_legend(drawing, [(name, number + 1) for number, name in enumerate(lines)], columns=4)
        return _to_svg(drawing, title)


def _running_mean(values: np.ndarray) -> np.ndarray | None:
    """Return the centred mean over about a twentieth of the curve; None for curves of fewer than 40 points."""
    if len(values) < 40:
        return None
    width = len(values) // 20 | 1
    padded = np.pad(values, width // 2, mode="edge")
    return np.asarray(np.convolve(padded, np.ones(width) / width, mode="valid"))


# --- what all plots share --------------------------------------------------------------------------------------------------------


@contextmanager
def _new_axes(height: float) -> Iterator[tuple[Drawing, Axes]]:
    """Yield a matplotlib figure with one pair of axes in the report's style, `height` inches high."""
    require_report_packages()
    import matplotlib
    from matplotlib.figure import Figure as Drawing

    with matplotlib.rc_context(_STYLE):
        drawing = Drawing(figsize=(_WIDTH, height), layout="constrained")
        yield drawing, drawing.subplots()


def _to_svg(drawing: Drawing, title: str) -> str:
    """Return a matplotlib figure as SVG text for use inside a page; `title` becomes its label for screen readers.

    Prologue, metadata and name spaces (which look like addresses) are removed, ids get a prefix made from the title, and
    colours become the page's variables.
    """
    stream = io.StringIO()
    drawing.savefig(stream, format="svg", transparent=True)
    svg = stream.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.S)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.S)  # matplotlib repeats every text in a comment
    svg = re.sub(r'\sxmlns(:xlink)?="[^"]*"', "", svg).replace("xlink:href=", "href=")
    size = re.search(r'viewBox="([^"]*)"', svg)
    assert size is not None, "matplotlib writes a viewBox"
    prefix = re.sub(r"\W+", "-", title.lower()).strip("-")
    svg = re.sub(r'\bid="([^"]*)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'(href="|url\()#', rf"\1#{prefix}-", svg)
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, f"var({variable})")
    label = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return re.sub(r"<svg[^>]*>", f'<svg viewBox="{size[1]}" role="img" aria-label="{label}">', svg, count=1).strip()


def _draw_share_curve(
    axes: Axes, times: Sequence[float], look: _Look, dash: LineStyleType, alpha: float | None = None
) -> None:
    """Draw the cumulative curve of times in ms (share of inferences done), with a mark at the median."""
    ordered = np.sort(np.asarray(times, np.float64))
    rank = np.arange(1, len(ordered) + 1) / len(ordered) * 100
    axes.step(ordered, rank, where="post", color=look.color, linestyle=dash, alpha=alpha, linewidth=1.4)
    axes.plot([nearest_rank(ordered, 50)], [50], marker=look.shape, color=look.color, alpha=alpha, markersize=4)


def _set_share_axes(axes: Axes, label: str, dots: tuple[int, int]) -> None:
    """Set scales and labels of a cumulative latency plot; `dots` are dash and gap of the lines at 50 and 90 %."""
    for percent in (50, 90):
        axes.axhline(percent, color=_MUTED, linewidth=0.6, linestyle=(0, dots))
    _set_log_scale(axes, "x")
    axes.set_ylim(0, 102)
    axes.set_yticks([0, 25, 50, 75, 90, 100])
    axes.set_xlabel(label)
    axes.set_ylabel("% of inferences done")


def _set_log_scale(axes: Axes, which: str) -> None:
    """Give an axis, ``"x"`` or ``"y"``, a log scale with plain numbers at 1, 2 and 5."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    if which == "x":
        axes.set_xscale("log")
    else:
        axes.set_yscale("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def _add_legend(
    drawing: Drawing, entries: Sequence[tuple[str, int]], columns: int, shapes: Mapping[str, str] | None = None
) -> None:
    """Put a legend below a drawing.

    Args:
        drawing: The drawing.
        entries: Name and number of the colour of each entry.
        columns: Most entries in a row.
        shapes: Shape of the points of each student; None where there are no students to tell apart.
    """
    from matplotlib.lines import Line2D

    rows = [("o", SERIES[number % len(SERIES)], name) for name, number in entries]
    rows += [(shape, _MUTED, f"student {name}") for name, shape in (shapes or {}).items()]
    handles = [
        Line2D([], [], marker=shape, linestyle="", color=color, markersize=6, label=label)
        for shape, color, label in rows
    ]
    columns = min(columns, len(handles))
    drawing.legend(handles=handles, loc="outside lower center", ncols=columns, handletextpad=0.2, columnspacing=1.2)
