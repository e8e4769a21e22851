"""Compute a Core ML package on the CPU, in numpy, with the precision that its program declares.

`Evaluator` reads the package when it is created; `Evaluator.run` checks the inputs, runs the operations in order and
returns the outputs. A `trace` function receives every result as a `Step`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.runtime.coreml.package import Feature, read_description, read_package
from pocketbert.runtime.coreml.program import Operation, Output, read_program
from pocketbert.runtime.coreml.types import RUN_BYTES, Dtype, TensorType, ValueType, convert_to_half, round_half

_RANGES = {Dtype.INT8: (-128, 127), Dtype.INT32: (-(2**31), 2**31 - 1)}
"""Smallest and largest number of the integer types that an input may have."""
Result = NDArray[np.generic] | str | dict[str, float]


class EvaluatorPrecision(StrEnum):
    """The number type to which an `Evaluator` rounds floating-point results."""

    DECLARED = "declared"
    """The declared types: results declared fp16 are rounded to fp16, sums inside an operation are not."""
    FP32 = "fp32"
    """No rounding: shows the error of the weights alone."""


@dataclass(frozen=True)
class Step:
    """One result of an operation, passed to the `trace` function right after it was computed.

    Attributes:
        op_type: MIL name of the operation.
        op_name: The operation's own name.
        output: Name of the result.
        value: The result in its declared dtype (float32 with `EvaluatorPrecision.FP32`); a text or dictionary for classify.
        type: Type that the program declares for the result.
        reads: Names of the values that the operation read, without constants.
    """

    op_type: str
    op_name: str
    output: str
    value: Result
    type: ValueType
    reads: tuple[str, ...]


def use_one_blas_thread() -> AbstractContextManager[object]:
    """Return a context in which each matrix product is computed by one thread, so that several rows can run at once.

    OpenBLAS would start a thread per core for every small product, and these wait for each other longer than they
    compute: on two busy cores a row of 32 tokens through 3 layers took 90 ms of CPU time with two threads, and 9 ms
    with one. Without the library threadpoolctl the context does nothing.
    """
    pools = _find_thread_pools()
    return nullcontext() if pools is None else pools.limit(limits=1, user_api="blas")


@cache
def _find_thread_pools() -> Any:
    """Return the controller of the thread pools in this process; None if threadpoolctl is not installed."""
    try:
        return importlib.import_module("threadpoolctl").ThreadpoolController()
    except ImportError:
        return None


class Evaluator:
    """Computes an ``.mlpackage`` in numpy, on any operating system.

    Rank, sizes and dtype of tensor results are compared with the declared ones, as Core ML's loader does: dtypes when the
    program is read, shapes when an operation has run.

    Args:
        path: The package.
        precision: The number type to which results are rounded.

    Attributes:
        path: The package.
        precision: The number type to which results are rounded.
        inputs: Inputs that an app must pass.
        outputs: Outputs that an app gets back.
        lengths: Sequence lengths that the model takes, ascending; empty if it takes a range of lengths.
        length_range: Smallest and largest length, if the model takes a range of lengths; -1 for no upper bound. Else
            None.
        labels: Label names of a classifier; empty otherwise.
        metadata: The model's own keys, and ``author``, ``license``, ``shortDescription``, ``versionString``.
        specification: Version of the model format.

    Raises:
        InputError: If the package is damaged, contradicts itself, or has operations that this evaluator does not have.
        MissingBackendError: If protobuf is not installed.
    """

    def __init__(self, path: Path, precision: EvaluatorPrecision = EvaluatorPrecision.DECLARED) -> None:
        self.path, self.precision = path, precision
        package = read_package(path)
        self._model_path = package.model_path
        self._program = read_program(package, precision is EvaluatorPrecision.DECLARED)
        description = read_description(package)
        self.inputs, self.outputs = description.inputs, description.outputs
        self.lengths, self.length_range = description.lengths, description.length_range
        self.metadata, self.specification = description.metadata, description.specification
        self.labels = self._program.labels

    def run(
        self, inputs: Mapping[str, NDArray[np.generic]], trace: Callable[[Step], None] | None = None
    ) -> dict[str, Result]:
        """Run the program once on one set of inputs.

        Args:
            inputs: Arrays by input name, of a shape and dtype that the model takes; integers may have any integer dtype. Other
                names are an error.
            trace: Function called with every intermediate result, in order; it must not change them.

        Returns:
            Outputs by name in their declared dtype; a predicted label as text, label probabilities as a dictionary.

        Raises:
            InputError: If the inputs do not fit, or an operation fails or computes another shape than declared.
        """
        program = self._program
        values: list[Any] = [None] * program.size
        bytes_in_use = 0
        for slot, value in program.preset.items():
            values[slot] = value
        for name, value in self._convert_inputs(inputs).items():
            values[program.inputs[name][1]] = value
        with np.errstate(all="ignore"):
            for operation in program.operations:
                try:
                    bytes_in_use += self._run_operation(operation, values)
                    if bytes_in_use > RUN_BYTES:
                        raise MemoryError
                except InputError:
                    raise
                except MemoryError as error:
                    raise self._problem(operation, "takes more memory than there is, or may be taken") from error
                except Exception as error:  # kernels meet any nonsense that a file may hold
                    raise self._problem(operation, str(error) or type(error).__name__) from error
                if trace is not None:
                    for output in operation.outputs:
                        value = self._in_declared_dtype(values[output.slot], output.type)
                        trace(Step(operation.type, operation.name, output.name, value, output.type, operation.reads))
                for slot in operation.free:
                    bytes_in_use -= getattr(values[slot], "nbytes", 0)
                    values[slot] = None
        return {
            name: self._in_declared_dtype(values[slot], program.types[name]) for name, slot in program.outputs.items()
        }

    def _run_operation(self, operation: Operation, values: list[Any]) -> int:
        """Run one operation, and store its results in `values` at their slots (indices); return the results' bytes."""
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
        result_bytes = 0
        for output, result in zip(operation.outputs, results, strict=True):
            value = self._checked_result(operation, output, result)
            values[output.slot] = value
            result_bytes += getattr(value, "nbytes", 0)
        return result_bytes

    def _checked_result(self, operation: Operation, output: Output, value: Any) -> Any:
        """Check a tensor result's shape against the declared one, and return it in the dtype that stores it.

        If the operation rounds, results declared fp16 have fp16's precision, in float32. Texts are returned unchanged.
        """
        kind = output.type
        if not isinstance(kind, TensorType) or kind.dtype is Dtype.STRING:
            return value
        if type(value) is not np.ndarray:
            value = np.asarray(value)
        if value.shape != output.sizes and not kind.admits(value.shape):
            shape = list(value.shape)
            what = f"declares the result {kind}, which has shape {shape}; Core ML refuses such a program"
            raise self._problem(operation, what)
        storage = kind.dtype.storage
        if value.dtype != storage:
            value = value.astype(storage)
        return round_half(value) if output.rounds else value

    def _in_declared_dtype(self, value: Any, kind: ValueType) -> Any:
        """Convert a value to its declared dtype: fp16 numbers are kept in float32 while the program runs."""
        narrow = (
            self.precision is EvaluatorPrecision.DECLARED and isinstance(kind, TensorType) and kind.dtype is Dtype.FP16
        )
        return convert_to_half(value) if narrow else value

    def _convert_inputs(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[Any]]:
        """Check the inputs, and return them in the number types that the program computes with.

        Integers get their declared dtype. Inputs that are declared fp16 become float32, and are rounded to
        fp16 unless the evaluator was asked for `EvaluatorPrecision.FP32`.

        Raises:
            InputError: If names or shapes are not the declared ones, inputs differ in length, floats are
                given for integers, or an integer does not fit its declared dtype.
        """
        names = {f.name for f in self.inputs}
        if set(inputs) != names:
            received, expected = ", ".join(sorted(inputs)) or "none", ", ".join(sorted(names))
            raise InputError(Problem(str(self.path), f"was given the inputs {received}; it wants {expected}."))
        out: dict[str, NDArray[Any]] = {}
        lengths: dict[str, int] = {}
        for feature in self.inputs:
            value = np.asarray(inputs[feature.name])
            if not feature.allows(value.shape):
                what = f"input {feature.name!r} of shape {list(value.shape)}; allowed: {feature.allowed}."
                raise InputError(Problem(str(self.path), what))
            out[feature.name] = self._convert_input(feature, value)
            if (feature.shapes or feature.ranges) and value.ndim == 2:
                lengths[feature.name] = value.shape[1]
        if len(set(lengths.values())) > 1:
            raise InputError(Problem(str(self.path), f"inputs of different lengths: {lengths}."))
        return out

    def _convert_input(self, feature: Feature, value: NDArray[Any]) -> NDArray[Any]:
        """Convert one input to its declared dtype.

        Raises InputError for floats if integers are declared, and for integers that the declared dtype cannot hold.
        """
        dtype = feature.dtype
        assert dtype is not None
        kinds = "fiub" if dtype.is_float else "iub"
        if value.dtype.kind not in kinds:
            raise InputError(Problem(str(self.path), f"input {feature.name!r} of {value.dtype}; {dtype} is expected."))
        if not dtype.is_float and value.size:
            low, high = _RANGES[dtype]
            if int(value.min()) < low or int(value.max()) > high:
                raise InputError(Problem(str(self.path), f"input {feature.name!r} does not fit {dtype}."))
        if dtype is Dtype.FP16 and self.precision is EvaluatorPrecision.DECLARED:
            return value.astype(np.float16).astype(np.float32)
        return value.astype(dtype.storage)

    def _problem(self, operation: Operation, what: str) -> InputError:
        return InputError(Problem(f"{self._model_path} {operation.type} {operation.name!r}", f"{what}."))
