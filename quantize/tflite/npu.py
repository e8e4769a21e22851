"""Whole graphs in integers for NPUs (TFLite, schemes ``a16w8`` and ``a8w8`` for the runtime NPU).

Files have one length, and each embedding table has one scale. `_write` measures ranges in a file with all lengths
(`_WholeGraph`), keeps the longest, and quantizes it with ai-edge-quantizer. Three things need care:

- Masks. Calibration rows have no padding, so that a mask is all ones in them. The tensors that depend only on mask and
  segments therefore get their ranges from artificial rows with padding and two segments, and the lower ends of the
  mask's ranges are raised to -DEPTH. With the constant 1e4 inside a range, every score would fall into one step of
  int8, and most outputs would be wrong.
- Bits. In a8w8 the sums and norms between the products have 16 bits, and so do products with fewer results than terms:
  in 8 bits they cost most accuracy.
- Room. Ranges in 16 bits are wider than measured. In a8w8 only those of a norm's factor are, because inputs of products
  in 8 bits share the ranges of the other tensors. This factor is larger for a token whose numbers differ less than
  those of all calibration rows, and clipped to their range it made an output wrong by a third.

`count_float_operators` counts the operators of a file that such an NPU leaves to the CPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketbert.core.disk.ownership import temporary_folder
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.families.weight_records import Range
from pocketbert.core.host.quiet import silence_output
from pocketbert.core.host.system import version_of
from pocketbert.core.model_files import dump_model, load_model
from pocketbert.core.types import Format, Role, Runtime, Scheme
from pocketbert.quantize.calibration import ROOM
from pocketbert.quantize.rounding import Simulation, per_row, per_tensor_around_zero
from pocketbert.quantize.table import Plan, SchemeRow, register_scheme, repeat_tokens
from pocketbert.quantize.tflite.quantizer import leave_float
from pocketbert.quantize.tflite.reading import TfliteGraph
from pocketbert.quantize.tflite.rewrites import keep_longest, level_ranks
from pocketbert.quantize.tflite.static import MeasuredModel, Place, place_title
from pocketbert.quantize.weights import ExpectedForm, ExpectedWeights
from pocketbert.runtime.tflite import TflitePredictor

if TYPE_CHECKING:
    from ai_edge_quantizer.qtyping import ModelQuantizationRecipe

_DEPTH = 16.0
"""How far a mask may lower a score: a masked token has e**-16 of the probability that its score would give it."""
_BELOW = 8.0
"""How far the range of masked scores reaches below the lowest score of a real token."""
_IDS, _MASK, _SEGMENTS = "input_ids", "attention_mask", "token_type_ids"
_SUMS = (
    *("ADD", "SUB", "MUL", "DIV", "MEAN", "SUM", "RSQRT", "SQRT", "SQUARED_DIFFERENCE"),
    *("ABS", "REDUCE_MAX", "MAXIMUM"),
)
"""Operators of norms and sums."""
_LAYOUT = ("RESHAPE", "TRANSPOSE", "SLICE", "STRIDED_SLICE", "PAD", "PADV2", "CONCATENATION")
"""Operators that move numbers, in the bits that these have."""
_INTEGERS = ("int8", "int16", "bool")
_PRODUCTS = ("FULLY_CONNECTED", "BATCH_MATMUL")


def _write(source: Path, destination: Path, plan: Plan) -> None:
    """Write an all-integer TFLite file of one length for an NPU. Nothing is written if a range cannot be measured.

    Raises:
        MissingBackendError: If ai-edge-quantizer is not installed.
        InputError: If no calibration row fits the lengths of the file, a matrix product reads the word-embedding table,
            or the graphs of different lengths have different operators.
        GateError: If the range of a tensor could not be measured.
    """
    if version_of("ai-edge-quantizer") is None:
        raise MissingBackendError("ai-edge-quantizer", "pip install 'pocketbert[tflite]'")
    _refuse_tied_table(source)
    plain = load_model(source.read_bytes())
    for graph in plain.subgraphs:
        level_ranks(plain, graph)
    model = _WholeGraph(dump_model(plain))
    model.check_equal_operators(source)
    with temporary_folder(destination.parent) as folder:
        lengths, rows = TflitePredictor(source).lengths, plan.rows
        if len(lengths) == 1 and rows is not None:
            plan = replace(plan, rows=lambda: repeat_tokens(rows(), lengths[0]))
        measured = model.measure(plan, folder / "measured.tflite", destination.name)
        ranges = model.add_room(measured, plan.scheme, model.learned(plan.learned))
        renamed = folder / "renamed.tflite"
        renamed.write_bytes(model.keep_longest())
        with silence_output():
            from ai_edge_quantizer.quantizer import Quantizer

            quantizer = Quantizer(str(renamed))
            recipe = _quantizer_recipe(plan.scheme, model.results_in_16_bits(), model.float_mask_results())
            quantizer.load_quantization_recipe(recipe)
            content = bytes(quantizer.quantize(model.statistics(ranges)).quantized_model)
    destination.write_bytes(content)


def _refuse_tied_table(source: Path) -> None:
    """Raise InputError if a matrix product also reads the word-embedding table, as a fill-mask head does."""
    graph = TfliteGraph(source)
    tables, weights = (
        {graph.tensors[op.inputs[1]].buffer for op in graph.operators if op.name == kind}
        for kind in ("EMBEDDING_LOOKUP", "FULLY_CONNECTED")
    )
    if tables & weights:
        raise InputError(
            Problem(
                str(source),
                "a matrix product reads the word table, which has one scale for an NPU and one per word for a product.",
                "Choose a scheme without a runtime, e.g. int8.",
            )
        )


def _quantizer_recipe(scheme: Scheme, wide: Sequence[str], floats: Sequence[str]) -> ModelQuantizationRecipe:
    """Build the ai-edge-quantizer recipe (which operators get which bits) of an NPU scheme.

    Args:
        scheme: a16w8 or a8w8.
        wide: Names of the results that have 16 bits in a8w8.
        floats: Names of the results of operators that stay float.
    """
    from ai_edge_quantizer.algorithm_manager import AlgorithmName
    from ai_edge_quantizer.qtyping import QuantGranularity, TFLOperationName
    from ai_edge_quantizer.recipe_manager import RecipeManager

    manager, every = RecipeManager(), TFLOperationName.ALL_SUPPORTED
    bits = 16 if scheme is Scheme.A16W8 else 8
    manager.add_static_config(".*", every, activation_num_bits=bits, weight_num_bits=8)
    lookup = TFLOperationName.EMBEDDING_LOOKUP
    manager.add_dynamic_config(".*", lookup, num_bits=8, granularity=QuantGranularity.TENSORWISE)
    for name in wide if scheme is Scheme.A8W8 else ():
        manager.add_static_config(f"{name}.*", every, activation_num_bits=16, weight_num_bits=8)
    leave_float(manager, floats)
    # answers stay fp32, as in every other file, so that clients need no scale; the pattern differs from that of all
    # operators, since the settings of one pattern count from where it came first
    manager.add_quantization_config("(.*)", TFLOperationName.OUTPUT, algorithm_key=AlgorithmName.NO_QUANTIZE)
    return manager.get_quantization_recipe()


class _AllKinds:
    """A container that holds every kind of operator, for `MeasuredModel`."""

    def __contains__(self, _: object) -> bool:
        return True


class _WholeGraph(MeasuredModel):
    """A TFLite model in which all float results of operators get ranges, so that the graph computes in integers.

    Operators are numbered as in the first signature; all signatures have the same operators.

    Args:
        content: The file, with all its signatures: shorter rows are run in shorter signatures.
    """

    def __init__(self, content: bytes | bytearray) -> None:
        """Load the model, and find the operators that compute from attention mask and segment ids only."""
        super().__init__(content, _AllKinds())
        signature = self._model.signatureDefs[0]
        self._first = self._model.subgraphs[signature.subgraphIndex]
        self._inputs = {_text(i.name): int(i.tensorIndex) for i in signature.inputs}
        # operators that depend on the mask only; Longformer finds the end of a question by its id
        self._counting = self._operators_of_inputs(_MASK, _IDS, without=("EMBEDDING_LOOKUP",))
        self._masked = self._operators_of_inputs(_MASK) | self._counting
        self._given = self._masked | self._operators_of_inputs(_SEGMENTS)
        # sums of scores and mask; products are left out, since XLM multiplies states with the mask, which lowers none
        self._masked_scores = self._read_with(self._masked, ("ADD", "SUB"))

    def check_equal_operators(self, source: Path) -> None:
        """Check that the graphs for different lengths have the same operators, so that they can have the same ranges.

        Raises:
            InputError: If they differ, as Longformer's do below and above its window; it names `source`.
        """
        if len({tuple(self.kind(op) for op in graph.operators) for graph in self._model.subgraphs}) > 1:
            what = "its graphs for short texts have other operators than those for long ones, which have windows."
            fix = "Export with one length, e.g. --lengths 512."
            raise InputError(Problem(str(source), what, fix))

    def _places(self, graph: Any) -> Iterator[tuple[Place, int]]:
        """Yield (place, tensor number) of operator results only: each operator input is such a result or is stored."""
        return ((place, index) for place, index in super()._places(graph) if not place[1])

    def _operators_of_inputs(self, *names: str, without: Container[str] = ()) -> set[int]:
        """Return the numbers of the operators that compute from the named inputs alone, such as the attention mask.

        Operators of the kinds in `without`, and those that read their results, are left out.
        """
        known, operators = {self._inputs[name] for name in names if name in self._inputs}, set()
        for at, op in enumerate(self._first.operators):
            computed = [int(i) for i in op.inputs if i >= 0 and not self._is_stored(int(i))]
            if computed and all(i in known for i in computed) and self.kind(op) not in without:
                known |= {int(i) for i in op.outputs}
                operators.add(at)
        return operators

    def _is_stored(self, index: int) -> bool:
        data = self._model.buffers[self._first.tensors[index].buffer].data
        return data is not None and len(data) > 0

    def _read_with(self, given: set[int], kinds: Sequence[str]) -> dict[Place, Place]:
        """Find the operators that combine results of the operators `given` with one other tensor (mask and scores).

        `kinds` are the kinds of operators to find.

        Returns:
            The place of the other tensor, by the place of the operator's result.
        """
        makers = {
            int(i): (at, False, n) for at, op in enumerate(self._first.operators) for n, i in enumerate(op.outputs)
        }
        others_by_result = {}
        for at, op in enumerate(self._first.operators):
            operands = [makers[int(i)] for i in op.inputs if int(i) in makers]
            others = [place for place in operands if place[0] not in given]
            if at not in given and self.kind(op) in kinds and len(others) == 1 < len(operands):
                others_by_result[at, False, 0] = others[0]
        return others_by_result

    def copied(self) -> dict[Place, Place]:
        """Return the places whose ranges are copied, and the places from which they are copied.

        Masked scores get the range of the unmasked scores, so that the mask is not in it. Products with mask or
        segments get the range of their other factor: if no calibration text has two segments, they hold nothing but
        zeros.
        """
        return self._masked_scores | self._read_with(self._given, ("MUL",))

    def known_ranges(self, predictor: TflitePredictor) -> dict[Place, Range]:
        """Measure the ranges of mask, segment and position tensors on artificial rows with little and much padding.

        The lower ends of the mask's ranges are raised to -16.
        """
        ranges = {place: (0.0, 0.0) for place, _ in self._places(self._first) if place[0] in self._given}
        mask_operators = self._mask_operators(self._first)
        positions = np.arange(max(predictor.lengths))
        # XLNet has no table of segments, and a third one for its first token
        kinds = {self.kind(self._first.operators[i]) for i in self._given - self._masked}
        segments = positions % (2 if "EMBEDDING_LOOKUP" in kinds else 3)
        for mask in (positions < 1, positions % 2, positions >= 0):
            row = {_MASK: mask, _SEGMENTS: segments}
            inputs = {n: np.asarray(row.get(n, positions * 0), np.int64)[None] for n in predictor.inputs}
            values_by_title = predictor.run(inputs)
            for place, (low, high) in ranges.items():
                values = values_by_title[place_title(place)]
                low, high = min(low, float(values.min())), max(high, float(values.max()))
                ranges[place] = max(-_DEPTH, low) if place[0] in mask_operators else low, high
        return ranges

    def add_room(self, ranges: Mapping[Place, Range], scheme: Scheme, learned: Container[Place]) -> dict[Place, Range]:
        """Return measured ranges, made wider: downwards for masked scores, and in 16 bits in both directions.

        The room in both directions is for numbers beyond those measured. In a8w8 only the factors of norms get it;
        tensors that depend on mask and segments only never do.

        Args:
            ranges: The measured ranges.
            scheme: The scheme of the file.
            learned: Tensors whose ranges were learned in training; they get no room for larger numbers.
        """
        widened = {}
        for place, (low, high) in ranges.items():
            has_room = scheme is Scheme.A16W8 or self.kind(self._first.operators[place[0]]) == "RSQRT"
            room = ROOM if has_room and place[0] not in self._given and place not in learned else 1.0
            widened[place] = room * low - _BELOW * (place in self._masked_scores), room * high
        return widened

    def keep_longest(self) -> bytearray:
        """Remove all signatures but the longest, and return the bytes of the TFLite file."""
        keep_longest(self._model)
        self.content = dump_model(self._model)
        return self.content

    def results_in_16_bits(self) -> list[str]:
        """Return the names of the operator results that have 16 bits instead of 8 in a8w8.

        These are results of norms and sums (except masks and masked scores), of matrix products with fewer outputs than
        inputs, and of operators that move such results.
        """
        graph = self._model.subgraphs[-1]
        skipped = self._mask_operators(graph).union(at for at, _, _ in self._masked_scores)
        wide, names = set[int](), list[str]()
        for at, op in enumerate(graph.operators):
            kind, result = self.kind(op), int(op.outputs[0])
            if at in skipped:
                continue
            if kind == "EMBEDDING_LOOKUP":
                wide.add(result)  # floats, which become integers where they are read
            elif kind in _SUMS or self._is_narrowing(graph, op) or (kind in _LAYOUT and int(op.inputs[0]) in wide):
                wide.add(result)
                names.append(_text(graph.tensors[result].name))
        return names

    def float_mask_results(self) -> list[str]:
        """Return the names of the results of mask operators that must stay float; empty for most models.

        They must if the graph counts or compares positions, or divides by the mask's constant. LiteRT counts in floats
        only. The rounded positions of two neighbours could not be compared, and a division by the mask's constant would
        magnify rounding errors, after the masked scores were clipped.
        """
        graph = self._model.subgraphs[-1]
        operators = [graph.operators[at] for at in sorted(self._counting)]
        operators = [op for op in operators if self._is_computed(graph.tensors[int(op.outputs[0])])]
        if not {self.kind(op) for op in operators}.intersection(("CUMSUM", "ABS", "DIV")):
            return []
        return [_text(graph.tensors[int(op.outputs[0])].name) for op in operators]

    def _mask_operators(self, graph: Any) -> set[int]:
        """Return the numbers of the operators that compute the mask that is added to attention scores."""
        needed = {int(i) for at, _, _ in self._masked_scores for i in graph.operators[at].inputs}
        operators = set[int]()
        for at in sorted(self._masked, reverse=True):
            if needed.intersection(int(i) for i in graph.operators[at].outputs):
                needed.update(int(i) for i in graph.operators[at].inputs)
                operators.add(at)
        return operators

    def _is_narrowing(self, graph: Any, op: Any) -> bool:
        """Return whether an operator is a matrix product with fewer outputs than inputs per token."""
        shape = graph.tensors[op.inputs[1]].shape if self.kind(op) == "FULLY_CONNECTED" else (0, 0)
        return bool(shape[0] < shape[1])


def count_float_operators(path: Path) -> Counter[str]:
    """Count the operators of a TFLite file that an NPU leaves to the CPU, by kind.

    They are the operators of the first signature that read or write anything but int8, int16 and bool.
    """
    graph, counts = TfliteGraph(path), Counter[str]()
    for op in graph.operators:
        read = [i for i in op.inputs if i >= 0 and not graph.tensors[i].stored]
        if any(graph.tensors[i].dtype not in _INTEGERS for i in (*read, *op.outputs)):
            counts[op.name] += 1
    return counts


def leaves_products(counts: Mapping[str, int]) -> bool:
    """Return whether any counted operator is a matrix product."""
    return any(counts.get(kind, 0) for kind in _PRODUCTS)


def _text(name: bytes | str) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def _register(scheme: Scheme, bits: int, simulation: Simulation) -> None:
    """Register an NPU scheme for TFLite: int8 weights, and all operators in integers.

    `bits` are the bits of most activations that matrix products read. `simulation` imitates the scheme in torch.
    """
    weights = ExpectedWeights(
        ExpectedForm("int8", per_channel=True, bits=bits), ExpectedForm("int8", per_channel=False), whole=True
    )
    register_scheme(
        SchemeRow(Format.TFLITE, scheme, weights, _write, Runtime.NPU, simulation, computes=frozenset(Role))
    )


# rounding to 16 bits is not simulated: it is less than that of the weights on the trained models that were tried
_WEIGHTS = Simulation(weights=per_row, tables=per_tensor_around_zero, fixed_positions=True, fills=True)
_register(Scheme.A16W8, 16, _WEIGHTS)
_register(
    Scheme.A8W8, 8, replace(_WEIGHTS, static=True, outputs=True, results=True, narrowing=False, shared_inputs=True)
)
