"""Which engine opens which format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pocketbert.core.artefacts import Signature
from pocketbert.core.predictor import Predictor
from pocketbert.core.types import Format
from pocketbert.runtime.onnx import OnnxPredictor
from pocketbert.runtime.tflite import TflitePredictor


class FilePredictor(Predictor, Protocol):
    """A predictor that runs a model file."""

    @property
    def signature(self) -> Signature:
        """Names, dtypes and shapes of inputs and outputs."""
        ...


def _coreml(path: Path, threads: int | None) -> FilePredictor:
    from pocketbert.runtime.coreml.predictor import (
        CoremlPredictor,
    )  # 30 modules that few prediction processes need

    return CoremlPredictor(path, threads)


_ENGINES: dict[Format, Callable[[Path, int | None], FilePredictor]] = {
    Format.ONNX: OnnxPredictor,
    Format.TFLITE: TflitePredictor,
    Format.COREML: _coreml,
}


def open_file(path: Path, kind: Format, threads: int | None = None) -> FilePredictor:
    """Open a model file with the engine of its format.

    Args:
        path: The file.
        kind: Its format.
        threads: Threads within an operator; default all cores this process may use.

    Returns:
        A predictor.
    """
    return _ENGINES[kind](path, threads)
