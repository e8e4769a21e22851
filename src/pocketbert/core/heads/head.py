"""What every task's module offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.examples import Example
from pocketbert.core.predict.answers import Answer
from pocketbert.core.predict.readout import Matrix
from pocketbert.core.predict.score import Score
from pocketbert.core.predict.tokenization import Encoded, TextTokenizer, cut
from pocketbert.core.tasks import Task

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
