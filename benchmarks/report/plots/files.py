"""Plots of files: score over latency and size, sizes, and what a search inside a budget considered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.report.plots.drawing import INK, SHAPES, WIDTH, Drawing, color_of, legend, log_axis, look_of

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
