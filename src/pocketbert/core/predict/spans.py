"""Labelled pieces of texts and the tags of words that stand for them.

- `Span` is a labelled piece of a text. `iob2_tags` makes the IOB2 tags of a label set; `assign_tags` turns spans into
  tags for training and `spans_from_tags` turns tags back into spans.
- `count_spans` compares predicted spans with the right ones, for F1, precision and recall.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

OUTSIDE = "O"
_BEGIN, _INSIDE = ("B-", "S-"), ("I-", "E-")


@dataclass(frozen=True, order=True, slots=True)
class Span:
    """A labelled piece of a text.

    Attributes:
        start: Index of the first character, in code points.
        end: Index of the character after the last one.
        label: Label of the piece.
    """

    start: int
    end: int
    label: str


def iob2_tags(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the IOB2 tags of a label set: ``O``, and ``B-x`` and ``I-x`` for each label ``x``.

    A set that holds ``O`` or a name with such a prefix consists of tags already and is returned unchanged.
    """
    if OUTSIDE in labels or have_iob_prefixes(labels):
        return tuple(labels)
    return (OUTSIDE, *(f"{prefix}-{name}" for name in labels for prefix in "BI"))


def have_iob_prefixes(tags: Iterable[str]) -> bool:
    """Return whether any tag has a prefix such as ``B-`` that marks where spans begin.

    In a tag set without prefixes, such as parts of speech, each word is a span.
    """
    return any(tag.startswith((*_BEGIN, *_INSIDE)) for tag in tags)


_OTHER_PREFIXES = {"L": "E", "U": "S", "M": "I", "W": "S"}
"""The letters of BILOU and BMEWO for those of IOBES."""
_PREFIXED = re.compile(r"([BIESLUMW])[-_](.+)")


def normalize_tags(tags: Sequence[str]) -> list[str]:
    """Convert the tags of a text from IOB1, BILOU or BMEWO to IOBES, in which each span begins with ``B-`` or ``S-``.

    In IOB1, the scheme of CoNLL-2003, a span begins with ``I-`` unless a span of the same label ends right before it.
    Prefixes that end in ``_`` get a ``-``. The tags ``_``, ``-`` and the empty one become ``O``; other tags without a
    prefix, and tags of IOB2 and IOBES, are returned as they are.
    """
    normal: list[str] = []
    open_label: str | None = None
    for tag in tags:
        match = _PREFIXED.fullmatch(tag)
        if match is None:
            open_label = None
            normal.append(OUTSIDE if tag in ("_", "-", "") else tag)
            continue
        letter, label = _OTHER_PREFIXES.get(match[1], match[1]), match[2]
        if letter in "IE" and label != open_label:
            letter = "B" if letter == "I" else "S"
        open_label = label if letter in "BI" else None
        normal.append(f"{letter}-{label}")
    return normal


def label_of_tag(tag: str) -> str | None:
    """Return the label of a tag: ``PER`` for ``B-PER``, None for ``O``, and a tag without a prefix itself."""
    if tag == OUTSIDE:
        return None
    return tag[2:] if tag.startswith((*_BEGIN, *_INSIDE)) else tag


def spans_from_tags(tags: Sequence[str], places: Sequence[tuple[int, int]], single: bool = False) -> list[Span]:
    """Convert the tags of a text's words to labelled spans, reading IOB2 strictly (seqeval ``mode="strict"``).

    A span is a ``B-`` (or ``S-``) tag and the ``I-`` (or ``E-``) tags of the same label after it; an ``I-`` that no
    ``B-`` begins is ignored. Neighbouring words with the same tag without a prefix are one span; with `single`, each
    word is a span.

    Args:
        tags: N tags.
        places: The (start, end) characters of each tagged word in the text, N of them.
        single: Whether each word with a label is a span of its own, because the tag set has no prefixes
            (`have_iob_prefixes`).
    """
    if single:
        words = zip(tags, places, strict=True)
        return [Span(start, end, tag) for tag, (start, end) in words if tag != OUTSIDE and start < end]
    spans: list[Span] = []
    open_label: str | None = None
    for tag, (start, end) in zip(tags, places, strict=True):
        label, begins = label_of_tag(tag), tag.startswith(_BEGIN)
        if label is not None and label == open_label and not begins:
            spans[-1] = Span(spans[-1].start, end, label)
            continue
        open_label = None
        if label is not None and (begins or not tag.startswith(_INSIDE)):
            spans.append(Span(start, end, label))
            open_label = label
    return spans


def join_equal_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Join neighbouring spans of the same label into one; used for rows in which every word is a span."""
    groups = (list(group) for _, group in groupby(spans, key=lambda span: span.label))
    return tuple(Span(group[0].start, group[-1].end, group[0].label) for group in groups)


def split_spans_by_word(spans: Iterable[Span], places: Sequence[tuple[int, int]], text: str) -> list[Span]:
    """Split spans into one span for each word, as tag sets without prefixes such as ``B-`` need it.

    Args:
        spans: Spans of the text, none inside another.
        places: The (start, end) characters of each word in the text, N of them. The text may extend beyond them if its tokens
            were cut off; there, pieces between blanks count as words.
        text: The text.
    """
    ordered = sorted(spans)
    starts = [span.start for span in ordered]
    begin, end = min((a for a, _ in places), default=0), max((b for _, b in places), default=0)
    pieces = (
        (span.start + match.start(), span.start + match.end())
        for span in ordered
        for match in re.finditer(r"\S+", text[span.start : span.end])
    )
    words = [*places, *((a, b) for a, b in pieces if b <= begin or a >= end)]
    result = []
    for a, b in words:
        i = bisect_right(starts, a) - 1
        if i >= 0 and a < ordered[i].end and a < b:
            result.append(Span(a, b, ordered[i].label))
    return sorted(result)


def assign_tags(
    spans: Iterable[Span], places: Sequence[tuple[int, int]], tags: Sequence[str], unmarked: int
) -> list[int]:
    """Return the tag id of each word, from the span that contains the word's first character.

    Args:
        spans: Spans of the text, none inside another.
        places: The (start, end) characters of each word in the text, N of them.
        tags: Tags in order of their ids, with ``B-`` and ``I-`` or without.
        unmarked: Value for a word outside all spans, used if the tag set has no ``O``, as parts of speech have none.

    Returns:
        The tag id of each of the N words.
    """
    id_of = {tag: i for i, tag in enumerate(tags)}
    ids = [id_of.get(OUTSIDE, unmarked)] * len(places)
    starts = [start for start, _ in places]
    is_ordered = all(a <= b for a, b in pairwise(starts))
    for span in spans:
        first = True
        # the words of a span are found by bisection if the words are in order, which they are for most tokenizers
        near = (
            range(bisect_left(starts, span.start), bisect_left(starts, span.end)) if is_ordered else range(len(places))
        )
        for i in near:
            start, end = places[i]
            if span.start <= start < span.end and end > start:
                prefixed = f"{'B' if first else 'I'}-{span.label}"
                ids[i] = id_of[prefixed if prefixed in id_of else span.label]
                first = False
    return ids


@dataclass(frozen=True)
class _SpanCounts:
    """Counts of predicted and gold spans, for the F1 of spans.

    Attributes:
        right: Predicted spans whose ends and label are all right.
        found: Predicted spans.
        gold: Spans that should have been predicted.
    """

    right: int
    found: int
    gold: int

    @property
    def f1(self) -> float:
        """Micro F1; 0 if there are neither predicted nor gold spans."""
        return 2 * self.right / (self.found + self.gold) if self.found + self.gold else 0.0

    @property
    def precision(self) -> float:
        """Share of the predicted spans that are right; 0 if nothing was predicted."""
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """Share of the gold spans that were predicted; 0 if there are none."""
        return self.right / self.gold if self.gold else 0.0


def count_spans(gold: Sequence[Iterable[Span]], predicted: Sequence[Iterable[Span]]) -> _SpanCounts:
    """Count over all texts the predicted spans, the gold spans, and the predicted spans that are right.

    A span is right if both ends and the label are those of a gold span. Equal spans of one text count once.
    """
    pairs = [(set(g), set(p)) for g, p in zip(gold, predicted, strict=True)]
    return _SpanCounts(sum(len(g & p) for g, p in pairs), sum(len(p) for _, p in pairs), sum(len(g) for g, _ in pairs))
