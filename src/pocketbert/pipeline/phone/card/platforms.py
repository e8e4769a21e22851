"""The card's first table, which file for which platform, and one complete piece of code for each row."""

from __future__ import annotations

from pocketbert.core.artefacts import Artefacts
from pocketbert.pipeline.formats.offer import Offer, Platform
from pocketbert.pipeline.formats.place import places
from pocketbert.pipeline.formats.snippets import python
from pocketbert.pipeline.phone.card.facts import CardFacts


def offers_of(artefacts: Artefacts) -> tuple[list[Offer], list[Offer]]:
    """Choose a file for each platform.

    Returns:
        The first file that a format offers for each platform, in the table's order; and the other offers.
    """
    offers = [offer for place in places() for offer in place.offers(artefacts)]
    chosen = [next((o for o in offers if o.platform is platform), None) for platform in Platform]
    rows = [offer for offer in chosen if offer is not None]
    return rows, [offer for offer in offers if offer not in rows]


def render_platforms(artefacts: Artefacts, facts: CardFacts) -> str:
    """Write the table and what its reader must know of single files."""
    rows, _ = offers_of(artefacts)
    if not rows:
        return ""
    lines = [
        "## Which file",
        "",
        "| platform | file to take | MB in the app | needs at least | tokenizer | dependency |",
        "|---|---|---:|---|---|---|",
    ]
    for offer in rows:
        size = f"{offer.bytes(artefacts) / 1e6:.1f}"
        dependency = "<br>".join(f"`{line}`" for line in offer.dependencies) or "none"
        lines.append(
            f"| {offer.platform} | `{offer.record.path}` | {size} | {offer.needs} | {offer.tokenizer} | {dependency} |"
        )
    lines += ["", "MB in the app: the file, and `tokenizer.json` for apps that read it; not the library that runs it."]
    for offer in rows:
        if notes := [*_measured(offer, facts), *offer.notes]:
            lines.append(f"- {offer.platform}, `{offer.record.path}`: {' '.join(notes)}")
    return "\n".join(lines)


def _measured(offer: Offer, facts: CardFacts) -> list[str]:
    return [note for path, note in facts.file_notes.items() if path == offer.record.path]


def render_code(artefacts: Artefacts) -> str:
    """Write the code of each row, and folded that of further clients."""
    rows, others = offers_of(artefacts)
    more = [offer.snippet for offer in others] + [code for place in places() for code in place.snippets(artefacts)]
    toolkit = python.pocketbert(artefacts)
    if not rows:
        return "\n\n".join(["## Use", toolkit, *more])
    folded = ["<details><summary>Code for more clients</summary>", *more, "</details>"] if more else []
    return "\n\n".join(["## Use", *(offer.snippet for offer in rows), toolkit, *folded])
