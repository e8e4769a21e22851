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
from pocketbert.core.families.weight_records import Range
from pocketbert.core.host.quiet import quiet
from pocketbert.core.host.system import version_of
from pocketbert.core.tflite_file import dump_model, load_model
from pocketbert.core.types import Format, Role, Runtime, Scheme
from pocketbert.quantize.calibration import ROOM
from pocketbert.quantize.rounding import Simulation, per_row, per_tensor_around_zero
from pocketbert.quantize.table import Plan, SchemeRow, filled, register_scheme
from pocketbert.quantize.tflite.quantizer import leave
from pocketbert.quantize.tflite.reading import TfliteGraph
from pocketbert.quantize.tflite.rewrites import RankLeveller, keep_longest
from pocketbert.quantize.tflite.static import MeasuredModel, Place, place_title
from pocketbert.quantize.weights import ExpectedWeights, Wanted
from pocketbert.runtime.tflite import TflitePredictor

if TYPE_CHECKING:
    from ai_edge_quantizer.qtyping import ModelQuantizationRecipe

DEPTH = 16.0
"""How far a mask may lower a score: what is masked has a share of e**-16 of the score at its height."""
BELOW = 8.0
"""How far the range of masked scores reaches below the lowest score of a real token."""
IDS, MASK, SEGMENTS = "input_ids", "attention_mask", "token_type_ids"
_SUMS = (
    *("ADD", "SUB", "MUL", "DIV", "MEAN", "SUM", "RSQRT", "SQRT", "SQUARED_DIFFERENCE"),
    *("ABS", "REDUCE_MAX", "MAXIMUM"),
)
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
        # Longformer finds the end of a question by its id
        self._counting = self._decided_by(MASK, IDS, without=("EMBEDDING_LOOKUP",))
        self._masked = self._decided_by(MASK) | self._counting
        self._given = self._masked | self._decided_by(SEGMENTS)
        # XLM multiplies states with the mask, which takes them no further down
        self._joins = self._read_with(self._masked, ("ADD", "SUB"))

    def _places(self, graph: Any) -> Iterator[tuple[Place, int]]:
        """Results only: everything that an operator reads is one, or stored."""
        return ((place, index) for place, index in super()._places(graph) if not place[1])

    def _decided_by(self, *names: str, without: Container[str] = ()) -> set[int]:
        """Numbers of the operators whose result depends on some inputs of the graph and nothing else, without some kinds."""
        known, out = {self._ends[name] for name in names if name in self._ends}, set()
        for at, op in enumerate(self._first.operators):
            read = [int(i) for i in op.inputs if i >= 0 and not self._stored(int(i))]
            if read and all(i in known for i in read) and self.kind(op) not in without:
                known |= {int(i) for i in op.outputs}
                out.add(at)
        return out

    def _stored(self, index: int) -> bool:
        data = self._model.buffers[self._first.tensors[index].buffer].data
        return data is not None and len(data) > 0

    def check_alike(self, source: Path) -> None:
        """Refuse a file whose graphs for several lengths differ: what is measured in one of them says nothing of another.

        Raises:
            InputError: If they do, as Longformer's below and above its window.
        """
        if len({tuple(self.kind(op) for op in graph.operators) for graph in self._model.subgraphs}) > 1:
            what = "its graphs for short texts have other operators than those for long ones, which have windows."
            fix = "Export with one length, e.g. --lengths 512."
            raise InputError(Problem(str(source), what, fix))

    def copied(self) -> dict[Place, Place]:
        """Return the places of masked scores, with those of the scores, and of numbers that masks and segments leave or remove.

        Of scores the mask is in no range then. Where no calibration text has two segments, their products are nothing but zeros.
        """
        return self._joins | self._read_with(self._given, ("MUL",))

    def _read_with(self, given: set[int], kinds: Sequence[str]) -> dict[Place, Place]:
        """The results of operators of some kinds that read one of given results and another one; the place of the other."""
        made = {int(i): (at, False, n) for at, op in enumerate(self._first.operators) for n, i in enumerate(op.outputs)}
        out = {}
        for at, op in enumerate(self._first.operators):
            read = [made[int(i)] for i in op.inputs if int(i) in made]
            others = [place for place in read if place[0] not in given]
            if at not in given and self.kind(op) in kinds and len(others) == 1 < len(read):
                out[at, False, 0] = others[0]
        return out

    def known_ranges(self, predictor: TflitePredictor) -> dict[Place, Range]:
        """Return the ranges of masks, segments and places, from rows of the final length: with much padding, some and none."""
        out = {place: (0.0, 0.0) for place, _ in self._places(self._first) if place[0] in self._given}
        masks = self._of_masks(self._first)
        at = np.arange(max(predictor.lengths))
        # XLNet has no table of segments, and a third one for its first token
        kinds = {self.kind(self._first.operators[i]) for i in self._given - self._masked}
        segments = at % (2 if "EMBEDDING_LOOKUP" in kinds else 3)
        for mask in (at < 1, at % 2, at >= 0):
            row = {MASK: mask, SEGMENTS: segments}
            found = predictor.run({n: np.asarray(row.get(n, at * 0), np.int64)[None] for n in predictor.inputs})
            for place, (low, high) in out.items():
                values = found[place_title(place)]
                least = min(low, float(values.min()))
                out[place] = max(-DEPTH, least) if place[0] in masks else least, max(high, float(values.max()))
        return out

    def lowered(self, ranges: Mapping[Place, Range], scheme: Scheme, learned: Container[Place]) -> dict[Place, Range]:
        """Return the ranges with room for what is masked, and in 16 bits for what no row reached.

        Args:
            ranges: As measured.
            scheme: The scheme of the file.
            learned: Places whose ranges were learned, which stay as they are.
        """
        out = {}
        for place, (low, high) in ranges.items():
            wide = scheme is Scheme.A16W8 or self.kind(self._first.operators[place[0]]) == "RSQRT"
            room = ROOM if wide and place[0] not in self._given and place not in learned else 1.0
            out[place] = room * low - BELOW * (place in self._joins), room * high
        return out

    def wide(self) -> list[str]:
        """Name the results that have 16 bits in a8w8.

        Those of norms and sums, without masks and masked scores; those of products with fewer results than terms; and what
        moves them.
        """
        graph = self._model.subgraphs[-1]
        kept = self._of_masks(graph).union(at for at, _, _ in self._joins)
        known, out = set[int](), list[str]()
        for at, op in enumerate(graph.operators):
            kind, result = self.kind(op), int(op.outputs[0])
            if at in kept:
                continue
            if kind == "EMBEDDING_LOOKUP":
                known.add(result)  # floats, of which an integer is made where they are read
            elif kind in _SUMS or self._narrows(graph, op) or (kind in _LAYOUT and int(op.inputs[0]) in known):
                known.add(result)
                out.append(_text(graph.tensors[result].name))
        return out

    def counted(self) -> list[str]:
        """Name the results of which masks are made, where the graph counts or compares places, or divides by the constant.

        These stay floats. LiteRT counts in floats only. Of two neighbours' rounded places one does not know which are the same,
        and the constant of the mask makes much of little; a mask that is cut at its depth is no multiple of it any more.
        """
        graph = self._model.subgraphs[-1]
        operators = [graph.operators[at] for at in sorted(self._counting)]
        operators = [op for op in operators if self._is_computed(graph.tensors[int(op.outputs[0])])]
        if not {self.kind(op) for op in operators}.intersection(("CUMSUM", "ABS", "DIV")):
            return []
        return [_text(graph.tensors[int(op.outputs[0])].name) for op in operators]

    def _of_masks(self, graph: Any) -> set[int]:
        """Numbers of the operators that make what is added to scores."""
        wanted, out = {int(i) for at, _, _ in self._joins for i in graph.operators[at].inputs}, set[int]()
        for at in sorted(self._masked, reverse=True):
            if wanted.intersection(int(i) for i in graph.operators[at].outputs):
                wanted.update(int(i) for i in graph.operators[at].inputs)
                out.add(at)
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
    model.check_alike(source)
    with temporary_folder(destination.parent) as folder:
        rows = _filled(plan, TflitePredictor(source).lengths)
        measured = model.measure(rows, folder / "measured.tflite", destination.name)
        ranges = model.lowered(measured, plan.scheme, model.learned(plan.learned))
        renamed = folder / "renamed.tflite"
        renamed.write_bytes(model.keep_longest())
        with quiet():
            from ai_edge_quantizer.quantizer import Quantizer

            quantizer = Quantizer(str(renamed))
            quantizer.load_quantization_recipe(_recipe(plan.scheme, model.wide(), model.counted()))
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


def _recipe(scheme: Scheme, wide: Sequence[str], floats: list[str]) -> ModelQuantizationRecipe:
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
    leave(manager, floats)
    # answers stay fp32, as those of every other file: no client has to know a scale; the pattern is another one than that of
    # all operators, as the settings of one pattern count from where it came first
    manager.add_quantization_config("(.*)", TFLOperationName.OUTPUT, algorithm_key=AlgorithmName.NO_QUANTIZE)
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
