"""The attention mask in whole-graph integers: its constant of 1e4 becomes one that leaves attention scores their steps.

A score plus a mask of -1e4 needs a range of 1e4. In 8 bits its steps are 39 wide and no score is left of it; in 16 bits they
are 0.15 wide. The mask has to lose by a margin against every score and need not lose by 1e4. What it is made of, zeros and
ones, places and distances, are whole numbers: they have separate steps, and no range is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import GateError
from pocketbert.core.families.ranges import Range
from pocketbert.quantize.calibration import ROOM
from pocketbert.quantize.onnx.qnn.writer import LAYOUT
from pocketbert.quantize.onnx.sizes import matrices

MASK = "attention_mask"
INPUTS = frozenset((MASK, "token_type_ids", "input_ids"))
_LARGE = 1e3
"""Constants of at least this size are the mask's."""
_MARGIN = 16.0
"""By how much a masked score is below every other one: a masked token gets at most exp(-16) = 1e-7 of another's probability."""
_WHOLE = (
    "Cast",
    "Range",
    "Add",
    "Sub",
    "Mul",
    "Abs",
    "Neg",
    "Clip",
    "CumSum",
    "ReduceSum",
    "Min",
    "Max",
    "Concat",
    *LAYOUT,
)
"""Operators that make whole numbers of whole numbers."""


class MaskChain:
    """The part of a graph that is computed from masks, segments, ids and places, without tables and weights.

    Args:
        graph: An ONNX graph, which `lower` changes.
        floats: Names of its computed float tensors.
        sizes: Names of the tensors that only the sizes of its inputs decide.

    Attributes:
        counts: Float tensors of that part which are whole numbers.
        units: Those of them which are zeros and ones.
        masks: Float tensors of that part which the constant is in.
        sources: Of scores plus mask, and of numbers times zeros and ones, such as states times the mask, these scores and
            numbers, in the order of the graph.
    """

    def __init__(self, graph: Any, floats: set[str], sizes: set[str]) -> None:
        self._stored = {t.name: t for t in graph.initializer}
        self._floats, self._matrices = floats, matrices(graph)
        self._constants: list[Any] = []
        self._sums: list[str] = []
        self.sources: dict[str, str] = {}
        inside, whole, large, units = set(INPUTS), set[str](), set[str](), {MASK}
        for node in graph.node:
            undone = node.op_type == "Div" and node.input[0] in large and self._is_large(node.input[1])
            if undone or (node.op_type in _WHOLE and all(self._is_whole(n, whole) for n in node.input if n)):
                whole.update(node.output)
                units.update(node.output if undone or self._is_unit(node, units) else ())
            data = [n for n in node.input if n and n not in self._stored and n not in sizes]
            if data and inside.issuperset(data) and self._matrices.isdisjoint(node.input):
                inside.update(node.output)
                found = [self._stored[n] for n in node.input if self._is_large(n)]
                self._constants += found
                if not undone and (found or large.intersection(node.input)):
                    large.update(node.output)
            elif node.op_type == "Add" and large.intersection(node.input):
                self._sums.append(node.output[0])
                self.sources[node.output[0]] = next(n for n in node.input if n not in large)
            elif node.op_type == "Mul" and len(known := inside & whole & floats & set(node.input)) == 1:
                self.sources[node.output[0]] = next(n for n in node.input if n not in known)
        self.masks = large & floats
        self.counts = ((inside | sizes) & whole & floats) - large
        self.units = self.counts & units

    def lower(self, ranges: Mapping[str, Range], title: str) -> dict[str, Range]:
        """Set the constant to the least that does its work.

        Args:
            ranges: Of scores, and of numbers that counts are multiplied with.
            title: The file, which errors name.

        Returns:
            These ranges, and those of the masks, the sums and the products.

        Raises:
            GateError: If there is no such constant, or no sum with it.
        """
        from onnx import numpy_helper

        if not self._constants or not self._sums:
            raise GateError(
                [
                    f"{title}: no large negative constant is added to attention scores in this graph, so its mask cannot be "
                    "written in integers; make another scheme for this model."
                ]
            )
        # where no text has two segments, products with them are nothing but zeros, which would be no range
        known = {**ranges}
        for name, source in self.sources.items():
            known[name] = known[source]
        least = ROOM * max(known[n][1] - known[n][0] for n in self._sums) + _MARGIN
        for tensor in self._constants:
            value = np.clip(self._value(tensor), np.float32(-least), np.float32(least))
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
        depth = least / ROOM  # ranges in 16 bits get room later
        lowered = {name: (known[name][0] - depth, known[name][1]) for name in self._sums}
        return known | dict.fromkeys(self.masks, (-depth, 0.0)) | lowered

    def _is_whole(self, name: str, known: set[str]) -> bool:
        if name not in self._stored:
            return name in known or name not in self._floats
        if name in self._matrices and self._stored[name].data_type == 1:
            return False  # a weight, which takes long to look through
        value = self._value(self._stored[name])
        return bool(value.dtype.kind != "f" or np.array_equal(value, np.rint(value)))

    def _is_unit(self, node: Any, known: set[str]) -> bool:
        """Whether zeros and ones come of a node that reads whole numbers."""
        computed = [n for n in node.input if n and n not in self._stored]
        ends = [self._value(self._stored[n]) for n in node.input[1:] if n in self._stored]
        if node.op_type == "Clip":
            return len(ends) == 2 and [float(e) for e in ends] == [0.0, 1.0]
        if node.op_type == "Sub":  # 1 - x
            first = self._stored.get(node.input[0])
            return first is not None and bool((self._value(first) == 1).all()) and node.input[1] in known
        if node.op_type == "Mul":
            return len(computed) == 2 and known.issuperset(computed)
        return node.op_type in ("Cast", *LAYOUT) and node.input[0] in known

    def _is_large(self, name: str) -> bool:
        tensor = self._stored.get(name)
        return tensor is not None and tensor.data_type == 1 and float(np.abs(self._value(tensor)).max()) >= _LARGE

    @staticmethod
    def _value(tensor: Any) -> NDArray[Any]:
        from onnx import numpy_helper

        return np.asarray(numpy_helper.to_array(tensor))
