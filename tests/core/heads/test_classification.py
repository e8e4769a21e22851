from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError
from pocketbert.core.heads import make_head
from pocketbert.core.predict.answers import Prediction, mark_unknown_answers
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import task_of

NAMES = ("bad", "so so", "good")
HEAD = make_head(task_of("text-classification"), Labels(NAMES))
GOLD = ["good", "bad", "good", "so so", "bad", "good"]
IDS = [2, 0, 2, 1, 0, 2]


def perfect(ids: list[int], labels: int = 3) -> list[np.ndarray]:
    return [np.eye(labels, dtype=np.float32)[[i]] for i in ids]


def prepared_of(rows: Any, tokenizer: TextTokenizer, gold: list[Any]) -> Any:
    return HEAD.prepare(rows(*((f"good {'day ' * i}", g) for i, g in enumerate(gold))), tokenizer, "a.csv")


def test_names_and_numbers_become_targets(rows: Any, tokenizer: TextTokenizer) -> None:
    made = prepared_of(rows, tokenizer, GOLD)
    assert np.asarray(made.targets["labels"]).tolist() == IDS
    assert made.owner.tolist() == list(range(6))
    assert [len(e) for e in made.encoded] == [3, 4, 5, 6, 7, 8]
    with pytest.raises(InputError, match="a.csv:2: label 'god'.*did you mean 'good'"):
        prepared_of(rows, tokenizer, ["bad", "god"])


def test_texts_to_answer_need_no_label(rows: Any, tokenizer: TextTokenizer) -> None:
    made = HEAD.prepare(rows(("good", None), (("good", "bad"), None)), tokenizer, "texts", labelled=False)
    assert not made.targets
    assert len(made.truth) == 0
    assert made.encoded[1].type_ids.tolist() == [0, 0, 0, 1, 1]


def test_perfect_outputs_score_perfectly_and_chance_is_the_commonest_label(
    rows: Any, tokenizer: TextTokenizer, scored: Any
) -> None:
    made = prepared_of(rows, tokenizer, GOLD * 20)
    score = scored(HEAD, made, perfect(IDS * 20))
    assert (score.metric, score.value, score.rows, score.finite) == ("accuracy", 1.0, 120, True)
    assert score.others == {"macro_f1": 1.0, "mcc": pytest.approx(1.0)}
    assert score.chance == pytest.approx(0.5 + 3 * math.sqrt(0.25 / 120))
    assert scored(HEAD, made, perfect([2] * 120)).value == 0.5


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_one_number_that_is_not_finite_spoils_the_score(
    rows: Any, tokenizer: TextTokenizer, scored: Any, broken: float
) -> None:
    outputs = perfect(IDS)
    outputs[3][0, 0] = broken
    score = scored(HEAD, prepared_of(rows, tokenizer, GOLD), outputs)
    assert math.isnan(score.value)
    assert not score.finite


@settings(max_examples=30)
@given(st.permutations(range(6)), st.integers(0, 99))
def test_the_order_of_rows_does_not_matter(
    rows: Any, folder: Any, scored: Any, same: Any, order: list[int], seed: int
) -> None:
    tokenizer = TextTokenizer(folder, 32)
    logits = list(np.random.default_rng(seed).normal(size=(6, 1, 3)).astype(np.float32))
    first = scored(HEAD, prepared_of(rows, tokenizer, GOLD), logits)
    second = scored(HEAD, prepared_of(rows, tokenizer, [GOLD[i] for i in order]), [logits[i] for i in order])
    same(first, second)


@settings(max_examples=30)
@given(st.permutations(range(3)), st.integers(0, 99))
def test_labels_and_logits_in_another_order_score_the_same(
    rows: Any, folder: Any, scored: Any, order: list[int], seed: int
) -> None:
    tokenizer = TextTokenizer(folder, 32)
    logits = np.random.default_rng(seed).normal(size=(6, 1, 3)).astype(np.float32)
    gold = rows(*(("good", NAMES[i]) for i in IDS))
    other = make_head(task_of("text-classification"), Labels(tuple(NAMES[i] for i in order)))
    first = scored(HEAD, HEAD.prepare(gold, tokenizer, ""), list(logits))
    second = scored(other, other.prepare(gold, tokenizer, ""), list(logits[:, :, order]))
    assert second.value == first.value
    assert second.others == pytest.approx(first.others)


def test_answers(rows: Any, folder: Any) -> None:
    made = HEAD.prepare(rows(("good", None), ("bad " * 9, None)), TextTokenizer(folder, 6), "texts", labelled=False)
    logits = [np.array([[0.0, 1.0, 3.0]], np.float32), np.array([[2.0, 0.0, 2.0 - 1e-3]], np.float32)]
    found = HEAD.answers(logits, made)
    assert all(isinstance(a, Prediction) for a in found)
    first, second = found
    share = np.exp([0.0, 1.0, 3.0]) / np.exp([0.0, 1.0, 3.0]).sum()
    assert (first.label, second.label) == ("good", "bad")
    assert first.scores == pytest.approx(dict(zip(NAMES, share, strict=True)))
    assert first.score == pytest.approx(share[2])
    assert (first.truncated, second.truncated) == (False, True)
    inside = HEAD.answers([m / 10 for m in logits], made, inside=True)
    assert inside[0].scores == pytest.approx({"bad": 0, "so so": 0.1, "good": 0.3})


def test_an_answer_below_the_threshold_is_unknown(rows: Any, folder: Any) -> None:
    made = HEAD.prepare(rows(("good", None), ("bad", None)), TextTokenizer(folder, 8), "texts", labelled=False)
    logits = [np.array([[0.0, 0.0, np.log(2.0)]], np.float32), np.array([[0.0, 0.0, 5.0]], np.float32)]
    for least, expected in ((None, [None, None]), (0.45, [False, False]), (0.6, [True, False]), (0.99, [True, True])):
        found = mark_unknown_answers(HEAD.answers(logits, made), [least, least])
        assert [a.unknown for a in found if isinstance(a, Prediction)] == expected
        assert [a.label for a in found if isinstance(a, Prediction)] == ["good", "good"]
    of_files = mark_unknown_answers(HEAD.answers(logits, made), [0.6, None])
    assert [a.unknown for a in of_files if isinstance(a, Prediction)] == [True, None]
