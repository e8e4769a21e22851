"""Run files on an emulated Arm processor: the worker of remote machines, started by QEMU's user mode."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from pocketbert.benchmarks.devices.arm_cores import core_names
from pocketbert.benchmarks.devices.protocol import Allowed, Reachable
from pocketbert.benchmarks.devices.qemu.processors import CORES, PROCESSORS, Processor, processor, write_system_files
from pocketbert.benchmarks.devices.remote.channel import BOOTSTRAP, Channel
from pocketbert.benchmarks.devices.remote.connection import RemoteConnection, RemoteFile
from pocketbert.core.devices import QEMU
from pocketbert.core.errors import InputError, MachineError, MissingBackendError, Problem
from pocketbert.core.host.hardware import Machine, extensions
from pocketbert.runtime.engines import EngineFile

ROOT = "POCKETBERT_ARM64_ROOT"
"""Environment variable: a folder with an unpacked Debian for arm64 that holds Python."""
EMULATOR = "qemu-aarch64"
START_S = 120.0
ALLOWED = (Allowed("CPU", tuple(PROCESSORS)),)
NEWER_PLUGINS = 9
"""From this version on QEMU refuses plugins of the interface that the counter is written for."""
_ASK = "import json,platform;print(json.dumps([platform.python_version(),platform.machine(),' '.join(platform.libc_ver())]))"


class QemuConnection(RemoteConnection):
    """An emulated Arm processor.

    Args:
        channel: An agent on this machine.
        one: The processor.
        launcher: What starts Python in the emulator.
        environment: Environment of the emulator.
    """

    method = (
        "Instructions of an emulated processor are counted by a plugin of QEMU around each inference, with one thread. They "
        "are a measure of work, not of time: an emulator has neither caches nor a pipeline."
    )
    own_pip = False
    real = False

    def __init__(
        self,
        channel: Channel,
        one: Processor,
        launcher: Sequence[str],
        environment: dict[str, str],
    ) -> None:
        super().__init__(channel)
        self._processor, self._held = one, contextlib.ExitStack()
        python, arch, libc = _guest(self.where, [*launcher, "-c", _ASK], environment)
        self.facts = self.facts.model_copy(update={"python": python, "arch": arch, "libc": libc})
        channel.ask("environment", values=environment)
        channel.ask("launcher", command=list(launcher))
        self.used["qemu"] = _version(launcher[0])

    def machine(self) -> Machine:
        """The emulated processor."""
        return Machine(
            cpu=f"{core_names([f'0x41:{self._processor.part}'] * CORES)}, emulated by QEMU {self.used['qemu']}",
            arch=self.facts.arch,
            isa=extensions(self.facts.arch, self._processor.features.split()),
            cores=CORES,
            system="Linux, user mode",
            python=self.facts.python,
        )

    def cold_start(self, file: EngineFile, ids: Sequence[int], threads: int, profile_runs: int) -> None:
        """Tell nothing: times of an emulator are no figures."""
        return

    def open(self, file: EngineFile, threads: int) -> RemoteFile:
        """Open a file in the emulator.

        Raises:
            InputError: For more threads than one, whose instructions cannot be counted.
        """
        if threads != 1:
            what = f"instructions are counted with 1 thread only, not with {threads}."
            raise InputError(Problem(self.where, what, "Give --threads 1."))
        return super().open(file, threads)

    def _release(self, threads: int) -> None:
        """Keep all files open: Python takes seconds to start in the emulator, and there is one number of threads."""

    def close(self) -> None:
        """End the emulator and remove its files."""
        self._held.close()

    def keep(self, held: contextlib.ExitStack) -> None:
        """Hold what `close` shall end."""
        self._held = held


def qemu_missing() -> str:
    """What keeps this machine from emulating; empty where nothing does."""
    lacking = [f"{EMULATOR} (sudo apt-get install qemu-user)"] if shutil.which(EMULATOR) is None else []
    if not (shutil.which("cc") or shutil.which("gcc")):
        lacking.append("a C compiler (sudo apt-get install gcc)")
    if _python() is None:
        lacking.append(f"an Arm system with Python (export {ROOT}=FOLDER)")
    return ", ".join(lacking)


def qemu_now() -> list[Reachable]:
    """The emulator, where everything that it needs is there; it is not started."""
    if qemu_missing():
        return []
    return [Reachable(QEMU, f"{shutil.which(EMULATOR)} with the Arm system in {os.environ[ROOT]}")]


def _python() -> Path | None:
    """Python of the unpacked Arm system."""
    root = Path(os.environ.get(ROOT) or "/nonexistent")
    return next(iter(sorted(root.glob("usr/bin/python3.[0-9]*"))), None)


def connect_qemu(argument: str) -> QemuConnection:
    """Prepare an emulated processor.

    Args:
        argument: One of `PROCESSORS`; empty for the usual one.

    Raises:
        InputError: If the processor is not one of these.
        MissingBackendError: If QEMU, a C compiler or the unpacked Arm system is missing.
        MachineError: If Python does not run in the emulator.
    """
    where = f"{QEMU}:{argument}" if argument else QEMU
    try:
        one = processor(argument)
    except ValueError as error:
        raise InputError(Problem(where, f"{error}.")) from error
    emulator, compiler = shutil.which(EMULATOR), shutil.which("cc") or shutil.which("gcc")
    if emulator is None:
        raise MissingBackendError(f"{where}: {EMULATOR}", "sudo apt-get install qemu-user")
    version = _version(emulator)
    if version.split(".")[0].isdecimal() and int(version.split(".")[0]) >= NEWER_PLUGINS:
        raise MissingBackendError(
            f"{where}: an {EMULATOR} older than {NEWER_PLUGINS}.0 (this one is {version}, whose plugins have another interface)",
            "Debian 12 has 7.2; put its qemu-aarch64 in front on the PATH",
        )
    if compiler is None:
        raise MissingBackendError(f"{where}: a C compiler", "sudo apt-get install gcc")
    root, python = Path(os.environ.get(ROOT) or "/nonexistent"), _python()
    if python is None:
        command = f"export {ROOT}=FOLDER (see docs/devices.md; 'make tools' in the source tree unpacks one)"
        raise MissingBackendError(f"{where}: an Arm system with Python", command)
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="pocketbert-qemu-")))
        prefix = folder / "system"
        prefix.mkdir()
        write_system_files(one, root, prefix)
        plugin = _build(compiler, folder, where)
        launcher = [emulator, "-L", str(prefix), "-cpu", one.name, "-plugin", f"{plugin},counter={folder / 'counter'}"]
        environment = {"PYTHONHOME": str(root / "usr"), "POCKETBERT_COUNTER": str(folder / "counter")}
        channel = Channel([sys.executable, "-c", BOOTSTRAP], where, lambda _, said: MachineError(f"{where}: {said}"))
        held.callback(channel.close)
        connection = QemuConnection(channel, one, [*launcher, str(python)], environment)
        connection.keep(held.pop_all())
        return connection


def _build(compiler: str, folder: Path, where: str) -> Path:
    """Compile the plugin that counts."""
    source, plugin = folder / "count.c", folder / "count.so"
    source.write_bytes(resources.files(__package__).joinpath("count.c").read_bytes())
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-o", str(plugin), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise MachineError(f"{where}: {compiler} cannot build the plugin of QEMU: {done.stderr.strip()[-300:]}")
    return plugin


def _guest(where: str, command: Sequence[str], environment: dict[str, str]) -> list[str]:
    """Version of Python, machine and C library in the emulator: its first start, which shows that it works."""
    try:
        done = subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
            env={**os.environ, **environment},
        )
        told = json.loads(done.stdout)
    except (ValueError, subprocess.TimeoutExpired) as error:
        said = error.stderr if isinstance(error, subprocess.TimeoutExpired) else done.stderr
        last = (str(said or "").strip().splitlines() or ["no output"])[-1]
        raise MachineError(f"{where}: Python does not run in the emulator, or QEMU takes no plugins: {last}") from error
    return [str(part) for part in told]


def _version(emulator: str) -> str:
    said = subprocess.run([emulator, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"version (\d[\w.]*)", said)
    return found[1] if found else "of unknown version"
