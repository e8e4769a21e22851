"""Counter-based seeds: every random choice is a function of (seed, what for, where in the run).

Nothing depends on how many random numbers were drawn before, so a run that was killed and resumed makes
the same choices as one that never stopped.
"""

from __future__ import annotations

import hashlib

import numpy as np

_MASK = (1 << 63) - 1


def derive_seed(seed: int, purpose: str, *counters: int) -> int:
    """Derive the 63-bit seed of one random choice.

    Args:
        seed: The run's seed.
        purpose: What the choice is (``order``, ``dropout``).
        *counters: Where in the run it happens, e.g. stage, epoch, step, rank.

    Returns:
        A number in [0, 2**63).
    """
    key = "/".join([str(seed), purpose, *map(str, counters)]).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") & _MASK


def generator(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """Return a numpy generator (Philox, itself counter-based) for one random choice.

    Args:
        seed: The run's seed.
        purpose: What the choice is.
        *counters: Where in the run it happens.
    """
    return np.random.Generator(np.random.Philox(derive_seed(seed, purpose, *counters)))
