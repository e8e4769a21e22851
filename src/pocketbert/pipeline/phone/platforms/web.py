"""The web: one ONNX file under the name that transformers.js asks for."""

from __future__ import annotations

from pocketbert.core.artefacts import Artefacts, ModelRecord
from pocketbert.core.artefacts.choice import best_of
from pocketbert.core.predict.pooling import MODULES_FILE, POOLING_FILE
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.formats.onnx import ALIAS
from pocketbert.pipeline.formats.snippets.parts import CHECKED
from pocketbert.pipeline.phone.platforms.platform import AppPlatform, Choice


class Web(AppPlatform):
    """What transformers.js downloads: in a browser it takes the int8 file under its default name, `onnx/model_quantized.onnx`."""

    name = "web"
    title = "transformers.js"
    lacks = (
        "has no ONNX file in fp32 or int8 that passed its gates; transformers.js runs these.",
        "Export again with --format onnx.",
    )
    useful = (*AppPlatform.useful, MODULES_FILE, POOLING_FILE)

    def models(self, artefacts: Artefacts) -> Choice:
        """Choose the int8 file, else the exported one: a browser asks for no file of another scheme by itself."""
        files = [r for r in artefacts.models() if r.format is Format.ONNX and r.plain and r.scheme in CHECKED]
        return Choice([best_of(files, Scheme.INT8)] if files else [])

    def path(self, artefacts: Artefacts, record: ModelRecord) -> str:
        """Name the int8 file as browsers ask for it."""
        return ALIAS if record.scheme is Scheme.INT8 else record.path
