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
    largest, most, finite = dict[str, float](), dict[str, float](), len(told) == len(feeds)
    for feed, outputs in zip(feeds, told, strict=False):
        for name, value in predictor.run(filled(predictor, feed)).items():
            here, there = np.asarray(value, np.float64), np.asarray(outputs.get(name, np.nan), np.float64)
            most[name] = max(most.get(name, 0.0), float(np.abs(here).max()))
            if here.shape != there.shape or not np.isfinite(there).all():
                finite = False
                continue
            largest[name] = max(largest.get(name, 0.0), float(np.abs(here - there).max()))
    # the output that is furthest from its bound decides: one with large numbers must not hide another
    worst = max(largest, key=lambda name: largest[name] / max(most[name], 1e-30), default="")
    return AnswerCheck(
        variant=variant.name,
        rows=len(feeds),
        largest=largest.get(worst, 0.0),
        tolerance=share(variant.scheme) * most.get(worst, 0.0),
        finite=finite,
        provenance=provenance,
        against="inputs compared with this machine",
    )
