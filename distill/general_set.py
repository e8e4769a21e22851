"""Unlabelled text to train on, masked anew at every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pocketbert.core.tokenization import Encoded, TextTokenizer
from pocketbert.distill.corpus import TokenRows
from pocketbert.distill.masking import Masking
from pocketbert.distill.train_set import ROWS, STEPS


@dataclass(frozen=True)
class GeneralSet:
    """Rows of a corpus with hidden tokens; satisfies `TrainData`.

    Attributes:
        corpus: Tokenized rows.
        tokenizer: Pads batches.
        masking: Chooses what is hidden.
        padding_side: ``right`` or ``left``.
    """

    corpus: TokenRows
    tokenizer: TextTokenizer
    masking: Masking
    padding_side: str = "right"

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        lengths: list[int] = self.corpus.lengths.tolist()
        return lengths

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Tensors of a *global* batch, a function of (rows, step) alone.

        How many tokens are hidden, and which, is decided over all rows of the step: a process that trains on a
        part of them masks them all and takes its part of the result.

        Args:
            rows: Row numbers of all processes, B of them.
            step: The optimiser step.

        Returns:
            ``input_ids`` (masked), ``attention_mask``, ``token_type_ids`` (zeros) and ``labels`` (the original
            id where one is to be predicted, else -100), each [B, S] int64; ``rows`` and ``steps``, [B] int64.
        """
        found = self.corpus.ids(rows)
        encoded = [
            Encoded(np.asarray(ids, np.int64), np.zeros(len(ids), np.int64), truncated=False) for ids in found
        ]
        padded = self.tokenizer.pad(encoded, side=self.padding_side)
        masked = self.masking.apply(padded["input_ids"], padded["attention_mask"], rows, step)
        padded |= {"input_ids": masked.input_ids, "labels": masked.labels}
        out = {name: torch.from_numpy(value) for name, value in padded.items()}
        out[ROWS] = torch.from_numpy(np.array(rows, np.int64))
        out[STEPS] = torch.full((len(rows),), step)
        return out
