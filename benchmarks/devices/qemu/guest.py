"""Python of an unpacked Arm system, started by QEMU's user mode."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pocketbert.benchmarks.devices.qemu.processors import Processor, write_system_files
from pocketbert.core.errors import MachineError, MissingBackendError

ROOT = "POCKETBERT_ARM64_ROOT"
"""Environment variable: a folder with an unpacked Debian for arm64 that holds Python."""
EMULATOR = "qemu-aarch64"
START_S = 120.0
_ASK = "import json,platform;print(json.dumps([platform.python_version(),platform.machine(),' '.join(platform.libc_ver())]))"


class GuestFacts(NamedTuple):
    """What the Arm system is.

    Attributes:
        python: Version of Python.
        arch: Machine name.
        libc: Name and version of the C library.
    """

    python: str
    arch: str
    libc: str


@dataclass(frozen=True)
class Guest:
    """Python in the emulator.

    Attributes:
        where: The device, for errors.
        launcher: The command that starts it; arguments of Python follow.
        environment: What it needs in its environment, in addition to that of this process.
    """

    where: str
    launcher: tuple[str, ...]
    environment: Mapping[str, str]

    @classmethod
    def of(cls, where: str, one: Processor, folder: Path, options: Sequence[str] = ()) -> Guest:
        """Prepare an emulated processor.

        Args:
            where: The device, for errors.
            one: The processor.
            folder: An existing folder, in which the system files of the processor are written.
            options: Further options of the emulator.

        Raises:
            MissingBackendError: If QEMU or the unpacked Arm system is missing.
        """
        emulator, python = find_emulator(where), unpacked_python()
        if python is None:
            command = f"export {ROOT}=FOLDER (see docs/devices.md; 'make tools' in the source tree unpacks one)"
            raise MissingBackendError(f"{where}: an Arm system with Python", command)
        root, prefix = python.parents[2], folder / "system"
        prefix.mkdir()
        write_system_files(one, root, prefix)
        launcher = (emulator, "-L", str(prefix), "-cpu", one.name, *options, str(python))
        return cls(where, launcher, {"PYTHONHOME": str(root / "usr")})

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None, timeout_s: float = START_S
    ) -> str:
        """Run Python to its end.

        Args:
            arguments: Python's arguments.
            environment: Further variables.
            timeout_s: How long it may take, in seconds.

        Returns:
            What it printed.

        Raises:
            MachineError: If it fails or takes longer.
        """
        try:
            done = subprocess.run(
                [*self.launcher, *arguments],
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
                env={**os.environ, **self.environment, **(environment or {})},
            )
        except subprocess.TimeoutExpired as error:
            raise MachineError(f"{self.where}: took more than {timeout_s:.0f} s in the emulator.") from error
        if done.returncode:
            how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise MachineError(f"{self.where}: Python in the emulator ended with {how}: {last}")
        return done.stdout

    def facts(self) -> GuestFacts:
        """Ask Python what it is: its first start, which shows that it works, and that QEMU takes its options.

        Raises:
            MachineError: If it does not.
        """
        said = self.run(["-c", _ASK])
        try:
            return GuestFacts(*(str(part) for part in json.loads(said)))
        except (ValueError, TypeError) as error:
            raise MachineError(f"{self.where}: Python in the emulator prints something else than asked for.") from error


def find_emulator(where: str) -> str:
    """The path of the emulator.

    Raises:
        MissingBackendError: If it is not installed.
    """
    emulator = shutil.which(EMULATOR)
    if emulator is None:
        raise MissingBackendError(f"{where}: {EMULATOR}", "sudo apt-get install qemu-user")
    return emulator


def unpacked_python() -> Path | None:
    """Python of the unpacked Arm system; None where there is none."""
    root = Path(os.environ.get(ROOT) or "/nonexistent").absolute()
    return next(iter(sorted(root.glob("usr/bin/python3.[0-9]*"))), None)


def emulator_version(emulator: str) -> str:
    """The version of an emulator, e.g. ``7.2.22``."""
    said = subprocess.run([emulator, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"version (\d[\w.]*)", said)
    return found[1] if found else "of unknown version"
