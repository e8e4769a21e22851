"""What the pipeline knows of a file format, in one place: one class per format, registered under its name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from pocketbert.core.artefacts import Artefacts, Kind, Minimum
from pocketbert.core.compare.golden import GoldenRow
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.formats import FORMATS, Bounds, Form, FormatInfo
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.types import Client, Format, Layout, Runtime, Scheme
from pocketbert.pipeline.formats.gate import Gate, Subject
from pocketbert.pipeline.formats.model_files import ModelFile
from pocketbert.pipeline.formats.offer import Offer
from pocketbert.pipeline.formats.run_model import RunModel
from pocketbert.pipeline.formats.stored.tracker import Constant

if TYPE_CHECKING:
    from torch import nn


class Formed(Protocol):
    """Anything that tells a model file's format, scheme and runtime: a planned file, an opened one, a listed one."""

    @property
    def format(self) -> Format:
        """What opens it."""
        ...

    @property
    def scheme(self) -> Scheme:
        """How its numbers are stored."""
        ...

    @property
    def runtime(self) -> Runtime | None:
        """The one runtime that it is made for."""
        ...


@dataclass(frozen=True)
class Extras:
    """The files that a format adds to an artefact folder.

    Attributes:
        kinds: Kind of every further file, by its path.
        aliases: Model file that a further name belongs to, by that name.
    """

    kinds: Mapping[str, Kind] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)


class FormatPlace(ABC):
    """One format: what it reads of a recipe, how it writes files, their bounds, and what is reported of them.

    Attributes:
        format: Its name.
        timing: Command that measures the latency of its files, for a card without latencies.
    """

    format: ClassVar[Format]
    timing: ClassVar[str] = "`pocketbert benchmark -m .` measures it on your machine"

    @property
    def info(self) -> FormatInfo:
        """Return the format's row in the table of formats."""
        return FORMATS[self.format]

    # what it reads of a recipe

    def exported_scheme(self, recipe: Recipe) -> Scheme:
        """Tell how the exported files store their numbers."""
        return Scheme.FP32

    def layout(self, recipe: Recipe) -> Layout:
        """Tell how activations lie in memory."""
        return Layout.PLAIN

    def settings(self, recipe: Recipe) -> dict[str, object]:
        """Collect the settings that decide the exported files, in addition to those that every format reads, nested as in a recipe."""
        return {}

    def clients(self, recipe: Recipe, weights: Path) -> list[Client]:
        """List the clients that get a separate exported file."""
        return []

    def absent(self, recipe: Recipe, weights: Path) -> dict[str, str]:
        """List files that a reader of the folder may look for, and why they are not there."""
        return {}

    def lengths(self, recipe: Recipe, file: ModelFile, length: int) -> list[int]:
        """List the lengths in tokens that a file takes: those of the recipe, and the longest input allowed."""
        if file.runtime is not None and file.runtime.accelerator:
            return [length]
        return sorted({*shorter(recipe, length), length})

    # how a file is written

    @abstractmethod
    def write(self, model: RunModel, module: nn.Module, file: ModelFile, destination: Path) -> None:
        """Export the prepared module to a file."""

    def finish(self, model: RunModel, file: ModelFile, path: Path) -> None:  # noqa: B027 (nothing to do by default)
        """Complete a file that was made from an exported one, where a quantizer drops a part of it."""

    # gates

    def gates(self, subject: Subject, rows: Sequence[GoldenRow]) -> list[Gate]:
        """Check what only files of this format have."""
        return []

    def constants(self, path: Path) -> list[list[Constant]] | None:
        """List the constants of each graph in a file, in the order in which it uses them; None where nothing reads them."""
        return None

    def layout_of(self, path: Path) -> Layout:
        """Tell how activations lie in memory in a written file."""
        return Layout.PLAIN

    # card and report

    def notes(self, recipe: Recipe) -> list[str]:
        """List what a reader of card and report must know of this format."""
        return []

    def file_notes(self, model: RunModel) -> dict[str, str]:
        """Collect what the card tells of finished files: a sentence by the file's path in the artefact folder."""
        return {}

    def minimum(self, file: ModelFile, path: Path) -> Minimum | None:
        """Tell what a written file needs; None where files of the format do not say it and nothing is known of engines."""
        return None

    def offers(self, artefacts: Artefacts) -> list[Offer]:
        """List the files that a reader of the card's first table may take, at most one for each platform."""
        return []

    @abstractmethod
    def processing(self, artefacts: Artefacts) -> list[str]:
        """Describe inputs and outputs of the folder's files, one line each; nothing where it has no file of the format."""

    @abstractmethod
    def snippets(self, artefacts: Artefacts) -> list[str]:
        """Write code for further clients, in addition to that of `offers`: a sentence that ends with a colon, then the code."""

    # pack

    def pack(self, files: Sequence[ModelFile], folder: ModelFolder, destination: Path) -> Extras:
        """Add what clients of this format look for to an artefact folder that has the model files.

        Args:
            files: The format's files.
            folder: The exported model.
            destination: The artefact folder.
        """
        return Extras()


def shorter(recipe: Recipe, length: int) -> list[int]:
    """List the lengths of a recipe, cut to the longest input allowed."""
    return sorted({min(n, length) for n in recipe.export.lengths})


_PLACES: dict[Format, FormatPlace] = {}


def register_format_place(place: FormatPlace) -> None:
    """Add a format to the pipeline; its row is registered with `pocketbert.core.formats.register_format` before.

    Raises:
        ValueError: If the format has no row, or has a place already.
    """
    if place.format not in FORMATS:
        raise ValueError(f"format '{place.format}' has no row: call register_format first")
    if place.format in _PLACES:
        raise ValueError(f"format '{place.format}' has a place already")
    _PLACES[place.format] = place


def form_title(form: Form) -> str:
    """Name a scheme and a runtime, e.g. ``int8 for openvino``."""
    scheme, runtime = form
    return f"{scheme} for {runtime}" if runtime else str(scheme)


def places() -> list[FormatPlace]:
    """List all formats, in the order of their registration."""
    return list(_PLACES.values())


def place_of(format: Format) -> FormatPlace:
    """Find the place of a format.

    Raises:
        InputError: If nothing registered one.
    """
    if format not in _PLACES:
        raise InputError(
            Problem(
                "export.formats",
                f"'{format}' can be opened, but not written: no installed package registered how.",
                f"Choose among {', '.join(_PLACES)}.",
            )
        )
    return _PLACES[format]


def bounds_of(file: Formed) -> Bounds:
    """Find what a file must keep.

    Raises:
        InputError: If its format has no bounds for its scheme and runtime.
    """
    info, form = place_of(file.format).info, (file.scheme, file.runtime)
    if form not in info.bounds:
        raise InputError(
            Problem(
                "quantize",
                f"{info.title} has no bounds for {form_title(form)}, so nothing could tell whether the file is right.",
                f"Choose among {', '.join(map(form_title, info.bounds))}.",
            )
        )
    return info.bounds[form]
