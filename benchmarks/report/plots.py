"""Plots of the report as SVG text without colours or identifiers of their own, so that the page's theme applies.

Latency: `draw_distribution` and `draw_boxes`. Two benchmarks: `draw_changes` and `draw_two_distributions`. Files:
`draw_score_over_cost`, and `draw_search` for what a search inside a budget considered. Training:
`draw_losses` and `draw_course`.
`make_figure` adds caption, source and legend to a drawing; `look_of` gives each file its colour, marker, dashes and hatching.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pocketbert.benchmarks.statistics import nearest_rank
from pocketbert.core.errors import MissingBackendError

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing
    from matplotlib.typing import LineStyleType

    from pocketbert.benchmarks.report.sources import Citation

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
    "solid", (0, (6, 2)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 3)), (0, (9, 2, 2, 2, 2, 2))
)  # fmt: skip
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
        sources: Marks of the machines that the figures come from.
        legend: Names with the numbers of their looks, written below the drawing, where long names find room.
    """

    svg: Markup
    caption: str
    sources: Sequence[Citation]
    legend: Sequence[tuple[str, int]] = ()


def make_figure(svg: str, caption: str, sources: Sequence[Citation], legend: Sequence[tuple[str, int]] = ()) -> Figure:
    """Wrap a drawing of this module as a figure with caption, sources and legend; the SVG is already escaped."""
    from markupsafe import Markup

    return Figure(Markup(svg), caption, sources, legend)  # noqa: S704


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
        colors: For each variant the number from which its colour and shape derive.
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
        groups: Wall times in ms by length (in words), then by variant.
        colors: For each variant the number from which its colour and shape derive.
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
    """Draw the box, whiskers and p99 of one file's times at position `x`; `look` is its colour and shape."""
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
    """Draw the ratios of later to earlier figures, with their intervals, as SVG text; each file's name stands above its ratio.

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
        rows: For each file the number from which its colour derives, and its earlier and later times in ms.
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
        beaten: Whether another file is at least as good in score, cost and size and better in one of them, or the point is
            for comparison only: it is pale.
        chosen: Whether it is the file to take on a platform.
        spread: Lower and upper end of the interval of the score; empty if unknown.
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
    chosen: bool = False
    spread: tuple[float, ...] = ()


def draw_score_over_cost(points: Sequence[FilePoint], cost: str, score: str, title: str, least: float = -1) -> str:
    """Draw the files' scores over the cost of an inference as SVG text, with areas by file size and the Pareto front.

    Args:
        points: The files with their scores, costs and sizes.
        cost: Label of the horizontal axis, with unit, threads and length.
        score: Label of the vertical axis, with unit, and a hint if lower is better.
        title: Title of the plot for screen readers; unique on a page.
        least: Score that a file has to reach, drawn as a line; negative for none.
    """
    with _new_axes(3.3) as (drawing, axes):
        if least >= 0:
            axes.axhline(least, color=_MUTED, linestyle=(0, (4, 2)), zorder=1)
        front = sorted((p for p in points if p.line), key=lambda p: p.cost)
        if len(front) > 1:
            costs, scores = [p.cost for p in front], [p.score for p in front]
            axes.step(costs, scores, where="post", color=_INK, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
        largest = max(p.bytes for p in points)
        for p in sorted(points, key=lambda p: -p.bytes):  # small ones on top
            look = look_of(p.number)
            if p.low < p.high:
                axes.plot([p.low, p.high], [p.score, p.score], color=look.color, linewidth=1.2, zorder=2)
            axes.plot([p.cost] * len(p.spread), p.spread, color=look.color, linewidth=1.2, zorder=2)
            area, alpha = max(16.0, 700 * p.bytes / largest), 0.18 if p.beaten else 0.6
            color, shape = look.color, look.shape
            axes.scatter([p.cost], [p.score], area, color, marker=shape, alpha=alpha, edgecolors=color, zorder=3)
        _set_log_scale(axes, "x")
        axes.margins(x=0.22, y=0.35)
        if max(p.score for p in points) <= 100:
            axes.set_ylim(top=min(axes.get_ylim()[1], 101.0))  # no score in points is larger
        axes.set_xlabel(cost)
        axes.set_ylabel(score)
        ordered = sorted(points, key=lambda p: (not p.chosen, p.beaten, p.cost))
        areas = [max(16.0, 700 * p.bytes / largest) for p in ordered]
        labels = [_PointName(p.name, p.cost, p.score, p.chosen, a) for p, a in zip(ordered, areas, strict=True)]
        _write_names(drawing, axes, labels)
        return _to_svg(drawing, title)


@dataclass(frozen=True)
class CandidatePoint:
    """One file in the plot of a search inside a budget, or of a plan.

    Attributes:
        name: The file.
        megabytes: Its size.
        height: Loss of the score as printed, or latency in ms.
        front: Whether no other file is both smaller and closer to the exported one.
        inside: Whether it is inside every limit.
        chosen: Whether it was chosen.
        group: Its student or its scheme in words, which gives it its shape; empty where there is one only.
    """

    name: str
    megabytes: float
    height: float
    front: bool
    inside: bool
    chosen: bool
    group: str = ""


def draw_search(
    points: Sequence[CandidatePoint],
    limits: tuple[float | None, float | None],
    scale: str,
    title: str,
    log: bool = False,
) -> str:
    """Draw the score lost, or the latency, over the size of candidate files as SVG text, with the limits.

    The Pareto front is drawn too if all candidates have one group.

    Args:
        points: The candidate files.
        limits: Largest allowed size in MB and largest allowed height on the printed scale; None for no limit.
        scale: Label of the vertical axis.
        title: Title of the plot for screen readers; unique on a page.
        log: Whether the vertical axis has a log scale.
    """
    with _new_axes(3.0) as (drawing, axes):
        groups = list(dict.fromkeys(p.group for p in points))
        if len(groups) == 1:
            front = sorted((p for p in points if p.front), key=lambda p: p.megabytes)
            axes.plot([p.megabytes for p in front], [p.height for p in front], color=SERIES[1], linewidth=1.2)
        for p in points:
            marker = SHAPES[groups.index(p.group) % len(SHAPES)]
            color, area = SERIES[1 if p.inside else 0], 90 if p.chosen else 34
            axes.scatter([p.megabytes], [p.height], s=area, color=color, marker=marker, zorder=3)
        for limit, draw_line in zip(limits, (axes.axvline, axes.axhline), strict=True):
            if limit is not None:
                draw_line(limit, color=SERIES[5], linewidth=1.0, linestyle=(0, (4, 3)))
        if log:
            _set_log_scale(axes, "y")
        axes.margins(x=0.18, y=0.15 if log else 0.3)
        axes.set_xlabel("file size in MB")
        axes.set_ylabel(scale)
        entries = [("inside", 1), ("outside", 0)] + ([("limit", 5)] if limits != (None, None) else [])
        shapes = {name: SHAPES[i % len(SHAPES)] for i, name in enumerate(groups) if name}
        _add_legend(drawing, entries, columns=3, shapes=shapes)
        ordered = sorted(points, key=lambda p: (not p.chosen, not p.inside, p.megabytes))
        names = [(f"{p.name}, chosen" if p.chosen else p.name, p) for p in ordered]
        _write_names(drawing, axes, [_PointName(name, p.megabytes, p.height, p.chosen) for name, p in names])
        return _to_svg(drawing, title)


class _PointName(NamedTuple):
    """A name to be written beside a point: its text, the point's place and area, and whether the name is bold."""

    text: str
    x: float
    y: float
    bold: bool
    area: float = 34.0


_LONGEST_NAME, _MOST_NAMES = 30, 16
"""Letters of a name in a drawing, and how many names are tried."""


def _write_names(drawing: Drawing, axes: Axes, names: Sequence[_PointName]) -> None:
    """Write names beside their points, the first ones first, so that they cover nothing.

    Long names are cut. Names without room, and those after the first `_MOST_NAMES`, are left out: the legend or the table
    has them all.
    """
    from matplotlib.transforms import Bbox

    drawing.draw_without_rendering()  # decides where everything else is
    centres = [axes.transData.transform((p.x, p.y)) for p in names]
    widths = [p.area**0.5 * drawing.dpi / 72 for p in names]
    taken = [Bbox.from_bounds(x - w / 2, y - w / 2, w, w) for (x, y), w in zip(centres, widths, strict=True)]
    for p in names[:_MOST_NAMES]:
        text = p.text if len(p.text) <= _LONGEST_NAME else f"{p.text[: _LONGEST_NAME - 1]}…"
        far = p.area**0.5 / 2 + 7  # above its point, below it, on its right, on its left
        for x, y, side in ((0, far, "center"), (0, -far, "center"), (far - 3, 0, "left"), (3 - far, 0, "right")):
            name = axes.annotate(
                text,
                (p.x, p.y),
                (x, y),
                textcoords="offset points",
                ha=side,
                va="center",
                fontsize=8,
                fontweight="bold" if p.bold else "normal",
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
            marker = "o" if len(steps) < 3 else ""  # a line of two points is short, of one point nothing
            alpha = 0.35 if mean is not None else 1.0
            axes.plot(steps, losses, color=color, linewidth=0.8, marker=marker, markersize=2.5, alpha=alpha)
            if mean is not None:
                axes.plot(steps, mean, color=color, linewidth=1.5)
        if values and min(values) > 0 and max(values) > 30 * min(values):
            _set_log_scale(axes, "y")
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        _add_legend(drawing, [(name, number + 1) for number, name in enumerate(lines)], columns=4)
        return _to_svg(drawing, title)


def draw_course(
    rates: Sequence[tuple[int, float]], scores: Sequence[tuple[int, float]], best_step: int, metric: str, title: str
) -> str:
    """Draw the learning rate of a training over steps as SVG text, and the scores on validation rows with the kept one marked.

    Args:
        rates: (step, learning rate).
        scores: (step, score); empty for none.
        best_step: Step of the weights that were kept.
        metric: Name of the scores.
        title: Title of the plot for screen readers; unique on a page.
    """
    with _new_axes(2.4) as (drawing, axes):
        steps, values = zip(*rates, strict=True)
        axes.plot(steps, values, color=SERIES[0], linewidth=1.2, linestyle=(0, (4, 2)))
        axes.set_xlabel("step")
        axes.set_ylabel("learning rate (dashed)")
        axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
        if scores:
            right = axes.twinx()
            right.plot(*zip(*scores, strict=True), color=SERIES[1], linewidth=1.5, marker="o", markersize=3.5)
            kept = [(step, score) for step, score in scores if step == best_step]
            right.plot(
                *zip(*kept, strict=True), color=SERIES[2], marker="o", markersize=7, linestyle=""
            ) if kept else None
            right.set_ylabel(f"{metric} on validation rows")
            right.spines["right"].set_visible(True)
            right.grid(visible=False)
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
    """Return a matplotlib figure as SVG text to put into a page; `title` becomes its label for screen readers.

    Prologue, metadata and name spaces are removed, ids get a prefix made from the title, and colours become the page's CSS
    variables.
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
    if len(ordered) > _MAX_CURVE_POINTS:
        shown = np.linspace(0, len(ordered) - 1, _MAX_CURVE_POINTS).round().astype(int)
        ordered, rank = ordered[shown], rank[shown]
    axes.step(ordered, rank, where="post", color=look.color, linestyle=dash, alpha=alpha, linewidth=1.4)
    axes.plot([nearest_rank(ordered, 50)], [50], marker=look.shape, color=look.color, alpha=alpha, markersize=4)


def _set_share_axes(axes: Axes, label: str, dots: tuple[int, int]) -> None:
    """Set scales and labels of a cumulative latency plot; `dots` is the dash pattern of the lines at 50 and 90 %."""
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
        shapes: Marker shape of each group of points, by its name; None if there is only one.
    """
    from matplotlib.lines import Line2D

    rows = [("o", SERIES[number % len(SERIES)], name) for name, number in entries]
    rows += [(shape, _MUTED, name) for name, shape in (shapes or {}).items()]
    looks: dict[str, Any] = {"linestyle": "", "markersize": 6}
    handles = [Line2D([], [], marker=shape, color=color, label=label, **looks) for shape, color, label in rows]
    columns = min(columns, len(handles))
    drawing.legend(handles=handles, loc="outside lower center", ncols=columns, handletextpad=0.2, columnspacing=1.2)
