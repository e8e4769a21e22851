from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbert.core.data.examples import GoldAnswer
from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError
from pocketbert.core.heads import AnswerSettings, make_head
from pocketbert.core.heads.question_answering import _CONTEXT
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import task_of

TASK = task_of("question-answering")
LONG = "she was happy. " + "the weather was good and the day was bad. " * 4 + "he set an alarm for six."
SHORT = "the fox jumps over the lazy dog"


def head_with(**settings: Any) -> Any:
    return make_head(TASK, Labels(()), AnswerSettings(**{"stride": 4, **settings}))


HEAD = head_with()


def gold(context: str, *answers: str) -> tuple[GoldAnswer, ...]:
    return tuple(GoldAnswer(context.index(a), a) for a in answers)


ENTRIES = (
    (("what jumps", SHORT), gold(SHORT, "fox", "the fox")),
    (("what for", LONG), gold(LONG, "alarm for six")),
    (("who", LONG), gold(LONG, "she")),
)


@pytest.fixture
def prepared(rows: Any, tokenizer: TextTokenizer) -> Any:
    return HEAD.prepare(rows(*ENTRIES), tokenizer, "a.jsonl")


def outputs(prepared: Any, sure: float = 9.0) -> list[np.ndarray]:
    """Scores that are high at the gold places only; a window without the answer is less sure of everything."""
    made = []
    for i, encoded in enumerate(prepared.encoded):
        places = [int(prepared.targets[k][i]) for k in ("start_positions", "end_positions")]
        matrix = np.zeros((len(encoded), 2), np.float32)
        matrix[places, (0, 1)] = sure
        made.append(matrix)
    return made


def test_windows_cover_the_context_once_with_their_overlap(prepared: Any, tokenizer: TextTokenizer) -> None:
    by_example = prepared.rows_of()
    assert [len(r) for r in by_example] == [1, len(by_example[1]), len(by_example[2])]
    assert len(by_example[1]) >= 3
    for example, rows in zip(prepared.examples, by_example, strict=True):
        windows = [prepared.encoded[i] for i in rows]
        seen = []
        for window in windows:
            assert len(window) <= tokenizer.max_length
            seen.append([tuple(o) for o in window.places.offsets[window.places.parts == _CONTEXT].tolist()])
        for before, after in pairwise(seen):
            assert before[-4:] == after[:4], "4 tokens are shared"
        together = seen[0] + [o for part in seen[1:] for o in part[4:]]
        assert together == sorted(set(together))
        assert "".join(example.pair[a:b] for a, b in together) == example.pair.replace(" ", "")
        assert len({tuple(w.ids[w.places.parts == 0]) for w in windows}) == 1, "the question stands in each"


def test_targets_are_the_tokens_of_the_first_answer_and_0_elsewhere(prepared: Any) -> None:
    starts, ends = (np.asarray(prepared.targets[k]) for k in ("start_positions", "end_positions"))
    assert starts.dtype == np.int64
    for i, (window, owner) in enumerate(zip(prepared.encoded, prepared.owner, strict=True)):
        example = prepared.examples[owner]
        answer = example.label[0]
        inside = window.places.parts == _CONTEXT
        first, last = window.places.offsets[inside][0][0], window.places.offsets[inside][-1][1]
        if first <= answer.start and answer.start + len(answer.text) <= last:
            assert example.pair[window.places.offsets[starts[i]][0] : window.places.offsets[ends[i]][1]] == answer.text
            assert window.places.parts[starts[i]] == window.places.parts[ends[i]] == _CONTEXT
        else:
            assert (starts[i], ends[i]) == (0, 0)
    assert (starts == 0).any()
    assert (starts > 0).any()


def test_perfect_outputs_score_perfectly(prepared: Any, scored: Any) -> None:
    score = scored(HEAD, prepared, outputs(prepared))
    assert (score.metric, score.value, score.others, score.finite) == (
        "squad_f1",
        1.0,
        {"exact_match": 1.0},
        True,
    )
    assert score.rows == 3


def test_an_answer_that_crosses_windows_is_found_in_the_one_that_holds_it(rows: Any, folder: Any, scored: Any) -> None:
    tokenizer = TextTokenizer(folder, 16)
    context = "the fox jumps over the lazy dog and the dog was sad"
    for width in (1, 2, 3, 4):  # words; windows share 4 tokens
        words = context.split()
        for first in range(len(words) - width + 1):
            answer = " ".join(words[first : first + width])
            start = len(" ".join(words[:first])) + (first > 0)
            made = HEAD.prepare(rows((("what was it", context), (GoldAnswer(start, answer),))), tokenizer, "")
            assert len(made.encoded) >= 2
            assert np.asarray(made.targets["start_positions"]).any()
            [found] = HEAD.answers(outputs(made), made)
            assert (found.start, found.end, found.text) == (start, start + len(answer), answer)
    wide = (GoldAnswer(4, context[4:40]),)
    made = HEAD.prepare(rows((("what was it", context), wide)), tokenizer, "")
    assert not np.asarray(made.targets["start_positions"]).any(), "no window holds it whole"


def test_chance_is_the_first_sentence_or_nothing(rows: Any, tokenizer: TextTokenizer, scored: Any) -> None:
    first = (("who", LONG), gold(LONG, "she was happy"))
    made = HEAD.prepare(rows(*[first] * 3, *[ENTRIES[1]] * 97), tokenizer, "")
    # "she was happy" is right three times; of "alarm for six" it has no word; nothing is never right
    assert scored(HEAD, made, outputs(made)).chance == pytest.approx(0.03 + 3 * math.sqrt(0.03 * 0.97 / 100))
    none = HEAD.prepare(rows(*[(("who", LONG), ())] * 60, *[ENTRIES[1]] * 40), tokenizer, "")
    assert scored(HEAD, none, outputs(none)).chance == pytest.approx(0.6 + 3 * math.sqrt(0.24 / 100))


@pytest.mark.parametrize(("token", "column"), [(0, 0), (1, 1), (-3, 0)])
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_number_that_is_not_finite_spoils_the_score(
    prepared: Any, scored: Any, token: int, column: int, broken: float
) -> None:
    made = outputs(prepared)
    made[2][token, column] = broken
    score = scored(HEAD, prepared, made)
    assert math.isnan(score.value)
    assert not score.finite


@settings(max_examples=30)
@given(st.integers(0, 9999), st.sampled_from([1, 2, 7, 100]), st.booleans())
def test_an_answer_is_never_outside_of_the_context_nor_too_long(
    rows: Any, folder: Any, seed: int, longest: int, null: bool
) -> None:
    head, draw = head_with(answer_length=longest, null_answers=null), np.random.default_rng(seed)
    tokenizer = TextTokenizer(folder, 24)
    made = head.prepare(rows(*((t, None) for t, _ in ENTRIES)), tokenizer, "", labelled=False)
    logits = []
    for e in made.encoded:
        m = draw.normal(size=(len(e), 2)).astype(np.float32) * 5
        m[e.places.parts != _CONTEXT] += draw.choice([0.0, 50.0])  # question and special tokens shout
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
            int(((p.parts == _CONTEXT) & (p.offsets[:, 0] >= answer.start) & (p.offsets[:, 1] <= answer.end)).sum())
            for p in places
        ]
        assert 1 <= max(counts) <= longest
        assert 0 <= answer.score <= 1


def test_the_best_pair_is_the_best_of_all_pairs(rows: Any, folder: Any) -> None:
    tokenizer, draw = TextTokenizer(folder, 32), np.random.default_rng(3)
    head = head_with(answer_length=3)
    made = head.prepare(rows((("who", SHORT), None)), tokenizer, "", labelled=False)
    [window] = made.encoded
    tokens = np.flatnonzero(window.places.parts == _CONTEXT)
    for _ in range(50):
        matrix = draw.normal(size=(len(window), 2)).astype(np.float32)
        best = max((float(matrix[i, 0]) + float(matrix[j, 1]), i, j) for i in tokens for j in tokens if 0 <= j - i < 3)
        [answer] = head.answers([matrix], made)
        assert (answer.start, answer.end) == (
            window.places.offsets[best[1]][0],
            window.places.offsets[best[2]][1],
        )
        shares = np.exp(matrix.astype(np.float64)) / np.exp(matrix.astype(np.float64)).sum(0)
        assert answer.score == pytest.approx(shares[best[1], 0] * shares[best[2], 1], rel=1e-5)


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


def test_questions_without_answer_are_scored(rows: Any, tokenizer: TextTokenizer, scored: Any) -> None:
    head = head_with(null_answers=True)
    made = head.prepare(rows((("who", "dogs and foxes"), ()), ENTRIES[0]), tokenizer, "")
    assert np.asarray(made.targets["start_positions"]).tolist()[0] == 0
    score = scored(head, made, outputs(made))
    assert (score.value, score.others["exact_match"]) == (1.0, 1.0)
    assert scored(HEAD, made, outputs(made)).value == 0.5


@settings(max_examples=30)
@given(st.permutations(range(3)), st.integers(0, 999))
def test_the_order_of_questions_does_not_matter(
    rows: Any, folder: Any, scored: Any, same: Any, order: list[int], seed: int
) -> None:
    tokenizer, draw = TextTokenizer(folder, 32), np.random.default_rng(seed)
    made = HEAD.prepare(rows(*ENTRIES), tokenizer, "")
    logits = [m + draw.normal(size=m.shape).astype(np.float32) * 5 for m in outputs(made)]
    again = HEAD.prepare(rows(*(ENTRIES[i] for i in order)), tokenizer, "")
    moved = [logits[j] for i in order for j in made.rows_of()[i]]
    same(scored(HEAD, made, logits), scored(HEAD, again, moved))


def test_an_empty_context_has_no_answer_and_spoils_nothing(rows: Any, tokenizer: TextTokenizer, scored: Any) -> None:
    made = HEAD.prepare(rows((("who", ""), ()), ENTRIES[0]), tokenizer, "")
    score = scored(HEAD, made, outputs(made))
    assert (score.finite, score.value) == (True, 1.0)
    assert HEAD.answers(outputs(made), made)[0].text == ""


def test_a_question_that_fills_the_input_is_refused(rows: Any, folder: Any) -> None:
    with pytest.raises(InputError, match="'good good.*no room for the context"):
        HEAD.prepare(rows((("good " * 20, SHORT), None)), TextTokenizer(folder, 16), "", labelled=False)
    [one] = HEAD.prepare(rows((("good " * 12, "fox"), None)), TextTokenizer(folder, 16), "", labelled=False).encoded
    assert len(one) == 16
