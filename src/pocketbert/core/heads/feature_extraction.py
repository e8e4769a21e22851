"""Head of feature-extraction: one vector per text.

Rows that are pairs with a score each are scored by how well the similarities of their vectors rank them; other rows by
the mean cosine to the teacher's vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.examples import Example
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.heads.head import Prepared, TextHead, all_finite, make_score, prepare_texts
from pocketbert.core.metrics import MEAN_COSINE, PEARSON, SPEARMAN, Metric, pearson, spearman
from pocketbert.core.predict.answers import Answer, Embedding
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
        dimensions: Numbers to which a vector may be cut; vectors of each length are scored too.
    """

    def __init__(self, task: Task, similarity: Similarity = Similarity.COSINE, dimensions: Sequence[int] = ()) -> None:
        self.task, self.similarity, self.dimensions = task, similarity, tuple(dimensions)

    def prepare(self, examples: list[Example], tokenizer: TextTokenizer, title: str, labelled: bool = True) -> Prepared:
        """Tokenize each example as one row, or, if all are pairs with a score, as two rows whose label is the score.

        In examples without scores only the first text of a pair is read. Their labels stay empty; the caller that scores them puts
        the teacher's vectors there.

        Raises:
            InputError: If labels are read (`labelled`), and some pairs have a score and others have none.
        """
        without = [e.row for e in examples if e.pair is not None and e.label is None]
        if labelled and without and any(e.pair is not None and e.label is not None for e in examples):
            what = f"{len(without):,} of {len(examples):,} pairs have no score, the first in row {without[0]}."
            raise InputError(Problem(title, what, "Give every pair a score, or none."))
        if not are_scored_pairs(examples):
            return prepare_texts([replace(e, pair=None) for e in examples], tokenizer)
        texts = [t for e in examples for t in split_pair(e.input)]
        truth = np.array([e.label for e in examples], np.float64) if labelled else ()
        return Prepared(examples, tokenizer.encode(texts), np.repeat(np.arange(len(examples)), 2), {}, truth)

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """Compute Spearman's correlation with the gold scores; without scores, the mean cosine to the teacher.

        If vectors may be cut, `Score.others` has the same score of the first 64 numbers, divided by their length, as
        ``spearman@64``.
        """
        vectors, truth = join_texts(reduced), np.asarray(prepared.truth, np.float64)
        finite = all_finite(reduced)
        metric, value = self._compare(vectors, truth)
        others = {f"{metric.name}@{n}": self._compare(_normalize(vectors[:, :n]), truth)[1] for n in self.dimensions}
        if truth.ndim == 1:
            values = similarities(vectors[::2], vectors[1::2], self.similarity)
            others[PEARSON.name] = pearson(truth, values)
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

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """Return an `Embedding` with the vector of each text."""
        return [Embedding(m[0], e.truncated) for m, e in zip(outputs, prepared.encoded, strict=True)]


def are_scored_pairs(examples: Sequence[Example]) -> bool:
    """Return whether all examples are pairs of texts with a score."""
    return bool(examples) and all(e.pair is not None and e.label is not None for e in examples)


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
