from __future__ import annotations

import re
import string
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.heads.question_answering import _exact_match, _normalize_answer, _token_f1

WORDS = st.lists(
    st.sampled_from(["a", "an", "the", "cat", "Dog", "sat,", "U.S.", "tower-block", "theatre", "'", "7"]),
    max_size=6,
)
ANSWERS = WORDS.map(" ".join)


def their_words(text: str) -> list[str]:
    """Written from the description of evaluate-v1.1: lower case, no punctuation, no articles, blanks between words."""
    kept = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return [w for w in re.sub(r"\b(a|an|the)\b", " ", kept).split() if w]


def their_f1(answer: str, gold: str) -> float:
    ours, theirs = their_words(answer), their_words(gold)
    same = sum((Counter(ours) & Counter(theirs)).values())
    if not ours or not theirs:
        return float(ours == theirs)
    if not same:
        return 0.0
    precision, recall = same / len(ours), same / len(theirs)
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        ("The Eiffel Tower.", "eiffel tower"),
        ("  a   dog,  an ox ", "dog ox"),
        ("theatre", "theatre"),
        ("U.S.", "us"),
        ("the", ""),
        ("Äpfel", "äpfel"),
        ("an-other", "another"),
        ("", ""),
    ],
)
def test_answers_are_compared_without_articles_marks_and_case(answer: str, read: str) -> None:
    assert _normalize_answer(answer) == read


@given(ANSWERS, st.lists(ANSWERS, min_size=1, max_size=3))
def test_the_best_gold_answer_counts(answer: str, gold: list[str]) -> None:
    assert _token_f1(answer, gold) == pytest.approx(max(their_f1(answer, g) for g in gold))
    assert _exact_match(answer, gold) == float(any(their_words(answer) == their_words(g) for g in gold))
    assert _exact_match(answer, gold) <= _token_f1(answer, gold) <= 1


def test_f1_by_hand() -> None:
    # "green tower hill" and "old green tower": 2 words of 3 and 3
    assert _token_f1("the green tower hill", ["old green tower"]) == pytest.approx(2 / 3)
    assert _token_f1("dog dog", ["dog"]) == pytest.approx(2 / 3), "a word counts as often as both have it"
    assert _token_f1("cat", ["dog"]) == 0.0


def test_a_question_without_answer_wants_none() -> None:
    assert (_token_f1("", []), _exact_match("", [])) == (1.0, 1.0)
    assert (_token_f1("cat", []), _exact_match("cat", [])) == (0.0, 0.0)
    assert (_token_f1("", ["cat"]), _exact_match("", ["cat"])) == (0.0, 0.0)
    assert (_token_f1("the", []), _exact_match("the", [])) == (1.0, 1.0), "articles alone are no answer"
