"""The parent's side of the workers: opens them, lets one work at a time, and waits until it is quiet again."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

QUIET_S = 0.004
"""A worker that used no CPU time for so long has stopped spinning."""
QUIET_MOST_S = 0.25


@dataclass(frozen=True)
class Column:
    """One engine of the table.

    Attributes:
        name: How the table calls it.
        engine: Name in `engine.worker.ENGINES`.
        path: What it opens.
        python: Interpreter of its environment.
        options: Further arguments of the engine.
        environ: Environment variables of the process.
        threads: Thread counts that it is measured at.
    """

    name: str
    engine: str
    path: Path
    python: Path
    options: dict[str, Any] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    threads: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class Burst:
    """What one turn of a worker gave.

    Attributes:
        wall: ms of each timed inference.
        cpu: Mean CPU time in ms of a timed inference, all threads.
        after: CPU time in ms that the process still used when its turn was over.
    """

    wall: list[float]
    cpu: float
    after: float


class EngineError(Exception):
    """An engine could not do what it was asked."""


class Worker:
    """A process with one engine at one thread count.

    Args:
        column: What to open.
        threads: Threads within an operator.

    Raises:
        EngineError: If it cannot be opened.
    """

    def __init__(self, column: Column, threads: int) -> None:
        environ = {
            "OMP_WAIT_POLICY": "PASSIVE",
            "KMP_BLOCKTIME": "0",
            **os.environ,
            **column.environ,
            "OMP_NUM_THREADS": str(threads),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.column = column
        script = Path(__file__).parent / "worker.py"
        self._process = subprocess.Popen(
            [str(column.python), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("ENGINES_DEBUG") else subprocess.DEVNULL,
            text=True,
            env={k: v for k, v in environ.items() if v},
        )
        try:
            opened = self.ask(
                "open", engine=column.engine, path=str(column.path), threads=threads, options=column.options
            )
        except EngineError:
            self.close()
            raise
        self.version: str = opened["version"]
        self.note: str = opened.get("note", "")
        self.choices: dict[str, str] = opened.get("choices", {})
        self.mixed: dict[str, str] = opened.get("mixed", {})

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        """Send one request and wait for its answer.

        Raises:
            EngineError: If the worker says so or is gone.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise EngineError(f"{self.column.name}: the process ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineError(f"{self.column.name}: {answer['error']}")
        return answer

    def feed(self, key: str, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Give token ids of inputs and get the logits of each."""
        logits: list[list[float]] = self.ask("feed", key=key, rows=[list(map(int, r)) for r in rows])["logits"]
        return logits

    def run(self, key: str, first: int, count: int, untimed: int) -> Burst:
        """One turn; returns when the process is quiet again."""
        answer = self.ask("run", key=key, first=first, count=count, untimed=untimed)
        return Burst(answer["wall"], answer["cpu"], self._wait_until_quiet())

    def _wait_until_quiet(self) -> float:
        first = before = self.cpu_ms()
        deadline = time.monotonic() + QUIET_MOST_S
        while time.monotonic() < deadline:
            time.sleep(QUIET_S)
            now = self.cpu_ms()
            if now - before < 0.5:
                break
            before = now
        return self.cpu_ms() - first

    def cpu_ms(self) -> float:
        """CPU time of all threads; the scheduler's own count, since that of /proc/PID/stat has steps of 10 ms."""
        total = 0
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread may end meanwhile
                total += int((task / "schedstat").read_text().split()[0])
        return total / 1e6

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
