"""Runs a package's program on the CPU, in numpy, with the precision that it declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.runtime.coreml.package import Feature, describe, read_package
from pocketbert.runtime.coreml.program import Operation, Output, read_program
from pocketbert.runtime.coreml.types import RUN_BYTES, Dtype, TensorType, ValueType, round_half

_RANGES = {Dtype.INT8: (-128, 127), Dtype.INT32: (-(2**31), 2**31 - 1)}
"""Of the integers that an input may be declared as."""
Result = NDArray[np.generic] | str | dict[str, float]


class Precision(StrEnum):
    """The number type that floating-point results are rounded to."""

    DECLARED = "declared"
    """What the program says: results declared fp16 are rounded to fp16, sums inside an operation are not."""
    FP32 = "fp32"
    """Nothing: what the weights alone cost."""


@dataclass(frozen=True)
class Step:
    """One result, as it is made.

    Attributes:
        op_type: MIL name of the operation.
        op_name: The operation's own name.
        output: Name of the result.
        value: The result in its declared dtype (float32 where precision is FP32); a text or dictionary of classify.
        type: What the program declares.
        reads: Names of the values it was made from, constants left out.
    """

    op_type: str
    op_name: str
    output: str
    value: Result
    type: ValueType
    reads: tuple[str, ...]


class Evaluator:
    """An evaluator that computes an ``.mlpackage`` on any system.

    Every result's rank, sizes and dtype are compared with the declared ones, as Core ML's loader does.

    Args:
        path: The package.
        precision: What results are rounded to.

    Attributes:
        path: The package.
        precision: As given.
        inputs: Features an app must give.
        outputs: Features it gets back.
        lengths: Sequence lengths that the model takes, ascending; empty where a range is taken.
        length_range: Smallest and largest length where a range is taken; -1 for no upper bound.
        labels: Of a classifier; empty otherwise.
        metadata: What the model says about itself, its own keys and ``author``, ``license``, ``shortDescription``,
            ``versionString``.
        specification: Version of the model format.

    Raises:
        InputError: If the package is damaged, contradicts itself, or has operations that are not known here.
        MissingBackendError: If protobuf is not installed.
    """

    def __init__(self, path: Path, precision: Precision = Precision.DECLARED) -> None:
        self.path, self.precision = path, precision
        package = read_package(path)
        self._where = str(package.model_path)
        self._program = read_program(package, precision is Precision.DECLARED)
        about = describe(package)
        self.inputs, self.outputs = about.inputs, about.outputs
        self.lengths, self.length_range = about.lengths, about.length_range
        self.metadata, self.specification = about.metadata, about.specification
        self.labels = self._program.labels

    def run(
        self, inputs: Mapping[str, NDArray[np.generic]], trace: Callable[[Step], None] | None = None
    ) -> dict[str, Result]:
        """Run the program once.

        Args:
            inputs: Arrays by name, of a shape and dtype that the model takes; integers may have any integer dtype.
                Names the model does not want are an error.
            trace: Called with every result, in order. It must not change them.

        Returns:
            Outputs by name in their declared dtype; the label as a text, label probabilities as a dictionary.

        Raises:
            InputError: If the inputs do not fit, or an operation fails or makes something else than declared.
        """
        program = self._program
        values: list[Any] = [None] * program.size
        kept = 0
        for slot, value in program.preset.items():
            values[slot] = value
        for name, value in self._checked(inputs).items():
            values[program.inputs[name][1]] = value
        with np.errstate(all="ignore"):
            for operation in program.operations:
                try:
                    kept += self._step(operation, values)
                    if kept > RUN_BYTES:
                        raise MemoryError
                except InputError:
                    raise
                except MemoryError as error:
                    raise self._problem(operation, "takes more memory than there is, or may be taken") from error
                except Exception as error:  # kernels meet any nonsense that a file may hold
                    raise self._problem(operation, str(error) or type(error).__name__) from error
                if trace is not None:
                    self._show(operation, values, trace)
                for slot in operation.free:
                    kept -= getattr(values[slot], "nbytes", 0)
                    values[slot] = None
        return {name: self._narrowed(values[slot], program.types[name]) for name, slot in program.outputs.items()}

    def _step(self, operation: Operation, values: list[Any]) -> int:
        """Run one operation; returns the bytes of its results."""
        grown = 0
        arguments = operation.fixed
        if operation.slots or operation.lists:
            arguments = arguments.copy()
            for parameter, slot, convert in operation.slots:
                value = values[slot]
                arguments[parameter] = value if convert is None else convert(value)
            for parameter, entries in operation.lists:
                arguments[parameter] = tuple(values[e] if isinstance(e, int) else e for e in entries)
        results = operation.kernel.function(**arguments)
        if type(results) is not tuple:
            results = (results,)
        if len(results) != len(operation.outputs):
            raise ValueError(f"{len(operation.outputs)} results declared, {len(results)} made")
        for output, result in zip(operation.outputs, results, strict=True):
            value = self._settled(operation, output, result)
            values[output.slot] = value
            grown += getattr(value, "nbytes", 0)
        return grown

    def _show(self, operation: Operation, values: list[Any], trace: Callable[[Step], None]) -> None:
        for output in operation.outputs:
            value = self._narrowed(values[output.slot], output.type)
            trace(Step(operation.type, operation.name, output.name, value, output.type, operation.reads))

    def _settled(self, operation: Operation, output: Output, value: Any) -> Any:
        """A kernel's result with the declared dtype, after the strict check of its shape."""
        kind = output.type
        if not isinstance(kind, TensorType) or kind.dtype is Dtype.STRING:
            return value
        if type(value) is not np.ndarray:
            value = np.asarray(value)
        if value.shape != output.sizes and not kind.admits(value.shape):
            raise self._problem(
                operation,
                f"declares the result {kind}, which has shape {list(value.shape)}; Core ML refuses such a program",
            )
        storage = kind.dtype.storage
        if value.dtype != storage:
            value = value.astype(storage)
        return round_half(value) if output.rounds else value

    def _narrowed(self, value: Any, kind: ValueType) -> Any:
        """A value as the program declares it, for those outside."""
        narrow = self.precision is Precision.DECLARED and isinstance(kind, TensorType) and kind.dtype is Dtype.FP16
        return value.astype(np.float16) if narrow else value

    def _checked(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[Any]]:
        known = {f.name for f in self.inputs}
        if set(inputs) != known:
            raise InputError(
                Problem(
                    str(self.path),
                    f"was given the inputs {', '.join(sorted(inputs)) or 'none'}; it wants {', '.join(sorted(known))}.",
                )
            )
        out: dict[str, NDArray[Any]] = {}
        lengths: dict[str, int] = {}
        for feature in self.inputs:
            value = np.asarray(inputs[feature.name])
            if not feature.allows(value.shape):
                raise InputError(
                    Problem(
                        str(self.path),
                        f"input {feature.name!r} of shape {list(value.shape)}; allowed: {feature.allowed}.",
                    )
                )
            out[feature.name] = self._as_declared(feature, value)
            if (feature.shapes or feature.ranges) and value.ndim == 2:
                lengths[feature.name] = value.shape[1]
        if len(set(lengths.values())) > 1:
            raise InputError(Problem(str(self.path), f"inputs of different lengths: {lengths}."))
        return out

    def _as_declared(self, feature: Feature, value: NDArray[Any]) -> NDArray[Any]:
        dtype = feature.dtype
        assert dtype is not None
        kinds = "fiub" if dtype.is_float else "iub"
        if value.dtype.kind not in kinds:
            raise InputError(Problem(str(self.path), f"input {feature.name!r} of {value.dtype}; {dtype} is expected."))
        if not dtype.is_float and value.size:
            low, high = _RANGES[dtype]
            if int(value.min()) < low or int(value.max()) > high:
                raise InputError(Problem(str(self.path), f"input {feature.name!r} does not fit {dtype}."))
        if dtype is Dtype.FP16 and self.precision is Precision.DECLARED:
            return value.astype(np.float16).astype(np.float32)
        return value.astype(dtype.storage)

    def _problem(self, operation: Operation, what: str) -> InputError:
        return InputError(Problem(f"{self._where} {operation.type} {operation.name!r}", f"{what}."))
