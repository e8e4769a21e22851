"""Tokenized rows in memory, where a corpus is expected."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.predict.tokenization import Encoded


class EncodedRows:
    """Rows of a data set as `pocketbert.distill.text.corpora.corpus.TokenRows`.

    Args:
        encoded: N rows.
        vocabulary: Number of tokens V.
    """

    def __init__(self, encoded: Sequence[Encoded], vocabulary: int) -> None:
        self._encoded = encoded
        self.lengths: NDArray[np.int64] = np.array([len(e) for e in encoded], np.int64)
        every = np.concatenate([e.ids for e in encoded]) if encoded else np.empty(0, np.int64)
        self.counts: NDArray[np.int64] = np.bincount(every, minlength=vocabulary).astype(np.int64)

    def ids(self, rows: Sequence[int] | NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Token ids of some rows."""
        return [self._encoded[int(i)].ids for i in rows]
