"""Which candidates are inside a budget, which of them is the best, and which one comes nearest where none is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pocketbert.core.artefacts import Candidate, ConsideredStudent
from pocketbert.core.errors import GateError
from pocketbert.core.formats import FORMATS
from pocketbert.core.metrics import METRICS
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.recipe.quantize import LEFT, QuantizedFile
from pocketbert.core.types import Calibration, Format, Scheme

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


# --- finding ---
# What a search found in one format.


@dataclass(frozen=True)
class Finding:
    """What was found in one format.

    Attributes:
        format: The format.
        metric: The deciding metric.
        candidates: Every candidate with its figures, smallest expected size first.
        chosen: The one to keep; None where none is inside.
        nearest: Where none is: the one that comes nearest; None where none has all figures.
    """

    format: Format
    metric: str
    candidates: list[Candidate]
    chosen: Candidate | None
    nearest: Candidate | None


# --- wording ---
# What a search tells: a line for each candidate, why nothing was chosen, and the recipe lines of what was.


def figures_line(candidate: Candidate, metric: str = "") -> str:
    """The figures of a candidate on one line."""
    parts = [f"{(candidate.bytes or 0) / 1e6:.2f} MB"]
    if candidate.rel is not None:
        parts.append(f"RMS difference {candidate.rel:.3g} of the spread")
    if candidate.agreement is not None:
        parts.append(f"same label on {candidate.agreement:.1%}")
    if candidate.drop is not None:
        lost = METRICS[metric].lost(candidate.drop) if metric else f"drop {candidate.drop:.4f}"
        parts.append(lost)
    if candidate.p90_ms is not None:
        parts.append(f"p90 {candidate.p90_ms:.2f} ms")
    return f"{candidate.name}: {', '.join(parts)}"


def outside_lines(finding: Finding, budget: BudgetSection) -> list[str]:
    """Say that a format has no file inside, which one comes nearest, and which limits would take it."""
    lines = [f"{finding.format}: no file is inside {budget.text}."]
    broken = [f"{c.name}: {c.note}" for c in finding.candidates if c.note and not c.note.startswith("not written")]
    if finding.nearest is None:
        return [*lines, *broken]
    limits = limits_for(finding.nearest, budget)
    lines.append(f"The nearest is {figures_line(finding.nearest, finding.metric)}.")
    lines.append(f"It would be inside with: --budget {limits.text}")
    return [*lines, *broken]


def chosen_files(chosen: Sequence[Candidate]) -> list[QuantizedFile]:
    """Return the entries of ``quantize.files`` that make these files and no others.

    Args:
        chosen: A file of each format of the recipe.
    """
    schemes = {c.format: c.scheme for c in chosen}
    for scheme in Scheme:
        made = {f: FORMATS[f].smaller(scheme) if FORMATS[f].takes(scheme) else None for f in schemes}
        if made == schemes and not any(c.left for c in chosen):
            return [QuantizedFile(scheme=scheme)]
    return [QuantizedFile(scheme=c.scheme, format=c.format, roles=dict.fromkeys(c.left, LEFT)) for c in chosen]


def recipe_lines(files: Sequence[QuantizedFile], calibration: Calibration = Calibration.MINMAX) -> str:
    """The recipe's section, ready to copy.

    Args:
        files: The chosen files.
        calibration: How ranges of static files were chosen.
    """
    read = calibration is not Calibration.MINMAX and any(f.scheme.static for f in files)
    method = f", calibration: {calibration}" if read else ""
    return f"quantize: {{files: [{', '.join(map(_entry, files))}]{method}}}"


def _entry(file: QuantizedFile) -> str:
    if file.format is None:
        return file.scheme.value
    roles = ", ".join(f"{role}: null" for role in file.roles)
    return f"{{scheme: {file.scheme}, format: {file.format}{f', roles: {{{roles}}}' if roles else ''}}}"


# --- students ---
# Which of several students is the one whose files are kept, and what is told where none is.


@dataclass(frozen=True)
class Considered:
    """A student, and what was found among its files.

    Attributes:
        record: Its figures.
        findings: One for each format; empty where its files were not searched.
    """

    record: ConsideredStudent
    findings: Sequence[Finding] = ()

    @property
    def whole(self) -> bool:
        """Whether every format has a file inside."""
        return bool(self.findings) and all(f.chosen is not None for f in self.findings)

    @property
    def chosen(self) -> list[Candidate]:
        """Its best file of each format that has one inside."""
        return [f.chosen for f in self.findings if f.chosen is not None]


def best_student(considered: Sequence[Considered], budget: BudgetSection) -> Considered | None:
    """Find the student to keep: one student makes all files of a folder, so every format must have one inside.

    Args:
        considered: All students.
        budget: Decides the order, as it does among the files of one student: sums over the formats.
    """
    return min((c for c in considered if c.whole), key=lambda c: _students_order(c, budget), default=None)


def _students_order(student: Considered, budget: BudgetSection) -> tuple[float, float]:
    size = float(sum(c.bytes or 0 for c in student.chosen))
    error = float(sum(c.rel or 0.0 for c in student.chosen))
    return (size, error) if budget.smallest_wins else (error, size)


def cannot_win(error: float, best: Considered | None, budget: BudgetSection) -> bool:
    """Whether a student's files would all be further from the exported ones than those of another student, which are inside.

    Args:
        error: RMS difference of its own exported file: no scheme makes it smaller, because errors add in quadrature.
        best: The best student so far.
        budget: The limits: where the smallest file wins, a further one may still be it.
    """
    if best is None or budget.smallest_wins:
        return False
    return all(c.rel is not None and error > c.rel for c in best.chosen)


def one_choice(considered: Sequence[Considered], best: Considered) -> list[Finding]:
    """Return all findings with the files of one student as the chosen ones, and one front for each format.

    Args:
        considered: All students.
        best: The one that is kept.
    """
    findings = [(f, c is best) for c in considered for f in c.findings]
    scored = [x for f, _ in findings for x in f.candidates if x.drop is not None]
    formats = dict.fromkeys(x.format for x in scored)
    on_front = {id(x) for format in formats for x in front([x for x in scored if x.format is format])}
    return [
        replace(
            finding,
            candidates=[
                x.model_copy(update={"chosen": x.chosen and kept, "front": id(x) in on_front})
                for x in finding.candidates
            ],
        )
        for finding, kept in findings
    ]


def refuse_all(considered: Sequence[Considered], budget: BudgetSection) -> GateError:
    """Tell that no student has a file inside in every format, and which one comes nearest.

    Args:
        considered: All students.
        budget: The limits.
    """
    searched = [c for c in considered if c.findings]
    near = min(searched, key=lambda c: _distance(c, budget))
    lines = [line for f in near.findings if f.chosen is None for line in outside_lines(f, budget)]
    others = [f"{c.record.name}: {c.record.note}" for c in considered if c.record.note]
    head = f"No student has a file inside {budget.text} in every format. The nearest is {near.record.name}:"
    return GateError([head, *lines, *others, "No folder was written."])


def _distance(student: Considered, budget: BudgetSection) -> tuple[int, float]:
    """How many formats have nothing inside, and by which factor the nearest file of the worst one exceeds its limits."""
    outside = [f for f in student.findings if f.chosen is None]
    factors = [excess(f.nearest, budget) if f.nearest else float("inf") for f in outside]
    return len(outside), max(factors, default=1.0)
