"""What else the machine was doing while something was measured."""

from __future__ import annotations

import math
import time

import psutil
from pydantic import BaseModel, ConfigDict

from pocketbert.core.host.hardware import load_average


class Load(BaseModel):
    """Load during a measurement.

    Attributes:
        before: Load average over the last minute at the start; None where the system does not tell.
        after: The same at the end; it contains the measurement's own work.
        others: Share of all CPU time that went to other processes and, in a virtual machine, to other
            guests meanwhile; 0 on a quiet machine; None where it was not counted.
        thermal: Temperature or thermal state, in the device's own words; empty where it does not tell.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    before: float | None
    after: float | None
    others: float | None
    thermal: str = ""

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
        return ", ".join([*average, *others, *thermal]) or "load not known"


class LoadWatch:
    """Notes the load when it is made, and compares when it is stopped."""

    def __init__(self) -> None:
        self._before, self._hottest = _average(), _hottest()
        self._busy, self._own, self._wall = _busy_seconds(), time.process_time(), time.monotonic()

    def stop(self) -> Load:
        """The load since this object was made."""
        wall = time.monotonic() - self._wall
        others = (_busy_seconds() - self._busy) - (time.process_time() - self._own)
        share = others / (wall * (psutil.cpu_count() or 1)) if wall > 0 else 0.0
        return Load(
            before=self._before, after=_average(), others=min(1.0, max(0.0, share)), thermal=self._thermal(_hottest())
        )

    def _thermal(self, after: float | None) -> str:
        if self._hottest is None or after is None:
            return ""
        return f"hottest sensor {self._hottest:.0f} → {after:.0f} °C"


def _average() -> float | None:
    value = load_average()
    return None if math.isnan(value) else value


def _busy_seconds() -> float:
    """CPU seconds since boot that were neither idle nor waiting, stolen ones included."""
    times = psutil.cpu_times()._asdict()
    # Linux counts guest time inside user time as well.
    return float(sum(v for k, v in times.items() if k not in ("idle", "iowait", "guest", "guest_nice")))


def _hottest() -> float | None:
    """Temperature of the hottest sensor in °C; None where the system shows none, as most virtual machines do."""
    read = getattr(psutil, "sensors_temperatures", None)  # not on every system
    groups = read().values() if read else ()
    return max((float(one.current) for group in groups for one in group), default=None)
