"""Training rows that the student reads in smaller pieces than its teacher, now and then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pocketbert.core.predict.tokenization import Encoded, Text, TextTokenizer
from pocketbert.core.seeds import generator
from pocketbert.distill.training.train_set import TEACHER, TrainSet
from pocketbert.distill.vocabulary.choice import Kept


@dataclass(frozen=True)
class Reader:
    """A pruned tokenizer, whose ids are given as they were before.

    Attributes:
        tokenizer: The tokenizer.
        kept: The pieces that it has.
    """

    tokenizer: TextTokenizer
    kept: Kept

    def read(self, text: Text) -> Encoded:
        """Tokenize a text into ids of the whole vocabulary.

        Args:
            text: One text, or a pair.
        """
        [row] = self.tokenizer.encode([text])
        return replace(row, ids=self.kept.old(row.ids))


@dataclass(frozen=True)
class ResplitSet:
    """Training rows of which some are split anew at every step, by a smaller vocabulary; satisfies `TrainData`.

    Words that no training row has will fall into smaller pieces when the student is used. Rows whose rarer words are split
    teach it to read these. Teacher and student read the same text in different pieces, so that only signals of the whole
    text can be learnt.

    Attributes:
        rows: The rows as the teacher reads them.
        texts: The text of each row.
        own: How the student reads a row; None where it reads all rows as the teacher does.
        smaller: Smaller vocabularies, of which one splits each row that is split.
        share: Share of the rows of each step that are split.
        seed: Seed of the run.
        purpose: What is trained; keys the random choices.
    """

    rows: TrainSet
    texts: Sequence[Text]
    own: Reader | None
    smaller: Sequence[Reader]
    share: float
    seed: int
    purpose: str

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row, as the teacher reads it."""
        return self.rows.lengths

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Tensors of some rows, see `TrainSet.batch`: the inputs are the student's, the teacher's are under `TEACHER`.

        Args:
            rows: Row numbers.
            step: The optimiser step; what is split depends only on (seed, purpose, step, row).
        """
        out = self.rows.batch(rows, step)
        padded = self.rows.tokenizer.pad([self._row(row, step) for row in rows])
        for name, value in padded.items():
            out[TEACHER + name] = out[name]
            out[name] = torch.from_numpy(value)
        return out

    def _row(self, row: int, step: int) -> Encoded:
        random = generator(self.seed, f"resplit/{self.purpose}", step, row)
        if self.smaller and random.random() < self.share:
            return self.smaller[int(random.integers(len(self.smaller)))].read(self.texts[row])
        return self.rows.rows.encoded[row] if self.own is None else self.own.read(self.texts[row])


def sample(count: int, number: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Draw the rows whose pieces make up a smaller vocabulary: a quarter, an eighth, a sixteenth or a 32nd of all.

    The words that the other rows have fall apart, as new words will.

    Args:
        count: Training rows.
        number: Number of the smaller vocabulary.
        seed: Seed of the run.

    Returns:
        Row numbers.
    """
    size = max(1, count >> (2 + number % 4))
    return generator(seed, "smaller-vocabulary", number).permutation(count)[:size].astype(np.int64)
