"""One signature of an open TFLite file, called without planning its memory again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.predict.predictor import Arrays

Row = Mapping[str, NDArray[np.generic]]


class SignatureCall:
    """Runs one row through a signature of fixed shapes.

    The engine's runner gives every input its shape and plans the memory of the signature before each run. The shapes never
    change here, so that this is done once, by the first run; the later ones hand over the values and read the answers. For a
    text of 16 tokens after an idle time the planning takes 7 % of the time. The functions behind the runner are not part of
    the engine's documented interface: where one of them is missing, every run goes through the runner.

    Args:
        runner: What the interpreter's `get_signature_runner` gave.
        inputs: Names of the inputs, in the order in which they are handed over.
        outputs: Names of the outputs to read.
    """

    def __init__(self, runner: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        details, answers = runner.get_input_details(), runner.get_output_details()
        self._runner = runner
        self._inputs = [(name, details[name]["dtype"], details[name]["index"]) for name in inputs]
        self._answers = [(name, answers[name]["index"]) for name in outputs]
        self._wrapper: Any = getattr(runner, "_interpreter_wrapper", None)
        self._subgraph = getattr(runner, "_subgraph_index", None)
        needed = ("SetTensor", "Invoke", "GetTensor")
        self._direct = self._subgraph is not None and all(hasattr(self._wrapper, name) for name in needed)
        self._planned = False

    def __call__(self, row: Row) -> Arrays:
        """Run one row.

        Args:
            row: [1, L] arrays by name, in any integer dtype; names that the signature does not have are ignored.

        Returns:
            Outputs by name, in the caller's own memory.

        Raises:
            ValueError: If the engine refuses a value.
            RuntimeError: If the engine fails.
        """
        if not (self._direct and self._planned):
            found = self._runner(**{name: row[name].astype(dtype) for name, dtype, _ in self._inputs})
            self._planned = True
            return {name: found[name] for name, _ in self._answers}
        wrapper, subgraph = self._wrapper, self._subgraph
        for name, dtype, index in self._inputs:
            wrapper.SetTensor(index, row[name].astype(dtype), subgraph)
        wrapper.Invoke(subgraph)
        return {name: wrapper.GetTensor(index, subgraph) for name, index in self._answers}
