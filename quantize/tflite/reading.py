"""Reads what is stored in TFLite files."""

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
from pocketbert.core.tflite_file import IDENTIFIER, unpacked_int4
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.table import Reader, SchemeRow, register_reader, register_scheme
from pocketbert.quantize.weights import COARSEST, ExpectedWeights, Use, Wanted, WeightTypes, WeightUse

# --- graph ---
# A read-only view of a .tflite file: tensors, operators, stored numbers; nothing is copied that is not asked for.


@dataclass(frozen=True)
class Tensor:
    """One tensor of a subgraph.

    Attributes:
        name: Its name.
        dtype: ``float32``, ``int8``, ...
        shape: Its sizes.
        buffer: Number of the buffer that holds its value.
        stored: Whether the file holds its value.
        scales: How many quantization scales it has.
        step: The largest of them; 0 without any.
        block: How many numbers of its last axis share a scale; None where all numbers of a channel do.
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
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Operator:
    """One operator: its name, and the tensor numbers it reads and writes."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class TfliteGraph:
    """The first subgraph of a file, and everything that all subgraphs store.

    Args:
        path: The file.

    Raises:
        MissingBackendError: If ai-edge-litert, whose schema reads the file, is not installed.
        InputError: If the file is no TFLite model.
    """

    def __init__(self, path: Path) -> None:
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
        self.tensors = self._tensors(0)
        self.operators = self._operators(0)

    @property
    def subgraphs(self) -> int:
        """How many subgraphs the file has."""
        return int(self._model.SubgraphsLength())

    def signatures(self) -> Iterator[tuple[list[Tensor], list[Operator]]]:
        """Tensors and operators of every subgraph."""
        for number in range(self.subgraphs):
            yield (self._tensors(number), self._operators(number)) if number else (self.tensors, self.operators)

    def operator_counts(self) -> dict[str, int]:
        """Operators of the first subgraph by name."""
        return dict(Counter(o.name for o in self.operators))

    def stored(self) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """Name and value of every stored tensor, each buffer once, and the scales of quantized ones."""
        seen = set()
        for number, (tensors, _) in enumerate(self.signatures()):
            raw = self._model.Subgraphs(number)
            for index, tensor in enumerate(tensors):
                if not tensor.stored or tensor.buffer in seen:
                    continue
                seen.add(tensor.buffer)
                value = self._data(tensor.buffer)
                if tensor.dtype == "int4":
                    yield tensor.name, unpacked_int4(value, tensor.numbers)
                elif tensor.dtype in ("float32", "float16", "int8", "int32", "int64", "uint8"):
                    value = value[: value.size // np.dtype(tensor.dtype).itemsize * np.dtype(tensor.dtype).itemsize]
                    numbers = value.view(tensor.dtype)
                    yield tensor.name, numbers.reshape(tensor.shape) if numbers.size == tensor.numbers else numbers
                if tensor.scales and tensor.block is None:  # blocks have a tensor of scales
                    yield f"{tensor.name} scale", raw.Tensors(index).Quantization().ScaleAsNumpy()

    def stored_bytes(self, *dtypes: str) -> int:
        """Bytes of stored values of some types, scales in the flatbuffer left out."""
        sizes = {}
        for tensors, _ in self.signatures():
            for tensor in tensors:
                if tensor.stored and tensor.dtype in dtypes and tensor.buffer not in sizes:
                    sizes[tensor.buffer] = self._data(tensor.buffer).size
        return sum(sizes.values())

    def _data(self, buffer: int) -> NDArray[np.uint8]:
        entry = self._model.Buffers(buffer)
        if entry.Offset() > 1:  # the quantizer writes weights behind the flatbuffer
            return self._bytes[entry.Offset() : entry.Offset() + entry.Size()]
        return np.asarray(entry.DataAsNumpy(), np.uint8)

    def _tensors(self, subgraph: int) -> list[Tensor]:
        graph = self._model.Subgraphs(subgraph)
        out = []
        for i in range(graph.TensorsLength()):
            tensor = graph.Tensors(i)
            shape = tensor.ShapeAsNumpy() if tensor.ShapeLength() else ()
            entry, (scales, block) = self._model.Buffers(tensor.Buffer()), self._scales(graph, tensor.Quantization())
            out.append(
                Tensor(
                    (tensor.Name() or b"").decode(errors="replace"),
                    self._dtypes.get(tensor.Type(), "unknown"),
                    tuple(int(n) for n in shape),
                    tensor.Buffer(),
                    bool(entry.DataLength() or entry.Offset() > 1),
                    scales,
                    block,
                    _largest(tensor.Quantization()),
                )
            )
        return out

    def _scales(self, graph: Any, quantization: Any) -> tuple[int, int | None]:
        """How many scales a tensor has, and how many numbers of a channel share one where not all of them do."""
        if quantization is None:
            return 0, None
        if quantization.DetailsType() != self._schema.QuantizationDetails.BlockwiseQuantization:
            return quantization.ScaleLength(), None
        details, found = quantization.Details(), self._schema.BlockwiseQuantization()
        found.Init(details.Bytes, details.Pos)
        return int(np.prod(graph.Tensors(found.Scales()).ShapeAsNumpy())), found.BlockSize()

    def _operators(self, subgraph: int) -> list[Operator]:
        graph = self._model.Subgraphs(subgraph)
        out = []
        for i in range(graph.OperatorsLength()):
            op = graph.Operators(i)
            code = self._model.OperatorCodes(op.OpcodeIndex())
            name = self._names[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())]
            inputs = op.InputsAsNumpy() if op.InputsLength() else ()
            outputs = op.OutputsAsNumpy() if op.OutputsLength() else ()
            out.append(Operator(name, tuple(int(x) for x in inputs), tuple(int(x) for x in outputs)))
        return out


def _largest(quantization: Any) -> float:
    """The largest scale of a tensor; 0 without any."""
    if quantization is None or not quantization.ScaleLength():
        return 0.0
    return float(quantization.ScaleAsNumpy().max())


_WEIGHT_OPERATORS = {
    "FULLY_CONNECTED": (1, Use.MATMUL),
    "EMBEDDING_LOOKUP": (1, Use.TABLE),
    "GATHER": (0, Use.TABLE),
}
"""Input that holds the weight, and what it is used for."""

_INTEGER_OPERATORS = (*_WEIGHT_OPERATORS, "QUANTIZE")
"""Operators whose results may be integers of few bits."""
_SCORES = ("ADD", "QUANTIZE", "RESHAPE")
"""Operators between scores, mask and softmax."""
_SMALL = {"int8": 8, "int16": 16}
"""Bits of integers that operators compute with."""


def weight_types(path: Path) -> WeightTypes:
    """Read the types of all weights in a file; those of the first signature, which the others share."""
    graph = TfliteGraph(path)
    produced = {o: op for op in graph.operators for o in op.outputs}
    uses = []
    for op in graph.operators:
        if op.name not in _WEIGHT_OPERATORS:
            continue
        place, use = _WEIGHT_OPERATORS[op.name]
        index, dequantized = op.inputs[place], False
        before = produced.get(index)
        if before is not None and before.name == "DEQUANTIZE":
            index, dequantized = before.inputs[0], True
        tensor = graph.tensors[index]
        scales_of_a_table = tensor.shape[-1:] == (1,) and use is Use.TABLE
        if tensor.stored and not scales_of_a_table:
            read = graph.tensors[op.inputs[0]].dtype
            uses.append(
                WeightUse(
                    name=tensor.name,
                    use=use,
                    dtype=tensor.dtype,
                    numbers=tensor.numbers,
                    dequantized=dequantized,
                    per_channel=None if tensor.shape[0] == 1 and tensor.scales == 1 else tensor.scales > 1,
                    block=tensor.block,
                    bits=_SMALL.get(read) if use is Use.MATMUL else None,
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
            if op.name not in _INTEGER_OPERATORS and any(graph.tensors[i].dtype in _SMALL for i in op.outputs)
        ],
        coarse=_coarse(graph),
    )


def _coarse(graph: TfliteGraph) -> list[str]:
    """Inputs of softmax, and what was added to make them, that are integers with steps in which probabilities are lost."""
    produced = {o: op for op in graph.operators for o in op.outputs}
    out = []
    for op in graph.operators:
        indices = list(op.inputs) if op.name == "SOFTMAX" else []
        while indices:
            index = indices.pop()
            tensor, before = graph.tensors[index], produced.get(index)
            if tensor.dtype in _SMALL and tensor.step > COARSEST[_SMALL[tensor.dtype]]:
                out.append(tensor.name)
            if before is not None and before.name in _SCORES:
                indices += [i for i in before.inputs if i >= 0 and not graph.tensors[i].stored]
    return list(dict.fromkeys(out))


def stored_numbers(path: Path) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Name and value of everything stored in a file, scales of quantized tensors included."""
    yield from TfliteGraph(path).stored()


register_reader(Format.TFLITE, Reader(weight_types, stored_numbers))
register_scheme(SchemeRow(Format.TFLITE, Scheme.FP32, ExpectedWeights(Wanted("float32"), Wanted("float32"))))
