"""a16w8 and a8w8 for NPUs: one length, embeddings with one scale, and the whole graph in integers.

Ranges come from rows without padding, in which a mask is all ones: the tensors that only mask and segments decide get theirs
from a row of both kinds, and none reaches below -DEPTH. With the constant 1e4 inside a range, every score is lost in one step
of int8, and most answers are wrong. In a8w8 the sums and norms between the products have 16 bits, and so do products with
fewer results than terms: in 8 they cost most. Ranges in 16 bits have room for more than the rows reached; in a8w8 those of a
norm's factor only, since what products read in 8 bits has the same range. Of a token whose numbers differ less than those of
all rows this factor is larger, and cut to their range it made an answer wrong by a third.
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
from pocketbert.core.families.ranges import Range
from pocketbert.core.host.quiet import quiet
from pocketbert.core.host.versions import version_of
from pocketbert.core.packages.tflite import dump_model, load_model
from pocketbert.core.types import Format, Role, Runtime, Scheme
from pocketbert.quantize.calibration import ROOM
from pocketbert.quantize.plan import Plan, filled
from pocketbert.quantize.rounding import per_row, per_tensor_around_zero
from pocketbert.quantize.simulation import Simulation
from pocketbert.quantize.table import SchemeRow, register_scheme
from pocketbert.quantize.tflite.graph import TfliteGraph
from pocketbert.quantize.tflite.one_shape import RankLeveller, keep_longest
from pocketbert.quantize.tflite.static import MeasuredModel, Place, place_title
from pocketbert.quantize.weights import ExpectedWeights, Wanted
from pocketbert.runtime.tflite import TflitePredictor

if TYPE_CHECKING:
    from ai_edge_quantizer.qtyping import ModelQuantizationRecipe

DEPTH = 16.0
"""How far a mask may lower a score: what is masked has a share of e**-16 of the score at its height."""
BELOW = 8.0
"""How far the range of masked scores reaches below the lowest score of a real token."""
MASK, SEGMENTS = "attention_mask", "token_type_ids"
_SUMS = ("ADD", "SUB", "MUL", "DIV", "MEAN", "SUM", "RSQRT", "SQRT", "SQUARED_DIFFERENCE")
"""What norms and sums are made of."""
_LAYOUT = ("RESHAPE", "TRANSPOSE", "SLICE", "STRIDED_SLICE", "PAD", "PADV2", "CONCATENATION")
"""What moves numbers: in the bits that they have."""
_SMALL = ("int8", "int16", "bool")
_PRODUCTS = ("FULLY_CONNECTED", "BATCH_MATMUL")


class _Everything:
    """All kinds of operators."""

    def __contains__(self, _: object) -> bool:
        return True


class _Whole(MeasuredModel):
    """A file whose every float result gets a range.

    Args:
        content: The file, with all its signatures: shorter rows run in shorter ones.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(content, _Everything())
        signature = self._model.signatureDefs[0]
        self._first = self._model.subgraphs[signature.subgraphIndex]
        self._ends = {_text(i.name): int(i.tensorIndex) for i in signature.inputs}
        self._masked = self._decided_by(MASK)
        self._given = self._masked | self._decided_by(SEGMENTS)

    def _places(self, graph: Any) -> Iterator[tuple[Place, int]]:
        """Results only: everything that an operator reads is one, or stored."""
        return ((place, index) for place, index in super()._places(graph) if not place[1])

    def _decided_by(self, name: str) -> set[int]:
        """Numbers of the operators whose result depends on one input of the graph and nothing else."""
        known, out = {self._ends[name]} if name in self._ends else set(), set()
        for at, op in enumerate(self._first.operators):
            read = [int(i) for i in op.inputs if i >= 0 and not self._stored(int(i))]
            if read and all(i in known for i in read):
                known |= {int(i) for i in op.outputs}
                out.add(at)
        return out

    def _stored(self, index: int) -> bool:
        data = self._model.buffers[self._first.tensors[index].buffer].data
        return data is not None and len(data) > 0

    def _joins(self) -> set[int]:
        """Numbers of the operators that add a mask to scores."""
        masks = {int(i) for at in self._masked for i in self._first.operators[at].outputs}
        operators = enumerate(self._first.operators)
        reading = {at: op for at, op in operators if at not in self._masked and any(int(i) in masks for i in op.inputs)}
        # XLM multiplies states with the mask, which takes them no further down
        return {at for at, op in reading.items() if self.kind(op) in ("ADD", "SUB")}

    def known_ranges(self, predictor: TflitePredictor) -> dict[Place, Range]:
        """Return the ranges of masks and segments, from a row that has zeros and ones of both."""
        length = predictor.lengths[0]
        row = {name: np.zeros((1, length), np.int64) for name in predictor.inputs}
        for name in (MASK, SEGMENTS):
            if name in row:
                row[name][0, ::2] = 1
        found = predictor.run(row)
        out = {}
        for place, _ in self._places(self._first):
            if place[0] in self._given:
                values = found[place_title(place)]
                out[place] = max(-DEPTH, min(0.0, float(values.min()))), max(0.0, float(values.max()))
        return out

    def lowered(self, ranges: Mapping[Place, Range], scheme: Scheme, learned: Container[Place]) -> dict[Place, Range]:
        """Return the ranges with room for what is masked, and in 16 bits for what no row reached.

        Args:
            ranges: As measured.
            scheme: The scheme of the file.
            learned: Places whose ranges were learned, which stay as they are.
        """
        joins, out = self._joins(), {}
        for place, (low, high) in ranges.items():
            at = place[0]
            wide = scheme is Scheme.A16W8 or self.kind(self._first.operators[at]) == "RSQRT"
            room = ROOM if wide and at not in self._given and place not in learned else 1.0
            out[place] = room * low - BELOW * (at in joins), room * high
        return out

    def wide(self) -> list[str]:
        """Name the results that have 16 bits in a8w8.

        Those of norms and sums, without masks and masked scores; those of products with fewer results than terms, without
        the answer; and what moves them.
        """
        graph, kept = self._model.subgraphs[-1], self._masked | self._joins()
        known, out, ends = set[int](), list[str](), {int(i) for i in graph.outputs}
        for at, op in enumerate(graph.operators):
            kind, result = self.kind(op), int(op.outputs[0])
            if at in kept or result in ends:
                continue
            if kind == "EMBEDDING_LOOKUP":
                known.add(result)  # floats, of which an integer is made where they are read
            elif kind in _SUMS or self._narrows(graph, op) or (kind in _LAYOUT and int(op.inputs[0]) in known):
                known.add(result)
                out.append(_text(graph.tensors[result].name))
        return out

    def _narrows(self, graph: Any, op: Any) -> bool:
        """Whether an operator is a product with fewer results than terms."""
        shape = graph.tensors[op.inputs[1]].shape if self.kind(op) == "FULLY_CONNECTED" else (0, 0)
        return bool(shape[0] < shape[1])

    def keep_longest(self) -> bytes:
        """Remove all signatures but the longest, and return the file."""
        keep_longest(self._model)
        self.content = dump_model(self._model)
        return self.content


def _write(source: Path, destination: Path, plan: Plan) -> None:
    """Write a copy in integers; nothing is written where a range cannot be measured.

    Raises:
        MissingBackendError: If ai-edge-quantizer is not installed.
        InputError: If there are no rows that the file takes, or a product reads the word table.
        GateError: If the range of a tensor could not be measured.
    """
    if version_of("ai-edge-quantizer") is None:
        raise MissingBackendError("ai-edge-quantizer", "pip install 'pocketbert[tflite]'")
    _refuse_tied(source)
    loaded = load_model(source.read_bytes())
    for graph in loaded.subgraphs:
        RankLeveller(loaded, graph).run()
    model = _Whole(dump_model(loaded))
    with temporary_folder(destination.parent) as folder:
        rows = _filled(plan, TflitePredictor(source).lengths)
        measured = model.measure(rows, folder / "measured.tflite", destination.name)
        ranges = model.lowered(measured, plan.scheme, model.learned(plan.learned))
        renamed = folder / "renamed.tflite"
        renamed.write_bytes(model.keep_longest())
        with quiet():
            from ai_edge_quantizer.quantizer import Quantizer

            quantizer = Quantizer(str(renamed))
            quantizer.load_quantization_recipe(_recipe(plan.scheme, model.wide()))
            content = bytes(quantizer.quantize(model.statistics(ranges)).quantized_model)
    destination.write_bytes(content)


def _filled(plan: Plan, lengths: Sequence[int]) -> Plan:
    """The plan, with rows repeated up to the length where there is one."""
    rows = plan.rows
    return plan if len(lengths) > 1 or rows is None else replace(plan, rows=lambda: filled(rows(), lengths[0]))


def _refuse_tied(source: Path) -> None:
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


def _recipe(scheme: Scheme, wide: Sequence[str]) -> ModelQuantizationRecipe:
    from ai_edge_quantizer.algorithm_manager import AlgorithmName
    from ai_edge_quantizer.qtyping import QuantGranularity, TFLOperationName
    from ai_edge_quantizer.recipe_manager import RecipeManager

    manager, every = RecipeManager(), TFLOperationName.ALL_SUPPORTED
    bits = 16 if scheme is Scheme.A16W8 else 8
    manager.add_static_config(".*", every, activation_num_bits=bits, weight_num_bits=8)
    lookup = TFLOperationName.EMBEDDING_LOOKUP
    manager.add_dynamic_config(".*", lookup, num_bits=8, granularity=QuantGranularity.TENSORWISE)
    # answers stay fp32, as those of every other file: no client has to know a scale
    manager.add_quantization_config(".*", TFLOperationName.OUTPUT, algorithm_key=AlgorithmName.NO_QUANTIZE)
    for name in wide if scheme is Scheme.A8W8 else ():
        manager.add_static_config(f"{name}.*", every, activation_num_bits=16, weight_num_bits=8)
    return manager.get_quantization_recipe()


def float_operators(path: Path) -> Counter[str]:
    """Count the operators that an NPU for integers leaves to the CPU: those that read or write floats, and integers of 32 bits."""
    graph, counts = TfliteGraph(path), Counter[str]()
    for op in graph.operators:
        read = [i for i in op.inputs if i >= 0 and not graph.tensors[i].stored]
        if any(graph.tensors[i].dtype not in _SMALL for i in (*read, *op.outputs)):
            counts[op.name] += 1
    return counts


def leaves_products(counts: Mapping[str, int]) -> bool:
    """Tell whether a matrix product is not in integers."""
    return any(counts.get(kind, 0) for kind in _PRODUCTS)


def _text(name: bytes | str) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def _register(scheme: Scheme, bits: int, simulation: Simulation) -> None:
    weights = ExpectedWeights(
        Wanted("int8", per_channel=True, bits=bits), Wanted("int8", per_channel=False), whole=True
    )
    register_scheme(
        SchemeRow(Format.TFLITE, scheme, weights, _write, Runtime.NPU, simulation, computes=frozenset(Role))
    )


# what 16 bits round away is not simulated: less than the weights' rounding on the trained models that were tried
_WEIGHTS = Simulation(weights=per_row, tables=per_tensor_around_zero, fixed_positions=True, fills=True)
_register(Scheme.A16W8, 16, _WEIGHTS)
_register(
    Scheme.A8W8, 8, replace(_WEIGHTS, static=True, outputs=True, results=True, narrowing=False, shared_inputs=True)
)
