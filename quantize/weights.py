"""What the weights of a file are stored as, use by use, and whether that is what its scheme says."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from pydantic import BaseModel

from pocketbert.core.types import Format, Runtime, Scheme

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
        parts = [
            f"{self.count(Use.MATMUL, k)} matrix products and {self.count(Use.TABLE, k)} tables in {k}" for k in kinds
        ]
        return f"{', '.join(parts)}; {self.int8_bytes / 1e6:.1f} MB int8, {self.float_bytes / 1e6:.2f} MB float"


class _Wanted(NamedTuple):
    dtype: str
    dequantized: bool
    per_channel: bool | None
    static: bool = False


_WANTED: dict[tuple[Scheme, Runtime | None], dict[Use, _Wanted]] = {
    (Scheme.FP32, None): dict.fromkeys(Use, _Wanted("float32", False, None)),
    (Scheme.FP16, None): dict.fromkeys(Use, _Wanted("float16", True, None)),
    (Scheme.W8, None): dict.fromkeys(Use, _Wanted("int8", True, True)),
    (Scheme.INT8, None): {Use.MATMUL: _Wanted("int8", False, True), Use.TABLE: _Wanted("int8", False, None)},
    (Scheme.INT8, Runtime.OPENVINO): {
        Use.MATMUL: _Wanted("int8", False, True, static=True),
        Use.TABLE: _Wanted("int8", False, None),
    },
    # one scale per tensor: the per-channel scales of a dynamic product are what old kernels get wrong
    (Scheme.INT8, Runtime.TFLITE_2_16): dict.fromkeys(Use, _Wanted("int8", False, False)),
}


_HALF = _Wanted("float16", False, None)
"""Of formats that also compute in fp16."""


def type_problems(
    types: WeightTypes, name: str, scheme: Scheme, runtime: Runtime | None = None, format: Format | None = None
) -> list[str]:
    """What is wrong with the types of a file; empty when it is what its name says.

    Args:
        types: What was found in it.
        name: What to call it.
        scheme: What it claims to be.
        runtime: The runtime it was made for, if it was made for one.
        format: What kind of file it is.
    """
    wanted = _WANTED[scheme, runtime if scheme is Scheme.INT8 else None]
    if format is Format.COREML and scheme is Scheme.FP16:
        wanted = dict.fromkeys(Use, _HALF)
    out = []
    for use in Use:
        if not any(u.use is use for u in types.uses):
            out.append(f"{name}: no {use} was found in it.")
        elif not types.count(use, wanted[use].dtype):
            verdict = "; the quantizer did nothing" if use is Use.MATMUL else ""
            kind = "weights" if use is Use.MATMUL else "numbers"
            out.append(f"{name}: no {use} has {wanted[use].dtype} {kind}{verdict}.")
    # a small weight may stay as it was, but may not be something else
    plain = ("float32", "float16") if format is Format.COREML else ("float32",)
    large = [u for u in types.uses if u.numbers >= SMALL or u.dtype not in plain]
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
