"""Labelled text into typed examples."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from pocketbert.core.data_files import BadRows, read_rows
from pocketbert.core.data_source import DataSource
from pocketbert.core.errors import InputError, Problem, nearest
from pocketbert.core.tokenization import Text, is_unicode

Label = int | float | str


@dataclass(frozen=True)
class Example:
    """One labelled row.

    Attributes:
        text: The text.
        pair: The second text, or None.
        label: As the file has it; None where the source has no labels.
        row: Line (jsonl) or record number, from 1.
    """

    text: str
    pair: str | None
    label: Label | None
    row: int

    @property
    def input(self) -> Text:
        """What the tokenizer takes."""
        return self.text if self.pair is None else (self.text, self.pair)

    @property
    def digest(self) -> str:
        """Hash of the texts, case and surrounding blanks ignored; equal rows are duplicates."""
        joined = self.text.strip().lower() + "\x1f" + (self.pair or "").strip().lower()
        return hashlib.sha256(joined.encode(errors="replace")).hexdigest()


def read_examples(source: DataSource, labelled: bool = True) -> list[Example]:
    """Read one split.

    Args:
        source: Where from.
        labelled: Whether a missing label makes a row bad.

    Returns:
        The rows in file order.

    Raises:
        InputError: Listing the first 20 bad rows and their count, or what is wrong with the file.
    """
    bad = BadRows(source.title)
    out = []
    for number, row in read_rows(source, bad):
        example = _example(source, number, row, labelled, bad)
        if example is not None:
            out.append(example)
    problems = bad.close()
    if not problems and not out:
        problems = [Problem(source.title, "no rows.")]
    if problems:
        raise InputError(problems)
    return out


def _example(
    source: DataSource, number: int, row: dict[str, Any], labelled: bool, bad: BadRows
) -> Example | None:
    wanted = [
        source.text,
        *([source.text_pair] if source.text_pair else []),
        *([source.label] if labelled else []),
    ]
    missing = [c for c in wanted if row.get(c) is None]
    if missing:
        have = [str(k) for k in row]
        bad.add(
            number, f"no column '{missing[0]}'; {nearest(missing[0], have) if have else 'the row is empty'}."
        )
        return None
    text, pair = row[source.text], row[source.text_pair] if source.text_pair else None
    for column, value in ((source.text, text), (source.text_pair, pair)):
        if value is not None and not isinstance(value, str):
            bad.add(number, f"column '{column}' holds {type(value).__name__}, not text.")
            return None
        if value is not None and not is_unicode(value):
            bad.add(number, f"column '{column}' is not Unicode text: it holds half of a surrogate pair.")
            return None
    if not text.strip():
        bad.add(number, f"column '{source.text}' is empty.")
        return None
    label = row.get(source.label)
    if isinstance(label, bool):
        label = int(label)
    if label is not None and not isinstance(label, int | float | str):
        bad.add(number, f"label is {type(label).__name__}, not a number or a name.")
        return None
    if labelled and isinstance(label, str) and not label.strip():
        bad.add(number, f"column '{source.label}' is empty.")
        return None
    return Example(text, pair, label, number)
