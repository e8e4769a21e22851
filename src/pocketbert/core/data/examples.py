"""Text with labels, or without, into typed examples."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pocketbert.core.data.cells import GoldAnswer, Label, LabelError, Span, is_visible, joined, read_label
from pocketbert.core.data.files import read_rows
from pocketbert.core.data.source import DataSource
from pocketbert.core.data.tables import BadRows
from pocketbert.core.disk.files import is_unicode
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.inputs import Text, columns_of, with_columns
from pocketbert.core.tasks import LabelKind

_STARTS = "answer_start"
_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Example:
    """One row.

    Attributes:
        text: The text.
        pair: The second text, or None.
        label: What the task's `LabelKind` says; None where the source has no labels.
        row: Line (jsonl) or record number, from 1.
        columns: Other data columns that were asked for, as they are; None where none were.
    """

    text: str
    pair: str | None
    label: Label | None
    row: int
    columns: Mapping[str, Any] | None = field(default=None, hash=False)

    @property
    def input(self) -> Text:
        """What the tokenizer takes."""
        return with_columns(self.text if self.pair is None else (self.text, self.pair), self.columns)

    @property
    def digest(self) -> str:
        """Hash of the texts, case and surrounding blanks ignored; equal rows are duplicates."""
        joined = self.text.strip().lower() + "\x1f" + (self.pair or "").strip().lower()
        return hashlib.sha256(joined.encode(errors="replace")).hexdigest()


def unlabelled(text: Text, row: int = 1) -> Example:
    """An example without a label.

    Args:
        text: A text or a pair, with its columns where it has some.
        row: Its number, from 1.
    """
    first, second = (text, None) if isinstance(text, str) else text
    return Example(first, second, None, row, columns_of(text))


def read_examples(
    source: DataSource, labelled: bool = True, kind: LabelKind = LabelKind.NAME, columns: Sequence[str] = ()
) -> list[Example]:
    """Read one split.

    Args:
        source: Where from.
        labelled: Whether a missing label makes a row bad.
        kind: What the label column holds.
        columns: Further columns to read, where a row has them.

    Returns:
        The rows in file order.

    Raises:
        InputError: Listing the first 20 bad rows and their count, or what is wrong with the file.
    """
    bad = BadRows(source.title)
    wanted = labelled and kind not in (LabelKind.NONE, LabelKind.SCORE_OR_NONE)
    read = [c for c in (source.text, source.text_pair, source.label, _STARTS, *columns) if c is not None]
    out = []
    for number, row in read_rows(source, bad, read):
        example = _example(source, number, row, wanted, kind, bad)
        if example is not None:
            out.append(replace(example, columns={c: row.get(c) for c in columns}) if columns else example)
    problems = bad.close()
    if not problems and not out:
        problems = [Problem(source.title, "no rows.")]
    if problems:
        raise InputError(problems)
    return out


def _example(
    source: DataSource, number: int, row: dict[str, Any], labelled: bool, kind: LabelKind, bad: BadRows
) -> Example | None:
    wanted = [
        source.text,
        *([source.text_pair] if source.text_pair else []),
        *([source.label] if labelled else []),
    ]
    missing = [c for c in wanted if row.get(c) is None]
    if missing:
        bad.missing(number, missing[0], row)
        return None
    text, pair = row[source.text], row[source.text_pair] if source.text_pair else None
    cell, words = row.get(source.label) if kind is not LabelKind.NONE else None, None
    if kind is LabelKind.SPANS:
        text, words = _words(text, cell)
    for column, value in ((source.text, text), (source.text_pair, pair)):
        if value is not None and not isinstance(value, str):
            bad.add(number, f"column '{column}' holds {type(value).__name__}, not text.")
            return None
        if value is not None and not is_unicode(value):
            bad.add(number, f"column '{column}' is not Unicode text: it holds half of a surrogate pair.")
            return None
    if not is_visible(text):
        why = "holds no character that can be seen" if text.strip() else "is empty"
        bad.add(number, f"column '{source.text}' {why}.")
        return None
    try:
        label = read_label(kind, cell, text, words, pair, row.get(_STARTS))
    except LabelError as error:
        bad.add(number, f"column '{source.label}': {error}" if labelled else str(error))
        return None
    return Example(text, pair, label, number)


def _words(text: Any, cell: Any) -> tuple[Any, list[tuple[int, int]] | None]:
    """A list of words as one text; of a text whose blanks make as many words as there are tags, those words."""
    if isinstance(text, list | tuple) and all(isinstance(w, str) and w.strip() for w in text):
        return joined(list(text))
    if not isinstance(text, str):
        return text, None
    words = [m.span() for m in _WORD.finditer(text)]
    tags = cell.split() if isinstance(cell, str) else cell
    return text, words if isinstance(tags, list | tuple) and len(tags) == len(words) else None


# --- split ---
# Rows held out of training by the hash of their text: the same rows whatever the file's order.


_HASHES = 1 << 256


def hold_out(examples: Sequence[Example], rows: int) -> tuple[list[Example], list[Example]]:
    """Split off the `rows` examples whose hashes come first; equal texts always go together.

    Args:
        examples: All rows.
        rows: How many rows to hold out; never more than half of all rows are.

    Returns:
        The rows to keep, and the held-out rows, each in file order.
    """
    half = len(examples) // 2
    if min(rows, half) <= 0:
        return list(examples), []
    digests = [e.digest for e in examples]
    order = sorted(digests)
    limit = order[min(rows, half) - 1]
    # equal texts stay together; where the last of them are too many, none of them goes
    whole = bisect_right(order, limit) <= half
    keep: list[Example] = []
    held: list[Example] = []
    for example, digest in zip(examples, digests, strict=True):
        (held if digest < limit or (whole and digest == limit) else keep).append(example)
    return keep, held


def hold_out_share(
    examples: Sequence[Example], fraction: float, purpose: str = ""
) -> tuple[list[Example], list[Example]]:
    """Split off a share of the rows by the hash of their text.

    Equal texts go together, and further rows in the file move no row from one part to the other. Rows with a label that
    would be missing among the rows to keep are kept.

    Args:
        examples: All rows.
        fraction: Probability of each text to be held out.
        purpose: Makes the division independent of other ones: rows that were split off by their hash before would all
            be in one part.

    Returns:
        The rows to keep, and the held-out rows, each in file order.
    """
    limit = f"{int(fraction * _HASHES):064x}"
    rows = [(example, example.digest) for example in examples]
    chosen = {digest for _, digest in rows if _hashed(digest, purpose) < limit}
    known = {name for example, digest in rows if digest not in chosen for name in _label_names(example)}
    chosen -= {digest for example, digest in rows if not known.issuperset(_label_names(example))}
    return [e for e, digest in rows if digest not in chosen], [e for e, digest in rows if digest in chosen]


def _hashed(digest: str, purpose: str) -> str:
    return hashlib.sha256(f"{purpose} {digest}".encode()).hexdigest() if purpose else digest


def _label_names(example: Example) -> list[object]:
    """What a row is labelled with, as far as these are names: scores and answers to questions are not."""
    label = example.label
    if isinstance(label, tuple):
        return [v.label if isinstance(v, Span) else v for v in label if not isinstance(v, GoldAnswer)]
    return [] if label is None or isinstance(label, float) else [label]


def without(examples: Sequence[Example], others: Sequence[Example]) -> tuple[list[Example], int]:
    """Drop the rows whose text also occurs in `others`.

    Returns:
        What is left, and how many rows were dropped.
    """
    seen = {e.digest for e in others}
    left = [e for e in examples if e.digest not in seen]
    return left, len(examples) - len(left)
