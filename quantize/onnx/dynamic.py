"""Dynamic int8 for ONNX: weights per output channel by ONNX Runtime's quantizer, tables per row."""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from pocketbert.core.disk.ownership import temporary_folder
from pocketbert.core.errors import MissingBackendError
from pocketbert.core.host.system import version_of
from pocketbert.core.types import Format, Role, Scheme
from pocketbert.quantize.onnx.tables import nodes_left, pack_largest, pack_rows, retie, untie
from pocketbert.quantize.rounding import Simulation, four_bits_in_blocks, per_row, per_tensor
from pocketbert.quantize.table import Plan, SchemeRow, Second, register_scheme
from pocketbert.quantize.weights import ExpectedWeights, Wanted

# --- shared ---
# Weights that several products share, as layers do that run more than once.


def straighten(model: Any) -> None:
    """Store weights that several Gemm nodes read turned round as they are multiplied with.

    ONNX Runtime's quantizer writes each Gemm as a MatMul and turns its weight in the file, once for each node: what
    several nodes read would be turned back and forth.

    Args:
        model: An ONNX model; changed in place.
    """
    from onnx import numpy_helper

    stored = {t.name: t for t in model.graph.initializer}
    for name, nodes in readers(model.graph, stored).items():
        flags = [[a for a in n.attribute if a.name == "transB" and a.i] for n in nodes]
        if len(nodes) < 2 or any(n.op_type != "Gemm" or n.input[1] != name for n in nodes) or not all(flags):
            continue
        turned = numpy_helper.to_array(stored[name]).T.copy()
        stored[name].CopyFrom(numpy_helper.from_array(turned, name))
        for node, (flag,) in zip(nodes, flags, strict=True):
            node.attribute.remove(flag)


def readers(graph: Any, names: Container[str]) -> dict[str, list[Any]]:
    """Find the nodes that read each of some tensors; a node that reads one twice is there twice.

    Args:
        graph: The graph.
        names: The tensors.
    """
    out = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            if name in names:
                out[name].append(node)
    return out


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


# --- small ---
# small for ONNX: dynamic int8 products, the largest embedding table in 4 bits, all in standard operators.


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
