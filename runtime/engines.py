"""Open a model file with the engine of its format, or with that of the runtime for which it was written.

`EngineFile` names a file with its format and runtime; `open_file` opens it as a `FilePredictor`. `describe_file`
returns a file's inputs, outputs and lengths, `FileOnDemand` opens a file when it runs. `register_engine` adds the
engine of a format that a plugin brings. `add_missing_inputs` completes the inputs of a file that takes more than token
ids.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.disk.files import identify_path
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.system import release_memory
from pocketbert.core.predict.predictor import Arrays, Predictor
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.onnx import OnnxPredictor

if TYPE_CHECKING:
    from pocketbert.core.artefacts import Signature


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
        runtime: The runtime for which the file was written; None for any.
    """

    path: Path
    format: Format
    runtime: Runtime | None = None

    @property
    def lists_lengths(self) -> bool:
        """Whether the file takes only the lengths that it lists, as some formats and all accelerator files do."""
        return FORMATS[self.format].fixed_lengths or (self.runtime is not None and self.runtime.accelerator)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The only lengths that the file takes; empty if it takes any.

        A file that takes any length is not opened to find out, because optimizing a large ONNX file takes seconds.
        """
        return self.open(1).lengths if self.lists_lengths else ()

    @property
    def thread_safe(self) -> bool:
        """Whether several threads may call the opened file at the same time."""
        return bool(getattr(_find_opener(self.format, self.runtime), "thread_safe", False))

    def import_engine(self) -> None:
        """Import the library that opens the file, if it is installed; `open` then takes no longer than opening the file."""
        module = _LATE_ENGINES.get(_find_opener(self.format, self.runtime))
        if module is not None:
            importlib.import_module(module).import_engine()

    def open(self, threads: int | None = None) -> FilePredictor:
        """Open the file with its engine, as `open_file` does, but without storing a description of it."""
        return _open_with_engine(self.path, self.format, threads, self.runtime)


def open_file(path: Path, kind: Format, threads: int | None = None, runtime: Runtime | None = None) -> FilePredictor:
    """Open a model file with the engine of its format, or with that of the runtime for which it was written.

    A description of the file is stored, for `describe_file`.

    Args:
        path: The file.
        kind: Format of the file.
        threads: Number of threads within an operator; default one for each core that this process may use.
        runtime: The runtime for which the file was written; None for any.

    Returns:
        A predictor.
    """
    opened = _open_with_engine(path, kind, threads, runtime)
    if (identity := identify_path(path)) is not None:
        _DESCRIBED[identity, runtime] = FileDescription.of(opened)
    return opened


def _open_with_engine(path: Path, kind: Format, threads: int | None, runtime: Runtime | None) -> FilePredictor:
    """Open a file with the engine of its runtime, or of its format."""
    return _find_opener(kind, runtime)(path, threads)


def _find_opener(kind: Format, runtime: Runtime | None) -> Opener:
    """Return the class or function that opens files of a runtime, or of a format."""
    runtime_engine = _RUNTIME_ENGINES.get(runtime) if runtime else None
    return runtime_engine or _ENGINES[kind]


class FileDescription(NamedTuple):
    """The inputs, outputs and lengths of a file, and the engine that opened it; see `FilePredictor`."""

    engine: str
    engine_version: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    lengths: tuple[int, ...]
    computes_rows_apart: bool
    signature: Signature

    @staticmethod
    def of(opened: FilePredictor) -> FileDescription:
        """Read the description of an opened file."""
        rows_apart = getattr(opened, "computes_rows_apart", False)
        names = opened.inputs, opened.outputs, opened.lengths
        return FileDescription(opened.engine, opened.engine_version, *names, rows_apart, opened.signature)


_DESCRIBED: dict[object, FileDescription] = {}
"""Descriptions of files that this process has opened, by their identity on disk and runtime: large files take seconds to open."""


def describe_file(path: Path, kind: Format, runtime: Runtime | None = None) -> FileDescription:
    """Return a model file's inputs, outputs, lengths and engine.

    The file is opened only if this process has not opened it by `open_file` since it changed.
    """
    known = _DESCRIBED.get((identify_path(path), runtime))
    if known is None:
        known = FileDescription.of(open_file(path, kind, runtime=runtime))
        release_memory()
    return known


class FileOnDemand:
    """A predictor that opens its engine at the first run and closes it with `close`, which frees its memory.

    So several large files can be checked one after the other.

    Args:
        open_engine: Function that opens the file with its engine; called by the first run, and by the first one after
            `close`.
        description: Inputs, outputs and lengths of the file; if it is not given, the file is opened now to find out.
    """

    def __init__(self, open_engine: Callable[[], FilePredictor], description: FileDescription | None = None) -> None:
        if description is None:
            description = FileDescription.of(open_engine())
            release_memory()
        self.engine, self.engine_version = description.engine, description.engine_version
        self.inputs, self.outputs, self.lengths = description.inputs, description.outputs, description.lengths
        self.computes_rows_apart = description.computes_rows_apart
        self._open_engine = open_engine
        self._opened: FilePredictor | None = None

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run one batch; see `Predictor.run`."""
        if self._opened is None:
            self._opened = self._open_engine()
        return self._opened.run(inputs)

    def close(self) -> None:
        """Release the engine and its memory. The next run opens it again."""
        self._opened = None


def register_engine(format: Format, opener: Opener) -> None:
    """Register the function that opens the files of a format.

    Raises:
        ValueError: If the format has an engine already.
    """
    if format in _ENGINES:
        raise ValueError(f"format '{format}' has an engine already")
    _ENGINES[format] = opener


def _open_tflite(path: Path, threads: int | None) -> FilePredictor:
    from pocketbert.runtime.tflite import TflitePredictor  # a program that predicts needs one engine

    return TflitePredictor(path, threads)


def _open_coreml(path: Path, threads: int | None) -> FilePredictor:
    from pocketbert.runtime.coreml.predictor import CoremlPredictor  # many modules that few prediction processes need

    return CoremlPredictor(path, threads)


def _open_openvino(path: Path, threads: int | None) -> FilePredictor:
    from pocketbert.runtime.openvino import OpenVinoPredictor  # few folders have a file for it

    return OpenVinoPredictor(path, threads)


_ENGINES: dict[Format, Opener] = {
    Format.ONNX: OnnxPredictor,
    Format.TFLITE: _open_tflite,
    Format.COREML: _open_coreml,
}
_RUNTIME_ENGINES: dict[Runtime, Opener] = {Runtime.OPENVINO: _open_openvino}
"""Engines of files that were written for a runtime other than their format's usual engine."""
_LATE_ENGINES: dict[Opener, str] = {
    _open_tflite: "pocketbert.runtime.tflite",
    _open_openvino: "pocketbert.runtime.openvino",
    _open_coreml: "pocketbert.runtime.coreml.predictor",
}
"""The module of engines that are imported when a file is opened; its function `import_engine` imports the library."""


def add_missing_inputs(predictor: FilePredictor, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Add zeros for further inputs of a file that a batch does not have, such as language ids or entity vectors.

    Args:
        predictor: The opened file.
        feed: Inputs [B, L] by name.

    Returns:
        A copy of `feed` with all inputs of the file.
    """
    rows, length = feed["input_ids"].shape
    if set(predictor.inputs) <= set(feed):
        return dict(feed)
    missing = [t for t in predictor.signature.inputs if t.name not in feed]
    zeros = {t.name: np.zeros((rows, length, *(int(n) for n in t.shape[2:])), t.dtype) for t in missing}
    return {**feed, **zeros}
