"""Build the probe for a processor with a compiler that is found: the system's, one below `.cache`, or Zig's."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from pocketbert.benchmarks.devices.adb_phone import PROPERTIES, Adb, cores_of, mask
from pocketbert.benchmarks.devices.machine_facts import Probe, ProbeProgram, read_facts
from pocketbert.benchmarks.devices.qemu import find_emulator, processor, write_system_files
from pocketbert.benchmarks.devices.ssh import CLIENT_FAILED, client_program, command, unreachable
from pocketbert.core.devices import ADB, DEVICES, LOCAL, QEMU
from pocketbert.core.disk.files import sha256_file
from pocketbert.core.errors import InputError, MachineError, MissingBackendError, Problem
from pocketbert.core.types import Provenance

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
    return Path(named) if named else Path(__file__).resolve().parents[2] / ".cache" / "tools" / "cross"


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
    for entry in resources.files(__package__).joinpath("sources", "probe").iterdir():
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


# --- places ---
# Run the probe on a device: here, over ssh or adb, or in an emulator.


SLICE_MS = 100
"""Each of five slices of a measurement takes this long, in ms: the whole program takes about three seconds."""
RUN_S = 300.0


def everything() -> list[str]:
    """Arguments with which the program tells all it can."""
    return ["all", str(SLICE_MS)]


def probe_local(argument: str) -> Probe:
    """Probe this machine; errors as of `build_probe`."""
    if platform.system() != "Linux":
        raise InputError(Problem(LOCAL, f"the probe is written for Linux and Android, not for {platform.system()}."))
    with tempfile.TemporaryDirectory(prefix="pocketbert-probe-") as name:
        built = build_probe(architecture(platform.machine(), LOCAL), Path(name), LOCAL)
        said = run_probe([str(built.path), *everything()], LOCAL)
    return measured(LOCAL, said, built.program)


def measured(where: str, said: str, program: ProbeProgram, name: str = "") -> Probe:
    """What a real processor told."""
    facts = read_facts(said, where)
    return Probe(device=where, name=name or facts.board, provenance=Provenance.MEASURED, program=program, facts=facts)


def probe_adb(argument: str) -> Probe:
    """Probe an Android device: the program is pushed into a folder below ``/data/local/tmp`` that is removed.

    Args:
        argument: ``[SERIAL][@CORES]``; with cores the rates are those of one of them.

    Raises:
        InputError: If the device cannot be used, or has no such cores.
        MissingBackendError: If there is no `adb` client or no compiler.
        MachineError: If the program fails there, or the device is lost.
    """
    parts = re.fullmatch(DEVICES[ADB].pattern, argument, re.ASCII)
    if parts is None:
        raise InputError(Problem(f"adb:{argument}", f"is no {DEVICES[ADB].argument}.", "For example adb:SERIAL@big"))
    adb, kind = Adb(parts["serial"] or ""), parts["cores"] or ""
    try:
        where = f"{adb.where}@{kind}" if kind else adb.where
        cpus = cores_of(adb, kind, where)
        with tempfile.TemporaryDirectory(prefix="pocketbert-probe-") as name:
            built = build_probe(architecture(adb.shell("uname", "-m"), where), Path(name), where)
            adb.push(built.path, "probe")
        command = ["./probe", *everything()]
        pinned = ["taskset", mask(cpus), *command] if cpus else command
        said = adb.script(f"chmod 755 probe && {shlex.join(pinned)}", RUN_S)
        maker, model, chip, _ = (adb.told("getprop", key).strip() for key in PROPERTIES)
    finally:
        adb.close()
    phone = f"{maker} {model}".strip()
    return measured(where, said, built.program, f"{phone} ({chip})" if phone and chip else phone or chip)


def probe_qemu(argument: str) -> Probe:
    """Probe an emulated Arm processor: what it is, never how fast.

    Args:
        argument: One of `PROCESSORS`; empty for the usual one.

    Raises:
        InputError: If the processor is not one of these.
        MissingBackendError: If QEMU or a compiler is missing.
        MachineError: If the program fails.
    """
    where = f"{QEMU}:{argument}" if argument else QEMU
    try:
        one = processor(argument)
    except ValueError as error:
        raise InputError(Problem(where, f"{error}.")) from error
    emulator = find_emulator(where)
    with tempfile.TemporaryDirectory(prefix="pocketbert-probe-") as name:
        folder = Path(name)
        for part in ("build", "root", "prefix"):
            (folder / part).mkdir()
        built = build_probe("aarch64", folder / "build", where)
        write_system_files(one, folder / "root", folder / "prefix")
        command = [emulator, "-L", str(folder / "prefix"), "-cpu", one.name, str(built.path), "features"]
        said = run_probe(command, where)
    facts = read_facts(said, where)
    return Probe(device=where, name="", provenance=Provenance.EMULATED, program=built.program, facts=facts)


def run_probe(command: Sequence[str], where: str) -> str:
    """Run the program on this machine; what it prints.

    Raises:
        MachineError: If it fails.
    """
    try:
        done = subprocess.run(list(command), capture_output=True, timeout=RUN_S, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"{where}: the probe does not run: {error}") from error
    if done.returncode:
        raise MachineError(f"{where}: {ended(done.returncode, done.stderr)}")
    return done.stdout.decode(errors="replace")


def ended(status: int, messages: bytes) -> str:
    """How the program ended, in words."""
    last = (messages.decode(errors="replace").strip().splitlines() or ["no message"])[-1][:300]
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    return f"the probe ended with {how}: {last}"


# --- over_ssh ---
# Run the probe on a machine that is reached by the OpenSSH client; nothing but a shell is needed there.


_RUN = (
    'umask 077; d=$(mktemp -d) || exit 1; trap "rm -rf $d" EXIT; trap "exit 1" HUP INT TERM PIPE; '
    'cat > "$d/probe" && chmod 700 "$d/probe" && "$d/probe" '
)
"""Takes the program from standard input into a folder that is removed when it ends, also when the connection is lost."""


def probe_ssh(argument: str) -> Probe:
    """Probe a Linux machine.

    Args:
        argument: ``[USER@]HOST[:PORT]``; see `pocketbert.benchmarks.devices.ssh.connect_ssh`.

    Raises:
        InputError: If the machine cannot be reached, or the program is not written for its processor.
        MissingBackendError: If there is no OpenSSH client or no compiler here.
        MachineError: If the program fails there.
    """
    where, client = f"ssh:{argument}", client_program()
    arch = architecture(_run(client, argument, "uname -m"), where)
    with tempfile.TemporaryDirectory(prefix="pocketbert-probe-") as name:
        built = build_probe(arch, Path(name), where)
        script = _RUN + shlex.join(everything())
        said = _run(client, argument, f"exec sh -c {shlex.quote(script)}", built.path.read_bytes())
    return measured(where, said, built.program)


def _run(client: str, argument: str, remote: str, given: bytes = b"") -> str:
    """Run commands of a shell there; what they print."""
    where = f"ssh:{argument}"
    try:
        done = subprocess.run(
            command(client, argument, remote), input=given, capture_output=True, timeout=RUN_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MachineError(f"{where}: no answer within {RUN_S:.0f} s.") from error
    if done.returncode == CLIENT_FAILED:
        raise unreachable(argument, done.stderr.decode(errors="replace").strip())
    if done.returncode:
        raise MachineError(f"{where}: {ended(done.returncode, done.stderr)}")
    return done.stdout.decode(errors="replace")
