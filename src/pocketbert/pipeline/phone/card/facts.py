"""What the card tells in addition to the folder's list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pocketbert.core.artefacts import RoleRow
from pocketbert.core.families import Family
from pocketbert.pipeline.phone.card.figures import CardFigures


@dataclass(frozen=True)
class CardFacts:
    """What the card tells in addition to `Artefacts`.

    Attributes:
        family: Row of the family table.
        licence: Licence of the weights, as far as known.
        figures: What was measured.
        base_model: Name of the teacher on the Hub; empty where it has none.
        languages: Codes of the languages, as far as the teacher's card names them.
        datasets: Names of data sets on the Hub: those of the recipe, and those that the teacher's card names.
        notes: Limits and honest statements.
        file_notes: A sentence on a file that its reader must know, by path.
        unreached: Labels that the torch model answers to no golden row.
        roles: What became of the weights of each role, by path of the file.
    """

    family: Family
    licence: str
    figures: CardFigures = field(default_factory=CardFigures)
    base_model: str = ""
    languages: Sequence[str] = ()
    datasets: Sequence[str] = ()
    notes: Sequence[str] = ()
    file_notes: Mapping[str, str] = field(default_factory=dict)
    unreached: Sequence[str] = ()
    roles: Mapping[str, Sequence[RoleRow]] = field(default_factory=dict)
