"""regression: one number for a text or a pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pocketbert.core.answers import Answer, Value
from pocketbert.core.data import Example
from pocketbert.core.heads.head import Prepared, all_finite, per_text
from pocketbert.core.metrics import PEARSON, SPEARMAN, pearson, spearman
from pocketbert.core.readout import Matrix, whole
from pocketbert.core.score import Score
from pocketbert.core.tasks import Task
from pocketbert.core.tokenization import TextTokenizer


class RegressionHead:
    """See `pocketbert.core.heads.head.Head`; matrices are [1, 1], in the units of the training data."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def prepare(
        self, examples: list[Example], tokenizer: TextTokenizer, title: str, labelled: bool = True
    ) -> Prepared:
        """Targets ``labels``: float32 [N]."""
        rows = per_text(examples, tokenizer)
        if not labelled:
            return rows
        gold = np.array([e.label for e in examples], np.float64)
        return replace(rows, targets={"labels": gold.astype(np.float32)}, truth=gold)

    def reduce(self, row: int, matrix: Matrix, prepared: Prepared) -> Matrix:
        """The number."""
        return matrix

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """Pearson, Spearman and the root mean square error."""
        gold, values = np.asarray(prepared.truth, np.float64), whole(reduced)[:, 0].astype(np.float64)
        finite = all_finite(reduced)
        return Score(
            metric=PEARSON.name, value=pearson(gold, values) if finite else float("nan"),
            others={SPEARMAN.name: spearman(gold, values), "rmse": float(np.sqrt(((gold - values) ** 2).mean()))} if finite else {},
            rows=len(gold), chance=min(1.0, 3 / np.sqrt(max(1, len(gold)))), finite=finite,
        )  # fmt: skip

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """The number of each text."""
        return [Value(float(m[0, 0]), e.truncated) for m, e in zip(outputs, prepared.encoded, strict=True)]
