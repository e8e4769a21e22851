"""What the weights of a file are stored as, use by use, and whether that is what its scheme wants."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel

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
        dtype: ``float32``, ``float16``, ``int8``; another name where it is none of these.
        numbers: How many numbers it has.
        dequantized: Whether an operator turns it into fp32 before the use, so that the product is computed in fp32.
        per_channel: Whether it has a scale per output channel (a table: per row); False for floats, None where it has
            one channel, as a regression head: both are the same then.
        static: Whether what it is multiplied with is int8 in a range that the file holds.
    """

    name: str
    use: Use
    dtype: str
    numbers: int
    dequantized: bool = False
    per_channel: bool | None = False
    static: bool = False


class WeightTypes(BaseModel):
    """What the weights of a file are stored as.

    Attributes:
        uses: Every weight of a matrix product or an embedding lookup.
        int8_bytes: Bytes of int8 data.
        float_bytes: Bytes of float data.
        operators: Operator counts; of the first signature where there are several.
    """

    uses: list[WeightUse]
    int8_bytes: int
    float_bytes: int
    operators: dict[str, int]

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
        return f"{', '.join(parts)}; {self.int8_bytes / 1e6:.1f} MB int8, {self.float_bytes / 1e6:.2f} MB float"


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
        static: Whether what they are multiplied with is int8 in a range that the file holds.
    """

    dtype: str
    dequantized: bool = False
    per_channel: bool | None = None
    static: bool = False


@dataclass(frozen=True)
class ExpectedWeights:
    """What the weights of a file must be.

    Attributes:
        products: Those of matrix products.
        tables: Those of embedding lookups.
        floats: Types that small weights may stay in.
    """

    products: Wanted
    tables: Wanted
    floats: tuple[str, ...] = ("float32",)


def type_problems(types: WeightTypes, name: str, expected: ExpectedWeights) -> list[str]:
    """List what is wrong with the types of a file; empty when it is what its name says.

    Args:
        types: What was found in it.
        name: What to call it.
        expected: What its scheme wants.
    """
    wanted = {Use.MATMUL: expected.products, Use.TABLE: expected.tables}
    out = []
    for use in Use:
        if not any(u.use is use for u in types.uses):
            out.append(f"{name}: no {use} was found in it.")
        elif not types.count(use, wanted[use].dtype):
            verdict = "; the quantizer did nothing" if use is Use.MATMUL else ""
            kind = "weights" if use is Use.MATMUL else "numbers"
            out.append(f"{name}: no {use} has {wanted[use].dtype} {kind}{verdict}.")
    # a small weight may stay as it was, but may not be something else
    large = [u for u in types.uses if u.numbers >= SMALL or u.dtype not in expected.floats]
    other = [u for u in large if u.dtype != wanted[u.use].dtype]
    if other:
        still = "still float" if all(u.dtype.startswith("float") for u in other) else "of another type"
        out.append(f"{name}: {still}: {', '.join(u.name for u in other[:5])} ({len(other)} in all).")
    right = [u for u in large if u.dtype == wanted[u.use].dtype]
    computed = [u for u in right if u.dequantized is not wanted[u.use].dequantized]
    if computed:
        how = "turned into fp32 before the product" if computed[0].dequantized else "not turned into fp32"
        out.append(f"{name}: {how}: {', '.join(u.name for u in computed[:5])} ({len(computed)} in all).")
    told = [u for u in right if u.per_channel is not None]
    scaled = [u for u in told if wanted[u.use].per_channel not in (None, u.per_channel)]
    if scaled:
        how = (
            "a scale per output channel, not one per matrix"
            if scaled[0].per_channel
            else "one scale per matrix, not per output channel"
        )
        out.append(f"{name}: int8 weights have {how}: {', '.join(u.name for u in scaled[:5])} ({len(scaled)} in all).")
    ranged = [u for u in right if u.static is not wanted[u.use].static]
    if ranged:
        how = "in a measured range" if ranged[0].static else "on the fly, not in a measured range"
        out.append(
            f"{name}: multiplied with numbers quantized {how}: {', '.join(u.name for u in ranged[:5])} ({len(ranged)} in all)."
        )
    return out
