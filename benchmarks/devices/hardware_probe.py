"""The probe: a C program that prints facts of a processor and times its memory and matrix products.

A static program is built from ``sources/probe`` with a compiler that is found on this machine (`build_probe`), runs
on the device, and its output is read as a `Probe`. There is one function per device, given the argument of the
device's name: `probe_local`, `probe_ssh`, `probe_adb` and `probe_qemu`.
"""

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
from importlib import resources
from pathlib import Path

from pocketbert.benchmarks.devices.adb_phone import Adb, pin_command, select_cores
from pocketbert.benchmarks.devices.machine_facts import Probe, ProbeProgram, read_facts
from pocketbert.benchmarks.devices.qemu import find_emulator, processor, write_system_files
from pocketbert.benchmarks.devices.ssh import CLIENT_FAILED, client_program, command, unreachable
from pocketbert.core.devices import ADB, DEVICES, LOCAL, QEMU
from pocketbert.core.disk.files import sha256_file
from pocketbert.core.errors import InputError, MachineError, MissingBackendError, Problem
from pocketbert.core.types import Provenance

CROSS = "POCKETBERT_CROSS"
"""Environment variable: a folder with a cross compiler of Debian; default: the one that `make tools` unpacks."""
ARCHITECTURES = {"aarch64": "aarch64", "arm64": "aarch64", "x86_64": "x86_64", "amd64": "x86_64"}
"""The processors that the program is written for, by the names that ``uname -m`` gives."""
SLICE_MS = 100
"""Each of five slices of a measurement takes this long, in ms: the whole program takes about three seconds."""
_FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-O3", "-static")
_BUILD_S = 900.0
"""Zig builds its C library first: that took 7 minutes on a loaded machine."""
_VERSION_S, _RUN_S = 60.0, 300.0


def probe_local(argument: str) -> Probe:
    """Compile the hardware probe (a C program), run it on this machine, and return what it found out.

    It raises the errors of `build_probe`, InputError if this machine does not run Linux or has another processor, and
    MachineError if the probe fails.
    """
    if platform.system() != "Linux":
        raise InputError(Problem(LOCAL, f"the probe is written for Linux and Android, not for {platform.system()}."))
    with tempfile.TemporaryDirectory(prefix="pocketbert-probe-") as folder:
        path, program = build_probe(_check_architecture(platform.machine(), LOCAL), Path(folder), LOCAL)
        output = run_probe([str(path), "all", str(SLICE_MS)], LOCAL)
    return _measured(LOCAL, output, program)


_REMOTE_SCRIPT = (
    'umask 077; d=$(mktemp -d) || exit 1; trap "rm -rf $d" EXIT; trap "exit 1" HUP INT TERM PIPE; '
    'cat > "$d/probe" && chmod 700 "$d/probe" && "$d/probe" '
)
"""Runs the program from standard input, in a folder that is removed at the end and if the connection is lost."""


def probe_ssh(argument: str) -> Probe:
    """Compile the hardware probe and run it on a Linux machine over SSH; return its facts.

    The other machine only needs a shell.

    Args:
        argument: ``[USER@]HOST[:PORT]``; an IPv6 address in brackets, or a name of ``~/.ssh/config``.

    Raises:
        InputError: If the machine cannot be reached, or there is no probe for its processor.
        MissingBackendError: If there is no OpenSSH client or no compiler on this machine.
        MachineError: If the probe fails on that machine.
    """
    where, client = f"ssh:{argument}", client_program()

    def run_there(script: str, stdin: bytes = b"") -> str:
        """Run a script in the login shell of the machine and return its output."""
        try:
            done = subprocess.run(
                command(client, argument, script), input=stdin, capture_output=True, timeout=_RUN_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise MachineError(f"{where}: no answer within {_RUN_S:.0f} s.") from error
        if done.returncode == CLIENT_FAILED:
            raise unreachable(argument, done.stderr.decode(errors="replace").strip())
        if done.returncode:
            raise MachineError(f"{where}: {_end_in_words(done.returncode, done.stderr)}")
        return done.stdout.decode(errors="replace")

    arch = _check_architecture(run_there("uname -m"), where)
    with tempfile.TemporaryDirectory(prefix="pocketbert-probe-") as folder:
        path, program = build_probe(arch, Path(folder), where)
        script = _REMOTE_SCRIPT + f"all {SLICE_MS}"
        output = run_there(f"exec sh -c {shlex.quote(script)}", path.read_bytes())
    return _measured(where, output, program)


def probe_adb(argument: str) -> Probe:
    """Compile the hardware probe and run it on an Android device; return its facts.

    The probe runs in a folder below ``/data/local/tmp`` that is removed afterwards.

    Args:
        argument: ``[SERIAL][@CORES]``; with CORES, the rates are measured on one core of that kind.

    Raises:
        InputError: If the device cannot be used, or has no such cores.
        MissingBackendError: If there is no `adb` client or no compiler.
        MachineError: If the probe fails, or the device is lost.
    """
    parts = re.fullmatch(DEVICES[ADB].pattern, argument, re.ASCII)
    if parts is None:
        raise InputError(Problem(f"adb:{argument}", f"is no {DEVICES[ADB].argument}.", "For example adb:SERIAL@big"))
    adb, kind = Adb(parts["serial"] or ""), parts["cores"] or ""
    try:
        where = f"{adb.where}@{kind}" if kind else adb.where
        cpus = select_cores(adb, kind, where)
        with tempfile.TemporaryDirectory(prefix="pocketbert-probe-") as folder:
            path, program = build_probe(_check_architecture(adb.shell("uname", "-m"), where), Path(folder), where)
            adb.push(path, "probe")
        run = shlex.join(pin_command(["./probe", "all", str(SLICE_MS)], cpus))
        output = adb.script(f"chmod 755 probe && {run}", _RUN_S)
        maker, model, chip, _ = adb.properties()
    finally:
        adb.close()
    phone = f"{maker} {model}".strip()
    return _measured(where, output, program, f"{phone} ({chip})" if phone and chip else phone or chip)


def probe_qemu(argument: str) -> Probe:
    """Compile the hardware probe and run it on an emulated Arm processor; return its features, without rates.

    Args:
        argument: One of `PROCESSORS`; empty for the default one.

    Raises:
        InputError: If `argument` is not one of these processors.
        MissingBackendError: If QEMU or a compiler is missing.
        MachineError: If the probe fails.
    """
    where = f"{QEMU}:{argument}" if argument else QEMU
    try:
        emulated = processor(argument)
    except ValueError as error:
        raise InputError(Problem(where, f"{error}.")) from error
    emulator = find_emulator(where)
    with tempfile.TemporaryDirectory(prefix="pocketbert-probe-") as name:
        folder = Path(name)
        for part in ("build", "root", "prefix"):
            (folder / part).mkdir()
        path, program = build_probe("aarch64", folder / "build", where)
        write_system_files(emulated, folder / "root", folder / "prefix")
        run = [emulator, "-L", str(folder / "prefix"), "-cpu", emulated.name, str(path), "features"]
        facts = read_facts(run_probe(run, where), where)
    return Probe(device=where, name="", provenance=Provenance.EMULATED, program=program, facts=facts)


def _measured(where: str, output: str, program: ProbeProgram, name: str = "") -> Probe:
    """Build the record of a real processor from what the probe printed."""
    facts = read_facts(output, where)
    return Probe(device=where, name=name or facts.board, provenance=Provenance.MEASURED, program=program, facts=facts)


def run_probe(command: Sequence[str], where: str) -> str:
    """Run the compiled hardware probe on this machine, and return its output.

    Raises:
        MachineError: If the probe fails.
    """
    try:
        done = subprocess.run(list(command), capture_output=True, timeout=_RUN_S, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"{where}: the probe does not run: {error}") from error
    if done.returncode:
        raise MachineError(f"{where}: {_end_in_words(done.returncode, done.stderr)}")
    return done.stdout.decode(errors="replace")


def _end_in_words(status: int, messages: bytes) -> str:
    """Return how the probe ended (signal or exit status), with the last line that it wrote to standard error."""
    last = (messages.decode(errors="replace").strip().splitlines() or ["no message"])[-1][:300]
    return f"the probe ended with {f'signal {-status}' if status < 0 else f'exit status {status}'}: {last}"


def _check_architecture(machine: str, where: str) -> str:
    """Return the compilers' name of the processor that ``uname -m`` names.

    Raises:
        InputError: If there is no probe for this processor.
    """
    arch = ARCHITECTURES.get(machine.strip())
    if arch is None:
        what = f"its processor is {machine.strip()!r}; the probe is written for aarch64 and x86_64."
        raise InputError(Problem(where, what))
    return arch


def build_probe(arch: str, folder: Path, where: str) -> tuple[Path, ProbeProgram]:
    """Compile the hardware probe (a C program) with the first compiler that succeeds.

    Args:
        arch: ``aarch64`` or ``x86_64``.
        folder: An existing folder for the sources and the program.
        where: Name of the device in errors.

    Returns:
        The path of the program, and a description of how it was built.

    Raises:
        MissingBackendError: If there is no compiler.
        MachineError: If every compiler fails.
    """
    sources = []
    for entry in resources.files(__package__).joinpath("sources", "probe").iterdir():
        if entry.name.endswith((".c", ".h")):
            (folder / entry.name).write_bytes(entry.read_bytes())
            sources += [str(folder / entry.name)] if entry.name.endswith(".c") else []

    def run(compiler: Sequence[str], variables: dict[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run a compiler with additional environment variables."""
        return subprocess.run(
            compiler,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **variables},
        )

    failures = []
    for compiler, variables in compilers(arch):
        path = folder / "probe"
        try:
            done = run([*compiler, *_FLAGS, "-o", str(path), *sorted(sources)], variables, _BUILD_S)
            version = run([*compiler, "--version"], variables, _VERSION_S).stdout
        except (OSError, subprocess.TimeoutExpired) as error:
            failures.append(f"{compiler[0]}: {error}")
            continue
        if done.returncode == 0 and path.is_file():
            first_line = (version.strip().splitlines() or [compiler[0]])[0]
            return path, ProbeProgram(arch=arch, compiler=first_line, sha256=sha256_file(path))
        messages = done.stderr.strip().splitlines()
        errors = [line for line in messages if "error" in line]
        reason = (errors or messages[-1:] or [f"exit status {done.returncode}"])[0][:300]
        failures.append(f"{' '.join(compiler)}: {reason}")
    if failures:
        raise MachineError(f"{where}: the probe cannot be built: {'; '.join(failures)}")
    package = f"gcc-{arch.replace('_', '-')}-linux-gnu"
    install = f"sudo apt-get install {package} (or: pip install ziglang)"
    raise MissingBackendError(f"{where}: a C compiler for {arch}", install)


def compilers(arch: str) -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
    """Yield the C compilers found for a processor, by name and untested: gcc or cc, cross compilers, then zig.

    `build_probe` tries them in this order, since each may fail to build a static program.

    Yields:
        The start of the command line, and environment variables that the compiler needs in addition.
    """
    if ARCHITECTURES.get(platform.machine()) == arch and platform.system() == "Linux":
        yield from (((found,), {}) for name in ("gcc", "cc") if (found := shutil.which(name)))
    cross = f"{arch.replace('_', '-')}-linux-gnu-gcc"
    cross_names = [cross, *(f"{cross}-{version}" for version in range(15, 9, -1))]
    yield from (((found,), {}) for name in cross_names if (found := shutil.which(name)))
    named = os.environ.get(CROSS)
    unpacked = Path(named) if named else Path(__file__).resolve().parents[2] / ".cache" / "tools" / "cross"
    libraries = ":".join(map(str, sorted(unpacked.glob("usr/lib/*-linux-gnu"))))
    for name in cross_names:
        if (unpacked / "usr/bin" / name).is_file():
            yield (str(unpacked / "usr/bin" / name),), {"LD_LIBRARY_PATH": libraries}
    if importlib.util.find_spec("ziglang") is not None:
        yield (sys.executable, "-P", "-m", "ziglang", "cc", "-target", f"{arch}-linux-musl"), {}
