"""Serve one PocketBERT connection on a target: files, an environment, workers, and the facts of the machine.

The program needs Python 3.8 and its standard library. It reads requests from standard input, each one line of JSON
(followed by bytes where the request says how many), and answers each with one line. Everything that it writes is in
one temporary folder. A second process removes that folder when this one ends, in whatever way: also when it is killed,
and when the connection is lost.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

_GREETING = "pocketbert-agent 1"
_CHUNK = 1 << 20
_MAX_MESSAGES = 2000
"""Characters of a child's messages that an error repeats."""
_REMOVAL_S = 60.0
"""For this long the guard tries to remove the folder while a process may still write into it."""
POWERCAP, CPUFREQ, THERMAL = (
    Path(f"/sys/{part}") for part in ("class/powercap", "devices/system/cpu/cpufreq", "class/thermal")
)
"""Folders in which Linux shows counters of energy, clock rates and temperatures."""


class _GoneError(Exception):
    """Raised if the other end has closed the connection."""


class _RefusalError(Exception):
    """Raised if a request cannot be carried out; `kind` goes into the answer's ``error`` field."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def main() -> int:
    """Answer requests on standard input until the connection ends; return the exit status."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(1))
    replies.write(_GREETING.encode() + b"\n")
    replies.flush()
    try:
        agent = _Agent(sys.stdin.buffer, replies)
    except OSError as error:
        answer = {
            "error": "denied" if error.errno in (errno.ENOENT, errno.ENOTDIR) else _error_kind(error),
            "text": str(error),
        }
        replies.write(json.dumps(answer).encode() + b"\n")
        replies.flush()
        return 1
    try:
        agent.serve()
    except (_GoneError, BrokenPipeError):
        return 1
    finally:
        agent.end()
    return 0


class _Agent:
    """Serves one connection. The method ``do_put`` carries out the request ``put`` and returns its answer, and so on."""

    def __init__(self, requests: BinaryIO, replies: BinaryIO) -> None:
        self._requests, self._replies = requests, replies
        self.folder = Path(tempfile.mkdtemp(prefix="pocketbert-", dir=_temporary_folder()))
        self._guard, self._guard_pipe = _start_guard(str(self.folder))
        self._site = self.folder / "site"
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._launcher = [sys.executable]

    def serve(self) -> None:
        """Answer requests, one JSON object per line, until the connection ends or the request ``end``."""
        self._reply({"folder": str(self.folder)})
        while True:
            line = self._requests.readline()
            request = json.loads(line) if line.strip() else {"do": "end"}
            verb = request.pop("do")
            if verb == "end":
                return
            try:
                answer = getattr(self, "do_" + verb)(**request)
            except _RefusalError as error:
                answer = {"error": error.kind, "text": str(error)}
            except (OSError, zipfile.BadZipFile) as error:
                answer = {"error": _error_kind(error), "text": f"{self.folder}: {error}"}
            self._reply(answer)

    def end(self) -> None:
        """End the workers, and let the guard process remove the folder."""
        for name in list(self._workers):
            self.do_stop(name)
        os.close(self._guard_pipe)
        os.waitpid(self._guard, 0)

    def _reply(self, answer: dict[str, Any]) -> None:
        """Write an answer as one line of JSON."""
        self._replies.write(json.dumps(answer).encode() + b"\n")
        self._replies.flush()

    def do_launcher(self, command: list[str]) -> dict[str, Any]:
        """Set the command that starts workers, such as an emulator with a Python."""
        self._launcher = command
        return {}

    def do_environment(self, values: dict[str, str]) -> dict[str, Any]:
        """Set environment variables of the workers, such as those that switch off telemetry."""
        os.environ.update(values)
        return {}

    def do_put(self, name: str, size: int) -> dict[str, Any]:
        """Write the `size` bytes after the request to the file `name`; if writing fails, they are still read."""
        left, failure = size, None
        try:
            with (self.folder / name).open("wb") as target:
                while left:
                    chunk = self._read_payload(left)
                    left -= len(chunk)
                    target.write(chunk)
        except OSError as error:
            failure = error
        while left:
            left -= len(self._read_payload(left))
        if failure is not None:
            raise failure
        return {}

    def _read_payload(self, size: int) -> bytes:
        """Read at most `size` of the bytes that follow a request."""
        chunk = self._requests.read(min(size, _CHUNK))
        if not chunk:
            raise _GoneError
        return chunk

    def do_unpack(self, name: str) -> dict[str, Any]:
        """Unpack a wheel into the folder from which workers import, and delete the wheel."""
        path = self.folder / name
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(self._site)  # wheels of the user's own package index, which would run their code anyway
        path.unlink()
        return {}

    def do_pip(self, requirements: list[str]) -> dict[str, Any]:
        """Install distributions with this machine's pip into the folder from which worker processes import."""
        command = [sys.executable, "-m", "pip", "install", "--target", str(self._site), "--only-binary", ":all:"]
        command += ["--disable-pip-version-check", "--no-input", "--no-cache-dir", "--quiet", "--", *requirements]
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(os.environ, TMPDIR=str(self.folder)),
        )
        self._workers["pip"] = child  # ended with the connection
        output = self._read_output(child, one_line=False).decode(errors="replace")
        child.wait()
        del self._workers["pip"]
        if child.returncode:
            raise _RefusalError("pip", output[-_MAX_MESSAGES:])
        return {}

    def do_ask(self, worker: str, request: dict[str, Any]) -> dict[str, Any]:
        """Pass a request to a worker process, which is started if it is not running, and return its answer."""
        child = self._workers.get(worker) or self._start_worker(worker)
        try:
            child.stdin.write(json.dumps(request).encode() + b"\n")  # type: ignore[union-attr]
            child.stdin.flush()  # type: ignore[union-attr]
        except BrokenPipeError:
            line = b""
        else:
            line = self._read_output(child, one_line=True)
        if line.endswith(b"\n"):
            answer: dict[str, Any] = json.loads(line)
            return answer
        del self._workers[worker]
        status = child.wait()
        last_message = _text(self._log(worker))[-_MAX_MESSAGES:].strip().splitlines()[-1:]
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        raise _RefusalError("crash", " ".join([f"the worker ended with {how}.", *last_message]))

    def do_stop(self, worker: str) -> dict[str, Any]:
        """End the worker of this name, if it runs."""
        child = self._workers.pop(worker, None)
        if child is not None:
            child.kill()
            child.wait()
        return {}

    def do_facts(self) -> dict[str, Any]:
        """Return facts of this machine: Python, CPU, cores, extensions, system, free disk space."""
        text = _text(Path("/proc/cpuinfo"))
        fields = [[part.strip() for part in line.split(":", 1)] for line in text.splitlines() if ":" in line]
        value_of = {line[0]: line[1] for line in reversed(fields)}
        return {
            "python": platform.python_version(),
            "arch": platform.machine(),
            "system": f"{platform.system()} {platform.release()}",
            "libc": " ".join(platform.libc_ver()),
            "cores": len(os.sched_getaffinity(0)),
            "cpu": value_of.get("model name", ""),
            "board": _text(Path("/proc/device-tree/model")).strip("\0\n ") or value_of.get("Model", ""),
            "parts": [f"{value_of.get('CPU implementer', '')}:{value}" for key, value in fields if key == "CPU part"],
            "flags": (value_of.get("flags") or value_of.get("Features") or "").split(),
            "free_bytes": shutil.disk_usage(self.folder).free,
        }

    def do_state(self) -> dict[str, Any]:
        """Return load, CPU time, temperatures, clock rates and energy counters at this moment."""
        # user, nice, system, idle, iowait, irq, softirq, steal; guest time is inside user time
        ticks = [int(n) for n in _text(Path("/proc/stat")).split("\n", 1)[0].split()[1:9]]
        busy = sum(ticks) - sum(ticks[3:5])
        own = _cpu_ticks(os.getpid()) + sum(_cpu_ticks(child.pid) for child in self._workers.values())
        policies = sorted(CPUFREQ.glob("policy*"))
        zones = sorted(THERMAL.glob("thermal_zone*"))
        return {
            "load": os.getloadavg()[0],
            "busy_s": busy / os.sysconf("SC_CLK_TCK"),
            "own_s": own / os.sysconf("SC_CLK_TCK"),
            "wall_s": time.monotonic(),
            "cpus": os.cpu_count() or 1,
            "celsius": [int(t) / 1000 for t in (_number(zone / "temp") for zone in zones) if t],
            "governors": sorted({_text(p / "scaling_governor").strip() for p in policies} - {""}),
            "mhz": [int(f) / 1000 for f in (_number(p / "scaling_cur_freq") for p in policies) if f],
            "mhz_allowed": [int(f) / 1000 for f in (_number(p / "scaling_max_freq") for p in policies) if f],
            "mhz_most": [int(f) / 1000 for f in (_number(p / "cpuinfo_max_freq") for p in policies) if f],
            **_energy_counters(),
        }

    def _start_worker(self, worker: str) -> subprocess.Popen[bytes]:
        """Start a worker process that imports the installed engines; its standard error goes to its log file."""
        with self._log(worker).open("wb") as messages:
            child = subprocess.Popen(
                [*self._launcher, str(self.folder / "worker.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                cwd=self.folder,
                env=dict(os.environ, PYTHONPATH=str(self._site), PYTHONNOUSERSITE="1", PYTHONDONTWRITEBYTECODE="1"),
            )
        self._workers[worker] = child
        return child

    def _log(self, worker: str) -> Path:
        """Return the log file of a worker's standard error."""
        return self.folder / f"{worker}.log"

    def _read_output(self, child: subprocess.Popen[bytes], one_line: bool) -> bytes:
        """Return what a child process prints, up to a line end or the end; less if the child ends before.

        Raises:
            GoneError: If the connection ends meanwhile. The other side sends nothing while it waits for an answer.
        """
        assert child.stdout is not None
        output, stdout, connection = bytearray(), child.stdout.fileno(), self._requests.fileno()
        while not (one_line and output.endswith(b"\n")):
            ready, _, _ = select.select([stdout, connection], [], [])
            if connection in ready:
                raise _GoneError
            chunk = os.read(stdout, _CHUNK)
            if not chunk:
                break
            output += chunk
        return bytes(output)


def _start_guard(folder: str) -> list[int]:
    """Start a process that removes the folder when this process ends; return its id and the pipe that it waits on."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(reading)
        return [child, writing]
    os.setsid()
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    os.close(writing)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # the connection may end while this process waits
        os.dup2(null, stream)
    with contextlib.suppress(OSError):
        os.read(reading, 1)
    end = time.monotonic() + _REMOVAL_S
    while os.path.lexists(folder) and time.monotonic() < end:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)
    os._exit(0)


def _temporary_folder() -> Path | None:
    """Return the folder that TMPDIR names, even an unwritable one so that the error names it; None if unset."""
    named = os.environ.get("TMPDIR")
    return Path(named).absolute() if named else None


def _error_kind(error: Exception) -> str:
    """Return the kind of a failed read or write: ``full``, ``denied``, or ``machine`` for any other."""
    number = getattr(error, "errno", None)
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "full"
    return "denied" if number in (errno.EACCES, errno.EPERM, errno.EROFS) else "machine"


def _text(path: Path) -> str:
    """Read a file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> str:
    """Read a file that holds a whole number; empty if it holds none."""
    text = _text(path).strip()
    return text if text.isdigit() else ""


def _energy_counters() -> dict[str, Any]:
    """Read the energy counter of each processor package and its range, in µJ; else return why they cannot be read."""
    counters = {}
    try:
        for zone in sorted(POWERCAP.iterdir()):
            if re.fullmatch(r"intel-rapl:\d+", zone.name):  # parts of a package have a second number
                counters[zone.name] = [int((zone / f).read_text()) for f in ("energy_uj", "max_energy_range_uj")]
    except PermissionError:
        return {"unread": "root-only"}
    except OSError:
        return {"unread": "absent"}
    except ValueError:
        return {"unread": "content"}
    return {"packages": counters} if counters else {"unread": "absent"}


def _cpu_ticks(process: int) -> int:
    """Return the user and system time of a process, with that of its ended child processes."""
    rest = _text(Path(f"/proc/{process}/stat")).rpartition(")")[2].split()
    return sum(map(int, rest[11:15])) if rest else 0


if __name__ == "__main__":
    sys.exit(main())
