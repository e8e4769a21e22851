"""Reads what is stored in Core ML packages, without coremltools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.families.digests import digest_of
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.table import Reader, SchemeRow, register_reader, register_scheme
from pocketbert.quantize.weights import ExpectedWeights, Use, Wanted, WeightTypes, WeightUse

if TYPE_CHECKING:
    from pocketbert.runtime.coreml.stored import StoredWeight

THRESHOLD = 512
"""Weights of at most this many numbers stay float: nothing is won there."""
_WEIGHT_INPUTS = {
    "linear": ("weight", Use.MATMUL),
    "conv": ("weight", Use.MATMUL),
    "gather": ("x", Use.TABLE),
}
"""Input that holds the weight, and what it is used for. A product of two stored operands is no weight."""
PALETTES = {64: "lut6", 16: "lut4"}
"""Names of weights that are places in a palette, by the palette's size; all weights of a package have palettes of their own."""
BLOCK = 32
"""Numbers that share a scale in 4 bits."""
_NAMES = {
    "fp32": "float32",
    "fp16": "float16",
    "int8": "int8",
    "uint8": "uint8",
    "int4": "int4",
    "uint4": "uint4",
}
"""Names of number types here, by their names in Core ML; indices are none of them."""


def large_weights(path: Path) -> dict[str, Use]:
    """Find the float constants that are worth compressing, each with its use: a product's, where it has two."""
    return {w.name: use for w, use in _large(path)}


def chosen_weights(path: Path, left: frozenset[str]) -> list[str]:
    """Find the float constants that are worth compressing and have none of some digests."""
    stay = names_of(path, left)
    return [name for name in large_weights(path) if name not in stay]


def names_of(path: Path, digests: frozenset[str]) -> set[str]:
    """Find the constants with one of some digests."""
    if not digests:
        return set()
    return {name for name, numbers in stored_numbers(path) if digest_of(numbers) in digests}


def named_weights(path: Path, digests: Mapping[Scheme, frozenset[str]]) -> dict[str, Scheme]:
    """Find the float constants with some digests.

    Args:
        path: A float package.
        digests: By scheme.

    Returns:
        The scheme of each by its name.
    """
    if not digests:
        return {}
    known = {digest: scheme for scheme, own in digests.items() for digest in own}
    found = ((name, digest_of(numbers)) for name, numbers in stored_numbers(path))
    return {name: known[digest] for name, digest in found if digest in known}


def large_widths(path: Path) -> dict[str, int]:
    """Find the float constants that are worth compressing, each with the length of its rows."""
    return {w.name: w.columns for w, _ in _large(path)}


def large_numbers(path: Path) -> dict[str, int]:
    """Find the float constants that are worth compressing, each with how many numbers it has."""
    return {w.name: w.numbers for w, _ in _large(path)}


def oldest_ios(path: Path) -> int:
    """Read the oldest iOS version that opens a package."""
    from pocketbert.runtime.coreml.package import read_package

    return read_package(path).opset + 10


def _large(path: Path) -> list[tuple[StoredWeight, Use]]:
    from pocketbert.runtime.coreml.stored import StoredTensors

    found = [
        (w, _WEIGHT_INPUTS[w.reader][1])
        for w in StoredTensors(path).weights()
        if w.parameter == _WEIGHT_INPUTS.get(w.reader, ("",))[0] and w.dtype.is_float and w.numbers > THRESHOLD
    ]
    return sorted(found, key=lambda pair: pair[1] is Use.MATMUL)


def weight_types(path: Path) -> WeightTypes:
    """Read the types of all weights in a package; without coremltools."""
    from pocketbert.runtime.coreml.stored import StoredTensors

    stored = StoredTensors(path)
    uses = []
    for weight in stored.weights():
        parameter, use = _WEIGHT_INPUTS.get(weight.reader, ("", Use.MATMUL))
        dtype = PALETTES.get(weight.palette) or _NAMES.get(weight.dtype)
        if weight.parameter == parameter and dtype:
            uses.append(
                WeightUse(
                    name=weight.name,
                    use=use,
                    dtype=dtype,
                    numbers=weight.numbers,
                    dequantized=weight.scales > 0 or weight.palette > 0,
                    per_channel=None if weight.rows == weight.scales == 1 else weight.scales > 1,
                    block=_block(weight, dtype),
                    bits=8 if use is Use.MATMUL and weight.static else None,
                )
            )
    sizes = list(stored.sizes())
    return WeightTypes(
        uses=uses,
        int8_bytes=sum(n for is_float, n in sizes if not is_float),
        float_bytes=sum(n for is_float, n in sizes if is_float),
        operators=stored.operators(),
    )


def _block(weight: StoredWeight, dtype: str) -> int | None:
    """How many numbers of a row share a scale; a row of one block of 4-bit numbers counts, too."""
    blocks = weight.scales // weight.rows
    return weight.columns // blocks if blocks > 1 or (blocks == 1 and dtype == "int4") else None


def stored_numbers(path: Path) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Name and value of everything stored in a package, scales of compressed tensors included."""
    from pocketbert.runtime.coreml.stored import StoredTensors

    yield from StoredTensors(path).arrays()


FLOATS = ("float32", "float16")
"""Types that small weights may stay in."""
register_reader(Format.COREML, Reader(weight_types, stored_numbers))
for _scheme, _wanted in ((Scheme.FP32, Wanted("float32")), (Scheme.FP16, Wanted("float16"))):
    register_scheme(SchemeRow(Format.COREML, _scheme, ExpectedWeights(_wanted, _wanted, FLOATS)))
