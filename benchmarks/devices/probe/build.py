"""Build the probe for a processor with a compiler that is found: the system's, one below `.cache`, or Zig's."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from pocketbert.benchmarks.devices.probed import ProbeProgram
from pocketbert.core.disk.files import sha256_file
from pocketbert.core.errors import InputError, MachineError, MissingBackendError, Problem

CROSS = "POCKETBERT_CROSS"
"""Environment variable: a folder with an unpacked cross compiler of Debian; default: the one that `make tools` unpacks."""
ARCHITECTURES = {"aarch64": "aarch64", "arm64": "aarch64", "x86_64": "x86_64", "amd64": "x86_64"}
"""What the program is written for, by the names that ``uname -m`` gives."""
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-O3", "-static")
BUILD_S = 900.0
"""Zig builds its C library first: that took 7 minutes on a loaded machine."""
_VERSION_S = 60.0


@dataclass(frozen=True)
class ProbeCompiler:
    """A C compiler.

    Attributes:
        command: How it is started.
        environment: What it needs in addition to the environment of this process.
    """

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Start it."""
        return subprocess.run(
            [*self.command, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **self.environment},
        )


@dataclass(frozen=True)
class BuiltProbe:
    """The program.

    Attributes:
        path: The file.
        program: What it is.
    """

    path: Path
    program: ProbeProgram


def compilers(arch: str) -> Iterator[ProbeCompiler]:
    """Compilers of this machine that may build static programs for a processor, best first."""
    if ARCHITECTURES.get(platform.machine()) == arch and platform.system() == "Linux":
        yield from (ProbeCompiler((found,)) for name in ("gcc", "cc") if (found := shutil.which(name)))
    yield from (ProbeCompiler((found,)) for name in _cross_names(arch) if (found := shutil.which(name)))
    unpacked = cross_folder()
    libraries = ":".join(map(str, sorted(unpacked.glob("usr/lib/*-linux-gnu"))))
    for name in _cross_names(arch):
        if (unpacked / "usr/bin" / name).is_file():
            yield ProbeCompiler((str(unpacked / "usr/bin" / name),), {"LD_LIBRARY_PATH": libraries})
    if importlib.util.find_spec("ziglang") is not None:
        yield ProbeCompiler((sys.executable, "-P", "-m", "ziglang", "cc", "-target", f"{arch}-linux-musl"))


def _cross_names(arch: str) -> list[str]:
    name = f"{arch.replace('_', '-')}-linux-gnu-gcc"
    return [name, *(f"{name}-{version}" for version in range(15, 9, -1))]


def cross_folder() -> Path:
    """Where the cross compiler is unpacked: what `CROSS` names, else ``.cache/tools/cross`` of the checkout."""
    named = os.environ.get(CROSS)
    return Path(named) if named else Path(__file__).resolve().parents[3] / ".cache" / "tools" / "cross"


def architecture(machine: str, where: str) -> str:
    """The processor that ``uname -m`` names.

    Raises:
        InputError: If the program is not written for it.
    """
    arch = ARCHITECTURES.get(machine.strip())
    if arch is None:
        what = f"its processor is {machine.strip()!r}; the probe is written for aarch64 and x86_64."
        raise InputError(Problem(where, what))
    return arch


def build_probe(arch: str, folder: Path, where: str) -> BuiltProbe:
    """Build the program.

    Args:
        arch: ``aarch64`` or ``x86_64``.
        folder: An existing folder, into which sources and program are written.
        where: The device, for errors.

    Raises:
        MissingBackendError: If there is no compiler.
        MachineError: If every compiler fails.
    """
    sources = []
    for entry in resources.files(__package__).iterdir():
        if entry.name.endswith((".c", ".h")):
            (folder / entry.name).write_bytes(entry.read_bytes())
            sources += [str(folder / entry.name)] if entry.name.endswith(".c") else []
    failures = []
    for compiler in compilers(arch):
        program = folder / "probe"
        try:
            done = compiler.run(*FLAGS, "-o", str(program), *sorted(sources), timeout_s=BUILD_S)
            version = compiler.run("--version", timeout_s=_VERSION_S).stdout
        except (OSError, subprocess.TimeoutExpired) as error:
            failures.append(f"{compiler.command[0]}: {error}")
            continue
        if done.returncode == 0 and program.is_file():
            words = (version.strip().splitlines() or [compiler.command[0]])[0]
            told = ProbeProgram(arch=arch, compiler=words, sha256=sha256_file(program))
            return BuiltProbe(program, told)
        failures.append(f"{' '.join(compiler.command)}: {_reason(done)}")
    if failures:
        raise MachineError(f"{where}: the probe cannot be built: {'; '.join(failures)}")
    package = f"gcc-{arch.replace('_', '-')}-linux-gnu"
    raise MissingBackendError(
        f"{where}: a C compiler for {arch}", f"sudo apt-get install {package} (or: pip install ziglang)"
    )


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """Why a compiler failed: its first error, else its last line."""
    lines = done.stderr.strip().splitlines()
    errors = [line for line in lines if "error" in line]
    return (errors or lines[-1:] or [f"exit status {done.returncode}"])[0][:300]
