"""Choosing among measured files: which are inside a budget, which one is best, and which student's files are kept.

In the order of a search:

1. `is_within` and `is_inside` compare a candidate's figures with the limits, `pareto_front` drops files that another
   one beats,
2. `best_candidate` chooses a file of one format; `nearest_candidate` finds the closest miss where no file is inside,
3. `best_student` and `cannot_win` compare students, `merge_student_results` keeps the files of one of them,
4. `describe_candidate`, `describe_failure`, `no_student_error` and `recipe_lines` word the outcome.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pocketbert.core.artefacts import Candidate, ConsideredStudent
from pocketbert.core.errors import GateError
from pocketbert.core.formats import FORMATS
from pocketbert.core.metrics import METRICS
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.recipe.quantize import UNCHANGED, QuantizedFile
from pocketbert.core.types import Calibration, Format, Scheme

ACCURATE = "the file inside that is closest to the exported one; of equally close ones the smallest"
SMALLEST = "the smallest file inside"
_LIMIT_STEPS = {"max_drop": 0.001, "max_size_mb": 0.1, "max_p90_ms": 0.1}
"""Limits that would have been enough are rounded up to these steps."""


@dataclass(frozen=True)
class FormatResult:
    """The result of a budget search among the quantized files of one format.

    Attributes:
        format: The format.
        metric: Name of the metric that decides on files.
        candidates: Every candidate with what was measured, smallest expected size first.
        chosen: The file to keep; None if none is inside the budget.
        nearest: If none is inside: the file that exceeds the limits least; None if no file was measured completely.
    """

    format: Format
    metric: str
    candidates: list[Candidate]
    chosen: Candidate | None
    nearest: Candidate | None


@dataclass(frozen=True)
class StudentResult:
    """A student model, and the results of the search among its quantized files.

    Attributes:
        record: The student's parameters, loss and note.
        findings: The search result of each format; empty if the student's files were not searched.
    """

    record: ConsideredStudent
    findings: Sequence[FormatResult] = ()

    @property
    def whole(self) -> bool:
        """Whether every format has a file inside the budget."""
        return bool(self.findings) and all(f.chosen is not None for f in self.findings)

    @property
    def chosen(self) -> list[Candidate]:
        """The best file of each format that has one inside the budget."""
        return [f.chosen for f in self.findings if f.chosen is not None]


# --- one format -------------------------------------------------------------------------------------------------------


def is_inside(candidate: Candidate, budget: BudgetSection) -> bool | None:
    """Return whether a candidate file keeps every limit of the budget; None if that is not known yet.

    A broken file keeps none. It is not known yet if the file keeps all limits on what was measured, but something was
    not measured.
    """
    if not candidate.sound:
        return False
    values = {limit: _measured_value(candidate, limit) for limit in budget.set_limits}
    known = [(value, budget.set_limits[limit]) for limit, value in values.items() if value is not None]
    if any(not value <= limit for value, limit in known):  # NaN is never inside
        return False
    return True if len(known) == len(values) else None


def is_within(candidate: Candidate, budget: BudgetSection, limit: str) -> bool:
    """Return whether a candidate file keeps one limit. It is true, too, if the limit is not set or not measured."""
    value, bound = _measured_value(candidate, limit), budget.set_limits.get(limit)
    return bound is None or value is None or value <= bound


def pareto_front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidate files on the Pareto front, smallest first: no other one is at most as large and at most as far off.

    Of equal ones the first is returned. Broken candidates are left out.
    """
    front: list[Candidate] = []
    for candidate in sorted((c for c in candidates if c.sound), key=lambda c: (c.bytes or 0, _error(c))):
        if not front or _error(candidate) < _error(front[-1]):
            front.append(candidate)
    return front


def best_candidate(candidates: Sequence[Candidate], budget: BudgetSection) -> Candidate | None:
    """Return the candidate file to keep; None if none is inside the budget.

    It is the one that `ACCURATE` describes or, if the budget lets the smallest file win, `SMALLEST`.
    """
    return min((c for c in candidates if c.inside), key=lambda c: _preference(c, budget), default=None)


def nearest_candidate(candidates: Sequence[Candidate], budget: BudgetSection) -> Candidate | None:
    """Return the file that exceeds the limits by the smallest factor; None if no file was measured completely."""
    known = [c for c in candidates if c.sound and not math.isinf(_excess_factor(c, budget))]
    return min(known, key=lambda c: (_excess_factor(c, budget), *_preference(c, budget)), default=None)


def widened_budget(candidate: Candidate, budget: BudgetSection) -> BudgetSection:
    """Return the budget with each limit that a candidate file exceeds raised to its value, rounded up."""
    limits = {}
    for name, limit in budget.set_limits.items():
        value, step = _measured_value(candidate, name), _LIMIT_STEPS[name]
        enough = math.ceil(round((value or 0.0) / step, 6)) * step
        limits[name] = limit if value is None or value <= limit else round(enough, 6)
    return budget.model_copy(update=limits)


def _measured_value(candidate: Candidate, limit: str) -> float | None:
    """Return the size, loss or latency of a candidate that a limit bounds, in its unit; None if it was not measured."""
    if limit == "max_size_mb":
        return None if candidate.bytes is None else candidate.bytes / 1e6
    return candidate.drop if limit == "max_drop" else candidate.p90_ms


def _excess_factor(candidate: Candidate, budget: BudgetSection) -> float:
    """Return by which factor a candidate exceeds the budget's limits, at its worst limit.

    The factor is 1 if the candidate keeps all limits, and infinite if something was not measured or is NaN.
    """
    ratios = [1.0]
    for name, limit in budget.set_limits.items():
        value = _measured_value(candidate, name)
        if value is None or math.isnan(value):
            return math.inf
        ratios.append(value / max(limit, _LIMIT_STEPS[name]))
    return max(ratios)


def _preference(candidate: Candidate, budget: BudgetSection) -> tuple[float, float]:
    """Return a candidate's sort key, (size, error) or (error, size) as the budget says; the smallest is the best."""
    size, error = candidate.bytes or 0, _error(candidate)
    return (size, error) if budget.smallest_wins else (error, size)


def _error(candidate: Candidate) -> float:
    """Return a candidate's RMS difference from the exported file; infinity if it was not measured."""
    return math.inf if candidate.rel is None else candidate.rel


# --- several students -------------------------------------------------------------------------------------------------


def best_student(considered: Sequence[StudentResult], budget: BudgetSection) -> StudentResult | None:
    """Return the student whose files are kept; None if no student has a file inside the budget in every format.

    All files of a folder come from one student. Students are ranked as files are, by sums over the formats.
    """

    def order(student: StudentResult) -> tuple[float, float]:
        """Return a student's sort key: total size and total error of its chosen files, in the budget's order."""
        size = float(sum(c.bytes or 0 for c in student.chosen))
        error = float(sum(c.rel or 0.0 for c in student.chosen))
        return (size, error) if budget.smallest_wins else (error, size)

    return min((c for c in considered if c.whole), key=order, default=None)


def cannot_win(error: float, best: StudentResult | None, budget: BudgetSection) -> bool:
    """Return whether every file of a student would be less accurate than the files of the best student so far.

    Args:
        error: RMS difference of the student's exported file. No scheme makes it smaller, because the squares of errors
            add up.
        best: The best student so far; None if there is none.
        budget: Limits on the files. If the smallest file wins, a less accurate student may still be chosen.
    """
    if best is None or budget.smallest_wins:
        return False
    return all(c.rel is not None and error > c.rel for c in best.chosen)


def merge_student_results(considered: Sequence[StudentResult], best: StudentResult) -> list[FormatResult]:
    """Merge the search results of all students, so that only the best student's files stay chosen.

    In each format the scored files of all students together get one Pareto front.
    """
    findings = [(f, c is best) for c in considered for f in c.findings]
    scored = [x for f, _ in findings for x in f.candidates if x.drop is not None]
    formats = dict.fromkeys(x.format for x in scored)
    on_front = {id(x) for format in formats for x in pareto_front([x for x in scored if x.format is format])}

    def merged(candidate: Candidate, kept: bool) -> Candidate:
        """Return a candidate that stays chosen only if `kept`, and that is marked if it is on the Pareto front."""
        return candidate.model_copy(update={"chosen": candidate.chosen and kept, "front": id(candidate) in on_front})

    return [replace(f, candidates=[merged(x, kept) for x in f.candidates]) for f, kept in findings]


def no_student_error(considered: Sequence[StudentResult], budget: BudgetSection) -> GateError:
    """Return the error for a budget that no student keeps in every format, with the nearest student's failures."""

    def distance(student: StudentResult) -> tuple[int, float]:
        """Count the formats without a file inside, and find the worst factor among their nearest files."""
        outside = [f for f in student.findings if f.chosen is None]
        factors = [_excess_factor(f.nearest, budget) if f.nearest else math.inf for f in outside]
        return len(outside), max(factors, default=1.0)

    nearest = min((c for c in considered if c.findings), key=distance)
    outside = [" ".join(describe_failure(f, budget)) for f in nearest.findings if f.chosen is None]
    others = [f"{c.record.name}: {c.record.note}" for c in considered if c.record.note]
    head = (
        f"No student has a file inside {budget.text} in every format, and no folder was written. "
        f"The nearest is {nearest.record.name}: "
    )
    return GateError([head + " ".join(outside), *others])


# --- wording ----------------------------------------------------------------------------------------------------------


def describe_candidate(candidate: Candidate, metric: str = "") -> str:
    """Return a line with a candidate's name and size, and its error, loss and latency as far as they were measured."""
    parts = [f"{(candidate.bytes or 0) / 1e6:.2f} MB"]
    if candidate.rel is not None:
        parts.append(f"RMS difference {candidate.rel:.3g} of the spread")
    if candidate.agreement is not None:
        parts.append(f"same label on {candidate.agreement:.1%}")
    if candidate.drop is not None:
        parts.append(METRICS[metric].lost(candidate.drop) if metric else f"drop {candidate.drop:.4f}")
    if candidate.p90_ms is not None:
        parts.append(f"p90 {candidate.p90_ms:.2f} ms")
    return f"{candidate.name}: {', '.join(parts)}"


def describe_failure(result: FormatResult, budget: BudgetSection) -> list[str]:
    """Return lines on why a format has no file inside the budget.

    They name the nearest file and the limits that would accept it, if there is one, and the candidates that are broken.
    """
    lines = [f"{result.format}: no file is inside {budget.text}."]
    if result.nearest is not None:
        lines.append(f"The nearest is {describe_candidate(result.nearest, result.metric)}.")
        lines.append(f"It would be inside with: --budget {widened_budget(result.nearest, budget).text}")
    broken = [f"{c.name}: {c.note}" for c in result.candidates if c.note and not c.note.startswith("not written")]
    return [*lines, *broken]


def chosen_files(chosen: Sequence[Candidate]) -> list[QuantizedFile]:
    """Return the entries for ``quantize.files`` of a recipe that make exactly the chosen files.

    It is one entry if one scheme makes them all and no role stays float, else one per format.
    """
    schemes = {c.format: c.scheme for c in chosen}
    for scheme in Scheme:
        made = {f: FORMATS[f].smaller(scheme) if FORMATS[f].takes(scheme) else None for f in schemes}
        if made == schemes and not any(c.left for c in chosen):
            return [QuantizedFile(scheme=scheme)]
    return [QuantizedFile(scheme=c.scheme, format=c.format, roles=dict.fromkeys(c.left, UNCHANGED)) for c in chosen]


def recipe_lines(files: Sequence[QuantizedFile], calibration: Calibration = Calibration.MINMAX) -> str:
    """Return the ``quantize`` section of a recipe that makes the chosen files, ready to copy.

    Args:
        files: The chosen files.
        calibration: Method by which activation ranges of static files are chosen.
    """

    def entry(file: QuantizedFile) -> str:
        """Return a chosen file as an entry of ``quantize.files`` in YAML."""
        if file.format is None:
            return file.scheme.value
        roles = ", ".join(f"{role}: null" for role in file.roles)
        return f"{{scheme: {file.scheme}, format: {file.format}{f', roles: {{{roles}}}' if roles else ''}}}"

    is_read = calibration is not Calibration.MINMAX and any(f.scheme.static for f in files)
    method = f", calibration: {calibration}" if is_read else ""
    return f"quantize: {{files: [{', '.join(map(entry, files))}]{method}}}"
