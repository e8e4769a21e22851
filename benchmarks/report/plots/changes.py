"""Plots of two benchmarks: how figures changed, and both distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pocketbert.benchmarks.report.plots.drawing import INK, WIDTH, Drawing, look_of
from pocketbert.benchmarks.report.plots.latency import share_axes, share_curve


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
