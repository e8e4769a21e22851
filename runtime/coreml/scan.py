"""Run a Core ML package and compare the results inside it.

`overflow_scan` finds results that fp16 cannot hold, `activation_statistics` measures the ranges of all results, and
`layer_differences` finds the operations where rounding or compression changes the results most.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pocketbert.runtime.coreml.evaluator import Evaluator, EvaluatorPrecision, Result, Step, use_one_blas_thread
from pocketbert.runtime.coreml.types import LARGEST_FP16, SMALLEST_FP16, Dtype, TensorType

Inputs = Mapping[str, NDArray[np.generic]]


@dataclass
class Range:
    """The largest magnitude of one operation's result over all runs, computed in fp32.

    Attributes:
        op_type: MIL name of the operation.
        op_name: The operation's own name.
        output: Name of the result.
        declared: The declared dtype of the result.
        largest: Largest finite magnitude.
        underflow: Share of nonzero numbers that are below fp16's smallest one.
        broken: Number of NaN and infinite elements.
        broken_declared: Number of NaN and infinite elements if results are rounded as declared.
    """

    op_type: str
    op_name: str
    output: str
    declared: Dtype
    largest: float = 0.0
    underflow: float = 0.0
    broken: int = 0
    broken_declared: int = 0
    _nonzero: int = field(default=0, repr=False)
    _below: int = field(default=0, repr=False)

    @property
    def headroom(self) -> float:
        """Ratio of the largest fp16 number to the largest magnitude; infinite if all numbers are zeros."""
        return LARGEST_FP16 / self.largest if self.largest else float("inf")

    @property
    def overflows(self) -> bool:
        """Whether fp16 cannot hold the result: too large, or NaN or infinite in fp32 or with the declared rounding."""
        narrow = self.declared is Dtype.FP16 and self.largest > LARGEST_FP16
        return narrow or self.broken > 0 or self.broken_declared > 0

    def add(self, value: NDArray[np.generic]) -> None:
        """Update the range with the result of one more run."""
        magnitude = np.abs(np.asarray(value, np.float32))
        if not magnitude.size:
            return
        largest = float(magnitude.max())  # NaN or infinite if any number is
        if not math.isfinite(largest):
            finite = magnitude[np.isfinite(magnitude)]
            self.broken += magnitude.size - finite.size
            magnitude, largest = finite, float(finite.max(initial=0.0))
        self.largest = max(self.largest, largest)
        nonzero = int(np.count_nonzero(magnitude))
        self._nonzero += nonzero
        self._below += int(np.count_nonzero(magnitude < SMALLEST_FP16)) - (magnitude.size - nonzero)
        self.underflow = self._below / self._nonzero if self._nonzero else 0.0


@dataclass(frozen=True)
class Scan:
    """The ranges of all floating-point results of a package.

    Attributes:
        ranges: Ranges of the floating-point results, in the program's order.
        outputs: For each input that was run, the outputs by name, computed with the declared rounding.
    """

    ranges: tuple[Range, ...]
    outputs: Sequence[Mapping[str, Result]]

    @property
    def rows(self) -> int:
        """Number of inputs that were run."""
        return len(self.outputs)

    @property
    def first(self) -> Range | None:
        """The first result that fp16 cannot hold, from which later ones may follow; None if fp16 holds all."""
        return next((r for r in self.ranges if r.overflows), None)

    @property
    def largest(self) -> Range | None:
        """The result with the largest magnitude; None if there are no results."""
        return max(self.ranges, key=lambda r: r.largest, default=None)

    @property
    def summary(self) -> str:
        """One line of text: the first result that fp16 cannot hold, or else the largest magnitude."""
        first, top = self.first, self.largest
        if first is not None:
            what = f"reaches {first.largest:.4g}" if first.largest > LARGEST_FP16 else "is NaN or infinite in places"
            return f"{first.op_type} {first.output!r} {what}; the largest fp16 number is {LARGEST_FP16:.0f}"
        if top is None:
            return "no floating-point results"
        where = f"{top.op_type} {top.output!r}"
        return f"largest magnitude {top.largest:.4g} ({where}), {top.headroom:.3g} times below the largest fp16 number"


@dataclass
class Statistic:
    """Minimum, maximum and mean magnitude of one operation's result over all inputs.

    Attributes:
        op_type: MIL name of the operation.
        output: Name of the result.
        minimum: Smallest element.
        maximum: Largest element.
        mean_abs: Mean magnitude.
        count: Number of elements seen.
    """

    op_type: str
    output: str
    minimum: float = float("inf")
    maximum: float = float("-inf")
    mean_abs: float = 0.0
    count: int = 0

    def add(self, value: NDArray[np.generic]) -> None:
        """Update the statistics with the result of one more run."""
        array = np.asarray(value, np.float32)
        if not array.size:
            return
        self.minimum = min(self.minimum, float(array.min()))
        self.maximum = max(self.maximum, float(array.max()))
        self.count += array.size
        # the mean moves by what is new; no sum grows with the number of inputs
        self.mean_abs += (float(np.abs(array).mean(dtype=np.float64)) - self.mean_abs) * array.size / self.count


@dataclass(frozen=True)
class Difference:
    """How much rounding or compression changes one operation's result.

    Attributes:
        op_type: MIL name of the operation.
        op_name: The operation's own name.
        output: Name of the result.
        relative: Norm of the difference, over the norm of the reference.
        largest: Largest absolute difference.
        growth: Error added by the operation: `relative` minus the largest one among its arguments.
    """

    op_type: str
    op_name: str
    output: str
    relative: float
    largest: float
    growth: float


def overflow_scan(path: Path, inputs: Iterable[Inputs]) -> Scan:
    """Run a Core ML package twice, in fp32 and rounded as declared, and return the fp32 range of each float result.

    The ranges tell which results fp16 cannot hold. The second run rounds each result to the dtype that the package declares for it;
    its NaN and infinite numbers are counted with each range, and its outputs are returned too.

    Args:
        path: The package.
        inputs: The inputs of each run, arrays by name.

    Raises:
        InputError: If the package or an input is invalid.
    """
    feeds = list(inputs)
    ranges: dict[str, Range] = {}
    broken = Counter[str]()

    def add_range(step: Step) -> None:
        """Update the range of a float result with its value."""
        if isinstance(step.type, TensorType) and step.type.dtype.is_float:
            result_range = ranges.setdefault(
                step.output, Range(step.op_type, step.op_name, step.output, step.type.dtype)
            )
            result_range.add(np.asarray(step.value))

    def count_broken(step: Step) -> None:
        if isinstance(step.type, TensorType) and step.type.dtype.is_float:
            value = np.asarray(step.value)
            broken[step.output] += value.size - int(np.count_nonzero(np.isfinite(value)))

    def run_all(precision: EvaluatorPrecision, trace: Callable[[Step], None]) -> list[dict[str, Result]]:
        """Run the package on all inputs with one precision, and return the outputs of each."""
        evaluator = Evaluator(path, precision)
        return [evaluator.run(one, trace) for one in feeds]

    with use_one_blas_thread(), ThreadPoolExecutor(1) as beside:
        in_fp32 = beside.submit(run_all, EvaluatorPrecision.FP32, add_range)
        declared = run_all(EvaluatorPrecision.DECLARED, count_broken)
        in_fp32.result()
    for name, found in ranges.items():
        found.broken_declared = broken[name]
    return Scan(tuple(ranges.values()), declared)


def activation_statistics(
    path: Path, inputs: Iterable[Inputs], precision: EvaluatorPrecision = EvaluatorPrecision.DECLARED
) -> dict[str, Statistic]:
    """Measure minimum, maximum and mean magnitude of all float results of a package.

    Args:
        path: The package.
        inputs: The inputs of each run, arrays by name.
        precision: Number type to which intermediate results are rounded.

    Returns:
        Statistics by name of the result, in the program's order.

    Raises:
        InputError: If the package or an input is invalid.
    """
    evaluator = Evaluator(path, precision)
    out: dict[str, Statistic] = {}

    def add_statistic(step: Step) -> None:
        if isinstance(step.type, TensorType) and step.type.dtype.is_float:
            out.setdefault(step.output, Statistic(step.op_type, step.output)).add(np.asarray(step.value))

    for one in inputs:
        evaluator.run(one, add_statistic)
    return out


def layer_differences(path: Path, inputs: Inputs, other: Path | None = None) -> list[Difference]:
    """Compare the float results of a package's operations with those in fp32; return how much rounding or compression changes each.

    Args:
        path: The package, which is run with its declared precision.
        inputs: The inputs of one run, arrays by name.
        other: The package with which it is compared, which is run in fp32; results are matched by name. Default: `path`
            itself.

    Returns:
        Differences of results that both packages have in the same shape; first those at which the relative error grows
        most.

    Raises:
        InputError: If a package or an input is invalid.
    """
    reference: dict[str, NDArray[np.float32]] = {}
    out: list[Difference] = []
    errors: dict[str, float] = {}

    def keep_reference(step: Step) -> None:
        if isinstance(step.type, TensorType) and step.type.dtype.is_float:
            reference[step.output] = np.array(step.value, np.float32)

    def compare(step: Step) -> None:
        """Append the difference between a result and the reference result of the same name."""
        expected = reference.pop(step.output, None)
        if expected is None:
            return
        actual = np.asarray(step.value, np.float32)
        if actual.shape != expected.shape:
            return
        difference = actual - expected
        norm = float(np.linalg.norm(expected))
        error = float(np.linalg.norm(difference))
        relative = error / norm if norm else (float("inf") if error else 0.0)
        errors[step.output] = relative
        growth = relative - max((errors.get(name, 0.0) for name in step.reads), default=0.0)
        largest = float(np.abs(difference).max()) if difference.size else 0.0
        out.append(Difference(step.op_type, step.op_name, step.output, relative, largest, growth))

    Evaluator(other or path, EvaluatorPrecision.FP32).run(inputs, keep_reference)
    Evaluator(path, EvaluatorPrecision.DECLARED).run(inputs, compare)
    return sorted(out, key=lambda d: -d.growth)
