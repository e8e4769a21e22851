"""Head of token-classification: labelled pieces of a text with their character positions.

Words are what the tokenizer's pre-tokenizer splits off, divided at punctuation if it splits at blanks alone (`find_words`); the first token of a word decides its tag.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pocketbert.core.data.labels import Labels
from pocketbert.core.heads.head import IGNORED_LABEL, Prepared, all_finite, make_score, prepare_texts
from pocketbert.core.predict.answers import Answer, FoundSpan, Spans
from pocketbert.core.predict.examples import Example
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.predictor import Matrix
from pocketbert.core.predict.scores import apply_score_function
from pocketbert.core.predict.spans import (
    Span,
    assign_tags,
    count_spans,
    have_iob_prefixes,
    label_of_tag,
    spans_from_tags,
    split_spans_by_word,
)
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import Task

if TYPE_CHECKING:
    from pocketbert.core.predict.scores import Score


class TokenClassificationHead:
    """Head of token-classification; the output matrix of a text is its logits [tokens, tags].

    The training targets cover every word as the tokenizer splits the text, not as the data does, so that typed text is
    read like text of a data set. If no tag has a prefix such as ``B-`` (parts of speech), each word whose tag is not
    ``O`` is a span, in answers and in gold labels.

    Args:
        task: The task's row in the table of tasks.
        labels: Tags in order of their ids.
    """

    def __init__(self, task: Task, labels: Labels) -> None:
        self.task, self.labels = task, labels
        self.single = not have_iob_prefixes(labels.names)

    def prepare(self, examples: list[Example], tokenizer: TextTokenizer, title: str, labelled: bool = True) -> Prepared:
        """Tokenize rows; the targets ``labels`` hold each word's tag at its first token, `IGNORED_LABEL` elsewhere.

        Targets are N int64 arrays [tokens]. Without labels they have 0 at the first token of each word, to show where
        the words are.
        """
        rows = prepare_texts(examples, tokenizer, places=True)
        if not labelled:
            marks = []
            for encoded in rows.encoded:
                mark = np.full(len(encoded), IGNORED_LABEL, np.int64)
                mark[find_words(encoded)[0]] = 0
                marks.append(mark)
            return replace(rows, targets={"labels": marks})
        spans_by_row, targets = self.labels.spans(examples, title), []
        for row, (encoded, spans) in enumerate(zip(rows.encoded, spans_by_row, strict=True)):
            first, places = find_words(encoded)
            target = np.full(len(encoded), IGNORED_LABEL, np.int64)
            target[first] = assign_tags(spans, places, self.labels.names, IGNORED_LABEL)
            targets.append(target)
            if self.single:
                spans_by_row[row] = split_spans_by_word(spans, places, examples[row].text)
        return replace(rows, targets={"labels": targets}, truth=spans_by_row)

    def reduce(self, row: int, matrix: Matrix, prepared: Prepared) -> Matrix:
        """Reduce logits [tokens, tags] to the best tag's id for each token, [tokens, 1]; NaN if not finite."""
        best: Matrix = matrix.argmax(-1).astype(np.float32)
        best[~np.isfinite(matrix).all(-1)] = np.nan
        return best[:, None]

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """Compute F1, precision and recall of the predicted spans; a span is right if both ends and the label are."""
        finite = all_finite(reduced)
        predicted = []
        for encoded, matrix in zip(prepared.encoded, reduced, strict=True):
            first, places = find_words(encoded)
            best = np.nan_to_num(matrix[:, 0]).astype(np.int64)
            predicted.append(spans_from_tags([self.labels.names[best[i]] for i in first], places, self.single))
        counts = count_spans(list(prepared.truth), predicted)
        others = {"precision": counts.precision, "recall": counts.recall}
        chance = self._chance(prepared)
        return make_score(self.task.metric, counts.f1, others, len(prepared.examples), chance, finite)

    def _chance(self, prepared: Prepared) -> float:
        """Return the F1 of labelling every word with the most frequent label, which a useful model must exceed."""
        frequencies = Counter(s.label for spans in prepared.truth for s in spans)
        if not frequencies:
            return 0.0
        label = frequencies.most_common(1)[0][0]
        predicted = [[Span(a, b, label) for a, b in find_words(e)[1]] for e in prepared.encoded]
        return count_spans(list(prepared.truth), predicted).f1

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """Return the labelled spans of each text, scored by the mean probability of their words' tags."""
        answers: list[Answer] = []
        for example, encoded, matrix in zip(prepared.examples, prepared.encoded, outputs, strict=True):
            first, places = find_words(encoded)
            scores = apply_score_function(matrix[first], self.task.score)
            tags = [self.labels.names[i] for i in scores.argmax(-1)]
            words = list(zip(scores.max(-1), places, tags, strict=True))
            spans = []
            for span in spans_from_tags(tags, places, self.single):
                of_span = [
                    score
                    for score, (start, _), tag in words
                    if span.start <= start < span.end and label_of_tag(tag) == span.label
                ]
                text = example.text[span.start : span.end]
                spans.append(FoundSpan(span.start, span.end, span.label, text, float(np.mean(of_span))))
            answers.append(Spans(tuple(spans), encoded.truncated))
        return answers


def find_words(encoded: Encoded) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the index of each word's first token, and the (start, end) characters of each word.

    What some tokenizers split off of several blanks is no word.

    Raises:
        ValueError: If the row was encoded without `places`.
    """
    if encoded.places is None:
        raise ValueError("encode with places=True")
    first: list[int] = []
    places: list[tuple[int, int]] = []
    last = -1
    tokens = zip(encoded.places.words.tolist(), encoded.places.offsets.tolist(), strict=True)
    for i, (word, (start, end)) in enumerate(tokens):
        if word < 0:
            last = -1
        elif word == last:
            places[-1] = (places[-1][0], end)
        else:
            first.append(i)
            places.append((start, end))
            last = word
    words = [(i, place) for i, place in zip(first, places, strict=True) if place[0] < place[1]]
    return [i for i, _ in words], [place for _, place in words]
