"""The profile of some inferences of one file."""

from __future__ import annotations

from pydantic import BaseModel

from pocketbert.benchmarks.records import OpShare, Placement, Profile
from pocketbert.core.types import Provenance

WARMUP = 3
"""Inferences that a profile leaves out."""


class OpTimes(BaseModel):
    """The profile of some inferences.

    Attributes:
        runs: Inferences that were averaged.
        ops: Time per operator type, largest first; empty where the engine has no profile.
        placement: Nodes per execution provider.
        note: What a reader should know of the times, or why there are none.
    """

    runs: int
    ops: list[OpShare]
    placement: list[Placement]
    note: str = ""

    def profile(self, variant: str, threads: int, length: int) -> Profile:
        """Return the record of a profile that was measured.

        Args:
            variant: Name of the file.
            threads: Threads within an operator.
            length: Tokens.
        """
        return Profile(
            variant=variant,
            threads=threads,
            length=length,
            runs=self.runs,
            ops=self.ops,
            placement=self.placement,
            note=self.note,
            provenance=Provenance.MEASURED,
        )
