"""An Android device behind the `adb` client: running programs on it, its cores, its machine facts and its load.

`Adb` holds a temporary folder on the device and runs programs there. `select_cores` chooses its little, big or
prime cores. `RunnerFolder` sends the measuring programs and model files and starts them on these cores.
`read_machine` describes the device, and `AdbWatch` notes load, clock, temperature and battery while something is
measured.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from pocketbert.benchmarks.devices.machine_facts import core_names
from pocketbert.benchmarks.devices.runners import LITERT, ONNX
from pocketbert.benchmarks.load import Load, describe_clock, energy_of_battery
from pocketbert.core.disk.files import sha256_file, sha256_path
from pocketbert.core.errors import InputError, MachineError, MissingBackendError, PocketBertError, Problem
from pocketbert.core.host.hardware import Machine, select_extensions
from pocketbert.core.types import Format
from pocketbert.runtime.engines import EngineFile, FilePredictor

RUNNERS_FOLDER = "POCKETBERT_ADB_RUNNERS"
"""Environment variable: the folder with the runners, built for the phone, and the libraries that they load."""
RUNNERS = {Format.TFLITE: LITERT, Format.ONNX: ONNX}

_TEMPORARY = "/data/local/tmp"
"""The only place where the shell of a phone may write and start programs."""
_PID_FILE = "running.pid"
"""File in the folder with the number of the process that runs there, which ends with the connection."""
_CALL_S, _COPY_S, _RUN_S = 30.0, 600.0, 600.0
_MAX_PULLED = 128 << 20
"""Most bytes of a file that is copied from the device."""
_PROPERTIES = ("ro.product.manufacturer", "ro.product.model", "ro.soc.model", "ro.build.version.release")
_STATES = {
    "unauthorized": "has not allowed this computer. Unlock it and accept the question about USB debugging",
    "offline": "does not answer. Plug it in again, or: adb reconnect",
    "no permissions": "may not be opened by this user. Add a udev rule, or become a member of the group plugdev",
}
_LOST_STATUS = 255
"""Exit status of the client, without a message, if the connection ends while a program runs."""
_LOST = ("not found", "offline", "closed", "no devices", "disconnected", "protocol fault", "cannot connect to daemon")


def state_problem(state: str) -> str:
    """Return why a device in this state of ``adb devices`` cannot be used: "does not answer. Plug it in again"."""
    return next((words for sign, words in _STATES.items() if state.startswith(sign)), f"is in the state '{state}'")


class Adb:
    """An adb connection to one device, with a temporary folder on it that is removed at the end.

    A shell on the device owns the folder and waits for the end of its input, which also comes if the connection is
    lost. Then it ends the programs that run in the folder, and removes it.

    Args:
        serial: Serial number, or address and port; empty if only one device is connected.
        afterwards: Commands that the shell also runs at the end; they are constants of this program, never input of a
            user.

    Raises:
        MissingBackendError: If there is no adb client.
        InputError: If the device cannot be used, or if none is named and none or several are connected.
        MachineError: If the client or the device does not answer, or there is no space on the device.
    """

    def __init__(self, serial: str, afterwards: str = "") -> None:
        client = shutil.which("adb")
        if client is None:
            raise MissingBackendError("adb", "sudo apt-get install adb")
        self._client, self.where = client, "adb"
        self.serial = self._find_device(serial)
        self.folder = f"{_TEMPORARY}/pocketbert-{secrets.token_hex(6)}"
        script = (
            f'trap "" HUP INT TERM PIPE; mkdir {self.folder} || exit 1; echo ready; cat > /dev/null; '
            f"{{ kill $(cat {self.folder}/{_PID_FILE}); {afterwards or 'true'}; }} > /dev/null 2>&1; "
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
            _, messages = self._guard.communicate(timeout=_CALL_S)
            raise self._error("", messages.decode(errors="replace"), self._guard.returncode)

    def shell(self, *arguments: str, timeout_s: float = _CALL_S) -> str:
        """Run a program in the temporary folder on the device; return what it prints, error messages included.

        Raises:
            MachineError: If the program fails, or the device is lost.
        """
        return self.script(shlex.join(arguments), timeout_s)

    def script(self, text: str, timeout_s: float = _CALL_S) -> str:
        """Run shell commands in the temporary folder on the device; return what they print.

        It raises the errors of `shell`.
        """
        script = f"cd {self.folder} && {{ {text}; }} 2>&1"
        return self._call("-s", self.serial, "shell", "-T", script, timeout_s=timeout_s)

    def try_shell(self, *arguments: str) -> str:
        """Run a program on the device; return what it prints, which is nothing if it is missing. Its errors are ignored.

        It raises MachineError if the device is lost.
        """
        return self.script(f"{shlex.join(arguments)} 2>/dev/null || true")

    def properties(self) -> list[str]:
        """Return maker, model, chip and Android version of the device; empty texts for unknown ones."""
        return [self.try_shell("getprop", name).strip() for name in _PROPERTIES]

    def push(self, source: Path, name: str) -> None:
        """Copy a file or folder to the temporary folder on the device.

        Raises:
            MachineError: If there is no space, or the device is lost.
        """
        self._call("-s", self.serial, "push", str(source), f"{self.folder}/{name}", timeout_s=_COPY_S)

    def pull(self, name: str, destination: Path) -> None:
        """Copy a file out of the folder on the device.

        Raises:
            MachineError: If the file does not exist, is larger than 128 MiB, or the device is lost.
        """
        size = next(iter(self.shell("wc", "-c", name).split()), "unknown")
        if not size.isdecimal() or int(size) > _MAX_PULLED:
            raise MachineError(f"{self.where}: {name} has {size[:20]} bytes; at most {_MAX_PULLED} are copied.")
        self._call("-s", self.serial, "pull", f"{self.folder}/{name}", str(destination), timeout_s=_COPY_S)

    def close(self) -> None:
        """End the shell that owns the temporary folder, and wait until the folder is removed."""
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        assert self._guard.stderr is not None
        try:
            self._guard.stdin.close()
            self._guard.wait(_CALL_S)
        except (OSError, subprocess.TimeoutExpired):
            self._guard.kill()
            self._guard.wait()
        self._guard.stdout.close()
        self._guard.stderr.close()

    def _find_device(self, serial: str) -> str:
        """Return the serial number of the named device, or of the only connected one, and set `where` for errors.

        Raises:
            InputError: If the device is not connected, or cannot be used.
        """

        def states() -> dict[str, str]:
            rows = [line.partition("\t") for line in self._call("devices").splitlines() if "\t" in line]
            return {name: state.strip() for name, _, state in rows}

        if not serial:
            connected = list(states())
            if not connected:
                fix = "Plug in a phone with USB debugging, or: adb connect HOST:PORT"
                raise InputError(Problem("adb", "no device is connected.", fix))
            if len(connected) > 1:
                what = f"{len(connected)} devices are connected: {', '.join(connected)}."
                raise InputError(Problem("adb", what, f"Name one: adb:{connected[0]}"))
            serial = connected[0]
        self.where = f"adb:{serial}"
        state_of = states()
        state = state_of.get(serial)
        if state is None:
            what = f"is not connected; connected: {', '.join(state_of) or 'none'}."
            raise InputError(Problem(self.where, what, "Plug it in, or: adb connect HOST:PORT"))
        if state != "device":
            raise InputError(Problem(self.where, f"{state_problem(state)}."))
        return serial

    def _call(self, *arguments: str, timeout_s: float = _CALL_S) -> str:
        """Run the adb client and return what it prints; raise the errors of `shell`."""
        command = [self._client, *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired as error:
            raise MachineError(f"{self.where}: no answer within {timeout_s:.0f} s.") from error
        output = done.stdout.decode(errors="replace")
        if done.returncode:
            raise self._error(output, done.stderr.decode(errors="replace"), done.returncode)
        return output

    def _error(self, output: str, client_messages: str, status: int) -> PocketBertError:
        """Return the error for a failed adb command: no space left, permission denied, device lost, or its last line of output."""
        text = f"{output}\n{client_messages}"
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        last = lines[-1][:300] if lines else f"exit status {status}"
        if "No space left on device" in text:
            return MachineError(
                f"{self.where}: no space is left in {_TEMPORARY} ({last}). Remove files from the device."
            )
        if "Permission denied" in text:
            check = f"adb -s {self.serial} shell touch {_TEMPORARY}/x"
            return InputError(Problem(self.where, f"permission refused: {last}.", f"Check that this works: {check}"))
        if any(sign in client_messages for sign in _LOST) or (not lines and status == _LOST_STATUS):
            return MachineError(f"{self.where}: the device was lost: {last}. Plug it in and measure again.")
        return MachineError(f"{self.where}: {last}")


def select_cores(adb: Adb, kind: str, where: str) -> tuple[int, ...]:
    """Return the CPU numbers of a kind of cores on a device: ``little``, ``big`` or ``prime``.

    Args:
        adb: The device.
        kind: The kind; empty for all cores, for which the result is empty.
        where: Name of the device in errors.

    Raises:
        InputError: If the device has no cores of that kind.
    """
    if not kind:
        return ()
    clusters = _read_clusters(adb.script(_cpufreq_script("cpuinfo_max_freq", "related_cpus")))
    try:
        return _cores_of_kind(clusters, kind)
    except ValueError as error:
        raise InputError(Problem(where, f"{error}.", f"Leave '@{kind}' away.")) from error


def _cpufreq_script(*files: str) -> str:
    """Return a shell command that prints cpufreq files of the kernel, a line for each group of cores with one clock."""
    cells = " ".join(f"$(cat $p/{file})" for file in files)
    return f'for p in /sys/devices/system/cpu/cpufreq/policy*; do echo "{cells}"; done 2>/dev/null || true'


def _read_clusters(text: str) -> list[tuple[int, tuple[int, ...]]]:
    """Parse lines of highest clock rate and core numbers into (kHz, cores) of each cluster, the slowest first."""
    rows = [[int(n) for n in line.split()] for line in text.splitlines() if re.fullmatch(r"\d+(?: \d+)+", line.strip())]
    return sorted((row[0], tuple(row[1:])) for row in rows)


def _cores_of_kind(clusters: Sequence[tuple[int, tuple[int, ...]]], kind: str) -> tuple[int, ...]:
    """Return the CPU numbers of a kind of cores; raise ValueError if the device has no such cores.

    The slowest cluster is ``little``. Of two clusters the other one is ``big``; of three or more the fastest is
    ``prime``, and those between are ``big``.
    """
    kinds: dict[str, Sequence[tuple[int, tuple[int, ...]]]] = {}
    if len(clusters) == 2:
        kinds = {"little": clusters[:1], "big": clusters[1:]}
    elif len(clusters) > 2:
        kinds = {"little": clusters[:1], "big": clusters[1:-1], "prime": clusters[-1:]}
    if kind not in kinds:
        raise ValueError(f"has no {kind} cores; it has {', '.join(kinds) or 'one kind of cores only'}")
    return tuple(sorted(cpu for _, cpus in kinds[kind] for cpu in cpus))


def pin_command(command: Sequence[str], cpus: Sequence[int]) -> list[str]:
    """Prepend ``taskset`` to a command so that it runs on these cores; without cores return it unchanged."""
    return ["taskset", f"{sum(1 << cpu for cpu in cpus):x}", *command] if cpus else list(command)


class RunnerFolder:
    """The temporary folder on a device, with measuring programs ("runners") and model files.

    Args:
        adb: The device.
        cpus: Cores on which the programs run; empty for all.
    """

    def __init__(self, adb: Adb, cpus: Sequence[int] = ()) -> None:
        self.adb, self.where, self.cpus = adb, adb.where, cpus
        self.versions = dict[Format, str]()
        self._sent, self._opened, self._series = dict[Path, str](), dict[Path, FilePredictor](), 0

    def send_runner(self, format: Format) -> str:
        """Copy a format's measuring program and the libraries beside it to the device, once; return the program's digest.

        The digest is used as the program's version. Raises MissingBackendError if there is no such program.
        """
        if format not in self.versions:
            folder = Path(os.environ.get(RUNNERS_FOLDER) or "/nonexistent")
            name = RUNNERS[format]
            if not (folder / name).is_file():
                fix = f"export {RUNNERS_FOLDER}=FOLDER (with {name}, built for the device, in it)"
                raise MissingBackendError(f"{name} for the device", fix)
            for file in [folder / name, *sorted(folder.glob("*.so*"))]:
                self.adb.push(file, file.name)
            self.adb.shell("chmod", "755", name)
            self.versions[format] = f"sha256 {sha256_file(folder / name)[:12]}"
        return self.versions[format]

    def send_model(self, file: EngineFile) -> str:
        """Copy a model file to the device, once; return the file's name there."""
        if file.path not in self._sent:
            name = f"{sha256_path(file.path)}.{file.format.value}"
            self.adb.push(file.path, name)
            self._sent[file.path] = name
        return self._sent[file.path]

    def open_here(self, file: EngineFile) -> FilePredictor:
        """Open a model file on this machine; a file is opened only once, since that can take seconds."""
        if file.path not in self._opened:
            self._opened[file.path] = file.open(1)
        return self._opened[file.path]

    def new_series(self) -> str:
        """Return a new folder name for a series of inputs."""
        self._series += 1
        return f"series-{self._series}"

    def run(
        self, command: Sequence[str], before: str = "true", after: str = "cat runner.log", seconds: float = 0.0
    ) -> str:
        """Run a measuring program on the chosen cores; return what the commands in `after` print.

        Args:
            command: The program and its arguments.
            before: Shell commands to run before the program.
            after: Shell commands to run after it; by default they print the program's output.
            seconds: How long the program is to measure, which is added to the time limit.
        """
        pinned = pin_command(command, self.cpus)
        noted = shlex.join(["sh", "-c", f'echo $$ > {_PID_FILE}; exec "$@"', "sh", *pinned])
        started = f"LD_LIBRARY_PATH=. {noted} < /dev/null > runner.log 2>&1"
        failed = f"{{ rm -f {_PID_FILE}; cat runner.log; exit 1; }}"
        return self.adb.script(f"{before}; {started} || {failed}; rm -f {_PID_FILE}; {after}", _RUN_S + seconds)


def read_machine(cpuinfo: str, properties: Sequence[str], uname: str, cpus: Sequence[int]) -> Machine:
    """Build the machine record of a device: CPU, instruction-set extensions, cores, system.

    Args:
        cpuinfo: Content of ``/proc/cpuinfo``.
        properties: Maker, model, chip and Android version, as `Adb.properties` returns them.
        uname: Output of ``uname -srm`` on the device.
        cpus: The cores that may be used; empty for all.
    """
    fields = [[part.strip() for part in line.split(":", 1)] for line in cpuinfo.splitlines() if ":" in line]
    value_of = {row[0]: row[1] for row in reversed(fields)}
    maker, model, chip, release = (*properties, "", "", "", "")[:4]
    cores = core_names([f"{value_of.get('CPU implementer', '')}:{row[1]}" for row in fields if row[0] == "CPU part"])
    processor = ", ".join(part for part in (chip, cores or value_of.get("model name", "")) if part)
    name = f"{maker} {model}".strip()
    system, _, arch = uname.strip().rpartition(" ")
    return Machine(
        cpu=f"{name} ({processor})" if name and processor else name or processor or arch,
        arch=arch,
        isa=select_extensions(arch, (value_of.get("Features") or value_of.get("flags") or "").split()),
        cores=len(cpus) or sum(row[0] == "processor" for row in fields) or 1,
        system=f"Android {release}, {system}" if release else system,
        python="none",
    )


_CLOCKS_SCRIPT = _cpufreq_script("scaling_cur_freq", "scaling_governor", "related_cpus")
"""Prints current kHz, governor and cores of every group of cores with a common clock."""


class AdbWatch:
    """Records load, clock, thermal state and battery of a phone from its creation until `stop`.

    Args:
        adb: The connection to the device.
        cpus: Cores whose clock is read; empty for all.
    """

    def __init__(self, adb: Adb, cpus: Sequence[int] = ()) -> None:
        self._adb, self._cpus, self._load, self._battery = adb, cpus, _load(adb), adb.try_shell("dumpsys", "battery")
        self._thermal = _read_thermal(adb.try_shell("dumpsys", "thermalservice"), self._battery)
        self._began = time.monotonic()
        # last, when the calls above have least to do with it
        self._governors, self._mhz = _read_clocks(adb.script(_CLOCKS_SCRIPT), cpus)

    def stop(self) -> Load:
        """Return load, clock rate, thermal state and energy from the creation of this object until now."""
        governors, mhz = _read_clocks(self._adb.script(_CLOCKS_SCRIPT), self._cpus)  # first, before it falls again
        battery, seconds = self._adb.try_shell("dumpsys", "battery"), time.monotonic() - self._began
        thermal = _read_thermal(self._adb.try_shell("dumpsys", "thermalservice"), battery)
        return Load(
            before=self._load,
            after=_load(self._adb),
            others=None,
            thermal=f"{self._thermal} → {thermal}" if thermal and self._thermal else "",
            clock=describe_clock(sorted({*self._governors, *governors}), self._mhz, mhz),
            energy=energy_of_battery(self._battery, battery, seconds),
        )


def _load(adb: Adb) -> float | None:
    """Return the device's load average over a minute; None if the adb shell may not read it."""
    match = re.match(r"\d+\.\d+", adb.try_shell("cat", "/proc/loadavg"))
    return float(match[0]) if match else None


_CLOCK = re.compile(r"(\d+) ((?:[A-Za-z][\w-]*)?) (\d+(?: \d+)*)")


def _read_clocks(text: str, cpus: Sequence[int]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Parse lines ``<current kHz> <governor> <core> <core> ...`` into governors and MHz.

    Args:
        text: The lines. Lines without a rate, which some phones do not let the shell read, are left out.
        cpus: Cores that count; empty for all.
    """
    rows = [match for line in text.splitlines() if (match := _CLOCK.fullmatch(line.strip()))]
    chosen = [row for row in rows if not cpus or {int(cpu) for cpu in row[3].split()} & {*cpus}]
    return tuple(row[2] for row in chosen if row[2]), tuple(int(row[1]) / 1000 for row in chosen)


def _read_thermal(service: str, battery: str) -> str:
    """Return thermal status (0 none to 6 shutdown), battery temperature and charge as text.

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
