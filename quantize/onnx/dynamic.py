"""Dynamic int8 for ONNX (schemes ``int8`` and ``small``): inputs of products are quantized at run time.

Weights have a scale per output channel, tables one per row. `write_dynamic` prepares the graph (tied embeddings,
weights that several products share, tables) and runs ONNX Runtime's quantizer. The largest table has 4 bits in
``small``, and in ``int8`` if the plan gives it `w4` as a second scheme. All operators are standard ones.
"""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Container, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pocketbert.core.disk.ownership import temporary_folder
from pocketbert.core.errors import MissingBackendError
from pocketbert.core.host.system import version_of
from pocketbert.core.types import Format, Role, Scheme
from pocketbert.quantize.onnx.tables import (
    find_nodes_left,
    pack_largest_table,
    pack_tables_int8,
    retie_embeddings,
    untie_embeddings,
)
from pocketbert.quantize.rounding import Simulation, onnx_int4_blocks, per_row, per_tensor
from pocketbert.quantize.table import Plan, SchemeRow, SecondScheme
from pocketbert.quantize.weights import ExpectedForm, ExpectedWeights


def _write_int8(source: Path, destination: Path, plan: Plan) -> None:
    """Write a dynamic int8 copy of an fp32 ONNX file.

    The word table gets 4 bits if the plan gives it `w4` and no matrix product reads it.

    Raises:
        MissingBackendError: If onnx is not installed.
        InputError: If the word table is to have 4 bits and its width is not a multiple of 16.
    """
    second = plan.seconds.get(Scheme.W4)
    change = None if second is None else partial(pack_largest_table, digests=second)
    write_dynamic(source, destination, plan.left, change)


def _write_small(source: Path, destination: Path, plan: Plan) -> None:
    """Write a copy of an fp32 ONNX file with dynamic int8 products and a 4-bit word table.

    A word table that a matrix product reads too has int8. Raises the errors of `_write_int8`.
    """
    write_dynamic(source, destination, change=pack_largest_table)


def load_for_quantizer(source: Path) -> Any:
    """Load an exported ONNX file without the shapes stored in it, which make ONNX Runtime's quantizer fail.

    Raises:
        MissingBackendError: If onnx is not installed.
    """
    if version_of("onnx") is None:
        raise MissingBackendError("onnx", "pip install 'pocketbert[onnx]'")
    import onnx

    model = onnx.load(source)
    del model.graph.value_info[:]  # stale after dynamo's folding; the quantizer's shape inference trips on it
    return model


def write_dynamic(
    source: Path,
    destination: Path,
    left: frozenset[str] = frozenset(),
    change: Callable[[Any], None] | None = None,
) -> None:
    """Write a copy of an fp32 ONNX file with int8 weights and tables, whose products quantize their inputs at run time.

    Args:
        source: The exported file.
        destination: File to write.
        left: Digests of weights that stay float.
        change: Changes the loaded model before it is quantized.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with temporary_folder(destination.parent) as folder:
        plain = folder / "plain.onnx"
        tables_by_matrix, excluded = _write_prepared(source, plain, left, change)
        with _quiet_root_logger():
            quantize_dynamic(
                plain,
                destination,
                per_channel=True,
                reduce_range=False,
                weight_type=QuantType.QInt8,
                op_types_to_quantize=["MatMul", "Gemm"],
                nodes_to_exclude=excluded,
                extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
            )
    if tables_by_matrix:
        model = onnx.load(destination)
        retie_embeddings(model, tables_by_matrix)
        onnx.save(model, destination)


def _write_prepared(
    source: Path, plain: Path, left: frozenset[str], change: Callable[[Any], None] | None
) -> tuple[dict[str, str], list[str]]:
    """Write the graph that ONNX Runtime's quantizer gets, with int8 tables and untied embeddings.

    The model is not in memory any more when the quantizer holds its own copies.

    Returns:
        The tables of tied embeddings, by the name of their transposed copy; and the names of the nodes that the
        quantizer must not change.
    """
    import onnx

    model = load_for_quantizer(source)
    if change is not None:
        change(model)
    tables_by_matrix = untie_embeddings(model, left)
    _store_shared_weights_transposed(model)
    pack_tables_int8(model, left, list(tables_by_matrix.values()))
    onnx.save(model, plain)
    return tables_by_matrix, find_nodes_left(model.graph, left)


def _store_shared_weights_transposed(model: Any) -> None:
    """Transpose the stored weights that several Gemm nodes read with the flag `transB`, and remove the flag.

    Weights that other nodes read too, or without the flag, are not changed. Layers that run several times have weights
    of several nodes. ONNX Runtime's quantizer turns each Gemm into a MatMul and transposes its weight in the file, once
    for each node, so that such a weight would be transposed back and forth.
    """
    from onnx import numpy_helper

    stored = {t.name: t for t in model.graph.initializer}
    for name, nodes in find_readers(model.graph, stored).items():
        flags = [[a for a in n.attribute if a.name == "transB" and a.i] for n in nodes]
        if len(nodes) < 2 or any(n.op_type != "Gemm" or n.input[1] != name for n in nodes) or not all(flags):
            continue
        transposed = numpy_helper.to_array(stored[name]).T.copy()
        stored[name].CopyFrom(numpy_helper.from_array(transposed, name))
        for node, (flag,) in zip(nodes, flags, strict=True):
            node.attribute.remove(flag)


def find_readers(graph: Any, names: Container[str]) -> dict[str, list[Any]]:
    """Return the nodes that read each of the named tensors. A node that reads one twice is listed twice.

    Args:
        graph: The graph.
        names: Names of the tensors.
    """
    readers = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            if name in names:
                readers[name].append(node)
    return readers


@contextlib.contextmanager
def _quiet_root_logger() -> Iterator[None]:
    """Inside the block, let the root logger print errors only. ONNX Runtime's quantizer prints advice on it."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)


_INT8 = ExpectedForm("int8", per_channel=True)
_SMALL = ExpectedWeights(products=_INT8, tables=ExpectedForm("int4", block=32), other_tables=_INT8)
_SMALL_SIMULATION = Simulation(weights=per_row, tables=onnx_int4_blocks, other_tables=per_row, inputs=per_tensor)
INT8_ROW = SchemeRow(
    Format.ONNX,
    Scheme.INT8,
    ExpectedWeights(products=_INT8, tables=_INT8),
    _write_int8,
    simulation=Simulation(weights=per_row, tables=per_row, inputs=per_tensor),
    selective=True,
    seconds={Scheme.W4: SecondScheme(frozenset({Role.EMBEDDING}), _SMALL, _SMALL_SIMULATION)},
)
SMALL_ROW = SchemeRow(Format.ONNX, Scheme.SMALL, _SMALL, _write_small, simulation=_SMALL_SIMULATION)
