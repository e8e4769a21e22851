"""Files that leave the most sensitive roles float, and what single roles predict of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pocketbert.core.types import Role
from pocketbert.pipeline.direct.search.bench import Bench
from pocketbert.pipeline.direct.search.one_role import sensitivity
from pocketbert.pipeline.direct.search.trial import Trial

PREDICTED = 1.02
"""A predicted size may be this much too large: what the files with one role save adds up to within a per cent."""


@dataclass(frozen=True)
class RoleTrial:
    """A file that leaves some roles float.

    Attributes:
        trial: Scheme and roles.
        bytes: Its predicted size.
        rel: Its predicted RMS difference from the exported file.
    """

    trial: Trial
    bytes: int
    rel: float


def role_trials(bench: Bench, whole: Sequence[Trial], limit: float) -> Iterator[RoleTrial]:
    """List the files of some schemes without their k most sensitive roles, the smallest first.

    Sensitivities of a scheme are measured only where one of its files can be small enough. Of two files of all schemes, one
    that is predicted to be larger and further is left out.

    Args:
        bench: Writes and compares the files with one role.
        whole: The schemes, all roles compressed.
        limit: Largest size in bytes.
    """
    found = list[RoleTrial]()
    for trial in whole:
        file = trial.file
        if not trial.row.selective:
            continue
        size, estimated = bench.written(trial).bytes, bench.expected_bytes(trial)
        roles = dict.fromkeys(w.role for w in bench.weights)
        more = min((bench.expected_bytes(Trial(file, (role,))) - estimated for role in roles), default=0)
        if size >= limit or size + more > PREDICTED * limit:
            continue
        measured = sensitivity(bench, file)
        order = [r.role for r in measured.roles if r.rel is not None]
        for count in range(1, len(order)):
            left = tuple(r for r in Role if r in order[:count])
            rel, size = measured.without(*left), size + measured.roles[count - 1].saved
            if rel is not None and size <= PREDICTED * limit:
                found.append(RoleTrial(Trial(file, left), size, rel))
    yield from (t for t in sorted(found, key=lambda t: (t.bytes, t.rel)) if not any(_beats(o, t) for o in found))


def _beats(one: RoleTrial, other: RoleTrial) -> bool:
    return (one.bytes, one.rel) != (other.bytes, other.rel) and one.bytes <= other.bytes and one.rel <= other.rel
