"""The model card: README.md of an artefact folder, every figure from the run that made it."""

from pocketbert.pipeline.phone.card.card import render_card
from pocketbert.pipeline.phone.card.facts import CardFacts
from pocketbert.pipeline.phone.card.figures import CardFigures, LatencyRow, render_figures, replace_figures
from pocketbert.pipeline.phone.card.measured import measured_figures

__all__ = [
    "CardFacts",
    "CardFigures",
    "LatencyRow",
    "measured_figures",
    "render_card",
    "render_figures",
    "replace_figures",
]
