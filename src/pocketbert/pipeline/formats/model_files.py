"""A model file of a run: where it is in the run folder, where it goes in the artefact folder, what it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pocketbert.core.artefacts import MadeFor
from pocketbert.core.formats import FORMATS
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.types import Client, Format, Runtime, Scheme


@dataclass(frozen=True)
class ModelFile(MadeFor):
    """One model file.

    Attributes:
        source: Path in the run folder; its first part is the output of the stage that writes it.
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
    def stage(self) -> str:
        """The stage that writes it."""
        return self.source.split("/")[0]

    @property
    def exported(self) -> bool:
        """Whether an exporter writes it; the others are made from such a file."""
        return self.stage == self.format.value

    @property
    def title(self) -> str:
        """What tables call it, e.g. ``ONNX int8``."""
        extra = self.client or self.runtime
        return f"{FORMATS[self.format].title} {self.scheme}{f' for {extra}' if extra else ''}"


def quantized_stage(format: Format, scheme: Scheme) -> str:
    """Name of the stage, and of its folder, that makes a format's small files."""
    return f"{format}-{scheme}"


def smaller(recipe: Recipe, bases: Sequence[ModelFile]) -> list[ModelFile]:
    """What is made from the exported files of one format."""
    format = bases[0].format
    info = FORMATS[format]
    scheme = info.smaller(recipe.quantize.scheme)
    if scheme is None:
        return []
    stage = quantized_stage(format, scheme)
    out = [_file(stage, format, info.stem if b.client is None else b.client.value, scheme, b.client) for b in bases]
    runtimes = [t for t in recipe.quantize.targets if t in info.runtimes]
    return [*out, *(_file(stage, format, info.stem, scheme, None, t) for t in runtimes)]


def base_of(file: ModelFile, files: Sequence[ModelFile]) -> ModelFile:
    """The exported file that a file was made from."""
    return next(f for f in files if f.format is file.format and f.client is file.client and f.exported)


def default_file(files: Sequence[ModelFile]) -> ModelFile:
    """What `pocketbert.load` opens: the first format's smallest plain file."""
    return [f for f in files if f.plain and f.format is files[0].format][-1]


def exported_file(format: Format, scheme: Scheme, client: Client | None = None) -> ModelFile:
    """The file of a format that an exporter writes, for any client or for one."""
    return _file(format.value, format, client.value if client else FORMATS[format].stem, scheme, client)


def _file(
    stage: str, format: Format, stem: str, scheme: Scheme, client: Client | None = None, runtime: Runtime | None = None
) -> ModelFile:
    unnamed = scheme is FORMATS[format].base
    name = stem + ("" if unnamed else f"_{scheme}") + (f"_{runtime}" if runtime else "") + FORMATS[format].suffix
    return ModelFile(f"{stage}/{name}", f"{format}/{name}", format, scheme, client, runtime)
