"""What a row's label cell says, for each kind of label."""

from __future__ import annotations

import math
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from pocketbert.core.disk.files import is_unicode
from pocketbert.core.errors import shown
from pocketbert.core.tasks import LabelKind

# --- numerals ---
# Labels that are numbers, and names that look alike: one reading of both for every kind of file.


_NUMERAL = re.compile(r"\s*[+-]?\d+(\.\d+)?\s*", re.ASCII)
_MOST_DIGITS = 40
_EXACT = 1 << 53
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters without a shape that Unicode does not count among the blanks or the control characters."""
_UNSEEN = ("Cc", "Cf", "Cs", "Zs", "Zl", "Zp")


def number_of(label: object) -> int | float | None:
    """The number that a label is: 2 for 2, 2.0, "2" and "2.0"; None for a name.

    True and false are names, and so is a text with more than 40 digits.
    """
    if isinstance(label, str):
        if len(label) > _MOST_DIGITS or not _NUMERAL.fullmatch(label):
            return None
        label = float(label) if "." in label else int(label)
    if isinstance(label, bool) or not isinstance(label, int | float):
        return None
    return int(label) if isinstance(label, float) and label.is_integer() and abs(label) < _EXACT else label


def is_visible(text: str) -> bool:
    """Whether a text has a character that is not a blank, a control character or of no width."""
    return any(unicodedata.category(c) not in _UNSEEN and not _INVISIBLE.match(c) for c in text)


def without_invisible(name: str) -> str:
    """A name without surrounding blanks and without characters that cannot be seen, in Unicode's composed form."""
    seen = "".join(c for c in name if c.isspace() or is_visible(c))
    return unicodedata.normalize("NFC", " ".join(seen.split()))


def name_problems(names: Sequence[str]) -> list[str]:
    """What makes a list of label names unusable: a name twice, an empty one, two that look the same or are one number.

    Returns:
        One sentence each, at most ten.
    """
    problems: list[str] = []
    first: dict[object, str] = {}
    for name in names:
        if not is_visible(name):
            problems.append(f"the label {shown(name)} is empty")
            continue
        number = number_of(name)
        key: object = without_invisible(name) if number is None else number
        if key not in first:
            first[key] = name
        elif first[key] == name:
            problems.append(f"the label {shown(name)} occurs twice")
        else:
            other = first[key]
            how = "differ only in what cannot be seen" if number is None else "are the same number"
            problems.append(f"the labels {shown(other)} and {shown(name)} {how}")
    return problems[:10]


# --- spans ---
# Named pieces of a text: how tags spell them, and how they are scored.


OUTSIDE = "O"
_BEGIN, _INSIDE = ("B-", "S-"), ("I-", "E-")


@dataclass(frozen=True, order=True, slots=True)
class Span:
    """A piece of a text.

    Attributes:
        start: Its first character, in code points.
        end: The character behind its last.
        label: What it is.
    """

    start: int
    end: int
    label: str


def tags_of(labels: Sequence[str]) -> tuple[str, ...]:
    """The IOB2 tags of some labels: ``O``, then ``B-`` and ``I-`` of each; tags are left as they are."""
    if OUTSIDE in labels or has_prefixes(labels):
        return tuple(labels)
    return (OUTSIDE, *(f"{prefix}-{name}" for name in labels for prefix in "BI"))


def begins(tag: str) -> bool:
    """Tell whether a span starts at a word with this tag, whatever tag comes before it."""
    return tag.startswith(_BEGIN)


def has_prefixes(tags: Iterable[str]) -> bool:
    """Tell whether a set of tags marks where spans begin; in a set without, as parts of speech are, each word is a span."""
    return any(tag.startswith((*_BEGIN, *_INSIDE)) for tag in tags)


def label_of(tag: str) -> str | None:
    """The label in a tag; None outside."""
    if tag == OUTSIDE:
        return None
    return tag[2:] if tag.startswith((*_BEGIN, *_INSIDE)) else tag


def spans_of(tags: Sequence[str], places: Sequence[tuple[int, int]], single: bool = False) -> list[Span]:
    """Spans that a row of tags spells, as IOB2 is read strictly (seqeval ``mode="strict"``).

    A span is a ``B-`` (or ``S-``) and the ``I-`` (``E-``) of the same label behind it; an ``I-`` without a beginning is
    nothing. Tags without a prefix mark runs of equal labels, or single words.

    Args:
        tags: N tags.
        places: First and behind-last character of each tagged word, N of them.
        single: Whether each word with a label is a span: the tags are of a set without prefixes (`has_prefixes`).
    """
    if single:
        words = zip(tags, places, strict=True)
        return [Span(start, end, tag) for tag, (start, end) in words if tag != OUTSIDE and start < end]
    out: list[Span] = []
    open_label: str | None = None
    for tag, (start, end) in zip(tags, places, strict=True):
        label, prefixed = label_of(tag), tag.startswith((*_BEGIN, *_INSIDE))
        if label is not None and label == open_label and not begins(tag):
            out[-1] = Span(out[-1].start, end, label)
            continue
        open_label = None
        if label is not None and (begins(tag) or not prefixed):
            out.append(Span(start, end, label))
            open_label = label
    return out


def split_into_words(spans: Iterable[Span], places: Sequence[tuple[int, int]], text: str) -> list[Span]:
    """Cut spans into one for each word, as a set of tags without prefixes spells them.

    Args:
        spans: Spans of the text, none inside another.
        places: First and behind-last character of each word, N of them; the text may go on in front of or behind them.
        text: The text: where it has no words, because it was cut, pieces between blanks are words.
    """
    ordered = sorted(spans)
    starts = [span.start for span in ordered]
    begin, end = min((a for a, _ in places), default=0), max((b for _, b in places), default=0)
    cut_off = (
        (span.start + found.start(), span.start + found.end())
        for span in ordered
        for found in re.finditer(r"\S+", text[span.start : span.end])
    )
    out = []
    for a, b in [*places, *((a, b) for a, b in cut_off if b <= begin or a >= end)]:
        i = bisect_right(starts, a) - 1
        if i >= 0 and a < ordered[i].end and a < b:
            out.append(Span(a, b, ordered[i].label))
    return sorted(out)


def tag_places(
    spans: Iterable[Span], places: Sequence[tuple[int, int]], tags: Sequence[str], unmarked: int
) -> list[int]:
    """Which tag each word of a text gets.

    Args:
        spans: Spans of the text, none inside another.
        places: First and behind-last character of each word, N of them.
        tags: Tags in order of their ids, with ``B-`` and ``I-`` or without.
        unmarked: What a word of no span gets where the tags have no ``O``, as those of parts of speech have none.

    Returns:
        Tag ids, N of them. A word belongs to the span that its first character lies in.
    """
    index = {tag: i for i, tag in enumerate(tags)}
    out = [index.get(OUTSIDE, unmarked)] * len(places)
    starts = [start for start, _ in places]
    ordered = all(one <= other for one, other in pairwise(starts))
    for span in spans:
        first = True
        # words follow each other, so those of a span are found without looking at all
        near = range(bisect_left(starts, span.start), bisect_left(starts, span.end)) if ordered else range(len(places))
        for i in near:
            start, end = places[i]
            if span.start <= start < span.end and end > start:
                prefixed = f"{'B' if first else 'I'}-{span.label}"
                out[i] = index[prefixed if prefixed in index else span.label]
                first = False
    return out


@dataclass(frozen=True)
class SpanCounts:
    """Counts behind a span F1.

    Attributes:
        right: Spans found with both ends and label right.
        found: Spans answered.
        gold: Spans there are.
    """

    right: int
    found: int
    gold: int

    @property
    def f1(self) -> float:
        """Micro F1; 0 where nothing was found and nothing is there."""
        return 2 * self.right / (self.found + self.gold) if self.found + self.gold else 0.0

    @property
    def precision(self) -> float:
        """Share of the answered spans that are right."""
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """Share of the gold spans that were found."""
        return self.right / self.gold if self.gold else 0.0


def count_spans(gold: Sequence[Iterable[Span]], found: Sequence[Iterable[Span]]) -> SpanCounts:
    """Compare answers with gold, text by text: a span is right when both ends and the label are."""
    pairs = [(set(g), set(f)) for g, f in zip(gold, found, strict=True)]
    return SpanCounts(sum(len(g & f) for g, f in pairs), sum(len(f) for _, f in pairs), sum(len(g) for g, _ in pairs))


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
