"""One signature of an open TFLite file, called without planning its memory again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.predict.predictor import Arrays
from pocketbert.runtime.padding import Padding

Rows = Mapping[str, NDArray[np.generic]]
Run = Callable[[Rows], Arrays]
"""Runs one batch, as `Predictor.run` does."""


class Slot(NamedTuple):
    """Where the values of one input go.

    Attributes:
        name: The input.
        shape: Shape that the values must have.
        place: Part of `buffer` that they are written to.
        buffer: What the engine is given, in its shape and type. What is not in `place` is padding, written once.
        number: The engine's number of the tensor.
    """

    name: str
    shape: tuple[int, ...]
    place: NDArray[Any]
    buffer: NDArray[Any]
    number: int


class SignatureCall:
    """Runs rows through a signature of fixed shapes, one by one.

    The engine's runner gives every input its shape and plans the memory of the signature before each run. The shapes never
    change here, so that this is done once, by the first run; the later ones hand over the values and read the answers. For a
    text of 16 tokens after an idle time the planning takes 7 % of the time. The functions behind the runner are not part of
    the engine's documented interface: where one of them is missing, every run goes through the runner.

    After an idle time no cache holds what a call needs, and an operation that takes 1 µs in a loop, of numpy or of Python,
    takes 10 to 30. So values are padded and converted in one step, into memory that the engine takes as it is, and all that
    is the same for each call is prepared. One thread at a time may call, as the engine demands.

    Args:
        runner: What the interpreter's `get_signature_runner` gave.
        inputs: Names of the inputs, in the order in which they are handed over.
        outputs: Names of the outputs to read.
    """

    def __init__(self, runner: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        details, answers = runner.get_input_details(), runner.get_output_details()
        self._runner = runner
        self._inputs = [(name, details[name]) for name in inputs]
        self._answers = tuple((name, answers[name]["index"]) for name in outputs)
        self._subgraph = getattr(runner, "_subgraph_index", None)
        wrapper = getattr(runner, "_interpreter_wrapper", None)
        functions: list[Any] = [getattr(wrapper, name, None) for name in ("SetTensor", "Invoke", "GetTensor")]
        self._set, self._invoke, self._get = functions
        self._direct = self._subgraph is not None and all(functions)
        self._ready = False
        self._whole = self.prepared(int(details[inputs[0]]["shape"][1]), Padding(0, "right"))

    def prepared(self, length: int, padding: Padding) -> Run:
        """Prepare memory for rows of one length, and the function that runs them; see `__call__`.

        Each length has its own memory, whose padding is written here and never again: no row can leave values in the
        padding of another one.

        Args:
            length: Tokens of the rows, no more than the signature has.
            padding: What fills the rest.
        """
        slots = tuple(_slot(name, details, length, padding) for name, details in self._inputs)
        set_tensor, invoke, get_tensor = self._set, self._invoke, self._get
        subgraph, answers = self._subgraph, self._answers

        def run(rows: Rows) -> Arrays:
            ready = self._ready
            for name, shape, place, buffer, number in slots:
                value = rows[name]
                if value.shape != shape:  # numpy would repeat a single value
                    return self._each(rows, slots, run)
                place[...] = value
                if ready:
                    set_tensor(number, buffer, subgraph)
            if not ready:
                return self._through_runner(slots)
            invoke(subgraph)
            out = {}
            for name, number in answers:
                out[name] = get_tensor(number, subgraph)
            return out

        return run

    def __call__(self, rows: Rows) -> Arrays:
        """Run rows one by one.

        Args:
            rows: [B, L] arrays by name, in any integer dtype; names that the signature does not have are ignored.

        Returns:
            Outputs by name, in the caller's own memory.

        Raises:
            ValueError: If an input has another shape, or the engine refuses a value.
            RuntimeError: If the engine fails.
        """
        return self._whole(rows)

    def _through_runner(self, slots: Sequence[Slot]) -> Arrays:
        found = self._runner(**{slot.name: slot.buffer for slot in slots})
        self._ready = self._direct
        return {name: found[name] for name, _ in self._answers}

    @staticmethod
    def _each(rows: Rows, slots: Sequence[Slot], run: Run) -> Arrays:
        count = len(rows[slots[0].name])
        if count < 2:
            name, shape = next((s.name, s.shape) for s in slots if rows[s.name].shape != s.shape)
            raise ValueError(f"{name} has the shape {rows[name].shape}, {shape} is wanted")
        results = [run({slot.name: rows[slot.name][i : i + 1] for slot in slots}) for i in range(count)]
        return {name: np.concatenate([r[name] for r in results]) for name in results[0]}


def _slot(name: str, details: Mapping[str, Any], length: int, padding: Padding) -> Slot:
    buffer = np.full(tuple(details["shape"]), padding.value(name), details["dtype"])
    place = buffer[:, padding.place(length, buffer.shape[1])]
    return Slot(name, place.shape, place, buffer, details["index"])
