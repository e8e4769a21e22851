"""One function for each kind of file that an exporter writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.host.versions import version_of
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.predict.pooling import DEFAULT_POOLING, pooling_of
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import Task, TaskName
from pocketbert.core.types import Client, Format, Shapes
from pocketbert.pipeline.formats.model_files import ModelFile

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ExportJob:
    """A model on its way into a file.

    Attributes:
        recipe: What to do.
        folder: Where the model comes from.
        task: What it does.
        module: The model, prepared for the format.
        tokenizer: Cuts at `length`.
        length: Longest input in tokens.
    """

    recipe: Recipe
    folder: ModelFolder
    task: Task
    module: nn.Module
    tokenizer: TextTokenizer
    length: int


def file_lengths(recipe: Recipe, file: ModelFile, length: int) -> list[int]:
    """Lengths in tokens of a fixed-length file's signatures: those of the recipe, and the longest input allowed.

    A file with one length pads everything to it, so it gets the recipe's longest, not the model's.
    """
    wanted = sorted({min(n, length) for n in recipe.export.lengths})
    fixed = file.format is Format.COREML and recipe.export.coreml.lengths is Shapes.FIXED
    if fixed or file.client is Client.MEDIAPIPE:
        return wanted[-1:]
    return sorted({*wanted, length})


def write_file(job: ExportJob, file: ModelFile, path: Path) -> None:
    """Export a model.

    Args:
        job: What to export.
        file: As what.
        path: Where to write.
    """
    writers = {Format.ONNX: _onnx, Format.TFLITE: _tflite, Format.COREML: _coreml}
    writers[file.format](job, file, path)


def _onnx(job: ExportJob, file: ModelFile, path: Path) -> None:
    from pocketbert.export import onnx

    family = job.folder.family
    rows = job.tokenizer.encode(list(SENTENCES[:2]))
    example = job.tokenizer.pad(rows, max(min(32, job.length), *map(len, rows)))
    onnx.export(job.module, family, job.task, example, path, job.recipe.export.opset)


def _tflite(job: ExportJob, file: ModelFile, path: Path) -> None:
    from pocketbert.export import tflite

    lengths = file_lengths(job.recipe, file, job.length)
    if file.client is Client.MEDIAPIPE:
        tflite.export_mediapipe(job.module, job.folder.family, job.task, lengths[0], path)
        write_client_data(job.recipe, job.folder, job.task, path)
    else:
        tflite.export(job.module, job.folder.family, job.task, lengths, path)


def _coreml(job: ExportJob, file: ModelFile, path: Path) -> None:
    from pocketbert.export import coreml

    settings, labels = job.recipe.export.coreml, named_labels(job.folder, job.task)
    form = coreml.CoremlForm(settings.ios, settings.lengths, settings.precision)
    notes = {
        "pocketbert.task": job.task.name.value,
        "pocketbert.family": job.folder.family.name,
        "pocketbert.layout": settings.layout.value,
        "pocketbert.labels": json.dumps(labels, ensure_ascii=False),
    }
    info = coreml.CoremlInfo(
        description=_description_of(job.recipe, job.folder, job.task),
        version=f"{job.recipe.name} {job.folder.sha256[:12]}",
        author=_maker(),
        license=job.folder.licence,
        labels=labels,
        notes=tuple(notes.items()),
    )
    lengths = file_lengths(job.recipe, file, job.length)
    coreml.export(job.module, job.folder.family, job.task, lengths, path, form, info)


def named_labels(folder: ModelFolder, task: Task) -> tuple[str, ...]:
    """Label names of tasks that have labels; other models' config.json may still name those of a classifier."""
    return tuple(folder.labels or ()) if task.names_labels else ()


def _output(folder: ModelFolder, task: Task) -> dict[str, str]:
    if task.name is not TaskName.FEATURE_EXTRACTION:
        return {}
    return {"output": (pooling_of(folder.path) or DEFAULT_POOLING).title}


def write_client_data(recipe: Recipe, folder: ModelFolder, task: Task, path: Path) -> None:
    """Put tokenizer and labels into a file for MediaPipe, before or after quantization."""
    from pocketbert.export.mediapipe_vocabulary import vocabulary_of
    from pocketbert.export.tflite_metadata import MediaPipeInfo, write_metadata

    info = MediaPipeInfo(
        name=recipe.name,
        description=_description_of(recipe, folder, task),
        version=f"made by {_maker()}",
        author="",
        license=folder.licence,
        labels=named_labels(folder, task),
        vocabulary=vocabulary_of(folder.path),
        **_output(folder, task),
    )
    path.write_bytes(write_metadata(path.read_bytes(), info))


def _description_of(recipe: Recipe, folder: ModelFolder, task: Task) -> str:
    return recipe.description or f"{folder.family.title} for {task.name}"


def _maker() -> str:
    return f"PocketBERT {version_of('pocketbert') or ''}".strip()
