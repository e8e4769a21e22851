"""The processes of a launch: real ones, or threads of which one runs at a time, for code that meets others in `exchange` only."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

from pocketbert.core.host.processes import LaunchedProcess
from support.ports import free_port

T = TypeVar("T")


class Left(BaseException):
    """Ends a process whose launch has lost another one."""


def run_launch(world: int, work: Callable[[int], T], *modules: ModuleType) -> list[T]:
    """Run `work(rank)` in every process, and return the results; raise the error of the first that failed.

    Args:
        world: Number of processes.
        work: What each of them does.
        modules: Modules whose `current_process` and `exchange` are those of this launch meanwhile.
    """
    turn, arrived, own = threading.Lock(), threading.Condition(), threading.local()
    texts, results, errors = dict[tuple[int, int], str](), dict[int, T](), list[BaseException]()

    def exchange(text: str = "") -> list[str]:
        own.count += 1
        wanted = [(own.count, rank) for rank in range(world)]
        with arrived:
            texts[own.count, own.rank] = text
            arrived.notify_all()
        turn.release()
        with arrived:
            assert arrived.wait_for(lambda: errors or all(key in texts for key in wanted), 60)
        turn.acquire()
        if errors:
            raise Left
        return [texts[key] for key in wanted]

    def process(rank: int) -> None:
        own.rank, own.count = rank, -1
        with turn:
            try:
                results[rank] = work(rank)
            except BaseException as error:
                if not isinstance(error, Left):
                    errors.append(error)
        with arrived:
            arrived.notify_all()

    with pytest.MonkeyPatch.context() as patched:
        given: dict[str, Any] = {"exchange": exchange, "current_process": lambda: LaunchedProcess(own.rank, world)}
        for module in modules:
            for name, value in given.items():
                patched.setattr(module, name, value)
        threads = [threading.Thread(target=process, args=(rank,)) for rank in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(world)]


def run_with_torchrun(
    processes: int, *arguments: object, folder: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with some arguments in a folder, alone or in several processes of torchrun, with environment variables added."""
    launch = ("-m", "torch.distributed.run", f"--nproc-per-node={processes}", f"--master-port={free_port()}")
    return subprocess.run(
        [sys.executable, *(launch if processes > 1 else ()), *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def run_two_processes(script: str, *arguments: str, cwd: Path) -> None:
    """Run a script in two processes of a launch, in the folder `cwd`, and wait until both have ended well."""
    launcher = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    started = []
    for rank in ("0", "1"):
        environment = {**os.environ, **launcher, "RANK": rank, "LOCAL_RANK": rank}
        argv = [sys.executable, script, *arguments]
        started.append(subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, cwd=cwd, env=environment))
    try:
        for process in started:
            _, said = process.communicate(timeout=300)
            assert process.returncode == 0, said
    finally:
        for process in started:
            process.kill()
