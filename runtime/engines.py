"""Open a model file with the engine of its format, or with that of the runtime that it was made for.

`EngineFile` names a file with its format and runtime; `open_file` opens it as a `FilePredictor`. `register_engine` adds the
engine of a format that a plugin brings. `add_missing_inputs` completes the inputs of a file that takes more than token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.artefacts import Signature
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.system import release_memory
from pocketbert.core.predict.predictor import Arrays, Predictor
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.onnx import OnnxPredictor
from pocketbert.runtime.tflite import TflitePredictor


class FilePredictor(Predictor, Protocol):
    """A predictor (engine interface) that runs one model file."""

    @property
    def signature(self) -> Signature:
        """Names, dtypes and shapes of inputs and outputs."""
        ...


Opener = Callable[[Path, int | None], FilePredictor]
"""Opens a file, with a number of threads or None for all cores that this process may use."""


class EngineFile(NamedTuple):
    """A model file with the format and runtime that decide which engine opens it.

    Attributes:
        path: The file.
        format: Format of the file.
        runtime: The runtime it was made for, if it was made for one.
    """

    path: Path
    format: Format
    runtime: Runtime | None = None

    @property
    def lists_lengths(self) -> bool:
        """Whether the file takes listed lengths only, as some formats do and all files for an accelerator."""
        return FORMATS[self.format].fixed_lengths or (self.runtime is not None and self.runtime.accelerator)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The only lengths that the file takes; empty where it takes any.

        A file that takes any length is not opened to find out: optimizing a large ONNX file takes seconds.
        """
        return self.open(1).lengths if self.lists_lengths else ()

    def open(self, threads: int | None = None) -> FilePredictor:
        """Open the file with its engine; see `open_file`."""
        return open_file(self.path, self.format, threads, self.runtime)


def open_file(path: Path, kind: Format, threads: int | None = None, runtime: Runtime | None = None) -> FilePredictor:
    """Open a model file with the engine of its format, or with that of the runtime it was made for.

    Args:
        path: The file.
        kind: Format of the file.
        threads: Threads within an operator; default all cores this process may use.
        runtime: The runtime it was made for, if it was made for one.

    Returns:
        A predictor.
    """
    runtime_engine = _RUNTIME_ENGINES.get(runtime) if runtime else None
    return (runtime_engine or _ENGINES[kind])(path, threads)


class FileOnDemand:
    """A predictor whose engine holds memory only between a run and `close`: what the file takes is read beforehand.

    Several large files can so be checked one after the other.

    Args:
        open_engine: Opens the file with its engine; called once now, and again by the first run.
    """

    def __init__(self, open_engine: Callable[[], FilePredictor]) -> None:
        opened = open_engine()
        self.engine, self.engine_version = opened.engine, opened.engine_version
        self.inputs, self.outputs, self.lengths = opened.inputs, opened.outputs, opened.lengths
        self.computes_rows_apart = getattr(opened, "computes_rows_apart", False)
        del opened
        release_memory()
        self._open_engine = open_engine
        self._opened: FilePredictor | None = None

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run one batch; see `Predictor.run`."""
        if self._opened is None:
            self._opened = self._open_engine()
        return self._opened.run(inputs)

    def close(self) -> None:
        """Let go of the engine; the next run opens it again."""
        self._opened = None


def register_engine(format: Format, opener: Opener) -> None:
    """Register the function that opens the files of a format.

    Raises:
        ValueError: If the format has one.
    """
    if format in _ENGINES:
        raise ValueError(f"format '{format}' has an engine already")
    _ENGINES[format] = opener


def _open_coreml(path: Path, threads: int | None) -> FilePredictor:
    from pocketbert.runtime.coreml.predictor import CoremlPredictor  # many modules that few prediction processes need

    return CoremlPredictor(path, threads)


def _open_openvino(path: Path, threads: int | None) -> FilePredictor:
    from pocketbert.runtime.openvino import OpenVinoPredictor  # few folders have a file for it

    return OpenVinoPredictor(path, threads)


_ENGINES: dict[Format, Opener] = {
    Format.ONNX: OnnxPredictor,
    Format.TFLITE: TflitePredictor,
    Format.COREML: _open_coreml,
}
_RUNTIME_ENGINES: dict[Runtime, Opener] = {Runtime.OPENVINO: _open_openvino}
"""For files made for one runtime that is another than their format's usual engine."""


def add_missing_inputs(predictor: FilePredictor, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Add zeros for inputs that a file takes beyond those of every text, such as language ids or entity vectors.

    Args:
        predictor: The opened file.
        feed: Inputs [B, L] by name.
    """
    rows, length = feed["input_ids"].shape
    if set(predictor.inputs) <= set(feed):
        return dict(feed)
    missing = [t for t in predictor.signature.inputs if t.name not in feed]
    zeros = {t.name: np.zeros((rows, length, *(int(n) for n in t.shape[2:])), t.dtype) for t in missing}
    return {**feed, **zeros}
