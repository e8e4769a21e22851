"""Run files on an emulated Arm processor: the worker of remote machines, started by QEMU's user mode."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

from pocketbert.benchmarks.devices.arm_cores import core_names
from pocketbert.benchmarks.devices.protocol import Allowed, Reachable
from pocketbert.benchmarks.devices.qemu.guest import (
    EMULATOR,
    ROOT,
    Guest,
    emulator_version,
    find_emulator,
    unpacked_python,
)
from pocketbert.benchmarks.devices.qemu.processors import CORES, PROCESSORS, Processor, processor
from pocketbert.benchmarks.devices.remote.channel import BOOTSTRAP, Channel
from pocketbert.benchmarks.devices.remote.connection import RemoteConnection, RemoteFile
from pocketbert.core.devices import QEMU
from pocketbert.core.errors import InputError, MachineError, MissingBackendError, Problem
from pocketbert.core.host.hardware import Machine, extensions
from pocketbert.runtime.engines import EngineFile

ALLOWED = (Allowed("CPU", tuple(PROCESSORS)),)
NEWER_PLUGINS = 9
"""From this version on QEMU refuses plugins of the interface that the counter is written for."""
COUNTER = "POCKETBERT_COUNTER"
"""Environment variable: the file in which the plugin counts, as the worker knows it."""


class QemuConnection(RemoteConnection):
    """An emulated Arm processor.

    Args:
        channel: An agent on this machine.
        one: The processor.
        guest: Python in the emulator.
    """

    method = (
        "Instructions of an emulated processor are counted by a plugin of QEMU around each inference, with one thread. They "
        "are a measure of work, not of time: an emulator has neither caches nor a pipeline."
    )
    own_pip = False
    real = False

    def __init__(self, channel: Channel, one: Processor, guest: Guest) -> None:
        super().__init__(channel)
        self._processor, self._held = one, contextlib.ExitStack()
        self.facts = self.facts.model_copy(update=guest.facts()._asdict())
        channel.ask("environment", values=dict(guest.environment))
        channel.ask("launcher", command=list(guest.launcher))
        self.used["qemu"] = emulator_version(guest.launcher[0])

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
    if unpacked_python() is None:
        lacking.append(f"an Arm system with Python (export {ROOT}=FOLDER)")
    return ", ".join(lacking)


def qemu_now() -> list[Reachable]:
    """The emulator, where everything that it needs is there; it is not started."""
    if qemu_missing():
        return []
    return [Reachable(QEMU, f"{shutil.which(EMULATOR)} with the Arm system in {os.environ[ROOT]}")]


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
    compiler, version = shutil.which("cc") or shutil.which("gcc"), emulator_version(find_emulator(where))
    if version.split(".")[0].isdecimal() and int(version.split(".")[0]) >= NEWER_PLUGINS:
        raise MissingBackendError(
            f"{where}: an {EMULATOR} older than {NEWER_PLUGINS}.0 (this one is {version}, whose plugins have another interface)",
            "Debian 12 has 7.2; put its qemu-aarch64 in front on the PATH",
        )
    if compiler is None:
        raise MissingBackendError(f"{where}: a C compiler", "sudo apt-get install gcc")
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="pocketbert-qemu-")))
        counter, plugin = folder / "counter", folder / "count.so"
        guest = Guest.of(where, one, folder, ["-plugin", f"{plugin},counter={counter}"])
        guest = replace(guest, environment={**guest.environment, COUNTER: str(counter)})
        _build(compiler, plugin, where)
        channel = Channel([sys.executable, "-c", BOOTSTRAP], where, lambda _, said: MachineError(f"{where}: {said}"))
        held.callback(channel.close)
        connection = QemuConnection(channel, one, guest)
        connection.keep(held.pop_all())
        return connection


def _build(compiler: str, plugin: Path, where: str) -> None:
    """Compile the plugin that counts."""
    source = plugin.with_suffix(".c")
    source.write_bytes(resources.files(__package__).joinpath("count.c").read_bytes())
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-o", str(plugin), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise MachineError(f"{where}: {compiler} cannot build the plugin of QEMU: {done.stderr.strip()[-300:]}")
