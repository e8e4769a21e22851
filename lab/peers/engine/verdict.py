"""One engine against the best of several others, without the luck of the one that is picked.

The smallest of many noisy medians is too small, so that whatever is compared with the engine it belongs to looks too
slow. Here the best engine is picked on some of the rounds and compared on the others, in turn (cross-fitting;
Chernozhukov et al. 2018, "Double/debiased machine learning"): on those of the other generations, whose processes are
others, so that a process with lucky places in memory is not picked and compared on the same luck; where there is one
generation only, on every second round, which leaves that luck in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pocketbert.benchmarks.statistics import Ratio, paired_ratio

HALVES = 2


@dataclass(frozen=True)
class CrossFit:
    """How one engine compares with the best of the others.

    Attributes:
        opponents: For each round, the engine it is compared with: the best in the rounds of other folds.
        ratio: The engine's time over its opponent's, of all rounds.
        best: Best engine of all rounds together.
        plain: The engine's time over that of `best`: what is picked and what is measured are the same rounds.
    """

    opponents: list[str]
    ratio: Ratio
    best: str
    plain: Ratio

    @property
    def names(self) -> list[str]:
        """The opponents, each once, the more frequent first."""
        return sorted(set(self.opponents), key=lambda n: (-self.opponents.count(n), n))


def cross_fit(times: Mapping[str, Sequence[float]], subject: str, generations: Sequence[int] = ()) -> CrossFit:
    """Compare one engine with the best of the others.

    Args:
        times: ms by engine, shape [rounds], the same rounds for all, in the order in which they were made.
        subject: The engine that is judged, one of `times`.
        generations: Of each round, [rounds]: the folds. One alone, or none: even and odd rounds are.

    Returns:
        The ratios: above 1, the subject is slower.

    Raises:
        ValueError: If there are fewer than two rounds or no other engine.
    """
    mine = times[subject]
    others = {name: ms for name, ms in times.items() if name != subject}
    if len(mine) < HALVES or not others:
        raise ValueError(f"needs two rounds and two engines, got {len(mine)} and {len(times)}")
    logs = {n: np.log(np.asarray(mine, float)) - np.log(np.asarray(ms, float)) for n, ms in others.items()}
    folds = np.asarray(generations if len(set(generations)) > 1 else np.arange(len(mine)) % HALVES)
    picked = {
        fold: max(logs, key=lambda n, f=fold: float(np.median(logs[n][folds != f])))  # type: ignore[misc]
        for fold in set(folds.tolist())
    }
    opponents = [picked[fold] for fold in folds.tolist()]
    best = max(logs, key=lambda n: float(np.median(logs[n])))
    return CrossFit(opponents, ratio_to(mine, times, opponents), best, paired_ratio(mine, others[best]))


def ratio_to(mine: Sequence[float], times: Mapping[str, Sequence[float]], opponents: Sequence[str]) -> Ratio:
    """Paired ratio where each round has an opponent of its own.

    Args:
        mine: ms of the judged engine, shape [rounds].
        times: ms by engine, same rounds.
        opponents: Names, one per round.
    """
    return paired_ratio(mine, [times[name][i] for i, name in enumerate(opponents)])
