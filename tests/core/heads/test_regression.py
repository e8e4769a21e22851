from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr

from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError
from pocketbert.core.heads import make_head
from pocketbert.core.predict.answers import Value
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import ScoreFunction, task_of

HEAD = make_head(task_of("regression"), Labels(()))
GOLD = [0.0, 2.5, 5.0, 1.25, 2.5]


def prepared_of(rows: Any, tokenizer: TextTokenizer, gold: list[float]) -> Any:
    return HEAD.prepare(rows(*((("good", "day " * i), g) for i, g in enumerate(gold, 1))), tokenizer, "a.csv")


def outputs(values: Any) -> list[np.ndarray]:
    return [np.array([[v]], np.float32) for v in values]


def test_targets_are_the_numbers(rows: Any, tokenizer: TextTokenizer) -> None:
    made = prepared_of(rows, tokenizer, GOLD)
    labels = np.asarray(made.targets["labels"])
    assert (labels.dtype, labels.tolist()) == (np.float32, GOLD)
    assert not HEAD.prepare(rows(("good", None)), tokenizer, "texts", labelled=False).targets


def test_perfect_outputs_in_any_unit(rows: Any, tokenizer: TextTokenizer, scored: Any) -> None:
    made = prepared_of(rows, tokenizer, GOLD)
    score = scored(HEAD, made, outputs(GOLD))
    assert (score.metric, score.finite, score.rows) == ("pearson", True, 5)
    assert (score.value, score.others["spearman"], score.others["rmse"]) == pytest.approx((1, 1, 0))
    other = scored(HEAD, made, outputs(np.array(GOLD) * -2 + 7))
    assert (other.value, other.others["spearman"]) == pytest.approx((-1, -1))
    assert other.others["rmse"] == pytest.approx(math.sqrt(np.mean((3 * np.array(GOLD) - 7) ** 2)))
    assert score.chance == 1.0
    assert scored(HEAD, prepared_of(rows, tokenizer, GOLD * 20), outputs(GOLD * 20)).chance == pytest.approx(0.3)


def test_a_constant_answer_is_unrelated(rows: Any, tokenizer: TextTokenizer, scored: Any) -> None:
    score = scored(HEAD, prepared_of(rows, tokenizer, GOLD), outputs([3.0] * 5))
    assert (score.value, score.others["spearman"], score.finite) == (0.0, 0.0, True)


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=3, max_size=12),
    st.randoms(use_true_random=False),
)
def test_scores_equal_scipy_in_any_order(
    rows: Any, folder: Any, scored: Any, pairs: list[tuple[int, int]], random: Any
) -> None:
    random.shuffle(pairs)
    gold, values = (list(map(float, side)) for side in zip(*pairs, strict=True))
    score = scored(HEAD, prepared_of(rows, TextTokenizer(folder, 32), gold), outputs(values))
    if len(set(gold)) > 1 and len(set(values)) > 1:
        assert score.value == pytest.approx(pearsonr(gold, values).statistic, abs=1e-9)
        assert score.others["spearman"] == pytest.approx(spearmanr(gold, values).statistic, abs=1e-9)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_number_that_is_not_finite_spoils_the_score(
    rows: Any, tokenizer: TextTokenizer, scored: Any, broken: float
) -> None:
    score = scored(HEAD, prepared_of(rows, tokenizer, GOLD), outputs([*GOLD[:4], broken]))
    assert math.isnan(score.value)
    assert (score.finite, score.others) == (False, {})


def test_answers(rows: Any, folder: Any) -> None:
    made = HEAD.prepare(rows(("good", None), ("bad " * 9, None)), TextTokenizer(folder, 6), "texts", labelled=False)
    assert HEAD.answers(outputs([0.5, -2]), made) == [Value(0.5, False), Value(-2.0, True)]


RERANKER = make_head(replace(task_of("regression"), score=ScoreFunction.SIGMOID), Labels(()))


def test_answers_of_a_reranker_go_through_a_sigmoid(rows: Any, tokenizer: TextTokenizer) -> None:
    made = RERANKER.prepare(rows(*((("good", "day"), None),) * 3), tokenizer, "texts", labelled=False)
    answers = RERANKER.answers(outputs([0.0, 2.0, -800.0]), made)
    assert [a.fields()["value"] for a in answers] == pytest.approx([0.5, 0.880797, 0.0], abs=1e-6)


def test_a_reranker_is_scored_on_its_answers(rows: Any, tokenizer: TextTokenizer, scored: Any) -> None:
    gold, logits = [0.0, 1.0, 0.5, 0.1], [-3.0, 4.0, 0.2, -1.0]
    made = RERANKER.prepare(rows(*((("good", "day " * i), g) for i, g in enumerate(gold, 1))), tokenizer, "a.csv")
    score = scored(RERANKER, made, outputs(logits))
    assert score.value == pytest.approx(pearsonr(gold, 1 / (1 + np.exp(-np.array(logits))))[0])


def test_labels_beyond_a_sigmoid_are_refused(rows: Any, tokenizer: TextTokenizer) -> None:
    with pytest.raises(InputError, match=r"1 labels are not between 0 and 1, the first is 2.5 in row 2"):
        RERANKER.prepare(rows((("a", "b"), 1.0), (("a", "c"), 2.5)), tokenizer, "a.csv")
