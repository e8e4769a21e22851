"""Model files and the interface of a file format.

- `ModelFile` is one planned file: format, scheme, client or runtime, and its paths. `list_model_files` lists the files of
  a recipe, each exported file before the smaller ones made from it,
- `RunModel` is the model of a run that becomes these files, opened once for all steps,
- `FormatPlace` is what the pipeline needs of a format: which settings it reads, how it writes, checks and describes
  files. One subclass per format is registered with `register_format_place`; plugins add their own,
- `oldest_engine` and `describe_required_engines` name the oldest engine that computes files of a scheme right.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pocketbert.core.artefacts import Artefacts, Kind, ModelFilePurpose, ModelRecord, OldestEngine, Requirements
from pocketbert.core.compare.golden import GoldenRow
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.formats import FORMATS, Bounds, Form, FormatInfo
from pocketbert.core.host.system import version_of
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import Task
from pocketbert.core.types import Client, Format, Layout, Runtime, Scheme
from pocketbert.pipeline.formats.constants import Constant
from pocketbert.pipeline.formats.snippets.parts import Offer
from pocketbert.pipeline.results import Gate, Subject

if TYPE_CHECKING:
    from torch import nn

LICENCE_FILE = "LICENCE.txt"
"""File in the folder of a run's teacher with the licence of its weights."""


# --- model files ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelFile(ModelFilePurpose):
    """A model file that a run makes: format, scheme, client or runtime, and its paths.

    Attributes:
        source: Path in the run folder. Its first part is the output of the step that writes the file.
        path: Path in the artefact folder.
        format: File format.
        scheme: How numbers are stored.
        client: The client that the file is made for, if it is for one only.
        runtime: The runtime that the file is made for, if it is for one only.
    """

    source: str
    path: str
    format: Format
    scheme: Scheme
    client: Client | None = None
    runtime: Runtime | None = None

    @property
    def step(self) -> str:
        """Name of the step that writes the file."""
        return self.source.split("/")[0]

    @property
    def exported(self) -> bool:
        """Whether an exporter writes the file. Quantizers make the other files from such a file."""
        return self.step == self.format.value

    @property
    def title(self) -> str:
        """Name of the file in tables, such as ``ONNX int8``."""
        extra = self.client or self.runtime
        return f"{FORMATS[self.format].title} {self.scheme}{f' for {extra}' if extra else ''}"


def list_model_files(recipe: Recipe, weights: Path) -> list[ModelFile]:
    """List the model files that a recipe makes. Each exported file comes before the quantized files made from it.

    Args:
        recipe: The recipe.
        weights: Folder of the exported model. Its tokenizer decides whether MediaPipe can run the model.
    """
    files = []
    for format in recipe.export.formats:
        place = format_place(format)
        scheme = place.exported_scheme(recipe)
        bases = [exported_file(format, scheme, client) for client in (None, *place.clients(recipe, weights))]
        files += [*bases, *quantized_files(recipe, bases)]
    return files


def exported_file(format: Format, scheme: Scheme, client: Client | None = None) -> ModelFile:
    """Return the planned file of a format that an exporter writes, for any client or for the given one only."""
    return _model_file(format.value, format, scheme, client)


def quantized_file(format: Format, scheme: Scheme) -> ModelFile:
    """Return the planned file of a format and scheme that a quantizer writes, for any client and runtime."""
    return _model_file(quantized_step(format, scheme), format, scheme)


def quantized_step(format: Format, scheme: Scheme) -> str:
    """Return the name of the step (and of its folder) that makes a format's files of one scheme, as ``onnx-int8``."""
    return f"{format}-{scheme}"


def _model_file(
    step: str, format: Format, scheme: Scheme, client: Client | None = None, runtime: Runtime | None = None
) -> ModelFile:
    """Return a planned file, named after client, scheme and runtime. The name leaves out the format's base scheme."""
    stem = client.value if client else FORMATS[format].stem
    is_base = scheme is FORMATS[format].base
    name = stem + ("" if is_base else f"_{scheme}") + (f"_{runtime}" if runtime else "") + FORMATS[format].suffix
    return ModelFile(f"{step}/{name}", f"{format}/{name}", format, scheme, client, runtime)


def quantized_files(recipe: Recipe, bases: Sequence[ModelFile]) -> list[ModelFile]:
    """List the quantized files that a recipe makes of one format's exported files, by scheme.

    Among the files of a scheme, those for one runtime only come last.
    """
    format, files = bases[0].format, []
    for scheme, runtimes in quantized_schemes(recipe, format).items():
        step = quantized_step(format, scheme)
        for runtime in sorted(runtimes, key=lambda r: r is not None):
            clients = [b.client for b in bases] if runtime is None else [None]
            files += [_model_file(step, format, scheme, client, runtime) for client in clients]
    return files


def quantized_schemes(recipe: Recipe, format: Format) -> dict[Scheme, list[Runtime | None]]:
    """Map each scheme of a format's quantized files to their runtimes; None stands for any runtime."""
    info, forms = FORMATS[format], dict[Scheme, list[Runtime | None]]()
    for file in (f for f in recipe.quantize.wanted if f.concerns(format)):
        scheme = info.smaller(file.scheme) if file.runtime is None and info.takes(file.scheme) else None
        if file.runtime is not None and (file.scheme, file.runtime) in info.forms:
            scheme = file.scheme
        if scheme is not None and file.runtime not in forms.setdefault(scheme, []):
            forms[scheme].append(file.runtime)
    return forms


def exported_source(file: ModelFile, files: Sequence[ModelFile]) -> ModelFile:
    """Return the exported file, of the same format and client, from which a quantized file is made."""
    return next(f for f in files if f.format is file.format and f.client is file.client and f.exported)


def choose_default_file(files: Sequence[ModelFile]) -> ModelFile:
    """Return the file that `pocketbert.load` opens: the first quantized file of the first format, or its exported file.

    Files for one client or runtime only are never chosen.
    """
    plain = [f for f in files if f.plain and f.format is files[0].format]
    return next((f for f in plain if not f.exported), plain[0])


def explain_absent_files(recipe: Recipe, weights: Path) -> dict[str, str]:
    """Map the path of each file that users may look for and not find in the folder to the reason why it is absent."""
    return {k: v for format in recipe.export.formats for k, v in format_place(format).absent(recipe, weights).items()}


# --- the model of a run -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunModel:
    """The exported model of a run: its recipe, its opened folder, and the files made of it.

    Attributes:
        recipe: The recipe.
        run: The run folder.
        folder: The opened folder of the model.
        length: Longest input in tokens.
        files: The files that are made of the model.
    """

    recipe: Recipe
    run: Path
    folder: ModelFolder
    length: int
    files: Sequence[ModelFile] = ()

    @property
    def weights(self) -> Path:
        """Folder of the model."""
        return self.folder.path

    @property
    def task(self) -> Task:
        """Task of the model, with the score function that its files name."""
        return self.folder.task_row(self.recipe.task)

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The model's tokenizer; it cuts at `length`."""
        return TextTokenizer(self.weights, self.length)

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names, for tasks that have labels; empty for other tasks, even if config.json names labels."""
        return tuple(self.folder.labels or ()) if self.task.names_labels else ()

    def source(self, file: ModelFile) -> Path:
        """Return the path of one of the model's files in the run folder."""
        return self.run / file.source


def open_model_in_run(recipe: Recipe, run: Path, weights: Path, length: int) -> RunModel:
    """Open a model of a run, without its list of files.

    Its licence is the one recorded beside the run's teacher, if there is one, else the model's own.
    """
    folder, note = open_model_folder(str(weights)), run / "teacher" / LICENCE_FILE
    licence = note.read_text(encoding="utf-8").strip() if note.is_file() else folder.licence
    return RunModel(recipe, run, replace(folder, licence=licence), length)


def open_run_model(recipe: Recipe, run: Path, weights: Path, length: int) -> RunModel:
    """Open the model that a run exports, with the list of files that its recipe makes.

    Args:
        recipe: The recipe.
        run: The run folder.
        weights: Folder of the model in it.
        length: Longest input in tokens.
    """
    return replace(open_model_in_run(recipe, run, weights, length), files=list_model_files(recipe, weights))


# --- formats ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Extras:
    """Files that a format adds to an artefact folder beside the model files.

    Attributes:
        kinds: Kind of each added file, by its path.
        aliases: Paths of model files that also get another name, by that name.
    """

    kinds: Mapping[str, Kind] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)


class FormatPlace(ABC):
    """A file format in the pipeline: its settings, how files are written and checked, and its texts on the card.

    Attributes:
        format: Name of the format.
        timing: Command that measures the latency of the format's files, for a card without latencies.
    """

    format: ClassVar[Format]
    timing: ClassVar[str] = "`pocketbert benchmark -m .` measures it on your machine"

    @property
    def info(self) -> FormatInfo:
        """Return the format's row in the table of formats."""
        return FORMATS[self.format]

    # settings

    def exported_scheme(self, recipe: Recipe) -> Scheme:
        """Return the scheme of the exported files. It is fp32 unless the format offers a choice."""
        return Scheme.FP32

    def layout(self, recipe: Recipe) -> Layout:
        """Return the memory layout of activations in exported files, plain unless the format offers a choice."""
        return Layout.PLAIN

    def settings(self, recipe: Recipe) -> dict[str, object]:
        """Return the recipe's settings that decide exported files of this format only, nested as in a recipe."""
        return {}

    def clients(self, recipe: Recipe, weights: Path) -> list[Client]:
        """List the clients, such as MediaPipe, that get a separate exported file."""
        return []

    def absent(self, recipe: Recipe, weights: Path) -> dict[str, str]:
        """Map the path of each file that users may look for and not find to the reason why it is absent."""
        return {}

    def lengths(self, recipe: Recipe, file: ModelFile, length: int) -> list[int]:
        """Return the input lengths in tokens that a file takes: those of the recipe and the longest input `length`.

        Files for an accelerator take `length` only.
        """
        if file.runtime is not None and file.runtime.accelerator:
            return [length]
        return sorted({*cut_lengths(recipe, length), length})

    # writing

    @abstractmethod
    def write(self, model: RunModel, module: nn.Module, file: ModelFile, destination: Path) -> None:
        """Export the prepared torch module to a model file at `destination`."""

    def finish(self, model: RunModel, file: ModelFile, path: Path) -> None:  # noqa: B027 (nothing to do by default)
        """Complete a file that a quantizer has written: restore dropped metadata, or fix shapes. By default do nothing."""

    # gates

    def gates(self, subject: Subject, rows: Sequence[GoldenRow]) -> list[Gate]:
        """Return the gates (checks of a file) that only this format has. `rows` are golden rows."""
        return []

    def constants(self, path: Path) -> list[list[Constant]] | None:
        """Return the constants of each graph in a file, in the order of their use; None if the format has no reader."""
        return None

    def layout_of(self, path: Path) -> Layout:
        """Return the memory layout of activations in a written file."""
        return Layout.PLAIN

    # card and report

    def notes(self, recipe: Recipe) -> list[str]:
        """Return sentences on the limits of this format for card and report."""
        return []

    def file_notes(self, model: RunModel) -> dict[str, str]:
        """Return sentences of the card on finished files, by the file's path; files without one are left out."""
        return {}

    def minimum(self, file: ModelFile, path: Path) -> Requirements | None:
        """Return what is needed to open a written file, such as an iOS version; None if that is not known."""
        return None

    def offers(self, artefacts: Artefacts) -> list[Offer]:
        """Return the format's rows of the card's first table: what an app on each platform needs to run a file."""
        return []

    @abstractmethod
    def processing(self, artefacts: Artefacts) -> list[str]:
        """Return the card's lines on inputs and outputs of the folder's files; empty if none has this format."""

    @abstractmethod
    def snippets(self, artefacts: Artefacts) -> list[str]:
        """Return code for clients that have no row in the card's first table; each text is a sentence, then code."""

    # pack

    def pack(self, files: Sequence[ModelFile], folder: ModelFolder, destination: Path) -> Extras:
        """Add files that clients of this format look for to an artefact folder, and return their kinds and aliases.

        Args:
            files: The format's files.
            folder: The exported model.
            destination: The artefact folder.
        """
        return Extras()


def cut_lengths(recipe: Recipe, length: int) -> list[int]:
    """Return the recipe's input lengths in tokens in ascending order; those above `length` become `length`."""
    return sorted({min(n, length) for n in recipe.export.lengths})


def describe_model(recipe: Recipe, folder: ModelFolder, task: Task) -> str:
    """Return the recipe's description of a model; if it has none, the model's family and task."""
    return recipe.description or f"{folder.family.title} for {task.name}"


def producer_name() -> str:
    """Return ``PocketBERT`` and the installed version, which files name as their producer."""
    return f"PocketBERT {version_of('pocketbert') or ''}".strip()


_FORMATS: dict[Format, FormatPlace] = {}


def register_format_place(place: FormatPlace) -> None:
    """Add a format to the pipeline.

    Its row must have been registered with `pocketbert.core.formats.register_format`.

    Raises:
        ValueError: If the format has no row, or has a place already.
    """
    if place.format not in FORMATS:
        raise ValueError(f"format '{place.format}' has no row: call register_format first")
    if place.format in _FORMATS:
        raise ValueError(f"format '{place.format}' has a place already")
    _FORMATS[place.format] = place


def format_places() -> list[FormatPlace]:
    """List all formats in the order of their registration."""
    return list(_FORMATS.values())


def format_place(format: Format) -> FormatPlace:
    """Return the registered `FormatPlace` of a format.

    Raises:
        InputError: If none was registered.
    """
    if format not in _FORMATS:
        what = f"'{format}' can be opened, but not written: no installed package registered how."
        raise InputError(Problem("export.formats", what, f"Choose among {', '.join(_FORMATS)}."))
    return _FORMATS[format]


# --- bounds -----------------------------------------------------------------------------------------------------------


def bounds_of(file: ModelFile | Subject) -> Bounds:
    """Return the largest errors that a file may have, by its format, scheme and runtime.

    Raises:
        InputError: If its format has no bounds for its scheme and runtime.
    """
    info, form = format_place(file.format).info, (file.scheme, file.runtime)
    if form not in info.bounds:
        what = f"{info.title} has no bounds for {form_title(form)}, so nothing could tell whether the file is right."
        raise InputError(Problem("quantize", what, f"Choose among {', '.join(map(form_title, info.bounds))}."))
    return info.bounds[form]


def check_file_sizes(recipe: Recipe, fp32_bytes: int) -> None:
    """Check before the first step that files of the recipe's formats can hold the exported model's weights.

    Args:
        recipe: The recipe.
        fp32_bytes: Bytes of the weights in fp32; of a student that is still to be trained an estimate.

    Raises:
        InputError: Naming every format whose files cannot.
    """
    size = fp32_bytes / 2**30
    fitting = [str(f) for f in FORMATS if size < FORMATS[f].cost.max_gib]
    whose, smaller = "the weights take", "distil a student first: pocketbert run."
    if recipe.student is not None:
        whose = "the student's weights would take about"
        smaller = "make the student smaller (student.layers, student.hidden, student.vocabulary)."
    problems = [
        Problem(
            "export.formats",
            f"a file of {info.title} holds at most {info.cost.max_gib:g} GiB, {whose} {size:.1f} GiB in fp32.",
            f"Choose among {', '.join(fitting)}, or {smaller}",
        )
        for info in (FORMATS[format] for format in recipe.export.formats)
        if size >= info.cost.max_gib
    ]
    if problems:
        raise InputError(problems)


def check_bounds(recipe: Recipe) -> None:
    """Check before the first step of a run that bounds of the allowed error are defined for every file of a recipe.

    Raises:
        InputError: Naming every format, scheme and runtime without bounds, and every format that cannot be written.
    """
    problems = []
    for format in recipe.export.formats:
        try:
            base = exported_file(format, format_place(format).exported_scheme(recipe))
            files = [base, *quantized_files(recipe, [base])]
        except InputError as error:
            problems += error.problems
            continue
        for file in files:
            try:
                bounds_of(file)
            except InputError as error:
                problems += error.problems
    if problems:
        raise InputError(problems)


def form_title(form: Form) -> str:
    """Return the name of a scheme and a runtime, such as ``int8 for openvino``."""
    scheme, runtime = form
    return f"{scheme} for {runtime}" if runtime else str(scheme)


# --- oldest engines ---------------------------------------------------------------------------------------------------
#
# Measured with the packages of PyPI on x86-64 by `lab/runtimes/oldest_engines.py`; docs/lab/quantization.md has the table.
# Files for one runtime or client were not tried.

_ENGINE_NAMES = {"onnxruntime": "ONNX Runtime", "ai-edge-litert": "LiteRT"}
_ONNX = {
    **dict.fromkeys((Scheme.FP32, Scheme.INT8, Scheme.A8W8, Scheme.SMALL), "1.18.0"),
    **dict.fromkeys((Scheme.W4, Scheme.INT8_B32), "1.23.0"),
}
_TFLITE = {
    **dict.fromkeys((Scheme.FP32, Scheme.W8), "1.0.1"),
    **dict.fromkeys((Scheme.INT8, Scheme.A8W8), "1.1.2"),
    Scheme.SMALL: "1.4.0",
    Scheme.W4: "2.1.0",
}
_OLDEST: Mapping[Format, tuple[str, Mapping[Scheme, str]]] = {
    Format.ONNX: ("onnxruntime", _ONNX),
    Format.TFLITE: ("ai-edge-litert", _TFLITE),
}
_SILENT = {(Format.TFLITE, s) for s in (Scheme.INT8, Scheme.A8W8, Scheme.SMALL, Scheme.W4)}
"""Files to which an older version gives wrong answers without an error; other files it refuses."""


def oldest_engine(format: Format, scheme: Scheme) -> OldestEngine | None:
    """Return the oldest engine that was measured to compute files of a scheme correctly; None if none was measured."""
    engine, versions = _OLDEST.get(format, ("", {}))
    if scheme not in versions:
        return None
    return OldestEngine(engine=engine, version=versions[scheme], older_answer_wrongly=(format, scheme) in _SILENT)


def required_engine(record: ModelRecord) -> str:
    """Return the engine that a file needs, such as ``ONNX Runtime 1.23.0 or newer``; empty if none was measured."""
    engine = record.minimum.engine if record.minimum is not None else None
    return "" if engine is None else f"{_ENGINE_NAMES.get(engine.engine, engine.engine)} {engine.version} or newer"


def describe_required_engines(records: Sequence[ModelRecord]) -> list[str]:
    """Return lines for the model card on the oldest engines that files need; files with the same needs share a line.

    Files for which no oldest engine was measured are left out.
    """
    files: dict[str, list[str]] = {}
    for record in records:
        minimum = record.minimum
        if minimum is None or minimum.engine is None:
            continue
        alone = f" No other engine has their operators ({', '.join(minimum.operators)})." if minimum.operators else ""
        wrong = (
            " Older versions were seen to answer wrongly without an error."
            if minimum.engine.older_answer_wrongly
            else ""
        )
        files.setdefault(f"{required_engine(record)}.{wrong}{alone}", []).append(f"`{record.path}`")
    return [f"{', '.join(names)}: {needs}" for needs, names in files.items()]
