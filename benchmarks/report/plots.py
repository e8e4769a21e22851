"""The report's plots."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.statistics import nearest_rank
from pocketbert.core.errors import MissingBackendError

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as _drawing_Figure
    from matplotlib.typing import LineStyleType


# --- drawing ---
# A plot in the report's style: SVG text without colours or identifiers, so that the page's theme applies.


WIDTH = 5.2
"""Inches. At 72 units an inch a phone's screen shows the text at about its nominal size."""

# Drawn in these colours and then renamed to the page's variables: matplotlib wants real colours.
INK, MUTED, _LINE = "#1f2328", "#57606a", "#d8dee4"
SERIES = tuple(
    "#64748b #2563eb #d97706 #059669 #9333ea #dc2626 #0891b2 #be185d #65a30d #7c2d12 #1e3a8a #e879f9 #0f5132 #eab308".split()
)
SHAPES = "os^DvP"
"""Markers, also of the students in the plot of a search; the page's style has them as `.s0` to `.s5`."""
_DASHES: tuple[str | tuple[float, tuple[float, ...]], ...] = (
    "solid",
    (0, (6, 2)),
    (0, (1.5, 1.5)),
    (0, (6, 1.5, 1.5, 1.5)),
    (0, (3, 3)),
    (0, (9, 2, 2, 2, 2, 2)),
)
_HATCHES = ("", "/////", "....", "xxxxx", "-----", "+++++")
LOOKS = len(SERIES) * len(SHAPES)
"""Files that differ in colour or shape; further ones repeat the first."""
_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    _LINE: "--line",
    **{c: f"--c{i}" for i, c in enumerate(SERIES)},
}
_STYLE = {
    "svg.fonttype": "none", "text.parse_math": False, "svg.hashsalt": "pocketbert", "font.size": 9.0, "axes.titlesize": 9.0,
    "text.color": INK, "axes.edgecolor": MUTED, "axes.labelcolor": INK, "axes.linewidth": 0.6,
    "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelsize": 8.0, "ytick.labelsize": 8.0,
    "axes.grid": True, "grid.color": _LINE, "grid.linewidth": 0.6, "axes.axisbelow": True,
    "hatch.linewidth": 0.7, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "legend.fontsize": 8.0,
}  # fmt: skip


def require() -> None:
    """Check that the report can be made.

    Raises:
        MissingBackendError: If matplotlib or jinja2 is not installed.
    """
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingBackendError("matplotlib and jinja2", "pip install 'pocketbert[report]'") from error


class Drawing:
    """A figure with one pair of axes in the report's style; matplotlib's global state stays as it is.

    Args:
        width: In inches.
        height: In inches.
    """

    def __init__(self, width: float, height: float) -> None:
        require()
        import matplotlib

        self._context = matplotlib.rc_context(_STYLE)
        self._size = (width, height)

    def __enter__(self) -> Drawing:
        from matplotlib.figure import Figure

        self._context.__enter__()
        self.figure: Figure = Figure(figsize=self._size, layout="constrained")
        self.axes: Axes = self.figure.subplots()
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)

    def svg(self, title: str) -> str:
        """The drawing as SVG text; the title is what screen readers say."""
        stream = io.StringIO()
        self.figure.savefig(stream, format="svg", transparent=True)
        return _clean(stream.getvalue(), title)


def _clean(raw: str, title: str) -> str:
    """Only the drawing: no prologue, metadata or name spaces (which look like addresses), own ids, the page's colours."""
    svg = raw[raw.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
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


def color_of(number: int) -> str:
    """The colour of a number; more than there are begin again with the first, in another `Look`."""
    return SERIES[number % len(SERIES)]


@dataclass(frozen=True)
class Look:
    """How a file is drawn. Files of one colour differ in everything else.

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


def look_of(number: int) -> Look:
    """How the file of a number is drawn: after all colours in one look they begin again in the next one.

    Args:
        number: From 0; `LOOKS` numbers differ.
    """
    style = number // len(SERIES) % len(SHAPES)
    return Look(color_of(number), SHAPES[style], _DASHES[style], _HATCHES[style])


def log_axis(axes: Axes, which: str) -> None:
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


def legend(
    figure: _drawing_Figure, entries: Sequence[tuple[str, int]], columns: int, shapes: Mapping[str, str] | None = None
) -> None:
    """Put a legend below a figure.

    Args:
        figure: The figure.
        entries: Name and number of the colour of each entry.
        columns: Most entries in a row.
        shapes: Shape of the points of each student; None where there are no students to tell apart.
    """
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], marker="o", linestyle="", color=color_of(number), markersize=6, label=name)
        for name, number in entries
    ]
    handles += [
        Line2D([], [], marker=shape, linestyle="", color=MUTED, markersize=6, label=f"student {name}")
        for name, shape in (shapes or {}).items()
    ]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(columns, len(handles)),
        handletextpad=0.2,
        columnspacing=1.2,
    )


# --- latency ---
# Plots of latency: how it is distributed, and how it grows with the length.


def distribution(samples: Mapping[str, Sequence[float]], colors: Mapping[str, int], condition: str) -> str:
    """Share of inferences that are done after a time: the steeper, the steadier.

    Args:
        samples: Wall times in ms by variant.
        colors: Number of the colour by variant.
        condition: Threads and length in words.
    """
    with Drawing(WIDTH, 3.0) as canvas:
        axes = canvas.axes
        for name, values in samples.items():
            look = look_of(colors[name])
            share_curve(axes, values, look, look.dash)
        share_axes(axes, f"latency in ms, log scale ({condition})", (3, 3))
        return canvas.svg(f"Distribution of latency, {condition}")


def share_curve(
    axes: Axes, values: Sequence[float], look: Look, dash: LineStyleType, alpha: float | None = None
) -> None:
    """Draw the share of inferences that are done after a time, with a mark at the median.

    Args:
        axes: Where to draw.
        values: Times in ms.
        look: Colour and mark.
        dash: Style of the line.
        alpha: Opacity; None for all.
    """
    ordered = np.sort(np.asarray(values, np.float64))
    rank = np.arange(1, len(ordered) + 1) / len(ordered) * 100
    axes.step(ordered, rank, where="post", color=look.color, linestyle=dash, alpha=alpha, linewidth=1.4)
    axes.plot([nearest_rank(ordered, 50)], [50], marker=look.shape, color=look.color, alpha=alpha, markersize=4)


def share_axes(axes: Axes, label: str, dots: tuple[int, int]) -> None:
    """Set the axes of `share_curve`.

    Args:
        axes: The axes.
        label: What is on the horizontal axis.
        dots: Dash and space of the lines at 50 and 90 %.
    """
    for percent in (50, 90):
        axes.axhline(percent, color=MUTED, linewidth=0.6, linestyle=(0, dots))
    log_axis(axes, "x")
    axes.set_ylim(0, 102)
    axes.set_yticks([0, 25, 50, 75, 90, 100])
    axes.set_xlabel(label)
    axes.set_ylabel("% of inferences done")


def boxes(groups: Mapping[str, Mapping[str, Sequence[float]]], colors: Mapping[str, int], title: str) -> str:
    """Latency per length: box p25 to p75, line p50, whiskers p10 to p90, dot p99.

    Args:
        groups: Wall times in ms by length (in words) and variant.
        colors: Number of the colour by variant.
        title: What the plot shows.
    """
    with Drawing(WIDTH, 3.0) as canvas:
        axes = canvas.axes
        names = list(dict.fromkeys(n for group in groups.values() for n in group))
        width = 0.8 / max(1, len(names))
        for at, group in enumerate(groups.values()):
            for name, values in group.items():
                place = at + (names.index(name) - (len(names) - 1) / 2) * width
                look = look_of(colors[name])
                color = look.color
                low, q1, middle, q3, high, far = (nearest_rank(values, p) for p in (10, 25, 50, 75, 90, 99))
                axes.vlines(place, low, high, color=color, linewidth=1.0)
                axes.bar(
                    place,
                    q3 - q1,
                    width * 0.72,
                    bottom=q1,
                    color=color,
                    alpha=0.45,
                    edgecolor=color,
                    linewidth=0.8,
                )
                if look.hatch:
                    axes.bar(place, q3 - q1, width * 0.72, bottom=q1, fill=False, edgecolor=color, hatch=look.hatch)
                axes.hlines(middle, place - width * 0.36, place + width * 0.36, color=color, linewidth=2.0)
                axes.plot([place], [far], look.shape, color=color, markersize=2.5)
        # in two lines, since "real text, after 100 ms idle" covers its neighbour
        axes.set_xticks(range(len(groups)), [name.replace(", ", ",\n") for name in groups])
        axes.tick_params(axis="x", length=0, labelcolor=INK)
        axes.grid(visible=False, axis="x")
        log_axis(axes, "y")
        axes.set_ylabel("latency in ms, log scale")
        return canvas.svg(title)


# --- changes ---
# Plots of two benchmarks: how figures changed, and both distributions.


@dataclass(frozen=True)
class Change:
    """One figure in two benchmarks.

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


@dataclass(frozen=True)
class Spread:
    """Samples of one file in two benchmarks.

    Attributes:
        number: Number of the file's look.
        earlier: Times in ms.
        later: Times in ms.
    """

    number: int
    earlier: Sequence[float]
    later: Sequence[float]


def changes(rows: Sequence[Change], label: str, title: str) -> str:
    """Ratios with their intervals, each file's name above its own, which leaves the whole width to both.

    Args:
        rows: The figures, first on top.
        label: What the ratio is of.
        title: What the plot shows; unique on a page.
    """
    with Drawing(WIDTH, 0.8 + 0.42 * len(rows)) as canvas:
        axes = canvas.axes
        axes.axvline(1.0, color=INK, linewidth=0.9)
        for place, row in enumerate(rows):
            look = look_of(row.number)
            axes.plot([row.low, row.high], [place, place], color=look.color, linewidth=2.0, solid_capstyle="butt")
            axes.plot([row.ratio], [place], marker=look.shape, color=look.color, markersize=6)
            axes.annotate(
                row.name,
                (0, place - 0.34),
                xycoords=("axes fraction", "data"),
                ha="left",
                va="center",
                fontsize=8,
                color=INK,
            )
        axes.set_ylim(len(rows) - 0.4, -0.75)
        axes.set_yticks([])
        axes.grid(visible=False, axis="y")
        ends = [1.0, *(end for row in rows for end in (row.low, row.high))]
        margin = max(0.02, 0.1 * (max(ends) - min(ends)))
        axes.set_xlim(max(0.0, min(ends) - margin), max(ends) + margin)
        axes.set_xlabel(label)
        return canvas.svg(title)


def spreads(rows: Sequence[Spread], label: str, title: str) -> str:
    """Share of inferences that are done after a time, of the earlier benchmark dashed and pale.

    Args:
        rows: The files.
        label: What is on the horizontal axis.
        title: What the plot shows; unique on a page.
    """
    with Drawing(WIDTH, 3.0) as canvas:
        axes = canvas.axes
        for row in rows:
            look = look_of(row.number)
            for values, dash, alpha in ((row.earlier, (0, (3, 2)), 0.6), (row.later, "solid", 1.0)):
                share_curve(axes, values, look, dash, alpha)
        share_axes(axes, label, (1, 3))
        return canvas.svg(title)


# --- files ---
# Plots of files: score over latency and size, sizes, and what a search inside a budget considered.


_POINT = 9
"""Width of a point in the drawing's pixels."""
_PLACES = ((0, 11, "center"), (0, -11, "center"), (7, 0, "left"), (-7, 0, "right"))
"""Where a name may be: above its point, below it, on its right, on its left."""


@dataclass(frozen=True)
class Bubble:
    """One file in the plot of score, latency and size.

    Attributes:
        name: The file.
        cost: What an inference costs: median latency in ms, or instructions.
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


@dataclass(frozen=True)
class Considered:
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


def bubbles(points: Sequence[Bubble], cost: str, score: str, title: str) -> str:
    """Score over what an inference costs, with areas in proportion to file size, and the front of both.

    Args:
        points: The files.
        cost: What is on the horizontal axis, with its unit and condition.
        score: What is on the vertical axis, with its unit, and which way is better where that is down.
        title: What the plot shows; unique on a page.
    """
    with Drawing(WIDTH, 3.3) as canvas:
        axes = canvas.axes
        best = sorted((p for p in points if p.line), key=lambda p: p.cost)
        if len(best) > 1:
            places = [p.cost for p in best], [p.score for p in best]
            axes.step(*places, where="post", color=INK, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
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
        log_axis(axes, "x")
        axes.margins(x=0.22, y=0.35)
        axes.set_xlabel(cost)
        axes.set_ylabel(score)
        return canvas.svg(title)


def sizes(names: Sequence[str], counts: Sequence[int], numbers: Sequence[int]) -> str:
    """File sizes as bars.

    Args:
        names: The files.
        counts: Their bytes.
        numbers: Numbers of their looks.
    """
    with Drawing(WIDTH, 0.7 + 0.36 * len(names)) as canvas:
        axes = canvas.axes
        places = range(len(names))
        for place, count, number in zip(places, counts, numbers, strict=True):
            look = look_of(number)
            axes.barh(place, count / 1e6, color=look.color, alpha=0.3 if look.hatch else None, height=0.62)
            if look.hatch:  # in a bar without a face: the drawing would give a pale face and the lines one opacity
                axes.barh(place, count / 1e6, fill=False, edgecolor=look.color, hatch=look.hatch, height=0.62)
            axes.annotate(
                wording.size(count),
                (count / 1e6, place),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        axes.set_yticks(list(places), list(names))
        axes.tick_params(axis="y", labelcolor=INK, length=0)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.2)
        axes.set_xlabel("file size in MB")
        return canvas.svg("File sizes")


def front(points: Sequence[Considered], limits: tuple[float | None, float | None], scale: str, title: str) -> str:
    """Loss of the score over file size, with the front of those that no other one beats in both, and the limits.

    Args:
        points: The files that were scored.
        limits: Largest size in MB and largest loss on the printed scale; None where there is none.
        scale: Unit of the loss, with the metric.
        title: What the plot shows.
    """
    with Drawing(WIDTH, 3.0) as canvas:
        axes = canvas.axes
        students = list(dict.fromkeys(p.student for p in points))
        if len(students) == 1:
            line = sorted((p for p in points if p.front), key=lambda p: p.megabytes)
            axes.plot([p.megabytes for p in line], [p.lost for p in line], color=color_of(1), linewidth=1.2)
        for p in points:
            color = color_of(1 if p.inside else 0)
            shape = SHAPES[students.index(p.student) % len(SHAPES)]
            axes.scatter([p.megabytes], [p.lost], s=90 if p.chosen else 34, color=color, marker=shape, zorder=3)
        size, loss = limits
        if size is not None:
            axes.axvline(size, color=color_of(5), linewidth=1.0, linestyle=(0, (4, 3)))
        if loss is not None:
            axes.axhline(loss, color=color_of(5), linewidth=1.0, linestyle=(0, (4, 3)))
        axes.margins(x=0.18, y=0.3)
        axes.set_xlabel("file size in MB")
        axes.set_ylabel(scale)
        entries = [("inside", 1), ("outside", 0)] + ([("limit", 5)] if limits != (None, None) else [])
        shapes = {name: SHAPES[i % len(SHAPES)] for i, name in enumerate(students) if name}
        legend(canvas.figure, entries, columns=3, shapes=shapes)
        _write_names(canvas, points)
        return canvas.svg(title)


def _write_names(canvas: Drawing, points: Sequence[Considered]) -> None:
    """Write names next to their points, the chosen one's first, where no point and no other name is in the way.

    A name that has no place is left out: the table has them all.
    """
    from matplotlib.transforms import Bbox

    axes = canvas.axes
    canvas.figure.draw_without_rendering()  # decides where everything else is
    taken = [axes.transData.transform((p.megabytes, p.lost)) for p in points]
    boxes = [Bbox.from_bounds(x - _POINT / 2, y - _POINT / 2, _POINT, _POINT) for x, y in taken]
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
            if inside and box.y1 <= axes.bbox.y1 and not any(box.overlaps(other) for other in boxes):
                boxes.append(box)
                break
            name.remove()


# --- training ---
# Plots of training: losses over steps.


POINTS_MOST = 400
"""Points of a curve that are drawn; more only make the page heavy."""


def curve(lines: Mapping[str, Sequence[tuple[int, float]]], title: str) -> str:
    """Losses over steps; noisy ones with their running mean.

    Args:
        lines: (step, loss) by name.
        title: What the plot shows.
    """
    with Drawing(WIDTH, 2.8) as canvas:
        axes = canvas.axes
        values = [v for points in lines.values() for _, v in points if np.isfinite(v)]
        for number, points in enumerate(lines.values()):
            steps, losses = (np.asarray(column, np.float64) for column in zip(*_thinned(points), strict=True))
            color = color_of(number + 1)
            smooth = _running_mean(losses)
            # a line of two points is short, of one point nothing
            marker = "o" if len(steps) < 3 else ""
            axes.plot(
                steps,
                losses,
                color=color,
                linewidth=0.8,
                marker=marker,
                markersize=2.5,
                alpha=0.35 if smooth is not None else 1.0,
            )
            if smooth is not None:
                axes.plot(steps, smooth, color=color, linewidth=1.5)
        if values and min(values) > 0 and max(values) > 30 * min(values):
            log_axis(axes, "y")
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        legend(canvas.figure, [(name, number + 1) for number, name in enumerate(lines)], columns=4)
        return canvas.svg(title)


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    every = -(-len(points) // POINTS_MOST)
    return list(points[::every])


def _running_mean(values: np.ndarray) -> np.ndarray | None:
    """Centred mean over about a twentieth of the curve; None for short curves, which need none."""
    if len(values) < 40:
        return None
    width = len(values) // 20 | 1
    padded = np.pad(values, width // 2, mode="edge")
    return np.asarray(np.convolve(padded, np.ones(width) / width, mode="valid"))


# --- plotted ---
# A plot of the report with the words under it.


@dataclass(frozen=True)
class Figure:
    """A plot with the words under it.

    Attributes:
        svg: The drawing.
        caption: What it shows.
        stamp: Provenance, engine, machine, load.
        legend: Names with the numbers of their looks, written below the drawing, where long names find room.
    """

    svg: Markup
    caption: str
    stamp: str
    legend: Sequence[tuple[str, int]] = ()


def plotted(svg: str, caption: str, stamp: str, legend: Sequence[tuple[str, int]] = ()) -> Figure:
    """Make a figure of a drawing of this package, in which matplotlib has escaped all texts; see `Figure`."""
    from markupsafe import Markup

    return Figure(Markup(svg), caption, stamp, legend)  # noqa: S704
