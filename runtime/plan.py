"""Times of the candidates on one machine, and which of them is expected to be fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from pocketbert.core.predict.predictor import fitting
from pocketbert.runtime.engines import EngineFile, FilePredictor
from pocketbert.runtime.onnx import OnnxPredictor, Spin

SPIN_ON_PRICE = 1.02
"""Threads that wait busily between runs occupy a core without use: they have to be faster by this factor."""


class Cadence(StrEnum):
    """How an app calls the model, which decides what `fastest` measures."""

    BATCH = "batch"
    """One call right after the other: caches are full, the clock is high, threads are awake."""
    INTERACTIVE = "interactive"
    """Single calls, each after an idle time of `IDLE_MS`, as when a user types."""


IDLE_MS = 100.0
"""Idle time before each call of the cadence `interactive`."""


@dataclass(frozen=True)
class Candidate:
    """A file, and how to open it.

    Attributes:
        file: The file.
        threads: Threads within an operator.
        spin: How its threads wait; of ONNX Runtime only.
    """

    file: EngineFile
    threads: int
    spin: Spin = Spin.NO

    def open(self) -> FilePredictor:
        """Open it."""
        return (
            OnnxPredictor(self.file.path, self.threads, spin=self.spin)
            if self.spin is not Spin.NO
            else self.file.open(self.threads)
        )


class Timing(BaseModel):
    """Times of one candidate.

    Attributes:
        file: Name of the file.
        threads: Its threads.
        spin: How its threads waited.
        fixed: Whether it takes the listed lengths only.
        steady: Wall time of one text in ms after others of the same length, by length in tokens.
        mixed: The same after a text of another length. LiteRT packs the weights once for each signature, so that a
            change of length finds none of them in the caches.
    """

    file: str
    threads: int
    spin: Spin
    fixed: bool
    steady: dict[int, float]
    mixed: dict[int, float]

    def at(self, length: int, steady: bool = True) -> float:
        """Expected milliseconds for one text of a length; infinite where it does not fit."""
        ms = self.steady if steady else self.mixed
        known = sorted(ms)
        if self.fixed:
            return ms[fitting(known, length)] if length <= known[-1] else float("inf")
        if length > known[-1]:
            return ms[known[-1]] * length / known[-1]
        return float(np.interp(length, known, [ms[n] for n in known]))


class Plan(BaseModel):
    """Timings of all candidates on one machine.

    Attributes:
        timings: In the order of the candidates.
        disturbed: Whether the machine was so busy that the timings are not worth remembering.
    """

    timings: list[Timing]
    disturbed: bool = False

    def costs(self, length: int, steady: bool = True) -> NDArray[np.float64]:
        """What one text costs each candidate: its expected ms, more where threads spin on; shape [candidates].

        Args:
            length: Tokens.
            steady: Whether the text comes after another of its own length.
        """
        return np.array([t.at(length, steady) * (SPIN_ON_PRICE if t.spin is Spin.ON else 1) for t in self.timings])

    def best(self, lengths: Sequence[int], steady: bool = True) -> int:
        """Number of the candidate that is expected to need least time for texts of these lengths, one after the other.

        Args:
            lengths: Tokens of each text.
            steady: Whether a text comes after another of its own length.
        """
        return int(np.sum([self.costs(n, steady) for n in lengths], axis=0).argmin())
