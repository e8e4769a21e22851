"""Weights in blocks of 32 for ONNX (schemes ``int8-b32`` and ``w4``), computed by MatMulNBits and GatherBlockQuantized.

Both operators are in the domain com.microsoft of ONNX Runtime, version 1. The operator set stays that of the exported
file. Tables of positions and segments have 8 bits in both schemes.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.disk.ownership import replace_file, temporary_folder
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.onnx.dynamic import load_for_quantizer
from pocketbert.quantize.onnx.tables import (
    BLOCK,
    block_size_of,
    find_largest_table,
    find_weights_left,
    is_lookup,
    quantize_blocks,
    untie_embeddings,
)
from pocketbert.quantize.rounding import Rounding, Simulation, onnx_int4_blocks, onnx_int8_blocks, per_block
from pocketbert.quantize.table import WEIGHTED_ROLES, Plan, SchemeRow, SecondScheme
from pocketbert.quantize.weights import ExpectedForm, ExpectedWeights

DOMAIN = "com.microsoft"
_BITS = {Scheme.INT8_B32: 8, Scheme.W4: 4}
_ACCURACY_LEVEL = 4
"""At this level, inputs of products are rounded to int8 in blocks, and multiplied as integers."""


def _write(bits: int, source: Path, destination: Path, plan: Plan) -> None:
    """Write a copy of an fp32 ONNX file whose weights are rounded in blocks of 32 to `bits` bits.

    Raises:
        MissingBackendError: If onnx is not installed.
        InputError: If the width of an embedding table that is to be quantized is not a multiple of 16.
    """
    model = load_for_quantizer(source)
    import onnx
    from onnx import helper

    _BlockWriter(model, bits, plan).run()
    if not any(entry.domain == DOMAIN for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    with temporary_folder(destination.parent) as folder:
        written = folder / destination.name
        onnx.save(model, written)
        replace_file(written, destination)


class _BlockWriter:
    """Replaces an ONNX model's products and lookups by operators that read weights quantized in blocks.

    Args:
        model: The fp32 model; changed by `run`.
        bits: Bits of the weights to which the plan gives no other scheme.
        plan: The weights that stay float or have a second scheme.
    """

    def __init__(self, model: Any, bits: int, plan: Plan) -> None:
        """Find the weights to quantize and the bits of each.

        Embedding tables that a matrix product reads too get a transposed copy first.
        """
        tables_by_matrix = untie_embeddings(model, plan.left)
        self.graph = model.graph
        self.left = find_weights_left(self.graph, plan.left)
        self.tables_by_matrix = tables_by_matrix
        self.stored = {t.name: t for t in self.graph.initializer}
        self.added: set[str] = set()
        self.default_bits = bits
        seconds = {s: find_weights_left(self.graph, digests) for s, digests in plan.seconds.items()}
        self.bits_by_weight = {name: _BITS[s] for s, names in seconds.items() for name in names}
        tables = {n.input[0] for n in self.graph.node if n.input and is_lookup(n, n.input[0])}
        small_tables = tables - {find_largest_table(self.graph), *tables_by_matrix.values()}
        self.bits_by_weight |= dict.fromkeys(small_tables, 8)

    def run(self) -> None:
        """Replace the products and lookups of weights to be quantized, and remove stored tensors that no node reads."""
        nodes: list[Any] = []
        for node in self.graph.node:
            nodes += self._replace(node)
        read = {name for node in nodes for name in node.input} | {o.name for o in self.graph.output}
        kept = [t for t in self.graph.initializer if t.name in read]
        for field, values in ((self.graph.node, nodes), (self.graph.initializer, kept)):
            del field[:]
            field.extend(values)

    def _replace(self, node: Any) -> list[Any]:
        """Return the nodes that replace a node, or the node itself if it reads no weight that is to be quantized."""
        if self.left.intersection(node.input):
            return [node]
        if node.op_type in ("MatMul", "Gemm") and self._is_matrix(node.input[1]):
            return self._product(node)
        if node.op_type == "Gather" and self._is_matrix(node.input[0]) and is_lookup(node, node.input[0]):
            return [self._lookup(node)]
        return [node]

    def _is_matrix(self, name: str) -> bool:
        tensor = self.stored.get(name)
        return tensor is not None and len(tensor.dims) == 2 and tensor.data_type == 1

    def _product(self, node: Any) -> list[Any]:
        """Return the nodes that replace a matrix product: a MatMulNBits, and an Add for its bias.

        A Gemm with factors other than 1 or a transposed first operand is returned unchanged.
        """
        from onnx import helper, numpy_helper

        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0 or attributes.get("transA"):
            return [node]
        weight = node.input[1]
        matrix = numpy_helper.to_array(self.stored[weight])
        rows = matrix if attributes.get("transB") else matrix.T
        table = self.tables_by_matrix.get(weight)
        nodes: list[Any] = []
        if table:
            nodes, codes, scales = self._tied_weight(table)
        else:
            codes, scales = self._store_blocks(weight, rows, BLOCK, flat=False)
        bias = node.input[2] if len(node.input) > 2 else ""
        out = f"{node.output[0]}_product" if bias else node.output[0]
        product = helper.make_node(
            "MatMulNBits",
            [node.input[0], codes, scales],
            [out],
            name=node.name,
            domain=DOMAIN,
            K=rows.shape[1],
            N=rows.shape[0],
            bits=self._bits(table or weight),
            block_size=block_size_of(rows.shape[1]) if table else BLOCK,
            accuracy_level=_ACCURACY_LEVEL,
        )
        return [*nodes, product, *([helper.make_node("Add", [out, bias], node.output)] if bias else [])]

    def _tied_weight(self, table: str) -> tuple[list[Any], str, str]:
        """Make a matrix product read the quantized embedding table instead of a second copy of it (fill-mask heads).

        Returns:
            A list with the Reshape that gives the table's codes the shape of a product's weight, and the names of codes
            and scales. The list is empty if the Reshape was added before. ONNX Runtime runs it once, when it opens the
            file.
        """
        from onnx import helper

        table_codes, scales = self._store_table(table)
        codes, nodes = f"{table}_matrix", list[Any]()
        if codes not in self.added:
            self.added.add(codes)
            rows, width = self.stored[table].dims
            block = block_size_of(width) or BLOCK
            shape = np.array([rows, width // block, block * self._bits(table) // 8], np.int64)
            self._add(f"{codes}_shape", shape)
            nodes.append(helper.make_node("Reshape", [table_codes, f"{codes}_shape"], [codes]))
        return nodes, codes, scales

    def _lookup(self, node: Any) -> Any:
        """Build the GatherBlockQuantized that replaces an embedding lookup (Gather)."""
        from onnx import helper

        codes, scales = self._store_table(node.input[0])
        return helper.make_node(
            "GatherBlockQuantized",
            [codes, node.input[1], scales],
            node.output,
            name=node.name,
            domain=DOMAIN,
            bits=self._bits(node.input[0]),
            block_size=block_size_of(self.stored[node.input[0]].dims[1]),
            gather_axis=0,
            quantize_axis=1,
        )

    def _store_table(self, name: str) -> tuple[str, str]:
        """Store an embedding table as codes [V, bytes of a row] and scales [V, blocks], and return the names of both.

        Raises:
            InputError: If no block size divides the table's width.
        """
        from onnx import numpy_helper

        values = numpy_helper.to_array(self.stored[name])
        block = block_size_of(values.shape[1])
        if block is None:
            raise InputError(
                Problem(
                    name,
                    f"has rows of {values.shape[1]} numbers, which blocks of 32 or 16 do not divide.",
                    "Choose the scheme int8, or a student whose hidden size is a multiple of 16.",
                )
            )
        return self._store_blocks(name, values, block, flat=True)

    def _store_blocks(self, name: str, rows: NDArray[np.float32], block: int, flat: bool) -> tuple[str, str]:
        """Store a weight's codes and scales in blocks, unless this was done before, and return the names of both.

        Args:
            name: Name of the weight.
            rows: Numbers of the weight, [rows, width].
            block: Numbers in a block.
            flat: Whether to store the codes as [rows, bytes of a row], without the axis of the blocks.
        """
        bits = self._bits(name)
        codes, scales = f"{name}_int{bits}", f"{name}_scales"
        if codes not in self.added:
            blocks = quantize_blocks(rows, bits, block)
            self._add(codes, blocks.packed.reshape(len(rows), -1) if flat else blocks.packed)
            self._add(scales, blocks.scales)
        return codes, scales

    def _bits(self, name: str) -> int:
        return self.bits_by_weight.get(name, self.default_bits)

    def _add(self, name: str, value: NDArray[Any]) -> None:
        """Add a stored array to the graph unless it has one of that name."""
        from onnx import numpy_helper

        if name not in self.added:
            self.added.add(name)
            self.graph.initializer.append(numpy_helper.from_array(value, name))


def _scheme_parts(bits: int, rounding: Rounding) -> SecondScheme:
    """Build the expected weight types of a block scheme with `bits` bits, and its simulation by a rounding in torch."""
    wanted = ExpectedForm(f"int{bits}", per_channel=True, block=BLOCK)
    return SecondScheme(
        WEIGHTED_ROLES,
        ExpectedWeights(wanted, wanted, other_tables=ExpectedForm("int8", per_channel=True, block=BLOCK)),
        Simulation(weights=rounding, tables=rounding, other_tables=onnx_int8_blocks, inputs=per_block),
    )


_PARTS = {Scheme.INT8_B32: _scheme_parts(8, onnx_int8_blocks), Scheme.W4: _scheme_parts(4, onnx_int4_blocks)}
ROWS = tuple(
    SchemeRow(
        Format.ONNX,
        scheme,
        own.weights,
        partial(_write, _BITS[scheme]),
        simulation=own.simulation,
        selective=True,
        seconds={s: other for s, other in _PARTS.items() if s is not scheme},
    )
    for scheme, own in _PARTS.items()
)
