"""The templates of the pages, which share one style and the same macros."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from pocketbert.benchmarks.report import plots

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup


def open_template(name: str) -> Template:
    """A template of this package, in which everything that is filled in is escaped.

    Args:
        name: File name.

    Raises:
        MissingBackendError: If matplotlib or jinja2 is not installed.
    """
    plots.require()
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    files = resources.files(__package__)
    environment = Environment(
        loader=FunctionLoader(lambda name: files.joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["swatch"] = swatch
    return environment.get_template(name)


def swatch(number: int) -> Markup:
    """The point of a legend: the colour and the shape of the file of a number; see `plots.look_of`."""
    from markupsafe import Markup

    shape = plots.SHAPES.index(plots.look_of(number).shape)
    style = f"dot s{shape}" if shape else "dot"
    return Markup(f'<span class="{style}" style="background:var(--c{number % len(plots.SERIES)})"></span>')  # noqa: S704
