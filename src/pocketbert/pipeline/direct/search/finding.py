"""What a search found in one format."""

from __future__ import annotations

from dataclasses import dataclass

from pocketbert.core.artefacts import Candidate
from pocketbert.core.types import Format


@dataclass(frozen=True)
class Finding:
    """What was found in one format.

    Attributes:
        format: The format.
        metric: The deciding metric.
        candidates: Every candidate with its figures, smallest expected size first.
        chosen: The one to keep; None where none is inside.
        nearest: Where none is: the one that comes nearest; None where none has all figures.
    """

    format: Format
    metric: str
    candidates: list[Candidate]
    chosen: Candidate | None
    nearest: Candidate | None
