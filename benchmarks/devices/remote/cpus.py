"""Describe a machine from what its system files say, where they were read by somebody else."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from pocketbert.benchmarks.devices.arm_cores import core_names
from pocketbert.core.host.hardware import Machine, extensions


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
