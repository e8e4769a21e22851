"""Compare a device's answers with those of this machine on the same file and inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.benchmarks.inputs import Feed
from pocketbert.benchmarks.measurement import Variant
from pocketbert.benchmarks.records import AnswerCheck
from pocketbert.core.types import Provenance, Scheme
from pocketbert.runtime.engines import filled

ANSWERED = 4
"""Inputs of each length that are compared."""
_FLOAT = {Scheme.FP32: 1e-3, Scheme.FP16: 1e-2}
_OTHER = 0.1


def share(scheme: Scheme | None) -> float:
    """How far answers may differ, as a fraction of the largest answer here.

    Kernels of several processors sum in another order: fp32 differs by some 1e-6. Dynamic int8 also differs in how the
    kernels quantize activations, by up to 0.03 between x86 and Arm; wrong kernels differ by 0.9 and more.
    """
    return _FLOAT.get(scheme, _OTHER) if scheme is not None else _OTHER


class Differences:
    """How far a device's outputs are from those of this machine; every output has its own bound.

    Attributes:
        finite: Whether all outputs were there, in the right shape, and numbers.
        equal: Whether all of them have the same type and the same bits.
    """

    def __init__(self) -> None:
        self.finite = self.equal = True
        self._largest, self._most = dict[str, float](), dict[str, float]()

    def add(self, name: str, here: NDArray[Any], there: NDArray[Any]) -> bool:
        """Compare one output of one row; whether there was something to compare."""
        self.equal &= here.dtype == there.dtype and here.shape == there.shape and here.tobytes() == there.tobytes()
        here, there = here.astype(np.float64), there.astype(np.float64)
        self.scale(name, here)
        if here.shape != there.shape or not np.isfinite(there).all():
            self.finite = self.equal = False
            return False
        self._largest[name] = max(self._largest.get(name, 0.0), float(np.abs(here - there).max()))
        return True

    def scale(self, name: str, here: NDArray[Any]) -> None:
        """Let the bound of an output know a row that only this machine computed.

        One row whose answers happen to lie near 0 would have a bound near 0, too.
        """
        self._most[name] = max(self._most.get(name, 0.0), float(np.abs(here).max()))

    def worst(self, share: float) -> tuple[float, float]:
        """Difference and bound of the output that is furthest from its bound: large numbers of one must not hide another.

        Args:
            share: How far an output may differ, as a fraction of its largest number here.
        """
        name = max(self._largest, key=lambda n: self._largest[n] / max(self._most[n], 1e-30), default="")
        return self._largest.get(name, 0.0), share * self._most.get(name, 0.0)


def compare_answers(
    variant: Variant, feeds: Sequence[Feed], told: Sequence[Mapping[str, NDArray[Any]]], provenance: Provenance
) -> AnswerCheck:
    """Run the inputs here and compare.

    Args:
        variant: The file.
        feeds: The inputs.
        told: The device's outputs, by name, one entry per input.
        provenance: How the device's answers came about.

    Returns:
        The check; outputs that are missing, of another shape, or not finite fail it.
    """
    predictor = variant.file.open(1)
    found = Differences()
    found.finite = found.equal = len(told) == len(feeds)
    for feed, outputs in zip(feeds, told, strict=False):
        for name, value in predictor.run(filled(predictor, feed)).items():
            found.add(name, np.asarray(value), np.asarray(outputs.get(name, np.nan)))
    largest, tolerance = found.worst(share(variant.scheme))
    return AnswerCheck(
        variant=variant.name,
        rows=len(feeds),
        largest=largest,
        tolerance=tolerance,
        finite=found.finite,
        provenance=provenance,
        against="inputs compared with this machine",
        equal=found.equal,
    )
