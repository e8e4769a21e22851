from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbert.core.data.cells import Span
from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError
from pocketbert.core.heads import make_head
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.heads.token_classification import find_words
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import task_of

TASK = task_of("token-classification")
TAGS = ("O", "B-per", "I-per", "B-loc", "I-loc")
HEAD = make_head(TASK, Labels(TAGS))
TEXT = "Zoe met Bob, in New Yorkville."
"""zo ##e is no word of the vocabulary: names are spelt with several tokens."""
SPANS = (Span(0, 3, "per"), Span(8, 11, "per"), Span(16, 29, "loc"))
WORDS = ["Zoe", "met", "Bob", ",", "in", "New", "Yorkville", "."]
WANTED = ["B-per", "O", "B-per", "O", "O", "B-loc", "I-loc", "O"]


def outputs(
    prepared: Any, tags: list[list[str]] | None = None, head: Any = HEAD, size: float = 5.0
) -> list[np.ndarray]:
    """Logits that give each word its tag at its first token; the gold ones where none are given. Others are noise."""
    draw, out = np.random.default_rng(0), []
    for i, encoded in enumerate(prepared.encoded):
        matrix = draw.normal(size=(len(encoded), len(head.labels))).astype(np.float32)
        for word, token in enumerate(find_words(encoded)[0]):
            id = prepared.targets["labels"][i][token] if tags is None else head.labels.names.index(tags[i][word])
            matrix[token, id] += size + matrix[token].max() - matrix[token].min()
        out.append(matrix)
    return out


@pytest.fixture
def prepared(rows: Any, tokenizer: TextTokenizer) -> Any:
    return HEAD.prepare(rows((TEXT, SPANS), ("good day", ()), ("bob", (Span(0, 3, "per"),))), tokenizer, "a.jsonl")


def test_words_are_the_tokenizers(prepared: Any, tokenizer: TextTokenizer) -> None:
    first, places = find_words(prepared.encoded[0])
    assert [TEXT[a:b] for a, b in places] == WORDS
    assert len(prepared.encoded[0]) > len(WORDS) + 2, "some words have several tokens"
    assert len(set(first)) == len(WORDS)
    with pytest.raises(ValueError, match="places"):
        find_words(tokenizer.encode([TEXT])[0])


def test_the_first_token_of_each_word_has_its_tag_and_no_other_token(prepared: Any) -> None:
    for encoded, target, tags in zip(
        prepared.encoded, prepared.targets["labels"], [WANTED, ["O", "O"], ["B-per"]], strict=True
    ):
        first = find_words(encoded)[0]
        assert [TAGS[target[i]] for i in first] == tags
        assert set(np.delete(target, first).tolist()) == {IGNORED_LABEL}
        assert len(target) == len(encoded)


def test_a_label_outside_of_the_set_is_refused(rows: Any, tokenizer: TextTokenizer) -> None:
    with pytest.raises(InputError, match="a.jsonl:1: span label 'pers' is not in the label set; did you mean 'per'"):
        HEAD.prepare(rows(("bob", (Span(0, 3, "pers"),))), tokenizer, "a.jsonl")


def test_perfect_outputs_score_perfectly(prepared: Any, scored: Any) -> None:
    score = scored(HEAD, prepared, outputs(prepared))
    assert (score.metric, score.value, score.rows, score.finite) == ("span_f1", 1.0, 3, True)
    assert score.others == {"precision": 1.0, "recall": 1.0}
    # every word a "per": right are Zoe and Bob and bob, of 11 words and 4 spans
    assert score.chance == pytest.approx(2 * 3 / (11 + 4))


def test_what_is_between_the_first_tokens_and_how_sure_the_model_is_does_not_matter(prepared: Any, scored: Any) -> None:
    noisy = outputs(prepared, size=0.01)
    for encoded, matrix in zip(prepared.encoded, noisy, strict=True):
        rest = np.setdiff1d(np.arange(len(encoded)), find_words(encoded)[0])
        matrix[rest] = 99.0 * np.eye(5, dtype=np.float32)[rest % 5]
    assert scored(HEAD, prepared, noisy).value == 1.0


def test_a_span_with_one_wrong_end_is_wrong_twice(prepared: Any, scored: Any) -> None:
    tags = [[*WANTED[:6], "O", "O"], ["O", "O"], ["B-per"]]
    score = scored(HEAD, prepared, outputs(prepared, tags))
    assert (score.others["precision"], score.others["recall"]) == (3 / 4, 3 / 4)
    assert score.value == pytest.approx(3 / 4)
    nothing = scored(HEAD, prepared, outputs(prepared, [["O"] * 8, ["O"] * 2, ["O"]]))
    assert (nothing.value, nothing.finite) == (0.0, True)


@pytest.mark.parametrize("broken", [np.nan, -np.inf])
def test_a_token_that_is_not_finite_spoils_the_score(prepared: Any, scored: Any, broken: float) -> None:
    made = outputs(prepared)
    made[1][0, 4] = broken
    score = scored(HEAD, prepared, made)
    assert math.isnan(score.value)
    assert not score.finite


def test_a_text_that_was_cut_misses_what_was_behind(rows: Any, folder: Any, scored: Any) -> None:
    text = f"bob {'good ' * 12}bob"
    spans = (Span(0, 3, "per"), Span(len(text) - 3, len(text), "per"))
    whole = HEAD.prepare(rows((text, spans)), TextTokenizer(folder, 32), "a.jsonl")
    assert scored(HEAD, whole, outputs(whole)).value == 1.0
    short = HEAD.prepare(rows((text, spans)), TextTokenizer(folder, 8), "a.jsonl")
    assert scored(HEAD, short, outputs(short)).others == {"precision": 1.0, "recall": 0.5}
    # the same where a file of a smaller length reads rows that were tokenized for a longer one
    shorter = whole.within(8)
    assert [e.truncated for e in shorter.encoded] == [True]
    tokens = outputs(whole)[0]
    score = scored(HEAD, shorter, [tokens[np.r_[0:7, len(tokens) - 1]]])
    assert score.others == {"precision": 1.0, "recall": 0.5}


@settings(max_examples=30)
@given(st.permutations(range(3)), st.permutations(range(5)), st.integers(0, 999))
def test_rows_and_tags_in_another_order_score_the_same(
    rows: Any, folder: Any, scored: Any, same: Any, order: list[int], tags: list[int], seed: int
) -> None:
    tokenizer, draw = TextTokenizer(folder, 32), np.random.default_rng(seed)
    entries = [(TEXT, SPANS), ("good day", (Span(5, 8, "loc"),)), ("bob", (Span(0, 3, "per"),))]
    made = HEAD.prepare(rows(*entries), tokenizer, "")
    logits = [o + draw.normal(size=o.shape).astype(np.float32) * 6 for o in outputs(made)]
    first = scored(HEAD, made, logits)
    other = make_head(TASK, Labels(tuple(TAGS[i] for i in tags)))
    again = other.prepare(rows(*(entries[i] for i in order)), tokenizer, "")
    second = scored(other, again, [logits[i][:, tags] for i in order])
    same(first, second)


def test_answers_name_the_characters(prepared: Any) -> None:
    first, second, third = HEAD.answers(outputs(prepared, size=4.0), prepared)
    found = first.spans
    assert [(s.start, s.end, s.label, s.text) for s in found] == [
        (0, 3, "per", "Zoe"),
        (8, 11, "per", "Bob"),
        (16, 29, "loc", "New Yorkville"),
    ]
    assert second.spans == ()
    assert third.spans[0].text == "bob"
    logits = outputs(prepared, size=4.0)[0]
    chosen = logits[[find_words(prepared.encoded[0])[0][i] for i in (5, 6)]].astype(np.float64)
    shares = (np.exp(chosen) / np.exp(chosen).sum(-1, keepdims=True)).max(-1)
    assert found[2].score == pytest.approx(shares.mean())


def test_offsets_count_code_points(rows: Any, tokenizer: TextTokenizer) -> None:
    text = "naïve 👍 bob"
    made = HEAD.prepare(rows((text, (Span(8, 11, "per"),))), tokenizer, "")
    [answer] = HEAD.answers(outputs(made), made)
    assert [s.text for s in answer.spans] == ["bob"]


KINDS = make_head(TASK, Labels(("ADP", "NOUN", "PROPN", "VERB")))
"""Parts of speech: no tag has a prefix, none is O."""
SPOKEN = ["PROPN", "VERB", "PROPN", "NOUN", "ADP", "PROPN", "PROPN", "NOUN"]
GOLD = (Span(0, 3, "PROPN"), Span(4, 7, "VERB"), Span(8, 11, "PROPN"), Span(13, 15, "ADP"), Span(16, 29, "PROPN"))


def test_without_prefixes_each_word_is_a_span(rows: Any, tokenizer: TextTokenizer, scored: Any) -> None:
    made = KINDS.prepare(rows((TEXT, GOLD)), tokenizer, "a.jsonl")
    assert [TEXT[s.start : s.end] for s in made.truth[0]] == ["Zoe", "met", "Bob", "in", "New", "Yorkville"]
    first = find_words(made.encoded[0])[0]
    trained = [KINDS.labels.names[i] if i >= 0 else None for i in made.targets["labels"][0][first]]
    assert trained == ["PROPN", "VERB", "PROPN", None, "ADP", "PROPN", "PROPN", None]
    logits = outputs(made, [SPOKEN], KINDS)
    [answer] = KINDS.answers(logits, made)
    assert [(s.text, s.label) for s in answer.spans] == list(zip(WORDS, SPOKEN, strict=True))
    # the comma and the full stop have no gold tag, and count as found
    assert scored(KINDS, made, logits).others == {"precision": 6 / 8, "recall": 1.0}


@pytest.mark.parametrize(
    ("names", "spans", "right"),
    [
        (("O", "x"), [(0, 3), (4, 8)], 1.0),
        (("O", "B-x", "I-x"), [(0, 8)], 1.0),
        (("O", "x", "I-y"), [(0, 8)], 1.0),
    ],
)
def test_neighbours_of_one_tag(
    rows: Any, tokenizer: TextTokenizer, scored: Any, names: tuple[str, ...], spans: Any, right: float
) -> None:
    head = make_head(TASK, Labels(names))
    made = head.prepare(rows(("bob good day", (Span(0, 8, "x"),))), tokenizer, "a.jsonl")
    [answer] = head.answers(outputs(made, head=head), made)
    assert [(s.start, s.end) for s in answer.spans] == spans
    assert scored(head, made, outputs(made, head=head)).value == right


def test_words_that_were_cut_off_are_missed_one_by_one(rows: Any, folder: Any, scored: Any) -> None:
    text = "good day " * 6
    head = make_head(TASK, Labels(("O", "x")))
    short = head.prepare(rows((text, (Span(0, len(text) - 1, "x"),))), TextTokenizer(folder, 8), "a.jsonl")
    assert scored(head, short, outputs(short, head=head)).others == {"precision": 1.0, "recall": 6 / 12}
