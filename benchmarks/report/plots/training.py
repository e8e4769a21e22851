"""Plots of training: losses over steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pocketbert.benchmarks.report.plots.drawing import WIDTH, Drawing, color_of, legend, log_axis

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
