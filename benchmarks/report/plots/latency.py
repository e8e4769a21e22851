"""Plots of latency: how it is distributed, and how it grows with the length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pocketbert.benchmarks.report.plots.drawing import INK, MUTED, WIDTH, Drawing, Look, log_axis, look_of
from pocketbert.benchmarks.statistics import nearest_rank

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import LineStyleType


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
