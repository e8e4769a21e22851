"""Read what is stored in TFLite files: `read_weight_types` and `read_stored_numbers` are the reader of the format.

`TfliteGraph` is a read-only view of a file: tensors, operators and stored numbers, without a copy of the weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.host.system import version_of
from pocketbert.core.model_files import IDENTIFIER, unpack_int4
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.table import Reader, SchemeRow, register_reader, register_scheme
from pocketbert.quantize.weights import COARSEST, ExpectedForm, ExpectedWeights, Use, WeightTypes, WeightUse

_WEIGHT_OPERATORS = {
    "FULLY_CONNECTED": (1, Use.MATMUL),
    "EMBEDDING_LOOKUP": (1, Use.TABLE),
    "GATHER": (0, Use.TABLE),
}
"""Input that holds the weight, and what it is used for."""
_INTEGER_OPERATORS = (*_WEIGHT_OPERATORS, "QUANTIZE")
"""Operators whose results may be integers of few bits in any file."""
_SCORE_OPERATORS = ("ADD", "QUANTIZE", "RESHAPE")
"""Operators between scores, mask and softmax."""
_INTEGER_BITS = {"int8": 8, "int16": 16}
"""Bits of integers that operators compute with."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of a TFLite subgraph, without its numbers.

    Attributes:
        name: The tensor's name.
        dtype: ``float32``, ``int8``, ...
        shape: Sizes of the tensor's axes.
        buffer: Index of the buffer that holds the tensor's numbers.
        stored: Whether the file holds the numbers.
        scales: Number of quantization scales.
        block: Count of neighbouring numbers of the last axis that share a scale; None if all numbers of a channel share
            it.
        step: The largest scale; 0 without any.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    buffer: int
    stored: bool
    scales: int
    block: int | None = None
    step: float = 0.0

    @property
    def numbers(self) -> int:
        """Count of numbers in the tensor."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Operator:
    """An operator of a TFLite subgraph: its kind, and the numbers of the tensors that it reads and writes."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class TfliteGraph:
    """A TFLite file opened for reading: its first subgraph, and the numbers that all subgraphs store.

    Args:
        path: The file.

    Attributes:
        tensors: Tensors of the first subgraph.
        operators: Operators of the first subgraph.

    Raises:
        MissingBackendError: If ai-edge-litert, whose schema reads the file, is not installed.
        InputError: If the file is no TFLite model.
    """

    def __init__(self, path: Path) -> None:
        """Open a TFLite file and read tensors and operators of its first subgraph."""
        if version_of("ai-edge-litert") is None:
            raise MissingBackendError("ai-edge-litert", "pip install 'pocketbert[tflite-runtime]'")
        from ai_edge_litert import schema_py_generated as schema

        self._schema: Any = schema
        self._bytes = np.fromfile(path, np.uint8)
        if bytes(self._bytes[4:8]) != IDENTIFIER:
            raise InputError(Problem(str(path), "is no TFLite file."))
        self._model: Any = schema.Model.GetRootAs(self._bytes, 0)
        self._dtypes = {v: k.lower() for k, v in vars(schema.TensorType).items() if not k.startswith("_")}
        self._names = {v: k for k, v in vars(schema.BuiltinOperator).items() if not k.startswith("_")}
        self.tensors = self._read_tensors(0)
        self.operators = self._read_operators(0)

    @property
    def subgraphs(self) -> int:
        """Number of subgraphs in the file."""
        return int(self._model.SubgraphsLength())

    def signatures(self) -> Iterator[tuple[list[Tensor], list[Operator]]]:
        """Yield (tensors, operators) of every subgraph, the first one first."""
        yield self.tensors, self.operators
        for number in range(1, self.subgraphs):
            yield self._read_tensors(number), self._read_operators(number)

    def operator_counts(self) -> dict[str, int]:
        """Return the number of operators of each kind in the first subgraph."""
        return dict(Counter(o.name for o in self.operators))

    def stored(self) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """Yield (name, value) of the stored tensors, each buffer once, and of the scales of quantized tensors.

        Tensors of rare types, such as bool, are left out. The scales of blocks are stored tensors themselves.
        """
        seen = set()
        for number, (tensors, _) in enumerate(self.signatures()):
            subgraph = self._model.Subgraphs(number)
            for index, tensor in enumerate(tensors):
                if not tensor.stored or tensor.buffer in seen:
                    continue
                seen.add(tensor.buffer)
                value = self._buffer(tensor.buffer)
                if tensor.dtype == "int4":
                    yield tensor.name, unpack_int4(value, tensor.numbers)
                elif tensor.dtype in ("float32", "float16", "int8", "int32", "int64", "uint8"):
                    size = np.dtype(tensor.dtype).itemsize
                    numbers = value[: value.size // size * size].view(tensor.dtype)
                    yield tensor.name, numbers.reshape(tensor.shape) if numbers.size == tensor.numbers else numbers
                if tensor.scales and tensor.block is None:  # blocks have a tensor of scales
                    yield f"{tensor.name} scale", subgraph.Tensors(index).Quantization().ScaleAsNumpy()

    def stored_bytes(self, *dtypes: str) -> int:
        """Return the size in bytes of all stored tensors of the given number types, without scales."""
        sizes = {}
        for tensors, _ in self.signatures():
            for tensor in tensors:
                if tensor.stored and tensor.dtype in dtypes and tensor.buffer not in sizes:
                    sizes[tensor.buffer] = self._buffer(tensor.buffer).size
        return sum(sizes.values())

    def _buffer(self, number: int) -> NDArray[np.uint8]:
        """Return the bytes of a buffer, which may lie after the flatbuffer."""
        entry = self._model.Buffers(number)
        if entry.Offset() > 1:  # the quantizer writes weights behind the flatbuffer
            return self._bytes[entry.Offset() : entry.Offset() + entry.Size()]
        return np.asarray(entry.DataAsNumpy(), np.uint8)

    def _read_tensors(self, subgraph: int) -> list[Tensor]:
        """Read name, type, shape and scales of the tensors of a subgraph."""
        graph = self._model.Subgraphs(subgraph)
        tensors = []
        for i in range(graph.TensorsLength()):
            tensor = graph.Tensors(i)
            shape = tensor.ShapeAsNumpy() if tensor.ShapeLength() else ()
            entry, quantization = self._model.Buffers(tensor.Buffer()), tensor.Quantization()
            scales, block = self._read_scales(graph, quantization)
            has_scales = quantization is not None and quantization.ScaleLength()
            tensors.append(
                Tensor(
                    (tensor.Name() or b"").decode(errors="replace"),
                    self._dtypes.get(tensor.Type(), "unknown"),
                    tuple(int(n) for n in shape),
                    tensor.Buffer(),
                    bool(entry.DataLength() or entry.Offset() > 1),
                    scales,
                    block,
                    float(quantization.ScaleAsNumpy().max()) if has_scales else 0.0,
                )
            )
        return tensors

    def _read_scales(self, graph: Any, quantization: Any) -> tuple[int, int | None]:
        """Return a tensor's number of scales and its block size.

        The block size is None if all numbers of a channel, or of the tensor, share a scale.
        """
        if quantization is None:
            return 0, None
        if quantization.DetailsType() != self._schema.QuantizationDetails.BlockwiseQuantization:
            return quantization.ScaleLength(), None
        details, blocks = quantization.Details(), self._schema.BlockwiseQuantization()
        blocks.Init(details.Bytes, details.Pos)
        return int(np.prod(graph.Tensors(blocks.Scales()).ShapeAsNumpy())), blocks.BlockSize()

    def _read_operators(self, subgraph: int) -> list[Operator]:
        """Read kind, inputs and outputs of the operators of a subgraph."""
        graph = self._model.Subgraphs(subgraph)
        operators = []
        for i in range(graph.OperatorsLength()):
            op = graph.Operators(i)
            code = self._model.OperatorCodes(op.OpcodeIndex())
            name = self._names[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())]
            inputs = op.InputsAsNumpy() if op.InputsLength() else ()
            outputs = op.OutputsAsNumpy() if op.OutputsLength() else ()
            operators.append(Operator(name, tuple(int(x) for x in inputs), tuple(int(x) for x in outputs)))
        return operators


def read_weight_types(path: Path) -> WeightTypes:
    """Read the storage types of the weights of matrix products and lookups in a TFLite file.

    They are read from its first signature, because all signatures share their weights.
    """
    graph = TfliteGraph(path)
    makers = {o: op for op in graph.operators for o in op.outputs}
    uses = []
    for op in graph.operators:
        if op.name not in _WEIGHT_OPERATORS:
            continue
        place, use = _WEIGHT_OPERATORS[op.name]
        index, maker = op.inputs[place], makers.get(op.inputs[place])
        dequantized = maker is not None and maker.name == "DEQUANTIZE"
        if maker is not None and dequantized:
            index = maker.inputs[0]
        tensor = graph.tensors[index]
        scales_of_a_table = tensor.shape[-1:] == (1,) and use is Use.TABLE
        if tensor.stored and not scales_of_a_table:
            data_type = graph.tensors[op.inputs[0]].dtype
            uses.append(
                WeightUse(
                    name=tensor.name,
                    use=use,
                    dtype=tensor.dtype,
                    numbers=tensor.numbers,
                    dequantized=dequantized,
                    per_channel=None if tensor.shape[0] == 1 and tensor.scales == 1 else tensor.scales > 1,
                    block=tensor.block,
                    bits=_INTEGER_BITS.get(data_type) if use is Use.MATMUL else None,
                )
            )
    return WeightTypes(
        uses=uses,
        int8_bytes=graph.stored_bytes("int8", "int4"),
        float_bytes=graph.stored_bytes("float32", "float16"),
        operators=graph.operator_counts(),
        integers=[
            op.name
            for op in graph.operators
            if op.name not in _INTEGER_OPERATORS and any(graph.tensors[i].dtype in _INTEGER_BITS for i in op.outputs)
        ],
        coarse=_coarse_scores(graph),
    )


def read_stored_numbers(path: Path) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Yield (name, value) of every array stored in a TFLite file, including the scales of quantized tensors."""
    yield from TfliteGraph(path).stored()


def _coarse_scores(graph: TfliteGraph) -> list[str]:
    """Return the names of attention scores that are stored with quantization steps too large for an exact softmax."""
    makers = {o: op for op in graph.operators for o in op.outputs}
    coarse = []
    for op in graph.operators:
        indices = list(op.inputs) if op.name == "SOFTMAX" else []
        while indices:
            index = indices.pop()
            tensor, maker = graph.tensors[index], makers.get(index)
            if tensor.dtype in _INTEGER_BITS and tensor.step > COARSEST[_INTEGER_BITS[tensor.dtype]]:
                coarse.append(tensor.name)
            if maker is not None and maker.name in _SCORE_OPERATORS:
                indices += [i for i in maker.inputs if i >= 0 and not graph.tensors[i].stored]
    return list(dict.fromkeys(coarse))


register_reader(Format.TFLITE, Reader(read_weight_types, read_stored_numbers))
register_scheme(
    SchemeRow(Format.TFLITE, Scheme.FP32, ExpectedWeights(ExpectedForm("float32"), ExpectedForm("float32")))
)
