"""token-classification: named pieces of a text, with their character positions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.cells import (
    Span,
    assign_tags,
    count_spans,
    has_prefixes,
    label_of_tag,
    spans_of,
    split_spans_by_word,
)
from pocketbert.core.data.examples import Example
from pocketbert.core.data.labels import Labels
from pocketbert.core.heads.head import IGNORED, Prepared, all_finite, per_text
from pocketbert.core.predict.answers import Answer, FoundSpan, Spans
from pocketbert.core.predict.predictor import Matrix
from pocketbert.core.predict.scores import Score, probabilities
from pocketbert.core.predict.tokenization import Encoded, TextTokenizer
from pocketbert.core.tasks import Task

Place = tuple[int, int]


class TokenClassificationHead:
    """See `pocketbert.core.heads.head.Head`; matrices are [tokens, tags].

    A word is what the tokenizer splits off; its first token decides its tag, and every word is trained on, so that
    text from a keyboard is read as text from a data set. Where no tag has a prefix such as ``B-`` (parts of speech), each word
    whose tag is not ``O`` is a span, in answers and in gold.

    Args:
        task: Its row of the table.
        labels: Tags in order of their ids.
    """

    def __init__(self, task: Task, labels: Labels) -> None:
        self.task, self.labels = task, labels
        self.single = not has_prefixes(labels.names)

    def prepare(self, examples: list[Example], tokenizer: TextTokenizer, title: str, labelled: bool = True) -> Prepared:
        """Targets ``labels``: the tag of each word at its first token, `IGNORED` elsewhere, N int64 arrays [tokens]."""
        rows = per_text(examples, tokenizer, places=True)
        if not labelled:
            return rows
        spans = self.labels.spans(examples, title)
        targets = [self._targets(e, s) for e, s in zip(rows.encoded, spans, strict=True)]
        if self.single:
            read = zip(spans, rows.encoded, examples, strict=True)
            spans = [split_spans_by_word(own, words_of(e)[1], example.text) for own, e, example in read]
        return replace(rows, targets={"labels": targets}, truth=spans)

    def _targets(self, encoded: Encoded, spans: Sequence[Span]) -> NDArray[np.int64]:
        first, places = words_of(encoded)
        out = np.full(len(encoded), IGNORED, np.int64)
        out[first] = assign_tags(spans, places, self.labels.names, IGNORED)
        return out

    def reduce(self, row: int, matrix: Matrix, prepared: Prepared) -> Matrix:
        """Best tag of each token, [tokens, 1]; NaN where a token's logits are not finite."""
        best: Matrix = matrix.argmax(-1).astype(np.float32)
        best[~np.isfinite(matrix).all(-1)] = np.nan
        return best[:, None]

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """F1 of spans with both ends and label right, precision and recall."""
        finite = all_finite(reduced)
        found = [
            self._spans(e, np.nan_to_num(m[:, 0]).astype(np.int64))
            for e, m in zip(prepared.encoded, reduced, strict=True)
        ]
        counts = count_spans(list(prepared.truth), found)
        return Score.of(
            self.task.metric,
            counts.f1,
            {"precision": counts.precision, "recall": counts.recall},
            len(prepared.examples),
            self._chance(prepared),
            finite,
        )

    def _chance(self, prepared: Prepared) -> float:
        """F1 of the best answer that looks at nothing: every word a span of the commonest label."""
        kinds = Counter(s.label for spans in prepared.truth for s in spans)
        if not kinds:
            return 0.0
        best = kinds.most_common(1)[0][0]
        answer = [[Span(a, b, best) for a, b in words_of(e)[1]] for e in prepared.encoded]
        return count_spans(list(prepared.truth), answer).f1

    def _spans(self, encoded: Encoded, best: NDArray[np.int64]) -> list[Span]:
        first, places = words_of(encoded)
        return spans_of([self.labels.names[best[i]] for i in first], places, self.single)

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """The spans of each text."""
        out: list[Answer] = []
        for example, encoded, matrix in zip(prepared.examples, prepared.encoded, outputs, strict=True):
            first, places = words_of(encoded)
            scores = probabilities(matrix[first], self.task.score)
            tags = [self.labels.names[i] for i in scores.argmax(-1)]
            sure = scores.max(-1)
            found = [
                FoundSpan(
                    s.start,
                    s.end,
                    s.label,
                    example.text[s.start : s.end],
                    float(
                        np.mean(
                            [
                                p
                                for p, w, t in zip(sure, places, tags, strict=True)
                                if s.start <= w[0] < s.end and label_of_tag(t) == s.label
                            ]
                        )
                    ),
                )
                for s in spans_of(tags, places, self.single)
            ]
            out.append(Spans(tuple(found), encoded.truncated))
        return out


def words_of(encoded: Encoded) -> tuple[list[int], list[Place]]:
    """First token of each word of a single text, and the characters that the word covers.

    Raises:
        ValueError: If the row was encoded without places.
    """
    if encoded.places is None:
        raise ValueError("encode with places=True")
    first: list[int] = []
    places: list[Place] = []
    last = -1
    for i, (word, (start, end)) in enumerate(
        zip(encoded.places.words.tolist(), encoded.places.offsets.tolist(), strict=True)
    ):
        if word < 0:
            last = -1
        elif word == last:
            places[-1] = (places[-1][0], end)
        else:
            first.append(i)
            places.append((start, end))
            last = word
    return first, places
