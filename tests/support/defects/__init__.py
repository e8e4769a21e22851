"""Model files broken on purpose: one module per format, and in each the same verbs.

A verb changes an opened model in place, as a mistake of a converter or of a hand would. `break_file` applies one to a file.
"""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from pocketbert.core.disk.files import path_bytes, sha256_path
from pocketbert.core.types import Format

ONNX, ONNX_INT8 = "onnx/model.onnx", "onnx/model_int8.onnx"
TFLITE, TFLITE_INT8 = "tflite/model.tflite", "tflite/model_int8.tflite"
TFLITE_OLD = "tflite/model_int8_tflite216.tflite"
MEDIAPIPE, MEDIAPIPE_INT8 = "tflite/mediapipe.tflite", "tflite/mediapipe_int8.tflite"
COREML, COREML_W8 = "coreml/Model.mlpackage", "coreml/Model_w8.mlpackage"
FILES = {
    Format.ONNX: (ONNX, ONNX_INT8),
    Format.TFLITE: (TFLITE, MEDIAPIPE, TFLITE_INT8, MEDIAPIPE_INT8, TFLITE_OLD),
    Format.COREML: (COREML, COREML_W8),
}
"""Model files of the finished runs' artefact folders; of each format the exported file is the first."""
STEPS = {
    **{ONNX_INT8: "onnx-int8", COREML_W8: "coreml-w8"},
    **dict.fromkeys((TFLITE_INT8, MEDIAPIPE_INT8, TFLITE_OLD), "tflite-int8"),
}
"""Folder of the run folder where a smaller file lies; the others lie in the folder named like their format."""
VERBS = (
    "rewrite",  # the file is written again with another description: nothing is broken
    "ignore_mask",  # the input stays, but every use of it reads ones
    "swap_labels",  # outputs 0 and 1 change places in all that is stored of the last layer
    "always_the_same",  # the last layer forgets everything: logits are its bias
    "a_little_more",  # every logit grows by more than engines differ, and than a scheme is off
    "one_nan",  # in the largest fp32 matrix, or another that every text passes through
    "one_hidden_nan",  # in the embedding of [MASK], a token that no text has: only reading the weights finds it
    "one_nan_scale",  # of [MASK]'s row; the numbers themselves are finite, being integers
)
"""What the module of every format can do to a model."""
NEEDS = {Format.TFLITE: "ai_edge_quantizer", Format.COREML: "coremltools"}


def format_of(file: str | Path) -> Format:
    """Tell the format from the name of a model file."""
    return {".onnx": Format.ONNX, ".tflite": Format.TFLITE, ".mlpackage": Format.COREML}[Path(file).suffix]


def defects_of(format: Format) -> ModuleType:
    """Import the defects of a format; a test skips where the format's extra is not installed."""
    if format in NEEDS:
        pytest.importorskip(NEEDS[format], reason=f"needs pocketbert[{format}]")
    return importlib.import_module(f"support.defects.{format}")


def source(run: Path, file: str) -> Path:
    """Return where a file of the artefact folder lies in the run folder."""
    return run / STEPS.get(file, format_of(file).value) / Path(file).name


def break_file(path: Path, verb: str) -> None:
    """Apply a verb of the format's module to a file or package in place."""
    module = defects_of(format_of(path))
    module.edit(path, getattr(module, verb))


def relist(folder: Path, name: str) -> None:
    """Bring artifacts.json and further names of the file up to date, so that only the other gates are left."""
    path = folder / "artifacts.json"
    content = json.loads(path.read_text())
    for record in content["files"]:
        if record.get("alias_of") == name:
            shutil.copyfile(folder / name, folder / record["path"])
        if name in (record["path"], record.get("alias_of")):
            record["sha256"], record["bytes"] = sha256_path(folder / name), path_bytes(folder / name)
    path.write_text(json.dumps(content))
