"""Labelled examples: the rows of a data source, checked and typed, and their division into training and held-out rows.

- `Example` is one row: a text or a pair with its label.
- `read_examples` reads all rows of a source and lists what is wrong with them; each `LabelKind` has its own reader of
  cells.
- `hold_out`, `hold_out_share` and `drop_duplicates_of` divide rows by the hash of their text, so that the file's order does not
  matter.
"""

from __future__ import annotations

import hashlib
import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from pocketbert.core.data.cells import OUTSIDE, Span, is_visible, label_of_tag, number_of, spans_from_tags
from pocketbert.core.data.files import read_rows
from pocketbert.core.data.source import DataSource
from pocketbert.core.data.tables import BadRows
from pocketbert.core.disk.files import is_unicode
from pocketbert.core.errors import InputError, Problem, shorten_repr
from pocketbert.core.predict.inputs import Text, columns_of, with_columns
from pocketbert.core.tasks import LabelKind


@dataclass(frozen=True, order=True, slots=True)
class GoldAnswer:
    """One correct answer to a question, with its position in the context.

    Attributes:
        start: Its first character in the context, in code points.
        text: The answer.
    """

    start: int
    text: str


Label = int | float | str | tuple[int | float | str, ...] | tuple[Span, ...] | tuple[GoldAnswer, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """One row of a data file or data set: text, second text and label.

    Attributes:
        text: The text.
        pair: The second text, or None.
        label: The label, of the type that belongs to the task's `LabelKind`; None if the row has none.
        row: Line (jsonl) or record number, from 1.
        columns: Values of further data columns that the caller asked for; None if it asked for none.
    """

    text: str
    pair: str | None
    label: Label | None
    row: int
    columns: Mapping[str, Any] | None = field(default=None, hash=False)

    @property
    def input(self) -> Text:
        """The text or pair, with its data columns attached, as the tokenizer takes it."""
        return with_columns(self.text if self.pair is None else (self.text, self.pair), self.columns)

    @property
    def digest(self) -> str:
        """Hash of the lower-cased texts without surrounding blanks; rows with equal hashes count as duplicates."""
        joined = self.text.strip().lower() + "\x1f" + (self.pair or "").strip().lower()
        return hashlib.sha256(joined.encode(errors="replace")).hexdigest()


def unlabelled_example(text: Text, row: int = 1) -> Example:
    """Build an `Example` without a label from a text or pair.

    Args:
        text: A text or a pair, with its columns if it has some.
        row: Its number, from 1.
    """
    first, second = (text, None) if isinstance(text, str) else text
    return Example(first, second, None, row, columns_of(text))


# --- reading ---

_ANSWER_STARTS = "answer_start"
_WORD = re.compile(r"\S+")


def read_examples(
    source: DataSource, labelled: bool = True, kind: LabelKind = LabelKind.NAME, columns: Sequence[str] = ()
) -> list[Example]:
    """Read all rows of a file or data set as examples.

    Args:
        source: File or data set, with its columns.
        labelled: Whether a missing label makes a row bad.
        kind: Kind of label in the label column (names, scores, spans ...).
        columns: Further columns to read, if a row has them.

    Returns:
        The rows in file order.

    Raises:
        InputError: Listing the first 20 bad rows and their count, or what is wrong with the file.
    """
    bad = BadRows(source.title)
    needs_label = labelled and kind not in (LabelKind.NONE, LabelKind.SCORE_OR_NONE)
    read = [c for c in (source.text, source.text_pair, source.label, _ANSWER_STARTS, *columns) if c is not None]
    examples = []
    for number, row in read_rows(source, bad, read):
        example = _to_example(source, number, row, needs_label, kind, bad)
        if example is not None:
            examples.append(replace(example, columns={c: row.get(c) for c in columns}) if columns else example)
    problems = bad.close()
    if not problems and not examples:
        problems = [Problem(source.title, "no rows.")]
    if problems:
        raise InputError(problems)
    return examples


def _to_example(
    source: DataSource, number: int, row: dict[str, Any], needs_label: bool, kind: LabelKind, bad: BadRows
) -> Example | None:
    """Convert a row to an example; if a column is missing or invalid, record that in `bad` and return None."""
    columns = (source.text, source.text_pair or None, source.label if needs_label else None)
    missing = [c for c in columns if c is not None and row.get(c) is None]
    if missing:
        bad.missing(number, missing[0], row)
        return None
    text, pair = row[source.text], row[source.text_pair] if source.text_pair else None
    cell, words = row.get(source.label) if kind is not LabelKind.NONE else None, None
    if kind is LabelKind.SPANS:
        text, words = _find_words(text, cell)
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
        label = _read_label(kind, cell, text, words, pair, row.get(_ANSWER_STARTS))
    except _LabelError as error:
        bad.add(number, f"column '{source.label}': {error}" if needs_label else str(error))
        return None
    return Example(text, pair, label, number)


def _find_words(text: Any, tags: Any) -> tuple[Any, list[tuple[int, int]] | None]:
    """Return a tagged row's text and the (start, end) of its words; None instead of positions that are unknown.

    A list of words is joined with blanks. Pieces of a running text between blanks are words if they are as many as the
    tags.
    """
    if isinstance(text, list | tuple) and all(isinstance(word, str) and word.strip() for word in text):
        places, start = [], 0
        for word in text:
            places.append((start, start + len(word)))
            start += len(word) + 1
        return " ".join(text), places
    if not isinstance(text, str):
        return text, None
    places = [match.span() for match in _WORD.finditer(text)]
    tags = tags.split() if isinstance(tags, str) else tags
    return text, places if isinstance(tags, list | tuple) and len(tags) == len(places) else None


# --- label cells ---

_LARGEST = 10**40
_MOST_ANSWERS = 1000


class _LabelError(ValueError):
    """Raised for a cell that is not a label of the needed kind; the message is for users."""


def _read_label(
    kind: LabelKind, cell: Any, text: str, words: Sequence[tuple[int, int]] | None, pair: str | None, starts: Any
) -> Label | None:
    """Convert a cell of the label column to a label of the needed kind.

    Args:
        kind: Kind of label that the task needs.
        cell: The cell; None if the row has none.
        text: The row's text.
        words: Positions of the text's words, if they are known.
        pair: The row's second text.
        starts: Positions of the answers, if they are in a column of their own.

    Raises:
        _LabelError: If the cell holds something else.
    """
    if cell is None:
        return None
    match kind:
        case LabelKind.NAME:
            return _read_name(cell)
        case LabelKind.NAMES:
            return _read_names(cell)
        case LabelKind.SCORE | LabelKind.SCORE_OR_NONE:
            return _read_score(cell)
        case LabelKind.SPANS:
            return _read_spans(cell, text, words)
        case LabelKind.ANSWERS:
            return _read_answers(cell, pair or "", starts)
    return None


def _read_name(cell: Any) -> int | float | str:
    """Read a cell as a name or number: true becomes the name "true", "2" and 2.0 the number 2, in all file formats."""
    if isinstance(cell, bool):
        return str(cell).lower()
    if not isinstance(cell, int | float | str):
        raise _LabelError(f"label is {type(cell).__name__}, not a number or a name.")
    if isinstance(cell, str) and not (is_unicode(cell) and is_visible(cell)):
        raise _LabelError(
            "the label is empty." if is_unicode(cell) else f"label {shorten_repr(cell)} is not Unicode text."
        )
    number = number_of(cell)
    if number is None:
        return str(cell)
    if not math.isfinite(number) or abs(number) >= _LARGEST:
        raise _LabelError(f"label {shorten_repr(cell)} is not a number that a label can be.")
    return number


def _read_names(cell: Any) -> tuple[int | float | str, ...]:
    """Read a cell as a list of names or numbers; in CSV and TSV files they are separated by semicolons."""
    if isinstance(cell, str):
        cell = [part.strip() for part in cell.split(";") if part.strip()]
    if not isinstance(cell, list | tuple) or not all(
        isinstance(number_of(v), int) or isinstance(v, bool | str) for v in cell
    ):
        raise _LabelError(f"labels are {_describe(cell)}, not a list of names or numbers (in csv: separated by ';').")
    return tuple(_read_name(v) for v in cell)


def _read_score(cell: Any) -> float:
    """Read a cell as a finite number."""
    try:
        value = float(cell) if not isinstance(cell, bool | list | dict) else math.nan
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise _LabelError(f"score {shorten_repr(cell)} is not a finite number.")
    return value


def _read_spans(cell: Any, text: str, words: Sequence[tuple[int, int]] | None) -> tuple[Span, ...]:
    """Read a cell as labelled spans, given as objects {start, end, label} or as one tag for each word."""
    if isinstance(cell, list | tuple) and not cell and words is None:  # a running text without spans
        return ()
    if isinstance(cell, str):
        cell = cell.split()
    if not isinstance(cell, list | tuple):
        raise _LabelError(f"tags are {_describe(cell)}, not a list.")
    if cell and all(isinstance(v, dict) for v in cell):
        spans = sorted(_read_span(v, text) for v in cell)
        for one, other in pairwise(spans):
            if other.start < one.end:  # a word has one tag: the second would silently overwrite the first
                raise _LabelError(f"spans overlap: {asdict(one)} and {asdict(other)}.")
        return tuple(spans)
    if not all(isinstance(v, str) for v in cell):
        raise _LabelError(
            "tags are neither names nor {start, end, label}; numbers need names: save the data set with them."
        )
    if words is None:
        raise _LabelError("tags need a text that is a list of words; a running text needs {start, end, label}.")
    if len(cell) != len(words):
        raise _LabelError(
            f"the numbers of tags ({len(cell)}) and of words ({len(words)}) differ; give one tag per word."
        )
    return tuple(spans_from_tags([*cell], words))


def _read_span(entry: dict[str, Any], text: str) -> Span:
    """Read one span, an object {start, end, label} within the text."""
    start, end, label = entry.get("start"), entry.get("end"), entry.get("label")
    is_typed = type(start) is int and type(end) is int and isinstance(label, str) and bool(label)
    if not is_typed or not 0 <= start < end <= len(text):  # type: ignore[operator]
        raise _LabelError(
            f"span {shorten_repr(entry)} is not {{start, end, label}} within the {len(text)} characters of the text."
        )
    if str(label) == OUTSIDE or label_of_tag(str(label)) != label:
        raise _LabelError(f"label {shorten_repr(label)} reads like a tag (O, B-, I-, S-, E-): rename it.")
    return Span(int(start), int(end), str(label))  # type: ignore[arg-type]


def _read_answers(cell: Any, context: str, starts: Any) -> tuple[GoldAnswer, ...]:
    """Read a cell as answers to a question: texts, objects {text, answer_start}, or SQuAD's object of two lists."""
    if isinstance(cell, dict):  # SQuAD as published on the Hub
        cell, starts = cell.get("text"), cell.get("answer_start")
    if isinstance(cell, str):
        starts = starts if isinstance(starts, list | tuple) else [None if starts == "" else starts]
        cell, starts = ([cell], starts) if cell else ([], None)
    if not isinstance(cell, list | tuple):
        raise _LabelError(f"answers are {_describe(cell)}, not a list of texts or {{text, answer_start}}.")
    if starts is None:
        starts = [None] * len(cell)
    if not isinstance(starts, list | tuple) or len(starts) != len(cell):
        count = len(starts) if isinstance(starts, list | tuple) else 1
        raise _LabelError(f"{count} places for {len(cell)} answers.")
    if len(cell) > _MOST_ANSWERS:  # each is looked for in the whole context
        raise _LabelError(f"{len(cell):,} answers; allowed: at most {_MOST_ANSWERS:,}.")
    return tuple(dict.fromkeys(_read_answer(a, s, context) for a, s in zip(cell, starts, strict=True)))


def _read_answer(answer: Any, start: Any, context: str) -> GoldAnswer:
    """Read one answer, and find it in the context unless its start is given."""
    if isinstance(answer, dict):
        answer, start = answer.get("text"), answer.get("start", answer.get("answer_start"))
    if not isinstance(answer, str) or not answer:
        raise _LabelError(f"answer {shorten_repr(answer)} is not text.")
    if start is None:
        start = context.find(answer)
        if start < 0:
            raise _LabelError(f"answer {answer[:40]!r} is not in the context.")
    elif isinstance(start, str) and start.isdecimal():  # csv and tsv write numbers as text
        start = int(start)
    if type(start) is not int or start < 0 or context[start : start + len(answer)] != answer:
        raise _LabelError(f"answer {answer[:40]!r} is not in the context at character {start}.")
    return GoldAnswer(start, answer)


def _describe(cell: Any) -> str:
    return f"{type(cell).__name__} {str(cell)[:40]!r}"


# --- held-out rows ---

_HASHES = 1 << 256


def hold_out(examples: Sequence[Example], rows: int) -> tuple[list[Example], list[Example]]:
    """Hold out the `rows` examples with the smallest text hashes; equal texts always go together.

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
    examples: Sequence[Example], fraction: float, purpose: str = ""
) -> tuple[list[Example], list[Example]]:
    """Hold out a share of the examples by the hash of their text.

    Equal texts go together, and further rows in the file move no row from one part to the other. Rows with a label that
    would be missing among the rows to keep are kept.

    Args:
        examples: All rows.
        fraction: Probability of each text to be held out.
        purpose: Makes the division independent of other ones. With the hash alone, rows that an earlier division split
            off would all be in one part.

    Returns:
        The rows to keep, and the held-out rows, each in file order.
    """
    limit = f"{int(fraction * _HASHES):064x}"
    rows = [(example, example.digest) for example in examples]
    held = {digest for _, digest in rows if _with_purpose(digest, purpose) < limit}
    kept_labels = {name for example, digest in rows if digest not in held for name in _label_names(example)}
    held -= {digest for example, digest in rows if not kept_labels.issuperset(_label_names(example))}
    return [e for e, digest in rows if digest not in held], [e for e, digest in rows if digest in held]


def _with_purpose(digest: str, purpose: str) -> str:
    return hashlib.sha256(f"{purpose} {digest}".encode()).hexdigest() if purpose else digest


def _label_names(example: Example) -> list[object]:
    """Return the label names of a row; empty for scores and for answers to questions."""
    label = example.label
    if isinstance(label, tuple):
        return [v.label if isinstance(v, Span) else v for v in label if not isinstance(v, GoldAnswer)]
    return [] if label is None or isinstance(label, float) else [label]


def drop_duplicates_of(examples: Sequence[Example], others: Sequence[Example]) -> tuple[list[Example], int]:
    """Drop the examples whose text also occurs in `others`, such as training rows that are in the evaluation set.

    Returns:
        The remaining rows, and how many rows were dropped.
    """
    other_digests = {e.digest for e in others}
    remaining = [e for e in examples if e.digest not in other_digests]
    return remaining, len(examples) - len(remaining)
