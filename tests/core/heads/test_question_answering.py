"""Questions: windows of a long context, answers inside of it, and the scores of SQuAD."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError
from pocketbert.core.heads import AnswerSettings, make_head
from pocketbert.core.predict.examples import GoldAnswer
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import task_of
from support.head_rows import check_not_finite_spoils, make_rows, score_outputs

CONTEXT = 1
"""Part of a pair that the context is."""
LONG = "she was happy. " + "the weather was good and the day was bad. " * 4 + "he set an alarm for six."
SHORT = "the fox jumps over the lazy dog"


def head_with(**settings: Any) -> Any:
    return make_head(task_of("question-answering"), Labels(()), AnswerSettings(**{"stride": 4, **settings}))


HEAD = head_with()


def gold(context: str, *answers: str) -> tuple[GoldAnswer, ...]:
    return tuple(GoldAnswer(context.index(a), a) for a in answers)


ENTRIES = (
    (("what jumps", SHORT), gold(SHORT, "fox", "the fox")),
    (("what for", LONG), gold(LONG, "alarm for six")),
    (("who", LONG), gold(LONG, "she")),
)


@pytest.fixture
def prepared(tokenizer: TextTokenizer) -> Any:
    return HEAD.prepare(make_rows(*ENTRIES), tokenizer, "a.jsonl")


def outputs(prepared: Any, sure: float = 9.0) -> list[np.ndarray]:
    """Scores that are high at the gold places only; a window without the answer is less sure of everything."""
    made = []
    for i, encoded in enumerate(prepared.encoded):
        places = [int(prepared.targets[k][i]) for k in ("start_positions", "end_positions")]
        matrix = np.zeros((len(encoded), 2), np.float32)
        matrix[places, (0, 1)] = sure
        made.append(matrix)
    return made


# Windows


def test_windows_cover_the_context_once_with_their_overlap(prepared: Any, tokenizer: TextTokenizer) -> None:
    by_example = prepared.rows_of()
    assert len(by_example[0]) == 1
    assert len(by_example[1]) >= 3
    for example, rows in zip(prepared.examples, by_example, strict=True):
        windows = [prepared.encoded[i] for i in rows]
        assert all(len(window) <= tokenizer.max_length for window in windows)
        seen = [[tuple(o) for o in w.places.offsets[w.places.parts == CONTEXT].tolist()] for w in windows]
        for before, after in pairwise(seen):
            assert before[-4:] == after[:4], "4 tokens are shared"
        together = seen[0] + [o for part in seen[1:] for o in part[4:]]
        assert together == sorted(set(together))
        assert "".join(example.pair[a:b] for a, b in together) == example.pair.replace(" ", "")
        assert len({tuple(w.ids[w.places.parts == 0]) for w in windows}) == 1, "the question stands in each"


def test_an_answer_that_crosses_windows_is_found_in_the_one_that_holds_it(folder: Path) -> None:
    tokenizer = TextTokenizer(folder, 16)
    context = "the fox jumps over the lazy dog and the dog was sad"
    words = context.split()
    for width in (1, 2, 3, 4):  # words; windows share 4 tokens
        for first in range(len(words) - width + 1):
            answer = " ".join(words[first : first + width])
            start = len(" ".join(words[:first])) + (first > 0)
            made = HEAD.prepare(make_rows((("what was it", context), (GoldAnswer(start, answer),))), tokenizer, "")
            assert len(made.encoded) >= 2
            assert np.asarray(made.targets["start_positions"]).any()
            [found] = HEAD.answers(outputs(made), made)
            assert (found.start, found.end, found.text) == (start, start + len(answer), answer)
    wide = (GoldAnswer(4, context[4:40]),)
    made = HEAD.prepare(make_rows((("what was it", context), wide)), tokenizer, "")
    assert not np.asarray(made.targets["start_positions"]).any(), "no window holds it whole"


def test_a_question_that_fills_the_input_is_refused(folder: Path) -> None:
    tokenizer = TextTokenizer(folder, 16)
    with pytest.raises(InputError, match="'good good.*no room for the context"):
        HEAD.prepare(make_rows((("good " * 20, SHORT), None)), tokenizer, "", labelled=False)
    [one] = HEAD.prepare(make_rows((("good " * 12, "fox"), None)), tokenizer, "", labelled=False).encoded
    assert len(one) == 16


# Answers


@settings(max_examples=25)
@given(st.integers(0, 9999), st.sampled_from([1, 2, 7, 100]), st.booleans())
def test_an_answer_is_never_outside_of_the_context_nor_too_long(
    folder: Path, seed: int, longest: int, null: bool
) -> None:
    head, draw = head_with(answer_length=longest, null_answers=null), np.random.default_rng(seed)
    made = head.prepare(make_rows(*((t, None) for t, _ in ENTRIES)), TextTokenizer(folder, 24), "", labelled=False)
    logits = []
    for e in made.encoded:
        m = draw.normal(size=(len(e), 2)).astype(np.float32) * 5
        m[e.places.parts != CONTEXT] += draw.choice([0.0, 50.0])  # question and special tokens shout
        logits.append(m)
    for example, answer, numbers in zip(made.examples, head.answers(logits, made), made.rows_of(), strict=True):
        if not answer.text:
            assert null
            assert (answer.start, answer.end) == (0, 0)
            continue
        assert answer.text == example.pair[answer.start : answer.end]
        assert not answer.text[0].isspace()
        places = [made.encoded[i].places for i in numbers]
        counts = [
            int(((p.parts == CONTEXT) & (p.offsets[:, 0] >= answer.start) & (p.offsets[:, 1] <= answer.end)).sum())
            for p in places
        ]
        assert 1 <= max(counts) <= longest
        assert 0 <= answer.score <= 1


def test_the_best_pair_is_the_best_of_all_pairs(tokenizer: TextTokenizer) -> None:
    draw, head = np.random.default_rng(3), head_with(answer_length=3)
    made = head.prepare(make_rows((("who", SHORT), None)), tokenizer, "", labelled=False)
    [window] = made.encoded
    tokens = np.flatnonzero(window.places.parts == CONTEXT)
    for _ in range(50):
        matrix = draw.normal(size=(len(window), 2)).astype(np.float32)
        _, i, j = max((matrix[i, 0] + matrix[j, 1], i, j) for i in tokens for j in tokens if 0 <= j - i < 3)
        [answer] = head.answers([matrix], made)
        assert (answer.start, answer.end) == (window.places.offsets[i][0], window.places.offsets[j][1])
        shares = np.exp(matrix.astype(np.float64)) / np.exp(matrix.astype(np.float64)).sum(0)
        assert answer.score == pytest.approx(shares[i, 0] * shares[j, 1], rel=1e-5)


def test_no_answer_needs_every_window_to_say_so(prepared: Any) -> None:
    head = head_with(null_answers=True)
    made = outputs(prepared)
    assert [a.text for a in head.answers(made, prepared)] == ["fox", "alarm for six", "she"]
    numbers = prepared.rows_of()[1]
    for i in numbers[:-1]:
        made[i][0] = 50
    assert head.answers(made, prepared)[1].text == "alarm for six"
    made[numbers[-1]][0] = 50
    assert head.answers(made, prepared)[1].text == ""
    assert HEAD.answers(made, prepared)[1].text != "", "only where questions may have no answer"
    check_not_finite_spoils(HEAD, prepared, outputs(prepared), [(2, 0, 0), (2, 1, 1), (2, -3, 0)])


# Scores


def score_text(tokenizer: TextTokenizer, answer: str, gold: list[str]) -> tuple[float, float]:
    """F1 and exact match of an answer, where a question has these gold answers."""
    head = head_with(null_answers=True, answer_length=100)
    row = (("who", answer or "fox"), tuple(GoldAnswer(0, g) for g in gold))
    made = head.prepare(make_rows(row), tokenizer, "")
    [window] = made.encoded
    tokens = np.flatnonzero(window.places.parts == CONTEXT) if answer else [0]
    matrix = np.zeros((len(window), 2), np.float32)
    matrix[[tokens[0], tokens[-1]], (0, 1)] = 9
    score = score_outputs(head, made, [matrix])
    return score.value, score.others["exact_match"]


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


WORDS = ["a", "an", "the", "cat", "Dog", "sat,", "U.S.", "tower-block", "theatre", "'", "7", "Äpfel"]
ANSWERS = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)


@settings(max_examples=40)
@given(ANSWERS, st.lists(ANSWERS, min_size=1, max_size=3))
def test_the_best_gold_answer_counts(folder: Path, answer: str, gold: list[str]) -> None:
    f1, exact = score_text(TextTokenizer(folder, 128), answer, gold)
    assert f1 == pytest.approx(max(their_f1(answer, g) for g in gold), abs=1e-6)
    assert exact == float(any(their_words(answer) == their_words(g) for g in gold))


@pytest.mark.parametrize(
    ("answer", "gold", "f1", "exact"),
    [
        ("The Eiffel Tower.", ["eiffel tower"], 1, 1),
        ("the green tower hill", ["old green tower"], 2 / 3, 0),
        # a question without answer wants none; articles alone are none
        ("", [], 1, 1),
        ("cat", [], 0, 0),
        ("the", [], 1, 1),
    ],
)
def test_scores_of_squad_by_hand(
    tokenizer: TextTokenizer, answer: str, gold: list[str], f1: float, exact: float
) -> None:
    assert score_text(tokenizer, answer, gold) == pytest.approx((f1, exact), abs=1e-6)


def test_chance_is_the_first_sentence_or_nothing(tokenizer: TextTokenizer) -> None:
    first = (("who", LONG), gold(LONG, "she was happy"))
    made = HEAD.prepare(make_rows(*[first] * 3, *[ENTRIES[1]] * 97), tokenizer, "")
    # "she was happy" is right three times; of "alarm for six" it has no word; nothing is never right
    assert score_outputs(HEAD, made, outputs(made)).chance == pytest.approx(0.03 + 3 * math.sqrt(0.03 * 0.97 / 100))
    none = HEAD.prepare(make_rows(*[(("who", LONG), ())] * 60, *[ENTRIES[1]] * 40), tokenizer, "")
    assert score_outputs(HEAD, none, outputs(none)).chance == pytest.approx(0.6 + 3 * math.sqrt(0.24 / 100))


def test_questions_without_answer_or_context_spoil_nothing(tokenizer: TextTokenizer) -> None:
    head = head_with(null_answers=True)
    made = head.prepare(make_rows((("who", "dogs and foxes"), ()), ENTRIES[0]), tokenizer, "")
    assert np.asarray(made.targets["start_positions"]).tolist()[0] == 0
    score = score_outputs(head, made, outputs(made))
    assert (score.metric, score.value, score.others) == ("squad_f1", 1.0, {"exact_match": 1.0})
    assert (score.rows, score.finite) == (2, True)
    assert score_outputs(HEAD, made, outputs(made)).value == 0.5
    empty = HEAD.prepare(make_rows((("who", ""), ()), ENTRIES[0]), tokenizer, "")
    score = score_outputs(HEAD, empty, outputs(empty))
    assert (score.finite, score.value) == (True, 1.0)
    assert HEAD.answers(outputs(empty), empty)[0].text == ""
