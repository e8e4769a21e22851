"""The protocol of task heads, their settings, and the rows that they prepare.

A head tokenizes examples and reads their labels (`Head.prepare`), scores a model's outputs and words its answers.
`Prepared` holds the tokenized rows of one split.
Heads of tasks with one row of outputs per text build on `TextHead` and `LabelledTextHead`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.metrics import Metric
from pocketbert.core.predict.answers import Answer
from pocketbert.core.predict.examples import Example
from pocketbert.core.predict.inputs import Encoded, truncate_row
from pocketbert.core.predict.predictor import Matrix
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import Task

if TYPE_CHECKING:
    from pocketbert.core.predict.scores import Score

# --- prepared rows ---

IGNORED_LABEL = -100
"""Label of a token that no loss looks at; torch's cross-entropy ignores it by default."""
LABELLED_ROWS = "labelled"
"""Name of the marks of a batch's rows that have a gold label, where some have none: losses of labels are over these only."""
TEACHER_PREFIX = "teacher."
"""Prefix of the teacher's inputs in a batch, where it reads other tokens of the same text than the student."""
_Targets = Mapping[str, NDArray[np.generic] | Sequence[NDArray[np.int64]]]


@dataclass(frozen=True)
class Prepared:
    """Tokenized data rows with their labels, ready for a model.

    Attributes:
        examples: The rows of the data, E of them.
        encoded: The rows that the model reads, N of them. An example has several if its context is long (windows) or it
            has choices, and two (its texts) if it is a pair of feature-extraction.
        owner: For each row in `encoded`, the index of its example, [N], ascending.
        targets: Training targets by name, one per row: arrays [N, ...], or N arrays with one number per token.
        truth: The gold label of each example, in the form that the task's score needs; empty if the rows are not
            labelled.
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
        """Cut the row with index `row` to at most `length` tokens; a pair is tokenized again, if possible, to keep its separators."""
        encoded, owner = self.encoded[row], self.owner[row]
        inputs = self.examples[owner].inputs
        # an example with several choices has a row for each of them
        text = inputs[row - int(np.searchsorted(self.owner, owner))] if len(inputs) > 1 else inputs[0]
        if len(encoded) <= length or encoded.places is not None or self.tokenizer is None or isinstance(text, str):
            return truncate_row(encoded, length)
        return replace(truncate_row(self.tokenizer.encode([text], places=True)[0], length), places=None)

    def only(self, examples: Sequence[int]) -> Prepared:
        """Return the rows of the examples with the given indices, in that order."""
        rows = self.rows_of()
        chosen = [row for i in examples for row in rows[i]]
        return replace(
            self,
            examples=[self.examples[i] for i in examples],
            encoded=[self.encoded[row] for row in chosen],
            owner=np.repeat(np.arange(len(examples)), [len(rows[i]) for i in examples]),
            targets={name: _take(values, chosen) for name, values in self.targets.items()},
            truth=_take(self.truth, examples) if len(self.truth) else (),
        )

    def first_by_hash(self, count: int) -> list[int]:
        """Return the indices of the `count` examples with the smallest text hashes, whatever the order of the file."""
        return sorted(range(len(self.examples)), key=lambda i: self.examples[i].digest)[:count]

    def rows_of(self) -> list[list[int]]:
        """Return for each example the indices of its rows in `encoded`."""
        rows: list[list[int]] = [[] for _ in self.examples]
        for i, example in enumerate(self.owner):
            rows[example].append(i)
        return rows


def _take(values: Any, numbers: Sequence[int]) -> Any:
    """Return the entries of an array or sequence at the given indices."""
    return values[np.asarray(numbers, np.int64)] if isinstance(values, np.ndarray) else [values[i] for i in numbers]


def prepare_texts(examples: list[Example], tokenizer: TextTokenizer, places: bool = False) -> Prepared:
    """Tokenize each example to one row, without reading labels."""
    encoded = tokenizer.encode([e.input for e in examples], places)
    return Prepared(examples, encoded, np.arange(len(examples)), tokenizer=tokenizer)


def make_score(metric: Metric, value: float, others: dict[str, float], rows: int, chance: float, finite: bool) -> Score:
    """Build the `Score` of labelled rows; its value is NaN if `finite` is false."""
    from pocketbert.core.predict.score_records import Score

    return Score.of(metric, value, others, rows, chance, finite)


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
            tokenizer: Tokenizes the texts, and cuts them at the model's longest input.
            title: Name of the file in errors.
            labelled: Whether the rows have labels, which are then read.

        Raises:
            InputError: Naming the rows whose labels do not fit.
        """
        ...

    def reduce(self, row: int, matrix: Matrix, prepared: Prepared) -> Matrix:
        """Reduce one row's outputs to what `score` needs; for most tasks that is the whole matrix."""
        ...

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """Compute the task's score from the reduced outputs of all labelled rows, one matrix each."""
        ...

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """Turn output matrices, one per row, into one answer per example; `inside` states whether the file computed probabilities."""
        ...


class TextHead:
    """Base of heads whose output matrix has one row per text; `score` needs this matrix unchanged."""

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
