"""Static int8 for ONNX (scheme ``a8w8``): inputs of products are quantized in ranges measured on calibration rows.

`measure_ranges` runs a copy of the fp32 model that has the tensors as outputs; `learned_products` finds ranges that
training learned. There are two forms:

- For any runtime, `_write` reads the dynamic int8 file and gives every DynamicQuantizeLinear a stored scale and zero
  point, so that outputs do not depend on batch and padding. Only inputs of products with stored weights are quantized;
  sums, norms, softmax and attention products stay fp32. The operators are standard, with the same bytes and kernels.
- For OpenVINO, `_write_openvino` writes DequantizeLinear before both operands of a product, which engines turn into an
  int8 kernel. Weights are int8, symmetric, with a scale per output channel; inputs uint8 in measured ranges; tables
  int8 with a scale per row. Attention scores are a product of two int8 tensors. The product of probabilities and values
  stays fp32: with a range measured on short texts, 8 bits round most probabilities of a long text to zero or one step,
  and a student's answers on 384 tokens were 2.6 times as far off, for 6 % of time. No range includes the mask. A tensor
  is quantized where it is computed, before it is reshaped and transposed for the product, so that these operators move
  int8 too; a sum that OpenVINO would compute wrongly there is quantized behind its Reshape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.disk.ownership import replace_file, temporary_folder
from pocketbert.core.families.weight_records import LearnedRanges, ProductRanges, Range
from pocketbert.core.types import Format, Role, Runtime, Scheme
from pocketbert.quantize.calibration import STEPS, Ranges
from pocketbert.quantize.onnx.dynamic import load_for_quantizer, write_dynamic
from pocketbert.quantize.onnx.tables import int8_lookup_nodes, is_lookup, quantize_int8
from pocketbert.quantize.rounding import Simulation, per_row
from pocketbert.quantize.table import WEIGHTED_ROLES, Plan, SchemeRow
from pocketbert.quantize.weights import ExpectedForm, ExpectedWeights
from pocketbert.runtime.onnx import OnnxPredictor

_LAYOUT = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity")
"""Operators that only move numbers: a range is the same before and behind them."""
_LAST_AXIS = "last_axis"


# --- ranges ---


def measure_ranges(model: Any, names: Iterable[str], plan: Plan, path: Path, title: str) -> dict[str, Range]:
    """Run an fp32 model on the calibration rows, and choose the range of each named tensor; return the ranges by name.

    By default the full range is used: the largest numbers belong to the first token and the separators, whose states
    summarize the text. With the largest 1e-5 of each row left out, a teacher's error grew from 0.07 to 0.15 of its
    logits' spread (SST-2, measured on rows of 384 tokens).

    Args:
        model: The fp32 model; unchanged afterwards.
        names: Names of the tensors to measure.
        plan: Calibration rows and method.
        path: Where a copy of the model is written that has these tensors as outputs.
        title: Name of the quantized file, for error messages.

    Raises:
        InputError: If the plan has no calibration row.
        GateError: If a tensor has NaN or infinite numbers, or nothing but zeros.
    """
    import onnx
    from onnx import TensorProto, helper

    measured = list(dict.fromkeys(names))
    outputs = model.graph.output
    declared = {o.name for o in outputs}
    count = len(outputs)
    outputs.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in measured if n not in declared)
    onnx.save(model, path)
    del outputs[count:]
    predictor, ranges = OnnxPredictor(path), Ranges(measured, plan.calibration, plan.steps)
    for row in plan.rows() if plan.rows is not None else ():
        ranges.add(predictor.run(row))
    return ranges.chosen(title)


def learned_products(graph: Any, learned: LearnedRanges | None) -> Iterator[tuple[Any, int, ProductRanges]]:
    """Yield the matrix products with stored weights, each with the activation ranges that training learned for it.

    A product for which training learned none has an empty `ProductRanges`.

    Args:
        graph: The graph of the fp32 model.
        learned: The learned ranges, by the weights of the products. If it is None, nothing is yielded.

    Yields:
        The product's node, the index of its input that is the activation, and its ranges.
    """
    from onnx import numpy_helper

    if learned is None:
        return
    stored = {tensor.name: tensor for tensor in graph.initializer if len(tensor.dims) > 1}
    transposed = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Transpose"}
    for node in graph.node:
        for at in (1, 0) if node.op_type in ("MatMul", "Gemm") else ():
            name = transposed.get(node.input[at], node.input[at])
            if name in stored:
                yield node, 1 - at, learned.of(numpy_helper.to_array(stored[name]))
                break


# --- for any runtime ---


def _write(source: Path, destination: Path, plan: Plan) -> None:
    """Write a static int8 copy of an fp32 ONNX file for any runtime. Nothing is written if a range cannot be measured.

    Raises:
        MissingBackendError: If onnx is not installed.
        InputError: If there are no calibration rows, or one lacks an input.
        GateError: If the range of a tensor could not be measured.
    """
    import onnx

    with temporary_folder(destination.parent) as folder:
        written = folder / destination.name
        write_dynamic(source, written, plan.left)
        exact, model = load_for_quantizer(source), onnx.load(written)
        names = [n.input[0] for n in model.graph.node if n.op_type == "DynamicQuantizeLinear"]
        ranges = measure_ranges(exact, names, plan, folder / "measured.onnx", destination.name)
        for product, at, known in learned_products(exact.graph, plan.learned):
            if product.input[at] in ranges and known.inputs is not None:
                ranges[product.input[at]] = known.inputs
        _store_ranges(model.graph, ranges)
        onnx.save(model, written)
        replace_file(written, destination)


def _store_ranges(graph: Any, ranges: Mapping[str, Range]) -> None:
    """Replace every DynamicQuantizeLinear by a QuantizeLinear with a stored scale and zero point."""
    from onnx import helper, numpy_helper

    for node in graph.node:
        if node.op_type != "DynamicQuantizeLinear":
            continue
        low, high = ranges[node.input[0]]
        scale = np.array((high - low) / STEPS, np.float32)
        zero_point = np.array(np.clip(np.rint(-low / scale), 0, STEPS), np.uint8)
        graph.initializer.extend(
            numpy_helper.from_array(value, name)
            for value, name in zip((scale, zero_point), node.output[1:], strict=True)
        )
        static = helper.make_node("QuantizeLinear", [node.input[0], *node.output[1:]], [node.output[0]], node.name)
        node.CopyFrom(static)


# --- for OpenVINO ---


def _write_openvino(source: Path, destination: Path, plan: Plan) -> None:
    """Write a static int8 copy of an fp32 ONNX file for OpenVINO. Nothing is written if a range cannot be measured.

    Raises:
        MissingBackendError: If onnx is not installed.
        InputError: If there are no calibration rows, or one lacks an input.
        GateError: If the range of a tensor could not be measured.
    """
    import onnx

    model = load_for_quantizer(source)
    rewriter = _OpenvinoRewriter(model.graph)
    with temporary_folder(destination.parent) as folder:
        measured = folder / "measured.onnx"
        ranges = measure_ranges(model, rewriter.quantized_tensors(), plan, measured, destination.name)
        rewriter.run(ranges, rewriter.learned_ranges(plan.learned))
        written = folder / destination.name
        onnx.save(model, written)
        replace_file(written, destination)


class _OpenvinoRewriter:
    """Quantizes the operands of matrix products, and the embedding tables, in the form that OpenVINO computes in int8.

    Attributes:
        weights: For each weight of a product: the node that reads it, the index of that input, and the axis of its
            scales.
        activations: For each computed operand: the node that reads the tensor to quantize, the index of that input, and
            whether the tensor becomes int8 with the integer 0 for zero, as both operands of a product of two
            activations do; else it becomes uint8.
        product_inputs: The tensor that is quantized for a product with a stored weight, by the name of the product's
            result.
    """

    def __init__(self, graph: Any) -> None:
        """Find all operands of products to quantize. `run` rewrites the graph."""
        self.graph = graph
        self.stored = {t.name: t for t in graph.initializer}
        self.makers = {name: node for node in graph.node for name in node.output}
        self.read_count = Counter(name for node in graph.node for name in node.input)
        self.read_count.update(o.name for o in graph.output)
        self.weights: list[tuple[Any, int, int]] = []
        self.activations: list[tuple[Any, int, bool]] = []
        self.product_inputs: dict[str, str] = {}
        for node in graph.node:
            if node.op_type in ("MatMul", "Gemm"):
                self._plan_product(node)
        self.first_nodes: list[Any] = []  # nodes before all others
        self.nodes_behind: dict[str, list[Any]] = {}  # nodes behind the one that computes a tensor
        self.added: set[str] = set()

    def _plan_product(self, product: Any) -> None:
        """Record the operands of a matrix product that will be quantized.

        A product stays fp32 if it multiplies attention probabilities, reads an input of the graph, a stored vector or a
        sum that OpenVINO would compute wrongly in int8, or has two stored operands.
        """
        is_stored = [self._is_weight(name) for name in product.input[:2]]
        if not any(is_stored) and any(self._is_probability(name) for name in product.input[:2]):
            return
        computed = [self._find_origin(product, at) for at in (0, 1) if not is_stored[at]]
        origins = [reader.input[at] for reader, at in computed]
        if not origins or any(n not in self.makers or self._is_sum_with_shared_tensor(n) for n in origins):
            return  # a constant, an input of the graph, or a sum without a Reshape behind it
        self.weights += [self._find_weight(product, at) for at in (0, 1) if is_stored[at]]
        self.activations += [(reader, at, not any(is_stored)) for reader, at in computed]
        self.product_inputs.update((product.output[0], name) for name in origins if any(is_stored))

    def _is_weight(self, name: str) -> bool:
        """Return whether an operand is a stored matrix, directly or transposed."""
        maker = self.makers.get(name)
        if maker is not None and maker.op_type == "Transpose":
            name = maker.input[0]
        return name in self.stored and len(self.stored[name].dims) > 1

    def _is_probability(self, name: str) -> bool:
        """Return whether an operand comes from a Softmax through nodes that move or mask it."""
        maker = self.makers.get(name)
        if maker is None or maker.op_type not in (*_LAYOUT, "Softmax", "Where"):
            return False
        return maker.op_type == "Softmax" or any(self._is_probability(n) for n in maker.input)

    def _find_origin(self, reader: Any, at: int) -> tuple[Any, int]:
        """Follow an operand back through nodes that only move it, to where it is to be quantized.

        The way back ends at a tensor that another node reads too, and behind the Reshape of a sum that must not be
        quantized itself (see `_is_sum_with_shared_tensor`).

        Args:
            reader: The matrix product.
            at: Index of the operand among the product's inputs.

        Returns:
            The node that reads the tensor to quantize, and the index of that input.
        """
        while self.read_count[reader.input[at]] == 1:
            maker = self.makers.get(reader.input[at])
            if maker is None or maker.op_type not in _LAYOUT:
                break
            if maker.op_type == "Reshape" and self._is_sum_with_shared_tensor(maker.input[0]):
                break
            reader, at = maker, 0
        return reader, at

    def _is_sum_with_shared_tensor(self, name: str) -> bool:
        """Return whether a tensor is a stored array added to a tensor that other nodes read too, as in XLNet's queries.

        Where such a sum is quantized directly, OpenVINO 2026.4.1 merges a stored vector and the quantization into the
        product before it, whose other readers need it without them. Behind a Reshape it does not.
        """
        maker = self.makers.get(name)
        added = maker.input if maker is not None and maker.op_type == "Add" else ()
        # one operand is stored, and the other one is read elsewhere too
        return [self.read_count[n] > 1 for n in added if n not in self.stored] == [True]

    def _find_weight(self, product: Any, at: int) -> tuple[Any, int, int]:
        """Return the node that reads a product's weight, the index of that input, and the axis of the output channels.

        If a weight is transposed for the product (an embedding table in which rows are looked up too), the node is the
        Transpose, so that the weight is dequantized before it: OpenVINO multiplies in fp32 if int8 numbers are
        transposed first.
        """
        flags = {a.name: a.i for a in product.attribute}
        # the last axis of a second operand, the one before it of a first; the flags of Gemm swap them
        last = (at == 1) is not bool(flags.get("transB" if at else "transA", 0))
        transpose = self.makers.get(product.input[at])
        if transpose is None:
            return product, at, len(self.stored[product.input[at]].dims) - (1 if last else 2)
        return transpose, 0, transpose.attribute[0].ints[-1 if last else -2]

    def quantized_tensors(self) -> list[str]:
        """Return the names of the activations whose ranges `run` needs."""
        return list(dict.fromkeys(reader.input[at] for reader, at, _ in self.activations))

    def learned_ranges(self, learned: LearnedRanges | None) -> dict[str, Range]:
        """Return the ranges that training learned, by the name of the tensor that is quantized."""
        return {
            self.product_inputs[product.output[0]]: known.inputs
            for product, _, known in learned_products(self.graph, learned)
            if known.inputs is not None and product.output[0] in self.product_inputs
        }

    def run(self, ranges: Mapping[str, Range], learned: Mapping[str, Range]) -> None:
        """Rewrite the graph with activations and weights quantized.

        Args:
            ranges: The range of each tensor in `quantized_tensors`.
            learned: Ranges that training learned. They replace the range of a tensor for matrix products with stored
                weights.
        """
        tensors = [reader.input[at] for reader, at, _ in self.activations]
        for (reader, at, signed), name in zip(self.activations, tensors, strict=True):
            known = None if signed else learned.get(name)
            reader.input[at] = self._quantize_activation(name, signed, known or ranges[name])
        for reader, at, axis in self.weights:
            if reader.input[at] in self.stored:  # else done: two products read the same transposed weight
                reader.input[at] = self._quantize_weight(reader.input[at], axis)
        nodes = []
        for node in [*self.graph.node]:
            nodes += self._lookup(node) if self._is_table_lookup(node) else [node]
            nodes += [n for name in node.output for n in self.nodes_behind.get(name, ())]
        self._set_nodes([*self.first_nodes, *nodes])

    def _quantize_activation(self, name: str, signed: bool, measured: Range) -> str:
        """Add QuantizeLinear and DequantizeLinear after a tensor, and return the name of the dequantized tensor.

        `signed` chooses int8 instead of uint8; `measured` is the tensor's range.
        """
        from onnx import helper

        stem = f"{name}_{'int8' if signed else 'uint8'}"
        scale, zero_point, out = (f"{stem}_{ending}" for ending in ("scale", "zero_point", "fp32"))
        if out not in self.added:
            low, high = measured
            if signed:
                step, zero = max(-low, high) / 127, np.array(0, np.int8)
            else:
                step = (high - low) / 255
                zero = np.array(round(-low / step), np.uint8)
            self._store(scale, np.array(step, np.float32))
            self._store(zero_point, zero)
            self.nodes_behind.setdefault(name, []).extend(
                [
                    helper.make_node("QuantizeLinear", [name, scale, zero_point], [stem]),
                    helper.make_node("DequantizeLinear", [stem, scale, zero_point], [out]),
                ]
            )
            self.added.add(out)
        return out

    def _quantize_weight(self, name: str, axis: int) -> str:
        """Store a weight in int8, with a scale per index of `axis`, and return the name of the dequantized weight."""
        from onnx import helper

        codes, scale = self._store_int8(name, axis)
        out, zeros = f"{codes}_fp32", f"{codes}_zero_point"
        if out not in self.added:
            self.added.add(out)
            # written out: with `session.x64quantprecision`, ONNX Runtime replaces missing zero points by one number
            self._store(zeros, np.zeros(self.stored[name].dims[axis], np.int8))
            self.first_nodes.append(helper.make_node("DequantizeLinear", [codes, scale, zeros], [out], axis=axis))
        return out

    def _is_table_lookup(self, node: Any) -> bool:
        table = self.stored.get(node.input[0]) if node.input else None
        return table is not None and len(table.dims) == 2 and table.data_type == 1 and is_lookup(node, node.input[0])

    def _lookup(self, node: Any) -> list[Any]:
        """Build the nodes that look up rows of an int8 table and multiply each with its scale."""
        codes, scale = self._store_int8(node.input[0], 0)
        self._store(_LAST_AXIS, np.array([-1], np.int64))
        return int8_lookup_nodes(node, codes, scale, _LAST_AXIS)

    def _store_int8(self, name: str, axis: int) -> tuple[str, str]:
        """Store a weight in int8 with a scale per index of `axis`; return the names of the integers and of the scales."""
        from onnx import numpy_helper

        codes, scale = f"{name}_axis{axis}_int8", f"{name}_axis{axis}_scale"
        if codes not in self.added:
            integers, scales = quantize_int8(numpy_helper.to_array(self.stored[name]), axis)
            self._store(codes, integers)
            self._store(scale, scales.ravel())
        return codes, scale

    def _store(self, name: str, value: NDArray[np.generic]) -> None:
        """Add a stored array to the graph unless it has one of that name."""
        from onnx import numpy_helper

        if name not in self.added:
            self.added.add(name)
            self.graph.initializer.append(numpy_helper.from_array(value, name))

    def _set_nodes(self, nodes: list[Any]) -> None:
        """Replace the graph's nodes by `nodes`, without those whose results are unused.

        Stored tensors that no node reads are removed.
        """
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


_INT8 = ExpectedForm("int8", per_channel=True)
ROWS = (
    SchemeRow(
        Format.ONNX,
        Scheme.A8W8,
        ExpectedWeights(products=ExpectedForm("int8", per_channel=True, bits=8), tables=_INT8),
        _write,
        simulation=Simulation(weights=per_row, tables=per_row, static=True),
        selective=True,
    ),
    SchemeRow(
        Format.ONNX,
        Scheme.A8W8,
        ExpectedWeights(products=ExpectedForm("int8", per_channel=True, bits=8, fused=True), tables=_INT8),
        _write_openvino,
        Runtime.OPENVINO,
        Simulation(weights=per_row, tables=per_row, static=True, products=True),
        WEIGHTED_ROLES | {Role.ATTENTION_PRODUCT},
    ),
)
