"""How often inferences come in use."""

from __future__ import annotations

from enum import StrEnum


class Cadence(StrEnum):
    """What the fastest file is chosen for.

    Attributes:
        BATCH: Inferences that follow one another, as for a file of texts.
        INTERACTIVE: Single inferences after idle time, as for a sentence that a user types: caches, the clock rate and
            sleeping threads are then as the idle time leaves them.
    """

    BATCH = "batch"
    INTERACTIVE = "interactive"
