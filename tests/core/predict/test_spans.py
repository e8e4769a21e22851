"""Spans and tags: how one becomes the other, held against seqeval."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbert.core.predict.spans import (
    Span,
    assign_tags,
    count_spans,
    have_iob_prefixes,
    iob2_tags,
    label_of_tag,
    spans_from_tags,
    split_spans_by_word,
)

UNMARKED = -100
TAGS = ("O", "B-per", "I-per", "B-loc", "I-loc")
ROWS = st.lists(st.sampled_from(TAGS), max_size=12)


def places(count: int) -> list[tuple[int, int]]:
    """Words of three letters, a blank between two."""
    return [(4 * i, 4 * i + 3) for i in range(count)]


def read(*tags: str) -> list[tuple[int, int, str]]:
    """Spans by the numbers of their first and last word."""
    found = spans_from_tags(tags, places(len(tags)))
    assert all(s.start % 4 == 0 and s.end % 4 == 3 for s in found)
    return [(s.start // 4, s.end // 4, s.label) for s in found]


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        (("S-per", "B-loc", "E-loc", "O"), [(0, 0, "per"), (1, 2, "loc")]),
        (("per", "per", "loc", "O", "per"), [(0, 1, "per"), (2, 2, "loc"), (4, 4, "per")]),
    ],
)
def test_other_prefixes_and_none_are_read(tags: tuple[str, ...], spans: list[tuple[int, int, str]]) -> None:
    assert read(*tags) == spans


@settings(max_examples=25)
@given(st.lists(st.tuples(ROWS, st.randoms(use_true_random=False)), min_size=1, max_size=6))
def test_tags_are_read_and_scored_as_seqeval_does(rows: list[tuple[list[str], Any]]) -> None:
    metrics, scheme = pytest.importorskip("seqeval.metrics.v1"), pytest.importorskip("seqeval.scheme")
    gold = [tags for tags, _ in rows]
    found = [[r.choice((t, r.choice(TAGS))) for t in tags] for tags, r in rows]
    for tags in gold:
        entities = scheme.Entities([tags], scheme.IOB2).entities[0]
        assert read(*tags) == [(e.start, e.end - 1, e.tag) for e in entities]
    counts = count_spans(*([spans_from_tags(t, places(len(t))) for t in side] for side in (gold, found)))
    theirs = metrics.precision_recall_fscore_support(
        gold, found, average="micro", mode="strict", scheme=scheme.IOB2, zero_division=0
    )
    assert (counts.precision, counts.recall, counts.f1) == pytest.approx(theirs[:3])


@st.composite
def aligned(draw: st.DrawFn) -> tuple[int, list[Span]]:
    """So many words, and spans of whole words in order."""
    words = draw(st.integers(0, 15))
    edges = sorted(draw(st.sets(st.integers(0, words), max_size=8)))
    spans = []
    for start, end in pairwise(edges):
        label = draw(st.sampled_from(("per", "loc", None)))
        if label is not None:
            spans.append(Span(4 * start, 4 * end - 1, label))
    return words, spans


@settings(max_examples=50)
@given(aligned())
def test_spans_of_whole_words_come_back(case: tuple[int, list[Span]]) -> None:
    words, spans = case
    ids = assign_tags(spans, places(words), TAGS, UNMARKED)
    assert spans_from_tags([TAGS[i] for i in ids], places(words)) == spans


@pytest.mark.parametrize(
    ("tags", "words"),
    [((), []), (("O", "O"), []), (("NOUN", "NOUN", "O", "NOUN"), [0, 1, 3]), (("NOUN", "VERB"), [0, 1])],
)
def test_in_a_set_without_prefixes_each_word_is_a_span(tags: tuple[str, ...], words: list[int]) -> None:
    where = places(len(tags))
    spans = spans_from_tags(tags, where, single=True)
    assert spans == [Span(*where[i], tags[i]) for i in words]
    assert split_spans_by_word(spans_from_tags(tags, where), where, "abc " * len(tags)) == spans


def test_one_prefix_makes_a_set_with_prefixes() -> None:
    assert not any(have_iob_prefixes(tags.split()) for tags in ("NOUN VERB", "O per", "O BUY I B E"))
    assert all(have_iob_prefixes(tags.split()) for tags in ("O per I-loc", "S-per", "E-per O"))


WORDS = "one two three four"
"""Words at 0-3, 4-7, 8-13 and 14-18."""


@pytest.mark.parametrize(
    ("spans", "words", "cut"),
    [
        ([], [(0, 3), (4, 7)], []),
        ([(0, 7)], [(0, 3), (4, 7), (8, 13), (14, 18)], [(0, 3), (4, 7)]),
        # a word of the data that the tokenizer splits, and one that begins in front of the span
        ([(4, 7)], [(0, 3), (4, 5), (5, 7), (8, 13)], [(4, 5), (5, 7)]),
        ([(9, 18)], [(0, 3), (4, 7), (8, 13), (14, 18)], [(14, 18)]),
        # the text was cut at its end, at its beginning, and as a whole
        ([(0, 18)], [(0, 3), (4, 7)], [(0, 3), (4, 7), (8, 13), (14, 18)]),
        ([(0, 18)], [(8, 13), (14, 18)], [(0, 3), (4, 7), (8, 13), (14, 18)]),
        ([(4, 13)], [], [(4, 7), (8, 13)]),
        ([(4, 7)], [(4, 4), (4, 7)], [(4, 7)]),
    ],
)
def test_spans_are_cut_at_words(
    spans: list[tuple[int, int]], words: list[tuple[int, int]], cut: list[tuple[int, int]]
) -> None:
    found = split_spans_by_word([Span(a, b, "x") for a, b in spans], words, WORDS)
    assert found == [Span(a, b, "x") for a, b in cut]


def test_a_word_belongs_to_the_span_its_first_character_lies_in() -> None:
    spans = [Span(1, 6, "per"), Span(8, 9, "loc")]  # half of word 0, most of word 1, the beginning of word 2
    assert assign_tags(spans, places(4), TAGS, UNMARKED) == [0, 1, 3, 0]
    assert assign_tags([Span(0, 3, "per")], [(0, 0), (0, 3)], TAGS, UNMARKED) == [0, 1], "no empty word is tagged"
    assert assign_tags([Span(4, 7, "VERB")], places(3), ("NOUN", "VERB"), UNMARKED) == [UNMARKED, 1, UNMARKED]


def test_labels_become_tags_and_tags_stay() -> None:
    for labels, tags in (
        ("per loc", "O B-per I-per B-loc I-loc"),
        ("O per", "O per"),
        ("B-per I-per O", "B-per I-per O"),
    ):
        assert iob2_tags(labels.split()) == tuple(tags.split())
    assert [label_of_tag(tag) for tag in ("O", "per", "B-per", "I-loc")] == [None, "per", "per", "loc"]


def test_both_ends_the_label_and_the_text_must_be_right() -> None:
    gold = [[Span(0, 3, "per"), Span(4, 7, "loc")], [Span(0, 3, "per")]]
    found = [[Span(0, 3, "per"), Span(4, 8, "loc"), Span(4, 7, "per")], [Span(4, 7, "loc")]]
    counts = count_spans(gold, found)
    assert (counts.right, counts.found, counts.gold) == (1, 4, 3)
    with pytest.raises(ValueError, match="zip"):
        count_spans(gold, found[:1])
