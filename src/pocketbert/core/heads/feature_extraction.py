"""Head of feature-extraction: one vector per text.

Rows that are pairs with a score each are scored by how well the similarities of their vectors rank them, pairs without a score by
how well the first text finds the second one, other rows by the mean cosine to the teacher's vectors. `find_rankings` groups pairs by
their first text, the query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.heads.head import Prepared, TextHead, all_finite, make_score, prepare_texts
from pocketbert.core.metrics import (
    MEAN_COSINE,
    MRR_10,
    PEARSON,
    SPEARMAN,
    Metric,
    pearson,
    retrieval_scores,
    spearman,
)
from pocketbert.core.predict.answers import Answer, Embedding
from pocketbert.core.predict.examples import Example, text_key
from pocketbert.core.predict.inputs import split_pair
from pocketbert.core.predict.predictor import Matrix, join_texts
from pocketbert.core.predict.sentence_settings import Similarity
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import Task

if TYPE_CHECKING:
    from pocketbert.core.predict.scores import Score


class FeatureExtractionHead(TextHead):
    """Head of embedding models (feature-extraction); the output matrix of a text is its vector [1, H].

    Args:
        task: The task's row in the table of tasks.
        similarity: How the vectors of a scored pair are compared.
        dimensions: Lengths to which a vector may be cut to its first numbers; vectors of each length are scored too.
    """

    def __init__(self, task: Task, similarity: Similarity = Similarity.COSINE, dimensions: Sequence[int] = ()) -> None:
        self.task, self.similarity, self.dimensions = task, similarity, tuple(dimensions)

    def prepare(self, examples: list[Example], tokenizer: TextTokenizer, title: str, labelled: bool = True) -> Prepared:
        """Tokenize each example as one row, or, if all are pairs, as two rows whose label is the score of the pair.

        The label of pairs without scores is 1: their texts belong together. The labels of single texts stay empty; the caller that
        scores them puts the teacher's vectors there. If only some examples are pairs, or pairs without scores have one
        vector as a teacher's answer, the first text of each example is read.

        Raises:
            InputError: If labels are read (`labelled`), and some pairs have a score and others have none.
        """
        without = [e.row for e in examples if e.pair is not None and e.label is None]
        if labelled and without and any(e.pair is not None and e.label is not None for e in examples):
            what = f"{len(without):,} of {len(examples):,} pairs have no score, the first in row {without[0]}."
            raise InputError(Problem(title, what, "Give every pair a score, or none."))
        if not are_scored_pairs(examples) and not _are_pairs(examples):
            return prepare_texts([replace(e, pair=None) for e in examples], tokenizer)
        texts = [t for e in examples for t in split_pair(e.input)]
        scores = [1.0 if e.label is None else e.label for e in examples]
        truth = np.array(scores, np.float64) if labelled else ()
        return Prepared(examples, tokenizer.encode(texts), np.repeat(np.arange(len(examples)), 2), {}, truth)

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """Compute Spearman's correlation with the gold scores; without scores MRR@10 of pairs, or the mean cosine to the teacher.

        `Score.others` has Pearson's correlation for gold scores. For each of `dimensions` it has the same score of vectors that are
        cut and brought to length 1, such as ``spearman@64``. If the pairs are rankings (`find_rankings`), it has recall@1, recall@10
        and MRR@10 of finding each query's passages among the second texts of all pairs.
        """
        vectors, truth = join_texts(reduced), np.asarray(prepared.truth, np.float64)
        finite = all_finite(reduced)
        is_search = truth.ndim == 1 and not are_scored_pairs(prepared.examples)
        rankings = find_rankings(prepared.examples) if truth.ndim == 1 and finite else []
        if is_search:
            return self._score_search(vectors, prepared.examples, rankings)
        metric, value = self._compare(vectors, truth)
        others = {f"{metric.name}@{n}": self._compare(_normalize(vectors[:, :n]), truth)[1] for n in self.dimensions}
        if truth.ndim == 1:
            values = similarities(vectors[::2], vectors[1::2], self.similarity)
            others[PEARSON.name] = pearson(truth, values)
            if rankings:
                others |= retrieval_scores(self._search(vectors, prepared.examples, rankings)[0])
            chance = min(1.0, 3 / np.sqrt(max(1, len(truth))))
        else:
            teacher = _normalize(truth)
            # a model that looks at no text can always answer the mean direction of the teacher's vectors
            chance = float((teacher @ _normalize(teacher.mean(0, keepdims=True))[0]).mean())
        return make_score(metric, value, others if finite else {}, len(truth), chance, finite)

    def _compare(self, vectors: NDArray[np.floating], truth: NDArray[np.float64]) -> tuple[Metric, float]:
        """Return the metric and the score of vectors, cut or whole, against gold scores [pairs] or the teacher's vectors."""
        if truth.ndim == 1:
            return SPEARMAN, spearman(truth, similarities(vectors[::2], vectors[1::2], self.similarity))
        teacher = truth[:, : vectors.shape[1]]
        return MEAN_COSINE, float((_normalize(vectors) * _normalize(teacher)).sum(-1).mean())

    def _score_search(
        self, vectors: NDArray[np.floating], examples: Sequence[Example], rankings: Sequence[Ranking]
    ) -> Score:
        """Score pairs without scores by MRR@10; NaN if there are no rankings, since the vectors are not finite."""
        if not rankings:
            return make_score(MRR_10, float("nan"), {}, len(examples), 1.0, False)
        positions, passages = self._search(vectors, examples, rankings)
        others = retrieval_scores(positions)
        for n in self.dimensions:
            cut, _ = self._search(_normalize(vectors[:, :n]), examples, rankings)
            others[f"{MRR_10.name}@{n}"] = retrieval_scores(cut)[MRR_10.name]
        gains = 1 / np.arange(1, min(10, passages) + 1)  # of a passage at any place with the same probability
        mean = float(gains.sum() / passages)
        spread = float((gains**2).sum() / passages - mean**2)
        chance = min(1.0, mean + 3 * float(np.sqrt(max(0.0, spread) / len(positions))))
        return make_score(MRR_10, others.pop(MRR_10.name), others, len(examples), chance, True)

    def _search(
        self, vectors: NDArray[np.floating], examples: Sequence[Example], rankings: Sequence[Ranking]
    ) -> tuple[list[list[int]], int]:
        """Search each query's passages among the second texts of all pairs.

        Equal texts are one passage or query, and a query's own text is not among its passages. A passage that is as similar to the query as
        a relevant one stands before it.

        Returns:
            For each query the positions of its relevant passages, from 1, and the number of passages.
        """
        keys = [(text_key(e.text), text_key(e.pair or "")) for e in examples]
        passages = {passage: i for i, (_, passage) in enumerate(keys)}
        place = {passage: n for n, passage in enumerate(passages)}
        relevant: dict[str, dict[int, None]] = {}
        rows: dict[str, int] = {}
        for ranking in rankings:
            for i in ranking.positives:
                relevant.setdefault(keys[i][0], {})[place[keys[i][1]]] = None
                rows[keys[i][0]] = 2 * i
        corpus = np.asarray(vectors[[2 * i + 1 for i in passages.values()]], np.float64)
        if self.similarity is Similarity.COSINE:
            corpus = _normalize(corpus)
        positions = []
        for query, row in rows.items():
            vector = np.asarray(vectors[row], np.float64)
            if self.similarity in (Similarity.COSINE, Similarity.DOT):
                found = corpus @ vector
            else:
                found = similarities(vector[None], corpus, self.similarity)
            own = np.array([*relevant[query]])
            others = np.ones(len(corpus), bool)
            others[own] = False
            if query in place:
                others[place[query]] = False
            before = [int((found[others] >= value).sum()) for value in sorted(found[own], reverse=True)]
            positions.append([n + k for k, n in enumerate(before, 1)])
        return positions, len(corpus)

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """Return an `Embedding` with the vector of each text."""
        return [Embedding(m[0], e.truncated) for m, e in zip(outputs, prepared.encoded, strict=True)]


def are_scored_pairs(examples: Sequence[Example]) -> bool:
    """Return whether all examples are pairs of texts with a score."""
    return bool(examples) and all(e.pair is not None and e.label is not None for e in examples)


def _are_pairs(examples: Sequence[Example]) -> bool:
    """Return whether all examples are pairs of texts, none with a teacher's answer that is one vector."""
    single = any(e.answer is not None and len(e.answer.values) == 1 for e in examples)
    return bool(examples) and not single and all(e.pair is not None for e in examples)


@dataclass(frozen=True)
class Ranking:
    """The pairs of one query, as indices of examples: those with the passages that it is to find, and the others."""

    positives: tuple[int, ...]
    others: tuple[int, ...] = ()


def find_rankings(examples: Sequence[Example]) -> list[Ranking]:
    """Group pairs by their first text, the query: the pairs whose texts belong together, and the others.

    All pairs without scores belong together. If all scores are 0 or 1, the pairs with 1 do. With other scores, the pairs with the
    highest score of their query do, if the query has different scores; the queries with such pairs must have at least half of all
    pairs. If rows of the file became several pairs (triplets), scores are compared only between pairs of one row.

    Returns:
        A ranking for each query with a pair that belongs together; empty if the examples are no pairs or no rankings.
    """
    pairs = bool(examples) and all(e.pair is not None for e in examples)
    scores = [1.0 if e.label is None else e.label for e in examples]
    if not pairs or not all(isinstance(score, int | float) for score in scores):
        return []
    values = np.array(scores, np.float64)
    is_mark = bool(np.isin(values, (0, 1)).all())
    is_record = any(a.row == b.row for a, b in pairwise(examples))
    groups: dict[tuple[int, str], list[int]] = {}
    for i, example in enumerate(examples):
        groups.setdefault((example.row if is_record else 0, text_key(example.text)), []).append(i)
    rankings = []
    for own in groups.values():
        best = max(values[own])
        if best == 1 if is_mark else best > min(values[own]):
            positives = tuple(i for i in own if values[i] == best)
            rankings.append(Ranking(positives, tuple(i for i in own if values[i] < best)))
    covered = sum(len(ranking.positives) + len(ranking.others) for ranking in rankings)
    return rankings if is_mark or covered * 2 >= len(examples) else []


def similarities(one: NDArray[np.floating], other: NDArray[np.floating], kind: Similarity) -> NDArray[np.float64]:
    """Compute the similarity of each pair of vectors [N, H], [N, H] as sentence-transformers does; return [N]."""
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    match kind:
        case Similarity.COSINE:
            return np.asarray((_normalize(a) * _normalize(b)).sum(-1))
        case Similarity.DOT:
            return np.asarray((a * b).sum(-1))
        case Similarity.EUCLIDEAN:
            return np.asarray(-np.linalg.norm(a - b, axis=-1))
        case Similarity.MANHATTAN:
            return np.asarray(-np.abs(a - b).sum(-1))


def _normalize(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    """Divide vectors [N, H] by their Euclidean length; zero vectors stay zero."""
    values = np.asarray(vectors, np.float64)
    length = np.linalg.norm(values, axis=-1, keepdims=True)
    return np.asarray(values / np.maximum(length, 1e-12))
