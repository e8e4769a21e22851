"""The device ``qemu-arm64[:CPU]``: an Arm processor emulated by QEMU's user mode, for answers and instruction counts.

`DEVICE` is its row of the table of devices. `processor` names the processors that QEMU emulates correctly, and
`Guest` starts Python of an unpacked Arm system in the emulator. To measure, the agent runs on this machine and
starts its workers in the emulator, with a plugin of QEMU that counts instructions.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from pocketbert.benchmarks.devices.machine_facts import core_names
from pocketbert.benchmarks.devices.protocol import Allowed, Device, Reachable
from pocketbert.benchmarks.devices.remote import RemoteConnection, RemoteFile, engine_refusal
from pocketbert.benchmarks.devices.remote_agent import BOOTSTRAP, AgentChannel
from pocketbert.core.devices import DEVICES, QEMU
from pocketbert.core.errors import InputError, MachineError, MissingBackendError, Problem
from pocketbert.core.host.hardware import Machine, select_extensions
from pocketbert.runtime.engines import EngineFile

_ROOT = "POCKETBERT_ARM64_ROOT"
"""Environment variable: a folder with an unpacked Debian for arm64 that holds Python."""
_COUNTER = "POCKETBERT_COUNTER"
"""Environment variable: the file in which the plugin counts, which the worker reads."""
_EMULATOR = "qemu-aarch64"
_NEWER_PLUGINS = 9
"""From this version on QEMU refuses plugins of the interface that the counter is written for."""
_START_S = 120.0
_CORES = 4
_BASE = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
_DOTPROD = f"{_BASE} atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp"


@dataclass(frozen=True)
class Processor:
    """An Arm processor that QEMU emulates.

    Attributes:
        name: QEMU's name of the processor.
        part: Part number of the processor, as ``/proc/cpuinfo`` prints it.
        features: CPU features that Linux lists for the processor. QEMU must have all of them, or programs end with an
            illegal instruction.
    """

    name: str
    part: str
    features: str


PROCESSORS = {
    one.name: one
    for one in (
        Processor("cortex-a53", "0xd03", _BASE),
        Processor("cortex-a72", "0xd08", _BASE),
        Processor("cortex-a76", "0xd0b", _DOTPROD),
        Processor("neoverse-n1", "0xd0c", _DOTPROD),
    )
}
DEFAULT = "cortex-a76"


def processor(name: str) -> Processor:
    """Return the emulated processor with this name; the default one if it is empty.

    Raises:
        ValueError: If there is no such processor. `max` is refused too: that of QEMU 7.2 computes int8 products
            wrongly, without an error.
    """
    found = PROCESSORS.get(name or DEFAULT)
    if found is None:
        why = "computes int8 models wrongly in QEMU 7.2, without an error" if name.startswith("max") else "is unknown"
        raise ValueError(f"the processor '{name}' {why}; allowed: {', '.join(PROCESSORS)}")
    return found


def _qemu_missing() -> str:
    """Return what this machine lacks to emulate an Arm processor; empty if nothing."""
    missing = [f"{_EMULATOR} (sudo apt-get install qemu-user)"] if shutil.which(_EMULATOR) is None else []
    if not (shutil.which("cc") or shutil.which("gcc")):
        missing.append("a C compiler (sudo apt-get install gcc)")
    if _unpacked_python() is None:
        missing.append(f"an Arm system with Python (export {_ROOT}=FOLDER)")
    return ", ".join(missing)


def _qemu_now() -> list[Reachable]:
    """Return the emulator as a usable device if everything that it needs is installed; it is not started."""
    if _qemu_missing():
        return []
    return [Reachable(QEMU, f"{shutil.which(_EMULATOR)} with the Arm system in {os.environ[_ROOT]}")]


def _connect_qemu(argument: str) -> _QemuConnection:
    """Start an agent for an emulated processor and return the connection.

    Args:
        argument: One of `PROCESSORS`; empty for the default one.

    Raises:
        InputError: If `argument` is not one of these processors.
        MissingBackendError: If QEMU, a C compiler or the unpacked Arm system is missing, or QEMU is version 9 or newer.
        MachineError: If QEMU's plugin cannot be built, or Python does not run in the emulator.
    """
    where = f"{QEMU}:{argument}" if argument else QEMU
    try:
        emulated = processor(argument)
    except ValueError as error:
        raise InputError(Problem(where, f"{error}.")) from error
    compiler, version = shutil.which("cc") or shutil.which("gcc"), _emulator_version(find_emulator(where))
    if version.split(".")[0].isdecimal() and int(version.split(".")[0]) >= _NEWER_PLUGINS:
        older = f"an {_EMULATOR} older than {_NEWER_PLUGINS}.0"
        raise MissingBackendError(
            f"{where}: {older} (this one is {version}, whose plugins have another interface)",
            "Debian 12 has 7.2; put its qemu-aarch64 in front on the PATH",
        )
    if compiler is None:
        raise MissingBackendError(f"{where}: a C compiler", "sudo apt-get install gcc")
    with contextlib.ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="pocketbert-qemu-")))
        counter, plugin = folder / "counter", folder / "count.so"
        guest = Guest.of(where, emulated, folder, ["-plugin", f"{plugin},counter={counter}"])
        guest = replace(guest, environment={**guest.environment, _COUNTER: str(counter)})
        _build_plugin(compiler, plugin, where)
        command = [sys.executable, "-c", BOOTSTRAP]
        channel = AgentChannel(command, where, lambda _, messages: MachineError(f"{where}: {messages}"))
        cleanup.callback(channel.close)
        connection = _QemuConnection(channel, emulated, guest)
        connection.cleanup = cleanup.pop_all()
        return connection


def _build_plugin(compiler: str, plugin: Path, where: str) -> None:
    """Compile the QEMU plugin that counts instructions; raise MachineError if that fails."""
    source = plugin.with_suffix(".c")
    source.write_bytes(resources.files(__package__).joinpath("sources", "qemu_count.c").read_bytes())
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(plugin), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MachineError(f"{where}: {compiler} cannot build the plugin of QEMU: {done.stderr.strip()[-300:]}")


class _QemuConnection(RemoteConnection):
    """An emulated Arm processor, on which instructions are counted instead of times measured.

    Args:
        channel: An agent on this machine, which starts the emulator.
        emulated: The processor that is emulated.
        guest: How Python is started in the emulator.

    Attributes:
        cleanup: Closed with the connection: ends the agent and removes the emulator's files.
    """

    method = (
        "Instructions of an emulated processor are counted by a plugin of QEMU around each inference, with one thread. They "
        "are a measure of work, not of time: an emulator has neither caches nor a pipeline."
    )
    own_pip = False
    real = False

    def __init__(self, channel: AgentChannel, emulated: Processor, guest: Guest) -> None:
        super().__init__(channel)
        self._processor, self.cleanup = emulated, contextlib.ExitStack()
        self.facts = self.facts.model_copy(update=guest.facts()._asdict())
        channel.ask("environment", values=dict(guest.environment))
        channel.ask("launcher", command=list(guest.launcher))
        self.used["qemu"] = _emulator_version(guest.launcher[0])

    def machine(self) -> Machine:
        """Return the machine record of the emulated processor: name, features and system."""
        return Machine(
            cpu=f"{core_names([f'0x41:{self._processor.part}'] * _CORES)}, emulated by QEMU {self.used['qemu']}",
            arch=self.facts.arch,
            isa=select_extensions(self.facts.arch, self._processor.features.split()),
            cores=_CORES,
            system="Linux, user mode",
            python=self.facts.python,
        )

    def cold_start(self, file: EngineFile, ids: Sequence[int], threads: int, profile_runs: int) -> None:
        """Return None, because times in an emulator say nothing about a device."""
        return

    def open(self, file: EngineFile, threads: int) -> RemoteFile:
        """Open a file in the emulator.

        Raises:
            InputError: If `threads` is not 1, since instructions of several threads cannot be counted.
        """
        if threads != 1:
            what = f"instructions are counted with 1 thread only, not with {threads}."
            raise InputError(Problem(self.where, what, "Give --threads 1."))
        return super().open(file, threads)

    def _release(self, threads: int) -> None:
        """Do nothing: files stay open, because starting Python in the emulator takes seconds."""

    def close(self) -> None:
        """End the emulator and remove its files."""
        self.cleanup.close()


class GuestFacts(NamedTuple):
    """Python version, machine name and C library inside the emulator.

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
    """The command that starts Python in the emulator.

    Attributes:
        where: Name of the device in errors.
        launcher: The command that starts Python in the emulator; Python's arguments follow.
        environment: Environment variables that are set in addition to those of this process.
    """

    where: str
    launcher: tuple[str, ...]
    environment: Mapping[str, str]

    @classmethod
    def of(cls, where: str, emulated: Processor, folder: Path, options: Sequence[str] = ()) -> Guest:
        """Write the emulated processor's system files and return the command that starts Python in it.

        Args:
            where: Name of the device in errors.
            emulated: The processor to emulate.
            folder: An existing folder, into which the system files of the processor are written.
            options: Further options of the emulator.

        Raises:
            MissingBackendError: If QEMU or the unpacked Arm system is missing.
        """
        emulator, python = find_emulator(where), _unpacked_python()
        if python is None:
            command = f"export {_ROOT}=FOLDER (see docs/lab/devices.md; 'make tools' in the source tree unpacks one)"
            raise MissingBackendError(f"{where}: an Arm system with Python", command)
        root, prefix = python.parents[2], folder / "system"
        prefix.mkdir()
        write_system_files(emulated, root, prefix)
        launcher = (emulator, "-L", str(prefix), "-cpu", emulated.name, *options, str(python))
        return cls(where, launcher, {"PYTHONHOME": str(root / "usr")})

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None, timeout_s: float = _START_S
    ) -> str:
        """Run Python in the emulator until it ends, and return what it printed.

        Args:
            arguments: Python's arguments.
            environment: Environment variables that are set in addition.
            timeout_s: Seconds after which Python is stopped.

        Raises:
            MachineError: If Python fails or is stopped.
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
        """Start Python in the emulator once, to check that it works; return Python version, machine and C library.

        Raises:
            MachineError: If Python does not run there.
        """
        values = "platform.python_version(),platform.machine(),' '.join(platform.libc_ver())"
        output = self.run(["-c", f"import json,platform;print(json.dumps([{values}]))"])
        try:
            return GuestFacts(*(str(part) for part in json.loads(output)))
        except (ValueError, TypeError) as error:
            raise MachineError(f"{self.where}: Python in the emulator prints something else than asked for.") from error


def write_system_files(emulated: Processor, root: Path, folder: Path) -> None:
    """Fill a folder for QEMU's ``-L`` option: links to an Arm system, and ``/proc`` and ``/sys`` files of the emulated CPU.

    Without these files, the emulated program reads those of this machine's own processor, and ONNX Runtime crashes
    (seen with QEMU 7.2).

    Args:
        emulated: The processor, whose name and features the files list.
        root: An unpacked Arm system.
        folder: An existing folder.
    """
    for entry in root.iterdir():
        if entry.name not in ("proc", "sys"):
            (folder / entry.name).symlink_to(entry.resolve())
    lines = [
        "BogoMIPS\t: 50.00",
        f"Features\t: {emulated.features}",
        "CPU implementer\t: 0x41",
        "CPU architecture: 8",
        "CPU variant\t: 0x1",
        f"CPU part\t: {emulated.part}",
        "CPU revision\t: 0",
    ]
    text = "".join("\n".join([f"processor\t: {n}", *lines, "", ""]) for n in range(_CORES))
    system = folder / "sys" / "devices" / "system" / "cpu"
    system.mkdir(parents=True)
    (folder / "proc").mkdir()
    (folder / "proc" / "cpuinfo").write_text(text, encoding="utf-8")
    (system / "kernel_max").write_text(f"{_CORES - 1}\n", encoding="utf-8")
    for name in ("possible", "present", "online"):
        (system / name).write_text(f"0-{_CORES - 1}\n", encoding="utf-8")


def find_emulator(where: str) -> str:
    """Return the path of QEMU's user-mode emulator.

    Raises:
        MissingBackendError: If it is not installed.
    """
    emulator = shutil.which(_EMULATOR)
    if emulator is None:
        raise MissingBackendError(f"{where}: {_EMULATOR}", "sudo apt-get install qemu-user")
    return emulator


def _emulator_version(emulator: str) -> str:
    """Return the version of an emulator, e.g. ``7.2.22``; ``of unknown version`` if it prints none."""
    output = subprocess.run([emulator, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"version (\d[\w.]*)", output)
    return version[1] if version else "of unknown version"


def _unpacked_python() -> Path | None:
    """Return the path of Python in the unpacked Arm system; None if there is none."""
    root = Path(os.environ.get(_ROOT) or "/nonexistent").absolute()
    return next(iter(sorted(root.glob("usr/bin/python3.[0-9]*"))), None)


DEVICE = Device(
    DEVICES[QEMU],
    _connect_qemu,
    engine_refusal,  # nothing is timed there
    missing=_qemu_missing,
    look=_qemu_now,
    allowed=(Allowed("CPU", tuple(PROCESSORS)),),
)
"""The row of the table of devices; the probe is added there."""
