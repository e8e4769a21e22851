"""Named pieces of a text: how tags spell them, and how they are scored."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

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
