"""What is told of a finished search: the record of it, or the error where a format has no file inside."""

from __future__ import annotations

from collections.abc import Sequence

from pocketbert.core.artefacts import BudgetSearch, ConsideredStudent
from pocketbert.core.errors import GateError
from pocketbert.core.host.hardware import machine
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.pipeline.direct.search.choosing import ACCURATE, SMALLEST
from pocketbert.pipeline.direct.search.finding import Finding
from pocketbert.pipeline.direct.search.material import Material
from pocketbert.pipeline.direct.search.wording import outside_lines


def check_inside(findings: Sequence[Finding], budget: BudgetSection, only: str) -> None:
    """Refuse to go on where a format has no file inside.

    Args:
        findings: What was found.
        budget: The limits.
        only: What the user writes in front of the formats to choose.

    Raises:
        GateError: With the nearest file of each such format, and the limits that would take it.
    """
    outside = [line for f in findings if f.chosen is None for line in outside_lines(f, budget)]
    if outside:
        others = [f.format.value for f in findings if f.chosen is not None]
        if others:
            outside.append(f"Others have a file inside; for these only: {only}{','.join(others)}")
        raise GateError([*outside, "No folder was written."])


def told_of(
    findings: Sequence[Finding],
    material: Material,
    budget: BudgetSection,
    rows: str,
    students: Sequence[ConsideredStudent] = (),
) -> BudgetSearch:
    """Record a search that found a file in each format.

    Args:
        findings: What was found.
        material: What was read.
        budget: The limits.
        rows: Which rows chose and which scored, in words.
        students: The students that were considered, where there were several.
    """
    return BudgetSearch(
        budget=budget.set_limits,
        wins=SMALLEST if budget.smallest_wins else ACCURATE,
        metric=findings[0].metric,
        ranked_on=len(material.calibration),
        chosen_on=len(material.choosing.rows.examples),
        scored_on=material.kept_apart,
        rows=rows,
        calibration=material.model.recipe.quantize.calibration,
        machine=machine().summary,
        students=[*students],
        candidates=[c for f in findings for c in f.candidates],
    )
