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
        """Raise ValueError unless exactly one of the fields is given."""
        if (self.below is None) == (self.accuracy is None):
            raise ValueError(
                "takes either below, a probability, or accuracy, a share of right labels: {accuracy: 0.95}"
            )
        return self


def _long_form(value: object) -> object:
    """Convert the short form of the setting, a number, to {below: number}."""
    return value if value is None or isinstance(value, dict | UnknownSettings) else {"below": value}


def _short_form(settings: UnknownSettings | None) -> object:
    """Convert {below: number} back to the short form, the number."""
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
        """The probability below which answers of any file are unknown; None if unset, or fitted for each file."""
        return self.unknown.below if self.unknown is not None else None

    @property
    def unknown_accuracy(self) -> float | None:
        """The accuracy that the files' "unknown" thresholds are fitted for; None if none is fitted."""
        return self.unknown.accuracy if self.unknown is not None else None


# --- prepared rows ---

IGNORED_LABEL = -100
"""Label of a token that no loss looks at; torch's cross-entropy ignores it by default."""
_Targets = Mapping[str, NDArray[np.generic] | Sequence[NDArray[np.int64]]]


@dataclass(frozen=True)
class Prepared:
    """Tokenized data rows with their labels, ready for a model.

    Attributes:
        examples: The rows of the data, E of them.
        encoded: The model's rows, N of them: a long context has several windows, a scored pair two texts.
        owner: Number of the example that each of the model's rows belongs to, [N], ascending.
        targets: Training targets by name, one per row: arrays [N, ...], or N arrays with one number per token.
        truth: The gold label of each example, in the form that scoring needs; empty if the rows are not labelled.
        tokenizer: The tokenizer that made `encoded`, for tasks whose answers are tokens.
    """

    examples: list[Example]
    encoded: list[Encoded]
    owner: NDArray[np.int64]
    targets: _Targets = field(default_factory=dict)
    truth: Sequence[Any] | NDArray[Any] = ()
    tokenizer: TextTokenizer | None = None

    def within(self, length: int) -> Prepared:
        """Return the rows cut to at most `length` tokens each."""
        if all(len(e) <= length for e in self.encoded):
            return self
        return replace(self, encoded=[self._cut(i, length) for i in range(len(self.encoded))])

    def _cut(self, row: int, length: int) -> Encoded:
        """Cut one row to at most `length` tokens; a pair is tokenized again, so that its separators stay."""
        encoded, text = self.encoded[row], self.examples[self.owner[row]].input
        if len(encoded) <= length or encoded.places is not None or self.tokenizer is None or isinstance(text, str):
            return truncate_row(encoded, length)
        return replace(truncate_row(self.tokenizer.encode([text], places=True)[0], length), places=None)

    def rows_of(self) -> list[list[int]]:
        """Return for each example the indices of its rows in `encoded`."""
        rows: list[list[int]] = [[] for _ in self.examples]
        for i, example in enumerate(self.owner):
            rows[example].append(i)
        return rows


def prepare_texts(examples: list[Example], tokenizer: TextTokenizer, places: bool = False) -> Prepared:
    """Tokenize each example to one row, without reading labels."""
    encoded = tokenizer.encode([e.input for e in examples], places)
    return Prepared(examples, encoded, np.arange(len(examples)), tokenizer=tokenizer)


def all_finite(matrices: Sequence[Matrix]) -> bool:
    """Return whether every number in all matrices is finite."""
    return all(bool(np.isfinite(m).all()) for m in matrices)


# --- heads ---


class Head(Protocol):
    """The code of a task: reads labels, scores outputs and turns them into answers.

    Attributes:
        task: The task's row in the table of tasks.
    """

    task: Task

    def prepare(self, examples: list[Example], tokenizer: TextTokenizer, title: str, labelled: bool = True) -> Prepared:
        """Tokenize examples and read their labels as training targets and gold labels.

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
        """Reduce one row's outputs to what `score` needs of them; for most tasks that is the matrix itself."""
        ...

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """Compute the task's score from the reduced outputs of all labelled rows, one matrix each."""
        ...

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """Turn output matrices, one per row, into answers; `inside` means that the file computed probabilities."""
        ...


class TextHead:
    """Base of heads whose output matrix has one row per text, which `score` needs unchanged."""

    def reduce(self, row: int, matrix: Matrix, prepared: Prepared) -> Matrix:
        """Return the output matrix unchanged."""
        return matrix


class LabelledTextHead(TextHead):
    """Base of heads that are trained on one label per text; a subclass defines how labels are read."""

    def prepare(self, examples: list[Example], tokenizer: TextTokenizer, title: str, labelled: bool = True) -> Prepared:
        """Tokenize examples, and read one target per text, named ``labels``; see `Head.prepare`."""
        rows = prepare_texts(examples, tokenizer)
        if not labelled:
            return rows
        truth, targets = self._read_gold(examples, title)
        return replace(rows, targets={"labels": targets}, truth=truth)

    def _read_gold(self, examples: list[Example], title: str) -> tuple[NDArray[Any], NDArray[np.generic]]:
        """Read the labels of N examples; return the gold labels for scoring and the targets for training."""
        raise NotImplementedError
