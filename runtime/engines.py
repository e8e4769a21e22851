"""Which engine opens which format."""

from __future__ import annotations

from pathlib import Path

from pocketbert.core.predictor import Predictor
from pocketbert.core.types import Format
from pocketbert.runtime.onnx import OnnxPredictor


def open_file(path: Path, kind: Format = Format.ONNX, threads: int | None = None) -> Predictor:
    """Open a model file with the engine of its format.

    Args:
        path: The file.
        kind: Its format.
        threads: Threads within an operator; default all cores this process may use.

    Returns:
        A predictor.
    """
    engines = {Format.ONNX: OnnxPredictor}
    return engines[kind](path, threads)
