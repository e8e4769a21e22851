"""Reads what is stored in Core ML packages, without coremltools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.table import Reader, SchemeRow, register_reader, register_scheme
from pocketbert.quantize.weights import ExpectedWeights, Use, Wanted, WeightTypes, WeightUse

THRESHOLD = 512
"""Weights of at most this many numbers stay float: nothing is won there."""
_WEIGHT_INPUTS = {
    "linear": ("weight", Use.MATMUL),
    "conv": ("weight", Use.MATMUL),
    "gather": ("x", Use.TABLE),
}
"""Input that holds the weight, and what it is used for. A product of two stored operands is no weight."""
_NAMES = {
    "fp32": "float32",
    "fp16": "float16",
    "int8": "int8",
    "uint8": "uint8",
    "int4": "int4",
    "uint4": "uint4",
}
"""Names of number types here, by their names in Core ML; indices are none of them."""


def large_weights(path: Path) -> set[str]:
    """Names of the float constants that are worth compressing."""
    from pocketbert.runtime.coreml.stored import StoredTensors

    return {
        w.name
        for w in StoredTensors(path).weights()
        if w.parameter == _WEIGHT_INPUTS.get(w.reader, ("",))[0] and w.dtype.is_float and w.numbers > THRESHOLD
    }


def weight_types(path: Path) -> WeightTypes:
    """Read the types of all weights in a package; without coremltools."""
    from pocketbert.runtime.coreml.stored import StoredTensors

    stored = StoredTensors(path)
    uses = []
    for weight in stored.weights():
        parameter, use = _WEIGHT_INPUTS.get(weight.reader, ("", Use.MATMUL))
        if weight.parameter == parameter and weight.dtype in _NAMES:
            uses.append(
                WeightUse(
                    name=weight.name,
                    use=use,
                    dtype=_NAMES[weight.dtype],
                    numbers=weight.numbers,
                    dequantized=weight.scales > 0,
                    per_channel=None if weight.rows == weight.scales == 1 else weight.scales > 1,
                )
            )
    sizes = [(v.dtype.kind, v.nbytes) for _, v in stored.arrays()]
    return WeightTypes(
        uses=uses,
        int8_bytes=sum(n for kind, n in sizes if kind in "iu"),
        float_bytes=sum(n for kind, n in sizes if kind == "f"),
        operators=stored.operators(),
    )


def stored_numbers(path: Path) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Name and value of everything stored in a package, scales of compressed tensors included."""
    from pocketbert.runtime.coreml.stored import StoredTensors

    yield from StoredTensors(path).arrays()


FLOATS = ("float32", "float16")
"""Types that small weights may stay in."""
register_reader(Format.COREML, Reader(weight_types, stored_numbers))
for _scheme, _wanted in ((Scheme.FP32, Wanted("float32")), (Scheme.FP16, Wanted("float16"))):
    register_scheme(SchemeRow(Format.COREML, _scheme, ExpectedWeights(_wanted, _wanted, FLOATS)))
