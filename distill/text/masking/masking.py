"""Which tokens a masked-language-model batch hides, and behind what: the interface, and masking over a whole batch."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.heads.head import IGNORED
from pocketbert.core.seeds import generator

_KEEP, _MASK_BELOW = 0.9, 0.8


@dataclass(frozen=True)
class Masked:
    """A batch with hidden tokens.

    Attributes:
        input_ids: What the models read, [B, S] int64.
        labels: The original id where one is to be predicted, else `IGNORED`; [B, S] int64.
    """

    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]


class MaskingScheme(Protocol):
    """Hides tokens of batches; `pocketbert.distill.text.masking.kinds.masking_of` makes one."""

    def apply(self, ids: NDArray[np.int64], mask: NDArray[np.int64], rows: Sequence[int], step: int) -> Masked:
        """Hide tokens of a global batch.

        Which ones depends on (seed, purpose, step, row number, place among the row's own tokens): neither how the
        batch is padded nor the order of its rows changes it.

        Args:
            ids: Original tokens, [B, S].
            mask: 1 at real tokens, [B, S].
            rows: Row number of each row in the corpus, B of them.
            step: The optimiser step.

        Returns:
            New arrays.
        """
        ...

    def estimate(self, lengths: NDArray[np.int64]) -> int:
        """How many tokens will be hidden in a batch of rows of such lengths, [B]: to plan room for them."""
        ...

    def key(self) -> list[Any]:
        """All that decides what is hidden, as JSON: what was computed of one key's batches is stale for another's."""
        ...


@dataclass(frozen=True)
class Masking:
    """Frequency-smoothed masking over a whole batch, as XLM (arXiv 1901.07291, section 3.2) and DistilBERT do it.

    Of a batch with n tokens that are not padding, ``ceil(share * n)`` are predicted. They are drawn without
    replacement with weight ``max(count, 1) ** -smoothing`` each, special tokens 0, over all rows at once: a row of
    frequent words may get none. Each becomes the mask token (80 %), stays (10 %) or becomes a token drawn
    uniformly from the vocabulary (10 %).

    The batch is the *global* one. Noise is a function of (seed, purpose, step, row number, place in the row), so
    every process that masks the same rows hides the same tokens, however the batch is then split, ordered or padded.

    Attributes:
        counts: How often each token stands in the corpus, [V].
        mask_id: The mask token.
        special_ids: Tokens that are never predicted, the unknown token among them.
        seed: Seed of the run.
        purpose: What is trained (``distill.0``); keys the noise.
        share: Share of the tokens to predict; special ones count here too, as in the released code.
        smoothing: Exponent of the frequency; 0 makes all tokens equally likely.
    """

    counts: NDArray[np.int64]
    mask_id: int
    special_ids: Sequence[int]
    seed: int
    purpose: str
    share: float = 0.15
    smoothing: float = 0.7

    def apply(self, ids: NDArray[np.int64], mask: NDArray[np.int64], rows: Sequence[int], step: int) -> Masked:
        """Hide tokens; see `MaskingScheme`. Where fewer tokens than asked for may be hidden, all of them are."""
        real = mask.astype(bool)
        noise = self._noise(real, rows, step)
        tokens = ids[real]
        chosen = _race(self.weights()[tokens], noise[:, 0], self.wanted(len(tokens)))
        strangers = (noise[chosen, 2] * len(self.counts)).astype(np.int64)
        read, labels = tokens.copy(), np.full_like(tokens, IGNORED)
        labels[chosen] = tokens[chosen]
        read[chosen] = stand_ins(tokens[chosen], noise[chosen, 1], strangers, self.mask_id)
        out = Masked(ids.copy(), np.full_like(ids, IGNORED))
        out.input_ids[real], out.labels[real] = read, labels
        return out

    def wanted(self, tokens: int) -> int:
        """How many of this number of tokens are predicted."""
        # rounded first: 0.15 * 20 must stay 3, whatever the last bit of the product says
        return math.ceil(round(self.share * tokens, 9))

    def estimate(self, lengths: NDArray[np.int64]) -> int:
        """How many tokens are predicted in a batch of rows of such lengths, [B]; see `MaskingScheme`."""
        return self.wanted(int(lengths.sum()))

    def key(self) -> list[Any]:
        """See `MaskingScheme`."""
        counts = hashlib.sha256(np.asarray(self.counts, "<i8").tobytes()).hexdigest()
        special = sorted(self.special_ids)
        return [self.seed, self.purpose, self.share, self.smoothing, self.mask_id, special, counts]

    def weights(self) -> NDArray[np.float64]:
        """Relative chance of each vocabulary entry to be drawn, [V]."""
        out: NDArray[np.float64] = np.maximum(self.counts, 1).astype(np.float64) ** -self.smoothing
        out[list(self.special_ids)] = 0.0
        return out

    def _noise(self, real: NDArray[np.bool_], rows: Sequence[int], step: int) -> NDArray[np.float64]:
        """Three uniform numbers for each real token, row after row, [tokens, 3]."""
        purpose = f"mask/{self.purpose}"
        return np.concatenate(
            [
                generator(self.seed, purpose, step, int(row)).random((int(length), 3))
                for row, length in zip(rows, real.sum(1), strict=True)
            ]
        )


def stand_ins(
    tokens: NDArray[np.int64], action: NDArray[np.float64], strangers: NDArray[np.int64], mask_id: int
) -> NDArray[np.int64]:
    """What is read in place of hidden tokens: the mask token (80 %), the token itself (10 %) or a stranger (10 %).

    Devlin et al. 2019, arXiv 1810.04805, section 3.1, task 1.

    Args:
        tokens: The hidden tokens, [n].
        action: A uniform number in [0, 1) for each, [n].
        strangers: A random token for each, [n].
        mask_id: The mask token.
    """
    masks = np.full_like(tokens, mask_id)
    out: NDArray[np.int64] = np.select([action < _MASK_BELOW, action < _KEEP], [masks, tokens], strangers)
    return out


def _race(weights: NDArray[np.float64], noise: NDArray[np.float64], wanted: int) -> NDArray[np.int64]:
    """Positions drawn without replacement in proportion to their weights.

    Exponential clocks of rate w: the order in which they ring is the order of such draws (Efraimidis and
    Spirakis 2006), and each position needs only its own noise.

    Args:
        weights: Weight of each position, [n]; those of weight 0 are never drawn.
        noise: A uniform number in [0, 1) for each, [n].
        wanted: How many.
    """
    possible = np.flatnonzero(weights)
    rings = -np.log1p(-noise[possible]) / weights[possible]
    return possible[np.argsort(rings, kind="stable")[:wanted]]
