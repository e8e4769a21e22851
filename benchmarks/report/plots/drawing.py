"""A plot in the report's style: SVG text without colours or identifiers, so that the page's theme applies."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pocketbert.core.errors import MissingBackendError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    figure: Figure, entries: Sequence[tuple[str, int]], columns: int, shapes: Mapping[str, str] | None = None
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
