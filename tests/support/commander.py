"""Commands in this process, as the console script runs them: bounded memory, and all that they write caught."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO, TextIOWrapper
from pathlib import Path
from typing import Any

from fuzz.server import call

MIB = 1 << 20
HEADROOM = 2048 * MIB
"""Address space that one command may map beyond what this process holds, its libraries loaded."""
GROWTH = 384 * MIB
"""Resident memory that one command may take for a while, all inputs being tiny."""
PATIENCE_S = 120


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str  # of native libraries too
    grown: int  # peak of the resident memory beyond that before the command, in bytes


def run_command(folder: Path, *arguments: object, bounded: bool = True, patience_s: int = PATIENCE_S) -> Ended:
    """Run a command; its outputs go through files in a folder."""
    out, err, argv = folder / "stdout", folder / "stderr", sys.argv
    with _written_to(out, err), _patience(patience_s), _headroom(HEADROOM if bounded else None):
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here
        before = _memory("VmRSS")
        code = call([str(a) for a in arguments])
        grown = _memory("VmHWM") - before
    _keep_process()
    sys.argv = argv
    return Ended(code, *(p.read_text(encoding="utf-8", errors="replace") for p in (out, err)), grown)


def _keep_process() -> None:
    """Cancel what ends a command's process two seconds later if threads still compute answers: this process goes on."""
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer) and thread.function is os._exit:
            thread.cancel()


@contextmanager
def _written_to(out: Path, err: Path) -> Iterator[None]:
    """Let the descriptors 1 and 2, and Python's streams on them, lead to two files."""
    streams = sys.stdout, sys.stderr
    kept = [os.dup(1), os.dup(2)]
    for stream in streams:
        stream.flush()
    for descriptor, path in ((1, out), (2, err)):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, descriptor)
        os.close(handle)
    sys.stdout, sys.stderr = (
        TextIOWrapper(FileIO(d, "w", closefd=False), "utf-8", how, write_through=True)  # type: ignore[arg-type]
        for d, how in ((1, "strict"), (2, "backslashreplace"))
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        for descriptor, before in enumerate(kept, 1):
            os.dup2(before, descriptor)
            os.close(before)


@contextmanager
def _patience(seconds: int) -> Iterator[None]:
    """Interrupt a command that takes much too long."""

    def interrupt(*_: Any) -> None:
        raise TimeoutError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _headroom(size: int | None) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = soft if size is None else _memory("VmSize") + size
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _memory(key: str) -> int:
    """A value of /proc/self/status in bytes."""
    return int(re.findall(rf"^{key}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)[0]) << 10


def tree(folder: Path) -> dict[str, str]:
    """Everything below a folder, hidden things included: digests of files (of huge ones the size), targets of links."""
    out = {}
    for path in sorted(folder.rglob("*")):
        found, name = path.lstat(), path.relative_to(folder).as_posix()
        if stat.S_ISLNK(found.st_mode):
            out[name] = f"-> {path.readlink()}"
        elif not stat.S_ISREG(found.st_mode):
            out[name] = ""
        elif found.st_size > 64 * MIB:
            out[name] = f"{found.st_size} bytes"
        else:
            out[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return out


def one_message(err: str) -> bool:
    """Whether stderr ends in one error and has nothing alarming before it.

    ``Error: ...``, or ``N problems:`` and N indented problems, of which the last line but one may count what is left out; what does not
    fit a line goes on further indented. Before it only what commands say of their progress.
    """
    lines = err.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("Error: ") or line.endswith(" problems:")]
    if len(starts) != 1:
        return False
    first, rest = lines[starts[0]], lines[starts[0] + 1 :]
    if first.startswith("Error: "):
        return len(first) > len("Error: ") and all(r.startswith("  ") for r in rest)
    listed = [r for r in rest if not r.startswith("      ")]
    counted = re.fullmatch(r"  and ([0-9,]+) more\.", listed[-2]) if len(listed) > 1 else None
    count = len(listed) - 1 + int(counted[1].replace(",", "")) if counted else len(listed)
    return count == int(first.split()[0]) and all(r.startswith("  ") and r.strip() for r in rest)


def unwrapped(err: str) -> str:
    """What a command wrote to stderr, with each problem on one line again: errors go on in further indented lines."""
    out: list[str] = []
    indent = ""
    for line in err.split("\n"):
        if indent and line.startswith(indent):
            out[-1] += f" {line.strip()}"
            continue
        out.append(line)
        listed = line.endswith(" problems:") or (indent == " " * 6 and line.startswith("  "))
        indent = "  " if line.startswith("Error: ") else " " * 6 if listed else ""
    return "\n".join(out)
