"""What a package stores, and which operations read it: for checks of types, without running anything."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.runtime.coreml.kernels.constexpr import PREFIX
from pocketbert.runtime.coreml.package import Package, read_package
from pocketbert.runtime.coreml.types import Budget, Dtype
from pocketbert.runtime.coreml.weights import Constant, ConstantReader

if TYPE_CHECKING:
    from pocketbert.runtime.coreml.proto import mlpackage_pb2 as pb

_DATA = {"quantized_data", "data", "nonzero_data", "indices"}
"""Parameters of compressing operations that hold the numbers; the others hold scales, offsets and tables."""


@dataclass(frozen=True)
class StoredWeight:
    """A stored tensor that an operation reads.

    Attributes:
        name: The name under which it is read.
        reader: MIL name of the operation.
        parameter: Which of its parameters.
        dtype: Type of the stored numbers.
        numbers: How many there are.
        rows: Its first axis: output channels of a matrix, words of a table.
        scales: How many scales a compressed one has, or how many palettes; 0 for plain ones.
        columns: Its second axis: numbers of a row.
        palette: How many numbers its palette has; 0 where it has none.
        static: Whether what it is multiplied with comes from 8 bits.
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
    """The constants of one package.

    Args:
        path: The package.

    Raises:
        InputError: If it is damaged.
        MissingBackendError: If protobuf is not installed.
    """

    def __init__(self, path: Path) -> None:
        self._package: Package = read_package(path)
        self._reader = ConstantReader(self._package, Budget(str(path)))
        self._made = {o.name: op for op in self._package.block.operations for o in op.outputs}

    def operators(self) -> dict[str, int]:
        """Operation counts, constants left out."""
        out: dict[str, int] = {}
        for operation in self._package.block.operations:
            if operation.type != "const" and not operation.type.startswith(PREFIX):
                out[operation.type] = out.get(operation.type, 0) + 1
        return out

    def labels(self) -> list[str]:
        """Label names of a classifier; empty where it is none."""
        for operation in self._package.block.operations:
            if operation.type == "classify":
                classes = self._read(operation.inputs["classes"].arguments[0].value, "classes").value
                return list(classes) if isinstance(classes, tuple) else []
        return []

    def weights(self) -> Iterator[StoredWeight]:
        """Every stored tensor that an operation reads, once for each reader."""
        for operation in self._package.block.operations:
            if operation.type == "const" or operation.type.startswith(PREFIX):
                continue
            rounded = {
                parameter
                for parameter, argument in operation.inputs.items()
                for binding in argument.arguments
                if binding.name in self._made and self._made[binding.name].type == "dequantize"
            }
            for parameter, argument in operation.inputs.items():
                for binding in argument.arguments:
                    maker = self._made.get(binding.name)
                    if maker is not None:
                        for weight in self._weight(maker, binding.name, operation.type, parameter):
                            yield replace(weight, static=bool(rounded - {parameter}))

    def _weight(self, maker: pb.Operation, name: str, reader: str, parameter: str) -> Iterator[StoredWeight]:
        if maker.type == "const":
            constant = self._read(maker.attributes["val"], name)
            if isinstance(constant.value, np.ndarray):
                yield _weight_of(name, reader, parameter, constant, constant.value)
        elif maker.type.startswith(PREFIX):
            parts = dict(self._parts(maker))
            data = next((v for k, v in parts.items() if k in _DATA), None)
            if data is not None and isinstance(data.value, np.ndarray):
                weight = _weight_of(name, reader, parameter, data, data.value)
                scale, palette, shape = (_array(parts.get(k)) for k in ("scale", "lut", "shape"))
                if scale is not None:
                    weight = replace(weight, scales=scale.size)
                if palette is not None:
                    size = palette.size if palette.ndim == 1 else palette.shape[-2] * palette.shape[-1]
                    weight = replace(weight, scales=palette.size // size, palette=size)
                if shape is not None:  # packed bits
                    sizes = [int(n) for n in shape]
                    weight = replace(weight, numbers=math.prod(sizes), rows=sizes[0], columns=(*sizes, 1)[1])
                yield weight

    def _parts(self, maker: pb.Operation, named: bool = True) -> Iterator[tuple[str, Constant]]:
        """Stored operands of an operation by parameter; those that are constants of their own only if `named`."""
        for parameter, value in maker.attributes.items():
            if parameter != "name":
                yield parameter, self._read(value, parameter)
        for parameter, argument in maker.inputs.items():
            for binding in argument.arguments:
                if binding.WhichOneof("binding") == "value":
                    yield parameter, self._read(binding.value, parameter)
                elif named and (before := self._made.get(binding.name)) is not None and before.type == "const":
                    yield parameter, self._read(before.attributes["val"], parameter)

    def arrays(self) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """Name and value of every stored array: constants, scales and tables of compressed ones, operands written in place."""
        for name, constant in self._constants():
            if isinstance(constant.value, np.ndarray):
                yield name, constant.value

    def sizes(self) -> Iterator[tuple[bool, int]]:
        """Whether numbers are floats, and how many bytes they take, for every stored array."""
        for _, constant in self._constants():
            if isinstance(constant.value, np.ndarray):
                kind = _dtype(constant)
                yield kind.is_float, (constant.value.size * kind.bits + 7) // 8

    def _constants(self) -> Iterator[tuple[str, Constant]]:
        for operation in self._package.block.operations:
            name = operation.outputs[0].name if operation.outputs else operation.type
            if operation.type == "const" and "val" in operation.attributes:
                parts = [("", self._read(operation.attributes["val"], name))]
            else:
                parts = [(f".{k}", c) for k, c in self._parts(operation, named=False)]
            yield from ((name + suffix, constant) for suffix, constant in parts)

    def _read(self, value: pb.Value, name: str) -> Constant:
        try:
            return self._reader.read(value)
        except (ValueError, OverflowError) as error:
            raise InputError(Problem(f"{self._package.model_path} {name}", f"{error}.")) from error


def _weight_of(name: str, reader: str, parameter: str, constant: Constant, value: NDArray[np.generic]) -> StoredWeight:
    rows, columns = (*value.shape, 1, 1)[:2]
    return StoredWeight(name, reader, parameter, _dtype(constant), value.size, rows, 0, columns)


def _array(constant: Constant | None) -> NDArray[np.generic] | None:
    return constant.value if constant is not None and isinstance(constant.value, np.ndarray) else None


def _dtype(constant: Constant) -> Dtype:
    kind = constant.type
    return kind.dtype  # type: ignore[union-attr]
