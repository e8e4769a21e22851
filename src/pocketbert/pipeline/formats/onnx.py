"""ONNX: one file for all lengths; what ONNX Runtime, OpenVINO, transformers.js and sentence-transformers open."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.artefacts import Artefacts
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.formats.model_files import ModelFile
from pocketbert.pipeline.formats.place import Extras, FormatPlace
from pocketbert.pipeline.formats.run_model import RunModel
from pocketbert.pipeline.formats.snippets import javascript, mobile, python
from pocketbert.pipeline.formats.snippets.parts import smallest
from pocketbert.pipeline.formats.stored.tracker import Constant

if TYPE_CHECKING:
    from torch import nn

ALIAS = "onnx/model_quantized.onnx"
"""Name under which transformers.js (browser) and optimum look for the int8 file."""


class OnnxPlace(FormatPlace):
    """The ONNX files of a run."""

    format = Format.ONNX

    def settings(self, recipe: Recipe) -> dict[str, object]:
        """Return the operator set."""
        return {"export": {"opset": recipe.export.opset}}

    def write(self, model: RunModel, module: nn.Module, file: ModelFile, destination: Path) -> None:
        """Export with both axes free."""
        from pocketbert.export import onnx

        rows = model.tokenizer.encode(list(SENTENCES[:2]))
        example = model.tokenizer.pad(rows, max(min(32, model.length), *map(len, rows)))
        onnx.export(module, model.folder.family, model.task, example, destination, model.recipe.export.opset)

    def constants(self, path: Path) -> list[list[Constant]]:
        """Read the constants of a file."""
        from pocketbert.pipeline.formats.stored.onnx import onnx_constants

        return onnx_constants(path)

    def processing(self, artefacts: Artefacts) -> list[str]:
        """Tell that both axes are free, and what dynamic int8 depends on."""
        if not any(r.format is self.format for r in artefacts.models()):
            return []
        return [
            "ONNX: int64 inputs [batch, length], any sizes. Dynamic int8 depends a little on batch and padding: feed one unpadded "
            "text at a time for the recorded figures."
        ]

    def snippets(self, artefacts: Artefacts) -> list[str]:
        """Show ONNX Runtime in three languages, sentence-transformers and transformers.js."""
        record = smallest(artefacts, self.format)
        if record is None:
            return []
        vectors = artefacts.task is TaskName.FEATURE_EXTRACTION
        text_only = artefacts.form is None  # these clients have no place for another input
        return [
            python.onnx(artefacts, record),
            *([python.sentence_transformers(record)] if vectors and text_only else []),
            *([javascript.transformers_js(artefacts, record)] if text_only else []),
            mobile.onnx_kotlin(artefacts, record),
            mobile.onnx_swift(artefacts, record),
        ]

    def pack(self, files: Sequence[ModelFile], folder: ModelFolder, destination: Path) -> Extras:
        """Give the int8 file the name that transformers.js asks for in a browser; without one, config.json names fp32."""
        int8 = next((f for f in files if f.plain and f.scheme is Scheme.INT8), None)
        if int8 is not None:
            _link(destination / int8.path, destination / ALIAS)
            return Extras(aliases={ALIAS: int8.path})
        content = {**read_json(folder.path / "config.json"), "transformers.js_config": {"dtype": "fp32"}}
        write_json(destination / "config.json", content)
        return Extras()


def _link(source: Path, destination: Path) -> None:
    try:
        os.link(source, destination)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, destination)
