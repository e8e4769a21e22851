"""What the weights of a file are stored as, use by use, and whether that is what its scheme wants."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import BaseModel

COARSEST = {8: 1.0, 16: 0.05}
"""Largest step of attention scores by their bits: what no range of real scores reaches. With a mask of -1e4 in their
range it is 39 and 0.15."""
SMALL = 4096
"""Weights with fewer numbers (a classifier's last row, a type table) may stay fp32; nothing is won there."""


class Use(StrEnum):
    """What a weight is used for."""

    MATMUL = "matrix product"
    TABLE = "embedding table"


class WeightUse(BaseModel):
    """One operator that reads a stored weight.

    Attributes:
        name: The weight's name.
        use: What reads it.
        dtype: ``float32``, ``float16``, ``int8``, ``int4``; another name where it is none of these.
        numbers: How many numbers it has.
        dequantized: Whether an operator turns it into fp32 before the use, so that the product is computed in fp32.
        per_channel: Whether it has a scale per output channel (a table: per row); False for floats, None where it has
            one channel, as a regression head: both are the same then.
        bits: Bits of what it is multiplied with, where a range in the file makes that an integer; None elsewhere.
        fused: Whether the file widens both operands of the product before it, for engines that fuse the three.
        block: How many numbers of a channel share a scale; None where all do.
    """

    name: str
    use: Use
    dtype: str
    numbers: int
    dequantized: bool = False
    per_channel: bool | None = False
    bits: int | None = None
    fused: bool = False
    block: int | None = None


class WeightTypes(BaseModel):
    """What the weights of a file are stored as.

    Attributes:
        uses: Every weight of a matrix product or an embedding lookup.
        int8_bytes: Bytes of integers of 8 bits and fewer.
        float_bytes: Bytes of float data.
        operators: Operator counts; of the first signature where there are several.
        integers: Names of operators that compute with 8 or 16 bits and are no product with a weight and no lookup.
        floats: Names of operators that compute with floats; where a file has integers throughout.
        coarse: Attention scores that are read in integers so coarse that probabilities are lost.
    """

    uses: list[WeightUse]
    int8_bytes: int
    float_bytes: int
    operators: dict[str, int]
    integers: list[str] = []
    floats: list[str] = []
    coarse: list[str] = []

    def count(self, use: Use, dtype: str) -> int:
        """Weights of one use and type."""
        return sum(u.use is use and u.dtype == dtype for u in self.uses)

    @property
    def int8_matmuls(self) -> int:
        """Matrix products with int8 weights."""
        return self.count(Use.MATMUL, "int8")

    @property
    def int8_embeddings(self) -> int:
        """Lookup tables in int8."""
        return self.count(Use.TABLE, "int8")

    @property
    def summary(self) -> str:
        """One line for people."""
        kinds = dict.fromkeys(u.dtype for u in self.uses)
        counted = {
            k: [_counted(self.count(use, k), name) for use, name in _USE_NAMES.items() if self.count(use, k)]
            for k in kinds
        }
        parts = [f"{' and '.join(named)} in {k}" for k, named in counted.items() if named]
        integers = " and ".join(sorted(k for k in kinds if k.startswith("int"))) or "integers"
        return f"{', '.join(parts)}; {self.int8_bytes / 1e6:.1f} MB {integers}, {self.float_bytes / 1e6:.2f} MB float"


_USE_NAMES = {Use.MATMUL: "matrix product", Use.TABLE: "table"}


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


@dataclass(frozen=True)
class Wanted:
    """What the weights of one use must be.

    Attributes:
        dtype: Their type.
        dequantized: Whether an operator turns them into fp32 before the use.
        per_channel: Whether they have a scale per output channel; None where both are right.
        bits: Bits of what they are multiplied with, in a range that the file holds; None where it holds none. In files with
            integers throughout, 8 means more than a third of them: products with fewer results than terms keep 16.
        fused: Whether the file widens both operands of a product before it, for engines that fuse the three.
        block: Most numbers of a channel that may share a scale; None where all of them do.
    """

    dtype: str
    dequantized: bool = False
    per_channel: bool | None = None
    bits: int | None = None
    fused: bool = False
    block: int | None = None


@dataclass(frozen=True)
class ExpectedWeights:
    """What the weights of a file must be.

    Attributes:
        products: Those of matrix products.
        tables: Those of embedding lookups.
        other_tables: What tables other than the largest may be instead; None where all are alike. A coarse table of positions
            or segments moves every token alike, which costs more than it saves.
        floats: Types that small weights may stay in.
        whole: Whether norms, sums and softmax are computed in integers too; in other files they may not be.
    """

    products: Wanted
    tables: Wanted
    other_tables: Wanted | None = field(default=None, kw_only=True)
    floats: tuple[str, ...] = ("float32",)
    whole: bool = field(default=False, kw_only=True)

    def of(self, use: Use, largest: bool) -> Wanted:
        """Return what a weight must be.

        Args:
            use: What it is used for.
            largest: Whether no table is larger.
        """
        if use is Use.MATMUL:
            return self.products
        return self.tables if largest or self.other_tables is None else self.other_tables


_SCALE_BITS = 16


def bits_of(dtype: str, block: int | None) -> float:
    """Bits of a stored number, with its part of a scale that a block shares; a type's name ends with its bits."""
    found = re.search(r"\d+$", dtype)
    return (int(found[0]) if found else 32) + (_SCALE_BITS / block if block else 0)


def type_problems(
    types: WeightTypes, name: str, expected: ExpectedWeights, left: frozenset[str] = frozenset(), whole: bool = True
) -> list[str]:
    """List what is wrong with the types of a file; empty when it is what its name says.

    A table that a product reads too may have the type of the product's weight.

    Args:
        types: What was found in it.
        name: What to call it.
        expected: What its scheme wants.
        left: Names of weights that stay as they were exported.
        whole: Whether these are all weights of the file, not only those of one of its schemes.
    """
    multiplied = {u.name for u in types.uses if u.use is Use.MATMUL}
    wanted = {Use.MATMUL: expected.products, Use.TABLE: expected.tables}
    shared = Wanted(expected.products.dtype, block=expected.products.block)
    largest = max((u.numbers for u in types.uses if u.use is Use.TABLE), default=0)

    def of(use: WeightUse) -> Wanted:
        own = wanted[use.use]
        if use.use is not Use.TABLE or use.dtype == own.dtype:
            return own
        if use.name in multiplied:
            return shared
        return own if expected.other_tables is None or use.numbers == largest else expected.other_tables

    out = []
    for use in Use:
        uses = [u for u in types.uses if u.use is use]
        if not whole or (uses and all(u.name in left for u in uses)):
            continue
        if not uses:
            out.append(f"{name}: no {use} was found in it.")
        elif not any(u.dtype == of(u).dtype for u in uses):
            verdict = "; the quantizer did nothing" if use is Use.MATMUL else ""
            kind = "weights" if use is Use.MATMUL else "numbers"
            out.append(f"{name}: no {use} has {wanted[use].dtype} {kind}{verdict}.")
    # a small weight may stay as it was, but may not be something else
    chosen = [u for u in types.uses if u.name not in left]
    large = [u for u in chosen if u.numbers >= SMALL or u.dtype not in expected.floats]
    other = [u for u in large if u.dtype != of(u).dtype]
    if other:
        still = "still float" if all(u.dtype.startswith("float") for u in other) else "of another type"
        out.append(f"{name}: {still}: {_listed(other)}.")
    if expected.whole and not types.integers:
        out.append(f"{name}: only matrix products are computed in integers; an NPU takes graphs that are as a whole.")
    if expected.whole and types.floats:
        out.append(f"{name}: computed with floats, where an NPU takes integers: {_some(types.floats)}.")
    if types.integers and not expected.whole:
        kinds = ", ".join(dict.fromkeys(types.integers))
        out.append(
            f"{name}: {kinds} computed in integers ({len(types.integers)} in all); the attention mask, sums and norms "
            "must stay float."
        )
    if types.coarse:
        out.append(
            f"{name}: attention scores in steps that probabilities are lost in: {_some(types.coarse)}; the constant of the "
            "mask is in their range."
        )
    right = [(u, of(u)) for u in large if u.dtype == of(u).dtype]
    return out + _form_problems(right, name, expected.whole)


def _form_problems(uses: list[tuple[WeightUse, Wanted]], name: str, whole: bool) -> list[str]:
    """List what is wrong with weights that have the right type."""
    out = []
    computed = [u for u, w in uses if u.dequantized is not w.dequantized]
    if computed:
        how = "turned into fp32 before the product" if computed[0].dequantized else "not turned into fp32"
        out.append(f"{name}: {how}: {_listed(computed)}.")
    scaled = [u for u, w in uses if u.per_channel is not None and w.per_channel not in (None, u.per_channel)]
    if scaled:
        how = (
            "a scale per output channel, not one per matrix"
            if scaled[0].per_channel
            else "one scale per matrix, not per output channel"
        )
        out.append(f"{name}: {scaled[0].dtype} weights have {how}: {_listed(scaled)}.")
    unlike = [u for u, w in uses if (u.bits is None) is not (w.bits is None)]
    if unlike:
        how = "on the fly, not in a measured range" if unlike[0].bits is None else "in a measured range"
        out.append(f"{name}: multiplied with numbers quantized {how}: {_listed(unlike)}.")
    ranged = [(u, w) for u, w in uses if u.bits is not None and w.bits is not None]
    odd = [u for u, w in ranged if u.bits != w.bits]
    few = whole and all(w.bits == 8 for _, w in ranged) and 3 * len(odd) < 2 * len(ranged)
    if odd and not few:
        out.append(f"{name}: multiplied with numbers of {odd[0].bits} bits: {_listed(odd)}.")
    fused = [u for u, w in uses if u.fused is not w.fused]
    if fused:
        how = "widened before the product" if fused[0].fused else "multiplied as integers"
        out.append(f"{name}: {how}, which is another runtime's form: {_listed(fused)}.")
    coarse = [u for u, w in uses if (u.block or math.inf) > (w.block or math.inf) or (w.block is None and u.block)]
    if coarse:
        shared = f"by {coarse[0].block}" if coarse[0].block else "by all"
        out.append(f"{name}: a scale is shared {shared} numbers of a channel: {_listed(coarse)}.")
    return out


def _listed(uses: list[WeightUse]) -> str:
    return _some([u.name for u in uses])


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:5])} ({len(names)} in all)"
