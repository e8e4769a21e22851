"""What else a machine was doing while something was measured: load, heat, clock rate, energy.

`LoadWatch` compares this machine at two moments and returns a `Load`; devices elsewhere make theirs with `energy_of_packages`,
`energy_of_battery`, `describe_hottest` and `describe_clock`. `Cooling` waits until a device is about as cool as at the beginning, for which
`read_local_heat` reads this machine's `Heat`.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

from pocketbert.benchmarks.records import CoolDown
from pocketbert.core.host.hardware import load_average

# --- energy ----------------------------------------------------------------------------------------------------------------------

POWERCAP = Path("/sys/class/powercap")
"""Where Linux shows the counters of Intel's and AMD's processors. Since 2020 only root may read them."""
_PACKAGE = re.compile(r"intel-rapl:\d+")  # AMD's counters have this name too; parts of a package have a second number
_DISCHARGING = 3


class Energy(BaseModel):
    """Energy between two readings of a counter for the whole device, other processes and idle times included.

    Attributes:
        joules: The energy; None if it could not be read.
        seconds: Time between the readings.
        source: Name of the energy counter.
        why: Why the energy could not be read; empty if it was.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    joules: float | None
    seconds: float
    source: str
    why: str = ""

    @property
    def words(self) -> str:
        """The energy in words, for reports."""
        if self.joules is None:
            return f"energy not readable ({self.why})"
        watts = f", {self.joules / self.seconds:.2f} W on average" if self.seconds > 0 else ""
        return f"energy {self.joules:.1f} J in {self.seconds:.0f} s{watts} ({self.source})"


@dataclass(frozen=True)
class Counter:
    """An energy counter that wraps to zero above `range`.

    Attributes:
        microjoules: Value of the counter.
        range: Largest value of the counter.
    """

    microjoules: int
    range: int


class Unread(StrEnum):
    """Why the energy counters cannot be read, as it is printed in reports."""

    ROOT_ONLY = "the counters are readable by root only"
    ABSENT = "the system has no counter"
    CONTENT = "unknown content"


@dataclass(frozen=True)
class Packages:
    """One reading of the energy counters of the processor packages (RAPL).

    Attributes:
        counters: The counters by name; empty if they cannot be read.
        unread: Why the counters cannot be read; None if they can.
    """

    counters: Mapping[str, Counter] = field(default_factory=dict)
    unread: Unread | None = None


def _read_packages(root: Path = POWERCAP) -> Packages:
    """Read the energy counters of the processor packages (RAPL) from the Linux powercap folder.

    Args:
        root: The powercap folder, ``/sys/class/powercap`` on Linux.
    """
    try:
        zones = sorted(path for path in root.iterdir() if _PACKAGE.fullmatch(path.name))
        counters = {
            zone.name: Counter(int((zone / "energy_uj").read_text()), int((zone / "max_energy_range_uj").read_text()))
            for zone in zones
        }
    except PermissionError:
        return Packages(unread=Unread.ROOT_ONLY)
    except OSError:
        return Packages(unread=Unread.ABSENT)
    except ValueError:
        return Packages(unread=Unread.CONTENT)
    return Packages(counters) if counters else Packages(unread=Unread.ABSENT)


def energy_of_packages(before: Packages, after: Packages, seconds: float) -> Energy:
    """Return the energy that all processor packages used between two readings; each counter may have wrapped once.

    `joules` is None, with the reason, if a reading failed or the counters changed.

    Args:
        before: The first reading.
        after: The second reading.
        seconds: Seconds between the readings.
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


class _PackageWatch:
    """Measures the energy of the processor packages from its creation until `stop`.

    Args:
        root: The powercap folder of the system.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        self._root, self._before = root, _read_packages(root)

    def stop(self, seconds: float) -> Energy:
        """Return the energy from the creation of this object until now.

        Args:
            seconds: Seconds since its creation.
        """
        return energy_of_packages(self._before, _read_packages(self._root), seconds)


def energy_of_battery(before: str, after: str, seconds: float) -> Energy | None:
    """Return the energy that a phone's battery lost between two outputs of ``dumpsys battery``.

    The charge counter has steps of about 1 mAh, so that it takes minutes until it changes.

    Returns:
        Charge (µAh) multiplied by the mean voltage (mV). `joules` is None, with the reason, if the battery is not
        discharging or the counter has not changed. None if the phone does not report charge, voltage and status.
    """
    then, now = _battery_fields(before), _battery_fields(after)
    if not then or not now:
        return None
    source, why = "battery's charge counter times voltage, whole phone", ""
    charge_c = (then["charge"] - now["charge"]) * 3600e-6
    if {then["status"], now["status"]} != {_DISCHARGING}:
        why = "the battery is not discharging: connect by Wi-Fi"
    elif charge_c <= 0:
        why = "too short for the steps of the charge counter"
    joules = None if why else charge_c * (then["voltage"] + now["voltage"]) / 2000
    return Energy(joules=joules, seconds=seconds, source=source, why=why)


def _battery_fields(text: str) -> dict[str, int]:
    """Read charge counter, voltage and status from ``dumpsys battery`` output; an empty dict if one is missing."""
    fields = {"charge": "Charge counter", "voltage": "voltage", "status": "status"}
    matches = {key: re.search(rf"^\s*{name}: (\d+)\s*$", text, re.MULTILINE) for key, name in fields.items()}
    return {key: int(match[1]) for key, match in matches.items() if match} if all(matches.values()) else {}


# --- load ------------------------------------------------------------------------------------------------------------------------


class Load(BaseModel):
    """What else the device did during a measurement: load average, other processes, heat, clock rate, energy.

    Attributes:
        before: Load average over the last minute at the start; None if the system has none.
        after: Load average at the end, which includes the measurement itself.
        others: Share of all CPU time that other processes used meanwhile and, in a virtual machine, other guests; 0 on
            a quiet machine, None if it was not counted.
        thermal: Temperature or thermal state as the device words it; empty if it reports none.
        clock: Governor and clock rate before and after, in words; empty if the device reports none.
        energy: Energy of the whole device meanwhile; None if no counter is read.
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
        """The load in one line of text, for reports."""
        average = others = ""
        if self.before is not None and self.after is not None:
            average = f"load average {self.before:.2f} → {self.after:.2f}"
        if self.others is not None:
            others = f"other processes used {self.others * 100:.0f} % of the CPU time"
        energy = self.energy.words if self.energy else ""
        return ", ".join(filter(None, (average, others, self.thermal, self.clock, energy))) or "load not known"


@dataclass(frozen=True)
class Heat:
    """Temperatures and clock limit of a device at a moment.

    Attributes:
        celsius: Temperatures of the device's sensors in °C, always in the same order; empty if it reports none.
        clock: Highest clock rate that the cores may have now, as a share of the highest possible one; None if it is not
            reported. The system lowers it when a processor is too hot.
    """

    celsius: Sequence[float] = ()
    clock: float | None = None

    def rise(self, start: Heat) -> float:
        """Return the largest rise of any sensor since `start`, in °C; 0 if there is no reading.

        If the number of sensors has changed, it is the rise of the hottest reading.
        """
        if not self.celsius or not start.celsius:
            return 0.0
        if len(self.celsius) != len(start.celsius):
            return max(self.celsius) - max(start.celsius)
        return max(now - then for now, then in zip(self.celsius, start.celsius, strict=True))

    def slowed(self, start: Heat) -> float:
        """Return by how much the allowed share of the highest clock rate fell since `start`: 0.2 from 100 % to 80 %.

        It is 0 if the share is not known.
        """
        return 0.0 if self.clock is None or start.clock is None else start.clock - self.clock


def describe_hottest(before: Sequence[float], after: Sequence[float]) -> str:
    """Return "hottest sensor 40 → 52 °C" from the temperatures before and after; empty if none was read."""
    return f"hottest sensor {max(before):.0f} → {max(after):.0f} °C" if before and after else ""


def describe_clock(governors: Sequence[str], before: Sequence[float], after: Sequence[float]) -> str:
    """Return the clock governors and the fastest core's MHz before and after, as text; empty if none was read."""
    if not before or not after:
        return ""
    named = f"governor {', '.join(governors)}, " if governors else ""
    return f"{named}fastest core {max(before):.0f} → {max(after):.0f} MHz"


class LoadWatch:
    """Records the load of this machine from its creation until `stop`."""

    def __init__(self) -> None:
        self._before, self._celsius, self._mhz = _load_average(), _temperatures(), _clock_rates()
        self._energy = _PackageWatch()
        self._busy, self._own, self._wall = _busy_seconds(), _own_seconds(), time.monotonic()

    def stop(self) -> Load:
        """Return load, other processes, temperature, clock rate and energy since this object was created."""
        wall = time.monotonic() - self._wall
        others = (_busy_seconds() - self._busy) - (_own_seconds() - self._own)
        share = others / (wall * (psutil.cpu_count() or 1)) if wall > 0 else 0.0
        return Load(
            before=self._before,
            after=_load_average(),
            others=min(1.0, max(0.0, share)),
            thermal=describe_hottest(self._celsius, _temperatures()),
            clock=describe_clock(sorted({*_read_policies("scaling_governor")} - {""}), self._mhz, _clock_rates()),
            energy=self._energy.stop(wall),
        )


def _load_average() -> float | None:
    """Return the load average over the last minute; None where the system has none."""
    value = load_average()
    return None if math.isnan(value) else value


def _own_seconds() -> float:
    """Return the CPU seconds of this process and its ended child processes, which time files too."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def _busy_seconds() -> float:
    """Return this machine's busy CPU seconds since boot, including time stolen by other guests."""
    times = psutil.cpu_times()._asdict()
    # Linux counts guest time inside user time as well.
    return float(sum(v for k, v in times.items() if k not in ("idle", "iowait", "guest", "guest_nice")))


def _temperatures() -> list[float]:
    """Return the temperatures of all sensors in °C; empty if there are none, as in most virtual machines."""
    read = getattr(psutil, "sensors_temperatures", None)  # not on every system
    return [float(one.current) for group in (read().values() if read else ()) for one in group]


def _clock_rates(name: str = "scaling_cur_freq") -> list[float]:
    """Return clock rates in MHz, by default the current ones; empty if the system does not report them."""
    return [int(text) / 1000 for text in _read_policies(name) if text.isdecimal()]


def read_local_heat() -> Heat:
    """Read temperatures and clock limit of this machine."""
    return Heat(
        tuple(_temperatures()), lowest_clock_share(_clock_rates("scaling_max_freq"), _clock_rates("cpuinfo_max_freq"))
    )


def lowest_clock_share(allowed: Sequence[float], most: Sequence[float]) -> float | None:
    """Return the lowest share of its highest clock rate that a group of cores may have now.

    None if the lists are empty, differ in length, or a highest rate is 0.

    Args:
        allowed: Highest rate that each group may have now.
        most: Highest rate that each group can have, in the same unit.
    """
    if not allowed or len(allowed) != len(most) or min(most) <= 0:
        return None
    return min(1.0, *(now / top for now, top in zip(allowed, most, strict=True)))


def _read_policies(name: str) -> list[str]:
    """Read the cpufreq file `name` of every group of cores with a common clock; an empty list outside Linux."""
    texts = []
    for path in sorted(Path("/sys/devices/system/cpu/cpufreq").glob(f"policy*/{name}")):
        with contextlib.suppress(OSError):
            texts.append(path.read_text().strip())
    return texts


# --- cooling ---------------------------------------------------------------------------------------------------------------------

_MARGIN_C, _MARGIN_CLOCK = 3.0, 0.02
"""A device is cool where no sensor is further above its first reading, in °C, and its clock rate is not limited more, as a share."""
_MOST_S, _MOST_SHARE = 60.0, 0.5
"""Most seconds that all waits of a session take, and most of its budget."""
_LOOK_S = 1.0
"""Between two readings."""


class Cooling:
    """Waits until a device is about as cool as when this object was created, and keeps a record of each wait.

    A measurement heats a processor, which would make the next file slower. A device that does not report its heat is
    not waited for. The time for waiting is limited, and does not count for the budget of the benchmark.

    Args:
        read: Function that reads how hot the device is; None if that cannot be read. It is first called when this
            object is created.
        budget_s: Seconds that the measurement may take, of which a share is the limit for waiting.
    """

    def __init__(self, read: Callable[[], Heat] | None, budget_s: float) -> None:
        self._read = read or Heat
        self._start = self._read()
        self.most_s = min(_MOST_S, _MOST_SHARE * budget_s)
        self.waits: list[CoolDown] = []

    @property
    def waited_s(self) -> float:
        """Seconds of all waits."""
        return sum(wait.seconds for wait in self.waits)

    def wait(self, before: str, tell: Callable[[str], None], most_s: float | None = None) -> None:
        """Wait until the device is about as cool as at the start, or until the limit for waiting is reached.

        The wait is added to `waits`. A device that is cool already is not waited for.

        Args:
            before: What will be measured next, in words.
            tell: Function that prints a line about the wait.
            most_s: Largest number of seconds to wait now; by default what is left of the limit.
        """
        then = now = self._read()
        if self._is_cool(now):
            return
        began, left = time.monotonic(), self.most_s - self.waited_s if most_s is None else most_s
        if left > 0:
            tell(f"waits until it is cool, before {before}")
        while not self._is_cool(now) and (waited := time.monotonic() - began) < left:
            time.sleep(min(_LOOK_S, left - waited))
            now = self._read()
        self.waits.append(
            CoolDown(
                before=before,
                seconds=round(time.monotonic() - began, 3),
                rise_before=round(then.rise(self._start), 1),
                rise_after=round(now.rise(self._start), 1),
                slowed_before=round(max(0.0, then.slowed(self._start)), 3),
                slowed_after=round(max(0.0, now.slowed(self._start)), 3),
                cool=self._is_cool(now),
            )
        )

    def note(self) -> str:
        """Return a sentence on how often and how long the device was waited for; empty if it never was."""
        if not self.waits:
            return ""
        late = [wait for wait in self.waits if not wait.cool]
        times = f"{len(self.waits)} time" + "s" * (len(self.waits) > 1)
        waited = f"Waited {times}, {self.waited_s:.0f} s in all, for the device to cool down"
        if not late:
            return f"{waited} to within {_MARGIN_C:g} °C of the beginning."
        names = ", ".join(wait.before for wait in late)
        return f"{waited}; before {names} it was still warm when the time for waiting was over, {late[-1].words}."

    def _is_cool(self, heat: Heat) -> bool:
        return heat.rise(self._start) <= _MARGIN_C and heat.slowed(self._start) <= _MARGIN_CLOCK
