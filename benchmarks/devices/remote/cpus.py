"""Describe a machine from what its system files say, where they were read by somebody else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from pocketbert.core.host.hardware import Machine, extensions

_ARM = "0x41"
_PARTS = {
    "0xd03": "Cortex-A53",
    "0xd04": "Cortex-A35",
    "0xd05": "Cortex-A55",
    "0xd07": "Cortex-A57",
    "0xd08": "Cortex-A72",
    "0xd09": "Cortex-A73",
    "0xd0a": "Cortex-A75",
    "0xd0b": "Cortex-A76",
    "0xd0c": "Neoverse-N1",
    "0xd0d": "Cortex-A77",
    "0xd40": "Neoverse-V1",
    "0xd41": "Cortex-A78",
    "0xd42": "Cortex-A78AE",
    "0xd44": "Cortex-X1",
    "0xd46": "Cortex-A510",
    "0xd47": "Cortex-A710",
    "0xd48": "Cortex-X2",
    "0xd49": "Neoverse-N2",
    "0xd4d": "Cortex-A715",
    "0xd4e": "Cortex-X3",
    "0xd4f": "Neoverse-V2",
    "0xd80": "Cortex-A520",
    "0xd81": "Cortex-A720",
    "0xd82": "Cortex-X4",
}
"""Part numbers of Arm's own cores (field PartNum of MIDR_EL1 in their reference manuals), as ``/proc/cpuinfo`` prints them."""


class Facts(BaseModel):
    """What an agent tells of its machine.

    Attributes:
        python: Python version.
        arch: ``x86_64``, ``aarch64``, ...
        system: Kernel and release.
        libc: C library and version, e.g. ``glibc 2.36``; empty where it is another one.
        cores: CPUs that a process may use.
        cpu: Name of the CPU; empty on Arm, where the kernel knows part numbers only.
        board: Name of the board; empty where the firmware gives none.
        parts: Implementer and part number of every core, e.g. ``0x41:0xd0b``; empty on x86.
        flags: Instruction-set extensions by the kernel's names.
        free_bytes: Space that is left for temporary files.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    python: str = Field(max_length=40, pattern=r"^\d+\.\d+\.\d")
    arch: str = Field(max_length=40)
    system: str = Field(max_length=200)
    libc: str = Field(max_length=40)
    cores: int = Field(ge=1)
    cpu: str = Field(max_length=200)
    board: str = Field(max_length=200)
    parts: list[str] = Field(max_length=4096)
    flags: list[str] = Field(max_length=1000)
    free_bytes: int

    @property
    def machine(self) -> Machine:
        """As every figure carries it."""
        cores = core_names(self.parts)
        name = f"{self.board} ({cores})" if self.board and cores else self.cpu or self.board or cores or self.arch
        return Machine(
            cpu=name,
            arch=self.arch,
            isa=extensions(self.arch, self.flags),
            cores=self.cores,
            system=self.system,
            python=self.python,
        )


def core_names(parts: Sequence[str]) -> str:
    """Kinds of cores in words: ``4 × Cortex-A55, 4 × Cortex-A76``; cores of other makers by their numbers."""
    counted = Counter(parts)
    return ", ".join(f"{count} × {_core(part)}" for part, count in counted.items())


def _core(part: str) -> str:
    implementer, _, number = part.partition(":")
    return _PARTS.get(number, part) if implementer == _ARM else part
