"""The report's plots: SVG text without colours or identifiers, so that the page's theme applies."""

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
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 5.2
"""Inches. At 72 units an inch a phone's screen shows the text at about its nominal size."""
POINTS_MOST = 400
"""Points of a curve that are drawn; more only make the page heavy."""

# Drawn in these colours and then renamed to the page's variables: matplotlib wants real colours.
_INK, _MUTED, _LINE = "#1f2328", "#57606a", "#d8dee4"
SERIES = tuple(
    "#64748b #2563eb #d97706 #059669 #9333ea #dc2626 #0891b2 #be185d #65a30d #7c2d12 #1e3a8a #e879f9 #0f5132 #eab308".split()
)
_SHAPES = "os^DvP"
"""Shapes of students in the plot of a search."""
_VARIABLES = {
    _INK: "--ink",
    _MUTED: "--muted",
    _LINE: "--line",
    **{c: f"--c{i}" for i, c in enumerate(SERIES)},
}
_STYLE = {
    "svg.fonttype": "none", "text.parse_math": False, "svg.hashsalt": "pocketbert", "font.size": 9.0, "axes.titlesize": 9.0,
    "text.color": _INK, "axes.edgecolor": _MUTED, "axes.labelcolor": _INK, "axes.linewidth": 0.6,
    "xtick.color": _MUTED, "ytick.color": _MUTED, "xtick.labelsize": 8.0, "ytick.labelsize": 8.0,
    "axes.grid": True, "grid.color": _LINE, "grid.linewidth": 0.6, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "legend.fontsize": 8.0,
}  # fmt: skip


@dataclass(frozen=True)
class Bubble:
    """One model in the plot of score, latency and size.

    Attributes:
        name: The model.
        ms: Median latency.
        low: Lower end of its interval.
        high: Upper end.
        score: Deciding metric as printed.
        bytes: Size of the file.
        color: Number of its colour.
    """

    name: str
    ms: float
    low: float
    high: float
    score: float
    bytes: int
    color: int


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


def bubbles(points: Sequence[Bubble], metric: str, scale: str, condition: str) -> str:
    """Score over latency, with areas in proportion to file size.

    Args:
        points: The models.
        metric: Name of the score.
        scale: Its unit, and which way is better where that is down.
        condition: Threads and length in words.
    """
    with _Drawing(WIDTH, 3.3) as canvas:
        axes = canvas.axes
        largest = max(p.bytes for p in points)
        for p in sorted(points, key=lambda p: -p.bytes):  # small ones on top
            color = _color(p.color)
            axes.plot([p.low, p.high], [p.score, p.score], color=color, linewidth=1.2)
            axes.scatter(
                [p.ms],
                [p.score],
                s=max(16.0, 1500 * p.bytes / largest),
                color=color,
                alpha=0.55,
                edgecolors=color,
                label=f"{p.name}, {wording.size(p.bytes)}",
            )
        _log_axis(axes, "x")
        axes.margins(x=0.22, y=0.35)
        axes.set_xlabel(f"p50 latency in ms, log scale ({condition})")
        axes.set_ylabel(f"{metric}, {scale}")
        return canvas.svg(f"{metric} against latency and size")


def sizes(names: Sequence[str], counts: Sequence[int], colors: Sequence[int]) -> str:
    """File sizes as bars."""
    with _Drawing(WIDTH, 0.7 + 0.36 * len(names)) as canvas:
        axes = canvas.axes
        places = range(len(names))
        axes.barh(places, [c / 1e6 for c in counts], color=[_color(i) for i in colors], height=0.62)
        for place, count in zip(places, counts, strict=True):
            axes.annotate(
                wording.size(count),
                (count / 1e6, place),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        axes.set_yticks(list(places), list(names))
        axes.tick_params(axis="y", labelcolor=_INK, length=0)
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
    with _Drawing(WIDTH, 3.0) as canvas:
        axes = canvas.axes
        line = sorted((p for p in points if p.front), key=lambda p: p.megabytes)
        axes.plot([p.megabytes for p in line], [p.lost for p in line], color=_color(1), linewidth=1.2)
        students = list(dict.fromkeys(p.student for p in points))
        for number, p in enumerate(points := sorted(points, key=lambda p: p.megabytes)):
            color = _color(1 if p.inside else 0)
            shape = _SHAPES[students.index(p.student) % len(_SHAPES)]
            axes.scatter([p.megabytes], [p.lost], s=90 if p.chosen else 34, color=color, marker=shape, zorder=3)
            last = number > 0 and number == len(points) - 1
            falling = last and p.lost < points[number - 1].lost
            axes.annotate(
                f"{p.name}, chosen" if p.chosen else p.name,
                (p.megabytes, p.lost),
                (0, -16 if falling else 8),  # below, where the line comes down from above
                textcoords="offset points",
                ha="right" if last else "left",
                fontsize=8,
                fontweight="bold" if p.chosen else "normal",
            )
        size, loss = limits
        if size is not None:
            axes.axvline(size, color=_color(5), linewidth=1.0, linestyle=(0, (4, 3)))
        if loss is not None:
            axes.axhline(loss, color=_color(5), linewidth=1.0, linestyle=(0, (4, 3)))
        axes.margins(x=0.18, y=0.3)
        axes.set_xlabel("file size in MB")
        axes.set_ylabel(scale)
        entries = [("inside", 1), ("outside", 0)] + ([("limit", 5)] if limits != (None, None) else [])
        shapes = {name: _SHAPES[i % len(_SHAPES)] for i, name in enumerate(students) if name}
        _legend(canvas.figure, entries, columns=3, shapes=shapes)
        return canvas.svg(title)


def distribution(samples: Mapping[str, Sequence[float]], colors: Mapping[str, int], condition: str) -> str:
    """Share of inferences that are done after a time: the steeper, the steadier.

    Args:
        samples: Wall times in ms by variant.
        colors: Number of the colour by variant.
        condition: Threads and length in words.
    """
    with _Drawing(WIDTH, 3.0) as canvas:
        axes = canvas.axes
        for name, values in samples.items():
            ordered = np.sort(np.asarray(values, np.float64))
            rank = np.arange(1, len(ordered) + 1) / len(ordered) * 100
            axes.step(ordered, rank, where="post", color=_color(colors[name]), linewidth=1.4)
        for percent in (50, 90):
            axes.axhline(percent, color=_MUTED, linewidth=0.6, linestyle=(0, (3, 3)))
        _log_axis(axes, "x")
        axes.set_ylim(0, 102)
        axes.set_yticks([0, 25, 50, 75, 90, 100])
        axes.set_xlabel(f"latency in ms, log scale ({condition})")
        axes.set_ylabel("% of inferences done")
        return canvas.svg(f"Distribution of latency, {condition}")


def boxes(groups: Mapping[str, Mapping[str, Sequence[float]]], colors: Mapping[str, int], title: str) -> str:
    """Latency per length: box p25 to p75, line p50, whiskers p10 to p90, dot p99.

    Args:
        groups: Wall times in ms by length (in words) and variant.
        colors: Number of the colour by variant.
        title: What the plot shows.
    """
    with _Drawing(WIDTH, 3.0) as canvas:
        axes = canvas.axes
        names = list(dict.fromkeys(n for group in groups.values() for n in group))
        width = 0.8 / max(1, len(names))
        for at, group in enumerate(groups.values()):
            for name, values in group.items():
                place = at + (names.index(name) - (len(names) - 1) / 2) * width
                color = _color(colors[name])
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
                axes.hlines(middle, place - width * 0.36, place + width * 0.36, color=color, linewidth=2.0)
                axes.plot([place], [far], ".", color=color, markersize=3)
        axes.set_xticks(range(len(groups)), list(groups))
        axes.tick_params(axis="x", length=0, labelcolor=_INK)
        axes.grid(visible=False, axis="x")
        _log_axis(axes, "y")
        axes.set_ylabel("latency in ms, log scale")
        return canvas.svg(title)


def curve(lines: Mapping[str, Sequence[tuple[int, float]]], title: str) -> str:
    """Losses over steps; noisy ones with their running mean.

    Args:
        lines: (step, loss) by name.
        title: What the plot shows.
    """
    with _Drawing(WIDTH, 2.8) as canvas:
        axes = canvas.axes
        values = [v for points in lines.values() for _, v in points if np.isfinite(v)]
        for number, points in enumerate(lines.values()):
            steps, losses = (np.asarray(column, np.float64) for column in zip(*_thinned(points), strict=True))
            color = _color(number + 1)
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
            _log_axis(axes, "y")
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        _legend(canvas.figure, [(name, number + 1) for number, name in enumerate(lines)], columns=4)
        return canvas.svg(title)


class _Drawing:
    """A figure with one pair of axes in the report's style; matplotlib's global state stays as it is."""

    def __init__(self, width: float, height: float) -> None:
        require()
        import matplotlib

        self._context = matplotlib.rc_context(_STYLE)
        self._size = (width, height)

    def __enter__(self) -> _Drawing:
        from matplotlib.figure import Figure

        self._context.__enter__()
        self.figure: Figure = Figure(figsize=self._size, layout="constrained")
        self.axes: Axes = self.figure.subplots()
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)

    def svg(self, title: str) -> str:
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


def _color(number: int) -> str:
    return SERIES[number % len(SERIES)]


def _log_axis(axes: Axes, which: str) -> None:
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


def _legend(
    figure: Figure, entries: Sequence[tuple[str, int]], columns: int, shapes: Mapping[str, str] | None = None
) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], marker="o", linestyle="", color=_color(number), markersize=6, label=name)
        for name, number in entries
    ]
    handles += [
        Line2D([], [], marker=shape, linestyle="", color=_MUTED, markersize=6, label=f"student {name}")
        for name, shape in (shapes or {}).items()
    ]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(columns, len(handles)),
        handletextpad=0.2,
        columnspacing=1.2,
    )


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
