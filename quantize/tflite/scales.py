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

from pocketbert.core.packages.tflite import dump_model, load_model, tflite_schema

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
