"""What is in the data, looked at before the first training step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel

from pocketbert.core.data import Example
from pocketbert.core.labels import Labels
from pocketbert.core.tokenization import Encoded


class SplitReport(BaseModel):
    """Facts about one split.

    Attributes:
        name: ``train``, ``eval`` or ``holdout``.
        source: File or data set.
        rows: Rows read.
        duplicates: Rows whose texts occur earlier in the split.
        conflicting: Rows among those whose label differs from the first occurrence.
        truncated: Rows longer than the maximum length.
        labels: Rows per label name.
        tokens_mean: Mean length in tokens.
        tokens_p50: Median length.
        tokens_p95: 95th percentile of the length (nearest rank).
        tokens_max: Longest row after truncation.
    """

    name: str
    source: str
    rows: int
    duplicates: int
    conflicting: int
    truncated: int
    labels: dict[str, int]
    tokens_mean: float
    tokens_p50: int
    tokens_p95: int
    tokens_max: int


class DataReport(BaseModel):
    """Facts about all splits of a run.

    Attributes:
        max_length: Length in tokens at which rows are truncated.
        splits: One report per split.
        train_in_eval: Training rows that also occur in eval; they are left out of training.
        notes: Things the user should know.
    """

    max_length: int
    splits: list[SplitReport]
    train_in_eval: int = 0
    notes: list[str] = []

    def lines(self) -> list[str]:
        """The report for a terminal."""
        out = []
        for s in self.splits:
            shares = sorted(s.labels.values())
            out.append(
                f"{s.name}: {s.rows:,} rows, {s.duplicates:,} duplicates ({s.conflicting:,} with another label), "
                f"{s.truncated:,} truncated at {self.max_length}, tokens mean {s.tokens_mean:.1f} p95 {s.tokens_p95}, "
                f"{len(s.labels)} labels of {shares[0]:,} to {shares[-1]:,} rows"
            )
        out.append(f"train rows that also occur in eval: {self.train_in_eval:,} (left out of training)")
        return out + self.notes


def split_report(
    name: str,
    source: str,
    examples: Sequence[Example],
    encoded: Sequence[Encoded],
    labels: Labels,
    ids: Sequence[int],
) -> SplitReport:
    """Describe one split.

    Args:
        name: Split name.
        source: File or data set.
        examples: The rows.
        encoded: The same rows, tokenized.
        labels: The label set.
        ids: Label ids of the rows.
    """
    first: dict[str, int] = {}
    duplicates = conflicting = 0
    for example, label in zip(examples, ids, strict=True):
        seen = first.setdefault(example.digest, int(label))
        if seen != label:
            conflicting += 1
    duplicates = len(examples) - len(first)
    lengths = np.sort([len(e) for e in encoded])
    counts = Counter(int(i) for i in ids)
    return SplitReport(
        name=name, source=source, rows=len(examples), duplicates=duplicates, conflicting=conflicting,
        truncated=sum(e.truncated for e in encoded),
        labels={label: counts.get(i, 0) for i, label in enumerate(labels.names)},
        tokens_mean=float(lengths.mean()), tokens_p50=int(_rank(lengths, 0.50)),
        tokens_p95=int(_rank(lengths, 0.95)), tokens_max=int(lengths[-1]),
    )  # fmt: skip


def _rank(ordered: np.ndarray, share: float) -> int:
    return int(ordered[max(0, int(np.ceil(share * len(ordered))) - 1)])


def majority_note(report: SplitReport) -> str | None:
    """A warning when one label holds most rows, so that accuracy alone would mislead."""
    share = max(report.labels.values()) / report.rows
    if share > 0.8:
        return f"{report.name}: one label holds {share:.0%} of the rows; look at macro F1 beside accuracy"
    return None
