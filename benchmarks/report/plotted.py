"""A plot of the report with the words under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markupsafe import Markup


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
