"""Counter-based seeds: every random choice is a function of (seed, what for, where in the run).

Nothing depends on how many random numbers were drawn before, so a run that was killed and resumed makes
the same choices as one that never stopped.
"""

from __future__ import annotations

import hashlib

import numpy as np

_MASK = (1 << 63) - 1


def derive_seed(seed: int, purpose: str, *counters: int) -> int:
    """Derive a 63-bit seed for one random choice from the run's seed, the purpose and counters.

    Args:
        seed: The run's seed.
        purpose: Name of the random choice, such as ``order`` or ``dropout``; different names give independent seeds.
        *counters: Numbers that identify the choice within the run, e.g. stage, epoch, step, rank.

    Returns:
        A number in [0, 2**63).
    """
    key = "/".join([str(seed), purpose, *map(str, counters)]).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") & _MASK


def generator(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """Build a numpy random generator (Philox) whose seed is derived for one random choice of a run.

    Args:
        seed: The run's seed.
        purpose: Name of the random choice, see `derive_seed`.
        *counters: Numbers that identify the choice within the run.
    """
    return np.random.Generator(np.random.Philox(derive_seed(seed, purpose, *counters)))
