"""Head of multiple choice: which of several texts answers a question.

The model reads each choice by itself, as the second text of a pair behind the question, and gives it one number; the softmax
over the numbers of a question's choices gives their probabilities. A question therefore has as many rows of tokens as choices;
`even_choices` makes them as many for all questions, so that training can take them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.heads.head import IGNORED_LABEL, Prepared, TextHead, all_finite, make_score
from pocketbert.core.metrics import chance_bound
from pocketbert.core.predict.answers import Answer, Choice
from pocketbert.core.predict.examples import Example
from pocketbert.core.predict.predictor import Matrix
from pocketbert.core.predict.scores import apply_score_function
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import ScoreFunction, Task

if TYPE_CHECKING:
    from pocketbert.core.predict.scores import Score

CHOICES = "choices"
"""Name of the training target with the number of rows that belong to the question of each row."""


class MultipleChoiceHead(TextHead):
    """Head of multiple choice; the output matrix of a row, a question with one of its choices, is one number [1, 1].

    Args:
        task: The task's row in the table of tasks.
    """

    def __init__(self, task: Task) -> None:
        self.task = task

    def prepare(self, examples: list[Example], tokenizer: TextTokenizer, title: str, labelled: bool = True) -> Prepared:
        """Tokenize each question with each of its choices as one row; the target ``labels`` is 1 for the right choice.

        The target of the other choices is 0. The gold label of a question is the index of its right choice, int64 [E].
        A text or pair without choices is one row.
        """
        counts = [len(e.inputs) for e in examples]
        owner = np.repeat(np.arange(len(examples)), counts)
        encoded = tokenizer.encode([text for e in examples for text in e.inputs])
        rows = Prepared(examples, encoded, owner, tokenizer=tokenizer)
        if not labelled:
            return rows
        truth = np.array([e.label for e in examples], np.int64).reshape(-1)
        number = np.concatenate([np.arange(n) for n in counts]) if counts else np.empty(0, np.int64)
        targets = {"labels": (number == truth[owner]).astype(np.int64), CHOICES: np.array(counts, np.int64)[owner]}
        return replace(rows, targets=targets, truth=truth)

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """Compute the share of questions whose right choice has the largest output.

        The chance level is the share of guessing, or of always choosing the most frequent position if that is larger, plus
        three standard errors.
        """
        gold, finite = np.asarray(prepared.truth, np.int64), all_finite(reduced)
        numbers = [np.array([reduced[i][0, 0] for i in rows]) for rows in prepared.rows_of()]
        right = np.array([values.argmax() for values in numbers], np.int64) == gold
        most_frequent = np.bincount(gold).max() / len(gold)
        guessed = max(float(np.mean([1 / len(values) for values in numbers])), float(most_frequent))
        chance = chance_bound(guessed, len(gold))
        return make_score(self.task.metric, float(right.mean()), {}, len(gold), chance, finite)

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """Return the answer of each question: a `Choice` with the probabilities of all its choices."""
        answers: list[Answer] = []
        for example, rows in zip(prepared.examples, prepared.rows_of(), strict=True):
            numbers = [float(outputs[i][0, 0]) for i in rows]
            scores = apply_score_function(np.array(numbers), ScoreFunction.SOFTMAX).tolist()
            best = int(np.argmax(scores))
            texts = example.choices or (example.pair or example.text,)
            cut = any(prepared.encoded[i].truncated for i in rows)
            answers.append(Choice(best, texts[best], scores[best], tuple(scores), tuple(numbers), texts, cut))
        return answers


def even_choices(prepared: Prepared) -> Prepared:
    """Give every question of a training batch as many rows as the question with most choices has.

    The question's first row is repeated. The target ``labels`` of repeated rows is `IGNORED_LABEL`, so that losses
    leave them out.
    """
    rows_by_example = prepared.rows_of()
    most = max(map(len, rows_by_example))
    if all(len(rows) == most for rows in rows_by_example):
        return prepared
    chosen = np.array([[*rows, *[rows[0]] * (most - len(rows))] for rows in rows_by_example])
    added = np.arange(most)[None] >= np.array([len(rows) for rows in rows_by_example])[:, None]
    targets: dict[str, NDArray[Any]] = {k: np.asarray(v)[chosen.ravel()] for k, v in prepared.targets.items()}
    targets["labels"][added.ravel()] = IGNORED_LABEL
    targets[CHOICES] = np.full(chosen.size, most, np.int64)
    encoded = [prepared.encoded[i] for i in chosen.ravel()]
    return replace(prepared, encoded=encoded, owner=np.repeat(np.arange(len(chosen)), most), targets=targets)
