"""``artifacts.json``: what is in an artefact folder, file by file. Written last, readable for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, field_validator

from pocketbert.core.data.labels import Labels
from pocketbert.core.disk.files import path_bytes, read_json, safe_join, sha256_path, write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.heads import AnswerSettings, Head, head_of
from pocketbert.core.predict.score import Score
from pocketbert.core.tasks import TASKS, ScoreFunction, TaskName
from pocketbert.core.types import Client, Format, Provenance, Runtime, Scheme, Status

FILE_NAME = "artifacts.json"
SCHEMA_VERSION = "1.0"


class _Record(BaseModel):
    """Unknown keys are ignored, so that older readers open newer folders of the same major schema."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Kind(StrEnum):
    """What a file in the folder is for."""

    MODEL = "model"
    WEIGHTS = "weights"
    TOKENIZER = "tokenizer"
    CONFIG = "config"
    GOLDEN = "golden"
    DOCUMENT = "document"
    FIGURES = "figures"
    TOOL = "tool"


class Tensor(_Record):
    """One input or output of a graph.

    Attributes:
        name: Name in the graph.
        dtype: ``int64``, ``float32``, ...
        shape: Sizes; a name stands for a free axis.
    """

    name: str
    dtype: str
    shape: list[int | str]


class Signature(_Record):
    """Inputs and outputs of a graph.

    Attributes:
        inputs: In order.
        outputs: In order.
        lengths: The only lengths the file takes, one signature each; empty where the length is free.
    """

    inputs: list[Tensor]
    outputs: list[Tensor]
    lengths: list[int] = []


class SeenRight(_Record):
    """An engine that was seen to compute the file right."""

    engine: str
    version: str
    isa: list[str]
    provenance: Provenance = Provenance.MEASURED


class _Purpose(Protocol):
    @property
    def client(self) -> Client | None: ...
    @property
    def runtime(self) -> Runtime | None: ...


class MadeFor:
    """What follows from the `client` and the `runtime` that a model file is made for; its classes have these fields."""

    @property
    def plain(self: _Purpose) -> bool:
        """Whether any client of its format may open it."""
        return self.client is None and self.runtime is None

    @property
    def for_toolkit(self: _Purpose) -> bool:
        """Whether the toolkit itself runs it: a file for any client, or one for a runtime that the toolkit opens."""
        return self.client is None and (self.runtime is None or self.runtime.own_engine is not None)


class FileRecord(_Record):
    """One file of the folder.

    Attributes:
        path: Relative to the folder, with forward slashes; a Core ML package is a folder.
        sha256: Hex digest; see `pocketbert.core.disk.files.sha256_path`.
        bytes: Size.
        kind: What it is for.
    """

    path: str
    sha256: str
    bytes: int
    kind: Kind


class ModelRecord(MadeFor, FileRecord):
    """A model file.

    Attributes:
        format: What opens it.
        scheme: How its numbers are stored.
        default: Whether `pocketbert.load` opens it.
        alias_of: Path of the model file that this one equals byte for byte.
        client: The one client that it is made for; None where any of its format may open it.
        runtime: The one runtime that it is made for.
        signature: Its inputs and outputs.
        status: Whether it passed the gates.
        lineage: sha256 of the weights it was made from.
        scores: Measured scores by set (``eval``, ``holdout``).
        seen_right: Engines that passed its golden rows.
    """

    kind: Literal[Kind.MODEL] = Kind.MODEL
    format: Format
    scheme: Scheme
    default: bool = False
    alias_of: str | None = None
    client: Client | None = None
    runtime: Runtime | None = None
    signature: Signature | None = None
    status: Status | None = None
    lineage: str | None = None
    scores: dict[str, Score] = {}
    seen_right: list[SeenRight] = []


def _record_type(value: object) -> str:
    """Which of the two record types an entry of ``files`` is."""
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return "model" if kind == Kind.MODEL else "file"


_AnyRecord = Annotated[
    Annotated[ModelRecord, Tag("model")] | Annotated[FileRecord, Tag("file")], Discriminator(_record_type)
]


class Processing(_Record):
    """How to turn text into inputs and outputs into answers.

    Attributes:
        max_length: Longest input in tokens.
        pair_order: Meaning of a pair's two texts, in order.
        padding_side: ``right`` or ``left``.
        score: Turns logits into scores.
        stride: Overlap of windows over long texts (question answering).
        thresholds: Per-label decision thresholds (multi-label).
        pooling: How token states become one vector, inside the files (embeddings): ``mean`` or ``cls``.
        normalize: Whether it is divided by its length, inside the files (embeddings).
        answer_length: Longest answer in tokens (question answering).
        null_answers: Whether a question may have no answer (question answering).
    """

    max_length: Annotated[int, Field(ge=1, le=1 << 20)]
    pair_order: list[str] = ["text", "text_pair"]
    padding_side: Literal["right", "left"] = "right"
    score: ScoreFunction
    stride: int | None = None
    thresholds: list[float] | None = None
    pooling: str | None = None
    normalize: bool | None = None
    answer_length: int | None = None
    null_answers: bool | None = None

    def settings(self) -> AnswerSettings:
        """How outputs become answers, as the heads want it."""
        given = {
            "thresholds": self.thresholds,
            "stride": self.stride,
            "answer_length": self.answer_length,
            "null_answers": self.null_answers,
            "pooling": self.pooling,
            "normalize": self.normalize,
        }
        return AnswerSettings.model_validate({k: v for k, v in given.items() if v is not None})


class Artefacts(_Record):
    """The whole file.

    Attributes:
        schema_version: Major part equal means readable.
        name: Name of the run or model.
        task: Hub task name.
        family: Row of the family table.
        labels: Label names in order of their ids.
        pair: Whether inputs are pairs of texts.
        processing: Pre- and post-processing.
        files: Every file of the folder except this one.
        absent: Model files that a client might look for, and why they are not there.
        lineage: Where the weights come from, in words and digests.
        versions: Libraries that made the files.
        machine: CPU and ISA that measured the figures.
        made_from: Digest of recipe, model, data and library versions: with equal ones, the same folder would be written.
    """

    schema_version: str = SCHEMA_VERSION
    name: str
    task: TaskName
    family: str
    labels: list[str]
    pair: bool = False
    processing: Processing
    files: list[_AnyRecord]
    absent: dict[str, str] = {}
    lineage: dict[str, str] = {}
    versions: dict[str, str] = {}
    machine: str = ""
    made_from: str = ""
    generator: Literal["pocketbert"] = "pocketbert"

    def head(self) -> Head:
        """The task, as it turns this folder's outputs into answers: with the folder's own score function."""
        task = replace(TASKS[self.task], score=self.processing.score)
        return head_of(task, Labels(tuple(self.labels)), self.processing.settings())

    @field_validator("labels")
    @classmethod
    def _distinct(cls, labels: list[str]) -> list[str]:
        if len(set(labels)) < len(labels):
            raise ValueError("a label occurs twice")
        return labels

    def models(self) -> list[ModelRecord]:
        """Model files, aliases left out."""
        return [f for f in self.files if isinstance(f, ModelRecord) and f.alias_of is None]

    def aliases(self) -> list[ModelRecord]:
        """Further names of model files."""
        return [f for f in self.files if isinstance(f, ModelRecord) and f.alias_of is not None]

    def default_model(self) -> ModelRecord:
        """The variant that `pocketbert.load` opens."""
        found = [f for f in self.models() if f.default] or self.models()
        if not found:
            raise InputError(Problem(FILE_NAME, "the folder lists no model file."))
        return found[0]


def read_artefacts(folder: Path) -> Artefacts:
    """Read and check ``artifacts.json``.

    Raises:
        InputError: If it is missing, of another major schema, wrong, or names paths outside the folder.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        raise InputError(
            Problem(
                str(folder),
                f"is not an artefact folder: it has no {FILE_NAME}.",
                "Make one with: pocketbert export -m MODEL -o FOLDER",
            )
        )
    content = read_json(path)
    version = str(content.get("schema_version", "")) if isinstance(content, dict) else ""
    if version.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
        raise InputError(
            Problem(
                str(path),
                f"schema version '{version}' cannot be read; this version reads {SCHEMA_VERSION}.",
                "Update PocketBERT.",
            )
        )
    try:
        artefacts = Artefacts.model_validate(content)
    except ValidationError as error:
        raise InputError(
            [Problem(f"{path} {'.'.join(map(str, e['loc']))}", f"{e['msg']}.") for e in error.errors()]
        ) from error
    if TASKS[artefacts.task].names_labels and not artefacts.labels:
        raise InputError(Problem(str(path), f"names no labels; {artefacts.task} has some.", "Copy the folder again."))
    for record in artefacts.files:
        safe_join(folder, record.path, str(path))
    return artefacts


def write_artefacts(folder: Path, artefacts: Artefacts) -> None:
    """Write ``artifacts.json``, the last file of a folder."""
    write_json(folder / FILE_NAME, artefacts.model_dump(mode="json", exclude_none=True))


def changed_files(folder: Path, artefacts: Artefacts) -> list[str]:
    """Paths of listed files that are there, but not as they were listed. They are not safe to open."""
    there = [r for r in artefacts.files if (folder / r.path).exists()]
    return [r.path for r in there if path_bytes(folder / r.path) != r.bytes or sha256_path(folder / r.path) != r.sha256]


def integrity_problems(folder: Path, artefacts: Artefacts, changed: Sequence[str] | None = None) -> list[str]:
    """What differs between the folder and its list: missing, changed and unlisted files.

    Args:
        folder: The folder.
        artefacts: Its list.
        changed: What `changed_files` returned, where the caller has it already.
    """
    differing = set(changed_files(folder, artefacts) if changed is None else changed)
    out = []
    for record in artefacts.files:
        if not (folder / record.path).exists():
            out.append(f"{record.path}: listed, but not there")
        elif record.path in differing:
            out.append(f"{record.path}: changed since it was packed (sha256 differs)")
    return out + [f"{name}: there, but not listed" for name in _unlisted(folder, artefacts)]


def _unlisted(folder: Path, artefacts: Artefacts) -> list[str]:
    listed = {f.path for f in artefacts.files} | {FILE_NAME}
    out = []
    for path in sorted(p for p in folder.rglob("*") if p.is_symlink() or not p.is_dir()):
        inside = [path.relative_to(folder), *path.relative_to(folder).parents]  # a package is listed as one
        if not any(p.as_posix() in listed for p in inside):
            out.append(inside[0].as_posix())
    return out


def strangers(folder: Path) -> list[str]:
    """Paths in a folder that its ``artifacts.json`` does not list, and so PocketBERT did not write; all of them without one."""
    try:
        return _unlisted(folder, read_artefacts(folder))
    except InputError:
        return sorted(p.name for p in folder.iterdir())
