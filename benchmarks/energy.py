"""Energy that a system counts while something is measured: processor packages (RAPL), and the battery of a phone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict

POWERCAP = Path("/sys/class/powercap")
"""Where Linux shows the counters of Intel's and AMD's processors. Since 2020 only root may read them."""
_PACKAGE = re.compile(r"intel-rapl:\d+")  # AMD's counters have this name too; parts of a package have a second number
_DISCHARGING = 3


class Energy(BaseModel):
    """Energy between two readings, of everything that the counter sees: all files, idle times and other processes.

    Attributes:
        joules: Energy; None where it could not be read.
        seconds: Time between the readings.
        source: What counted it.
        why: Why it could not be read; empty where it was.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    joules: float | None
    seconds: float
    source: str
    why: str = ""

    @property
    def words(self) -> str:
        """For the line under a figure."""
        if self.joules is None:
            return f"energy not readable ({self.why})"
        watts = f", {self.joules / self.seconds:.2f} W on average" if self.seconds > 0 else ""
        return f"energy {self.joules:.1f} J in {self.seconds:.0f} s{watts} ({self.source})"


@dataclass(frozen=True)
class Counter:
    """A counter of energy that starts again at zero after its range.

    Attributes:
        microjoules: Its value.
        range: Its largest value.
    """

    microjoules: int
    range: int


class Unread(StrEnum):
    """Why counters of energy cannot be read, in the words of a figure's line."""

    ROOT_ONLY = "the counters are readable by root only"
    ABSENT = "the system has no counter"
    CONTENT = "unknown content"


@dataclass(frozen=True)
class Packages:
    """Counters of the processor packages at a moment.

    Attributes:
        counters: By name; empty where they cannot be read.
        unread: Why they cannot be read; None where they were.
    """

    counters: Mapping[str, Counter] = field(default_factory=dict)
    unread: Unread | None = None


def read_packages(root: Path = POWERCAP) -> Packages:
    """Read the counters of the processor packages.

    Args:
        root: Where the system shows them.
    """
    try:
        zones = sorted(path for path in root.iterdir() if _PACKAGE.fullmatch(path.name))
        counters = {z.name: Counter(_number(z / "energy_uj"), _number(z / "max_energy_range_uj")) for z in zones}
    except PermissionError:
        return Packages(unread=Unread.ROOT_ONLY)
    except OSError:
        return Packages(unread=Unread.ABSENT)
    except ValueError:
        return Packages(unread=Unread.CONTENT)
    return Packages(counters) if counters else Packages(unread=Unread.ABSENT)


def packages_between(before: Packages, after: Packages, seconds: float) -> Energy:
    """Energy of all packages between two readings, less than one range of the counters apart.

    Args:
        before: The first reading.
        after: The second one.
        seconds: Time between them.
    """
    unread = before.unread or after.unread
    if unread is None and before.counters.keys() != after.counters.keys():
        unread = Unread.CONTENT
    if unread is not None:
        return Energy(joules=None, seconds=seconds, source="RAPL", why=unread)
    spent = 0
    for name, then in before.counters.items():
        difference = after.counters[name].microjoules - then.microjoules
        spent += difference if difference >= 0 else difference + then.range + 1
    return Energy(joules=spent / 1e6, seconds=seconds, source="RAPL, processor packages")


class PackageWatch:
    """Reads the counters of the processor packages when it is made, and again when it is stopped.

    Args:
        root: Where the system shows them.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        self._root, self._before = root, read_packages(root)

    def stop(self, seconds: float) -> Energy:
        """Return the energy since this object was made.

        Args:
            seconds: How long ago that was.
        """
        return packages_between(self._before, read_packages(self._root), seconds)


def battery_between(before: str, after: str, seconds: float) -> Energy | None:
    """Energy that a phone's battery gave between two outputs of ``dumpsys battery``.

    The charge counter has steps of about 1 mAh, so that it takes minutes to say anything.

    Returns:
        Charge (µAh) times mean voltage (mV); None where the phone tells neither.
    """
    then, now = _battery(before), _battery(after)
    source = "battery's charge counter times voltage, whole phone"
    if not then or not now:
        return None
    if {then["status"], now["status"]} != {_DISCHARGING}:
        return Energy(
            joules=None, seconds=seconds, source=source, why="the battery is not discharging: connect by Wi-Fi"
        )
    charge_c = (then["charge"] - now["charge"]) * 3600e-6
    if charge_c <= 0:
        return Energy(joules=None, seconds=seconds, source=source, why="too short for the steps of the charge counter")
    return Energy(joules=charge_c * (then["voltage"] + now["voltage"]) / 2000, seconds=seconds, source=source)


def _battery(text: str) -> dict[str, int]:
    """Charge counter, voltage and status; empty where one of them is missing."""
    fields = {"charge": "Charge counter", "voltage": "voltage", "status": "status"}
    found = {key: re.search(rf"^\s*{name}: (\d+)\s*$", text, re.MULTILINE) for key, name in fields.items()}
    return {key: int(match[1]) for key, match in found.items() if match} if all(found.values()) else {}


def _number(path: Path) -> int:
    return int(path.read_text())
