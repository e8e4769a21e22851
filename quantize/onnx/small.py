"""small for ONNX: dynamic int8 products, the largest embedding table in 4 bits, all in standard operators."""

from __future__ import annotations

from pathlib import Path

from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.onnx.dynamic import load_plain, write_dynamic
from pocketbert.quantize.onnx.tables import pack_largest
from pocketbert.quantize.plan import Plan
from pocketbert.quantize.rounding import four_bits_in_blocks, per_row, per_tensor
from pocketbert.quantize.simulation import Simulation
from pocketbert.quantize.table import SchemeRow, register_scheme
from pocketbert.quantize.weights import ExpectedWeights, Wanted


def _write(source: Path, destination: Path, plan: Plan) -> None:
    """Write a copy of an fp32 file with int8 products and a 4-bit table of words.

    Raises:
        MissingBackendError: If onnx is not installed.
        InputError: If the width of that table is not a multiple of 16.
    """
    model = load_plain(source)
    scales = pack_largest(model)
    write_dynamic(model, destination, leave=scales)


register_scheme(
    SchemeRow(
        Format.ONNX,
        Scheme.SMALL,
        ExpectedWeights(
            products=Wanted("int8", per_channel=True), tables=Wanted("int4", block=32), other_tables=Wanted("int8")
        ),
        _write,
        simulation=Simulation(
            weights=per_row,
            tables=four_bits_in_blocks,
            other_tables=per_tensor,
            inputs=per_tensor,
            saturates=True,
        ),
    )
)
