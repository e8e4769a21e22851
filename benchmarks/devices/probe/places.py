"""Run the probe on a device: here, over ssh or adb, or in an emulator."""

from __future__ import annotations

import platform
import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pocketbert.benchmarks.devices.adb.client import Adb
from pocketbert.benchmarks.devices.adb.facts import PROPERTIES, mask
from pocketbert.benchmarks.devices.adb.place import cores_of
from pocketbert.benchmarks.devices.probe.build import architecture, build_probe
from pocketbert.benchmarks.devices.probed import Probe, ProbeProgram, read_facts
from pocketbert.benchmarks.devices.qemu.guest import find_emulator
from pocketbert.benchmarks.devices.qemu.processors import processor, write_system_files
from pocketbert.core.devices import ADB, DEVICES, LOCAL, QEMU
from pocketbert.core.errors import InputError, MachineError, Problem
from pocketbert.core.types import Provenance

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
