"""Compares the ranges of activations in a static file with those that torch measured on the calibration texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pocketbert.core.families.ranges import ProductRanges, Range
from pocketbert.pipeline.formats.stored.numbers import StoredRange
from pocketbert.pipeline.formats.stored.tracker import StoredRanges
from pocketbert.quantize.calibration import ROOM

CLOSE = 0.05
"""Of a range, how far an end of it may be off. Rounding of the zero point moves ends by half a step, 0.002 of a range of 8
bits, and fp16 by less; a wrong scale moves the width of the range by its factor."""
LEAST = 255 * 2.0**-25
"""What an end may be off in any case: Core ML stores scales in fp16, whose least step is 2**-24, and a range has 255 of them."""
_FIXED = ((0.0, 1.0), (-1.0, 1.0))
"""Ranges that compilers for NPUs prescribe behind softmax, sigmoid and tanh."""


def range_problems(
    products: Sequence[tuple[str, StoredRanges]], measured: Mapping[str, Sequence[ProductRanges]], whole: bool = False
) -> tuple[list[str], int]:
    """Compare ranges product by product.

    Products for which the file holds no range are not compared: the types gate tells whether there must be one. A range in 16
    bits may have the room that quantizers give it.

    Args:
        products: What the file holds, by the paths of weights in the torch module.
        measured: What torch measured, by the same paths; any of several is right. Empty where nothing was recorded.
        whole: Whether the file is in integers throughout; results of softmax and tanh have fixed ranges there.

    Returns:
        Sentences without a full stop, one for each wrong range, and how many ranges were compared.
    """
    problems, count = dict[str, None](), 0
    for name, stored in products:
        own = measured.get(name, ())
        inputs, outputs = [r.inputs for r in own if r.inputs], [r.outputs for r in own if r.outputs]
        pairs = ("is multiplied with numbers", stored.inputs, inputs), ("gives results", stored.outputs, outputs)
        for what, found, wanted in pairs:
            if found is None or not wanted or found.of_table:
                continue
            count += 1
            right = [*wanted, *(_FIXED if whole else ())]
            right += [(ROOM * low, ROOM * high) for low, high in wanted if found.bits > 8]
            if not any(_same(found, w) for w in right):
                problems[
                    f"{name} {what} from {found.low:.4g} to {found.high:.4g}, which were from {wanted[0][0]:.4g} to "
                    f"{wanted[0][1]:.4g} on the calibration texts"
                ] = None
    return list(problems), count


def _same(found: StoredRange, wanted: Range) -> bool:
    """Whether a stored range is a measured one; with zero in the middle it reaches as far on both sides."""
    if found.low == -found.high:
        most = max(-wanted[0], wanted[1])
        wanted = -most, most
    room = CLOSE * (wanted[1] - wanted[0]) + LEAST
    return all(abs(a - b) <= room for a, b in zip(found[:2], wanted, strict=True))
