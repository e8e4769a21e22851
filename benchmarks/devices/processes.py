"""Programs that run in a separate process, since a vendor's code may crash or hang, with a time limit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LOG_FILE = "log"
"""File in the folder of a job that holds what its program printed."""
MOST_LOG = 64 << 20
"""Most bytes of a log that are read."""


@dataclass(frozen=True)
class Ended:
    """How a program ended.

    Attributes:
        how: What went wrong; empty where it ended well.
        log: What it printed.
    """

    how: str
    log: str


def run_separately(
    command: Sequence[str], folder: Path, limit_s: float, environment: Mapping[str, str] | None = None
) -> Ended:
    """Run a program and wait for its end. It ends, with all processes that it started, at the limit and when this one is stopped.

    Args:
        command: The program and its arguments; no shell reads them.
        folder: Its working directory, which gets the log.
        limit_s: Most seconds that it may take.
        environment: Variables that are set in addition to those of this process.

    Returns:
        How it ended. No error is raised for what the program does.
    """
    path = folder / LOG_FILE
    with path.open("wb") as log:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        try:
            how = _words(process.wait(limit_s))
        except subprocess.TimeoutExpired:
            _kill(process)
            how = f"the process did not end within {limit_s:.0f} s"
        except BaseException:  # this process is stopped, too
            _kill(process)
            raise
    with path.open("rb") as log:
        return Ended(how, log.read(MOST_LOG).decode(errors="replace"))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a program and what it started: all are in the group that it leads."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _words(status: int) -> str:
    if status < 0:
        return f"the process was ended by {signal.Signals(-status).name}"
    return f"the process ended with status {status}" if status else ""
