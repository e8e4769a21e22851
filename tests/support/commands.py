"""Commands of PocketBERT, bound to one core where results are compared byte by byte."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

from support.commander import run_command

_PIN = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
if hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    os.sched_setaffinity(0, {cores[int(worker) % len(cores)]})
os.execv(sys.argv[1], sys.argv[1:])
"""


def one_core(argv: Sequence[str]) -> list[str]:
    """A command bound to one core: one thread, the same rounding every time, no waiting for a busy sibling.

    Ctrl-C works there even where the tests themselves were started in the background. The process does this to itself:
    code that runs between fork and exec can deadlock where the tests' process has the threads of JAX.
    """
    return [sys.executable, "-c", _PIN, *argv]


def command(*args: object) -> list[str]:
    """The command line for a process of its own."""
    return [sys.executable, "-m", "pocketbert.cli.main", *map(str, args)]


def completed_run(folder: Path, recipe: Path, *arguments: str) -> None:
    """`pocketbert run` on one core, in this process, which has loaded the libraries; what it printed lies beside the folder."""
    threads = torch.get_num_threads()
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as printed,
        _this_process_on_one_core(),
    ):
        patch.setenv("OMP_NUM_THREADS", "1")
        torch.set_num_threads(1)
        ended = run_command(Path(printed), "run", recipe, *arguments, "-o", folder, bounded=False, patience_s=600)
        torch.set_num_threads(threads)
    assert ended.code == 0, ended.err
    folder.with_suffix(".stdout").write_text(ended.out)
    folder.with_suffix(".stderr").write_text(ended.err)


@contextmanager
def _this_process_on_one_core() -> Iterator[None]:
    """Bind this process to a core, another one for each worker; afterwards also the threads that were started on it."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = sorted(os.sched_getaffinity(0))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    try:
        os.sched_setaffinity(0, {cores[worker % len(cores)]})
        yield
    finally:
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it has ended
                os.sched_setaffinity(int(task.name), cores)
