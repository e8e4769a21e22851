"""int8 weights for engines that lose their scales: the same numbers, one scale per tensor, the rest a multiplication.

TFLite up to 2.16 computes ``y[c] = scale[c] * (q[c] · x) + bias[c]`` wrongly, without an error, in its dynamic kernels:
depending on version and processor it takes one scale for all channels, or none. It is right with one scale per tensor, so
the scales become an operator of their own, ``y[c] = ratio[c] * (scale * (q[c] · x) + bias[c] / ratio[c])``, and a table's
become a second table with one number a row. The int8 numbers stay as they were, and so does the accuracy; one scale per
tensor with numbers rounded for it is 2.5 times less accurate.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.tflite_file import dump_model, load_model, tflite_schema

_ASYMMETRIC_VERSION = 9
"""The version of FULLY_CONNECTED that knows `asymmetric_quantize_inputs`."""


def one_scale_per_tensor(model: bytes) -> bytes:
    """Move per-channel scales out of matrix products and lookups, and quantize their inputs as LiteRT does.

    Products get the flag ``asymmetric_quantize_inputs``: without it the older kernels round activations to a symmetric
    range, which costs accuracy and lets their answers differ from LiteRT's, whose kernels ignore the flag.

    Args:
        model: A file with dynamic int8 weights, as ai-edge-quantizer writes it.

    Returns:
        A file that computes the same, with the same signatures. Weights that are not int8 stay as they are.
    """
    loaded = load_model(model)
    _Rewriter(loaded).run()
    return dump_model(loaded)


class _Rewriter:
    def __init__(self, model: Any) -> None:
        self.model, self.schema = model, tflite_schema()
        self.added: dict[object, int] = {}  # buffers shared by all signatures
        names = self.schema.BuiltinOperator
        self.product, self.lookup = names.FULLY_CONNECTED, names.EMBEDDING_LOOKUP
        self.multiplication = self._operator_code(names.MUL)

    def run(self) -> None:
        for graph in self.model.subgraphs:
            # read before anything changes: a tied table serves a lookup and a product
            scales = [self._scales(t) for t in graph.tensors]
            operators = []
            for op in graph.operators:
                code, weight = self._code(op), int(op.inputs[1]) if len(op.inputs) > 1 else -1
                own = scales[weight] if code in (self.product, self.lookup) else None
                if own is None:
                    operators.append(op)
                elif code == self.product:
                    self._ask_for_asymmetric_inputs(op)
                    operators += self._split_product(graph, op, own)
                else:
                    operators += self._split_lookup(graph, op, own)
            graph.operators = operators

    def _scales(self, tensor: Any) -> NDArray[np.float32] | None:
        """Scales of an int8 weight; None of anything else."""
        found = tensor.quantization
        if tensor.type != self.schema.TensorType.INT8 or found is None or found.scale is None:
            return None
        assert not np.any(found.zeroPoint), "weights are symmetric"
        return np.asarray(found.scale, np.float32)

    def _split_product(self, graph: Any, op: Any, scales: NDArray[np.float32]) -> list[Any]:
        """A product with one scale, times the ratio of each channel's scale to it."""
        if scales.size == 1:
            return [op]
        weight = graph.tensors[op.inputs[1]]
        ratio = self._set_scale(weight, scales)
        if len(op.inputs) > 2 and op.inputs[2] >= 0:
            op.inputs = [*op.inputs[:2], self._divided(graph, graph.tensors[op.inputs[2]], weight, ratio)]
        factor = self._constant(graph, weight, "ratio", ratio)
        result, options = int(op.outputs[0]), op.builtinOptions
        op.outputs = [self._like(graph, result, "before_ratio")]
        # what follows the product now follows the multiplication
        after = options.fusedActivationFunction
        options.fusedActivationFunction = self.schema.ActivationFunctionType.NONE
        return [op, self._times(op.outputs[0], factor, result, after)]

    def _split_lookup(self, graph: Any, op: Any, scales: NDArray[np.float32]) -> list[Any]:
        """A lookup with one scale, times a lookup of each row's ratio to it."""
        if scales.size == 1:
            return [op]
        table = graph.tensors[op.inputs[1]]
        ratio = self._set_scale(table, scales)
        column = self._constant(graph, table, "ratio", ratio[:, None])
        result = int(op.outputs[0])
        found = self._like(graph, result, "row_ratio")
        graph.tensors[found].shape = [*graph.tensors[result].shape[:-1], 1]
        second = copy.copy(op)
        second.inputs, second.outputs = [op.inputs[0], column], [found]
        op.outputs = [self._like(graph, result, "before_ratio")]
        return [op, second, self._times(op.outputs[0], found, result)]

    def _set_scale(self, weight: Any, scales: NDArray[np.float32]) -> NDArray[np.float32]:
        """Give a weight one scale; returns what its channels lack."""
        most = scales.max()
        quantization = self.schema.QuantizationParametersT()
        quantization.scale, quantization.zeroPoint = np.array([most], np.float32), np.zeros(1, np.int64)
        weight.quantization = quantization
        return np.asarray(scales / most, np.float32)

    def _divided(self, graph: Any, bias: Any, weight: Any, ratio: NDArray[np.float32]) -> int:
        values = np.frombuffer(bytes(self.model.buffers[bias.buffer].data), np.float32)
        return self._constant(graph, weight, f"bias {bias.buffer}", values / ratio)

    def _constant(self, graph: Any, weight: Any, what: str, value: NDArray[np.float32]) -> int:
        """Number of a new fp32 tensor that belongs to a weight; its buffer is shared with other signatures."""
        key = (weight.buffer, what)
        if key not in self.added:
            buffer = self.schema.BufferT()
            buffer.data = np.frombuffer(value.astype(np.float32).tobytes(), np.uint8)
            buffer.offset = buffer.size = 0
            self.model.buffers.append(buffer)
            self.added[key] = len(self.model.buffers) - 1
        tensor = self.schema.TensorT()
        tensor.name, tensor.shape = _name(weight.name, what.split()[0]), list(value.shape)
        tensor.type, tensor.buffer, tensor.hasRank = self.schema.TensorType.FLOAT32, self.added[key], True
        graph.tensors.append(tensor)
        return len(graph.tensors) - 1

    def _like(self, graph: Any, number: int, what: str) -> int:
        """Number of a new activation like another one."""
        tensor = copy.copy(graph.tensors[number])
        tensor.name = _name(tensor.name, what)
        graph.tensors.append(tensor)
        return len(graph.tensors) - 1

    def _times(self, left: int, right: int, result: int, activation: int = 0) -> Any:
        op, options = self.schema.OperatorT(), self.schema.MulOptionsT()
        options.fusedActivationFunction = activation
        op.opcodeIndex, op.inputs, op.outputs = self.multiplication, [left, right], [result]
        op.builtinOptionsType, op.builtinOptions = self.schema.BuiltinOptions.MulOptions, options
        return op

    def _ask_for_asymmetric_inputs(self, op: Any) -> None:
        op.builtinOptions.asymmetricQuantizeInputs = True
        code = self.model.operatorCodes[op.opcodeIndex]
        code.version = max(code.version, _ASYMMETRIC_VERSION)

    def _code(self, op: Any) -> int:
        code = self.model.operatorCodes[op.opcodeIndex]
        return max(int(code.builtinCode), int(code.deprecatedBuiltinCode))

    def _operator_code(self, builtin: int) -> int:
        """Number of an operator code, added where the model has none."""
        for number, code in enumerate(self.model.operatorCodes):
            if max(int(code.builtinCode), int(code.deprecatedBuiltinCode)) == builtin:
                return number
        code = self.schema.OperatorCodeT()
        code.builtinCode = code.deprecatedBuiltinCode = builtin
        code.version = 1
        self.model.operatorCodes.append(code)
        return len(self.model.operatorCodes) - 1


def _name(base: bytes | str, what: str) -> str:
    return f"{base.decode(errors='replace') if isinstance(base, bytes) else base}_{what}"


# --- one_shape ---
# A file of one length: what accelerators of phones take, whose compilers want one graph of one shape.


def keep_longest(model: Any) -> None:
    """Remove every signature but the longest, and the numbers that only the others read.

    Args:
        model: A `ModelT`; changed in place.
    """
    kept = max(model.signatureDefs, key=lambda signature: _length(model, signature))
    graph = model.subgraphs[kept.subgraphIndex]
    kept.subgraphIndex, model.subgraphs, model.signatureDefs = 0, [graph], [kept]
    used = {int(t.buffer) for t in graph.tensors} | {int(m.buffer) for m in model.metadata or []}
    for number, buffer in enumerate(model.buffers):
        if number not in used:
            buffer.data = None  # the places of the others must not change: tensors name them by number


def _length(model: Any, signature: Any) -> int:
    return int(model.subgraphs[signature.subgraphIndex].tensors[signature.inputs[0].tensorIndex].shape[1])


class RankLeveller:
    """Gives both operands of sums and products the same number of axes, which accelerators ask for.

    The converter leaves axes of size 1 to broadcasting: a product of [tokens, width] is added to [1, tokens, width].

    Args:
        model: A `ModelT`; changed in place by `run`.
        graph: One of its subgraphs.
    """

    def __init__(self, model: Any, graph: Any) -> None:
        self._model, self._schema = model, tflite_schema()
        self._graph = graph
        names = self._schema.BuiltinOperator
        self._levelled = {names.ADD, names.SUB, names.MUL, names.DIV}

    def run(self) -> None:
        """Insert a RESHAPE in front of every operand with fewer axes than the other one; scalars stay."""
        operators = []
        for op in self._graph.operators:
            if operator_code(self._model, op) in self._levelled and len(op.inputs) == 2:
                ranks = [len(self._shape(int(i))) for i in op.inputs]
                if min(ranks) > 1 and ranks[0] != ranks[1]:
                    short = ranks.index(min(ranks))
                    reshape, index = self._widened(int(op.inputs[short]), max(ranks))
                    operators.append(reshape)
                    op.inputs = [index if place == short else int(i) for place, i in enumerate(op.inputs)]
            operators.append(op)
        self._graph.operators = operators

    def _shape(self, index: int) -> list[int]:
        shape = self._graph.tensors[index].shape
        return [] if shape is None else [int(n) for n in shape]

    def _widened(self, index: int, rank: int) -> tuple[Any, int]:
        """A RESHAPE that puts axes of size 1 in front, and the number of its result."""
        schema, before = self._schema, self._graph.tensors[index]
        shape = [1] * (rank - len(self._shape(index))) + self._shape(index)
        sizes = self._tensor(f"{_text(before.name)}_sizes", [rank], schema.TensorType.INT32)
        self._graph.tensors[sizes].buffer = add_buffer(self._model, b"".join(n.to_bytes(4, "little") for n in shape))
        result = self._tensor(f"{_text(before.name)}_axes", shape, before.type)
        op, options = schema.OperatorT(), schema.ReshapeOptionsT()
        options.newShape = shape
        op.opcodeIndex = add_operator_code(self._model, schema.BuiltinOperator.RESHAPE)
        op.inputs, op.outputs = [index, sizes], [result]
        op.builtinOptionsType, op.builtinOptions = schema.BuiltinOptions.ReshapeOptions, options
        return op, result

    def _tensor(self, name: str, shape: list[int], kind: int) -> int:
        tensor = self._schema.TensorT()
        tensor.name, tensor.shape, tensor.type, tensor.hasRank, tensor.buffer = name, shape, kind, True, 0
        self._graph.tensors.append(tensor)
        return len(self._graph.tensors) - 1


def operator_code(model: Any, op: Any) -> int:
    """Return the number of an operator's kind in the schema."""
    code = model.operatorCodes[op.opcodeIndex]
    return max(int(code.builtinCode), int(code.deprecatedBuiltinCode))


def add_operator_code(model: Any, builtin: int) -> int:
    """Return the place of a kind of operator in the model's list, added where it is missing."""
    for place, code in enumerate(model.operatorCodes):
        if max(int(code.builtinCode), int(code.deprecatedBuiltinCode)) == builtin:
            return place
    code = tflite_schema().OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = builtin
    code.version = 1
    model.operatorCodes.append(code)
    return len(model.operatorCodes) - 1


def add_buffer(model: Any, data: bytes) -> int:
    """Store bytes in a model, and return the number of their buffer."""
    buffer = tflite_schema().BufferT()
    buffer.data, buffer.offset, buffer.size = np.frombuffer(data, np.uint8), 0, 0
    model.buffers.append(buffer)
    return len(model.buffers) - 1


def _text(name: bytes | str) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)
