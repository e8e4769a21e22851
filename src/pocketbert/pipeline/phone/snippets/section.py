"""Code for the model card: how each client opens the files that this folder really has."""

from __future__ import annotations

from pocketbert.core.artefacts import Artefacts
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Client, Format
from pocketbert.pipeline.phone.snippets import javascript, mobile, python
from pocketbert.pipeline.phone.snippets.parts import smallest


def snippets(artefacts: Artefacts) -> str:
    """The card's section on use, as Markdown: a sentence that ends with a colon, then its code, for each client."""
    parts = [python.pocketbert(artefacts)]
    onnx, tflite = smallest(artefacts, Format.ONNX), smallest(artefacts, Format.TFLITE)
    if onnx is not None:
        parts.append(python.onnx(artefacts, onnx))
        if artefacts.task is TaskName.FEATURE_EXTRACTION:
            parts.append(python.sentence_transformers(onnx))
        parts += [
            javascript.transformers_js(artefacts, onnx),
            mobile.onnx_kotlin(artefacts, onnx),
            mobile.onnx_swift(artefacts, onnx),
        ]
    if tflite is not None:
        parts += [python.litert(artefacts, tflite), mobile.litert_kotlin(artefacts, tflite)]
    coreml = smallest(artefacts, Format.COREML)
    if coreml is not None:
        parts.append(mobile.coreml_swift(artefacts, coreml))
    mediapipe = [r for r in artefacts.models() if r.client is Client.MEDIAPIPE]
    if mediapipe:
        parts.append(mobile.mediapipe_kotlin(artefacts, mediapipe[-1]))
    return "\n\n".join(["## Use", *parts])
