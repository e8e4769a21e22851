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
    for file in (f for f in recipe.quantize.wanted if f.concerns(format)):
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


def exported_file(format: Format, scheme: Scheme, client: Client | None = None) -> ModelFile:
    """The file of a format that an exporter writes, for any client or for one."""
    return _file(format.value, format, client.value if client else FORMATS[format].stem, scheme, client)


def smaller_file(format: Format, scheme: Scheme) -> ModelFile:
    """The file of a format and scheme for any client and runtime, that a quantizer writes."""
    return _file(quantized_step(format, scheme), format, FORMATS[format].stem, scheme)


def _file(
    step: str, format: Format, stem: str, scheme: Scheme, client: Client | None = None, runtime: Runtime | None = None
) -> ModelFile:
    unnamed = scheme is FORMATS[format].base
    name = stem + ("" if unnamed else f"_{scheme}") + (f"_{runtime}" if runtime else "") + FORMATS[format].suffix
    return ModelFile(f"{step}/{name}", f"{format}/{name}", format, scheme, client, runtime)
