"""What a search tells: a line for each candidate, why nothing was chosen, and the recipe lines of what was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pocketbert.core.artefacts import Candidate
from pocketbert.core.formats import FORMATS
from pocketbert.core.metrics import METRICS
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.recipe.quantize import QuantizedFile
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.direct.search import choosing
from pocketbert.pipeline.direct.search.finding import Finding


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
    return f"{candidate.path}: {', '.join(parts)}"


def outside_lines(finding: Finding, budget: BudgetSection) -> list[str]:
    """Say that a format has no file inside, which one comes nearest, and which limits would take it."""
    lines = [f"{finding.format}: no file is inside {budget.text}."]
    broken = [f"{c.path}: {c.note}" for c in finding.candidates if c.note and not c.note.startswith("not written")]
    if finding.nearest is None:
        return [*lines, *broken]
    limits = choosing.limits_for(finding.nearest, budget)
    lines.append(f"The nearest is {figures_line(finding.nearest, finding.metric)}.")
    lines.append(f"It would be inside with: --budget {limits.text}")
    return [*lines, *broken]


def chosen_files(chosen: Mapping[Format, Scheme]) -> list[QuantizedFile]:
    """The entries of ``quantize.files`` that make these files and no others.

    Args:
        chosen: A scheme for each format of the recipe.
    """
    for scheme in Scheme:
        made = {f: FORMATS[f].smaller(scheme) if FORMATS[f].takes(scheme) else None for f in chosen}
        if made == dict(chosen):
            return [QuantizedFile(scheme=scheme)]
    return [QuantizedFile(scheme=scheme, format=format) for format, scheme in chosen.items()]


def recipe_lines(files: Sequence[QuantizedFile]) -> str:
    """The recipe's section, ready to copy."""
    entries = [f.scheme.value if f.format is None else f"{{scheme: {f.scheme}, format: {f.format}}}" for f in files]
    return f"quantize: {{files: [{', '.join(entries)}]}}"
