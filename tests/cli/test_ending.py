"""A process ends although threads compute answers that nobody waits for any more: with its exit code and what it printed."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

_BUSY = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from pocketbert.cli.commands import signals
with signals():
    ThreadPoolExecutor(1, "predict").submit(time.sleep, 60)
    print("an answer")
    {end}
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [("sys.exit(3)", 3), ("import signal; signal.raise_signal(signal.SIGTERM)", 143)],
)
def test_it_does_not_wait_for_answers(end: str, code: int) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _BUSY.format(end=end)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (code, "an answer\n"), done.stderr
    assert time.monotonic() - began < 50
