"""The CPU that results are measured on: model, instruction-set extensions, cores, load."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_X86_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16")
_ARM_FLAGS = ("asimd", "asimddp", "i8mm", "bf16", "sve", "sve2")


@dataclass(frozen=True)
class Machine:
    """The machine that a result was measured on.

    Attributes:
        cpu: Model name.
        arch: ``x86_64``, ``aarch64``, ...
        isa: Instruction-set extensions that matter for encoders.
        cores: Number of CPUs that this process may use.
        system: Operating system and release.
        python: Python version.
    """

    cpu: str
    arch: str
    isa: list[str]
    cores: int
    system: str
    python: str

    @property
    def summary(self) -> str:
        """The CPU, its cores and its instruction-set extensions in one line, for reports."""
        cores = f"{self.cores} cores, " if self.cores else ""
        return f"{self.cpu}, {cores}{self.arch} [{' '.join(self.isa) or 'no extensions seen'}]"

    @property
    def saturates(self) -> bool:
        """Whether fast int8 kernels on this CPU can saturate at 16 bits, which is so on x86 without VNNI."""
        return self.arch in ("x86_64", "AMD64") and not {"avx512_vnni", "avx_vnni"} & {*self.isa}


def describe_machine() -> Machine:
    """Describe this machine: CPU, instruction-set extensions, cores, operating system and Python version."""
    name, flags = _cpuinfo()
    arch = platform.machine()
    return Machine(
        cpu=name,
        arch=arch,
        isa=select_extensions(arch, flags),
        cores=_available_cores(),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def select_extensions(arch: str, flags: Collection[str]) -> list[str]:
    """Select the instruction-set extensions that matter for encoders from a kernel's list of CPU flags."""
    return [flag for flag in (_ARM_FLAGS if arch in ("aarch64", "arm64") else _X86_FLAGS) if flag in flags]


def default_threads() -> int:
    """Return the default number of threads: ``OMP_NUM_THREADS`` if it is a whole number above 0, else all available cores."""
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return int(setting) if setting.isdecimal() and int(setting) > 0 else _available_cores()


def load_average() -> float:
    """Return the system's load average over the last minute, or NaN if it is unknown."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return float("nan")


def usable_memory() -> int:
    """Return the bytes of memory that this process may use: the machine's, or the limit of its container if that is lower."""
    import psutil  # here, since a program that predicts needs none of it

    limits = [psutil.virtual_memory().total]
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max" where there is none
            limits.append(int(Path(name).read_text()))
    return min(limits)


def _available_cores() -> int:
    """Return the number of CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _cpuinfo() -> tuple[str, set[str]]:
    """Read the CPU's model name and feature flags from /proc/cpuinfo; without it, the platform's name and no flags."""
    path = Path("/proc/cpuinfo")
    name, flags = "", set[str]()
    if path.is_file():
        for line in path.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Hardware"):
                name = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags = set(value.split())
    return name or platform.processor() or platform.machine(), flags  # the library starts a process to find it out
