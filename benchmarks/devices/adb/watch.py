"""What an Android device does while something is measured: load, clock, thermal state, battery."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from pocketbert.benchmarks.devices.adb.client import Adb
from pocketbert.benchmarks.devices.adb.facts import policies, read_clocks, read_thermal
from pocketbert.benchmarks.energy import battery_between
from pocketbert.benchmarks.load import Load, clock_words

CLOCKS = policies("scaling_cur_freq", "scaling_governor", "related_cpus")
"""Prints current kHz, governor and cores of every group of cores with a common clock."""


class AdbWatch:
    """Notes load, clock, thermal state and battery when it is made, and again when it is stopped.

    Args:
        adb: The device.
        cpus: Cores whose clock is read; empty for all.
    """

    def __init__(self, adb: Adb, cpus: Sequence[int] = ()) -> None:
        self._adb, self._cpus, self._load, self._battery = adb, cpus, _load(adb), _battery(adb)
        self._thermal, self._began = _thermal(adb, self._battery), time.monotonic()
        self._clock = read_clocks(adb.script(CLOCKS), cpus)  # last, when the calls above have least to do with it

    def stop(self) -> Load:
        """The load, the clock and the thermal facts since this object was made."""
        clock = read_clocks(self._adb.script(CLOCKS), self._cpus)  # first, before it falls again
        battery, seconds = _battery(self._adb), time.monotonic() - self._began
        thermal = _thermal(self._adb, battery)
        return Load(
            before=self._load,
            after=_load(self._adb),
            others=None,
            thermal=f"{self._thermal} → {thermal}" if thermal and self._thermal else "",
            clock=clock_words(sorted({*self._clock.governors, *clock.governors}), self._clock.mhz, clock.mhz),
            energy=battery_between(self._battery, battery, seconds),
        )


def _load(adb: Adb) -> float | None:
    told = re.match(r"\d+\.\d+", adb.told("cat", "/proc/loadavg"))
    return float(told[0]) if told else None


def _battery(adb: Adb) -> str:
    return adb.told("dumpsys", "battery")


def _thermal(adb: Adb, battery: str) -> str:
    return read_thermal(adb.told("dumpsys", "thermalservice"), battery)
