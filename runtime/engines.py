"""Which engine opens which format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.artefacts import Signature
from pocketbert.core.formats import FORMATS
from pocketbert.core.predict.predictor import Predictor
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.onnx import OnnxPredictor
from pocketbert.runtime.tflite import TflitePredictor


class FilePredictor(Predictor, Protocol):
    """A predictor that runs a model file."""

    @property
    def signature(self) -> Signature:
        """Names, dtypes and shapes of inputs and outputs."""
        ...


def filled(predictor: FilePredictor, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Add zeros for what a file takes beyond the inputs of every text: language 0, no entities.

    Args:
        predictor: The opened file.
        feed: Inputs [B, L] by name.
    """
    rows, length = feed["input_ids"].shape
    if set(predictor.inputs) <= set(feed):
        return dict(feed)
    lacking = [t for t in predictor.signature.inputs if t.name not in feed]
    widths = {t.name: [int(n) for n in t.shape[2:]] for t in lacking}
    return {**feed, **{t.name: np.zeros((rows, length, *widths[t.name]), t.dtype) for t in lacking}}


class EngineFile(NamedTuple):
    """A model file, and what tells its engine.

    Attributes:
        path: The file.
        format: Its format.
        runtime: The runtime it was made for, if it was made for one.
    """

    path: Path
    format: Format
    runtime: Runtime | None = None

    @property
    def lists_lengths(self) -> bool:
        """Whether it takes listed lengths only: files of some formats do, and those for a chip, which takes fixed shapes."""
        return FORMATS[self.format].fixed_lengths or (self.runtime is not None and self.runtime.accelerator)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The only lengths that it takes; empty where it takes any.

        No other file is opened to ask it: a large ONNX file is optimized for seconds.
        """
        return self.open(1).lengths if self.lists_lengths else ()

    def open(self, threads: int | None = None) -> FilePredictor:
        """Open it; see `open_file`."""
        return open_file(self.path, self.format, threads, self.runtime)


def _coreml(path: Path, threads: int | None) -> FilePredictor:
    from pocketbert.runtime.coreml.predictor import (
        CoremlPredictor,
    )  # 30 modules that few prediction processes need

    return CoremlPredictor(path, threads)


def _openvino(path: Path, threads: int | None) -> FilePredictor:
    from pocketbert.runtime.openvino import OpenVinoPredictor  # few folders have a file for it

    return OpenVinoPredictor(path, threads)


Opener = Callable[[Path, int | None], FilePredictor]
"""Opens a file, with a number of threads or None for all cores that this process may use."""

_ENGINES: dict[Format, Opener] = {Format.ONNX: OnnxPredictor, Format.TFLITE: TflitePredictor, Format.COREML: _coreml}


def register_engine(format: Format, opener: Opener) -> None:
    """Register the engine that opens the files of a format.

    Raises:
        ValueError: If the format has one.
    """
    if format in _ENGINES:
        raise ValueError(f"format '{format}' has an engine already")
    _ENGINES[format] = opener


_OWN_ENGINES: dict[Runtime, Opener] = {Runtime.OPENVINO: _openvino}
"""For files made for one runtime that is another than their format's usual engine."""


def open_file(path: Path, kind: Format, threads: int | None = None, runtime: Runtime | None = None) -> FilePredictor:
    """Open a model file with the engine of its format, or with that of the runtime it was made for.

    Args:
        path: The file.
        kind: Its format.
        threads: Threads within an operator; default all cores this process may use.
        runtime: The runtime it was made for, if it was made for one.

    Returns:
        A predictor.
    """
    own = _OWN_ENGINES.get(runtime) if runtime else None
    return (own or _ENGINES[kind])(path, threads)
