"""The whole card, in the order in which an app developer asks: what it is, which file, code, then figures and limits."""

from __future__ import annotations

from pocketbert.core.artefacts import Artefacts
from pocketbert.core.tasks import TaskName
from pocketbert.pipeline.formats.snippets.parts import applies_sigmoid, width
from pocketbert.pipeline.phone.card.facts import CardFacts
from pocketbert.pipeline.phone.card.figures import render_figures
from pocketbert.pipeline.phone.card.front_matter import render_front_matter
from pocketbert.pipeline.phone.card.lineage import render_lineage
from pocketbert.pipeline.phone.card.plain import plain
from pocketbert.pipeline.phone.card.platforms import render_code, render_platforms
from pocketbert.pipeline.phone.card.processing import LABELS_SHOWN, render_processing
from pocketbert.pipeline.phone.card.roles import render_roles


def render_card(artefacts: Artefacts, facts: CardFacts) -> str:
    """Write the card as Markdown.

    Args:
        artefacts: The folder's list.
        facts: Measured figures and lineage.
    """
    parts = [
        render_front_matter(artefacts, facts),
        f"# {plain(artefacts.name)}",
        f"{facts.family.title} for {artefacts.task}, converted for phones by PocketBERT. {_answers(artefacts)}",
        render_platforms(artefacts, facts),
        render_code(artefacts),
        render_figures(artefacts, facts.figures),
        render_roles(facts.roles),
        render_processing(artefacts),
        render_lineage(artefacts, facts),
    ]
    return "\n\n".join(p for p in parts if p) + "\n"


def _answers(artefacts: Artefacts) -> str:
    """What comes out, in one sentence."""
    match artefacts.task:
        case TaskName.REGRESSION:
            units = " from 0 to 1" if applies_sigmoid(artefacts) else ", in the units of the training data"
            return f"It answers with one number{units}."
        case TaskName.QUESTION_ANSWERING:
            return "It answers with a piece of the text that a question is asked about" + (
                ", or with none." if artefacts.processing.null_answers else "."
            )
        case TaskName.FILL_MASK:
            return "It answers with tokens for the masked places of a text."
        case TaskName.FEATURE_EXTRACTION:
            numbers = width(artefacts.models()[0])
            return f"It answers with one vector{f' of {numbers} numbers' if numbers else ''} per text."
    count, what = (
        len(artefacts.labels),
        "tags" if artefacts.task is TaskName.TOKEN_CLASSIFICATION else "labels",
    )
    names = ", ".join(f"`{plain(n)}`" for n in artefacts.labels[:LABELS_SHOWN])
    more = f", and {count - LABELS_SHOWN} more in `config.json`" if count > LABELS_SHOWN else ""
    return f"{count} {what}: {names}{more}."
