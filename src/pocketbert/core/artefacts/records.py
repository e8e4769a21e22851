"""The records of ``artifacts.json`` (`Artefacts`), which refuse invalid values such as sizes out of bounds."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictInt,
    Tag,
    field_validator,
    model_validator,
)

from pocketbert.core.artefacts.search import BudgetSearch
from pocketbert.core.data.labels import Labels
from pocketbert.core.disk.files import sha256_file
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families.weight_records import WeightRole
from pocketbert.core.heads import Head, make_head
from pocketbert.core.heads.settings import AnswerSettings, HeadName, Share
from pocketbert.core.predict.score_records import Confidence, Score
from pocketbert.core.predict.sentence_settings import PoolingKind, Prompts, Similarity
from pocketbert.core.tasks import (
    FEWEST_HEADS,
    HEAD_TASKS,
    MOST_HEADS,
    ScoreFunction,
    Task,
    TaskName,
    several_task,
    task_of,
)
from pocketbert.core.types import Client, Format, Provenance, Runtime, Scheme, Status

SCHEMA_VERSION = "1.0"
_MAX_LENGTH = 1 << 20
_MAX_LABELS = 1 << 16
_Size = Annotated[StrictInt, Field(ge=0, lt=1 << 63)]
_Length = Annotated[int, Field(ge=1, le=_MAX_LENGTH)]
_LabelName = Annotated[str, Field(min_length=1, max_length=1 << 12)]
_PromptText = Annotated[str, Field(max_length=1 << 14)]


class _Record(BaseModel):
    """Base of the records in artifacts.json; unknown keys are ignored, so that older versions read newer folders."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Kind(StrEnum):
    """The purpose of a file in the folder."""

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
        shape: Size of each axis; a free axis has a name instead of a size.
    """

    name: str
    dtype: str
    shape: list[int | str]


class Signature(_Record):
    """The inputs and outputs of a model file's graph.

    Attributes:
        inputs: In order.
        outputs: In order.
        lengths: The only lengths that the file accepts, one signature each; empty if the length is free.
    """

    inputs: list[Tensor]
    outputs: list[Tensor]
    lengths: list[int] = []


class OldestEngine(_Record):
    """The oldest version of an engine that ran files of a scheme correctly in tests.

    Attributes:
        engine: Name of the engine's Python distribution.
        version: The oldest version that ran the files correctly.
        older_answer_wrongly: Whether an older version gave wrong outputs without an error.
        provenance: How the version is known.
    """

    engine: str
    version: str
    older_answer_wrongly: bool = False
    provenance: Provenance = Provenance.MEASURED


class Requirements(_Record):
    """The oldest software that can run a model file, such as ONNX opset, iOS version and engine version.

    Attributes:
        opset: ONNX operator set.
        ir_version: Version of the ONNX file format.
        ios: Oldest iOS version that opens a Core ML package.
        operators: Operators that are not ONNX's own: only the engine that they come from opens the file.
        engine: The oldest engine that computes files of this scheme correctly.
    """

    opset: int | None = None
    ir_version: int | None = None
    ios: int | None = None
    operators: list[str] = []
    engine: OldestEngine | None = None


class PassedEngine(_Record):
    """An engine that computed a file's golden rows (texts with their expected outputs) correctly.

    Attributes:
        engine: Name of the engine, such as onnxruntime.
        version: Version of the engine.
        isa: Instruction sets of the processor.
        provenance: Whether a processor or an emulator computed them.
    """

    engine: str
    version: str
    isa: list[str]
    provenance: Provenance = Provenance.MEASURED


class _Purpose(Protocol):
    """The fields that a class with `ModelFilePurpose` has."""

    @property
    def client(self) -> Client | None: ...
    @property
    def runtime(self) -> Runtime | None: ...


class ModelFilePurpose:
    """Mixin for records of model files with the fields `client` and `runtime`, which say for whom a file is made."""

    @property
    def plain(self: _Purpose) -> bool:
        """Whether any client app and runtime of its format may open it."""
        return self.client is None and self.runtime is None

    @property
    def for_toolkit(self: _Purpose) -> bool:
        """Whether PocketBERT itself can run the file: it is for any client, on a runtime that PocketBERT opens."""
        return self.client is None and (self.runtime is None or self.runtime.own_engine is not None)


class FileRecord(_Record):
    """The record of one file in an artefact folder.

    Attributes:
        path: Path relative to the folder, with forward slashes; a Core ML package is a folder.
        sha256: Hex digest; see `pocketbert.core.disk.files.sha256_path`.
        bytes: Size of the file, or of all files in a Core ML package.
        kind: Purpose of the file.
    """

    path: Annotated[str, Field(min_length=1)]
    sha256: str
    bytes: _Size
    kind: Kind

    @staticmethod
    def of(folder: Path, name: str, kind: Kind) -> FileRecord:
        """Build the record of an existing file in an artefact folder: path, sha256, size and kind."""
        path = folder / name
        return FileRecord(path=name, sha256=sha256_file(path), bytes=path.stat().st_size, kind=kind)


class ModelRecord(ModelFilePurpose, FileRecord):
    """The record of a model file in an artefact folder.

    Attributes:
        format: Format of the file.
        scheme: How the file stores the model's numbers.
        default: Whether `pocketbert.load` opens it.
        alias_of: Path of the model file that this one equals byte for byte.
        client: The client app that the file is made for; None for any client of its format.
        runtime: The runtime that the file is made for; None for any.
        signature: Inputs and outputs of the graph.
        minimum: The oldest software that can run the file; None if the file was not read.
        status: Whether the file passed the gates (checks of its outputs and scores); None if that is not recorded.
        lineage: sha256 of the weights that the file was made from.
        scores: Measured scores by set (``eval``, ``holdout``).
        seen_right: Engines that computed the file's golden rows correctly.
        confidence: Temperature of its softmax, accuracy of the probabilities, and the probability below which an
            answer is unknown (text-classification).
        weights: Role and scheme of each weight, if the recipe left some as they were exported.
    """

    kind: Literal[Kind.MODEL] = Kind.MODEL
    format: Format
    scheme: Scheme
    default: bool = False
    alias_of: str | None = None
    client: Client | None = None
    runtime: Runtime | None = None
    signature: Signature | None = None
    minimum: Requirements | None = None
    status: Status | None = None
    lineage: str | None = None
    scores: dict[str, Score] = {}
    seen_right: list[PassedEngine] = []
    confidence: Confidence | None = None
    weights: list[WeightRole] = []

    @property
    def temperature(self) -> float:
        """The number that the file's logits are divided by before the softmax; 1 if none was fitted."""
        return self.confidence.temperature if self.confidence is not None else 1.0

    @property
    def emulated(self) -> bool:
        """Whether an emulator computed the expected outputs of the file's golden rows."""
        return any(seen.provenance is Provenance.EMULATED for seen in self.seen_right)


def _record_type(value: object) -> str:
    """Return the type of record that an entry of ``files`` has: ``model`` or ``file``."""
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return "model" if kind == Kind.MODEL else "file"


_AnyRecord = Annotated[
    Annotated[ModelRecord, Tag("model")] | Annotated[FileRecord, Tag("file")], Discriminator(_record_type)
]


_POOLINGS = rf"^({'|'.join(PoolingKind)})(\+({'|'.join(PoolingKind)})){{0,5}}$"
"""Kinds of pooling, of which several are joined by plus signs."""


class Processing(_Record):
    """The settings that turn text into the model's inputs, and its outputs into answers.

    Attributes:
        max_length: Longest input in tokens.
        pair_order: Meaning of a pair's two texts, in order.
        padding_side: ``right`` or ``left``.
        truncation_side: End of a text at which tokens beyond `max_length` are cut off, ``right`` or ``left``.
        score: Function from logits to scores.
        prompts: Texts to put in front of a text, by name (embeddings), e.g. ``{"query": "query: "}``.
        default_prompt: Name of the prompt that is used if the user names none; None for no prompt.
        similarity: Function that compares two vectors (embeddings).
        stride: Overlap of windows over long texts (question answering).
        thresholds: Per-label decision thresholds (multi-label).
        unknown: Probability below which an answer of any file is marked as unknown (text-classification); None if
            there is none, or each file has its own (`ModelRecord.confidence`).
        unknown_accuracy: The accuracy for which the files' own thresholds were fitted: that of the answers above the
            threshold.
        pooling: How the files pool token states into one vector (embeddings): ``mean``, ``cls``, ``max`` and others, or
            several that are concatenated: ``mean+max``.
        vector_layers: Layers that the files apply to that vector, in order, in words.
        normalize: Whether the files divide the vector by its length (embeddings).
        dimensions: Lengths to which a vector may be cut (its first numbers), besides its own length (embeddings); None
            for its own only.
        answer_length: Longest answer in tokens (question answering).
        null_answers: Whether a question may have no answer (question answering).
        splits_punctuation: Whether a word also begins at a token that begins with punctuation or follows it, because the
            tokenizer splits texts at blanks alone (token-classification).
    """

    max_length: _Length
    pair_order: Annotated[list[str], Field(min_length=2, max_length=2)] = ["text", "text_pair"]
    padding_side: Literal["right", "left"] = "right"
    truncation_side: Literal["right", "left"] = "right"
    score: ScoreFunction
    prompts: dict[str, _PromptText] = {}
    default_prompt: str | None = None
    similarity: Similarity | None = None
    stride: _Length | None = None
    thresholds: list[Share] | None = None
    unknown: Share | None = None
    unknown_accuracy: Share | None = None
    pooling: Annotated[str, Field(pattern=_POOLINGS)] | None = None
    vector_layers: Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=16)] = []
    normalize: bool | None = None
    dimensions: Annotated[list[_Length], Field(max_length=16)] | None = None
    answer_length: _Length | None = None
    null_answers: bool | None = None
    splits_punctuation: bool | None = None

    @property
    def named_prompts(self) -> Prompts:
        """The prompts of the folder as a `Prompts` object."""
        return Prompts(self.prompts, self.default_prompt)

    def settings(self) -> AnswerSettings:
        """Return the settings that turn the model's outputs into answers; pooling only if it is of a single kind."""
        values = {
            "thresholds": self.thresholds,
            "unknown": {"accuracy": self.unknown_accuracy} if self.unknown_accuracy is not None else self.unknown,
            "stride": self.stride,
            "answer_length": self.answer_length,
            "null_answers": self.null_answers,
            "pooling": self.pooling if self.pooling in set(PoolingKind) else None,
            "normalize": self.normalize,
            "similarity": self.similarity,
            "dimensions": self.dimensions,
        }
        return AnswerSettings.model_validate({k: v for k, v in values.items() if v is not None})


def _check_head_task(task: TaskName) -> TaskName:
    """Raise ValueError for a task that one of several heads cannot have; return the task."""
    if task not in HEAD_TASKS:
        raise ValueError(f"{task} is no task of one of several heads")
    return task


HeadTask = Annotated[TaskName, AfterValidator(_check_head_task)]


class Artefacts(_Record):
    """The content of ``artifacts.json``: everything about an artefact folder's model and files.

    Attributes:
        schema_version: Version of the format; versions with the same major part can be read.
        name: Name of the run or model.
        task: Hub task name.
        family: Name of the model family.
        form: Export form (additional inputs besides the text) of the files; None for text only.
        heads: The task of each head by its name, for a model with several, in order of their outputs; None for one head.
        labels: Label names in order of their ids; of several heads each with its head's name in front.
        pair: Whether inputs are pairs of texts.
        processing: Pre- and post-processing.
        files: Every file of the folder except this one.
        absent: Model files that a client might look for, and why they are missing.
        lineage: Where the weights come from, in words and digests.
        versions: Libraries that made the files.
        machine: CPU and ISA of the measurements.
        made_from: Digest of recipe, model, data and library versions: with an equal one, the same folder would be
            written.
        packed_for: The platform of the app that contains these files, e.g. ``android``: a selection of an artefact
            folder's files. None in an artefact folder.
        search: The files that were considered, if the folder's were chosen within a budget; else None.
    """

    schema_version: str = SCHEMA_VERSION
    name: str
    task: TaskName
    family: str
    form: str | None = None
    heads: Annotated[dict[HeadName, HeadTask], Field(min_length=FEWEST_HEADS, max_length=MOST_HEADS)] | None = None
    labels: Annotated[list[_LabelName], Field(max_length=_MAX_LABELS)]
    pair: bool = False
    processing: Processing
    files: list[_AnyRecord]
    absent: dict[str, str] = {}
    lineage: dict[str, str] = {}
    versions: dict[str, str] = {}
    machine: str = ""
    made_from: str = ""
    packed_for: str | None = None
    search: BudgetSearch | None = None
    generator: Literal["pocketbert"] = "pocketbert"

    @property
    def task_row(self) -> Task:
        """The task of the folder's model; with several heads their joint task."""
        return several_task(self.heads, self.labels) if self.heads is not None else task_of(self.task)

    @model_validator(mode="after")
    def _check_heads(self) -> Artefacts:
        """Raise ValueError unless a model with several heads, and no other, names them."""
        if (self.heads is not None) is not (self.task is TaskName.SEVERAL):
            raise ValueError("heads are named for the task several, and for no other task")
        return self

    def head(self) -> Head:
        """Build the task's head (scoring and answers) with this folder's labels and settings."""
        task = replace(self.task_row, score=self.processing.score)
        return make_head(task, Labels(tuple(self.labels)), self.processing.settings())

    @field_validator("labels")
    @classmethod
    def _check_distinct(cls, labels: list[str]) -> list[str]:
        if len(set(labels)) < len(labels):
            raise ValueError("a label occurs twice")
        return labels

    def unknown_below(self, record: ModelRecord) -> float | None:
        """Return the probability below which an answer of a file is marked unknown; None if no answer is."""
        own = record.confidence.unknown if record.confidence is not None else None
        return self.processing.unknown if own is None else own

    def models(self) -> list[ModelRecord]:
        """List the records of the model files, without aliases."""
        return [f for f in self.files if isinstance(f, ModelRecord) and f.alias_of is None]

    def aliases(self) -> list[ModelRecord]:
        """List the aliases: records of files that equal another model file."""
        return [f for f in self.files if isinstance(f, ModelRecord) and f.alias_of is not None]

    def default_model(self) -> ModelRecord:
        """Return the record of the model file that `pocketbert.load` opens: the default file, or the first if none is marked.

        Raises:
            InputError: If the folder lists no model file.
        """
        candidates = [f for f in self.models() if f.default] or self.models()
        if not candidates:
            raise InputError(Problem("artifacts.json", "the folder lists no model file."))
        return candidates[0]
