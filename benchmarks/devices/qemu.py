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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from pocketbert.benchmarks.devices.machine_facts import core_names
from pocketbert.benchmarks.devices.protocol import Allowed, Reachable
from pocketbert.benchmarks.devices.remote import RemoteConnection, RemoteFile
from pocketbert.benchmarks.devices.remote_agent import BOOTSTRAP, Channel
from pocketbert.core.devices import QEMU
from pocketbert.core.errors import InputError, MachineError, MissingBackendError, Problem
from pocketbert.core.host.hardware import Machine, extensions
from pocketbert.runtime.engines import EngineFile

# --- processors ---
# The Arm processors that QEMU's user mode emulates right, and the system files that describe them to a guest.


CORES = 4
_BASE = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
_DOTPROD = f"{_BASE} atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp"


@dataclass(frozen=True)
class Processor:
    """A processor.

    Attributes:
        name: QEMU's name of it.
        part: Its part number, as ``/proc/cpuinfo`` prints it.
        features: What the kernel lists for it: more than is emulated ends in an illegal instruction.
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
    """The processor of a name; the usual one without a name.

    Raises:
        ValueError: If it is unknown. `max` is refused: that of QEMU 7.2 computes int8 products wrongly, without an error.
    """
    found = PROCESSORS.get(name or DEFAULT)
    if found is None:
        why = "computes int8 models wrongly in QEMU 7.2, without an error" if name.startswith("max") else "is unknown"
        raise ValueError(f"the processor '{name}' {why}; allowed: {', '.join(PROCESSORS)}")
    return found


def write_system_files(one: Processor, root: Path, folder: Path) -> None:
    """Make a prefix for QEMU's ``-L``: the folders of an Arm system, and files that describe the processor.

    Without them a guest reads the files of this machine's own processor, and ONNX Runtime crashes (QEMU 7.2).

    Args:
        one: The processor.
        root: An unpacked Arm system.
        folder: An existing folder.
    """
    for entry in root.iterdir():
        if entry.name not in ("proc", "sys"):
            (folder / entry.name).symlink_to(entry.resolve())
    lines = [
        "BogoMIPS\t: 50.00",
        f"Features\t: {one.features}",
        "CPU implementer\t: 0x41",
        "CPU architecture: 8",
        "CPU variant\t: 0x1",
        f"CPU part\t: {one.part}",
        "CPU revision\t: 0",
    ]
    text = "".join("\n".join([f"processor\t: {n}", *lines, "", ""]) for n in range(CORES))
    system = folder / "sys" / "devices" / "system" / "cpu"
    system.mkdir(parents=True)
    (folder / "proc").mkdir()
    (folder / "proc" / "cpuinfo").write_text(text, encoding="utf-8")
    (system / "kernel_max").write_text(f"{CORES - 1}\n", encoding="utf-8")
    for name in ("possible", "present", "online"):
        (system / name).write_text(f"0-{CORES - 1}\n", encoding="utf-8")


# --- guest ---
# Python of an unpacked Arm system, started by QEMU's user mode.


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
    source.write_bytes(resources.files(__package__).joinpath("sources", "qemu_count.c").read_bytes())
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-o", str(plugin), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise MachineError(f"{where}: {compiler} cannot build the plugin of QEMU: {done.stderr.strip()[-300:]}")
