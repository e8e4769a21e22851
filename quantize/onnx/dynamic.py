"""Dynamic int8 for ONNX: weights per output channel by ONNX Runtime's quantizer, tables per row."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pocketbert.core.disk.ownership import temporary_folder
from pocketbert.core.errors import MissingBackendError
from pocketbert.core.host.versions import version_of
from pocketbert.core.types import Format, Role, Scheme
from pocketbert.quantize.onnx.left import nodes_left
from pocketbert.quantize.onnx.rows import pack_rows
from pocketbert.quantize.onnx.shared import straighten
from pocketbert.quantize.onnx.tables import pack_largest
from pocketbert.quantize.onnx.tied import retie, untie
from pocketbert.quantize.plan import Plan
from pocketbert.quantize.rounding import four_bits_in_blocks, per_row, per_tensor
from pocketbert.quantize.simulation import Simulation
from pocketbert.quantize.table import SchemeRow, Second, register_scheme
from pocketbert.quantize.weights import ExpectedWeights, Wanted


def write_int8(source: Path, destination: Path, plan: Plan) -> None:
    """Write a dynamic int8 copy of an fp32 file, with the table of words in 4 bits where the plan gives it `w4`.

    Raises:
        MissingBackendError: If onnx is not installed.
        InputError: If the width of that table is not a multiple of 16.
    """
    model = load_plain(source)
    if Scheme.W4 in plan.seconds:
        pack_largest(model, plan.seconds[Scheme.W4])
    write_dynamic(model, destination, plan.left)


def load_plain(source: Path) -> Any:
    """Load an exported file for a quantizer.

    Raises:
        MissingBackendError: If onnx is not installed.
    """
    if version_of("onnx") is None:
        raise MissingBackendError("onnx", "pip install 'pocketbert[onnx]'")
    import onnx

    model = onnx.load(source)
    del model.graph.value_info[:]  # stale after dynamo's folding; the quantizer's shape inference trips on it
    return model


def write_dynamic(model: Any, destination: Path, left: frozenset[str] = frozenset()) -> None:
    """Write a dynamic int8 copy of an fp32 model.

    Args:
        model: What `load_plain` returned; changed in place.
        destination: File to write.
        left: Digests of weights that stay as they are.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    ties = untie(model, left)
    straighten(model)
    pack_rows(model, left, [tie.table for tie in ties])
    with temporary_folder(destination.parent) as folder:
        plain = folder / "plain.onnx"
        onnx.save(model, plain)
        with _quiet_root():
            quantize_dynamic(
                plain,
                destination,
                per_channel=True,
                reduce_range=False,
                weight_type=QuantType.QInt8,
                op_types_to_quantize=["MatMul", "Gemm"],
                nodes_to_exclude=nodes_left(model.graph, left),
                extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
            )
    if ties:
        model = onnx.load(destination)
        retie(model, ties)
        onnx.save(model, destination)


@contextlib.contextmanager
def _quiet_root() -> Iterator[None]:
    """The quantizer advises on the root logger, which belongs to the application."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)


SMALL = ExpectedWeights(
    products=Wanted("int8", per_channel=True),
    tables=Wanted("int4", block=32),
    other_tables=Wanted("int8", per_channel=True),
)
SMALL_SIMULATION = Simulation(
    weights=per_row,
    tables=four_bits_in_blocks,
    other_tables=per_row,
    inputs=per_tensor,
)
register_scheme(
    SchemeRow(
        Format.ONNX,
        Scheme.INT8,
        ExpectedWeights(products=Wanted("int8", per_channel=True), tables=Wanted("int8", per_channel=True)),
        write_int8,
        simulation=Simulation(weights=per_row, tables=per_row, inputs=per_tensor),
        selective=True,
        seconds={Scheme.W4: Second(frozenset({Role.EMBEDDING}), SMALL, SMALL_SIMULATION)},
    )
)
