"""A file of one length: what accelerators of phones take, whose compilers want one graph of one shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from pocketbert.core.packages.tflite import tflite_schema


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
