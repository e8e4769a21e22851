"""What a search tells: a line for each candidate, why nothing was chosen, and the recipe lines of what was."""

from __future__ import annotations

from collections.abc import Sequence

from pocketbert.core.artefacts import Candidate
from pocketbert.core.formats import FORMATS
from pocketbert.core.metrics import METRICS
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.recipe.quantize import LEFT, QuantizedFile
from pocketbert.core.types import Calibration, Scheme
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
    return f"{candidate.name}: {', '.join(parts)}"


def outside_lines(finding: Finding, budget: BudgetSection) -> list[str]:
    """Say that a format has no file inside, which one comes nearest, and which limits would take it."""
    lines = [f"{finding.format}: no file is inside {budget.text}."]
    broken = [f"{c.name}: {c.note}" for c in finding.candidates if c.note and not c.note.startswith("not written")]
    if finding.nearest is None:
        return [*lines, *broken]
    limits = choosing.limits_for(finding.nearest, budget)
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
