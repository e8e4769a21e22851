"""What a target does while something is measured: load, CPU time of others, temperatures, clock rates, energy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from pocketbert.benchmarks.energy import Counter, Packages, Unread, packages_between
from pocketbert.benchmarks.load import Heat, Load, clock_share, clock_words, hottest_words

_UNREAD = {"root-only": Unread.ROOT_ONLY, "absent": Unread.ABSENT, "content": Unread.CONTENT}


class State(BaseModel):
    """What an agent tells of a moment.

    Attributes:
        load: Load average over the last minute.
        busy_s: CPU seconds of the machine since it was started, stolen ones included.
        own_s: CPU seconds of the agent and its workers.
        wall_s: The target's monotonic clock.
        cpus: Its CPUs.
        celsius: Temperatures of its thermal zones.
        governors: What chooses the clock rates.
        mhz: Clock rate of each group of cores.
        mhz_allowed: Highest rate that each may take now.
        mhz_most: Highest rate that each has.
        packages: Counter of energy of each processor package in µJ, and its range; empty where they cannot be read.
        unread: Why not.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    load: float
    busy_s: float
    own_s: float
    wall_s: float
    cpus: int = Field(ge=1)
    celsius: list[float]
    governors: list[str]
    mhz: list[float]
    mhz_allowed: list[float] = Field(default_factory=list)
    mhz_most: list[float] = Field(default_factory=list)
    packages: dict[str, tuple[int, int]] = Field(default_factory=dict)
    unread: Literal["root-only", "absent", "content"] = "absent"

    @property
    def energy(self) -> Packages:
        """Counters of the processor packages."""
        if not self.packages:
            return Packages(unread=_UNREAD[self.unread])
        return Packages({name: Counter(*values) for name, values in self.packages.items()})

    @property
    def heat(self) -> Heat:
        """How hot the target is."""
        return Heat(tuple(self.celsius), clock_share(self.mhz_allowed, self.mhz_most))


class RemoteWatch:
    """Notes the load of the target when it is made, and compares when it is stopped.

    Args:
        read: Asks the target.
        real: Whether its counters are those of the device; an emulator's are of the machine that it runs on.
    """

    def __init__(self, read: Callable[[], State], real: bool = True) -> None:
        self._read, self._real, self._before = read, real, read()

    def stop(self) -> Load:
        """The load since this object was made."""
        before, after = self._before, self._read()
        others = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
        seconds = after.wall_s - before.wall_s
        wall = seconds * after.cpus
        return Load(
            before=before.load,
            after=after.load,
            others=min(1.0, max(0.0, others / wall)) if wall > 0 else None,
            thermal=hottest_words(before.celsius, after.celsius),
            clock=clock_words(after.governors, before.mhz, after.mhz),
            energy=packages_between(before.energy, after.energy, seconds) if self._real else None,
        )
