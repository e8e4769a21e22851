"""Measure what phrases of one sentence among the training rows add to the score of rows that were divided from them.

Run: python lab/overlap.py SHARED_DATA/sst2

A word counter (naive Bayes of words and pairs of words) learns SST-2's training rows without 1,000 of them, and is scored on these
1,000 and on dev; once as the rows are, and once without the rows that `drop_overlapping` finds.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from pocketbert.core.data.reading import read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.predict.examples import Example, drop_overlapping

HELD_OUT, SEED = 1000, 1


def find_features(row: Example) -> set[object]:
    """Return the different words and pairs of neighbouring words of a row."""
    words = row.text.split()
    return {*words, *pairwise(words)}


def score(train: Sequence[Example], test: Sequence[Example]) -> float:
    """Return the accuracy of naive Bayes, which learns one list of rows, on another."""
    seen = {label: Counter(f for row in train if str(row.label) == label for f in find_features(row)) for label in "01"}
    rows = Counter(str(row.label) for row in train)

    def evidence(feature: object) -> float:
        good, bad = seen["1"][feature], seen["0"][feature]
        return math.log((good + 0.5) / (rows["1"] + 1)) - math.log((bad + 0.5) / (rows["0"] + 1)) if good + bad else 0.0

    prior = math.log(rows["1"] / rows["0"])
    right = sum((prior + sum(map(evidence, find_features(row))) > 0) == (str(row.label) == "1") for row in test)
    return right / len(test)


def main() -> None:
    """Print both scores with and without the overlapping rows."""
    folder = Path(sys.argv[1])
    rows, dev = (read_examples(DataSource(path=str(folder / f"{name}.jsonl.gz"))) for name in ("train", "dev"))
    chosen = {*np.random.default_rng(SEED).choice(len(rows), HELD_OUT, replace=False).tolist()}
    held, rest = [rows[i] for i in sorted(chosen)], [row for i, row in enumerate(rows) if i not in chosen]
    apart, dropped = drop_overlapping(rest, held)
    for title, train in (("all other rows", rest), (f"without {dropped:,} that overlap", apart)):
        print(
            f"{title}: {100 * score(train, held):.1f} on the {HELD_OUT:,} held-out rows, {100 * score(train, dev):.1f} on dev"
        )


if __name__ == "__main__":
    main()
