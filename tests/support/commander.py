"""Commands in a process of their own that may die: one that lives long, and a new one after each death."""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.canaries import canaries, outputs_of

MIB = 1 << 20
HEADROOM = 2048 * MIB
"""Address space that one command may map beyond what the warm libraries hold."""
GROWTH = 384 * MIB
"""Resident memory that one command may take for a while, all inputs being tiny."""
PATIENCE_S = 120


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        code: Exit status; negative: the signal that killed the process.
        out: What it wrote to stdout.
        err: What it and all native libraries wrote to stderr.
        grown: Peak of the resident memory beyond that before the command, in bytes.
    """

    code: int
    out: str
    err: str
    grown: int


class Commander:
    """Runs commands in a worker process.

    Args:
        folder: Scratch folder, also for what PocketBERT remembers of this machine.
        warm: Commands to run before the memory is bounded, so that libraries are loaded.
    """

    def __init__(self, folder: Path, warm: Sequence[Sequence[object]] = ()) -> None:
        self.folder, self.warm = folder, warm
        self.deaths = 0
        self._process: subprocess.Popen[str] | None = None

    def _start(self) -> None:
        mine, theirs = os.pipe()
        self._answers = os.fdopen(mine, "rb", buffering=0)
        environment = {**os.environ, "POCKETBERT_CACHE": str(self.folder / "cache"), "PYTHONFAULTHANDLER": ""}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py")), str(theirs), str(self._out), str(self._err)],
            stdin=subprocess.PIPE,
            text=True,
            pass_fds=(theirs,),
            env=environment,
        )
        os.close(theirs)
        for arguments in self.warm:
            ended = self._ask(arguments, None)
            assert ended.code == 0, ended

    @property
    def _out(self) -> Path:
        return self.folder / "stdout"

    @property
    def _err(self) -> Path:
        return self.folder / "stderr"

    def run(self, *arguments: object) -> Ended:
        """Run one command."""
        if self._process is None:
            self._start()
        with canaries(outputs_of(arguments)):
            return self._ask(arguments, HEADROOM)

    def _ask(self, arguments: Sequence[object], headroom: int | None) -> Ended:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.write(json.dumps({"arguments": [str(a) for a in arguments], "headroom": headroom}) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([self._answers], [], [], PATIENCE_S)
        line = self._answers.readline() if ready else b""
        if not line:
            process.kill()
            self.close()
            self.deaths += 1
            answer = {"code": process.returncode, "grown": 0}
        else:
            answer = json.loads(line)
        texts = [p.read_text(encoding="utf-8", errors="replace") for p in (self._out, self._err)]
        return Ended(answer["code"], *texts, answer["grown"])

    def close(self) -> None:
        """End the worker."""
        if self._process is not None:
            self._process.communicate()
            self._answers.close()
            self._process = None


def tree(folder: Path) -> dict[str, str]:
    """Everything below a folder, hidden things included: digests of files, targets of links."""
    out = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            out[name] = f"-> {path.readlink()}"
        elif stat.S_ISREG(path.lstat().st_mode):
            out[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            out[name] = ""
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
