"""The attention mask in whole-graph integers: its constant of 1e4 becomes one that leaves attention scores their steps.

A score plus a mask of -1e4 needs a range of 1e4. In 8 bits its steps are 39 wide and no score is left of it; in 16 bits they
are 0.15 wide. The mask has to lose by a margin against every score and need not lose by 1e4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pocketbert.core.errors import GateError
from pocketbert.core.families.ranges import Range

INPUT = "attention_mask"
_LARGE = -1e3
"""Constants at most this are the mask's."""
_MARGIN = 16.0
"""By how much a masked score is below every other one: a masked token gets at most exp(-16) = 1e-7 of another's probability."""


class MaskChain:
    """The part of a graph that is computed from the attention mask only.

    Args:
        graph: An ONNX graph, which `lower` changes.
        floats: Names of its float tensors.

    Attributes:
        tensors: Float tensors of that part.
        sums: Scores plus mask.
    """

    def __init__(self, graph: Any, floats: set[str]) -> None:
        from onnx import numpy_helper

        self._stored = {t.name: t for t in graph.initializer}
        inside, large = {INPUT}, set[str]()
        self.sums: list[str] = []
        self._constants: list[Any] = []
        for node in graph.node:
            data = [n for n in node.input if n and n not in self._stored]
            if data and inside.issuperset(data):
                inside.update(node.output)
                own = [self._stored[n] for n in node.input if n in self._stored and self._stored[n].data_type == 1]
                found = [t for t in own if np.min(numpy_helper.to_array(t)) <= _LARGE]
                self._constants += found
                if found or large.intersection(node.input):
                    large.update(node.output)
            elif large.intersection(node.input):
                self.sums += node.output if node.op_type == "Add" else ()
        self.tensors = [n for node in graph.node for n in node.output if n in inside and n in floats]

    def lower(self, ranges: Mapping[str, Range], title: str) -> dict[str, Range]:
        """Set the constant to the least that does its work.

        Args:
            ranges: Of the sums, measured without padding.
            title: The file, which errors name.

        Returns:
            The ranges of the sums with padding.

        Raises:
            GateError: If there is no such constant, or no sum with it.
        """
        from onnx import numpy_helper

        if not self._constants or not self.sums:
            raise GateError(
                [
                    f"{title}: no large negative constant is added to attention scores in this graph, so its mask cannot be "
                    "written in integers; make another scheme for this model."
                ]
            )
        least = max(ranges[n][1] - ranges[n][0] for n in self.sums) + _MARGIN
        for tensor in self._constants:
            value = np.maximum(numpy_helper.to_array(tensor), np.float32(-least))
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
        return {n: (ranges[n][0] - least, ranges[n][1]) for n in self.sums}
