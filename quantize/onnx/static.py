"""a8w8, static int8, for ONNX, written for OpenVINO: the range of every product's input is measured once, on texts.

Weights of products are int8, symmetric, a scale per output channel; the numbers they are multiplied with uint8 in a measured
range; embedding tables int8 with a scale per row. Of attention, scores are a product of two int8 tensors. The product of
probabilities and values stays fp32: with a range measured on short texts, 8 bits round most probabilities of a long text to
zero or one step, and a student's answers on 384 tokens were 2.6 times as far off, for 6 % of time. The mask is in no range.

A product is written as DequantizeLinear -> MatMul, which engines turn into an int8 kernel. A number is quantized where it
arises, before it is reshaped and transposed for the product: what moves is then int8 too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.disk.ownership import replace_file, temporary_folder
from pocketbert.core.families.weight_records import LearnedRanges, ProductRanges, Range
from pocketbert.core.types import Format, Role, Runtime, Scheme
from pocketbert.quantize.calibration import STEPS, Ranges
from pocketbert.quantize.onnx.dynamic import load_plain, write_dynamic
from pocketbert.quantize.onnx.tables import int8_along, is_lookup, row_lookup
from pocketbert.quantize.rounding import Simulation, per_row
from pocketbert.quantize.table import WEIGHTED, Plan, SchemeRow, register_scheme
from pocketbert.quantize.weights import ExpectedWeights, Wanted
from pocketbert.runtime.onnx import OnnxPredictor

# --- ranges ---
# Measures ranges of tensors inside an ONNX model on calibration rows.


def measure(model: Any, names: Iterable[str], plan: Plan, path: Path, title: str) -> dict[str, Range]:
    """Run a copy of a model that has the tensors as outputs on the plan's calibration rows, and choose their ranges.

    By default nothing is clipped: the furthest numbers belong to the first token and the separators, which texts are summed
    up in. With the furthest 1e-5 of each row left out, a teacher's error grew from 0.07 to 0.15 of its logits' spread (SST-2,
    measured on rows of 384 tokens).

    Args:
        model: The fp32 model; unchanged afterwards.
        names: The tensors.
        plan: Its rows and its method.
        path: Where the copy is written.
        title: The file that the ranges are for, which errors name.

    Raises:
        InputError: If the plan has no row.
        GateError: If a tensor has NaN or infinite numbers, or nothing but zeros.
    """
    import onnx
    from onnx import TensorProto, helper

    wanted = list(dict.fromkeys(names))
    outputs = model.graph.output
    declared = {o.name for o in outputs}
    own = len(outputs)
    outputs.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in wanted if n not in declared)
    onnx.save(model, path)
    del outputs[own:]
    predictor, ranges = OnnxPredictor(path), Ranges(wanted, plan.calibration, plan.steps)
    for row in plan.rows() if plan.rows is not None else ():
        ranges.add(predictor.run(row))
    return ranges.chosen(title)


def learned_inputs(graph: Any, names: Iterable[str], learned: LearnedRanges | None) -> dict[str, Range]:
    """Find the ranges that training learned for tensors which products with stored weights read.

    Args:
        graph: The graph of the fp32 model.
        names: The tensors.
        learned: Ranges by the weights of the product; None without any.

    Returns:
        Those that were learned.
    """
    wanted = set(names)
    return {
        product.input[at]: own.inputs
        for product, at, own in learned_products(graph, learned)
        if product.input[at] in wanted and own.inputs is not None
    }


def learned_products(graph: Any, learned: LearnedRanges | None) -> Iterator[tuple[Any, int, ProductRanges]]:
    """Find the products with stored weights that training learned ranges for.

    Args:
        graph: The graph of the fp32 model.
        learned: Ranges by the weights of the product; None without any.

    Yields:
        The node, at which input its data is, and its ranges.
    """
    from onnx import numpy_helper

    if learned is None:
        return
    stored = {tensor.name: tensor for tensor in graph.initializer if len(tensor.dims) > 1}
    turned = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Transpose"}
    for node in graph.node:
        for at in (1, 0) if node.op_type in ("MatMul", "Gemm") else ():
            name = turned.get(node.input[at], node.input[at])
            if name in stored:
                yield node, 1 - at, learned.of(numpy_helper.to_array(stored[name]))
                break


# --- static_inputs ---
# a8w8 for ONNX: the dynamic int8 file with measured ranges, so that answers do not depend on batch and padding.
#
# Only the inputs of products with stored weights are quantized, in ranges that calibration rows had; sums, norms, softmax and
# attention products stay fp32. Each DynamicQuantizeLinear becomes a QuantizeLinear with a stored scale and zero point: standard
# operators, the same bytes and kernels.


def _write(source: Path, destination: Path, plan: Plan) -> None:
    """Write a static int8 copy of an fp32 file; nothing is written where a range cannot be measured.

    Raises:
        MissingBackendError: If onnx is not installed.
        InputError: If there are no rows, or one lacks an input.
        GateError: If the range of a tensor could not be measured.
    """
    import onnx

    exact = load_plain(source)
    with temporary_folder(destination.parent) as folder:
        written = folder / destination.name
        write_dynamic(load_plain(source), written, plan.left)
        model = onnx.load(written)
        names = [n.input[0] for n in model.graph.node if n.op_type == "DynamicQuantizeLinear"]
        ranges = measure(exact, names, plan, folder / "measured.onnx", destination.name)
        _fix_ranges(model.graph, {**ranges, **learned_inputs(exact.graph, names, plan.learned)})
        onnx.save(model, written)
        replace_file(written, destination)


def _fix_ranges(graph: Any, ranges: dict[str, Range]) -> None:
    """Replace every DynamicQuantizeLinear by a QuantizeLinear with a stored scale and zero point."""
    from onnx import helper, numpy_helper

    for node in graph.node:
        if node.op_type != "DynamicQuantizeLinear":
            continue
        low, high = ranges[node.input[0]]
        scale = np.array((high - low) / STEPS, np.float32)
        zero = np.array(np.clip(np.rint(-low / scale), 0, STEPS), np.uint8)
        graph.initializer.extend(
            numpy_helper.from_array(value, name) for value, name in zip((scale, zero), node.output[1:], strict=True)
        )
        fixed = helper.make_node("QuantizeLinear", [node.input[0], *node.output[1:]], [node.output[0]], node.name)
        node.CopyFrom(fixed)


register_scheme(
    SchemeRow(
        Format.ONNX,
        Scheme.A8W8,
        ExpectedWeights(products=Wanted("int8", per_channel=True, bits=8), tables=Wanted("int8", per_channel=True)),
        _write,
        simulation=Simulation(weights=per_row, tables=per_row, static=True),
        selective=True,
    )
)


_LAYOUT = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity")
"""Operators that only move numbers: a range is the same before and behind them."""
_LAST_AXIS = "last_axis"


@dataclass(frozen=True)
class _Activation:
    """A computed operand of a product.

    Attributes:
        name: The tensor that is quantized: the operand itself, or what it was reshaped and transposed from.
        signed: int8 with zero at zero, as both operands of a product of two activations; otherwise uint8.
    """

    name: str
    signed: bool


def _write_static(source: Path, destination: Path, plan: Plan) -> None:
    """Write a static int8 copy of an fp32 file; nothing is written where a range cannot be measured.

    Raises:
        MissingBackendError: If onnx is not installed.
        InputError: If there are no rows, or one lacks an input.
        GateError: If the range of a tensor could not be measured.
    """
    import onnx

    model = load_plain(source)
    rewriter = _Rewriter(model.graph)
    with temporary_folder(destination.parent) as folder:
        names = [a.name for a in rewriter.activations]
        ranges = measure(model, names, plan, folder / "measured.onnx", destination.name)
        rewriter.run(ranges, rewriter.learned(plan.learned))
        written = folder / destination.name
        onnx.save(model, written)
        replace_file(written, destination)


class _Rewriter:
    """Replaces the operands of a graph's products, and its tables, by quantized ones.

    Attributes:
        activations: Whose ranges `run` has to know.
    """

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.stored = {t.name: t for t in graph.initializer}
        self.producers = {name: node for node in graph.node for name in node.output}
        self.readers = Counter(name for node in graph.node for name in node.input)
        self.readers.update(o.name for o in graph.output)
        self.weights: list[tuple[Any, int, int]] = []  # reader of a weight, where, and the axis of its scales
        self.operands: list[tuple[Any, int, _Activation]] = []  # reader of the tensor, and where
        self.read: dict[str, str] = {}  # the tensor that is quantized for a product with a stored weight, by its result
        for node in graph.node:
            if node.op_type in ("MatMul", "Gemm"):
                self._plan(node)
        self.activations = list(dict.fromkeys(a for _, _, a in self.operands))
        self.first: list[Any] = []  # nodes before all others
        self.behind: dict[str, list[Any]] = {}  # nodes behind the one that makes a tensor
        self.added: set[str] = set()

    def _plan(self, node: Any) -> None:
        stored = [self._is_stored(name) for name in node.input[:2]]
        if not any(stored) and any(self._is_probability(name) for name in node.input[:2]):
            return
        computed = [(*self._origin(node, at), not any(stored)) for at in (0, 1) if not stored[at]]
        if not computed or any(reader.input[at] not in self.producers for reader, at, _ in computed):
            return  # a constant, or an input of the graph
        self.weights += [self._weight_place(node, at) for at in (0, 1) if stored[at]]
        self.operands += [(r, at, _Activation(r.input[at], signed)) for r, at, signed in computed]
        for reader, at, _ in computed if any(stored) else ():
            self.read[node.output[0]] = reader.input[at]

    def learned(self, learned: LearnedRanges | None) -> dict[str, Range]:
        """Ranges that training learned, by the tensor that is quantized in them; none without any."""
        return {
            self.read[product.output[0]]: own.inputs
            for product, _, own in learned_products(self.graph, learned)
            if own.inputs is not None and product.output[0] in self.read
        }

    def _origin(self, reader: Any, at: int) -> tuple[Any, int]:
        """Where an operand is read first, before it is moved for this reader only."""
        while self.readers[reader.input[at]] == 1:
            above = self.producers.get(reader.input[at])
            if above is None or above.op_type not in _LAYOUT:
                break
            reader, at = above, 0
        return reader, at

    def _is_stored(self, name: str) -> bool:
        """Whether an operand is a weight, perhaps turned round."""
        above = self.producers.get(name)
        if above is not None and above.op_type == "Transpose":
            name = above.input[0]
        return name in self.stored and len(self.stored[name].dims) > 1

    def _weight_place(self, product: Any, at: int) -> tuple[Any, int, int]:
        """Who reads a product's weight from the file, at which input, and which axis of it is not summed over.

        A weight that is turned for the product (a table that is also read by lookups) is made fp32 before it is turned:
        OpenVINO multiplies in fp32 where int8 numbers are turned first.
        """
        flags = {a.name: a.i for a in product.attribute}
        # the last axis of a second operand, the one before it of a first; the flags of Gemm swap them
        last = (at == 1) is not bool(flags.get("transB" if at else "transA", 0))
        turn = self.producers.get(product.input[at])
        if turn is None:
            return product, at, len(self.stored[product.input[at]].dims) - (1 if last else 2)
        return turn, 0, turn.attribute[0].ints[-1 if last else -2]

    def _is_probability(self, name: str) -> bool:
        above = self.producers.get(name)
        if above is None or above.op_type not in (*_LAYOUT, "Softmax", "Where"):
            return False
        return above.op_type == "Softmax" or any(self._is_probability(n) for n in above.input)

    def run(self, ranges: Mapping[str, Range], learned: Mapping[str, Range]) -> None:
        """Rewrite the graph.

        Args:
            ranges: Of every activation's tensor.
            learned: Ranges of tensors, in place of these, where they are read by products with stored weights.
        """
        for reader, at, activation in self.operands:
            own = None if activation.signed else learned.get(activation.name)
            reader.input[at] = self._quantized(activation, own or ranges[activation.name])
        for reader, at, axis in self.weights:
            if reader.input[at] in self.stored:  # else done: two products read what one operator turned
                reader.input[at] = self._weight(reader.input[at], axis)
        nodes = []
        for node in [*self.graph.node]:
            nodes += self._lookup(node) if self._is_lookup(node) else [node]
            nodes += [n for name in node.output for n in self.behind.get(name, ())]
        self._keep([*self.first, *nodes])

    def _quantized(self, activation: _Activation, measured: Range) -> str:
        """Name of a tensor that went through 8 bits."""
        from onnx import helper

        name, kind = activation.name, "int8" if activation.signed else "uint8"
        small, scale, zero, out = (f"{name}_{kind}{end}" for end in ("", "_scale", "_zero_point", "_fp32"))
        if out not in self.added:
            low, high = measured
            if activation.signed:
                step, point = max(-low, high) / 127, np.array(0, np.int8)
            else:
                step = (high - low) / 255
                point = np.array(round(-low / step), np.uint8)
            self._store(scale, np.array(step, np.float32))
            self._store(zero, point)
            self.behind.setdefault(name, []).extend(
                [
                    helper.make_node("QuantizeLinear", [name, scale, zero], [small]),
                    helper.make_node("DequantizeLinear", [small, scale, zero], [out]),
                ]
            )
            self.added.add(out)
        return out

    def _weight(self, name: str, axis: int) -> str:
        """Name of a weight that went through int8."""
        from onnx import helper

        small, scale = self._int8(name, axis)
        out, zeros = f"{small}_fp32", f"{small}_zero_point"
        if out not in self.added:
            self.added.add(out)
            # written out: with `session.x64quantprecision`, ONNX Runtime makes one number of zero points that are not given
            self._store(zeros, np.zeros(self.stored[name].dims[axis], np.int8))
            self.first.append(helper.make_node("DequantizeLinear", [small, scale, zeros], [out], axis=axis))
        return out

    def _is_lookup(self, node: Any) -> bool:
        table = self.stored.get(node.input[0]) if node.input else None
        return table is not None and len(table.dims) == 2 and table.data_type == 1 and is_lookup(node, node.input[0])

    def _lookup(self, node: Any) -> list[Any]:
        """Rows [..., H] of an int8 table, each times its own scale: only rows that are read are made fp32."""
        small, scale = self._int8(node.input[0], 0)
        self._store(_LAST_AXIS, np.array([-1], np.int64))
        return row_lookup(node, small, scale, _LAST_AXIS)

    def _int8(self, name: str, axis: int) -> tuple[str, str]:
        """Names of a stored weight's int8 numbers and of their scales, one for each index of an axis."""
        from onnx import numpy_helper

        small, scale = f"{name}_axis{axis}_int8", f"{name}_axis{axis}_scale"
        if small not in self.added:
            steps, scales = int8_along(numpy_helper.to_array(self.stored[name]), axis)
            self._store(small, steps)
            self._store(scale, scales.ravel())
        return small, scale

    def _store(self, name: str, value: NDArray[np.generic]) -> None:
        from onnx import numpy_helper

        if name not in self.added:
            self.added.add(name)
            self.graph.initializer.append(numpy_helper.from_array(value, name))

    def _keep(self, nodes: list[Any]) -> None:
        """Make the graph of nodes; without those that nobody reads now, and without their fp32 weights."""
        kept: list[Any] = []
        read = {o.name for o in self.graph.output}
        for node in reversed(nodes):  # a node comes before its readers
            if read.intersection(node.output):
                kept.append(node)
                read.update(node.input)
        stored = [t for t in self.graph.initializer if t.name in read]
        for field, values in ((self.graph.node, kept[::-1]), (self.graph.initializer, stored)):
            del field[:]
            field.extend(values)


register_scheme(
    SchemeRow(
        Format.ONNX,
        Scheme.A8W8,
        ExpectedWeights(
            products=Wanted("int8", per_channel=True, bits=8, fused=True), tables=Wanted("int8", per_channel=True)
        ),
        _write_static,
        Runtime.OPENVINO,
        Simulation(weights=per_row, tables=per_row, static=True, products=True),
        WEIGHTED | {Role.ATTENTION_PRODUCT},
    )
)
