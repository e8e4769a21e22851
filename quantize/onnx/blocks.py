"""int8-b32 and w4 for ONNX: weights in blocks of 32, computed by ONNX Runtime's MatMulNBits and GatherBlockQuantized.

Both operators are in the domain com.microsoft, version 1. The operator set stays that of the exported file.
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
from pocketbert.quantize.onnx.dynamic import load_plain
from pocketbert.quantize.onnx.tables import BLOCK, block_of, in_blocks, is_lookup, largest_table, stored_left, untie
from pocketbert.quantize.rounding import Rounding, Simulation, eight_bits_in_blocks, four_bits_in_blocks, per_block
from pocketbert.quantize.table import WEIGHTED, Plan, SchemeRow, Second, register_scheme
from pocketbert.quantize.weights import ExpectedWeights, Wanted

DOMAIN = "com.microsoft"
_BITS = {Scheme.INT8_B32: 8, Scheme.W4: 4}
_INT8_INPUTS = 4
"""Accuracy level at which inputs of products are rounded to int8 in blocks, and multiplied as integers."""


def _write(bits: int, source: Path, destination: Path, plan: Plan) -> None:
    """Write a copy of an fp32 file with weights in blocks.

    Raises:
        MissingBackendError: If onnx is not installed.
        InputError: If the width of a table is not a multiple of 16.
    """
    model = load_plain(source)
    import onnx
    from onnx import helper

    _Writer(model, bits, plan).run()
    if not any(entry.domain == DOMAIN for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    with temporary_folder(destination.parent) as folder:
        written = folder / destination.name
        onnx.save(model, written)
        replace_file(written, destination)


class _Writer:
    """Replaces products and lookups of stored weights in a model."""

    def __init__(self, model: Any, bits: int, plan: Plan) -> None:
        self.bits = bits
        self.ties = {tie.matrix: tie.table for tie in untie(model, plan.left)}
        self.graph = model.graph
        self.left = stored_left(self.graph, plan.left)
        seconds = {s: stored_left(self.graph, digests) for s, digests in plan.seconds.items()}
        self.own = {name: _BITS[s] for s, names in seconds.items() for name in names}
        self.stored = {t.name: t for t in self.graph.initializer}
        read = {n.input[0] for n in self.graph.node if n.input and is_lookup(n, n.input[0])}
        # tables of positions and segments have 8 bits
        self.fine = read - {largest_table(self.graph), *self.ties.values()}
        self.added: set[str] = set()

    def run(self) -> None:
        nodes: list[Any] = []
        for node in self.graph.node:
            nodes += self._replaced(node)
        read = {name for node in nodes for name in node.input} | {o.name for o in self.graph.output}
        kept = [t for t in self.graph.initializer if t.name in read]
        for field, values in ((self.graph.node, nodes), (self.graph.initializer, kept)):
            del field[:]
            field.extend(values)

    def _replaced(self, node: Any) -> list[Any]:
        if self.left.intersection(node.input):
            return [node]
        if node.op_type in ("MatMul", "Gemm") and self._is_matrix(node.input[1]):
            return self._product(node)
        table = self.stored.get(node.input[0]) if node.op_type == "Gather" else None
        if table is not None and len(table.dims) == 2 and table.data_type == 1 and is_lookup(node, table.name):
            return [self._lookup(node)]
        return [node]

    def _is_matrix(self, name: str) -> bool:
        tensor = self.stored.get(name)
        return tensor is not None and len(tensor.dims) == 2 and tensor.data_type == 1

    def _product(self, node: Any) -> list[Any]:
        from onnx import helper, numpy_helper

        flags = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        plain = flags.get("alpha", 1.0) == flags.get("beta", 1.0) == 1.0 and not flags.get("transA")
        if not plain:
            return [node]
        matrix = numpy_helper.to_array(self.stored[node.input[1]])
        rows = matrix if flags.get("transB") else matrix.T
        table = self.ties.get(node.input[1])
        codes, scales = self._tied(table) if table else self._store(node.input[1], rows, BLOCK, flat=False)
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
            bits=self._bits(table or node.input[1]),
            block_size=block_of(rows.shape[1]) if table else BLOCK,
            accuracy_level=_INT8_INPUTS,
        )
        before = self._reshaped(codes, table) if table else []
        return [*before, product, *([helper.make_node("Add", [out, bias], node.output)] if bias else [])]

    def _tied(self, table: str) -> tuple[str, str]:
        """Names of a table's numbers in the shape that a product takes, and of their scales."""
        _, scales = self._table(table)
        return f"{table}_matrix", scales

    def _reshaped(self, codes: str, table: str) -> list[Any]:
        """The operator that gives a table the shape of a product's weight; ONNX Runtime runs it once, at opening."""
        from onnx import helper

        if codes in self.added:
            return []
        self.added.add(codes)
        rows, width = self.stored[table].dims
        block = block_of(width) or BLOCK
        shape = f"{codes}_shape"
        self._add(shape, np.array([rows, width // block, block * self._bits(table) // 8], np.int64))
        return [helper.make_node("Reshape", [self._table(table)[0], shape], [codes])]

    def _lookup(self, node: Any) -> Any:
        from onnx import helper

        codes, scales = self._table(node.input[0])
        return helper.make_node(
            "GatherBlockQuantized",
            [codes, node.input[1], scales],
            node.output,
            name=node.name,
            domain=DOMAIN,
            bits=self._bits(node.input[0]),
            block_size=block_of(self.stored[node.input[0]].dims[1]),
            gather_axis=0,
            quantize_axis=1,
        )

    def _table(self, name: str) -> tuple[str, str]:
        """Names of the numbers [V, bytes of a row] and scales [V, blocks] of a table.

        Raises:
            InputError: If no block size divides its width.
        """
        from onnx import numpy_helper

        values = numpy_helper.to_array(self.stored[name])
        block = block_of(values.shape[1])
        if block is None:
            raise InputError(
                Problem(
                    name,
                    f"has rows of {values.shape[1]} numbers, which blocks of 32 or 16 do not divide.",
                    "Choose the scheme int8, or a student whose hidden size is a multiple of 16.",
                )
            )
        return self._store(name, values, block, flat=True)

    def _bits(self, name: str) -> int:
        return 8 if name in self.fine else self.own.get(name, self.bits)

    def _store(self, name: str, rows: NDArray[np.float32], block: int, flat: bool) -> tuple[str, str]:
        bits = self._bits(name)
        codes, scales = f"{name}_int{bits}", f"{name}_scales"
        if codes not in self.added:
            found = in_blocks(rows, bits, block)
            self._add(codes, found.packed.reshape(len(rows), -1) if flat else found.packed)
            self._add(scales, found.scales)
        return codes, scales

    def _add(self, name: str, value: NDArray[Any]) -> None:
        from onnx import numpy_helper

        if name not in self.added:
            self.added.add(name)
            self.graph.initializer.append(numpy_helper.from_array(value, name))


def _second(bits: int, rounding: Rounding) -> Second:
    wanted = Wanted(f"int{bits}", per_channel=True, block=BLOCK)
    return Second(
        WEIGHTED,
        ExpectedWeights(wanted, wanted, other_tables=Wanted("int8", per_channel=True, block=BLOCK)),
        Simulation(weights=rounding, tables=rounding, other_tables=eight_bits_in_blocks, inputs=per_block),
    )


_ROWS = {
    Scheme.INT8_B32: _second(8, eight_bits_in_blocks),
    Scheme.W4: _second(4, four_bits_in_blocks),
}
for _scheme, _own in _ROWS.items():
    register_scheme(
        SchemeRow(
            Format.ONNX,
            _scheme,
            _own.weights,
            partial(_write, _BITS[_scheme]),
            simulation=_own.simulation,
            selective=True,
            seconds={s: other for s, other in _ROWS.items() if s is not _scheme},
        )
    )
