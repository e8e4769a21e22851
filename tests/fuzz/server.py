"""A process that has imported everything, and runs each command in a forked child under limits of time and memory.

Started by `runner.Runner` with the Python that is tested; needs nothing but the standard library. Each line on stdin is a
request, each answer a line of JSON on the descriptor that the first argument names.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import io
import json
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLD = ["-m", "pocketbert.cli.main"]


@dataclass
class Request:
    """What to run, and how much it may take."""

    argv: list[str]  # of `pocketbert`
    cwd: str
    stdin: str  # a file; "closed" for none at all
    out: str  # files for what it writes
    err: str
    seconds: float
    idle: float  # longest time in which it uses no processor: something that never comes is awaited
    memory: int  # most resident bytes
    cold: bool = False  # in a new interpreter
    learn: str = ""  # file for the names of the modules that it imported


def call(argv: Sequence[str]) -> int:
    """Do what the console script does, in this process; return its exit status."""
    from pocketbert.cli.main import main

    sys.argv = ["pocketbert", *argv]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def child(request: Request) -> None:
    """Become the command; never returns."""
    os.setsid()
    os.chdir(request.cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    written = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for descriptor, (path, flags) in enumerate(
        ((request.stdin, os.O_RDONLY), (request.out, written), (request.err, written))
    ):
        if path == "closed":
            os.close(descriptor)
            continue
        handle = os.open(path, flags, 0o644)
        os.dup2(handle, descriptor)
        os.close(handle)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if request.cold:
        os.execv(sys.executable, [sys.executable, *COLD, *request.argv])
    if not request.learn:  # libraries that are yet to be loaded map more than a command may take
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        most = mapped + request.memory + (request.memory >> 1)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    closed = request.stdin == "closed"
    sys.stdin = None if closed else _stream(0, "r")  # type: ignore[assignment]
    sys.stdout = _stream(1, "w")
    sys.stderr = _stream(2, "w", errors="backslashreplace", line_buffering=True)
    code = call(request.argv)
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    if request.learn:
        names = [n for n, m in sys.modules.items() if getattr(m, "__spec__", None) is not None]
        Path(request.learn).write_text(json.dumps(names))
    os._exit(code & 0xFF)


def _stream(descriptor: int, mode: str, **options: Any) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.FileIO(descriptor, mode, closefd=False), encoding="utf-8", **options)  # type: ignore[arg-type]


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        found.append(one)
        with contextlib.suppress(OSError):  # a process may end while its children are listed
            for path in Path(f"/proc/{one}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    waiting += map(int, path.read_text().split())
    return found


def used(pids: Sequence[int]) -> tuple[int, int]:
    """Processor time in ticks and resident bytes of some processes; a process that could run counts as having used some."""
    ticks = resident = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12]) + (fields[0] == "R")
            resident += int(fields[21]) * resource.getpagesize()
    return ticks, resident


def watch(pid: int, request: Request) -> dict[str, Any]:
    """Wait for a child, and kill it where it takes more than it may; how it ended, as `runner.Ended` has it."""
    began = time.monotonic()
    moved, ticks, killed, pause = began, -1, "", 0.002
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        now = time.monotonic()
        if done:
            break
        if not killed:
            before = ticks
            ticks, resident = used(family(pid))
            moved = now if ticks != before else moved
            over = {"time": now - began > request.seconds, "idle": now - moved > request.idle}
            killed = next((k for k, much in {**over, "memory": resident > request.memory}.items() if much), "")
            if killed:
                end(pid)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    end(pid)
    resident = usage.ru_maxrss << 10
    killed = killed or ("memory" if resident > request.memory else "")
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "killed": killed, "seconds": now - began, "resident": resident}


def end(pid: int) -> None:
    """End whatever the session of a child still has."""
    for one in family(pid):
        with contextlib.suppress(OSError):
            os.kill(one, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def load(names: Sequence[str]) -> None:
    """Import what a command imported, so that the children of this process have it."""
    for name in names:
        if name not in sys.modules and "__main__" not in name:
            with contextlib.suppress(BaseException), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(name)


def serve(answers: int) -> None:
    """Answer requests until stdin ends."""
    requests = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for line in requests:
        request = Request(**json.loads(line))
        pid = os.fork()
        if pid == 0:
            try:
                os.close(answers)
                child(request)
            except BaseException:
                traceback.print_exc()  # to the log of this process, or to where the command's stderr goes by now
            finally:
                os._exit(97)
        answer = watch(pid, request)
        if request.learn:
            load(json.loads(Path(request.learn).read_text()) if Path(request.learn).is_file() else [])
        os.write(answers, (json.dumps(answer) + "\n").encode())


if __name__ == "__main__":
    serve(int(sys.argv[1]))
