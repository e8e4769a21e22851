"""The protocol of task heads, their settings, and the rows that they prepare.

A head tokenizes examples and reads their labels (`Head.prepare`), scores a model's outputs and words its answers.
`AnswerSettings` holds what users decide about answers; `Prepared` holds the tokenized rows of one split.
Heads of tasks with one row of outputs per text build on `TextHead` and `LabelledTextHead`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, PositiveInt, model_validator

from pocketbert.core.data.examples import Example
from pocketbert.core.data.source import PlainNumbers
from pocketbert.core.predict.answers import Answer
from pocketbert.core.predict.inputs import Encoded, truncate_row
from pocketbert.core.predict.predictor import Matrix
from pocketbert.core.predict.scores import Score, Temperature
from pocketbert.core.predict.sentence_settings import PoolingKind, Similarity
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import Task

Share = Annotated[float, Field(gt=0, lt=1)]


class UnknownSettings(PlainNumbers):
    """From which probability a label is believed: a threshold of all files, or an accuracy to fit one of each file for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    below: Share | None = Field(
        None,
        description="an answer with a smaller probability is unknown; a number is the short form of {below: number}.",
    )
    accuracy: Share | None = Field(
        None,
        description="share of right labels that is wanted among the answers that are not unknown: each file gets the threshold "
        "that answers most and shows it on the held-out rows (data.holdout).",
    )

    @model_validator(mode="after")
    def _check(self) -> UnknownSettings:
        """Check that exactly one of the fields is given."""
        if (self.below is None) == (self.accuracy is None):
            raise ValueError(
                "takes either below, a probability, or accuracy, a share of right labels: {accuracy: 0.95}"
            )
        return self


def _long_form(value: object) -> object:
    """Turn a number into {below: number}."""
    return value if value is None or isinstance(value, dict | UnknownSettings) else {"below": value}


def _short_form(settings: UnknownSettings | None) -> object:
    """Write {below: number} as the number."""
    return settings if settings is None else settings.below or {"accuracy": settings.accuracy}


_Unknown = Annotated[
    UnknownSettings | None,
    BeforeValidator(_long_form, json_schema_input_type=Share | UnknownSettings | None),
    PlainSerializer(_short_form),
]


class AnswerSettings(PlainNumbers):
    """How outputs become answers; each task reads its own part. Fields say what they mean in their descriptions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    thresholds: Share | list[Share] | None = Field(
        None,
        description="multi-label: probability from which a label is given, one for all or one per label; default the "
        "ones that give the trained model the best F1 on training rows, 0.5 where nothing is trained.",
    )
    temperature: Temperature | None = Field(
        None,
        description="text-classification: what logits are divided by before the softmax, for all files; 1 leaves them as they are; "
        "default the temperature that suits each file best on the held-out rows (data.holdout), 1 without them.",
    )
    unknown: _Unknown = Field(
        None,
        description="text-classification: probability below which an answer is marked as unknown, or {accuracy: 0.95} to fit one for each "
        "file; it is compared with the largest probability, after the temperature; default none, so that no answer is marked.",
    )
    stride: PositiveInt = Field(128, description="question-answering: tokens that two windows of a long context share.")
    answer_length: PositiveInt = Field(30, description="question-answering: longest answer in tokens.")
    null_answers: bool = Field(
        False,
        description="question-answering: whether a question may have no answer; it then has none where the first token scores "
        "higher than every answer.",
    )
    pooling: PoolingKind | None = Field(
        None,
        description="feature-extraction: how token states become one vector; default what the model's own files say, else mean.",
    )
    normalize: bool | None = Field(
        None,
        description="feature-extraction: whether vectors get length 1; default what the model's own files say, else true.",
    )
    similarity: Similarity | None = Field(
        None,
        description="feature-extraction: what two vectors are compared with where pairs are scored; default what the model's own files "
        "say, else cosine.",
    )

    @property
    def unknown_below(self) -> float | None:
        """The "unknown" threshold of all files; None if there is none, or one is fitted for each file."""
        return self.unknown.below if self.unknown is not None else None

    @property
    def unknown_accuracy(self) -> float | None:
        """The accuracy that "unknown" thresholds are fitted for; None if none is fitted."""
        return self.unknown.accuracy if self.unknown is not None else None


# --- prepared rows ---

IGNORED_LABEL = -100
"""Label of a token that no loss looks at; torch's cross-entropy ignores it by default."""
_Targets = Mapping[str, NDArray[np.generic] | Sequence[NDArray[np.int64]]]


@dataclass(frozen=True)
class Prepared:
    """Rows of data as a model takes them.

    Attributes:
        examples: The rows of the data, E of them.
        encoded: The model's rows, N of them: a long context has several windows, a scored pair two texts.
        owner: Number of the example that each of the model's rows belongs to, [N], ascending.
        targets: Training targets by name, one per row: arrays [N, ...], or N arrays with one number per token.
        truth: What scoring compares with, E of them; empty if the rows are not labelled.
        tokenizer: The tokenizer that made `encoded`, for tasks whose answers are tokens.
    """

    examples: list[Example]
    encoded: list[Encoded]
    owner: NDArray[np.int64]
    targets: _Targets = field(default_factory=dict)
    truth: Sequence[Any] | NDArray[Any] = ()
    tokenizer: TextTokenizer | None = None

    def within(self, length: int) -> Prepared:
        """Return the same rows, cut to at most this number of tokens."""
        if all(len(e) <= length for e in self.encoded):
            return self
        return replace(self, encoded=[self._cut(i, length) for i in range(len(self.encoded))])

    def _cut(self, row: int, length: int) -> Encoded:
        """Cut one row. A pair is tokenized again with places, because its separators must stay."""
        encoded, text = self.encoded[row], self.examples[self.owner[row]].input
        if len(encoded) <= length or encoded.places is not None or self.tokenizer is None or isinstance(text, str):
            return truncate_row(encoded, length)
        return replace(truncate_row(self.tokenizer.encode([text], places=True)[0], length), places=None)

    def rows_of(self) -> list[list[int]]:
        """Return the numbers of the model's rows of each example."""
        rows: list[list[int]] = [[] for _ in self.examples]
        for i, example in enumerate(self.owner):
            rows[example].append(i)
        return rows


def prepare_texts(examples: list[Example], tokenizer: TextTokenizer, places: bool = False) -> Prepared:
    """Tokenize examples into one row each, without labels."""
    encoded = tokenizer.encode([e.input for e in examples], places)
    return Prepared(examples, encoded, np.arange(len(examples)), tokenizer=tokenizer)


def all_finite(matrices: Sequence[Matrix]) -> bool:
    """Return whether every number is finite."""
    return all(bool(np.isfinite(m).all()) for m in matrices)


# --- heads ---


class Head(Protocol):
    """What a task does with labels, outputs and answers.

    Attributes:
        task: The task's row in the table of tasks.
    """

    task: Task

    def prepare(self, examples: list[Example], tokenizer: TextTokenizer, title: str, labelled: bool = True) -> Prepared:
        """Tokenize rows and read their labels.

        Args:
            examples: The rows.
            tokenizer: Cuts at the longest input.
            title: Name of the file in errors.
            labelled: Whether the rows have labels.

        Raises:
            InputError: Naming the rows whose labels do not fit.
        """
        ...

    def reduce(self, row: int, matrix: Matrix, prepared: Prepared) -> Matrix:
        """Return what `score` needs of a row's outputs; for most tasks the matrix itself."""
        ...

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """Score the reduced outputs of labelled rows, N matrices."""
        ...

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """Turn outputs, N matrices, into the answers to E examples; `inside` if the file applied the score function."""
        ...


class TextHead:
    """Base of heads whose outputs have one row per text, all of which `score` needs."""

    def reduce(self, row: int, matrix: Matrix, prepared: Prepared) -> Matrix:
        """Return the row as it is."""
        return matrix


class LabelledTextHead(TextHead):
    """Base of heads that are trained on one label cell per text; a subclass defines how the cells are read."""

    def prepare(self, examples: list[Example], tokenizer: TextTokenizer, title: str, labelled: bool = True) -> Prepared:
        """Tokenize rows; the targets are ``labels``, one entry per text. See `Head.prepare`."""
        rows = prepare_texts(examples, tokenizer)
        if not labelled:
            return rows
        truth, targets = self._read_gold(examples, title)
        return replace(rows, targets={"labels": targets}, truth=truth)

    def _read_gold(self, examples: list[Example], title: str) -> tuple[NDArray[Any], NDArray[np.generic]]:
        """Return what scoring compares with and what training learns, N of them each."""
        raise NotImplementedError
