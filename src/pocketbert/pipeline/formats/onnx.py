"""ONNX: one file for all lengths; what ONNX Runtime, OpenVINO, transformers.js and sentence-transformers open."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.artefacts import Artefacts, Minimum, ModelRecord
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.host.versions import version_of
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.formats.model_files import ModelFile
from pocketbert.pipeline.formats.offer import TOKENIZER, Offer, Platform, pinned, tokenizer_of
from pocketbert.pipeline.formats.oldest import engine_lines, engine_needs, oldest_engine
from pocketbert.pipeline.formats.place import Extras, FormatPlace
from pocketbert.pipeline.formats.run_model import RunModel
from pocketbert.pipeline.formats.snippets import javascript, kotlin, python, swift
from pocketbert.pipeline.formats.snippets.parts import CHECKED, offered
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

    def finish(self, model: RunModel, file: ModelFile, path: Path) -> None:
        """Fix the shape of a file for an accelerator, which takes no free axes."""
        if file.runtime is not None and file.runtime.accelerator:
            from pocketbert.quantize.onnx.qnn.shape import fix_shape

            fix_shape(path, model.length)

    def constants(self, path: Path) -> list[list[Constant]]:
        """Read the constants of a file."""
        from pocketbert.pipeline.formats.stored.onnx import onnx_constants

        return onnx_constants(path)

    def processing(self, artefacts: Artefacts) -> list[str]:
        """Tell that both axes are free, and what dynamic int8 depends on."""
        own = [r for r in artefacts.models() if r.format is self.format]
        if not own:
            return []
        return [
            "ONNX: int64 inputs [batch, length], any sizes. Dynamic int8 depends a little on batch and padding: feed one unpadded "
            "text at a time for the recorded figures.",
            *engine_lines(own),
        ]

    def minimum(self, file: ModelFile, path: Path) -> Minimum | None:
        """Read operator set, version of the file format and foreign operators; None where the `onnx` package is not installed."""
        if version_of("onnx") is None:
            return None
        import onnx

        model = onnx.load(str(path), load_external_data=False)
        opset = next((int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None)
        foreign = sorted({f"{n.domain}.{n.op_type}" for n in model.graph.node if n.domain not in ("", "ai.onnx")})
        engine = oldest_engine(self.format, file.scheme) if file.plain else None
        return Minimum(opset=opset, ir_version=int(model.ir_version), operators=foreign, engine=engine)

    def offers(self, artefacts: Artefacts) -> list[Offer]:
        """Offer one file to Android, the web and Python, and to iOS where there is no Core ML package."""
        record = offered(artefacts, self.format)
        if record is None:
            return []
        platforms = [_android(artefacts, record), _python(artefacts, record)]
        if artefacts.form is None:  # transformers.js has no place for another input
            platforms.append(_web(artefacts, record))
        if not _has_packages(artefacts):
            platforms.append(_ios(artefacts, record))
        return platforms

    def snippets(self, artefacts: Artefacts) -> list[str]:
        """Show sentence-transformers, and ONNX Runtime in Swift where a Core ML package is the first choice on iOS."""
        record = offered(artefacts, self.format)
        if record is None:
            return []
        vectors = artefacts.task is TaskName.FEATURE_EXTRACTION
        text_only = artefacts.form is None  # these clients have no place for another input
        return [
            *([python.sentence_transformers(artefacts, record)] if vectors and text_only else []),
            *([swift.onnx(artefacts, record)] if _has_packages(artefacts) else []),
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


def _has_packages(artefacts: Artefacts) -> bool:
    return any(r.format is Format.COREML for r in artefacts.models())


def _file_needs(record: ModelRecord) -> str:
    """Operator set and file version, where they were read."""
    minimum = record.minimum
    needs = f"opset {minimum.opset}, IR {minimum.ir_version}" if minimum and minimum.opset else ""
    return ", ".join(filter(None, [needs, engine_needs(record)]))


def _with_file(library: str, record: ModelRecord) -> str:
    needs = _file_needs(record)
    return f"{library} ({needs})" if needs else library


def _android(artefacts: Artefacts, record: ModelRecord) -> Offer:
    version = kotlin.ORT.rpartition(":")[2]
    return Offer(
        platform=Platform.ANDROID_ONNX,
        record=record,
        beside=(TOKENIZER,),
        needs=f"{kotlin.ANDROID}; {_with_file(f'ONNX Runtime {version}', record)}",
        tokenizer=tokenizer_of(artefacts, "Kotlin"),
        dependencies=kotlin.gradle(kotlin.ORT, kotlin.GSON),
        snippet=kotlin.onnx(artefacts, record),
        notes=(
            f"The code ran with the library for computers, `com.microsoft.onnxruntime:onnxruntime:{version}`; "
            "the library for Android was never run by this project.",
        ),
    )


def _ios(artefacts: Artefacts, record: ModelRecord) -> Offer:
    return Offer(
        platform=Platform.IOS_ONNX,
        record=record,
        beside=(TOKENIZER,),
        needs=_with_file("ONNX Runtime", record),
        tokenizer=tokenizer_of(artefacts, "Swift"),
        dependencies=(f"{swift.ORT_PACKAGE} (SwiftPM; no version was tried)",),
        snippet=swift.onnx(artefacts, record),
    )


def _web(artefacts: Artefacts, record: ModelRecord) -> Offer:
    return Offer(
        platform=Platform.WEB,
        record=record,
        beside=(TOKENIZER,),
        needs=f"transformers.js {javascript.VERSION}" + (f" ({needs})" if (needs := _file_needs(record)) else ""),
        tokenizer=f"built in, reads `{TOKENIZER}`",
        dependencies=(f"npm install {javascript.PACKAGE}@{javascript.VERSION}",),
        snippet=javascript.transformers_js(artefacts, record),
        notes=(
            "JavaScript was run with Node.js 20, never in a browser"
            + ("." if record.scheme in CHECKED else ", and with fp32 and int8 files, not with this one."),
        ),
    )


def _python(artefacts: Artefacts, record: ModelRecord) -> Offer:
    engine, tokenizers = (pinned(artefacts, name) for name in ("onnxruntime", "tokenizers"))
    return Offer(
        platform=Platform.PYTHON,
        record=record,
        beside=(TOKENIZER,),
        needs=_with_file(engine.replace("==", " "), record),
        tokenizer=f"`tokenizers`, reads `{TOKENIZER}`",
        dependencies=(f"pip install {engine} {tokenizers} numpy",),
        snippet=python.onnx(artefacts, record),
    )


def _link(source: Path, destination: Path) -> None:
    try:
        os.link(source, destination)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, destination)
