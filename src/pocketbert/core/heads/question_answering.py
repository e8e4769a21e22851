"""Head of question-answering: a piece of a context that answers a question, scored as in SQuAD.

Long contexts are read in overlapping windows. `reduce` finds the best answer of each window, and `score` and `answers`
take the best one over all windows of a context.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.heads.head import Prepared, all_finite, make_score
from pocketbert.core.metrics import EXACT_MATCH, chance_bound
from pocketbert.core.predict.answers import Answer, Excerpt
from pocketbert.core.predict.examples import Example, GoldAnswer
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.predictor import Matrix
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import Task

if TYPE_CHECKING:
    from pocketbert.core.heads.settings import AnswerSettings
    from pocketbert.core.predict.scores import Score

_CONTEXT = 1
"""Number of the context among the two texts of a pair."""
_NO_CONTEXT_SCORE = float(np.finfo(np.float32).min)
"""Score of an answer in an empty context: below all others, and finite, so that the model is not taken for broken."""


@dataclass(frozen=True)
class _WindowAnswer:
    """The best answer in one window of a long context, and the score of having no answer.

    Attributes:
        score: Sum of the start logit of the answer's first token and the end logit of its last token.
        start: Index of the first character in the context.
        end: Index of the character after the last one.
        probability: Probability of the first token times that of the last one.
        null_score: Score of having no answer: the sum of both logits of the row's first token.
    """

    score: float
    start: float
    end: float
    probability: float
    null_score: float


class QuestionAnsweringHead:
    """Head of question-answering; an output matrix [tokens, 2] has each token's logits as the answer's start and end.

    Args:
        task: The task's row in the table of tasks.
        settings: Overlap of windows, longest answer, and whether a question may have no answer.
    """

    def __init__(self, task: Task, settings: AnswerSettings) -> None:
        self.task, self.settings = task, settings

    def prepare(self, examples: list[Example], tokenizer: TextTokenizer, title: str, labelled: bool = True) -> Prepared:
        """Tokenize questions and contexts in overlapping windows, with the answers' tokens as targets.

        The targets ``start_positions`` and ``end_positions``, int64 [N], are the indices of the first and last token of
        the first gold answer that lies in the window; 0 in a window without one. `truth` has all gold answers.
        """
        inputs = [e.input for e in examples]
        questions = [(text, "") if isinstance(text, str) else text for text in inputs]
        windows = tokenizer.windows(questions, self.settings.stride)
        owner = np.repeat(np.arange(len(examples)), [len(w) for w in windows])
        encoded = [window for of_example in windows for window in of_example]
        if not labelled:
            return Prepared(examples, encoded, owner)
        truth = [
            [g for g in e.label if isinstance(g, GoldAnswer)] if isinstance(e.label, tuple) else [] for e in examples
        ]
        tokens = [_answer_tokens(window, truth[i]) for window, i in zip(encoded, owner, strict=True)]
        starts, ends = np.array(tokens, np.int64).reshape(-1, 2).T
        targets = {"start_positions": starts.copy(), "end_positions": ends.copy()}
        return Prepared(examples, encoded, owner, targets, truth)

    def reduce(self, row: int, matrix: Matrix, prepared: Prepared) -> Matrix:
        """Find a window's best answer, and return the fields of its `_WindowAnswer` as a matrix [1, 5]."""
        return np.array([astuple(self._find_answer(prepared.encoded[row], matrix))], np.float32)

    def _find_answer(self, window: Encoded, matrix: Matrix) -> _WindowAnswer:
        """Find the span of context tokens with the largest sum of start and end logits, not longer than allowed.

        `window` is a tokenized question with a part of its context, `matrix` holds the start and end logits of its tokens.
        """
        places = window.places
        if places is None:
            raise ValueError("tokenize with windows()")
        tokens = np.flatnonzero(places.parts == _CONTEXT)
        null_score = float(matrix[0].sum())
        if not len(tokens):
            return _WindowAnswer(_NO_CONTEXT_SCORE, 0, 0, 0.0, null_score)
        start, end = matrix[tokens, 0].astype(np.float64), matrix[tokens, 1].astype(np.float64)
        if not (np.isfinite(start).all() and np.isfinite(end).all()):
            return _WindowAnswer(float("nan"), 0, 0, 0.0, null_score)
        scores = start[:, None] + end[None, :]
        length = np.arange(len(tokens))[None, :] - np.arange(len(tokens))[:, None]
        scores[(length < 0) | (length >= self.settings.answer_length)] = -np.inf
        i, j = np.unravel_index(int(scores.argmax()), scores.shape)
        probabilities = [
            _softmax_of(logit, matrix[:, column].astype(np.float64)) for column, logit in ((0, start[i]), (1, end[j]))
        ]
        first, last = int(places.offsets[tokens[i]][0]), int(places.offsets[tokens[j]][1])
        return _WindowAnswer(float(scores[i, j]), first, last, probabilities[0] * probabilities[1], null_score)

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """Compute SQuAD's F1 and exact match.

        The chance level is the F1 of always answering with the first sentence, or with nothing.
        """
        finite = all_finite(reduced)
        texts = [a.text for a in self._merge_windows(reduced, prepared)]
        gold = [[g.text for g in truth] for truth in prepared.truth]
        f1 = [token_f1(t, g) for t, g in zip(texts, gold, strict=True)]
        exact = [exact_match(t, g) for t, g in zip(texts, gold, strict=True)]
        first_sentences = [(e.pair or "").split(". ")[0] for e in prepared.examples]
        blind = [
            np.mean([token_f1(t, g) for t, g in zip(answers, gold, strict=True)])
            for answers in (first_sentences, [""] * len(gold))
        ]
        chance = chance_bound(float(max(blind)), len(gold))
        others = {EXACT_MATCH.name: float(np.mean(exact))}
        return make_score(self.task.metric, float(np.mean(f1)), others, len(gold), chance, finite)

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """Return an `Excerpt` with the best answer over all windows of each context."""
        return [*self._merge_windows([self.reduce(i, m, prepared) for i, m in enumerate(outputs)], prepared)]

    def _merge_windows(self, reduced: Sequence[Matrix], prepared: Prepared) -> list[Excerpt]:
        """Choose the best answer of each context among its windows.

        If questions may be unanswerable, and "no answer" has the larger score in all windows, the answer is empty.
        """
        excerpts = []
        for example, rows in zip(prepared.examples, prepared.rows_of(), strict=True):
            windows = [_WindowAnswer(*(float(v) for v in reduced[i][0])) for i in rows]
            best = max(windows, key=lambda w: w.score)
            # a context is without an answer if every window is (Devlin et al. 2019, section 4.3)
            if self.settings.null_answers and min(w.null_score for w in windows) > best.score:
                excerpts.append(Excerpt("", 0, 0, best.probability))
                continue
            start, end = int(best.start), int(best.end)
            excerpts.append(Excerpt((example.pair or "")[start:end], start, end, best.probability))
        return excerpts


def _answer_tokens(window: Encoded, answers: list[GoldAnswer]) -> tuple[int, int]:
    """Return the first and last token of the first gold answer that lies wholly in the window; (0, 0) if none does."""
    assert window.places is not None
    offsets, context = window.places.offsets, window.places.parts == _CONTEXT
    for answer in answers:
        stop = answer.start + len(answer.text)
        first = np.flatnonzero(context & (offsets[:, 0] <= answer.start) & (offsets[:, 1] > answer.start))
        last = np.flatnonzero(context & (offsets[:, 0] < stop) & (offsets[:, 1] >= stop))
        if len(first) and len(last):
            return int(first[0]), int(last[0])
    return 0, 0


def _softmax_of(logit: float, logits: NDArray[np.float64]) -> float:
    """Return the softmax probability of one logit among all `logits`."""
    largest = logits.max()
    return float(np.exp(logit - largest) / np.exp(logits - largest).sum())


# --- the metrics of SQuAD ---

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def exact_match(answer: str, gold: Sequence[str]) -> float:
    """Return 1 if the answer equals a gold answer after normalization, or if there is none and it is empty; else 0."""
    return float(any(_normalize_answer(answer) == _normalize_answer(g) for g in (gold or [""])))


def token_f1(answer: str, gold: Sequence[str]) -> float:
    """Return the best F1 of words with a gold answer; for unanswerable questions 1 if the answer is empty, else 0."""
    return max(_word_f1(_normalize_answer(answer).split(), _normalize_answer(g).split()) for g in (gold or [""]))


def _word_f1(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    common = sum((Counter(answer) & Counter(gold)).values())
    return 2 * common / (len(answer) + len(gold))


def _normalize_answer(answer: str) -> str:
    """Normalize an answer for comparison: lower case, no punctuation, no articles, single blanks.

    Source: evaluate-v1.1 of Rajpurkar et al. 2016 (SQuAD, arXiv 1606.05250, section 6.1).
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())
