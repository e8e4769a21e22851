"""The table of writers of naive static files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from naive import coreml, onnx, tflite
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.types import Format

NAIVE = "naive static"
WRITERS: tuple[tuple[Format, str, Callable[[Path, Path, TextTokenizer, Sequence[Encoded]], None]], ...] = (
    (Format.ONNX, NAIVE, onnx.write_naive),
    (Format.TFLITE, NAIVE, tflite.write_naive),
    (Format.COREML, NAIVE, coreml.write_naive),
    (Format.COREML, f"{NAIVE}, all rows", partial(coreml.write_naive, all_rows=True)),
)
"""Formats, titles and writers; that of Core ML also with ranges of all calibration rows instead of the last one."""
