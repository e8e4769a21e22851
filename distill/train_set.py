"""Rows to train on, as tensors of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.core.tokenization import Encoded, TextTokenizer


class TrainData(Protocol):
    """What the training loop asks for its rows."""

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of each row."""
        ...

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Tensors of some rows by name, padded to the longest; random choices depend on (seed, step, row) alone."""
        ...


@dataclass(frozen=True)
class TrainSet:
    """Tokenized training rows.

    Attributes:
        encoded: N rows.
        gold: Label ids, shape [N].
        tokenizer: Pads batches.
        padding_side: ``right`` or ``left``.
    """

    encoded: Sequence[Encoded]
    gold: NDArray[np.int64]
    tokenizer: TextTokenizer
    padding_side: str = "right"

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        return [len(e) for e in self.encoded]

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Tensors of some rows: the model's inputs [B, L], and ``labels`` [B].

        Args:
            rows: Row numbers, B of them.
            step: The step they are for; nothing here depends on it.
        """
        padded = self.tokenizer.pad([self.encoded[i] for i in rows], side=self.padding_side)
        out = {name: torch.from_numpy(value) for name, value in padded.items()}
        out["labels"] = torch.from_numpy(self.gold[list(rows)])
        return out
