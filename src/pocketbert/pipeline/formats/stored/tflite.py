"""The constants of a TFLite file, signature by signature."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.packages.tflite import load_model, tflite_schema, unpacked_int4
from pocketbert.pipeline.formats.stored.numbers import Numbers, dequantized, numbers_of, range_of
from pocketbert.pipeline.formats.stored.tracker import Constant, Tracker


def tflite_constants(path: Path) -> list[list[Constant]]:
    """List the constants of a file for each signature, in the order in which its graph uses them."""
    return _File(load_model(path.read_bytes())).run()


_READ = ("float32", "float16", "int8", "uint8", "int4", "int16", "int32", "int64")
"""Types of stored tensors that are numbers."""
_WIDE = {"int16": 16, "int32": 32, "int64": 64}
"""Bits of what norms and sums read, and of what is added to the sums of products of 8 and of 16 bits."""
_ENDS = {"int8": (-128, 127), "int16": (-32767, 32767)}
"""Smallest and largest integer of an activation; 16 bits have zero in the middle."""


def _array(data: NDArray[np.uint8], kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The bytes of a buffer as an array; a buffer may be longer than its tensor."""
    count = int(np.prod(shape))
    if kind == "int4":
        return unpacked_int4(data, count).reshape(shape)
    return data[: count * np.dtype(kind).itemsize].view(kind).reshape(shape)


class _File:
    def __init__(self, model: Any) -> None:
        self.model, self.schema = model, tflite_schema()
        self.names = {v: k for k, v in vars(self.schema.BuiltinOperator).items() if not k.startswith("_")}
        self.types = {v: k.lower() for k, v in vars(self.schema.TensorType).items() if not k.startswith("_")}
        self.read: dict[tuple[Any, ...], Numbers] = {}  # shared by signatures

    def run(self) -> list[list[Constant]]:
        return [_Graph(self, graph).run() for graph in self.model.subgraphs]

    def numbers(self, graph: Any, tensor: Any) -> Numbers | None:
        """The value of a stored tensor, dequantized; None of a computed one."""
        data = self.model.buffers[tensor.buffer].data
        kind = self.types.get(tensor.type, "")
        if data is None or not len(data) or kind not in _READ:
            return None
        shape = tuple(int(n) for n in tensor.shape) if tensor.shape is not None else ()
        found = tensor.quantization
        scale = None if found is None or found.scale is None else np.asarray(found.scale, np.float32)
        key = (tensor.buffer, shape, None if scale is None else scale.tobytes())
        if key not in self.read:
            name = tensor.name.decode(errors="replace") if isinstance(tensor.name, bytes) else str(tensor.name)
            numbers = numbers_of(_array(np.asarray(data, np.uint8), kind, shape), name)
            if kind == "int4":
                numbers = replace(numbers, bits=4)
            elif kind in _WIDE and scale is not None and scale.size:
                ones = np.ones((1,) * len(shape), np.float32)
                numbers = replace(numbers, value=numbers.value.astype(np.float32), step=ones, bits=_WIDE[kind])
            if found is not None and found.detailsType == self.schema.QuantizationDetails.BlockwiseQuantization:
                numbers = self._in_blocks(graph, numbers, found.details)
            if scale is not None and scale.size:
                zero = None if found.zeroPoint is None else np.asarray(found.zeroPoint)
                numbers = dequantized(numbers, scale, zero, int(found.quantizedDimension))
            self.read[key] = numbers
        return self.read[key]

    def _in_blocks(self, graph: Any, numbers: Numbers, details: Any) -> Numbers:
        """Numbers of which each block of the last axis has a scale."""
        scales = self.numbers(graph, graph.tensors[details.scales])
        assert scales is not None
        if details.zeroPoints >= 0:
            raise ValueError(f"{numbers.name}: blocks with zero points are not known")
        shape = numbers.value.shape
        each = np.repeat(scales.value.reshape(*shape[:-1], -1), details.blockSize, -1)
        return numbers.times(Numbers(each.reshape(shape), halves=1))

    def operator(self, op: Any) -> str:
        code = self.model.operatorCodes[op.opcodeIndex]
        return str(self.names.get(max(int(code.builtinCode), int(code.deprecatedBuiltinCode)), ""))


class _Graph:
    def __init__(self, file: _File, graph: Any) -> None:
        self.file, self.graph, self.tracker = file, graph, Tracker()
        for number, tensor in enumerate(graph.tensors):
            numbers = file.numbers(graph, tensor)
            if numbers is not None:
                self.tracker.store(number, numbers)

    def run(self) -> list[Constant]:
        for op in self.graph.operators:
            inputs = [int(i) for i in op.inputs if i >= 0]
            outputs = [int(i) for i in op.outputs]
            name = self.file.operator(op)
            handler = getattr(self, f"on_{name.lower()}", None)
            if handler is None:
                self.tracker.other(outputs, inputs)
            else:
                handler(op, inputs, outputs[0])
                if getattr(op.builtinOptions, "fusedActivationFunction", 0):
                    self.tracker.other(outputs, outputs)
            for out in outputs:
                self._limit(out)
        return self.tracker.finish(int(i) for i in self.graph.outputs)

    def _shape(self, number: int) -> tuple[int, ...]:
        shape = self.graph.tensors[number].shape
        return () if shape is None else tuple(int(n) for n in shape)

    def _limit(self, number: int) -> None:
        """Tell the tracker the range of a tensor that is computed in integers."""
        tensor = self.graph.tensors[number]
        ends, found = _ENDS.get(self.file.types.get(tensor.type, "")), tensor.quantization
        if ends is not None and found is not None and found.scale is not None and len(found.scale) == 1:
            zero = 0 if found.zeroPoint is None else np.asarray(found.zeroPoint)
            self.tracker.limit(number, range_of(np.asarray(found.scale), zero, ends))

    def on_reshape(self, _: Any, inputs: list[int], out: int) -> None:
        shape = self._shape(out)
        if self.tracker.stored(inputs[0]) is not None or self._shape(inputs[0])[-1:] == shape[-1:]:
            self.tracker.keep(out, inputs[0], lambda v: v.reshape(shape))
        else:
            self.tracker.other([out], inputs)

    def on_transpose(self, _: Any, inputs: list[int], out: int) -> None:
        order: NDArray[Any] | None = None
        stored = self.tracker.stored(inputs[1])
        if stored is not None:
            order = stored.value
        self.tracker.rearrange(out, inputs[0], lambda v: v.transpose(order))

    def on_cast(self, _: Any, inputs: list[int], out: int) -> None:
        self.tracker.keep(out, inputs[0])

    on_dequantize = on_cast  # the numbers of a tensor are read with its scales
    on_quantize = on_cast

    def on_embedding_lookup(self, _: Any, inputs: list[int], out: int) -> None:
        self.tracker.lookup(out, inputs[1], inputs[0])

    def on_gather(self, op: Any, inputs: list[int], out: int) -> None:
        if op.builtinOptions.axis:
            self.tracker.other([out], inputs)
        else:
            self.tracker.lookup(out, inputs[0], inputs[1])

    def on_fully_connected(self, _: Any, inputs: list[int], out: int) -> None:
        self.tracker.product(out, inputs[0], inputs[1], inputs[2] if len(inputs) > 2 else None)

    def on_batch_matmul(self, op: Any, inputs: list[int], out: int) -> None:
        if op.builtinOptions.adjX or self.tracker.stored(inputs[1]) is None:
            self.tracker.other([out], inputs)
        else:
            self.tracker.product(out, inputs[0], inputs[1], turned=not op.builtinOptions.adjY)

    def on_mul(self, _: Any, inputs: list[int], out: int) -> None:
        self.tracker.multiply(out, *inputs)

    def on_add(self, _: Any, inputs: list[int], out: int) -> None:
        self.tracker.add(out, *inputs)
