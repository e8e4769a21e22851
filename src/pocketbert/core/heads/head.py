"""What every task's module offers."""

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
from pocketbert.core.predict.predictor import Matrix
from pocketbert.core.predict.scores import Score, Temperature
from pocketbert.core.predict.sentence_settings import PoolingKind, Similarity
from pocketbert.core.predict.tokenization import Encoded, TextTokenizer, cut
from pocketbert.core.tasks import Task

# --- settings ---
# The settings of answers that a user chooses in addition to the model: thresholds, temperature, windows, pooling.


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
    def _one(self) -> UnknownSettings:
        if (self.below is None) == (self.accuracy is None):
            raise ValueError(
                "takes either below, a probability, or accuracy, a share of right labels: {accuracy: 0.95}"
            )
        return self


def _long_form(value: object) -> object:
    return value if value is None or isinstance(value, dict | UnknownSettings) else {"below": value}


def _short_form(chosen: UnknownSettings | None) -> object:
    return chosen if chosen is None else chosen.below or {"accuracy": chosen.accuracy}


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
        """The "unknown" threshold of all files; None where there is none, or one is fitted for each."""
        return self.unknown.below if self.unknown is not None else None

    @property
    def unknown_accuracy(self) -> float | None:
        """The accuracy that "unknown" thresholds are fitted for; None where none is fitted."""
        return self.unknown.accuracy if self.unknown is not None else None


IGNORED = -100
"""Runtime of a token that no loss looks at; what torch's cross-entropy ignores by default."""
Targets = Mapping[str, NDArray[np.generic] | Sequence[NDArray[np.int64]]]
"""Training targets by name, one per row: arrays [N, ...], or N arrays with one number per token."""


@dataclass(frozen=True)
class Prepared:
    """Rows of data as a model takes them.

    Attributes:
        examples: The rows of the data, E of them.
        encoded: What the model reads, N of them: a long context has several windows, a scored pair two texts.
        owner: Which example each of them belongs to, [N], ascending.
        targets: What training wants.
        truth: What scoring wants, E of them; empty where the rows are not labelled.
        tokenizer: What made `encoded`, for tasks whose answers are tokens.
    """

    examples: list[Example]
    encoded: list[Encoded]
    owner: NDArray[np.int64]
    targets: Targets = field(default_factory=dict)
    truth: Sequence[Any] | NDArray[Any] = ()
    tokenizer: TextTokenizer | None = None

    def within(self, length: int) -> Prepared:
        """Cut the same rows to at most this number of tokens."""
        if all(len(e) <= length for e in self.encoded):
            return self
        return replace(self, encoded=[self._cut(i, length) for i in range(len(self.encoded))])

    def _cut(self, row: int, length: int) -> Encoded:
        """Cut one row; of a pair, whose separators stay, it has to be known where they are."""
        encoded, text = self.encoded[row], self.examples[self.owner[row]].input
        if len(encoded) <= length or encoded.places is not None or self.tokenizer is None or isinstance(text, str):
            return cut(encoded, length)
        return replace(cut(self.tokenizer.encode([text], places=True)[0], length), places=None)

    def rows_of(self) -> list[list[int]]:
        """Numbers of the model's rows, for each example."""
        out: list[list[int]] = [[] for _ in self.examples]
        for i, example in enumerate(self.owner):
            out[example].append(i)
        return out


class Head(Protocol):
    """One task.

    Attributes:
        task: Its row of the table.
    """

    task: Task

    def prepare(self, examples: list[Example], tokenizer: TextTokenizer, title: str, labelled: bool = True) -> Prepared:
        """Tokenize rows and read their labels.

        Args:
            examples: The rows.
            tokenizer: Cuts at the longest input.
            title: The file, for errors.
            labelled: Whether labels are there.

        Raises:
            InputError: Naming the rows whose labels do not fit.
        """
        ...

    def reduce(self, row: int, matrix: Matrix, prepared: Prepared) -> Matrix:
        """What must be kept of a row's outputs for `score`; the matrix itself for most tasks."""
        ...

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """Score the (reduced) outputs of labelled rows, N matrices."""
        ...

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """Word the outputs of E examples, N matrices; `inside` when the score function is in the file already."""
        ...


class PerText:
    """What tasks share whose outputs have one row per text: nothing is left out of it."""

    def reduce(self, row: int, matrix: Matrix, prepared: Prepared) -> Matrix:
        """The row as it is."""
        return matrix


class Labelled(PerText):
    """What tasks share that are trained on one label cell per text; a subclass says how to read it."""

    def prepare(self, examples: list[Example], tokenizer: TextTokenizer, title: str, labelled: bool = True) -> Prepared:
        """Targets ``labels``: one entry per text; see `Head.prepare`."""
        rows = per_text(examples, tokenizer)
        if not labelled:
            return rows
        truth, targets = self._gold(examples, title)
        return replace(rows, targets={"labels": targets}, truth=truth)

    def _gold(self, examples: list[Example], title: str) -> tuple[NDArray[Any], NDArray[np.generic]]:
        """What scoring wants and what training wants, N of them each."""
        raise NotImplementedError


def per_text(examples: list[Example], tokenizer: TextTokenizer, places: bool = False) -> Prepared:
    """One model row per example."""
    encoded = tokenizer.encode([e.input for e in examples], places)
    return Prepared(examples, encoded, np.arange(len(examples)), tokenizer=tokenizer)


def all_finite(matrices: Sequence[Matrix]) -> bool:
    """Whether every number is finite."""
    return all(bool(np.isfinite(m).all()) for m in matrices)
