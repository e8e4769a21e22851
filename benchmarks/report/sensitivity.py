"""The report's part on sensitivity: a bar for each role, the prediction and the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pocketbert.benchmarks import wording
from pocketbert.core.artefacts.sensitivity import Sensitivities, Sensitivity
from pocketbert.core.formats import FORMATS


@dataclass(frozen=True)
class Bar:
    """One bar.

    Attributes:
        name: The role, or which file with all roles it is.
        share: Length, relative to the longest one of the format and scheme.
        error: RMS difference.
        part: Share of the sum of squares.
        saved: What the file is smaller.
        note: Why there is no figure.
        whole: Whether it is of all roles.
    """

    name: str
    share: float
    error: str
    part: str
    saved: str
    note: str = ""
    whole: bool = False


@dataclass(frozen=True)
class Bars:
    """The bars of one format and scheme.

    Attributes:
        title: Format and scheme.
        bars: The roles, then the prediction and the whole.
        note: Why there are none.
    """

    title: str
    bars: Sequence[Bar]
    note: str


def sensitivity_bars(found: Sensitivities | None) -> list[Bars]:
    """What is drawn of each format and scheme."""
    schemes = found.schemes if found is not None else []
    return [Bars(f"{FORMATS[one.format].title} {one.scheme}", _bars(one), one.note) for one in schemes]


def _bars(one: Sensitivity) -> list[Bar]:
    if one.note:
        return []
    values = [*(r.rel for r in one.roles), one.predicted, one.whole]
    most = max((v for v in values if v is not None), default=0.0) or 1.0

    def bar(name: str, value: float | None, part: float | None, saved: int | None, note: str, whole: bool) -> Bar:
        return Bar(
            name=name,
            share=(value or 0.0) / most,
            error=wording.NONE if value is None else f"{value:.4f}",
            part=wording.NONE if part is None else wording.share(part),
            saved=wording.NONE if saved is None else wording.size(saved),
            note=note,
            whole=whole,
        )

    return [
        *(bar(r.role, r.rel, one.share(r), r.saved, r.note, whole=False) for r in one.roles),
        bar("all, predicted", one.predicted, None, None, "", whole=True),
        bar("all, measured", one.whole, None, one.saved, "", whole=True),
    ]
