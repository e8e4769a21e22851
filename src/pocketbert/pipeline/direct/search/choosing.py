"""Which candidates are inside a budget, which of them is the best, and which one comes nearest where none is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pocketbert.core.artefacts import Candidate
from pocketbert.core.recipe.budget import BudgetSection

ACCURATE = "the file inside that is closest to the exported one; of equally close ones the smallest"
SMALLEST = "the smallest file inside"
_GRAINS = {"max_drop": 0.001, "max_size_mb": 0.1, "max_p90_ms": 0.1}
"""Limits that would have been enough are rounded up to these steps."""


def value_of(candidate: Candidate, limit: str) -> float | None:
    """What a candidate has where a limit is, in the limit's unit; None where it was not measured."""
    if limit == "max_size_mb":
        return None if candidate.bytes is None else candidate.bytes / 1e6
    return candidate.drop if limit == "max_drop" else candidate.p90_ms


def is_inside(candidate: Candidate, budget: BudgetSection) -> bool | None:
    """Whether a candidate is inside every limit; None where a figure that decides it is missing."""
    if not candidate.sound:
        return False
    values = {limit: value_of(candidate, limit) for limit in budget.set_limits}
    known = [(value, budget.set_limits[limit]) for limit, value in values.items() if value is not None]
    if any(not value <= limit for value, limit in known):  # NaN is never inside
        return False
    return True if len(known) == len(values) else None


def fits(candidate: Candidate, budget: BudgetSection, *limits: str) -> bool:
    """Whether no figure of a candidate is beyond one of some limits."""
    values = [(value_of(candidate, name), budget.set_limits[name]) for name in limits if name in budget.set_limits]
    return all(value is None or value <= limit for value, limit in values)


def front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those of which no other one is at least as small and at least as close to the exported file."""
    out: list[Candidate] = []
    for candidate in sorted((c for c in candidates if c.sound), key=_size_and_error):
        if not out or _error(candidate) < _error(out[-1]):
            out.append(candidate)
    return out


def best(candidates: Sequence[Candidate], budget: BudgetSection) -> Candidate | None:
    """The candidate to keep; None where none is inside."""
    inside = [c for c in candidates if c.inside]
    return min(inside, key=_order(budget), default=None)


def nearest_outside(candidates: Sequence[Candidate], budget: BudgetSection) -> Candidate | None:
    """Find the candidate that exceeds its limits by the smallest factor; None where none has all figures."""
    known = [c for c in candidates if c.sound and not math.isinf(excess(c, budget))]
    order = _order(budget)
    return min(known, key=lambda c: (excess(c, budget), *order(c)), default=None)


def limits_for(candidate: Candidate, budget: BudgetSection) -> BudgetSection:
    """The budget with each limit raised as far as a candidate needs it."""
    out = {}
    for name, limit in budget.set_limits.items():
        value, grain = value_of(candidate, name), _GRAINS[name]
        enough = math.ceil(round((value or 0.0) / grain, 6)) * grain
        out[name] = limit if value is None or value <= limit else round(enough, 6)
    return budget.model_copy(update=out)


def _order(budget: BudgetSection) -> Callable[[Candidate], tuple[float, float]]:
    """What decides between files inside: see `ACCURATE` and `SMALLEST`."""
    return _size_and_error if budget.smallest_wins else _error_and_size


def excess(candidate: Candidate, budget: BudgetSection) -> float:
    """By which factor a candidate exceeds its limits; 1 inside them, infinity where a figure is missing."""
    ratios = [1.0]
    for name, limit in budget.set_limits.items():
        value = value_of(candidate, name)
        if value is None or math.isnan(value):
            return math.inf
        ratios.append(value / max(limit, _GRAINS[name]))
    return max(ratios)


def _error(candidate: Candidate) -> float:
    return math.inf if candidate.rel is None else candidate.rel


def _size_and_error(candidate: Candidate) -> tuple[float, float]:
    return candidate.bytes or 0, _error(candidate)


def _error_and_size(candidate: Candidate) -> tuple[float, float]:
    return _error(candidate), candidate.bytes or 0
