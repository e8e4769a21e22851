"""What a store of sparse logits is of, and how one position is written."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict


class StoreSettings(BaseModel):
    """What the numbers in a store depend on, in addition to row and epoch.

    Bytes a position: ``6 + (k + samples) * (i + w)`` with i = 2 up to 65,536 tokens in the vocabulary,
    else 4, and w = 2 for fp16 weights, 4 for fp32. With k + samples = 64, fp16 and BERT's vocabulary that
    is 262, where the fp16 logits themselves take 61,044. Rows may have up to 65,536 tokens.

    Attributes:
        teacher: Digest of the teacher; see `pocketbert.distill.teacher.cache.key.weights_digest`.
        data: Digest of the rows before masking.
        masks: Digest of what decides a row's masks in an epoch: seed, purpose, share, rows per step, ...
        seed: Seed of the samples.
        rows: Number of rows.
        vocabulary: Number of tokens.
        k: Tokens kept exactly.
        samples: Draws from the others.
        temperature: T of the distributions.
        half: Whether weights are fp16: off by up to 2^-11 of themselves, below 6e-5 by up to 3e-8.
    """

    model_config = ConfigDict(frozen=True)

    teacher: str
    data: str
    masks: str
    seed: int
    rows: int
    vocabulary: int
    k: int
    samples: int
    temperature: float = 1.0
    half: bool = True

    @property
    def record(self) -> np.dtype[np.void]:
        """Type of one position's record, without gaps, little-endian."""
        slots = (self.k + self.samples,)
        ids, weights = ("<u2" if self.vocabulary <= 1 << 16 else "<i4"), ("<f2" if self.half else "<f4")
        return np.dtype(
            [
                ("position", "<u2"),
                ("negative_entropy", "<f4"),
                ("ids", ids, slots),
                ("weights", weights, slots),
            ]
        )

    @property
    def bytes_per_position(self) -> int:
        """Bytes on disk for each distilled position."""
        return self.record.itemsize
