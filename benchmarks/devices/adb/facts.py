"""What Android tells of a device: its processor, clusters of cores, temperature and battery."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pocketbert.benchmarks.devices.arm_cores import core_names
from pocketbert.core.host.hardware import Machine, extensions

PROPERTIES = ("ro.product.manufacturer", "ro.product.model", "ro.soc.model", "ro.build.version.release")
_CLOCK = re.compile(r"(\d+) ((?:[A-Za-z][\w-]*)?) (\d+(?: \d+)*)")


def policies(*files: str) -> str:
    """Commands of a shell that print some files of every group of cores with a common clock, a line for each group."""
    cells = " ".join(f"$(cat $p/{file})" for file in files)
    return f'for p in /sys/devices/system/cpu/cpufreq/policy*; do echo "{cells}"; done 2>/dev/null || true'


@dataclass(frozen=True)
class Cluster:
    """Cores with a common clock.

    Attributes:
        cpus: Their numbers.
        khz: Their highest clock rate.
    """

    cpus: tuple[int, ...]
    khz: int


def read_clusters(text: str) -> list[Cluster]:
    """Clusters from lines ``<highest kHz> <number> <number> ...`` of cpufreq's policies, slowest first."""
    rows = [[int(n) for n in line.split()] for line in text.splitlines() if re.fullmatch(r"\d+(?: \d+)+", line.strip())]
    return sorted((Cluster(tuple(row[1:]), row[0]) for row in rows), key=lambda cluster: (cluster.khz, cluster.cpus))


@dataclass(frozen=True)
class Clocks:
    """Clock rates at one time.

    Attributes:
        governors: Names of what chooses them.
        mhz: Current rates of groups of cores with a common clock.
    """

    governors: tuple[str, ...]
    mhz: tuple[float, ...]


def read_clocks(text: str, cpus: Sequence[int]) -> Clocks:
    """Clock rates from lines ``<current kHz> <governor> <number> <number> ...`` of cpufreq's policies.

    Args:
        text: The lines; those without a rate, which some phones do not let the shell read, are left out.
        cpus: Cores that count; empty for all.
    """
    rows = [match for line in text.splitlines() if (match := _CLOCK.fullmatch(line.strip()))]
    chosen = [row for row in rows if not cpus or {int(cpu) for cpu in row[3].split()} & {*cpus}]
    return Clocks(tuple(row[2] for row in chosen if row[2]), tuple(int(row[1]) / 1000 for row in chosen))


def choose(clusters: Sequence[Cluster], kind: str) -> tuple[int, ...]:
    """The cores of a kind: ``little``, ``big`` or ``prime``.

    Of two clusters the faster one is big; of three and more the fastest is prime, and those between are big.

    Raises:
        ValueError: If the device has no cores of that kind.
    """
    kinds: dict[str, Sequence[Cluster]] = {}
    if len(clusters) == 2:
        kinds = {"little": clusters[:1], "big": clusters[1:]}
    elif len(clusters) > 2:
        kinds = {"little": clusters[:1], "big": clusters[1:-1], "prime": clusters[-1:]}
    if kind not in kinds:
        told = ", ".join(kinds) or "one kind of cores only"
        raise ValueError(f"has no {kind} cores; it has {told}")
    return tuple(sorted(cpu for cluster in kinds[kind] for cpu in cluster.cpus))


def mask(cpus: Sequence[int]) -> str:
    """The mask of ``taskset`` for some cores, in hexadecimal digits."""
    return f"{sum(1 << cpu for cpu in cpus):x}"


def read_machine(cpuinfo: str, properties: Sequence[str], uname: str, cpus: Sequence[int]) -> Machine:
    """The machine of every figure.

    Args:
        cpuinfo: Content of ``/proc/cpuinfo``.
        properties: Values of `PROPERTIES`, empty where the system has none.
        uname: Output of ``uname -srm``.
        cpus: The cores that may be used; empty for all.
    """
    fields = [[part.strip() for part in line.split(":", 1)] for line in cpuinfo.splitlines() if ":" in line]
    named = {row[0]: row[1] for row in reversed(fields)}
    maker, model, chip, release = (*properties, "", "", "", "")[:4]
    cores = core_names([f"{named.get('CPU implementer', '')}:{row[1]}" for row in fields if row[0] == "CPU part"])
    inner = ", ".join(part for part in (chip, cores or named.get("model name", "")) if part)
    name = f"{maker} {model}".strip()
    system, _, arch = uname.strip().rpartition(" ")
    return Machine(
        cpu=f"{name} ({inner})" if name and inner else name or inner or arch,
        arch=arch,
        isa=extensions(arch, (named.get("Features") or named.get("flags") or "").split()),
        cores=len(cpus) or sum(row[0] == "processor" for row in fields) or 1,
        system=f"Android {release}, {system}" if release else system,
        python="none",
    )


def read_thermal(service: str, battery: str) -> str:
    """Thermal status (0 none to 6 shutdown), battery temperature and level in words; empty where nothing is told.

    Args:
        service: Output of ``dumpsys thermalservice``.
        battery: Output of ``dumpsys battery``; its temperature is in tenths of a degree.
    """
    status = re.search(r"^\s*Thermal Status: (\d+)", service, re.MULTILINE)
    values = dict(re.findall(r"^\s*(temperature|level|status): (\d+)\s*$", battery, re.MULTILINE))
    words = [f"thermal status {status[1]}"] if status else []
    if "temperature" in values:
        words.append(f"battery {int(values['temperature']) / 10:.1f} °C")
    if "level" in values:
        words.append(f"charge {values['level']} %")
    return ", ".join(words)
