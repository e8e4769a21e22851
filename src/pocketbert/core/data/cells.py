"""What a row's label cell says, for each kind of label."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from pocketbert.core.data.numerals import is_visible, number_of
from pocketbert.core.data.spans import OUTSIDE, Span, label_of, spans_of
from pocketbert.core.disk.encoding import is_unicode
from pocketbert.core.errors import shown
from pocketbert.core.tasks import LabelKind


@dataclass(frozen=True, order=True, slots=True)
class GoldAnswer:
    """One right answer to a question.

    Attributes:
        start: Its first character in the context, in code points.
        text: The answer.
    """

    start: int
    text: str


_LARGEST = 10**40
_MOST_ANSWERS = 1000
Label = int | float | str | tuple[int | float | str, ...] | tuple[Span, ...] | tuple[GoldAnswer, ...]


class LabelError(ValueError):
    """A cell that is no label of its kind; the message is for people."""


def joined(words: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Join words with blanks into one text, and return the position of each."""
    places, at = [], 0
    for word in words:
        places.append((at, at + len(word)))
        at += len(word) + 1
    return " ".join(words), places


def read_label(
    kind: LabelKind, cell: Any, text: str, words: Sequence[tuple[int, int]] | None, pair: str | None, starts: Any
) -> Label | None:
    """A label out of a cell.

    Args:
        kind: What the task wants.
        cell: The cell; None where the row has none.
        text: The row's text.
        words: Where its words stand, if it came as words.
        pair: Its second text.
        starts: Places of the answers, where they stand in a column of their own.

    Returns:
        The label, or None where there is none.

    Raises:
        LabelError: Saying what is wrong.
    """
    if cell is None:
        return None
    if kind is LabelKind.NAME:
        return _name(cell)
    if kind is LabelKind.NAMES:
        return _names(cell)
    if kind in (LabelKind.SCORE, LabelKind.SCORE_OR_NONE):
        return _score(cell)
    if kind is LabelKind.SPANS:
        return _spans(cell, text, words)
    if kind is LabelKind.ANSWERS:
        return _answers(cell, pair or "", starts)
    return None


def _name(cell: Any) -> int | float | str:
    """A name or a number, the same for every kind of file: true is the name "true", and "2" and 2.0 are the number 2."""
    if isinstance(cell, bool):
        return str(cell).lower()
    if not isinstance(cell, int | float | str):
        raise LabelError(f"label is {type(cell).__name__}, not a number or a name.")
    if isinstance(cell, str) and not (is_unicode(cell) and is_visible(cell)):
        raise LabelError("the label is empty." if is_unicode(cell) else f"label {shown(cell)} is not Unicode text.")
    number = number_of(cell)
    if number is None:
        return str(cell)
    if not math.isfinite(number) or abs(number) >= _LARGEST:
        raise LabelError(f"label {shown(cell)} is not a number that a label can be.")
    return number


def _names(cell: Any) -> tuple[int | float | str, ...]:
    if isinstance(cell, str):  # csv and tsv have no lists
        cell = [part.strip() for part in cell.split(";") if part.strip()]
    if not isinstance(cell, list | tuple) or not all(
        isinstance(number_of(v), int) or isinstance(v, bool | str) for v in cell
    ):
        raise LabelError(f"labels are {_kind(cell)}, not a list of names or numbers (in csv: separated by ';').")
    return tuple(_name(v) for v in cell)


def _score(cell: Any) -> float:
    try:
        value = float(cell) if not isinstance(cell, bool | list | dict) else math.nan
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise LabelError(f"score {shown(cell)} is not a finite number.")
    return value


def _spans(cell: Any, text: str, words: Sequence[tuple[int, int]] | None) -> tuple[Span, ...]:
    if isinstance(cell, list | tuple) and not cell and words is None:  # a running text that has none
        return ()
    if isinstance(cell, str):
        cell = cell.split()
    if not isinstance(cell, list | tuple):
        raise LabelError(f"tags are {_kind(cell)}, not a list.")
    if cell and all(isinstance(v, dict) for v in cell):
        found = sorted(_span(v, text) for v in cell)
        for one, other in pairwise(found):
            if other.start < one.end:  # a word has one tag: the second would silently overwrite the first
                raise LabelError(f"spans overlap: {asdict(one)} and {asdict(other)}.")
        return tuple(found)
    if not all(isinstance(v, str) for v in cell):
        raise LabelError(
            "tags are neither names nor {start, end, label}; numbers need names: save the data set with them."
        )
    if words is None:
        raise LabelError("tags need a text that is a list of words; a running text needs {start, end, label}.")
    if len(cell) != len(words):
        raise LabelError(
            f"the numbers of tags ({len(cell)}) and of words ({len(words)}) differ; give one tag per word."
        )
    return tuple(spans_of([*cell], words))


def _span(entry: dict[str, Any], text: str) -> Span:
    start, end, label = entry.get("start"), entry.get("end"), entry.get("label")
    good = type(start) is int and type(end) is int and isinstance(label, str) and bool(label)
    if not good or not 0 <= start < end <= len(text):  # type: ignore[operator]
        raise LabelError(
            f"span {shown(entry)} is not {{start, end, label}} within the {len(text)} characters of the text."
        )
    if str(label) == OUTSIDE or label_of(str(label)) != label:
        raise LabelError(f"label {shown(label)} reads like a tag (O, B-, I-, S-, E-): rename it.")
    return Span(int(start), int(end), str(label))  # type: ignore[arg-type]


def _answers(cell: Any, context: str, starts: Any) -> tuple[GoldAnswer, ...]:
    if isinstance(cell, dict):  # SQuAD as the Hub has it
        cell, starts = cell.get("text"), cell.get("answer_start")
    if isinstance(cell, str):
        starts = starts if isinstance(starts, list | tuple) else [None if starts == "" else starts]
        cell, starts = ([cell], starts) if cell else ([], None)
    if not isinstance(cell, list | tuple):
        raise LabelError(f"answers are {_kind(cell)}, not a list of texts or {{text, answer_start}}.")
    if starts is None:
        starts = [None] * len(cell)
    if not isinstance(starts, list | tuple) or len(starts) != len(cell):
        given = len(starts) if isinstance(starts, list | tuple) else 1
        raise LabelError(f"{given} places for {len(cell)} answers.")
    if len(cell) > _MOST_ANSWERS:  # each is looked for in the whole context
        raise LabelError(f"{len(cell):,} answers; allowed: at most {_MOST_ANSWERS:,}.")
    return tuple(dict.fromkeys(_answer(a, s, context) for a, s in zip(cell, starts, strict=True)))


def _answer(answer: Any, start: Any, context: str) -> GoldAnswer:
    if isinstance(answer, dict):
        answer, start = answer.get("text"), answer.get("start", answer.get("answer_start"))
    if not isinstance(answer, str) or not answer:
        raise LabelError(f"answer {shown(answer)} is not text.")
    if start is None:
        start = context.find(answer)
        if start < 0:
            raise LabelError(f"answer {answer[:40]!r} is not in the context.")
    elif isinstance(start, str) and start.isdecimal():  # csv and tsv write numbers as text
        start = int(start)
    if type(start) is not int or start < 0 or context[start : start + len(answer)] != answer:
        raise LabelError(f"answer {answer[:40]!r} is not in the context at character {start}.")
    return GoldAnswer(start, answer)


def _kind(cell: Any) -> str:
    return f"{type(cell).__name__} {str(cell)[:40]!r}"
