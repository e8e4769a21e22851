"""Where the weights come from, and what the files cannot do."""

from __future__ import annotations

from pocketbert.core.artefacts import Artefacts
from pocketbert.pipeline.phone.card.facts import CardFacts
from pocketbert.pipeline.phone.card.plain import plain
from pocketbert.pipeline.phone.card.processing import LABELS_SHOWN


def render_lineage(artefacts: Artefacts, facts: CardFacts) -> str:
    """Write lineage, limits and the libraries that made the files."""
    lines = ["## Lineage and limits", "", f"- Licence of the weights: {facts.licence}."]
    lines += [f"- {key}: {plain(value)}" for key, value in artefacts.lineage.items() if key != "licence"]
    lines += [f"- {facts.family.title}: {limit}." for limit in facts.family.limits]
    lines += [f"- {note}" for note in facts.notes]
    if facts.unreached:
        shown = ", ".join(f"`{plain(name)}`" for name in facts.unreached[:LABELS_SHOWN])
        more = ", and so on" if len(facts.unreached) > LABELS_SHOWN else ""
        lines.append(f"- Labels that no golden row reaches, since no text was found for them: {shown}{more}.")
    versions = ", ".join(f"{k} {v}" for k, v in artefacts.versions.items())
    return "\n".join([*lines, f"- Made with {versions}."])
