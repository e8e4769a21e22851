"""Which of several students is the one whose files are kept, and what is told where none is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pocketbert.core.artefacts import Candidate, ConsideredStudent
from pocketbert.core.errors import GateError
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.pipeline.direct.search import choosing
from pocketbert.pipeline.direct.search.finding import Finding
from pocketbert.pipeline.direct.search.wording import outside_lines


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
    return min((c for c in considered if c.whole), key=lambda c: _order(c, budget), default=None)


def _order(student: Considered, budget: BudgetSection) -> tuple[float, float]:
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
    on_front = {id(x) for format in formats for x in choosing.front([x for x in scored if x.format is format])}
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
    factors = [choosing.excess(f.nearest, budget) if f.nearest else float("inf") for f in outside]
    return len(outside), max(factors, default=1.0)
