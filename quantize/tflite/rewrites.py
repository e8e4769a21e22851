"""Rewrite TFLite graphs for older engines and for accelerators, which support less than the current runtime.

- `one_scale_per_tensor` writes int8 weights for TFLite up to 2.16, which computes ``y[c] = scale[c] * (q[c] · x) +
  bias[c]`` wrongly, without an error, in its dynamic kernels: depending on version and processor it uses one scale for
  all channels, or none. It is right with one scale per tensor, so the scales become an operator of their own, ``y[c] =
  ratio[c] * (scale * (q[c] · x) + bias[c] / ratio[c])``, and those of a table a second table with one number a row. The
  int8 numbers stay as they were, and so does the accuracy; one scale per tensor with numbers rounded for it is 2.5
  times less accurate.
- `keep_longest` keeps one signature: compilers of accelerators take one graph of one shape.
- `level_ranks` gives both operands of sums and products the same number of axes, which accelerators require.

Models are `ModelT` objects of the TFLite schema, from `pocketbert.core.model_files.load_model`; they are changed in
place.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.model_files import dump_model, load_model, tflite_schema

_ASYMMETRIC_VERSION = 9
"""The first version of FULLY_CONNECTED with the flag `asymmetric_quantize_inputs`."""


# --- one scale per tensor ---


def one_scale_per_tensor(content: bytes) -> bytearray:
    """Replace per-channel scales in a TFLite file by one per tensor and a multiplication, for TFLite 2.14 to 2.16.

    Products get the flag ``asymmetric_quantize_inputs``: without it the older kernels round activations to a symmetric
    range, which costs accuracy and makes their outputs differ from LiteRT's, whose kernels ignore the flag.

    Args:
        content: A file with dynamic int8 weights, as ai-edge-quantizer writes it.

    Returns:
        A file that computes the same, with the same signatures. Weights that are not int8 stay as they are.
    """
    model = load_model(content)
    _ScaleSplitter(model).run()
    return dump_model(model)


class _ScaleSplitter:
    """Splits each matrix product or lookup with per-channel scales into one with a single scale and a multiplication."""

    def __init__(self, model: Any) -> None:
        self.model, self.schema = model, tflite_schema()
        self.buffers: dict[object, int] = {}  # added buffers, which all signatures share
        names = self.schema.BuiltinOperator
        self.product, self.lookup = names.FULLY_CONNECTED, names.EMBEDDING_LOOKUP
        self.multiplication = _operator_code_index(model, names.MUL)

    def run(self) -> None:
        """Rewrite the operators of all signatures in place."""
        for graph in self.model.subgraphs:
            # read before anything changes: a tied table serves a lookup and a product
            scales = [self._int8_scales(t) for t in graph.tensors]
            operators = []
            for op in graph.operators:
                code, weight = operator_code(self.model, op), int(op.inputs[1]) if len(op.inputs) > 1 else -1
                own = scales[weight] if code in (self.product, self.lookup) else None
                if own is None:
                    operators.append(op)
                elif code == self.product:
                    self._set_asymmetric_inputs(op)
                    operators += self._split_product(graph, op, own)
                else:
                    operators += self._split_lookup(graph, op, own)
            graph.operators = operators

    def _int8_scales(self, tensor: Any) -> NDArray[np.float32] | None:
        """Return the scales of an int8 weight; None for any other tensor."""
        quantization = tensor.quantization
        if tensor.type != self.schema.TensorType.INT8 or quantization is None or quantization.scale is None:
            return None
        assert not np.any(quantization.zeroPoint), "weights are symmetric"
        return np.asarray(quantization.scale, np.float32)

    def _set_asymmetric_inputs(self, op: Any) -> None:
        """Set a product's flag for asymmetric input quantization, and the operator version that has it."""
        op.builtinOptions.asymmetricQuantizeInputs = True
        code = self.model.operatorCodes[op.opcodeIndex]
        code.version = max(code.version, _ASYMMETRIC_VERSION)

    def _split_product(self, graph: Any, op: Any, scales: NDArray[np.float32]) -> list[Any]:
        """Return the operators that replace a matrix product with a scale per channel.

        They are the product with a single scale, and a multiplication by the ratio of each channel's scale to that. A
        product with one scale is returned unchanged.
        """
        if scales.size == 1:
            return [op]
        weight = graph.tensors[op.inputs[1]]
        ratio = self._set_one_scale(weight, scales)
        if len(op.inputs) > 2 and op.inputs[2] >= 0:
            buffer = graph.tensors[op.inputs[2]].buffer
            bias = np.frombuffer(bytes(self.model.buffers[buffer].data), np.float32)
            divided = self._add_constant(graph, weight, f"bias {buffer}", bias / ratio)
            op.inputs = [*op.inputs[:2], divided]
        factor = self._add_constant(graph, weight, "ratio", ratio)
        result, options = int(op.outputs[0]), op.builtinOptions
        op.outputs = [self._add_like(graph, result, "before_ratio")]
        # an activation function behind the product now belongs behind the multiplication
        activation = options.fusedActivationFunction
        options.fusedActivationFunction = self.schema.ActivationFunctionType.NONE
        return [op, self._multiplication(op.outputs[0], factor, result, activation)]

    def _split_lookup(self, graph: Any, op: Any, scales: NDArray[np.float32]) -> list[Any]:
        """Return the operators that replace an embedding lookup with a scale per row.

        They are the lookup with a single scale, a second lookup of the ratio of each row's scale to that, and a
        multiplication of both. A lookup with one scale is returned unchanged.
        """
        if scales.size == 1:
            return [op]
        table = graph.tensors[op.inputs[1]]
        ratio = self._set_one_scale(table, scales)
        ratio_table = self._add_constant(graph, table, "ratio", ratio[:, None])
        result = int(op.outputs[0])
        row_ratio = self._add_like(graph, result, "row_ratio")
        graph.tensors[row_ratio].shape = [*graph.tensors[result].shape[:-1], 1]
        ratio_lookup = copy.copy(op)
        ratio_lookup.inputs, ratio_lookup.outputs = [op.inputs[0], ratio_table], [row_ratio]
        op.outputs = [self._add_like(graph, result, "before_ratio")]
        return [op, ratio_lookup, self._multiplication(op.outputs[0], row_ratio, result)]

    def _set_one_scale(self, weight: Any, scales: NDArray[np.float32]) -> NDArray[np.float32]:
        """Give a weight the largest of its scales as its only one, and return the ratio of each scale to it."""
        largest = scales.max()
        quantization = self.schema.QuantizationParametersT()
        quantization.scale, quantization.zeroPoint = np.array([largest], np.float32), np.zeros(1, np.int64)
        weight.quantization = quantization
        return np.asarray(scales / largest, np.float32)

    def _add_constant(self, graph: Any, weight: Any, purpose: str, value: NDArray[np.float32]) -> int:
        """Add an fp32 constant that belongs to a weight. Its buffer is shared by all signatures.

        `purpose` tells the constants of a weight apart, and is part of the new tensor's name.

        Returns:
            The index of the tensor.
        """
        key = (weight.buffer, purpose)
        if key not in self.buffers:
            self.buffers[key] = _add_buffer(self.model, value.astype(np.float32).tobytes())
        tensor = self.schema.TensorT()
        tensor.name, tensor.shape = f"{_text(weight.name)}_{purpose.split()[0]}", list(value.shape)
        tensor.type, tensor.buffer, tensor.hasRank = self.schema.TensorType.FLOAT32, self.buffers[key], True
        graph.tensors.append(tensor)
        return len(graph.tensors) - 1

    def _add_like(self, graph: Any, number: int, ending: str) -> int:
        """Add a tensor of the same type and shape as tensor `number`, with `ending` in its name; return its index."""
        tensor = copy.copy(graph.tensors[number])
        tensor.name = f"{_text(tensor.name)}_{ending}"
        graph.tensors.append(tensor)
        return len(graph.tensors) - 1

    def _multiplication(self, left: int, right: int, result: int, activation: int = 0) -> Any:
        """Build a MUL operator of two tensors, with a fused activation function."""
        op, options = self.schema.OperatorT(), self.schema.MulOptionsT()
        options.fusedActivationFunction = activation
        op.opcodeIndex, op.inputs, op.outputs = self.multiplication, [left, right], [result]
        op.builtinOptionsType, op.builtinOptions = self.schema.BuiltinOptions.MulOptions, options
        return op


# --- one shape ---


def keep_longest(model: Any) -> None:
    """Remove all signatures but the longest from a TFLite model, and the stored numbers that it does not read."""

    def length(signature: Any) -> int:
        tensors = model.subgraphs[signature.subgraphIndex].tensors
        return int(tensors[signature.inputs[0].tensorIndex].shape[1])

    kept = max(model.signatureDefs, key=length)
    graph = model.subgraphs[kept.subgraphIndex]
    kept.subgraphIndex, model.subgraphs, model.signatureDefs = 0, [graph], [kept]
    used = {int(t.buffer) for t in graph.tensors} | {int(m.buffer) for m in model.metadata or []}
    for number, buffer in enumerate(model.buffers):
        if number not in used:
            buffer.data = None  # the buffer stays in the list: tensors refer to buffers by number


def level_ranks(model: Any, graph: Any) -> None:
    """Insert a RESHAPE before elementwise operators (ADD, SUB, MUL, DIV) whose two operands differ in rank.

    The converter relies on broadcasting: a result of shape [tokens, width] is added to [1, tokens, width], which GPUs
    do not accept. Scalars and vectors are not reshaped.

    Args:
        model: The model; changed in place.
        graph: One of the model's subgraphs.
    """
    names = tflite_schema().BuiltinOperator
    levelled = {names.ADD, names.SUB, names.MUL, names.DIV}
    operators = []
    for op in graph.operators:
        if operator_code(model, op) in levelled and len(op.inputs) == 2:
            ranks = [len(_shape(graph, int(i))) for i in op.inputs]
            if min(ranks) > 1 and ranks[0] != ranks[1]:
                short = ranks.index(min(ranks))
                reshape, index = _add_leading_axes(model, graph, int(op.inputs[short]), max(ranks))
                operators.append(reshape)
                op.inputs = [index if place == short else int(i) for place, i in enumerate(op.inputs)]
        operators.append(op)
    graph.operators = operators


def _add_leading_axes(model: Any, graph: Any, index: int, rank: int) -> tuple[Any, int]:
    """Build a RESHAPE that puts axes of size 1 in front of a tensor, up to `rank` axes.

    `index` is that of the tensor. Returns the operator and the index of its result.
    """
    schema, tensor = tflite_schema(), graph.tensors[index]

    def add_tensor(name: str, shape: list[int], type_: int) -> int:
        added = schema.TensorT()
        added.name, added.shape, added.type, added.hasRank, added.buffer = name, shape, type_, True, 0
        graph.tensors.append(added)
        return len(graph.tensors) - 1

    shape = [1] * (rank - len(_shape(graph, index))) + _shape(graph, index)
    sizes = add_tensor(f"{_text(tensor.name)}_sizes", [rank], schema.TensorType.INT32)
    graph.tensors[sizes].buffer = _add_buffer(model, b"".join(n.to_bytes(4, "little") for n in shape))
    result = add_tensor(f"{_text(tensor.name)}_axes", shape, tensor.type)
    op, options = schema.OperatorT(), schema.ReshapeOptionsT()
    options.newShape = shape
    op.opcodeIndex = _operator_code_index(model, schema.BuiltinOperator.RESHAPE)
    op.inputs, op.outputs = [index, sizes], [result]
    op.builtinOptionsType, op.builtinOptions = schema.BuiltinOptions.ReshapeOptions, options
    return op, result


# --- parts of a model ---


def operator_code(model: Any, op: Any) -> int:
    """Return the number of an operator's kind in the schema, e.g. `BuiltinOperator.MUL`."""
    return _builtin_code(model.operatorCodes[op.opcodeIndex])


def _operator_code_index(model: Any, builtin: int) -> int:
    """Return the index of an operator kind in the model's list of codes. The kind is appended if it is missing."""
    for place, code in enumerate(model.operatorCodes):
        if _builtin_code(code) == builtin:
            return place
    code = tflite_schema().OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = builtin
    code.version = 1
    model.operatorCodes.append(code)
    return len(model.operatorCodes) - 1


def _builtin_code(code: Any) -> int:
    return max(int(code.builtinCode), int(code.deprecatedBuiltinCode))


def _add_buffer(model: Any, data: bytes) -> int:
    """Append a buffer with these bytes to a model, and return its number."""
    buffer = tflite_schema().BufferT()
    buffer.data, buffer.offset, buffer.size = np.frombuffer(data, np.uint8), 0, 0
    model.buffers.append(buffer)
    return len(model.buffers) - 1


def _shape(graph: Any, index: int) -> list[int]:
    shape = graph.tensors[index].shape
    return [] if shape is None else [int(n) for n in shape]


def _text(name: bytes | str) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)
