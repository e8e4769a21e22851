"""Embeddings: pairs with a score, the teacher's vectors where there is none, and what vectors are compared with."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError
from pocketbert.core.heads import AnswerSettings, make_head
from pocketbert.core.heads.feature_extraction import are_scored_pairs, find_rankings, similarities
from pocketbert.core.predict.answers import Embedding
from pocketbert.core.predict.examples import Example, TeacherAnswer
from pocketbert.core.predict.sentence_settings import Similarity
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import task_of
from support.head_rows import check_not_finite_spoils, make_rows, score_outputs

TASK = task_of("feature-extraction")
HEAD = make_head(TASK, Labels(()))
GOLD = [0.5, 5.0, 3.0, 1.0]
PAIRS = [((f"good {'day ' * i}", "bad"), s) for i, s in enumerate(GOLD)]


def vectors_at(*degrees: float) -> list[np.ndarray]:
    """Two vectors of different lengths with each angle between them."""
    turned = [np.array([[math.cos(math.radians(d)), math.sin(math.radians(d))]], np.float32) * 0.2 for d in degrees]
    return [v for second in turned for v in (np.array([[3.0, 0.0]], np.float32), second)]


def test_a_scored_pair_is_two_rows_and_other_rows_are_read_at_their_first_text(tokenizer: TextTokenizer) -> None:
    made = HEAD.prepare(make_rows(*PAIRS), tokenizer, "a.csv")
    assert made.owner.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [len(e) for e in made.encoded] == [3, 3, 4, 3, 5, 3, 6, 3]
    assert np.asarray(made.truth).tolist() == GOLD
    assert not any(e.type_ids.any() for e in made.encoded), "each text is read by itself"
    made = HEAD.prepare(make_rows(("good", None), (("bad", "day"), None)), tokenizer, "a.csv")
    assert [len(e) for e in made.encoded] == [3, 3]
    assert len(made.truth) == 0
    assert not are_scored_pairs([])
    assert not are_scored_pairs(make_rows(PAIRS[0], (("a", "b"), None)))
    mixed = make_rows(*PAIRS, (("good", "day"), None))
    with pytest.raises(InputError, match="1 of 5 pairs have no score, the first in row 5"):
        HEAD.prepare(mixed, tokenizer, "a.csv")
    assert len(HEAD.prepare(mixed, tokenizer, "a.csv", labelled=False).truth) == 0, "training needs none"


@pytest.mark.parametrize("kind", [Similarity.COSINE, Similarity.DOT, Similarity.EUCLIDEAN])
def test_cut_vectors_are_scored_too(tokenizer: TextTokenizer, kind: Similarity) -> None:
    head = make_head(TASK, Labels(()), AnswerSettings(dimensions=[3, 2, 3], similarity=kind))
    vectors = [*np.random.default_rng(0).normal(size=(8, 1, 5)).astype(np.float32)]
    scored = head.prepare(make_rows(*PAIRS), tokenizer, "a.csv")
    plain = make_head(TASK, Labels(()), AnswerSettings(similarity=kind))
    found = head.score(vectors, scored)
    assert found.others.keys() == {"pearson", "spearman@2", "spearman@3"}
    for n in (2, 3):
        cut = [Embedding(v[0]).cut(n).vector[None] for v in vectors]
        assert found.others[f"spearman@{n}"] == pytest.approx(plain.score(cut, scored).value)
    theirs = np.random.default_rng(1).normal(size=(8, 5)).astype(np.float32)
    taught = head.score(vectors, replace(scored, truth=theirs))
    wanted = plain.score([v[:, :2] for v in vectors], replace(scored, truth=theirs[:, :2])).value
    assert taught.others["mean_cosine@2"] == pytest.approx(wanted)


@pytest.mark.parametrize("length", [0, -3, 9])
def test_a_vector_has_no_first_numbers_beyond_its_own(length: int) -> None:
    with pytest.raises(ValueError, match=f"a vector of 8 numbers has no first {length}; allowed: 1 to 8"):
        Embedding(np.ones(8, np.float32)).cut(length)


def test_answers_are_the_vectors(folder: Path) -> None:
    rows = make_rows(("good", None), ("bad " * 9, None))
    made = HEAD.prepare(rows, TextTokenizer(folder, 6), "texts", labelled=False)
    found = HEAD.answers([np.array([[1.0, 2.0]], np.float32), np.array([[3.0, 4.0]], np.float32)], made)
    assert [(a.vector.tolist(), a.truncated) for a in found] == [([1.0, 2.0], False), ([3.0, 4.0], True)]


def test_the_teachers_vectors_decide_where_there_are_no_scores(tokenizer: TextTokenizer) -> None:
    made = HEAD.prepare(make_rows(("good", None), ("bad", None), ("day", None)), tokenizer, "a.csv")
    theirs = np.array([[2.0, 0.0], [0.0, 0.5], [1.0, 1.0]], np.float32)
    made = replace(made, truth=theirs)
    score = score_outputs(HEAD, made, [v[None] * 7 for v in theirs])
    assert (score.metric, score.finite, score.rows) == ("mean_cosine", True, 3)
    assert score.value == pytest.approx(1.0)
    # the mean direction is the diagonal: cosines 1/sqrt(2), 1/sqrt(2) and 1
    assert score.chance == pytest.approx((math.sqrt(2) + 1) / 3)
    assert score_outputs(HEAD, made, [-v[None] for v in theirs]).value == pytest.approx(-1.0)
    assert score_outputs(HEAD, made, [np.ones((1, 2), np.float32)] * 3).value == pytest.approx(score.chance)
    assert score_outputs(HEAD, made, [np.zeros((1, 2), np.float32)] * 3).value == 0.0, "vectors of nothing"


@pytest.mark.parametrize("theirs", [False, True])
def test_a_number_that_is_not_finite_spoils_the_score(tokenizer: TextTokenizer, theirs: bool) -> None:
    made = HEAD.prepare(make_rows(*PAIRS), tokenizer, "a.csv")
    made = replace(made, truth=np.ones((8, 2), np.float32)) if theirs else made
    check_not_finite_spoils(HEAD, made, vectors_at(80, 10, 50, 70), [(3, 0, 0), (0, 0, 1)])


@pytest.mark.parametrize("kind", list(Similarity))
def test_pairs_are_compared_as_sentence_transformers_does(tokenizer: TextTokenizer, kind: Similarity) -> None:
    torch, library = pytest.importorskip("torch"), pytest.importorskip("sentence_transformers.util")
    vectors = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32) * np.arange(1, 9)[:, None]
    named = {Similarity.COSINE: "pairwise_cos_sim", Similarity.DOT: "pairwise_dot_score"}
    compare = getattr(library, named.get(kind, f"pairwise_{kind}_sim"))
    theirs = compare(torch.tensor(vectors[::2]), torch.tensor(vectors[1::2])).numpy()
    head = make_head(TASK, Labels(()), AnswerSettings(similarity=kind))
    score = head.score([v[None] for v in vectors], head.prepare(make_rows(*PAIRS), tokenizer, "a.csv"))
    assert score.value == pytest.approx(spearmanr(GOLD, theirs)[0])
    assert score.others["pearson"] == pytest.approx(pearsonr(GOLD, theirs)[0], rel=1e-5)
    assert (score.metric, score.rows, score.finite) == ("spearman", 4, True)
    assert score.chance == 1.0, "three standard errors of four rows are more than any correlation"


# queries, passages, scores, and of each query the numbers of the pairs that belong together and of the others
RANKINGS = [
    ("abab", "wxyz", (None,) * 4, [([0, 2], []), ([1, 3], [])]),
    ("aAb ", "wxyz", (1.0, 0.0, 0.0, 1.0), [([0], [1]), ([3], [])]),
    ("aabb", "wxyz", (0.0, 0.0, 1.0, 1.0), [([2, 3], [])]),
    ("aabb", "wxyz", (9.5, -2.0, 3.0, 3.0), [([0], [1])]),
    ("aabc", "wxyz", (9.5, 9.0, 3.0, 4.0), [([0], [1])]),
    ("aabcd", "vwxyz", (9.5, 9.0, 3.0, 4.0, 1.0), []),
    ("abcd", "wxyz", (9.5, 9.0, 3.0, 4.0), []),
]


@pytest.mark.parametrize(("queries", "passages", "scores", "wanted"), RANKINGS)
def test_which_pairs_of_a_query_belong_together(
    queries: str, passages: str, scores: tuple[float | None, ...], wanted: list[tuple[list[int], list[int]]]
) -> None:
    rows = make_rows(*[((q, p), s) for q, p, s in zip(queries, passages, scores, strict=True)])
    assert [([*r.positives], [*r.others]) for r in find_rankings(rows)] == wanted
    assert find_rankings([*rows, Example("text", None, None, 9)]) == []


def test_scores_of_different_records_are_not_compared() -> None:
    scores = ((1, 3.0), (1, 0.0), (2, 5.0), (2, 0.0))
    rows = [Example("query", str(i), score, row) for i, (row, score) in enumerate(scores)]
    assert [([*r.positives], [*r.others]) for r in find_rankings(rows)] == [([0], [1]), ([2], [3])]


SEARCHED = [  # query, passage, whether they belong together; passages and queries occur several times
    *[(f"query {i % 15}", f"passage {i}", True) for i in range(20)],
    *[(f"query {i % 15}", f"passage {i % 7 + 10}", False) for i in range(12)],
    ("query 3", "query 4", True),
    ("query 4", "Passage 3 ", True),
]


@pytest.mark.parametrize("kind", list(Similarity))
@pytest.mark.parametrize("scored", [True, False])
def test_the_passages_of_a_query_are_searched_among_all(
    tokenizer: TextTokenizer, kind: Similarity, scored: bool
) -> None:
    rows = [row for row in SEARCHED if scored or row[2]]
    examples = make_rows(*[((q, p), float(is_own) if scored else None) for q, p, is_own in rows])
    head = make_head(TASK, Labels(()), AnswerSettings(similarity=kind))
    made = head.prepare(examples, tokenizer, "a.csv")
    assert len(made.encoded) == 2 * len(rows)
    random = np.random.default_rng(5)
    texts = dict.fromkeys(text.strip().lower() for q, p, _ in rows for text in (q, p))
    vectors = {text: random.normal(size=6).astype(np.float32) for text in texts}
    for q, p, is_own in rows:  # some are found
        if is_own and random.random() < 0.7:
            vectors[q] = vectors[q] + 2 * vectors[p.strip().lower()]
    found = score_outputs(head, made, [vectors[t.strip().lower()][None] for q, p, _ in rows for t in (q, p)])
    passages = [*dict.fromkeys(p.strip().lower() for _, p, _ in rows)]
    recalls: dict[int, list[float]] = {1: [], 10: []}
    reciprocal = []
    for query in dict.fromkeys(q for q, _, is_own in rows if is_own):
        own = {p.strip().lower() for q, p, is_own in rows if q == query and is_own}
        corpus = [p for p in passages if p != query]
        values = {p: float(similarities(vectors[query][None], vectors[p][None], kind)[0]) for p in corpus}
        ranked = sorted(corpus, key=lambda p: -values[p])
        for k, shares in recalls.items():
            shares.append(len(own & {*ranked[:k]}) / len(own))
        first = next(n for n, p in enumerate(ranked, 1) if p in own)
        reciprocal.append(1 / first if first <= 10 else 0)
    measured = {found.metric: found.value, **found.others}
    assert found.metric == ("spearman" if scored else "mrr@10")
    assert measured["mrr@10"] == pytest.approx(np.mean(reciprocal))
    assert {k: measured[f"recall@{k}"] for k in recalls} == {k: pytest.approx(np.mean(v)) for k, v in recalls.items()}
    assert 0 < measured["recall@1"] < measured["recall@10"] <= 1


def test_equal_vectors_find_nothing_and_random_ones_are_at_chance(tokenizer: TextTokenizer) -> None:
    made = HEAD.prepare(make_rows(*[((f"query {i}", f"passage {i}"), None) for i in range(400)]), tokenizer, "a.csv")
    equal = score_outputs(HEAD, made, [np.ones((1, 4), np.float32)] * 800)
    assert (equal.value, equal.others["recall@10"], equal.finite, equal.rows) == (0, 0, True, 400)
    random = [*np.random.default_rng(2).normal(size=(800, 1, 8)).astype(np.float32)]
    assert 0 < score_outputs(HEAD, made, random).value < equal.chance < 0.05
    check_not_finite_spoils(HEAD, made, random, [(3, 0, 0), (0, 0, 1)])
    head = make_head(TASK, Labels(()), AnswerSettings(dimensions=[2]))
    cut = score_outputs(head, made, random).others["mrr@10@2"]
    assert cut == pytest.approx(score_outputs(HEAD, made, [v[:, :2] for v in random]).value)


def test_a_teachers_vector_for_the_first_text_leaves_the_second_out(tokenizer: TextTokenizer) -> None:
    def encoded(vectors: int) -> int:
        answer = TeacherAnswer((), np.ones((vectors, 4), np.float32), frozenset())
        rows = [replace(row, answer=answer) for row in make_rows((("good", "day"), None))]
        return len(HEAD.prepare(rows, tokenizer, "a.csv", labelled=False).encoded)

    assert (encoded(1), encoded(2)) == (1, 2)
