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
from pocketbert.core.heads import AnswerSettings, make_head
from pocketbert.core.heads.feature_extraction import _normalize, _similarities
from pocketbert.core.heads.feature_extraction import are_scored_pairs as has_scores
from pocketbert.core.predict.sentence_settings import Similarity
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import task_of

HEAD = make_head(task_of("feature-extraction"), Labels(()))
PAIRS = [((f"good {'day ' * i}", "bad"), s) for i, s in enumerate([0.5, 5.0, 3.0, 1.0])]


def at_angle(degrees: float) -> tuple[np.ndarray, np.ndarray]:
    """Two vectors of different lengths with this angle between them."""
    a = math.radians(degrees)
    return np.array([[3.0, 0.0]], np.float32), np.array([[math.cos(a), math.sin(a)]], np.float32) * 0.2


def test_a_scored_pair_is_two_rows_side_by_side(rows: Any, tokenizer: TextTokenizer) -> None:
    made = HEAD.prepare(rows(*PAIRS), tokenizer, "a.csv")
    assert made.owner.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [len(e) for e in made.encoded] == [3, 3, 4, 3, 5, 3, 6, 3]
    assert np.asarray(made.truth).tolist() == [0.5, 5.0, 3.0, 1.0]
    assert not any(e.type_ids.any() for e in made.encoded), "each text is read by itself"


def test_other_rows_are_read_at_their_first_text(rows: Any, tokenizer: TextTokenizer) -> None:
    made = HEAD.prepare(rows(("good", None), (("bad", "day"), None)), tokenizer, "a.csv")
    assert [len(e) for e in made.encoded] == [3, 3]
    assert len(made.truth) == 0
    assert not has_scores([])
    assert not has_scores(rows(PAIRS[0], (("a", "b"), None)))


def test_pairs_with_and_without_a_score_are_refused(rows: Any, tokenizer: TextTokenizer) -> None:
    mixed = rows(*PAIRS, (("good", "day"), None))
    with pytest.raises(InputError) as raised:
        HEAD.prepare(mixed, tokenizer, "a.csv")
    assert "1 of 5 pairs have no score, the first in row 5" in str(raised.value)
    assert len(HEAD.prepare(mixed, tokenizer, "a.csv", labelled=False).truth) == 0, "training needs none"


def test_the_order_of_cosines_decides(rows: Any, tokenizer: TextTokenizer, scored: Any) -> None:
    made = HEAD.prepare(rows(*PAIRS), tokenizer, "a.csv")
    outputs = [v for degrees in (80, 10, 50, 70) for v in at_angle(degrees)]
    score = scored(HEAD, made, outputs)
    assert (score.metric, score.rows, score.finite, score.chance) == ("spearman", 4, True, 1.0)
    assert score.value == pytest.approx(1.0)
    cosines = [math.cos(math.radians(d)) for d in (80, 10, 50, 70)]
    assert score.others["pearson"] == pytest.approx(pearsonr([0.5, 5.0, 3.0, 1.0], cosines).statistic)
    assert scored(HEAD, made, [v for d in (10, 80, 50, 20) for v in at_angle(d)]).value == pytest.approx(
        spearmanr([0.5, 5, 3, 1], [-10, -80, -50, -20]).statistic
    )
    many = HEAD.prepare(rows(*PAIRS * 25), tokenizer, "a.csv")
    assert scored(HEAD, many, outputs * 25).chance == pytest.approx(0.3)


def test_the_teachers_vectors_decide_where_there_are_no_scores(
    rows: Any, tokenizer: TextTokenizer, scored: Any
) -> None:
    made = HEAD.prepare(rows(("good", None), ("bad", None), ("day", None)), tokenizer, "a.csv")
    theirs = np.array([[2.0, 0.0], [0.0, 0.5], [1.0, 1.0]], np.float32)
    made = replace(made, truth=theirs)
    score = scored(HEAD, made, [v[None] * 7 for v in theirs])
    assert (score.metric, score.finite, score.rows) == ("mean_cosine", True, 3)
    assert score.value == pytest.approx(1.0)
    # the mean direction is the diagonal: cosines 1/sqrt(2), 1/sqrt(2) and 1
    assert score.chance == pytest.approx((math.sqrt(2) + 1) / 3)
    assert scored(HEAD, made, [-v[None] for v in theirs]).value == pytest.approx(-1.0)
    diagonal = scored(HEAD, made, [np.ones((1, 2), np.float32)] * 3)
    assert diagonal.value == pytest.approx(score.chance), "what chance means"


@settings(max_examples=30)
@given(st.integers(0, 999), st.permutations(range(4)))
def test_order_and_length_of_vectors_do_not_matter(
    rows: Any, folder: Any, scored: Any, seed: int, order: list[int]
) -> None:
    tokenizer, draw = TextTokenizer(folder, 32), np.random.default_rng(seed)
    vectors = draw.normal(size=(8, 1, 5)).astype(np.float32)
    first = scored(HEAD, HEAD.prepare(rows(*PAIRS), tokenizer, ""), list(vectors))
    moved = [vectors[2 * i + k] * float(draw.uniform(0.1, 9)) for i in order for k in (0, 1)]
    second = scored(HEAD, HEAD.prepare(rows(*(PAIRS[i] for i in order)), tokenizer, ""), moved)
    assert second.value == pytest.approx(first.value)
    assert second.others == pytest.approx(first.others, abs=1e-6)
    cosines = [float(_normalize(a)[0] @ _normalize(b)[0]) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    assert first.value == pytest.approx(spearmanr([0.5, 5.0, 3.0, 1.0], cosines).statistic)


@pytest.mark.parametrize("theirs", [False, True])
def test_a_nan_spoils_the_score(rows: Any, tokenizer: TextTokenizer, scored: Any, theirs: bool) -> None:
    made = HEAD.prepare(rows(*PAIRS), tokenizer, "a.csv")
    if theirs:
        made = replace(made, truth=np.ones((8, 2), np.float32))
    outputs = [v for d in (80, 10, 50, 70) for v in at_angle(d)]
    outputs[3] = np.array([[np.nan, 1.0]], np.float32)
    score = scored(HEAD, made, outputs)
    assert math.isnan(score.value)
    assert (score.finite, score.others) == (False, {})


def test_vectors_of_nothing_stay_nothing() -> None:
    assert _normalize(np.zeros((1, 3))).tolist() == [[0, 0, 0]]
    assert np.linalg.norm(_normalize(np.array([[3.0, 4.0]]))) == pytest.approx(1)


def test_answers(rows: Any, folder: Any) -> None:
    made = HEAD.prepare(rows(("good", None), ("bad " * 9, None)), TextTokenizer(folder, 6), "texts", labelled=False)
    vectors = [np.array([[1.0, 2.0]], np.float32), np.array([[3.0, 4.0]], np.float32)]
    found = HEAD.answers(vectors, made)
    assert [a.vector.tolist() for a in found] == [[1.0, 2.0], [3.0, 4.0]]
    assert [a.truncated for a in found] == [False, True]


@pytest.mark.parametrize("kind", list(Similarity))
def test_pairs_are_compared_as_sentence_transformers_does(
    rows: Any, tokenizer: TextTokenizer, kind: Similarity
) -> None:
    torch, library = pytest.importorskip("torch"), pytest.importorskip("sentence_transformers.util")
    vectors = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32) * np.arange(1, 9)[:, None]
    named = {Similarity.COSINE: "pairwise_cos_sim", Similarity.DOT: "pairwise_dot_score"}
    theirs = getattr(library, named.get(kind, f"pairwise_{kind}_sim"))(
        torch.tensor(vectors[::2]), torch.tensor(vectors[1::2])
    )
    np.testing.assert_allclose(_similarities(vectors[::2], vectors[1::2], kind), theirs.numpy(), rtol=1e-5)
    head = make_head(task_of("feature-extraction"), Labels(()), AnswerSettings(similarity=kind))
    made = head.prepare(rows(*PAIRS), tokenizer, "a.csv")
    score = head.score([v[None] for v in vectors], made)
    assert score.value == pytest.approx(spearmanr([s for _, s in PAIRS], theirs.numpy())[0])
