"""TFLite: one signature per length; what LiteRT, older TFLite runtimes and MediaPipe Tasks open."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.artefacts import Artefacts, Minimum, ModelRecord
from pocketbert.core.compare.golden import GoldenRow
from pocketbert.core.families import TEXT_ONLY
from pocketbert.core.host.versions import version_of
from pocketbert.core.predict.tokenization import padding_side_of, truncation_side_of
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Client, Format, Provenance, Runtime, Scheme
from pocketbert.pipeline.formats.gate import Gate, Subject, unread_gate
from pocketbert.pipeline.formats.mediapipe import tokenizer_effect, write_client_data
from pocketbert.pipeline.formats.model_files import ModelFile
from pocketbert.pipeline.formats.offer import TOKENIZER, Offer, Platform, pinned, tokenizer_of
from pocketbert.pipeline.formats.oldest import engine_lines, oldest_engine
from pocketbert.pipeline.formats.place import FormatPlace, shorter
from pocketbert.pipeline.formats.run_model import RunModel
from pocketbert.pipeline.formats.snippets import kotlin, python
from pocketbert.pipeline.formats.snippets.parts import CHECKED, lengths, offered
from pocketbert.pipeline.formats.stored.tracker import Constant

if TYPE_CHECKING:
    from torch import nn

MEDIAPIPE_FILE = "tflite/mediapipe.tflite"
_SELF_TEST = "An app should check a row of `selftest.json` when it starts."
_WRONG = "gives wrong answers without an error"
_LIMITS = {
    Scheme.INT8: f"For LiteRT only: TFLite up to 2.16 opens it and {_WRONG}. {_SELF_TEST}",
    Scheme.A8W8: f"For LiteRT only: TFLite 2.14 opens it and {_WRONG}. {_SELF_TEST}",
    Scheme.SMALL: f"For LiteRT 1.4 or newer: LiteRT 1.3 {_WRONG}, TFLite 2.14 fails when it runs it. {_SELF_TEST}",
    Scheme.W4: f"Needs LiteRT 2.1 or newer, not the version named here: LiteRT 1.3 to 2.0 {_WRONG}, TFLite 2.14 fails when it runs it. {_SELF_TEST}",
}
"""What is told of files that older runtimes cannot compute."""


class TflitePlace(FormatPlace):
    """The TFLite files of a run, MediaPipe's among them."""

    format = Format.TFLITE

    def settings(self, recipe: Recipe) -> dict[str, object]:
        """Return the clients, and what MediaPipe's file tells about itself."""
        return {"export": {"clients": recipe.export.clients}, "name": recipe.name, "description": recipe.description}

    def clients(self, recipe: Recipe, weights: Path) -> list[Client]:
        """List MediaPipe, where the recipe asks for it and it can run the model."""
        wanted = Client.MEDIAPIPE in recipe.export.clients
        return [Client.MEDIAPIPE] if wanted and _refusal(recipe, weights) is None else []

    def absent(self, recipe: Recipe, weights: Path) -> dict[str, str]:
        """Tell why there is no file for MediaPipe."""
        if Client.MEDIAPIPE not in recipe.export.clients:
            return {MEDIAPIPE_FILE: "The recipe asked for no file for MediaPipe (export.clients)."}
        reason = _refusal(recipe, weights)
        return {MEDIAPIPE_FILE: reason} if reason else {}

    def lengths(self, recipe: Recipe, file: ModelFile, length: int) -> list[int]:
        """Choose one length for MediaPipe, the recipe's longest."""
        if file.client is Client.MEDIAPIPE:
            return shorter(recipe, length)[-1:]
        return super().lengths(recipe, file, length)

    def write(self, model: RunModel, module: nn.Module, file: ModelFile, destination: Path) -> None:
        """Export with a signature for each length, or for MediaPipe with tokenizer and labels inside."""
        from pocketbert.export import tflite

        family, task = model.folder.family, model.task
        lengths = self.lengths(model.recipe, file, model.length)
        if file.client is Client.MEDIAPIPE:
            tflite.export_mediapipe(module, family, task, lengths[0], destination)
            self.finish(model, file, destination)
        else:
            tflite.export(module, family, task, lengths, destination)

    def finish(self, model: RunModel, file: ModelFile, path: Path) -> None:
        """Put tokenizer and labels into MediaPipe's file again: the quantizer writes the graph only."""
        if file.client is Client.MEDIAPIPE:
            write_client_data(model, path)

    def gates(self, subject: Subject, rows: Sequence[GoldenRow]) -> list[Gate]:
        """Check the metadata of MediaPipe's file, and what an accelerator leaves to the CPU of the file made for it."""
        if subject.runtime is not None and subject.runtime.accelerator:
            return [unread_gate(subject, "placement") or _placement(subject)]
        return [_metadata(subject)] if subject.client is Client.MEDIAPIPE else []

    def constants(self, path: Path) -> list[list[Constant]]:
        """Read the constants of a file."""
        from pocketbert.pipeline.formats.stored.tflite import tflite_constants

        return tflite_constants(path)

    def file_notes(self, model: RunModel) -> dict[str, str]:
        """Tell what MediaPipe's own tokenizer changes."""
        files = [f for f in model.files if f.client is Client.MEDIAPIPE]
        if not files:
            return {}
        effect = tokenizer_effect(model.source(files[0]), model.weights, model.task).summary
        return {f.path: effect for f in files}

    def processing(self, artefacts: Artefacts) -> list[str]:
        """List the signatures, and tell which int8 file is for which runtime."""
        record = offered(artefacts, self.format)
        if record is None or not record.signature:
            return []
        known = ", ".join(map(str, lengths(record)))
        return [
            f"TFLite: int32 inputs [1, length], one signature `seq_LENGTH` each for {known} tokens; pad to the next one.",
            "Files in int8 and 4 bits without a runtime in their names are for LiteRT (ai-edge-litert; checked with the version "
            "in `artifacts.json`), not for TFLite up to 2.16. PocketBERT checks golden rows before first use.",
            *engine_lines([r for r in artefacts.models() if r.format is self.format]),
        ]

    def minimum(self, file: ModelFile, path: Path) -> Minimum | None:
        """Tell the oldest LiteRT that computes files of a scheme; the file itself does not say it."""
        engine = oldest_engine(self.format, file.scheme) if file.plain else None
        return Minimum(engine=engine) if engine is not None else None

    def offers(self, artefacts: Artefacts) -> list[Offer]:
        """Offer MediaPipe's file and LiteRT's to Android, and LiteRT's to Python."""
        out, record = [], offered(artefacts, self.format)
        mediapipe = offered(artefacts, self.format, Client.MEDIAPIPE, CHECKED)
        if mediapipe is not None:
            out.append(_simple(artefacts, mediapipe))
        if record is not None:
            out += [_android(artefacts, record), _python(artefacts, record)]
        return out

    def snippets(self, artefacts: Artefacts) -> list[str]:
        """Add nothing: every client that opens a TFLite file has a row in the table."""
        return []


def _simple(artefacts: Artefacts, record: ModelRecord) -> Offer:
    return Offer(
        platform=Platform.ANDROID_SIMPLE,
        record=record,
        beside=(),
        needs="the minimum of MediaPipe Tasks",
        tokenizer="inside the file",
        dependencies=tuple(f'{line[:-2]}:VERSION")' for line in kotlin.gradle(kotlin.MEDIAPIPE)),
        snippet=kotlin.mediapipe(artefacts, record),
        notes=(
            f"Run with the Python package mediapipe {kotlin.MEDIAPIPE_PYTHON}; the library for Android is in Google's repository, "
            "which this project could not reach: take the newest version.",
        ),
    )


def _android(artefacts: Artefacts, record: ModelRecord) -> Offer:
    return Offer(
        platform=Platform.ANDROID_LITERT,
        record=record,
        beside=(TOKENIZER,),
        needs=f"{kotlin.ANDROID}; LiteRT {kotlin.LITERT.rpartition(':')[2]}",
        tokenizer=tokenizer_of(artefacts, "Kotlin"),
        dependencies=kotlin.gradle(kotlin.LITERT, kotlin.GSON),
        snippet=kotlin.litert(artefacts, record),
        notes=(
            *([_LIMITS[record.scheme]] if record.scheme in _LIMITS else []),
            f"The library for Android was never run by this project, `{pinned(artefacts, 'ai-edge-litert')}` of Python was.",
        ),
    )


def _python(artefacts: Artefacts, record: ModelRecord) -> Offer:
    engine, tokenizers = (pinned(artefacts, name) for name in ("ai-edge-litert", "tokenizers"))
    return Offer(
        platform=Platform.PYTHON,
        record=record,
        beside=(TOKENIZER,),
        needs=engine.replace("==", " "),
        tokenizer=f"`tokenizers`, reads `{TOKENIZER}`",
        dependencies=(f"pip install {engine} {tokenizers} numpy",),
        snippet=python.litert(artefacts, record),
    )


def _refusal(recipe: Recipe, weights: Path) -> str | None:
    """Why MediaPipe Tasks cannot run this model, in one sentence; None where it can."""
    from pocketbert.export.mediapipe import refusal

    if recipe.export.form not in (None, TEXT_ONLY):
        return (
            f"MediaPipe Tasks give a file ids, mask and segments only; the form '{recipe.export.form}' has more inputs."
        )
    sources = (recipe.data.train, recipe.data.eval)
    pair = any(s is not None and s.text_pair is not None for s in sources)
    sides = padding_side_of(weights), truncation_side_of(weights)
    return refusal(weights, task_of(recipe.task).name, pair, *sides)


def _metadata(subject: Subject) -> Gate:
    if version_of("flatbuffers") is None or version_of("ai-edge-litert") is None:
        return Gate(
            name="metadata",
            file=subject.name,
            passed=True,
            skipped=True,
            detail="not checked: ai-edge-litert and flatbuffers are not installed here.",
        )
    from pocketbert.export.mediapipe_vocabulary import vocabulary_of
    from pocketbert.export.tflite_metadata import metadata_problems

    problems = metadata_problems(subject.path.read_bytes(), subject.labels, vocabulary_of(subject.folder))
    return Gate(
        name="metadata",
        file=subject.name,
        passed=not problems,
        detail=" ".join(problems)
        or "vocabulary and labels inside the file are those of the folder, inputs are named in graph order.",
    )


def _placement(subject: Subject) -> Gate:
    """Whether an accelerator takes the matrix products; other operators that stay on the CPU are named."""
    from pocketbert.quantize.tflite import gpu, npu

    if subject.runtime is Runtime.GPU:
        refusals = gpu.gpu_refusals(subject.path)
        listed = [f"{r.count} {r.operator} ({r.reason})" for r in refusals]
        count, fails = sum(r.count for r in refusals), gpu.leaves_products(refusals)
        all_taken = "all operators are in the list of LiteRT's GPU delegate"
    else:
        floats = npu.float_operators(subject.path)
        listed = [f"{n} {kind}" for kind, n in floats.most_common()]
        count, fails = floats.total(), npu.leaves_products(floats)
        all_taken = "all operators compute in integers of 8 and 16 bits"
    said = f"stays on the CPU: {', '.join(listed)}" if listed else all_taken
    return Gate(
        name="placement",
        file=subject.name,
        passed=not fails,
        value=float(count),
        detail=f"{said}. {Provenance.COMPILED_ONLY.value.capitalize()}: read from the graph, not run on the chip.",
    )
