"""What else the machine was doing while something was measured."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

from pocketbert.benchmarks.energy import Energy, PackageWatch
from pocketbert.core.host.hardware import load_average


class Load(BaseModel):
    """Load during a measurement.

    Attributes:
        before: Load average over the last minute at the start; None where the system does not tell.
        after: The same at the end; it contains the measurement's own work.
        others: Share of all CPU time that went to other processes and, in a virtual machine, to other
            guests meanwhile; 0 on a quiet machine; None where it was not counted.
        thermal: Temperature or thermal state, in the device's own words; empty where it does not tell.
        clock: Governor and clock rate before and after, in words; empty where the device does not tell.
        energy: Energy meanwhile, of everything that the device's counter sees; None where none was looked for.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    before: float | None
    after: float | None
    others: float | None
    thermal: str = ""
    clock: str = ""
    energy: Energy | None = None

    @property
    def summary(self) -> str:
        """For the line under a figure."""
        average = (
            [f"load average {self.before:.2f} → {self.after:.2f}"]
            if self.before is not None and self.after is not None
            else []
        )
        others = [] if self.others is None else [f"other processes used {self.others * 100:.0f} % of the CPU time"]
        thermal = [self.thermal] if self.thermal else []
        clock = [self.clock] if self.clock else []
        energy = [self.energy.words] if self.energy else []
        return ", ".join([*average, *others, *thermal, *clock, *energy]) or "load not known"


@dataclass(frozen=True)
class Heat:
    """How hot a device is at a moment.

    Attributes:
        celsius: Temperatures of its sensors in °C, always in the same order; empty where it tells none.
        clock: Highest clock rate that its cores may take now, as a share of their highest one; None where it does not tell.
            The system lowers it where a processor is too hot.
    """

    celsius: Sequence[float] = ()
    clock: float | None = None

    def rise(self, start: Heat) -> float:
        """Largest rise of a sensor since `start` in °C, sensor by sensor: a disk that is always hotter hides no processor."""
        if not self.celsius or not start.celsius:
            return 0.0
        if len(self.celsius) != len(start.celsius):
            return max(self.celsius) - max(start.celsius)
        return max(now - then for now, then in zip(self.celsius, start.celsius, strict=True))

    def slowed(self, start: Heat) -> float:
        """By how much the allowed share of the clock rate is below that of `start`."""
        return 0.0 if self.clock is None or start.clock is None else start.clock - self.clock


def hottest_words(before: Sequence[float], after: Sequence[float]) -> str:
    """The hottest of some temperatures in °C, before and after; empty where none was read."""
    return f"hottest sensor {max(before):.0f} → {max(after):.0f} °C" if before and after else ""


def clock_words(governors: Sequence[str], before: Sequence[float], after: Sequence[float]) -> str:
    """Governors and the highest clock rate in MHz, before and after; empty where none was read."""
    if not before or not after:
        return ""
    named = f"governor {', '.join(governors)}, " if governors else ""
    return f"{named}fastest core {max(before):.0f} → {max(after):.0f} MHz"


class LoadWatch:
    """Notes the load when it is made, and compares when it is stopped."""

    def __init__(self) -> None:
        self._before, self._celsius, self._mhz = _average(), _temperatures(), _clock_rates()
        self._energy = PackageWatch()
        self._busy, self._own, self._wall = _busy_seconds(), _own_seconds(), time.monotonic()

    def stop(self) -> Load:
        """The load since this object was made."""
        wall = time.monotonic() - self._wall
        others = (_busy_seconds() - self._busy) - (_own_seconds() - self._own)
        share = others / (wall * (psutil.cpu_count() or 1)) if wall > 0 else 0.0
        return Load(
            before=self._before,
            after=_average(),
            others=min(1.0, max(0.0, share)),
            thermal=hottest_words(self._celsius, _temperatures()),
            clock=clock_words(_governors(), self._mhz, _clock_rates()),
            energy=self._energy.stop(wall),
        )


def _average() -> float | None:
    value = load_average()
    return None if math.isnan(value) else value


def _own_seconds() -> float:
    """CPU seconds of this process and of those that it started and waited for, which time files too."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def _busy_seconds() -> float:
    """CPU seconds since boot that were neither idle nor waiting, stolen ones included."""
    times = psutil.cpu_times()._asdict()
    # Linux counts guest time inside user time as well.
    return float(sum(v for k, v in times.items() if k not in ("idle", "iowait", "guest", "guest_nice")))


def _temperatures() -> list[float]:
    """Temperatures of all sensors in °C; none where the system shows none, as most virtual machines do."""
    read = getattr(psutil, "sensors_temperatures", None)  # not on every system
    return [float(one.current) for group in (read().values() if read else ()) for one in group]


def _clock_rates(name: str = "scaling_cur_freq") -> list[float]:
    """Clock rates in MHz, current ones by default; none where the system has no control over them, as in most virtual machines."""
    return [int(text) / 1000 for text in _policies(name) if text.isdecimal()]


def local_heat() -> Heat:
    """How hot this machine is now."""
    return Heat(tuple(_temperatures()), clock_share(_clock_rates("scaling_max_freq"), _clock_rates("cpuinfo_max_freq")))


def clock_share(allowed: Sequence[float], most: Sequence[float]) -> float | None:
    """Lowest share of its highest clock rate that a group of cores may take; None where the rates do not belong together.

    Args:
        allowed: Highest rate that is allowed now, of each group.
        most: Highest rate of each group, in the same unit.
    """
    if not allowed or len(allowed) != len(most) or min(most) <= 0:
        return None
    return min(1.0, *(now / top for now, top in zip(allowed, most, strict=True)))


def _governors() -> list[str]:
    """Names of what chooses the clock rates."""
    return sorted({*_policies("scaling_governor")} - {""})


def _policies(name: str) -> list[str]:
    """A file of every group of cores with a common clock; Linux only."""
    out = []
    for path in sorted(Path("/sys/devices/system/cpu/cpufreq").glob(f"policy*/{name}")):
        with contextlib.suppress(OSError):
            out.append(path.read_text().strip())
    return out
