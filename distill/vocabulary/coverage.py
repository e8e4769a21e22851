"""How well a pruned vocabulary covers rows that took no part in choosing it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from pocketbert.core.predict.tokenization import Encoded
from pocketbert.distill.vocabulary.choice import Kept


@dataclass(frozen=True)
class Coverage:
    """How rows are read with the pieces that stay; special tokens do not count.

    The share of unknown tokens is not among the figures: every word can still be spelt, so that it stays 0 while the accuracy
    falls.

    Attributes:
        rows: Number of rows.
        changed: Share of the rows that are split into other pieces than before.
        unseen: Share of the rows' pieces, before, that do not stay.
        growth: How much longer the rows are, as a fraction.
    """

    rows: int
    changed: float
    unseen: float
    growth: float

    @property
    def sentence(self) -> str:
        """The figures, for the log of a run."""
        return (
            f"of {self.rows:,} held-out rows {self.changed:.1%} are split into other pieces; {self.unseen:.1%} of their pieces do "
            f"not stay; they are {self.growth:.1%} longer"
        )


def count_pieces(rows: Sequence[Encoded]) -> Counter[int]:
    """Count how often each id occurs.

    Args:
        rows: Tokenized texts.
    """
    if not rows:
        return Counter()
    counts = np.bincount(np.concatenate([row.ids for row in rows]))
    return Counter({int(i): int(counts[i]) for i in np.flatnonzero(counts)})


def coverage(before: Sequence[Encoded], after: Sequence[Encoded], kept: Kept, special: Collection[int]) -> Coverage:
    """Compare how rows were read with how they are read.

    Args:
        before: The rows by the whole tokenizer.
        after: The same rows by the pruned tokenizer.
        kept: The pieces that stay.
        special: Old ids that mean no piece of text.

    Raises:
        ValueError: If there is no row.
    """
    if not before:
        raise ValueError("the coverage of a vocabulary is measured on at least one row")
    marks, stay = np.asarray(sorted(special), np.int64), np.asarray(kept.ids, np.int64)
    changed = unseen = pieces = longer = 0
    for old, new in zip(before, after, strict=True):
        own = old.ids[~np.isin(old.ids, marks)]
        now = kept.old(new.ids)
        now = now[~np.isin(now, marks)]
        changed += not np.array_equal(own, now)
        unseen += int((~np.isin(own, stay)).sum())
        pieces += len(own)
        longer += len(now) - len(own)
    return Coverage(len(before), changed / len(before), unseen / max(1, pieces), longer / max(1, pieces))
