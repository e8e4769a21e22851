"""What a package stores, and which operations read it: for checks of types, without running anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.runtime.coreml.constants import Constant, ConstantReader
from pocketbert.runtime.coreml.kernels.constexpr import PREFIX
from pocketbert.runtime.coreml.limits import Budget
from pocketbert.runtime.coreml.mil_types import Dtype
from pocketbert.runtime.coreml.package import Package, read_package

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
        scales: How many scales a compressed one has; 0 for plain ones.
    """

    name: str
    reader: str
    parameter: str
    dtype: Dtype
    numbers: int
    rows: int
    scales: int


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
            for parameter, argument in operation.inputs.items():
                for binding in argument.arguments:
                    maker = self._made.get(binding.name)
                    if maker is not None:
                        yield from self._weight(maker, binding.name, operation.type, parameter)

    def _weight(self, maker: pb.Operation, name: str, reader: str, parameter: str) -> Iterator[StoredWeight]:
        if maker.type == "const":
            constant = self._read(maker.attributes["val"], name)
            if isinstance(constant.value, np.ndarray):
                yield StoredWeight(
                    name, reader, parameter, _dtype(constant), constant.value.size, _rows(constant.value), 0
                )
        elif maker.type.startswith(PREFIX):
            parts = dict(self._parts(maker))
            data = next((v for k, v in parts.items() if k in _DATA), None)
            scale = parts.get("scale")
            if data is not None and isinstance(data.value, np.ndarray):
                scales = scale.value.size if scale is not None and isinstance(scale.value, np.ndarray) else 0
                rows = _rows(data.value)
                yield StoredWeight(name, reader, parameter, _dtype(data), data.value.size, rows, scales)

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
        for operation in self._package.block.operations:
            name = operation.outputs[0].name if operation.outputs else operation.type
            if operation.type == "const" and "val" in operation.attributes:
                parts = [("", self._read(operation.attributes["val"], name))]
            else:
                parts = [(f".{k}", c) for k, c in self._parts(operation, named=False)]
            for suffix, constant in parts:
                if isinstance(constant.value, np.ndarray):
                    yield name + suffix, constant.value

    def _read(self, value: pb.Value, name: str) -> Constant:
        try:
            return self._reader.read(value)
        except (ValueError, OverflowError) as error:
            raise InputError(Problem(f"{self._package.model_path} {name}", f"{error}.")) from error


def _rows(value: NDArray[np.generic]) -> int:
    return int(value.shape[0]) if value.ndim else 1


def _dtype(constant: Constant) -> Dtype:
    kind = constant.type
    return kind.dtype  # type: ignore[union-attr]
