"""feature-extraction: one vector per text, scored on pairs with a similarity, or against the teacher's vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.examples import Example
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.heads.head import PerText, Prepared, all_finite, per_text
from pocketbert.core.metrics import MEAN_COSINE, PEARSON, SPEARMAN, pearson, spearman
from pocketbert.core.predict.answers import Answer, Embedding
from pocketbert.core.predict.inputs import split_pair
from pocketbert.core.predict.predictor import Matrix, whole
from pocketbert.core.predict.scores import Score
from pocketbert.core.predict.sentence_settings import Similarity
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import Task


class FeatureExtractionHead(PerText):
    """See `pocketbert.core.heads.head.Head`; matrices are [1, H].

    Args:
        task: Its row of the table.
        similarity: What the vectors of a scored pair are compared with.
    """

    def __init__(self, task: Task, similarity: Similarity = Similarity.COSINE) -> None:
        self.task, self.similarity = task, similarity

    def prepare(self, examples: list[Example], tokenizer: TextTokenizer, title: str, labelled: bool = True) -> Prepared:
        """The two texts of a scored pair are two rows; others are one. Truth: the scores.

        Without scores the truth is empty, and whoever scores puts the teacher's vectors there.

        Raises:
            InputError: If some pairs have a score and some have none: neither way of scoring would be of all rows.
        """
        without = [e.row for e in examples if e.pair is not None and e.label is None]
        if labelled and without and any(e.pair is not None and e.label is not None for e in examples):
            what = f"{len(without):,} of {len(examples):,} pairs have no score, the first in row {without[0]}."
            raise InputError(Problem(title, what, "Give every pair a score, or none."))
        if not scored(examples):
            return per_text([replace(e, pair=None) for e in examples], tokenizer)
        texts = [t for e in examples for t in split_pair(e.input)]
        truth = np.array([e.label for e in examples], np.float64) if labelled else ()
        return Prepared(examples, tokenizer.encode(texts), np.repeat(np.arange(len(examples)), 2), {}, truth)

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """Spearman of the similarities of pairs with their scores; else the mean cosine to the teacher's vectors."""
        vectors, truth = whole(reduced), np.asarray(prepared.truth, np.float64)
        finite = all_finite(reduced)
        if truth.ndim == 1:
            alike = similarities(vectors[::2], vectors[1::2], self.similarity)
            value, others = spearman(truth, alike), {PEARSON.name: pearson(truth, alike)}
            metric, chance = SPEARMAN, min(1.0, 3 / np.sqrt(max(1, len(truth))))
        else:
            theirs = unit(truth)
            value, others, metric = float((unit(vectors) * theirs).sum(-1).mean()), {}, MEAN_COSINE
            # always answering the teachers' mean direction looks at no text
            chance = float((theirs @ unit(theirs.mean(0, keepdims=True))[0]).mean())
        return Score.of(metric, value, others if finite else {}, len(truth), chance, finite)

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """The vector of each text."""
        return [Embedding(m[0], e.truncated) for m, e in zip(outputs, prepared.encoded, strict=True)]


def scored(examples: Sequence[Example]) -> bool:
    """Whether rows are pairs with a score each."""
    return bool(examples) and all(e.pair is not None and e.label is not None for e in examples)


def similarities(one: NDArray[np.floating], other: NDArray[np.floating], kind: Similarity) -> NDArray[np.float64]:
    """Compare vectors pair by pair, as sentence-transformers does; the larger, the more alike.

    Args:
        one: [N, H].
        other: [N, H].
        kind: How.

    Returns:
        [N].
    """
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    match kind:
        case Similarity.COSINE:
            return np.asarray((unit(a) * unit(b)).sum(-1))
        case Similarity.DOT:
            return np.asarray((a * b).sum(-1))
        case Similarity.EUCLIDEAN:
            return np.asarray(-np.linalg.norm(a - b, axis=-1))
        case Similarity.MANHATTAN:
            return np.asarray(-np.abs(a - b).sum(-1))


def unit(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    """Vectors of length 1, [N, H]; zero vectors stay."""
    values = np.asarray(vectors, np.float64)
    length = np.linalg.norm(values, axis=-1, keepdims=True)
    return np.asarray(values / np.maximum(length, 1e-12))
