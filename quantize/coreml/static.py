"""a8w8 for Core ML: w8, and the inputs of linear layers in int8 with ranges measured by the project's evaluator.

coremltools measures ranges by running the model, which needs macOS, and keeps those of the last row only. The evaluator's
ranges take the place of its own; ranges have an offset, which halves the error of symmetric ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families.ranges import Range
from pocketbert.core.models.learned_ranges import LearnedRanges
from pocketbert.core.types import Format, Role, Scheme
from pocketbert.quantize.calibration import Ranges
from pocketbert.quantize.coreml.quantizer import W8_SIMULATION, linear_w8, write_smaller
from pocketbert.quantize.coreml.reading import FLOATS, names_of, oldest_ios
from pocketbert.quantize.plan import Plan
from pocketbert.quantize.table import WEIGHTED, SchemeRow, Second, register_scheme
from pocketbert.quantize.weights import ExpectedWeights, Wanted
from pocketbert.runtime.coreml.evaluator import Evaluator, Step
from pocketbert.runtime.coreml.package import read_package
from pocketbert.runtime.coreml.stored import StoredTensors
from pocketbert.runtime.padding import Padding

_IOS = 17
_MEASURED = {"linear": -2, "conv": -1}
"""Operations whose inputs and results have ranges, and their axis of tokens."""

_FOLLOWING = ("leaky_relu", "tanh", "scaled_tanh", "sigmoid", "hard_sigmoid", "relu", "relu6")


def _write(source: Path, destination: Path, plan: Plan) -> None:
    """Write a copy with int8 weights and activations; nothing is written where a range cannot be measured.

    Raises:
        MissingBackendError: If coremltools is not installed.
        InputError: If there are no rows that the package takes, or it is for iOS 16.
        GateError: If the range of a tensor could not be measured.
    """
    if oldest_ios(source) < _IOS:
        what = f"is for iOS {oldest_ios(source)}; activations in 8 bits need iOS {_IOS}."
        raise InputError(Problem(str(source), what, "Choose the scheme w8, or export with --ios 17 or 18."))
    ranges = {**_measure(source, plan, destination.name), **_learned(source, plan.learned)}
    weights, others = linear_w8(source, plan.left), _others(source, plan)

    def compress(model: Any) -> Any:
        import coremltools.optimize as cto
        from coremltools.optimize.coreml import _post_training_quantization as own

        how = cto.coreml.experimental.OpActivationLinearQuantizerConfig(mode="linear")
        config = cto.coreml.OptimizationConfig(
            op_type_configs=dict.fromkeys(_MEASURED, how), op_name_configs=dict.fromkeys(others, None)
        )
        statistics = {name: {"rmin": low, "rmax": high} for name, (low, high) in ranges.items()}
        with mock.patch.object(own, "_get_activation_calibration_stats", lambda *_: statistics):
            model = cto.coreml.experimental.linear_quantize_activations(model, config, [])
        return weights(model)

    write_smaller(source, destination, compress)


def _others(source: Path, plan: Plan) -> list[str]:
    """Name the operations whose weights have another scheme, or stay as they were: what these read and make stays float."""
    weights = names_of(source, plan.left.union(*plan.seconds.values()))
    return [
        operation.attributes["name"].immediateValue.tensor.strings.values[0]
        for operation, weight in _products(source)
        if weight in weights
    ]


def _products(source: Path) -> Iterator[tuple[Any, str]]:
    """The measured operations, each with the name of its weight."""
    for operation in read_package(source).block.operations:
        if operation.type in _MEASURED:
            yield operation, operation.inputs["weight"].arguments[0].name


def _measure(source: Path, plan: Plan, title: str) -> dict[str, Range]:
    """Run the plan's rows, each at the shortest length that takes it, and choose ranges of what real tokens have."""
    evaluator = Evaluator(source)
    axes = _axes(source)
    ranges, padding = Ranges(axes, plan.calibration, plan.steps), Padding(0, plan.padding_side)
    for row in plan.rows() if plan.rows is not None else ():
        tokens = row["input_ids"].shape[1]
        length = next((n for n in evaluator.lengths if n >= tokens), None) if evaluator.lengths else tokens
        if length is None:
            continue
        real = range(length)[padding.place(tokens, length)]
        found: dict[str, NDArray[Any]] = {}

        def keep(step: Step, found: dict[str, NDArray[Any]] = found, size: int = length, real: range = real) -> None:
            if step.output in axes and isinstance(step.value, np.ndarray):
                axis = axes[step.output]
                has_tokens = step.value.ndim >= -axis and step.value.shape[axis] == size
                found[step.output] = step.value.take(real, axis) if has_tokens else step.value

        wide = padding.widened({f.name: row[f.name].astype(np.int32) for f in evaluator.inputs}, length)
        evaluator.run(wide, keep)
        ranges.add(found)
    return ranges.chosen(title)


def _learned(source: Path, learned: LearnedRanges | None) -> dict[str, Range]:
    """Find the ranges that training learned for what linear layers read and make; none without any.

    Where an activation function follows, coremltools quantizes its result, whose range is measured.
    """
    out: dict[str, Range] = {}
    if learned is None:
        return out
    stored = dict(StoredTensors(source).arrays())
    for operation, weight in _products(source):
        if weight in stored:
            own = learned.of(stored[weight])
            ends = (operation.inputs["x"].arguments[0].name, own.inputs), (operation.outputs[0].name, own.outputs)
            out.update({name: found for name, found in ends if found is not None})
    return out


def _axes(source: Path) -> Mapping[str, int]:
    """Names of what linear layers read and write, each with its axis of tokens.

    Where an activation function follows, coremltools quantizes its result instead.
    """
    axes: dict[str, int] = {}
    made: dict[str, int] = {}
    for operation in read_package(source).block.operations:
        read = operation.inputs["x"].arguments[0].name if "x" in operation.inputs else ""
        written = operation.outputs[0].name if operation.outputs else ""
        if operation.type in _MEASURED:
            axes[read] = axes[written] = made[written] = _MEASURED[operation.type]
        elif operation.type in _FOLLOWING and read in made:
            axes[written] = made[read]
    return axes


_W8 = Wanted("int8", dequantized=True, per_channel=True)
register_scheme(
    SchemeRow(
        Format.COREML,
        Scheme.A8W8,
        ExpectedWeights(replace(_W8, bits=8), _W8, FLOATS),
        _write,
        simulation=replace(W8_SIMULATION, static=True, outputs=True),
        selective=True,
        seconds={Scheme.W8: Second(WEIGHTED, ExpectedWeights(_W8, _W8, FLOATS), W8_SIMULATION)},
        usual={Role.FFN_DOWN: Scheme.W8},
    )
)
