"""Which arms are set against each other, and the sentence that the numbers make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from study.bootstrap import Estimate, paired
from study.records import ArmRecord


@dataclass(frozen=True)
class Comparison:
    """Two arms that differ in one thing.

    Attributes:
        what: The thing, as the subject of a sentence.
        having: Arm with it.
        lacking: Arm without it.
    """

    what: str
    having: str
    lacking: str


COMPARISONS = (
    Comparison("The intermediate stage, on the rows themselves,", "t4-intermediate", "t4-prediction"),
    Comparison("The intermediate stage, on augmented rows,", "t4-intermediate-augmented", "t4-prediction-augmented"),
    Comparison("Augmentation without the intermediate stage", "t4-prediction-augmented", "t4-prediction"),
    Comparison("Augmentation with the intermediate stage", "t4-intermediate-augmented", "t4-intermediate"),
    Comparison("TinyBERT's general stage", "t4-general", "t4-intermediate"),
    Comparison("MiniLM's general stage", "m4-minilm", "m4-none"),
    Comparison("Progressive transfer of MobileBERT's blocks", "mobile-progressive", "mobile-none"),
    Comparison("Progressive instead of joint transfer", "mobile-progressive", "mobile-joint"),
    Comparison("Joint instead of auxiliary transfer", "mobile-joint", "mobile-auxiliary"),
    Comparison("Progressive instead of auxiliary transfer", "mobile-progressive", "mobile-auxiliary"),
)


@dataclass(frozen=True)
class Difference:
    """What a comparison came to.

    Attributes:
        comparison: The two arms.
        seeds: Seeds that both were finished with.
        estimate: Accuracy with minus without, as a fraction.
    """

    comparison: Comparison
    seeds: tuple[int, ...]
    estimate: Estimate

    @property
    def shown(self) -> str:
        """The difference in points of accuracy with its interval."""
        e = self.estimate
        return f"{100 * e.mean:+.2f} [{100 * e.low:+.2f}, {100 * e.high:+.2f}]"

    @property
    def sentence(self) -> str:
        """What it says."""
        verdict = self.estimate.verdict
        return f"{self.comparison.what} {verdict}: {self.shown} points of accuracy, {count(self.seeds)}."


def difference(comparison: Comparison, records: Sequence[ArmRecord]) -> Difference | None:
    """Compare two arms over the seeds that both have; None where there is no such seed.

    Raises:
        ValueError: If they were judged by different rows.
    """
    hits = {
        name: {r.seed: r.hits for r in records if r.arm == name} for name in (comparison.having, comparison.lacking)
    }
    seeds = tuple(sorted(hits[comparison.having].keys() & hits[comparison.lacking].keys()))
    if not seeds:
        return None
    with_it, without = (np.stack([of[s] for s in seeds]) for of in hits.values())
    return Difference(comparison, seeds, paired(with_it, without))


def count(seeds: Sequence[int]) -> str:
    """``1 seed``, ``2 seeds``."""
    return f"{len(seeds)} seed{'s' if len(seeds) != 1 else ''}"
