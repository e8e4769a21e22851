"""Compares the schemes of single weights with what was chosen for them: two weights of one size may have changed places."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pocketbert.core.families.roles import WeightRole
from pocketbert.pipeline.formats.stored.tracker import Constant, Role

if TYPE_CHECKING:
    from pocketbert.quantize.table import SchemeRow


def scheme_problems(stored: Sequence[tuple[str, Constant]], weights: Sequence[WeightRole], row: SchemeRow) -> list[str]:
    """Compare the bits of weights, and whether their products have ranges, with what their schemes want.

    The types gate counts the weights of each size and type, since quantizers rename them. Here a weight is known by its
    numbers, so that one of 8 bits in the place of one of 4 is seen, and a static product in the place of a dynamic one.

    Args:
        stored: Matrices and tables of a file, by the paths of the tensors in the torch module.
        weights: What was chosen for each weight; empty where all have the scheme of the file.
        row: The file's scheme.

    Returns:
        Sentences without a full stop.
    """
    from pocketbert.quantize.weights import Use

    chosen, problems = {w.name: w for w in weights}, dict[str, None]()
    largest = max((c.numbers.value.size for _, c in stored if c.role is Role.TABLE), default=0)
    for name, constant in stored:
        weight, numbers = chosen.get(name), constant.numbers
        if weight is None or weight.scheme is None or numbers.step is None:
            continue  # of floats the types gate compares every number
        use = Use.TABLE if constant.role is Role.TABLE else Use.MATMUL
        wanted = row.expected(weight.scheme).of(use, numbers.value.size >= largest)
        bits = re.search(r"\d+$", wanted.dtype)
        if bits is not None and int(bits[0]) != numbers.bits:
            problems[f"{name} is stored in {numbers.bits} bits, and {weight.scheme} was chosen for it"] = None
        static = constant.ranges.inputs is not None
        if row.seconds and use is Use.MATMUL and static is not (wanted.bits is not None):
            has = "a measured range" if static else "no measured range"
            problems[f"{name} is multiplied with numbers that have {has}, and {weight.scheme} was chosen for it"] = None
    return list(problems)
