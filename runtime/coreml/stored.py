"""List the tensors that a package stores, and the operations that read them, without running anything.

`StoredTensors` opens a package: `weights` yields each stored tensor once for each operation that reads it, `arrays` and
`sizes` yield every stored array, `operators` returns the counts of operations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.runtime.coreml.kernels.constexpr import CONSTEXPR_PREFIX
from pocketbert.runtime.coreml.package import Package, read_package
from pocketbert.runtime.coreml.types import Budget, Dtype
from pocketbert.runtime.coreml.weights import Constant, ConstantReader

if TYPE_CHECKING:
    from pocketbert.runtime.coreml.proto import mlpackage_pb2 as pb

_DATA = {"quantized_data", "data", "nonzero_data", "indices"}
"""Parameters of compressing operations that hold the numbers; the others hold scales, offsets and tables."""


@dataclass(frozen=True)
class StoredWeight:
    """A stored tensor together with one operation that reads it.

    Attributes:
        name: The name under which the operation reads the tensor.
        reader: MIL name of the operation.
        parameter: The operation's parameter to which the tensor is passed.
        dtype: Type of the stored numbers.
        numbers: Number of elements.
        rows: Size of the first axis: output channels of a matrix, words of a table.
        scales: Number of scales or palettes of a compressed tensor; 0 for a plain one.
        columns: Size of the second axis: numbers of a row.
        palette: Size of the tensor's palette; 0 if it has none.
        static: Whether another operand of the operation was quantized to 8 bits.
    """

    name: str
    reader: str
    parameter: str
    dtype: Dtype
    numbers: int
    rows: int
    scales: int
    columns: int = 1
    palette: int = 0
    static: bool = False


class StoredTensors:
    """The constants stored in one package, read without running it.

    Args:
        path: The package.

    Raises:
        InputError: If the package is damaged.
        MissingBackendError: If protobuf is not installed.
    """

    def __init__(self, path: Path) -> None:
        self._package: Package = read_package(path)
        self._reader = ConstantReader(self._package, Budget(str(path)))
        self._made_by = {o.name: op for op in self._package.block.operations for o in op.outputs}

    def operators(self) -> dict[str, int]:
        """Return the number of operations of each kind, by MIL name.

        Operations that only make constants are not counted.
        """
        out: dict[str, int] = {}
        for operation in self._package.block.operations:
            if operation.type != "const" and not operation.type.startswith(CONSTEXPR_PREFIX):
                out[operation.type] = out.get(operation.type, 0) + 1
        return out

    def labels(self) -> list[str]:
        """Return the label names of a classifier; empty for any other model."""
        for operation in self._package.block.operations:
            if operation.type == "classify":
                classes = self._read(operation.inputs["classes"].arguments[0].value, "classes").value
                return list(classes) if isinstance(classes, tuple) else []
        return []

    def weights(self) -> Iterator[StoredWeight]:
        """Yield a `StoredWeight` for each named constant, compressed or not, once for each operation that reads it."""
        for operation in self._package.block.operations:
            if operation.type == "const" or operation.type.startswith(CONSTEXPR_PREFIX):
                continue
            dequantized = {
                parameter
                for parameter, argument in operation.inputs.items()
                for binding in argument.arguments
                if binding.name in self._made_by and self._made_by[binding.name].type == "dequantize"
            }
            for parameter, argument in operation.inputs.items():
                for binding in argument.arguments:
                    producer = self._made_by.get(binding.name)
                    if producer is not None:
                        for weight in self._read_weights(producer, binding.name, operation.type, parameter):
                            yield replace(weight, static=bool(dequantized - {parameter}))

    def arrays(self) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """Yield (name, value) of every stored array: constants, scales, palettes, and operands within operations."""
        for name, constant in self._constants():
            if isinstance(constant.value, np.ndarray):
                yield name, constant.value

    def sizes(self) -> Iterator[tuple[Dtype, int]]:
        """Yield the type of the elements of every stored array, and its size in bytes."""
        for _, constant in self._constants():
            if isinstance(constant.value, np.ndarray):
                dtype = _dtype(constant)
                yield dtype, (constant.value.size * dtype.bits + 7) // 8

    def _read_weights(self, producer: pb.Operation, name: str, reader: str, parameter: str) -> Iterator[StoredWeight]:
        """Yield a `StoredWeight` if the operation `producer` makes a constant, compressed or not. Else yield nothing.

        Args:
            producer: The operation whose result is read.
            name: Name of the result.
            reader: MIL name of the operation that reads it.
            parameter: The reading operation's parameter to which it is passed.
        """
        if producer.type == "const":
            constant = self._read(producer.attributes["val"], name)
            if isinstance(constant.value, np.ndarray):
                yield _describe_weight(name, reader, parameter, constant, constant.value)
        elif producer.type.startswith(CONSTEXPR_PREFIX):
            operands = dict(self._operands(producer))
            data = next((c for p, c in operands.items() if p in _DATA), None)
            if data is None or not isinstance(data.value, np.ndarray):
                return
            weight = _describe_weight(name, reader, parameter, data, data.value)
            arrays = {p: c.value for p, c in operands.items() if isinstance(c.value, np.ndarray)}
            if "scale" in arrays:
                weight = replace(weight, scales=arrays["scale"].size)
            if "lut" in arrays:
                palette = arrays["lut"]
                size = palette.size if palette.ndim == 1 else palette.shape[-2] * palette.shape[-1]
                weight = replace(weight, scales=palette.size // size, palette=size)
            if "shape" in arrays:  # packed bits
                sizes = [int(n) for n in arrays["shape"]]
                weight = replace(weight, numbers=math.prod(sizes), rows=sizes[0], columns=(*sizes, 1)[1])
            yield weight

    def _operands(self, operation: pb.Operation, named: bool = True) -> Iterator[tuple[str, Constant]]:
        """Yield (parameter, constant) of an operation's stored operands.

        With `named`, these include operands that are constant operations with a name.
        """
        for parameter, value in operation.attributes.items():
            if parameter != "name":
                yield parameter, self._read(value, parameter)
        for parameter, argument in operation.inputs.items():
            for binding in argument.arguments:
                if binding.WhichOneof("binding") == "value":
                    yield parameter, self._read(binding.value, parameter)
                elif named and (producer := self._made_by.get(binding.name)) is not None and producer.type == "const":
                    yield parameter, self._read(producer.attributes["val"], parameter)

    def _constants(self) -> Iterator[tuple[str, Constant]]:
        """Yield (name, constant) of every stored constant.

        Operands within an operation are named ``<result>.<parameter>``.
        """
        for operation in self._package.block.operations:
            name = operation.outputs[0].name if operation.outputs else operation.type
            if operation.type == "const" and "val" in operation.attributes:
                constants = [("", self._read(operation.attributes["val"], name))]
            else:
                constants = [(f".{k}", c) for k, c in self._operands(operation, named=False)]
            yield from ((name + suffix, constant) for suffix, constant in constants)

    def _read(self, value: pb.Value, name: str) -> Constant:
        try:
            return self._reader.read(value)
        except (ValueError, OverflowError) as error:
            raise InputError(Problem(f"{self._package.model_path} {name}", f"{error}.")) from error


def _describe_weight(
    name: str, reader: str, parameter: str, constant: Constant, value: NDArray[np.generic]
) -> StoredWeight:
    rows, columns = (*value.shape, 1, 1)[:2]
    return StoredWeight(name, reader, parameter, _dtype(constant), value.size, rows, 0, columns)


def _dtype(constant: Constant) -> Dtype:
    kind = constant.type
    return kind.dtype  # type: ignore[union-attr]
