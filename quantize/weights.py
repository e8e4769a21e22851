"""The types in which a file stores its weights, and the comparison with the types that a scheme expects.

The reader of each format describes a file as `WeightTypes`: one `WeightUse` for each operator that reads a stored
weight. A scheme describes its files as `ExpectedWeights`, made of one `ExpectedForm` per use. `find_type_problems`
compares the two.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import BaseModel

COARSEST = {8: 1.0, 16: 0.05}
"""Largest step of attention scores by their bits, which no range of real scores reaches. With a mask of -1e4 inside it
the step is 39 in 8 bits and 0.15 in 16."""
SMALL = 4096
"""Weights with fewer numbers (a classifier's last layer, a table of token types) may stay fp32: they save nothing."""
_SCALE_BITS = 16


class Use(StrEnum):
    """What reads a weight: a matrix product or a table lookup."""

    MATMUL = "matrix product"
    TABLE = "embedding table"


class WeightUse(BaseModel):
    """One operator's use of a stored weight, and how the weight is stored.

    Attributes:
        name: The weight's name.
        use: Whether a matrix product or a lookup reads the weight.
        dtype: ``float32``, ``float16``, ``int8`` (in ONNX files also for uint8), ``int4``; else another name.
        numbers: Count of numbers in the weight.
        dequantized: Whether an operator converts the weight to fp32 before the use, so that the product is computed in
            fp32.
        per_channel: Whether the weight has a scale per output channel (a table: per row); False for floats, None for a
            single channel, as in a regression head, where both are the same.
        bits: Bits of the other operand, if the file stores a range for it, so that it is an integer; else None.
        fused: Whether the file dequantizes both operands of the product before it, for engines that fuse the three
            operators.
        block: Count of neighbouring numbers of a channel that share a scale; None if all do.
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
    """The types in which a file stores its weights.

    Attributes:
        uses: Every weight of a matrix product or an embedding lookup.
        int8_bytes: Bytes of integers of 8 bits and fewer.
        float_bytes: Bytes of float data. Wider integers, such as shapes and ids, are in neither count.
        operators: Number of operators of each kind; of the first signature if the file has several.
        integers: Kinds of the operators that compute with 8 or 16 bits and are neither products with a weight nor
            lookups, one entry for each operator; empty for Core ML packages.
        floats: Kinds and names of operators that compute with floats; filled for ONNX files only. Those of TFLite files
            are counted by the gate `placement`, which fails if a matrix product is among them.
        coarse: Names of attention scores that are read as integers with steps so large that probabilities are lost.
    """

    uses: list[WeightUse]
    int8_bytes: int
    float_bytes: int
    operators: dict[str, int]
    integers: list[str] = []
    floats: list[str] = []
    coarse: list[str] = []

    def count(self, use: Use, dtype: str) -> int:
        """Return the number of weights of one use and type."""
        return sum(u.use is use and u.dtype == dtype for u in self.uses)

    @property
    def int8_matmuls(self) -> int:
        """Number of matrix products with int8 weights."""
        return self.count(Use.MATMUL, "int8")

    @property
    def int8_embeddings(self) -> int:
        """Number of lookup tables in int8."""
        return self.count(Use.TABLE, "int8")

    @property
    def summary(self) -> str:
        """One line of text on how many weights have each type, and how many bytes."""
        types = dict.fromkeys(u.dtype for u in self.uses)
        parts = []
        for dtype in types:
            counts = [(self.count(use, dtype), title) for use, title in _USE_TITLES.items()]
            titles = [f"{count} {title}{'' if count == 1 else 's'}" for count, title in counts if count]
            if titles:
                parts.append(f"{' and '.join(titles)} in {dtype}")
        integers = " and ".join(sorted(k for k in types if k.startswith("int"))) or "integers"
        return f"{', '.join(parts)}; {self.int8_bytes / 1e6:.1f} MB {integers}, {self.float_bytes / 1e6:.2f} MB float"


_USE_TITLES = {Use.MATMUL: "matrix product", Use.TABLE: "table"}


@dataclass(frozen=True)
class ExpectedForm:
    """How the weights of one use (products or tables) must be stored.

    Attributes:
        dtype: Type of the weights.
        dequantized: Whether an operator converts the weights to fp32 before the use.
        per_channel: Whether the weights have a scale per output channel; None if both are right.
        bits: Bits of the other operand, for which the file stores a range; None if it stores none. In files that
            compute in integers throughout, 8 means more than a third of the products: those with fewer results than
            terms keep 16.
        fused: Whether the file dequantizes both operands of a product before it, for engines that fuse the three
            operators.
        block: The largest allowed count of numbers of a channel that share a scale; None if all numbers of a channel
            share it.
    """

    dtype: str
    dequantized: bool = False
    per_channel: bool | None = None
    bits: int | None = None
    fused: bool = False
    block: int | None = None


@dataclass(frozen=True)
class ExpectedWeights:
    """How all weights of a file must be stored for a scheme.

    Attributes:
        products: Weights of matrix products.
        tables: Tables of embedding lookups.
        other_tables: A form that tables other than the largest may have instead; None if all tables have the same. A
            coarse table of positions or segments changes every token in the same way, which costs more than it saves.
        floats: Types in which small weights may stay.
        whole: Whether norms, sums and softmax must be computed in integers too; in other files they must not.
    """

    products: ExpectedForm
    tables: ExpectedForm
    other_tables: ExpectedForm | None = field(default=None, kw_only=True)
    floats: tuple[str, ...] = ("float32",)
    whole: bool = field(default=False, kw_only=True)

    def of(self, use: Use, largest: bool) -> ExpectedForm:
        """Return how a weight of this use must be stored.

        Args:
            use: What the weight is used for.
            largest: Whether the weight is the largest table; read for tables only.
        """
        if use is Use.MATMUL:
            return self.products
        return self.tables if largest or self.other_tables is None else self.other_tables


def bits_per_number(dtype: str, block: int | None) -> float:
    """Return the bits that one stored number takes, including its share of a block's fp16 scale.

    Args:
        dtype: A type whose name ends with its bits; others count as 32.
        block: Count of numbers that share a scale; None for no blocks.
    """
    digits = re.search(r"\d+$", dtype)
    return (int(digits[0]) if digits else 32) + (_SCALE_BITS / block if block else 0)


def find_type_problems(
    types: WeightTypes, name: str, expected: ExpectedWeights, left: frozenset[str] = frozenset(), whole: bool = True
) -> list[str]:
    """Return what is wrong with the weights of a file, compared with a scheme: sentences, empty if nothing is.

    Small weights may stay float. An embedding table that a matrix product reads too may have the type of the product's
    weight. Operators that should compute in another type, and too large steps of attention scores, are reported too.

    Args:
        types: The weight types read from the file.
        name: Name of the file in the messages.
        expected: The types of the scheme.
        left: Names of weights that stay float.
        whole: Whether `types` holds all weights of the file, not only those of one of its schemes.
    """
    multiplied = {u.name for u in types.uses if u.use is Use.MATMUL}
    tied_table = ExpectedForm(expected.products.dtype, block=expected.products.block)
    largest = max((u.numbers for u in types.uses if u.use is Use.TABLE), default=0)

    def wanted(use: WeightUse) -> ExpectedForm:
        """Return how the scheme expects a weight to be stored in this use."""
        if use.use is Use.TABLE and use.dtype != expected.tables.dtype and use.name in multiplied:
            return tied_table
        if use.use is Use.TABLE and use.dtype == expected.tables.dtype:
            return expected.tables
        return expected.of(use.use, use.numbers == largest)

    problems = []
    for use in Use if whole else ():
        uses = [u for u in types.uses if u.use is use]
        if not uses:
            problems.append(f"{name}: no {use} was found in it.")
        elif not all(u.name in left for u in uses) and not any(u.dtype == wanted(u).dtype for u in uses):
            is_product = use is Use.MATMUL
            dtype = (expected.products if is_product else expected.tables).dtype
            verdict = "; the quantizer did nothing" if is_product else ""
            problems.append(f"{name}: no {use} has {dtype} {'weights' if is_product else 'numbers'}{verdict}.")
    # a small weight may stay float, but must not have any other type
    checked = [u for u in types.uses if u.name not in left and (u.numbers >= SMALL or u.dtype not in expected.floats)]
    of_other_type = [u for u in checked if u.dtype != wanted(u).dtype]
    if of_other_type:
        all_float = all(u.dtype.startswith("float") for u in of_other_type)
        problems.append(f"{name}: {'still float' if all_float else 'of another type'}: {_list_names(of_other_type)}.")
    problems += _operator_problems(types, name, expected.whole)
    same_type = [(u, wanted(u)) for u in checked if u.dtype == wanted(u).dtype]
    return problems + _form_problems(same_type, name, expected.whole)


def _operator_problems(types: WeightTypes, name: str, whole: bool) -> list[str]:
    """Return a sentence for each kind of operators that compute in floats or integers and should not.

    Attention scores with too large quantization steps are reported too. `whole` tells whether all operators of the file
    should compute in integers.
    """
    problems = []
    if whole and not types.integers:
        problems.append(
            f"{name}: only matrix products are computed in integers; an NPU takes graphs that are as a whole."
        )
    if whole and types.floats:
        problems.append(f"{name}: computed with floats, where an NPU takes integers: {_first_five(types.floats)}.")
    if types.integers and not whole:
        kinds = ", ".join(dict.fromkeys(types.integers))
        problems.append(
            f"{name}: {kinds} computed in integers ({len(types.integers)} in all); the attention mask, sums and norms "
            "must stay float."
        )
    if types.coarse:
        problems.append(
            f"{name}: attention scores in steps that probabilities are lost in: {_first_five(types.coarse)}; the "
            "constant of the mask is in their range."
        )
    return problems


def _form_problems(uses: list[tuple[WeightUse, ExpectedForm]], name: str, whole: bool) -> list[str]:
    """Return a sentence for each way in which weights of the right type have other scales, ranges or blocks.

    `uses` are weights with the form that the scheme expects of each. `whole` tells whether all operators of the file
    should compute in integers.
    """
    problems = []
    dequantized = [u for u, w in uses if u.dequantized is not w.dequantized]
    if dequantized:
        how = "turned into fp32 before the product" if dequantized[0].dequantized else "not turned into fp32"
        problems.append(f"{name}: {how}: {_list_names(dequantized)}.")
    scaled = [u for u, w in uses if u.per_channel is not None and w.per_channel not in (None, u.per_channel)]
    if scaled:
        how = (
            "a scale per output channel, not one per matrix"
            if scaled[0].per_channel
            else "one scale per matrix, not per output channel"
        )
        problems.append(f"{name}: {scaled[0].dtype} weights have {how}: {_list_names(scaled)}.")
    ranged_or_not = [u for u, w in uses if (u.bits is None) is not (w.bits is None)]
    if ranged_or_not:
        how = "on the fly, not in a measured range" if ranged_or_not[0].bits is None else "in a measured range"
        problems.append(f"{name}: multiplied with numbers quantized {how}: {_list_names(ranged_or_not)}.")
    ranged = [(u, w) for u, w in uses if u.bits is not None and w.bits is not None]
    other_bits = [u for u, w in ranged if u.bits != w.bits]
    allowed = whole and all(w.bits == 8 for _, w in ranged) and 3 * len(other_bits) < 2 * len(ranged)
    if other_bits and not allowed:
        problems.append(f"{name}: multiplied with numbers of {other_bits[0].bits} bits: {_list_names(other_bits)}.")
    fused = [u for u, w in uses if u.fused is not w.fused]
    if fused:
        how = "widened before the product" if fused[0].fused else "multiplied as integers"
        problems.append(f"{name}: {how}, which is another runtime's form: {_list_names(fused)}.")
    coarse = [u for u, w in uses if (u.block or math.inf) > (w.block or math.inf) or (w.block is None and u.block)]
    if coarse:
        shared = f"by {coarse[0].block}" if coarse[0].block else "by all"
        problems.append(f"{name}: a scale is shared {shared} numbers of a channel: {_list_names(coarse)}.")
    return problems


def _list_names(uses: list[WeightUse]) -> str:
    return _first_five([u.name for u in uses])


def _first_five(names: list[str]) -> str:
    return f"{', '.join(names[:5])} ({len(names)} in all)"
