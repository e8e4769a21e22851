"""Static int8 for TFLite (scheme ``a8w8``): matrix products in int8 with ranges measured on texts, all else in fp32.

XNNPACK then runs the whole graph in one partition. No range includes the attention mask and its constant 1e4, because
FULLY_CONNECTED is the only operator that is quantized. Its results are int8, too, which costs accuracy compared with
dynamic int8. Most of it is lost in the second projection of the feed-forward part, whose products are dynamic unless a
recipe chooses otherwise.

`MeasuredModel` measures the ranges and passes them to ai-edge-quantizer; `pocketbert.quantize.tflite.npu` extends it to
whole graphs.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.disk.ownership import temporary_folder
from pocketbert.core.errors import MissingBackendError
from pocketbert.core.families.weight_records import LearnedRanges, Range
from pocketbert.core.host.quiet import silence_output
from pocketbert.core.host.system import version_of
from pocketbert.core.model_files import dump_model, load_model, tflite_schema
from pocketbert.core.types import Format, Role, Scheme
from pocketbert.quantize.calibration import Ranges
from pocketbert.quantize.rounding import Simulation, per_row
from pocketbert.quantize.table import WEIGHTED_ROLES, Plan, SchemeRow, SecondScheme, register_scheme
from pocketbert.quantize.tflite.quantizer import (
    DYNAMIC_SIMULATION,
    INT8_WEIGHTS,
    find_results_reading,
    leave_float,
    rename_results,
    result_pattern,
)
from pocketbert.quantize.tflite.rewrites import operator_code
from pocketbert.quantize.weights import ExpectedForm, ExpectedWeights
from pocketbert.runtime.tflite import Padding, TflitePredictor

if TYPE_CHECKING:
    from ai_edge_quantizer.qtyping import ModelQuantizationRecipe

_MEASURED = ("FULLY_CONNECTED",)
"""Operators that get ranges."""
Place = tuple[int, bool, int]
"""A tensor by its use: number of an operator, whether that reads it, and at which of its places."""


def _write(source: Path, destination: Path, plan: Plan) -> None:
    """Write a static int8 copy of an fp32 TFLite file. Nothing is written if a range cannot be measured.

    Raises:
        MissingBackendError: If ai-edge-quantizer is not installed.
        InputError: If no calibration row fits the lengths of the file.
        GateError: If the range of a tensor could not be measured.
    """
    if version_of("ai-edge-quantizer") is None:
        raise MissingBackendError("ai-edge-quantizer", "pip install 'pocketbert[tflite]'")
    model = MeasuredModel(source.read_bytes(), _MEASURED)
    with temporary_folder(destination.parent) as folder:
        ranges = model.measure(plan, folder / "measured.tflite", destination.name)
        renamed = folder / "renamed.tflite"
        renamed.write_bytes(model.content)
        with silence_output():
            from ai_edge_quantizer.quantizer import Quantizer

            quantizer = Quantizer(str(renamed))
            quantizer.load_quantization_recipe(_quantizer_recipe(model.content, plan))
            content = bytes(quantizer.quantize(model.statistics(ranges)).quantized_model)
    destination.write_bytes(content)


def _quantizer_recipe(content: bytes | bytearray, plan: Plan) -> ModelQuantizationRecipe:
    """Build the ai-edge-quantizer recipe for static int8 products and int8 embedding tables.

    Products that the plan makes dynamic, and products and tables that it leaves float, are excepted.
    """
    from ai_edge_quantizer.qtyping import TFLOperationName
    from ai_edge_quantizer.recipe_manager import RecipeManager

    manager = RecipeManager()
    manager.add_static_config(".*", TFLOperationName.FULLY_CONNECTED, activation_num_bits=8, weight_num_bits=8)
    manager.add_dynamic_config(".*", TFLOperationName.EMBEDDING_LOOKUP, num_bits=8)
    for result in find_results_reading(content, plan.seconds.get(Scheme.INT8, frozenset())):
        manager.add_dynamic_config(result_pattern(result), TFLOperationName.FULLY_CONNECTED, num_bits=8)
    leave_float(manager, find_results_reading(content, plan.left))
    return manager.get_quantization_recipe()


class MeasuredModel:
    """A TFLite file whose activation ranges are measured.

    Its tensors have unique names, by which the quantizer finds their ranges.

    Args:
        content: The file.
        measured: Kinds of operators whose inputs and results get ranges.

    Attributes:
        content: The file with unique names.
    """

    def __init__(self, content: bytes | bytearray, measured: Container[str]) -> None:
        self._measured = measured
        self._model, self._schema = load_model(content), tflite_schema()
        self._names = {v: k for k, v in vars(self._schema.BuiltinOperator).items() if not k.startswith("_")}
        rename_results(self._model)
        self.content = dump_model(self._model)

    def kind(self, operator: Any) -> str:
        """Return the kind of an operator, e.g. ``FULLY_CONNECTED``."""
        return str(self._names[operator_code(self._model, operator)])

    def measure(self, plan: Plan, path: Path, title: str) -> dict[Place, Range]:
        """Measure the range of every selected tensor on the calibration rows.

        Tensors in `known_ranges` and `copied` get their ranges from there instead.

        Each row runs in the shortest signature that it fits into, and values at padding are cut off: with them, the
        smallest number after the first norm of a trained model was -7.0 instead of -2.7. Rows that are too long for
        every signature are left out.

        Args:
            plan: Calibration rows, method, and the ranges that training learned, which replace measured ones.
            path: Where a copy of the file is written that has the measured tensors as outputs.
            title: Name of the quantized file, for error messages.

        Returns:
            The range (low, high) of each tensor, by its place: the operator that reads or writes it, and its index
            there.

        Raises:
            InputError: If no calibration row fits the lengths of the file.
            GateError: If the range of a tensor could not be measured.
        """
        path.write_bytes(self._with_outputs())
        predictor = TflitePredictor(path)
        known, copied = self.known_ranges(predictor), self.copied()
        axes = {p: axes for p, axes in self._token_axes().items() if p not in known and p not in copied}
        ranges, padding = Ranges(map(place_title, axes), plan.calibration, plan.steps), Padding(0, plan.padding_side)
        for row in plan.rows() if plan.rows is not None else ():
            tokens = row[predictor.inputs[0]].shape[1]
            length = next((n for n in predictor.lengths if n >= tokens), None)
            if length is None:
                continue
            values = predictor.run(padding.widened({name: row[name] for name in predictor.inputs}, length))
            titles = {place: place_title(place) for place in axes}
            missing, left = length - tokens, plan.pads_left
            ranges.add(
                {titles[p]: _cut(values[titles[p]], token_axes, missing, left) for p, token_axes in axes.items()}
            )
        chosen = ranges.chosen(title)
        measured = known | {place: chosen[place_title(place)] for place in axes}
        for place in sorted(copied):  # in the order of operators: one may be a copy of another
            measured[place] = measured[copied[place]]
        return measured | {place: own for place, own in self.learned(plan.learned).items() if place in measured}

    def _with_outputs(self) -> bytearray:
        """Return the bytes of a copy of the model with all measured tensors as additional outputs."""
        model = load_model(self.content)
        for signature in model.signatureDefs:
            graph = model.subgraphs[signature.subgraphIndex]
            outputs = [int(i) for i in graph.outputs]
            for place, index in self._places(graph):
                entry = self._schema.TensorMapT()
                entry.name, entry.tensorIndex = place_title(place).encode(), index
                signature.outputs.append(entry)
                outputs += [] if index in outputs else [index]
            graph.outputs = outputs
        return dump_model(model)

    def _places(self, graph: Any) -> Iterator[tuple[Place, int]]:
        """Yield (place, tensor number) of each activation to measure.

        A place is (operator number, whether the operator reads the tensor, index among its inputs or outputs).
        """
        for at, operator in enumerate(graph.operators):
            if self.kind(operator) not in self._measured:
                continue
            for reads, indices in ((True, operator.inputs), (False, operator.outputs)):
                for place, index in enumerate(indices):
                    if index >= 0 and self._is_computed(graph.tensors[index]):
                        yield (at, reads, place), int(index)

    def _is_computed(self, tensor: Any) -> bool:
        data = self._model.buffers[tensor.buffer].data
        return tensor.type == self._schema.TensorType.FLOAT32 and (data is None or not len(data))

    def _token_axes(self) -> dict[Place, list[int]]:
        """Return the axes of each measured tensor that hold tokens: those whose size differs between two signatures.

        With a single signature it is the last axis but one, if its size is the signature's length, and else none.
        """
        shapes: dict[int, dict[Place, tuple[int, ...]]] = {}
        for signature in self._model.signatureDefs:
            graph = self._model.subgraphs[signature.subgraphIndex]
            length = int(graph.tensors[signature.inputs[0].tensorIndex].shape[1])
            shapes[length] = {
                place: tuple(int(n) for n in graph.tensors[index].shape) for place, index in self._places(graph)
            }
        (length, first), *others = shapes.items()
        axes = {}
        for place, shape in first.items():
            if others:
                other = others[0][1][place]
                axes[place] = [i for i, (n, m) in enumerate(zip(shape, other, strict=True)) if n != m]
            else:
                axes[place] = [len(shape) - 2] if len(shape) > 1 and shape[-2] == length else []
        return axes

    def known_ranges(self, predictor: TflitePredictor) -> dict[Place, Range]:
        """Return, by place, ranges that are not measured on calibration rows.

        This class has none; subclasses may override this.
        """
        return {}

    def copied(self) -> dict[Place, Place]:
        """Return the places (uses of a tensor) that get the range of another place, which is the value.

        This class has none; subclasses may override this.
        """
        return {}

    def learned(self, learned: LearnedRanges | None) -> dict[Place, Range]:
        """Return the ranges that training learned, by place.

        These are the places of inputs and results of matrix products with stored weights.
        """
        ranges: dict[Place, Range] = {}
        if learned is None:
            return ranges
        graph = self._model.subgraphs[0]
        for at, reads, which in {place for place, _ in self._places(graph)}:
            if self.kind(graph.operators[at]) != "FULLY_CONNECTED":
                continue
            weight = graph.tensors[int(graph.operators[at].inputs[1])]
            data = self._model.buffers[weight.buffer].data
            if data is None or not len(data) or weight.type != self._schema.TensorType.FLOAT32:
                continue
            numbers = np.frombuffer(bytes(data), np.float32).reshape([int(n) for n in weight.shape])
            product = learned.of(numbers)
            known = product.inputs if reads else product.outputs
            if known is not None:
                ranges[at, reads, which] = known
        return ranges

    def statistics(self, ranges: Mapping[Place, Range]) -> dict[str, dict[str, NDArray[np.float32]]]:
        """Return the ranges as ai-edge-quantizer reads them: {tensor name: {"min", "max"}} for all signatures."""
        statistics = {}
        for graph in self._model.subgraphs:
            for place, index in self._places(graph):
                tensor = graph.tensors[index]
                low, high = (np.full([1] * len(tensor.shape), end, np.float32) for end in ranges[place])
                statistics[tensor.name.decode()] = {"min": low, "max": high}
        return statistics


def place_title(place: Place) -> str:
    """Describe a place (operator, whether it reads, index) in words. The measured copy has an output of this name."""
    at, reads, which = place
    return f"{'input' if reads else 'output'} {which} of operator {at}"


def _cut(values: NDArray[Any], axes: Sequence[int], padding: int, left: bool = False) -> NDArray[np.floating]:
    """Cut the values at padding off a tensor's token axes.

    Args:
        values: Values of the tensor.
        axes: Axes that hold tokens; one of them may have one token less than the input.
        padding: Number of padded tokens.
        left: Whether padding is at the beginning.
    """
    for axis in axes:
        size = values.shape[axis]
        kept = max(1, size - padding)
        values = values.take(range(size - kept, size) if left else range(kept), axis)
    return values


register_scheme(
    SchemeRow(
        Format.TFLITE,
        Scheme.A8W8,
        ExpectedWeights(products=ExpectedForm("int8", per_channel=True, bits=8), tables=ExpectedForm("int8")),
        _write,
        simulation=Simulation(weights=per_row, tables=per_row, static=True, outputs=True, fixed_positions=True),
        selective=True,
        seconds={Scheme.INT8: SecondScheme(WEIGHTED_ROLES, INT8_WEIGHTS, DYNAMIC_SIMULATION)},
        usual={Role.FFN_DOWN: Scheme.INT8},
    )
)
