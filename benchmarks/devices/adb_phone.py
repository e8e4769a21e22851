"""Calls of the `adb` client, and its errors."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pocketbert.benchmarks.devices.machine_facts import core_names
from pocketbert.benchmarks.devices.runners import LITERT, ONNX
from pocketbert.benchmarks.load import Load, battery_between, clock_words
from pocketbert.core.disk.files import sha256_file, sha256_path
from pocketbert.core.errors import InputError, MachineError, MissingBackendError, PocketBertError, Problem
from pocketbert.core.host.hardware import Machine, extensions
from pocketbert.core.types import Format
from pocketbert.runtime.engines import EngineFile, FilePredictor

TEMPORARY = "/data/local/tmp"
"""The only place where the shell of a phone may write and start programs."""
RUNNING = "running.pid"
"""File in the folder with the number of the process that runs there, which ends with the connection."""
CALL_S, PUSH_S, RUN_S = 30.0, 600.0, 600.0
MOST_PULLED = 128 << 20
"""Most bytes of a file that is copied from the device."""
_STATES = {
    "unauthorized": "has not allowed this computer. Unlock it and accept the question about USB debugging",
    "offline": "does not answer. Plug it in again, or: adb reconnect",
    "no permissions": "may not be opened by this user. Add a udev rule, or become a member of the group plugdev",
}
_SILENT = 255
"""Exit status of the client, without a word, where the connection ends while a program runs."""
_LOST = ("not found", "offline", "closed", "no devices", "disconnected", "protocol fault", "cannot connect to daemon")


def state_problem(state: str) -> str:
    """Why a device in a state that ``adb devices`` tells cannot be used, as a sentence without its subject."""
    return next((words for sign, words in _STATES.items() if state.startswith(sign)), f"is in the state '{state}'")


class Adb:
    """One device, and a folder on it that is removed at the end.

    A shell on the device holds the folder and waits for the end of its input, which also comes when the connection is
    lost; then it ends what runs there and removes the folder.

    Args:
        serial: Serial number, or address and port; empty for the only device.
        afterwards: What the shell does in addition at the end; words of the program, never of a user.

    Raises:
        MissingBackendError: If there is no client.
        InputError: If the device cannot be used, or none is named and there are several.
    """

    def __init__(self, serial: str, afterwards: str = "") -> None:
        client = shutil.which("adb")
        if client is None:
            raise MissingBackendError("adb", "sudo apt-get install adb")
        self._client = client
        self.serial = serial or self._only()
        self.where = f"adb:{self.serial}"
        self._check_state()
        self.folder = f"{TEMPORARY}/pocketbert-{secrets.token_hex(6)}"
        script = (
            f'trap "" HUP INT TERM PIPE; mkdir {self.folder} || exit 1; echo ready; cat > /dev/null; '
            f"{{ kill $(cat {self.folder}/{RUNNING}); {afterwards or 'true'}; }} > /dev/null 2>&1; "
            f"rm -rf {self.folder} || {{ sleep 1; rm -rf {self.folder}; }}"  # what was ended may still have written
        )
        self._guard = subprocess.Popen(
            [client, "-s", self.serial, "shell", "-T", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._guard.stdout is not None
        if self._guard.stdout.readline().strip() != b"ready":
            _, said = self._guard.communicate(timeout=CALL_S)
            raise self._error("", said.decode(errors="replace"), self._guard.returncode)

    def shell(self, *arguments: str, timeout_s: float = CALL_S) -> str:
        """Run a program on the device, in the folder; its output, messages included.

        Raises:
            MachineError: If it fails or the device is lost.
        """
        return self.script(shlex.join(arguments), timeout_s)

    def script(self, text: str, timeout_s: float = CALL_S) -> str:
        """Run commands of a shell on the device, in the folder; see `shell`."""
        return self._call(
            "-s", self.serial, "shell", "-T", f"cd {self.folder} && {{ {text}; }} 2>&1", timeout_s=timeout_s
        )

    def told(self, *arguments: str) -> str:
        """What a program of the device prints; empty where it fails or is not there, as on other systems than Android."""
        return self.script(f"{shlex.join(arguments)} 2>/dev/null || true")

    def push(self, source: Path, name: str) -> None:
        """Copy a file or folder into the folder on the device.

        Raises:
            MachineError: If there is no space, or the device is lost.
        """
        self._call("-s", self.serial, "push", str(source), f"{self.folder}/{name}", timeout_s=PUSH_S)

    def pull(self, name: str, destination: Path) -> None:
        """Copy a file out of the folder on the device.

        Raises:
            MachineError: If it is not there, is larger than `MOST_PULLED`, or the device is lost.
        """
        told = self.shell("wc", "-c", name).split()
        if not told or not told[0].isdecimal() or int(told[0]) > MOST_PULLED:
            size = told[0] if told else "unknown"
            raise MachineError(f"{self.where}: {name} has {size[:20]} bytes; at most {MOST_PULLED} are copied.")
        self._call("-s", self.serial, "pull", f"{self.folder}/{name}", str(destination), timeout_s=PUSH_S)

    def close(self) -> None:
        """Have the folder removed, and wait until it is."""
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        assert self._guard.stderr is not None
        try:
            self._guard.stdin.close()
            self._guard.wait(CALL_S)
        except (OSError, subprocess.TimeoutExpired):
            self._guard.kill()
            self._guard.wait()
        self._guard.stdout.close()
        self._guard.stderr.close()

    def _only(self) -> str:
        found = [serial for serial, _ in self._devices()]
        if not found:
            raise InputError(
                Problem(
                    "adb", "no device is connected.", "Plug in a phone with USB debugging, or: adb connect HOST:PORT"
                )
            )
        if len(found) > 1:
            raise InputError(
                Problem("adb", f"{len(found)} devices are connected: {', '.join(found)}.", f"Name one: adb:{found[0]}")
            )
        return found[0]

    def _check_state(self) -> None:
        states = dict(self._devices())
        state = states.get(self.serial)
        if state is None:
            known = ", ".join(states) or "none"
            raise InputError(
                Problem(self.where, f"is not connected; connected: {known}.", "Plug it in, or: adb connect HOST:PORT")
            )
        if state != "device":
            raise InputError(Problem(self.where, f"{state_problem(state)}."))

    def _devices(self) -> list[tuple[str, str]]:
        """Serial and state of every device."""
        lines = self._call("devices").splitlines()
        rows = [line.partition("\t") for line in lines if "\t" in line]
        return [(serial, state.strip()) for serial, _, state in rows]

    def _call(self, *arguments: str, timeout_s: float = CALL_S) -> str:
        try:
            done = subprocess.run(
                [self._client, *arguments],
                capture_output=True,
                timeout=timeout_s,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as error:
            raise MachineError(f"{getattr(self, 'where', 'adb')}: no answer within {timeout_s:.0f} s.") from error
        out = done.stdout.decode(errors="replace")
        if done.returncode:
            raise self._error(out, done.stderr.decode(errors="replace"), done.returncode)
        return out

    def _error(self, out: str, client: str, code: int) -> PocketBertError:
        """The error for what a program on the device has printed, and what the client has."""
        where, said = getattr(self, "where", "adb"), f"{out}\n{client}"
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        last = lines[-1][:300] if lines else f"exit status {code}"
        if "No space left on device" in said:
            return MachineError(f"{where}: no space is left in {TEMPORARY} ({last}). Remove files from the device.")
        if "Permission denied" in said:
            check = f"adb -s {self.serial} shell touch {TEMPORARY}/x"
            return InputError(Problem(where, f"permission refused: {last}.", f"Check that this works: {check}"))
        if any(sign in client for sign in _LOST) or (not lines and code == _SILENT):
            return MachineError(f"{where}: the device was lost: {last}. Plug it in and measure again.")
        return MachineError(f"{where}: {last}")


# --- facts ---
# What Android tells of a device: its processor, clusters of cores, temperature and battery.


PROPERTIES = ("ro.product.manufacturer", "ro.product.model", "ro.soc.model", "ro.build.version.release")
_CLOCK = re.compile(r"(\d+) ((?:[A-Za-z][\w-]*)?) (\d+(?: \d+)*)")


def policies(*files: str) -> str:
    """Commands of a shell that print some files of every group of cores with a common clock, a line for each group."""
    cells = " ".join(f"$(cat $p/{file})" for file in files)
    return f'for p in /sys/devices/system/cpu/cpufreq/policy*; do echo "{cells}"; done 2>/dev/null || true'


@dataclass(frozen=True)
class Cluster:
    """Cores with a common clock.

    Attributes:
        cpus: Their numbers.
        khz: Their highest clock rate.
    """

    cpus: tuple[int, ...]
    khz: int


def read_clusters(text: str) -> list[Cluster]:
    """Clusters from lines ``<highest kHz> <number> <number> ...`` of cpufreq's policies, slowest first."""
    rows = [[int(n) for n in line.split()] for line in text.splitlines() if re.fullmatch(r"\d+(?: \d+)+", line.strip())]
    return sorted((Cluster(tuple(row[1:]), row[0]) for row in rows), key=lambda cluster: (cluster.khz, cluster.cpus))


@dataclass(frozen=True)
class Clocks:
    """Clock rates at one time.

    Attributes:
        governors: Names of what chooses them.
        mhz: Current rates of groups of cores with a common clock.
    """

    governors: tuple[str, ...]
    mhz: tuple[float, ...]


def read_clocks(text: str, cpus: Sequence[int]) -> Clocks:
    """Clock rates from lines ``<current kHz> <governor> <number> <number> ...`` of cpufreq's policies.

    Args:
        text: The lines; those without a rate, which some phones do not let the shell read, are left out.
        cpus: Cores that count; empty for all.
    """
    rows = [match for line in text.splitlines() if (match := _CLOCK.fullmatch(line.strip()))]
    chosen = [row for row in rows if not cpus or {int(cpu) for cpu in row[3].split()} & {*cpus}]
    return Clocks(tuple(row[2] for row in chosen if row[2]), tuple(int(row[1]) / 1000 for row in chosen))


def choose(clusters: Sequence[Cluster], kind: str) -> tuple[int, ...]:
    """The cores of a kind: ``little``, ``big`` or ``prime``.

    Of two clusters the faster one is big; of three and more the fastest is prime, and those between are big.

    Raises:
        ValueError: If the device has no cores of that kind.
    """
    kinds: dict[str, Sequence[Cluster]] = {}
    if len(clusters) == 2:
        kinds = {"little": clusters[:1], "big": clusters[1:]}
    elif len(clusters) > 2:
        kinds = {"little": clusters[:1], "big": clusters[1:-1], "prime": clusters[-1:]}
    if kind not in kinds:
        told = ", ".join(kinds) or "one kind of cores only"
        raise ValueError(f"has no {kind} cores; it has {told}")
    return tuple(sorted(cpu for cluster in kinds[kind] for cpu in cluster.cpus))


def mask(cpus: Sequence[int]) -> str:
    """The mask of ``taskset`` for some cores, in hexadecimal digits."""
    return f"{sum(1 << cpu for cpu in cpus):x}"


def read_machine(cpuinfo: str, properties: Sequence[str], uname: str, cpus: Sequence[int]) -> Machine:
    """The machine of every figure.

    Args:
        cpuinfo: Content of ``/proc/cpuinfo``.
        properties: Values of `PROPERTIES`, empty where the system has none.
        uname: Output of ``uname -srm``.
        cpus: The cores that may be used; empty for all.
    """
    fields = [[part.strip() for part in line.split(":", 1)] for line in cpuinfo.splitlines() if ":" in line]
    named = {row[0]: row[1] for row in reversed(fields)}
    maker, model, chip, release = (*properties, "", "", "", "")[:4]
    cores = core_names([f"{named.get('CPU implementer', '')}:{row[1]}" for row in fields if row[0] == "CPU part"])
    inner = ", ".join(part for part in (chip, cores or named.get("model name", "")) if part)
    name = f"{maker} {model}".strip()
    system, _, arch = uname.strip().rpartition(" ")
    return Machine(
        cpu=f"{name} ({inner})" if name and inner else name or inner or arch,
        arch=arch,
        isa=extensions(arch, (named.get("Features") or named.get("flags") or "").split()),
        cores=len(cpus) or sum(row[0] == "processor" for row in fields) or 1,
        system=f"Android {release}, {system}" if release else system,
        python="none",
    )


def read_thermal(service: str, battery: str) -> str:
    """Thermal status (0 none to 6 shutdown), battery temperature and level in words; empty where nothing is told.

    Args:
        service: Output of ``dumpsys thermalservice``.
        battery: Output of ``dumpsys battery``; its temperature is in tenths of a degree.
    """
    status = re.search(r"^\s*Thermal Status: (\d+)", service, re.MULTILINE)
    values = dict(re.findall(r"^\s*(temperature|level|status): (\d+)\s*$", battery, re.MULTILINE))
    words = [f"thermal status {status[1]}"] if status else []
    if "temperature" in values:
        words.append(f"battery {int(values['temperature']) / 10:.1f} °C")
    if "level" in values:
        words.append(f"charge {values['level']} %")
    return ", ".join(words)


# --- place ---
# The folder on an Android device with the runners, the model files and their inputs, and how a runner is started there.


FOLDER = "POCKETBERT_ADB_RUNNERS"
"""Environment variable: the folder with the runners, built for the phone, and the libraries that they load."""
RUNNERS = {Format.TFLITE: LITERT, Format.ONNX: ONNX}


def cores_of(adb: Adb, kind: str, where: str) -> tuple[int, ...]:
    """The cores of a kind on a device: ``little``, ``big`` or ``prime``; none for all, where no kind is named.

    Args:
        adb: The device.
        kind: The kind; empty for all.
        where: What errors call the device.

    Raises:
        InputError: If it has no such cores.
    """
    try:
        return choose(read_clusters(adb.script(policies("cpuinfo_max_freq", "related_cpus"))), kind) if kind else ()
    except ValueError as error:
        raise InputError(Problem(where, f"{error}.", f"Leave '@{kind}' away.")) from error


class Place:
    """The folder on a device.

    Args:
        adb: The device.
        cpus: Cores that runners may use; empty for all.
    """

    def __init__(self, adb: Adb, cpus: Sequence[int] = ()) -> None:
        self.adb, self.where, self.cpus = adb, adb.where, cpus
        self.versions = dict[Format, str]()
        self._sent, self._opened, self._series = dict[Path, str](), dict[Path, FilePredictor](), 0

    def runner(self, format: Format) -> str:
        """Send the runner of a format and its libraries; returns what tells its version."""
        if format not in self.versions:
            folder = Path(os.environ.get(FOLDER) or "/nonexistent")
            name = RUNNERS[format]
            if not (folder / name).is_file():
                raise MissingBackendError(
                    f"{name} for the device", f"export {FOLDER}=FOLDER (with {name}, built for the device, in it)"
                )
            for file in [folder / name, *sorted(folder.glob("*.so*"))]:
                self.adb.push(file, file.name)
            self.adb.shell("chmod", "755", name)
            self.versions[format] = f"sha256 {sha256_file(folder / name)[:12]}"
        return self.versions[format]

    def send(self, file: EngineFile) -> str:
        """Send a model file once; its name on the device."""
        if file.path not in self._sent:
            name = f"{sha256_path(file.path)}.{file.format.value}"
            self.adb.push(file.path, name)
            self._sent[file.path] = name
        return self._sent[file.path]

    def opened(self, file: EngineFile) -> FilePredictor:
        """The file as this machine opens it, once: a large ONNX file is optimized for seconds."""
        if file.path not in self._opened:
            self._opened[file.path] = file.open(1)
        return self._opened[file.path]

    def next_series(self) -> str:
        """A new name for the folder of a series of inputs."""
        self._series += 1
        return f"series-{self._series}"

    def run(
        self, command: Sequence[str], before: str = "true", after: str = "cat runner.log", seconds: float = 0.0
    ) -> str:
        """Start a runner on the chosen cores, and note its process, which the end of the connection ends.

        Args:
            command: The runner and its arguments.
            before: What the shell does before.
            after: What prints the result, by default what the runner has printed.
            seconds: How long the runner was told to run.
        """
        pinned = ["taskset", mask(self.cpus), *command] if self.cpus else list(command)
        noted = shlex.join(["sh", "-c", f'echo $$ > {RUNNING}; exec "$@"', "sh", *pinned])
        failed = f"{{ rm -f {RUNNING}; cat runner.log; exit 1; }}"
        script = (
            f"{before}; LD_LIBRARY_PATH=. {noted} < /dev/null > runner.log 2>&1 || {failed}; rm -f {RUNNING}; {after}"
        )
        return self.adb.script(script, RUN_S + seconds)


# --- watch ---
# What an Android device does while something is measured: load, clock, thermal state, battery.


CLOCKS = policies("scaling_cur_freq", "scaling_governor", "related_cpus")
"""Prints current kHz, governor and cores of every group of cores with a common clock."""


class AdbWatch:
    """Notes load, clock, thermal state and battery when it is made, and again when it is stopped.

    Args:
        adb: The device.
        cpus: Cores whose clock is read; empty for all.
    """

    def __init__(self, adb: Adb, cpus: Sequence[int] = ()) -> None:
        self._adb, self._cpus, self._load, self._battery = adb, cpus, _load(adb), _battery(adb)
        self._thermal, self._began = _thermal(adb, self._battery), time.monotonic()
        self._clock = read_clocks(adb.script(CLOCKS), cpus)  # last, when the calls above have least to do with it

    def stop(self) -> Load:
        """The load, the clock and the thermal facts since this object was made."""
        clock = read_clocks(self._adb.script(CLOCKS), self._cpus)  # first, before it falls again
        battery, seconds = _battery(self._adb), time.monotonic() - self._began
        thermal = _thermal(self._adb, battery)
        return Load(
            before=self._load,
            after=_load(self._adb),
            others=None,
            thermal=f"{self._thermal} → {thermal}" if thermal and self._thermal else "",
            clock=clock_words(sorted({*self._clock.governors, *clock.governors}), self._clock.mhz, clock.mhz),
            energy=battery_between(self._battery, battery, seconds),
        )


def _load(adb: Adb) -> float | None:
    told = re.match(r"\d+\.\d+", adb.told("cat", "/proc/loadavg"))
    return float(told[0]) if told else None


def _battery(adb: Adb) -> str:
    return adb.told("dumpsys", "battery")


def _thermal(adb: Adb, battery: str) -> str:
    return read_thermal(adb.told("dumpsys", "thermalservice"), battery)
