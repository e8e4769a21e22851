"""question-answering: a piece of a context that answers a question; long contexts are read in windows."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pocketbert.core.data.examples import Example, GoldAnswer
from pocketbert.core.heads.head import AnswerSettings, Prepared, all_finite
from pocketbert.core.metrics import EXACT_MATCH, luck
from pocketbert.core.predict.answers import Answer, Excerpt
from pocketbert.core.predict.predictor import Matrix
from pocketbert.core.predict.scores import Score
from pocketbert.core.predict.tokenization import Encoded, TextTokenizer
from pocketbert.core.tasks import Task

# --- squad ---
# How answers to questions are scored: exact match and token F1 as in SQuAD.


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_MARKS = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> str:
    """An answer as it is compared: lower case, without punctuation, articles and odd blanks.

    Source: evaluate-v1.1 of Rajpurkar et al. 2016 (SQuAD, arXiv 1606.05250, section 6.1).
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_MARKS)).split())


def exact_match(answer: str, gold: Sequence[str]) -> float:
    """1 when the answer equals one of the gold answers (the empty one where there is none), else 0."""
    return float(any(normalised(answer) == normalised(g) for g in (gold or [""])))


def token_f1(answer: str, gold: Sequence[str]) -> float:
    """Best F1 over words with one of the gold answers; of unanswerable questions 1 for no answer, else 0."""
    return max(_f1(normalised(answer).split(), normalised(g).split()) for g in (gold or [""]))


def _f1(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    common = sum((Counter(answer) & Counter(gold)).values())
    return 2 * common / (len(answer) + len(gold))


CONTEXT = 1
"""The context is the second text."""
_NOWHERE = float(np.finfo(np.float32).min)
"""Score of an answer in an empty context: below all others, and finite, so that it is not taken for a broken model's."""


@dataclass(frozen=True)
class _Best:
    """Best answer of one window: its score, place, probability, and the score of having none."""

    score: float
    start: int
    end: int
    probability: float
    null: float


class QuestionAnsweringHead:
    """See `pocketbert.core.heads.head.Head`; matrices are [tokens, 2]: scores of each token as first and as last.

    Args:
        task: Its row of the table.
        settings: Stride, longest answer, and whether there may be none.
    """

    def __init__(self, task: Task, settings: AnswerSettings) -> None:
        self.task, self.settings = task, settings

    def prepare(self, examples: list[Example], tokenizer: TextTokenizer, title: str, labelled: bool = True) -> Prepared:
        """Targets ``start_positions`` and ``end_positions``: tokens of the first answer, int64 [N]; 0 where a window has none."""
        windows = tokenizer.windows([_question(e) for e in examples], self.settings.stride)
        owner = np.repeat(np.arange(len(examples)), [len(w) for w in windows])
        encoded = [w for part in windows for w in part]
        if not labelled:
            return Prepared(examples, encoded, owner)
        truth = [_gold(e) for e in examples]
        places = [_target(w, truth[i]) for w, i in zip(encoded, owner, strict=True)]
        starts, ends = np.array(places, np.int64).reshape(-1, 2).T
        targets = {"start_positions": starts.copy(), "end_positions": ends.copy()}
        return Prepared(examples, encoded, owner, targets, truth)

    def reduce(self, row: int, matrix: Matrix, prepared: Prepared) -> Matrix:
        """The window's best answer, [1, 5]: score, first and behind-last character, probability, score of no answer."""
        best = self._best(prepared.encoded[row], matrix)
        return np.array([[best.score, best.start, best.end, best.probability, best.null]], np.float32)

    def _best(self, window: Encoded, matrix: Matrix) -> _Best:
        places = window.places
        if places is None:
            raise ValueError("tokenize with windows()")
        tokens = np.flatnonzero(places.parts == CONTEXT)
        null = float(matrix[0].sum())
        if not len(tokens):
            return _Best(_NOWHERE, 0, 0, 0.0, null)
        start, end = matrix[tokens, 0].astype(np.float64), matrix[tokens, 1].astype(np.float64)
        if not (np.isfinite(start).all() and np.isfinite(end).all()):
            return _Best(float("nan"), 0, 0, 0.0, null)
        pairs = start[:, None] + end[None, :]
        length = np.arange(len(tokens))[None, :] - np.arange(len(tokens))[:, None]
        pairs[(length < 0) | (length >= self.settings.answer_length)] = -np.inf
        i, j = np.unravel_index(int(pairs.argmax()), pairs.shape)
        shares = [_share(matrix[:, k].astype(np.float64), v) for k, v in ((0, start[i]), (1, end[j]))]
        first, last = places.offsets[tokens[i]], places.offsets[tokens[j]]
        return _Best(float(pairs[i, j]), int(first[0]), int(last[1]), shares[0] * shares[1], null)

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """SQuAD F1 and exact match."""
        finite = all_finite(reduced)
        texts = [a.text for a in self._merged(reduced, prepared)]
        gold = [[g.text for g in truth] for truth in prepared.truth]
        f1 = [token_f1(t, g) for t, g in zip(texts, gold, strict=True)]
        exact = [exact_match(t, g) for t, g in zip(texts, gold, strict=True)]
        return Score.of(
            self.task.metric,
            float(np.mean(f1)),
            {EXACT_MATCH.name: float(np.mean(exact))},
            len(gold),
            self._chance(prepared),
            finite,
        )

    def _chance(self, prepared: Prepared) -> float:
        """F1 of answering every question with the context's first sentence, or with nothing."""
        gold = [[g.text for g in truth] for truth in prepared.truth]
        first = [(e.pair or "").split(". ")[0] for e in prepared.examples]
        blind = [
            np.mean([token_f1(a, g) for a, g in zip(answers, gold, strict=True)])
            for answers in (first, [""] * len(gold))
        ]
        return luck(float(max(blind)), len(gold))

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """The best answer over all windows of each context."""
        return [*self._merged([self.reduce(i, m, prepared) for i, m in enumerate(outputs)], prepared)]

    def _merged(self, reduced: Sequence[Matrix], prepared: Prepared) -> list[Excerpt]:
        out = []
        for example, rows in zip(prepared.examples, prepared.rows_of(), strict=True):
            windows = [_Best(*(float(v) for v in reduced[i][0])) for i in rows]  # type: ignore[arg-type]
            best = max(windows, key=lambda w: w.score)
            # a context is without an answer when every window is (Devlin et al. 2019, section 4.3)
            if self.settings.null_answers and min(w.null for w in windows) > best.score:
                out.append(Excerpt("", 0, 0, best.probability))
                continue
            start, end = int(best.start), int(best.end)
            out.append(Excerpt((example.pair or "")[start:end], start, end, best.probability))
        return out


def _gold(example: Example) -> list[GoldAnswer]:
    return [g for g in example.label if isinstance(g, GoldAnswer)] if isinstance(example.label, tuple) else []


def _target(window: Encoded, answers: list[GoldAnswer]) -> tuple[int, int]:
    """First and last token of the first answer that lies wholly in a window; (0, 0) where none does."""
    assert window.places is not None
    offsets, context = window.places.offsets, window.places.parts == CONTEXT
    for answer in answers:
        stop = answer.start + len(answer.text)
        first = np.flatnonzero(context & (offsets[:, 0] <= answer.start) & (offsets[:, 1] > answer.start))
        last = np.flatnonzero(context & (offsets[:, 0] < stop) & (offsets[:, 1] >= stop))
        if len(first) and len(last):
            return int(first[0]), int(last[0])
    return 0, 0


def _share(logits: np.ndarray, value: float) -> float:
    largest = logits.max()
    return float(np.exp(value - largest) / np.exp(logits - largest).sum())


def _question(example: Example) -> tuple[str, str]:
    """Question and context, with the other columns of their row."""
    text = example.input
    return (text, "") if isinstance(text, str) else text
