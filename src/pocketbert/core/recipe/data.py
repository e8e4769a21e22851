"""The data sections of a recipe: labelled rows for training and evaluation, plain text, augmentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PositiveInt, field_validator, model_validator

from pocketbert.core.data.cells import find_name_problems
from pocketbert.core.data.source import DataSource, EvalSource, PlainNumbers, TeacherColumn, as_teacher_column
from pocketbert.core.data.streams import DEFAULT_CORPUS_ROWS
from pocketbert.core.recipe.sections import Fraction, Section, Stage, method_names
from pocketbert.core.tasks import HEAD_TASKS, TaskName

MAX_LENGTH = 8192
"""Longest input in tokens that a recipe may ask for."""


class AugmentSection(Section):
    """Copies of the training rows in which words are replaced by similar ones (TinyBERT's data augmentation)."""

    copies: PositiveInt = Field(
        20,
        le=1000,
        description="Copies of each text of a row, at most, so that a pair has up to twice as many; the row itself is kept.",
    )
    probability: Fraction = Field(0.4, description="Chance of each word to be replaced.")
    candidates: PositiveInt = Field(15, le=1000, description="Replacements to choose from, the nearest ones.")
    masked_lm: bool | None = Field(
        None,
        description="Ask the teacher's masked-language-model head about words of a single piece; default where it has "
        "one.",
    )
    vectors: Path | None = Field(
        None,
        description="Word vectors for the other words, a text file with a word and its numbers on each line (GloVe, "
        "word2vec, fastText); default the teacher's own embeddings.",
    )


class TransferSection(Section):
    """Texts without labels, which the teacher labels and the student learns from besides the labelled rows.

    Labels in the files are not read. Rows that also occur in the evaluation or the training rows are left out.
    """

    sources: list[DataSource] = Field(min_length=1, description="Where the texts come from; labels are not read.")
    pairs: PositiveInt | None = Field(
        None,
        description="Pairs to draw from single texts, for tasks on pairs; default one for each text. Sources with "
        "text_pair give their own pairs.",
    )
    near: Fraction = Field(
        0.5, description="Share of the drawn pairs whose two texts have a rare word in common; the others are random."
    )


class MixSection(Section):
    """How many rows of each kind a training step has, as weights.

    With the weights 1, 2 and 2, a fifth of the rows is labelled and two fifths are of each other kind. A pass
    (`epochs`) sees each labelled row once, and as many rows of the other kinds as the weights say.
    """

    labelled: float = Field(1.0, gt=0, le=1000, description="Rows of data.train.")
    augmented: float = Field(2.0, gt=0, le=1000, description="Their copies, in stages with augmented: true.")
    transfer: float = Field(
        2.0, gt=0, le=1000, description="Texts of data.transfer, and training rows without a label."
    )


class CorpusSettings(PlainNumbers):
    """How plain text is cut into rows; the defaults are those of DistilBERT (Sanh et al. 2019, arXiv 1910.01108)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    length: int = Field(512, ge=4, le=8192, description="Longest row in tokens, special tokens included.")
    shortest: int = Field(12, ge=1, description="Rows of fewer tokens, special ones included, are dropped.")
    unknown_share: float = Field(
        0.5, gt=0, le=1, description="Rows of which this share or more is the unknown token are dropped."
    )
    packed: bool = Field(
        False,
        description="Whether rows are filled with one text after the other; else a row is one text or a piece of one.",
    )

    @model_validator(mode="after")
    def _check_lengths(self) -> CorpusSettings:
        """Raise ValueError if the shortest row is longer than the longest."""
        if self.shortest > self.length:
            raise ValueError(
                f"'shortest' ({self.shortest}) is above 'length' ({self.length}): every row would be dropped"
            )
        return self


class CorpusSource(DataSource):
    """Plain text for general distillation: a file, a data set, or a corpus that `pocketbert data prepare` wrote.

    Only the column `text` is read. A prepared corpus is named by its folder in `path`.
    """

    share: float = Field(
        1.0, gt=0, description="How much of the mixture comes from here, relative to the other sources."
    )
    max_rows: int = Field(
        DEFAULT_CORPUS_ROWS,
        gt=0,
        le=1 << 40,
        description="Most rows of a file, which may have 512 bytes for each of them in all; more end the command with "
        "exit code 2.",
    )


class CorpusSection(CorpusSettings):
    """Plain text for general distillation, which is tokenized once."""

    sources: list[CorpusSource] = Field(min_length=1, description="Where the text comes from.")
    rows: PositiveInt | None = Field(
        None, description="Rows drawn for training, by the sources' shares; default as many as there are."
    )


def _check_label_names(names: list[str]) -> list[str]:
    """Raise ValueError for label names that cannot be told apart; return the names."""
    if problems := find_name_problems(names):
        raise ValueError("; ".join(problems))
    return names


def _check_head_task(task: TaskName) -> TaskName:
    """Raise ValueError for a task that one of several heads cannot have; return the task."""
    if task not in HEAD_TASKS:
        raise ValueError(f"{task} cannot share an encoder with other heads; allowed: {', '.join(HEAD_TASKS)}")
    return task


class HeadTeacher(TeacherColumn):
    """What one of several heads learns from: a column with a teacher's answers, or a model that the run asks."""

    newer_keys = ("model",)

    column: str = Field(
        "", description="Column of the answers, or several columns of numbers that are named after labels."
    )
    model: str | None = Field(
        None,
        min_length=1,
        description="Instead of a column: folder or Hub name of a fine-tuned model of transformers, of any family and tokenizer. It "
        "answers all rows once; the answers are stored in the run folder.",
    )

    @model_validator(mode="after")
    def _check_origin(self) -> HeadTeacher:
        """Raise ValueError unless there is either a column or a model, without settings of a column."""
        if bool(self.column) is bool(self.model):
            raise ValueError("takes one of column and model: {column: probs}, or {model: FOLDER}")
        given = [key for key in ("kind", "confidence") if self.model and getattr(self, key) is not None]
        if given:
            raise ValueError(f"{given[0]} says how a column is read, and model '{self.model}' answers: leave it out")
        return self


class HeadSection(Section):
    """One of several heads on one encoder: its task, and the column of its labels in all rows of data."""

    newer_keys = ("teacher",)

    task: Annotated[TaskName, AfterValidator(_check_head_task)] = Field(
        description=f"Task of the head: {', '.join(HEAD_TASKS)}."
    )
    label: str | None = Field(
        None,
        min_length=1,
        description="Column of its labels in data.train, data.eval and data.validation; default the name of the head.",
    )
    labels: Annotated[list[str], AfterValidator(_check_label_names)] | None = Field(
        None, min_length=2, description="Its label names, in order of their ids; default those of the data."
    )
    weight: float = Field(1.0, gt=0, le=1000, description="Weight of its losses beside those of the other heads.")
    teacher: Annotated[
        HeadTeacher | None, BeforeValidator(as_teacher_column, json_schema_input_type=str | HeadTeacher | None)
    ] = Field(
        None,
        description="A teacher of its own: the column of data.train with its answers, in the forms of data.train.teacher, or {model: "
        "FOLDER}; default: the model of the section teacher teaches the head.",
    )


class DataSection(Section):
    """The rows to train on and the rows to evaluate on; empty if a ready model is only exported."""

    train: DataSource | None = Field(None, description="Training rows; not needed when nothing is trained.")
    eval: EvalSource | None = Field(
        None, description="Rows that decide the score; never trained on. Without them, golden rows decide."
    )
    validation: EvalSource | None = Field(
        None,
        description="Rows that choose checkpoints and seeds, and are neither trained on nor reported: a file or data set, or "
        "{fraction: 0.1} of the training rows. Default: 10 % of the training rows, at most 500, where a training of at least "
        "1,000 rows passes over them twice or more.",
    )
    corpus: CorpusSection | None = Field(None, description="Plain text for general stages.")
    augment: AugmentSection | None = Field(
        None, description="Multiply the training rows by replacing words, for stages with augmented: true."
    )
    transfer: TransferSection | None = Field(
        None, description="Texts without labels for stages on the task's text, labelled by the teacher."
    )
    mix: MixSection | None = Field(
        None,
        description="Shares of labelled, augmented and transfer rows; default 1, 2, 2 where there are transfer rows, else "
        "all rows alike.",
    )
    holdout: int = Field(
        0,
        ge=0,
        description="Training rows held out by hash: the quantized file is compared with fp32 on them, and each "
        "classifier's temperature is fitted on them.",
    )
    selection: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of the eval rows, by hash, that choose the files inside quantize.budget and are not scored; "
        "default 0.5 with a budget, else none.",
    )
    labels: Annotated[list[str], AfterValidator(_check_label_names)] | None = Field(
        None, min_length=2, description="Label names, in order of their ids."
    )
    max_length: int | None = Field(
        None,
        ge=4,
        le=MAX_LENGTH,
        description="Longest input in tokens; default 128 with data, else the model's own.",
    )

    @field_validator("eval", "validation", mode="before")
    @classmethod
    def _as_eval(cls, source: object) -> object:
        """Return a `DataSource` object as a dictionary, which is then read as an `EvalSource`; return others unchanged."""
        if isinstance(source, DataSource) and not isinstance(source, EvalSource):
            return source.model_dump(exclude_unset=True)
        return source

    def labelled_sources(self) -> list[tuple[str, DataSource]]:
        """Return `train`, `eval` and `validation` by name, those that the recipe has."""
        named = {"train": self.train, "eval": self.eval, "validation": self.validation}
        return [(name, source) for name, source in named.items() if source is not None]

    @property
    def eval_source(self) -> DataSource | None:
        """The source of the evaluation rows; None without any.

        If a fraction of the training rows is used, that is the source of the training rows, or without these the first
        source of texts without labels.
        """
        if self.eval is None or self.eval.fraction is None:
            return self.eval
        return self.train or (self.transfer.sources[0] if self.transfer else None)

    @property
    def validation_source(self) -> DataSource | None:
        """The source of the validation rows: a source of their own, else that of the training rows; None without both."""
        own = self.validation
        return self.train if own is None or own.fraction is not None else own


_HEAD_METHODS = ("task", "tinybert-intermediate", "tinybert-prediction")
"""Methods on the task's rows that train several heads."""


def list_head_problems(
    heads: Mapping[str, HeadSection], data: DataSection, stages: Sequence[Stage], unsuited: Sequence[str]
) -> list[str]:
    """Return what is wrong with a recipe for several heads: sentences with the fix, empty if nothing is.

    Args:
        heads: The heads by their names.
        data: The section `data`.
        stages: The entries of `distill`.
        unsuited: Keys that are set and have no use for several heads.
    """
    problems = [f"{key}: is not possible with several heads (tasks): leave it out" for key in unsuited]
    if data.labels is not None:
        problems.append("data.labels: belongs to one head: give tasks.NAME.labels")
    problems += [
        f"data.{name}.{key}: belongs to one head: give tasks.NAME.{key}"
        for name, source in data.labelled_sources()
        for key in ("label", "teacher")
        if getattr(source, key) != DataSource.model_fields[key].default  # a stored recipe lists the default
    ]
    problems += [
        f"tasks.{name}.labels: {head.task} has no labels: leave it out"
        for name, head in heads.items()
        if head.labels and head.task is TaskName.REGRESSION
    ]
    allowed = (*_HEAD_METHODS, *method_names(lambda stage: stage.general))
    return problems + [
        f"distill.{number}: method {stage.method_name()} does not train several heads; allowed: {', '.join(allowed)}"
        for number, stage in enumerate(stages)
        if stage.method_name() not in allowed
    ]
