"""small for ONNX: dynamic int8 products, the largest embedding table in 4 bits, all in standard operators."""

from __future__ import annotations

from pathlib import Path

from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.onnx.dynamic import SMALL, SMALL_SIMULATION, load_plain, write_dynamic
from pocketbert.quantize.onnx.tables import pack_largest
from pocketbert.quantize.plan import Plan
from pocketbert.quantize.table import SchemeRow, register_scheme


def _write(source: Path, destination: Path, plan: Plan) -> None:
    """Write a copy of an fp32 file with int8 products and a 4-bit table of words.

    Raises:
        MissingBackendError: If onnx is not installed.
        InputError: If the width of that table is not a multiple of 16.
    """
    model = load_plain(source)
    pack_largest(model)
    write_dynamic(model, destination)


register_scheme(SchemeRow(Format.ONNX, Scheme.SMALL, SMALL, _write, simulation=SMALL_SIMULATION))
