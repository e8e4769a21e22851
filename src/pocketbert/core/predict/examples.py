"""Labelled examples: texts with what is known of them, and their division into training and held-out rows.

- `Example` is one row: a text or a pair with its label, or with a teacher's answer. `unlabelled_example` makes one of a text without a label.
- `hold_out`, `hold_out_share` and `drop_duplicates_of` divide rows by the hash of their text, not by their order; `drop_overlapping` drops rows
  whose text contains a held-out text or is part of one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pocketbert.core.disk.files import sha256_bytes
from pocketbert.core.predict.inputs import ChoiceText, Text, columns_of, with_columns
from pocketbert.core.predict.spans import Span

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pocketbert.core.types import AnswerKind


@dataclass(frozen=True, order=True, slots=True)
class GoldAnswer:
    """One correct answer to a question, with its position in the context.

    Attributes:
        start: Index of the answer's first character in the context, in code points.
        text: The answer.
    """

    start: int
    text: str


_Label = int | float | str | tuple[int | float | str, ...] | tuple[Span, ...] | tuple[GoldAnswer, ...]


@dataclass(frozen=True, slots=True)
class HeadLabels:
    """The labels of one row for several heads, in their order; None for a label that the row lacks.

    Attributes:
        labels: The labels.
        answers: The answers of the heads' teachers, if the source has columns of them; None for one that the row lacks.
    """

    labels: tuple[_Label | None, ...]
    answers: tuple[TeacherAnswer | None, ...] = field(default=(), hash=False, compare=False)


Label = _Label | HeadLabels


@dataclass(frozen=True, slots=True, eq=False)
class TeacherAnswer:
    """A teacher's answer for one row.

    Attributes:
        names: Label of each column of `values`; empty if the columns follow the label set, or are no labels.
        values: The numbers [n, K], usually float64. n is 1 for an answer about the whole text. For a tagged text there
            is a row for each word or token, with NaN for labels that its cell does not name; for a question a row for
            each character where the answer may start or end. Vectors are float32, one for each text of a pair.
        kinds: What the numbers can be (such as probabilities or logits), as far as they show it.
        places: Start and end characters [n, 2] of what each row is about; [-1, -1] for "no answer". None for whole
            texts.
        gives_label: Whether the row has no label of its own, so that its label was taken from the answer.
    """

    names: tuple[int | float | str, ...]
    values: NDArray[np.float32] | NDArray[np.float64]
    kinds: frozenset[AnswerKind]
    places: NDArray[np.int64] | None = None
    gives_label: bool = False


@dataclass(frozen=True, slots=True)
class Example:
    """One row of a data file or data set: text, second text and label.

    Attributes:
        text: The text.
        pair: The second text, or None.
        label: The label, of the type that belongs to the task's `LabelKind`; None if the row has none.
        row: Line number (JSON Lines) or record number in the file, from 1.
        columns: Values of the further data columns that the caller asked for; None if the caller asked for none.
        choices: The texts from which the right one is chosen, for multiple choice; empty for other tasks.
        answer: The answer of a teacher, if the source has a column of them.
    """

    text: str
    pair: str | None
    label: Label | None
    row: int
    columns: Mapping[str, Any] | None = field(default=None, hash=False)
    choices: tuple[str, ...] = ()
    answer: TeacherAnswer | None = field(default=None, hash=False, compare=False)

    @property
    def input(self) -> Text:
        """The text or pair as the tokenizer takes it, with its data columns attached; the first of `inputs`."""
        return self.inputs[0]

    @property
    def inputs(self) -> list[Text]:
        """The texts or pairs that the model reads for this row: one, or for multiple choice one for each choice."""
        seconds = self.choices or (self.pair,)
        texts: list[Text] = [self.text if second is None else (self.text, second) for second in seconds]
        return [with_columns(text, self.columns) for text in texts]

    @property
    def digest(self) -> str:
        """Hash of the lower-cased texts without surrounding blanks; rows with equal hashes count as duplicates."""
        joined = "\x1f".join(map(text_key, (self.text, self.pair or "", *self.choices)))
        return sha256_bytes(joined.encode(errors="replace"))

    @property
    def query_digest(self) -> str:
        """Hash of the row without its second text; pairs of one query have equal ones."""
        return replace(self, pair=None).digest


def text_key(text: str) -> str:
    """Return a text as texts are compared: in lower case, without surrounding blanks."""
    return text.strip().lower()


def unlabelled_example(text: Text | ChoiceText, row: int = 1) -> Example:
    """Build an `Example` without a label from a text, a pair, or a question with its choices.

    Args:
        text: A text, a pair (with its data columns if it has some), or a question with its choices as (question,
            choices).
        row: Number of the example, from 1.
    """
    first, second = (text, None) if isinstance(text, str) else text
    if second is None or isinstance(second, str):
        return Example(first, second, None, row, columns_of(text))
    return Example(first, None, None, row, choices=tuple(second))


# --- held-out rows ---

_HASHES = 1 << 256


def hold_out(examples: Sequence[Example], rows: int) -> tuple[list[Example], list[Example]]:
    """Split off about `rows` examples: those with the smallest text hashes. Examples with equal texts go together.

    Args:
        examples: All rows.
        rows: How many rows to hold out; equal texts can make them more or fewer. At most half of all rows are held out.

    Returns:
        The rows to keep, and the held-out rows, each in the order of `examples`.
    """
    half = len(examples) // 2
    if min(rows, half) <= 0:
        return list(examples), []
    digests = [e.digest for e in examples]
    ordered = sorted(digests)
    limit = ordered[min(rows, half) - 1]
    # equal texts stay together: if the last of them make too many rows, none of them is held out
    includes_limit = bisect_right(ordered, limit) <= half
    keep: list[Example] = []
    held: list[Example] = []
    for example, digest in zip(examples, digests, strict=True):
        (held if digest < limit or (includes_limit and digest == limit) else keep).append(example)
    return keep, held


def hold_out_share(
    examples: Sequence[Example], fraction: float, purpose: str = "", by_first: bool = False
) -> tuple[list[Example], list[Example]]:
    """Split off a share of the examples by the hash of their text.

    Examples with equal texts go together. If all rows of a label would be split off, they are kept. Apart from such
    rows, adding rows to the file moves no other row between the two parts.

    Args:
        examples: All rows.
        fraction: Probability with which each text is held out.
        purpose: Text that is hashed with each row, so that splits for different purposes are independent. A second
            split of the kept rows with the same purpose and fraction would hold out none of them.
        by_first: Whether pairs with the same first text go together, such as the passages of a query.

    Returns:
        The rows to keep, and the held-out rows, each in the order of `examples`.
    """
    limit = f"{int(fraction * _HASHES):064x}"
    rows = [(example, example.query_digest if by_first else example.digest) for example in examples]
    held = {digest for _, digest in rows if _with_purpose(digest, purpose) < limit}
    kept_labels = {name for example, digest in rows if digest not in held for name in label_names(example)}
    held -= {digest for example, digest in rows if not kept_labels.issuperset(label_names(example))}
    return [e for e, digest in rows if digest not in held], [e for e, digest in rows if digest in held]


def _with_purpose(digest: str, purpose: str) -> str:
    return sha256_bytes(f"{purpose} {digest}".encode()) if purpose else digest


def label_names(example: Example) -> list[object]:
    """Return the label names of a row: one, several, or those of its spans; empty without a label, for scores and answers.

    With several heads each name is a pair (index of the head, name).
    """
    label = example.label
    if isinstance(label, HeadLabels):
        parts = enumerate(label.labels)
        return [(n, name) for n, own in parts for name in label_names(replace(example, label=own))]
    if isinstance(label, tuple):
        return [v.label if isinstance(v, Span) else v for v in label if not isinstance(v, GoldAnswer)]
    return [] if label is None or isinstance(label, float) else [label]


def drop_duplicates_of(examples: Sequence[Example], others: Sequence[Example]) -> tuple[list[Example], int]:
    """Drop the examples whose texts (`Example.digest`) a row of `others` has too, such as evaluation rows in training data.

    Returns:
        The remaining rows, and the number of rows that were dropped.
    """
    other_digests = {e.digest for e in others}
    remaining = [e for e in examples if e.digest not in other_digests]
    return remaining, len(examples) - len(remaining)


_LEAST_WORDS = 4
"""Fewest words of a text that shows where it comes from; shorter ones are part of many texts."""


def drop_overlapping(examples: Sequence[Example], others: Sequence[Example]) -> tuple[list[Example], int]:
    """Drop the examples whose text is a part of a text of `others`, or has one of theirs as a part, word for word.

    Phrases of one sentence are such rows (SST-2): a model that has learnt one knows the answer to the other, and its score on them
    tells little about new texts. Texts of fewer than four words and rows with a second text or choices are not compared, and
    rows with a label that no other row would have are kept.

    Args:
        examples: The rows to train on.
        others: The rows that were divided from them.

    Returns:
        The remaining rows, and the number of rows that were dropped.
    """
    known = {_join(words): runs for row in others if (runs := _runs(words := _words(row)))}
    known_texts, counts = "\n".join(known), Counter(run for runs in known.values() for run in runs)
    by_rarest_run = defaultdict[str, list[str]](list)  # many texts may begin alike
    for text, runs in known.items():
        by_rarest_run[min(runs, key=counts.__getitem__)].append(text)

    def overlaps(row: Example) -> bool:
        """Return whether the row's text is a part of a known text, or a known text is a part of it."""
        words = _words(row)
        text, runs = _join(words), _runs(words)  # the runs are looked up first: few rows share one
        if runs and all(run in counts for run in runs) and text in known_texts:
            return True
        return any(part in text for run in set(runs) for part in by_rarest_run.get(run, ()))

    checked = [(row, overlaps(row)) for row in examples]
    kept_labels = {name for row, overlapping in checked if not overlapping for name in label_names(row)}
    remaining = [row for row, overlapping in checked if not overlapping or not kept_labels.issuperset(label_names(row))]
    return remaining, len(examples) - len(remaining)


def _words(row: Example) -> list[str]:
    """Return the lower-case words of a row's only text; none if it has a second text or choices."""
    return [] if row.pair is not None or row.choices else text_key(row.text).split()


def _runs(words: Sequence[str]) -> list[str]:
    """Return all runs of four consecutive words; none of a shorter text."""
    return [_join(words[i : i + _LEAST_WORDS]) for i in range(len(words) - _LEAST_WORDS + 1)]


def _join(words: Sequence[str]) -> str:
    """Return words as one text with a blank at each end, so that only whole words are found in it."""
    return f" {' '.join(words)} "
