"""The TFLite engine: ai-edge-litert, else tflite_runtime, else tensorflow.lite."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.artefacts import Signature, Tensor
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.host.hardware import default_threads
from pocketbert.core.host.quiet import quiet
from pocketbert.core.host.versions import version_of
from pocketbert.core.packages.tflite import IDENTIFIER
from pocketbert.core.predict.predictor import Arrays, fitting, input_order, output_order
from pocketbert.runtime.coverage import Coverage, coverage
from pocketbert.runtime.padding import Padding
from pocketbert.runtime.signature import Rows, Run, SignatureCall


@dataclass(frozen=True)
class _Engine:
    name: str
    module: str
    distributions: tuple[str, ...]


ENGINES = (
    _Engine("litert", "ai_edge_litert.interpreter", ("ai-edge-litert", "ai-edge-litert-nightly")),
    _Engine("tflite_runtime", "tflite_runtime.interpreter", ("tflite-runtime",)),
    _Engine(
        "tensorflow",
        "tensorflow.lite.python.interpreter",
        ("tensorflow", "tensorflow-cpu", "tensorflow-intel"),
    ),
)
"""In order of preference. All have the same Interpreter class; the older ones miscompute some files, which the
golden self-test finds out."""


def installed_engine() -> tuple[_Engine, str] | None:
    """The engine that would be used here and its version, without importing it."""
    for engine in ENGINES:
        for name in engine.distributions:
            version = version_of(name)
            if version is not None:
                return engine, version
    return None


class TflitePredictor:
    """Runs one TFLite file on the CPU.

    A file has one signature per length; `run` takes exactly these lengths, and rows one after the other.
    `pocketbert.core.predict.predictor.feed` pads to the smallest one that fits.

    Args:
        path: The file.
        threads: Threads within an operator; default `default_threads`.

    Attributes:
        signature_keys: Names of the file's signatures by length.

    Raises:
        InputError: If the file is missing or the engine refuses it.
        MissingBackendError: If no engine is installed.
    """

    def __init__(self, path: Path, threads: int | None = None) -> None:
        found = installed_engine()
        if found is None:
            raise MissingBackendError("ai-edge-litert", "pip install 'pocketbert[tflite-runtime]'")
        if not path.is_file():
            raise InputError(Problem(str(path), "file not found."))
        engine, self.engine_version = found
        self.engine, self.path = engine.name, path
        with path.open("rb") as stream:
            # a broken flatbuffer can end the process inside the engine: at least the kind of file is looked at first
            if stream.read(8)[4:] != IDENTIFIER:
                raise InputError(Problem(str(path), "is no TFLite file."))
        try:
            with _first_time_quiet():
                self._new = importlib.import_module(engine.module).Interpreter
                self._interpreter = self._new(model_path=str(path), num_threads=threads or default_threads())
                self._interpreter.allocate_tensors()
                signatures = _signatures(self._interpreter)
        except (ValueError, RuntimeError) as error:
            raise self._problem("refuses the file", error) from error
        except ImportError as error:
            raise MissingBackendError(
                f"{engine.module} ({error})", "pip install 'pocketbert[tflite-runtime]'"
            ) from error
        self.signature_keys = {length: key for length, (key, _) in signatures.items()}
        self._runners = {length: runner for length, (_, runner) in signatures.items()}
        if not signatures:
            raise InputError(Problem(str(path), "has no signature with inputs of shape [1, length]."))
        self.lengths = tuple(sorted(self._runners))
        first_runner = self._runners[self.lengths[0]]
        self.inputs = tuple(sorted(first_runner.get_input_details(), key=input_order))
        self.outputs = tuple(sorted(first_runner.get_output_details(), key=output_order))
        self._calls = {n: SignatureCall(runner, self.inputs, self.outputs) for n, runner in self._runners.items()}

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run rows [B, L] one by one, L being one of `lengths`; see `pocketbert.core.predict.predictor.Predictor`.

        Raises:
            InputError: If no signature has that length, or the engine fails: a damaged file, an id beyond the table.
        """
        length = inputs[self.inputs[0]].shape[1]
        call = self._calls.get(length)
        if call is None:
            raise InputError(
                Problem(
                    str(self.path),
                    f"takes {', '.join(map(str, self.lengths))} tokens, not {length}.",
                    "Pad to the next one: pocketbert.core.predict.predictor.feed does.",
                )
            )
        return self._guarded(call, inputs)

    def runs(self, length: int, padding: Padding) -> Run:
        """A function that runs rows [B, `length`] as `run` does, for callers that run many: what a length decides is prepared.

        Args:
            length: Tokens of the rows.
            padding: What fills the signature that they are given to.

        Raises:
            InputError: If no signature is so long.
        """
        call = self._calls[fitting(self.lengths, length)].prepared(length, padding)
        return partial(self._guarded, call)

    def _guarded(self, call: Run, inputs: Rows) -> Arrays:
        try:
            return call(inputs)
        except (ValueError, RuntimeError) as error:
            raise self._problem("cannot run the file on this input", error) from error

    def _problem(self, what: str, error: Exception) -> InputError:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return InputError(Problem(str(self.path), f"{self.engine} {self.engine_version} {what}: {first}"))

    @property
    def signature(self) -> Signature:
        """Names, dtypes and shapes of inputs and outputs; the length is a name where the file has several."""
        runner = self._runners[self.lengths[-1]]
        several = len(self.lengths) > 1
        inputs, outputs = runner.get_input_details(), runner.get_output_details()
        return Signature(
            inputs=[_tensor(n, inputs[n], self.lengths[-1] if several else None) for n in self.inputs],
            outputs=[_tensor(n, outputs[n], self.lengths[-1] if several else None) for n in self.outputs],
            lengths=list(self.lengths),
        )

    @cached_property
    def coverage(self) -> Coverage | None:
        """How much of the first signature XNNPACK runs; None where this engine's version does not tell."""
        with quiet():
            return coverage(self._new(model_path=str(self.path), num_threads=1))


_announced: set[str] = set()


@contextlib.contextmanager
def _first_time_quiet() -> Iterator[None]:
    """The engine announces its XNNPACK delegate on stderr, once per process; an application's output is left alone after that."""
    if _announced:
        yield
        return
    with quiet():
        yield
    _announced.add("XNNPACK")


def _signatures(interpreter: Any) -> dict[int, tuple[str, Any]]:
    """Names and runners of the signatures by length."""
    out = {}
    for key in interpreter.get_signature_list():
        runner = interpreter.get_signature_runner(key)
        shapes = [tuple(map(int, d["shape"])) for d in runner.get_input_details().values()]
        if shapes and all(len(s) in (2, 3) and s[:2] == shapes[0][:2] and s[0] == 1 for s in shapes):
            out[shapes[0][1]] = (key, runner)
    return out


def _tensor(name: str, details: Mapping[str, Any], free: int | None) -> Tensor:
    shape = [int(n) for n in details["shape"]]
    return Tensor(
        name=name,
        dtype=np.dtype(details["dtype"]).name,
        shape=["sequence" if i == 1 and n == free else n for i, n in enumerate(shape)],
    )
