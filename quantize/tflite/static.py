"""a8w8 for TFLite: matrix products in int8 with ranges measured on texts; everything between them stays fp32.

XNNPACK runs the whole graph in one partition then. The attention mask and its constant 1e4 are in no range: no operator but
FULLY_CONNECTED is quantized. Products have int8 results, too, which is where this loses accuracy against dynamic int8: most
of it in the second projection of the feed-forward part, whose products are dynamic unless a recipe says otherwise.
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
from pocketbert.core.host.quiet import quiet
from pocketbert.core.host.system import version_of
from pocketbert.core.tflite_file import dump_model, load_model, tflite_schema
from pocketbert.core.types import Format, Role, Scheme
from pocketbert.quantize.calibration import Ranges
from pocketbert.quantize.rounding import Simulation, per_row
from pocketbert.quantize.table import WEIGHTED, Plan, SchemeRow, Second, register_scheme
from pocketbert.quantize.tflite.quantizer import DYNAMIC, INT8, exactly, leave, name_results, results_left
from pocketbert.quantize.tflite.rewrites import operator_code
from pocketbert.quantize.weights import ExpectedWeights, Wanted
from pocketbert.runtime.tflite import Padding, TflitePredictor

if TYPE_CHECKING:
    from ai_edge_quantizer.qtyping import ModelQuantizationRecipe

_MEASURED = ("FULLY_CONNECTED",)
"""Operators that get ranges."""
Place = tuple[int, bool, int]
"""Number of an operator, whether it reads the tensor, and at which of its places."""


def _write(source: Path, destination: Path, plan: Plan) -> None:
    """Write a static int8 copy of an fp32 file; nothing is written where a range cannot be measured.

    Raises:
        MissingBackendError: If ai-edge-quantizer is not installed.
        InputError: If there are no rows that the file takes.
        GateError: If the range of a tensor could not be measured.
    """
    if version_of("ai-edge-quantizer") is None:
        raise MissingBackendError("ai-edge-quantizer", "pip install 'pocketbert[tflite]'")
    model = MeasuredModel(source.read_bytes(), _MEASURED)
    with temporary_folder(destination.parent) as folder:
        ranges = model.measure(plan, folder / "measured.tflite", destination.name)
        renamed = folder / "renamed.tflite"
        renamed.write_bytes(model.content)
        with quiet():
            from ai_edge_quantizer.quantizer import Quantizer

            quantizer = Quantizer(str(renamed))
            quantizer.load_quantization_recipe(_recipe(model.content, plan))
            content = bytes(quantizer.quantize(model.statistics(ranges)).quantized_model)
    destination.write_bytes(content)


def _recipe(content: bytes, plan: Plan) -> ModelQuantizationRecipe:
    from ai_edge_quantizer.qtyping import TFLOperationName
    from ai_edge_quantizer.recipe_manager import RecipeManager

    manager = RecipeManager()
    manager.add_static_config(".*", TFLOperationName.FULLY_CONNECTED, activation_num_bits=8, weight_num_bits=8)
    manager.add_dynamic_config(".*", TFLOperationName.EMBEDDING_LOOKUP, num_bits=8)
    for result in results_left(content, plan.seconds.get(Scheme.INT8, frozenset())):
        manager.add_dynamic_config(exactly(result), TFLOperationName.FULLY_CONNECTED, num_bits=8)
    leave(manager, results_left(content, plan.left))
    return manager.get_quantization_recipe()


class MeasuredModel:
    """A file in which every operator's result has a name that no other tensor has, since ranges are handed over by name.

    The converter's names are those of modules; they repeat, and some belong to another module.

    Args:
        content: The file.
        measured: Kinds of operators that get ranges.
    """

    def __init__(self, content: bytes, measured: Container[str]) -> None:
        self._measured = measured
        self._model, self._schema = load_model(content), tflite_schema()
        self._names = {v: k for k, v in vars(self._schema.BuiltinOperator).items() if not k.startswith("_")}
        name_results(self._model)
        self.content = dump_model(self._model)

    def kind(self, operator: Any) -> str:
        """Name what an operator computes."""
        return str(self._names[operator_code(self._model, operator)])

    def _places(self, graph: Any) -> Iterator[tuple[Place, int]]:
        """The float activations that measured operators read and write; the same places in every signature."""
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

    def statistics(self, ranges: Mapping[Place, Range]) -> dict[str, dict[str, NDArray[np.float32]]]:
        """Return the ranges by the names of tensors, for every signature, as ai-edge-quantizer takes them."""
        out = {}
        for graph in self._model.subgraphs:
            for place, index in self._places(graph):
                tensor = graph.tensors[index]
                one = [1] * len(tensor.shape)
                low, high = (np.full(one, end, np.float32) for end in ranges[place])
                out[tensor.name.decode()] = {"min": low, "max": high}
        return out

    def measure(self, plan: Plan, path: Path, title: str) -> dict[Place, Range]:
        """Run a copy that has the measured tensors as outputs on the calibration rows, and choose ranges.

        Each row runs in the shortest signature that takes it, and what padding has there is cut off: with it, the smallest
        number behind the first norm of a trained model was -7.0 instead of -2.7.

        Args:
            plan: Its rows, its method, and the ranges that training learned, which take the place of measured ones.
            path: Where the copy is written.
            title: The file that the ranges are for, which errors name.
        """
        path.write_bytes(self._with_outputs())
        predictor = TflitePredictor(path)
        graphs = {self._length(s): self._model.subgraphs[s.subgraphIndex] for s in self._model.signatureDefs}
        axes = _token_axes({n: self._shapes(graph) for n, graph in graphs.items()})
        known, copied = self.known_ranges(predictor), self.copied()
        axes = {place: axis for place, axis in axes.items() if place not in known and place not in copied}
        ranges, padding = Ranges(map(place_title, axes), plan.calibration, plan.steps), Padding(0, plan.padding_side)
        for row in plan.rows() if plan.rows is not None else ():
            tokens = row[predictor.inputs[0]].shape[1]
            fitting = [n for n in predictor.lengths if n >= tokens]
            if not fitting:
                continue
            more, left = fitting[0] - tokens, plan.pads_left
            found = predictor.run(padding.widened({name: row[name] for name in predictor.inputs}, fitting[0]))
            ranges.add({place_title(p): _cut(found[place_title(p)], cut, more, left) for p, cut in axes.items()})
        chosen = ranges.chosen(title)
        measured = known | {place: chosen[place_title(place)] for place in axes}
        for place in sorted(copied):  # in the order of operators: one may be a copy of another
            measured[place] = measured[copied[place]]
        return measured | {place: own for place, own in self.learned(plan.learned).items() if place in measured}

    def known_ranges(self, predictor: TflitePredictor) -> dict[Place, Range]:
        """Return ranges that rows without padding cannot tell; here none are asked for."""
        return {}

    def copied(self) -> dict[Place, Place]:
        """Return places whose range is that of another place; here none."""
        return {}

    def learned(self, learned: LearnedRanges | None) -> dict[Place, Range]:
        """Find the ranges that training learned for what products with stored weights read and make; none without any."""
        out: dict[Place, Range] = {}
        graph = self._model.subgraphs[0]
        for at, reads, which in {place for place, _ in self._places(graph)} if learned is not None else ():
            if self.kind(graph.operators[at]) != "FULLY_CONNECTED":
                continue
            weight = graph.tensors[int(graph.operators[at].inputs[1])]
            data = self._model.buffers[weight.buffer].data
            if data is None or not len(data) or weight.type != self._schema.TensorType.FLOAT32:
                continue
            numbers = np.frombuffer(bytes(data), np.float32).reshape([int(n) for n in weight.shape])
            assert learned is not None
            own = learned.of(numbers)
            found = own.inputs if reads else own.outputs
            if found is not None:
                out[at, reads, which] = found
        return out

    def _with_outputs(self) -> bytes:
        model = load_model(self.content)
        for signature in model.signatureDefs:
            graph = model.subgraphs[signature.subgraphIndex]
            outputs = [int(i) for i in graph.outputs]
            for place, index in self._places(graph):
                named = self._schema.TensorMapT()
                named.name, named.tensorIndex = place_title(place).encode(), index
                signature.outputs.append(named)
                outputs += [] if index in outputs else [index]
            graph.outputs = outputs
        return dump_model(model)

    def _length(self, signature: Any) -> int:
        tensors = self._model.subgraphs[signature.subgraphIndex].tensors
        return int(tensors[signature.inputs[0].tensorIndex].shape[1])

    def _shapes(self, graph: Any) -> dict[Place, tuple[int, ...]]:
        return {place: tuple(int(n) for n in graph.tensors[index].shape) for place, index in self._places(graph)}


def place_title(place: Place) -> str:
    """Name a place in words, which is also the name of its output in the measured copy."""
    at, reads, which = place
    return f"{'input' if reads else 'output'} {which} of operator {at}"


def _token_axes(shapes: Mapping[int, Mapping[Place, tuple[int, ...]]]) -> dict[Place, list[int]]:
    """The axes of tokens of each measured tensor: their size differs from signature to signature.

    Where there is one signature, it is the axis before the last, if that has its length.
    """
    (length, first), *others = shapes.items()
    out = {}
    for place, shape in first.items():
        if others:
            axes = [i for i, (n, other) in enumerate(zip(shape, others[0][1][place], strict=True)) if n != other]
        else:
            axes = [len(shape) - 2] if len(shape) > 1 and shape[-2] == length else []
        out[place] = axes
    return out


def _cut(values: NDArray[Any], axes: Sequence[int], padding: int, left: bool = False) -> NDArray[np.floating]:
    """What real tokens have; an axis may have a token less than the input, where neighbours are joined."""
    for axis in axes:
        size = values.shape[axis]
        kept = max(1, size - padding)
        values = values.take(range(size - kept, size) if left else range(kept), axis)
    return values


register_scheme(
    SchemeRow(
        Format.TFLITE,
        Scheme.A8W8,
        ExpectedWeights(products=Wanted("int8", per_channel=True, bits=8), tables=Wanted("int8")),
        _write,
        simulation=Simulation(weights=per_row, tables=per_row, static=True, outputs=True, fixed_positions=True),
        selective=True,
        seconds={Scheme.INT8: Second(WEIGHTED, INT8, DYNAMIC)},
        usual={Role.FFN_DOWN: Scheme.INT8},
    )
)
