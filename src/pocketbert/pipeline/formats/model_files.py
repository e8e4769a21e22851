"""Which model files a recipe makes: where each is in the run folder, and where it goes in the artefact folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pocketbert.core.artefacts import MadeFor
from pocketbert.core.formats import FORMATS
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Client, Format, Runtime, Scheme

MEDIAPIPE_FILE = "tflite/mediapipe.tflite"


@dataclass(frozen=True)
class ModelFile(MadeFor):
    """One model file.

    Attributes:
        source: Path in the run folder; its first part is the output of the step that writes it.
        path: Path in the artefact folder.
        format: What opens it.
        scheme: How its numbers are stored.
        client: The client it is made for, if it is for one only.
        runtime: The runtime it is made for, if it is for one.
    """

    source: str
    path: str
    format: Format
    scheme: Scheme
    client: Client | None = None
    runtime: Runtime | None = None

    @property
    def step(self) -> str:
        """The step that writes it."""
        return self.source.split("/")[0]

    @property
    def exported(self) -> bool:
        """Whether an exporter writes it; the others are made from such a file."""
        return self.step == self.format.value

    @property
    def title(self) -> str:
        """What tables call it, e.g. ``ONNX int8``."""
        extra = self.client or self.runtime
        return f"{FORMATS[self.format].title} {self.scheme}{f' for {extra}' if extra else ''}"


def quantized_step(format: Format, scheme: Scheme) -> str:
    """Name of the step, and of its folder, that makes a format's files of one scheme."""
    return f"{format}-{scheme}"


def model_files(recipe: Recipe, weights: Path) -> list[ModelFile]:
    """Files that a recipe makes, format by format, each exported file before what is made from it.

    Args:
        recipe: What to do.
        weights: Folder of the exported model, whose tokenizer decides whether MediaPipe can run it.
    """
    out = []
    for format in recipe.export.formats:
        bases = [_exported(format, FORMATS[format].stem, recipe)]
        wanted = format is Format.TFLITE and Client.MEDIAPIPE in recipe.export.clients
        if wanted and mediapipe_refusal(recipe, weights) is None:
            bases.append(_exported(format, "mediapipe", recipe, Client.MEDIAPIPE))
        out += bases
        out += smaller(recipe, bases)
    return out


def smaller(recipe: Recipe, bases: Sequence[ModelFile]) -> list[ModelFile]:
    """What is made from the exported files of one format: scheme by scheme, files for one runtime last."""
    format = bases[0].format
    stem, out = FORMATS[format].stem, []
    for scheme, runtimes in quantized_forms(recipe, format).items():
        step = quantized_step(format, scheme)
        for runtime in sorted(runtimes, key=lambda r: r is not None):
            if runtime is None:
                out += [_file(step, format, b.client.value if b.client else stem, scheme, b.client) for b in bases]
            else:
                out.append(_file(step, format, stem, scheme, None, runtime))
    return out


def quantized_forms(recipe: Recipe, format: Format) -> dict[Scheme, list[Runtime | None]]:
    """Schemes of a format's smaller files in the recipe's order, each with its runtimes; None is any runtime."""
    info, out = FORMATS[format], dict[Scheme, list[Runtime | None]]()
    for file in recipe.quantize.wanted:
        scheme = info.smaller(file.scheme) if file.runtime is None and info.takes(file.scheme) else None
        if file.runtime is not None and (file.scheme, file.runtime) in info.forms:
            scheme = file.scheme
        if scheme is not None and file.runtime not in out.setdefault(scheme, []):
            out[scheme].append(file.runtime)
    return out


def base_of(file: ModelFile, files: Sequence[ModelFile]) -> ModelFile:
    """The exported file that a file was made from."""
    return next(f for f in files if f.format is file.format and f.client is file.client and f.exported)


def default_file(files: Sequence[ModelFile]) -> ModelFile:
    """What `pocketbert.load` opens: of the first format's plain files the first smaller one, else the exported one."""
    plain = [f for f in files if f.plain and f.format is files[0].format]
    return next((f for f in plain if not f.exported), plain[0])


def exported_scheme(recipe: Recipe, format: Format) -> Scheme:
    """How the files that a format's exporter writes store their numbers."""
    return recipe.export.coreml.precision if format is Format.COREML else Scheme.FP32


def _exported(format: Format, stem: str, recipe: Recipe, client: Client | None = None) -> ModelFile:
    return _file(format.value, format, stem, exported_scheme(recipe, format), client)


def _file(
    step: str, format: Format, stem: str, scheme: Scheme, client: Client | None = None, runtime: Runtime | None = None
) -> ModelFile:
    unnamed = scheme is FORMATS[format].base
    name = stem + ("" if unnamed else f"_{scheme}") + (f"_{runtime}" if runtime else "") + FORMATS[format].suffix
    return ModelFile(f"{step}/{name}", f"{format}/{name}", format, scheme, client, runtime)


def mediapipe_refusal(recipe: Recipe, weights: Path) -> str | None:
    """Why MediaPipe Tasks cannot run this model, in one sentence; None where it can."""
    from pocketbert.export.mediapipe import refusal

    if Format.TFLITE not in recipe.export.formats:
        return None
    sources = (recipe.data.train, recipe.data.eval)
    pair = any(s is not None and s.text_pair is not None for s in sources)
    return refusal(weights, task_of(recipe.task).name, pair)


def absent_files(recipe: Recipe, weights: Path) -> dict[str, str]:
    """Files that a reader of the folder may look for, and why they are not there."""
    if Format.TFLITE not in recipe.export.formats:
        return {}
    if Client.MEDIAPIPE not in recipe.export.clients:
        return {MEDIAPIPE_FILE: "The recipe asked for no file for MediaPipe (export.clients)."}
    reason = mediapipe_refusal(recipe, weights)
    return {MEDIAPIPE_FILE: reason} if reason else {}
