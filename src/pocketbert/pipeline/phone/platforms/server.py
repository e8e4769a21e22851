"""A server: the default file, with what `pocketbert.load` reads."""

from __future__ import annotations

from pocketbert.core.artefacts import Artefacts
from pocketbert.core.artefacts.choice import best_of, wanted_scheme
from pocketbert.core.predict.column_reader import ENTITIES_FILE
from pocketbert.core.predict.pooling import MODULES_FILE, POOLING_FILE
from pocketbert.core.types import Format
from pocketbert.pipeline.phone.platforms.platform import AppPlatform, Choice

_FORMATS = (Format.ONNX, Format.TFLITE)


class Server(AppPlatform):
    """One file for `pocketbert.load`, `pocketbert predict` or ONNX Runtime."""

    name = "server"
    title = "a server"
    lacks = (
        "has neither an ONNX nor a TFLite file that passed its gates; servers run these.",
        "Export again with --format onnx.",
    )
    useful = (*AppPlatform.useful, MODULES_FILE, POOLING_FILE, ENTITIES_FILE)
    takes_forms = True

    def models(self, artefacts: Artefacts) -> Choice:
        """Choose the default file; where that is a Core ML package, the ONNX or TFLite file of its scheme."""
        if not artefacts.models():
            return Choice([])
        default = artefacts.default_model()
        if default.format is not Format.COREML:
            return Choice([default])
        files = [r for format in _FORMATS for r in artefacts.models() if r.format is format and r.plain]
        return Choice([best_of(files, wanted_scheme(default))] if files else [])
