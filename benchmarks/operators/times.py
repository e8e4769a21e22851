"""The profile of some inferences of one file."""

from __future__ import annotations

from pydantic import BaseModel

from pocketbert.benchmarks.records import OpShare, Placement

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
