"""Processes of a Ray cluster, for texts that one machine would take too long to answer or to tokenize.

`RayCluster` starts the processes, or uses the cluster that RAY_ADDRESS names. Each opens the same models or the same tokenizer and works
on portions; `RayCluster.map` returns the results in the order of the portions. These are the portions of one process, so that the written
files are the same; Ray Data would cut rows into blocks of its own. A process that dies is started anew, and what it was
working on is done again.

Ray is imported only here, with its usage reports off.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, TypeVar

from pocketbert.core.errors import InputError, MachineError, Problem
from pocketbert.core.host.processes import current_process
from pocketbert.core.host.progress import print_note
from pocketbert.pipeline.doctor import require

_IN_FLIGHT = 2
"""Portions that each process has at once: one that it works on, and one that waits."""

_RESTARTS = 3
"""How often a process is started anew before the command gives up."""
_SHORT = "/tmp" if Path("/tmp").is_dir() else None  # noqa: S108 - a folder of its own is made in it
P = TypeVar("P")
R = TypeVar("R")
A = TypeVar("A")


def list_engine_problems(engine: str, workers: int | None) -> list[Problem]:
    """Return what is wrong with the options `--engine` and `--workers`; empty if nothing is."""
    problems = list[Problem]()
    if engine not in ("local", "ray"):
        problems.append(Problem("--engine", f"there is none called '{engine}'.", "Set local or ray."))
    if workers is not None and engine != "ray":
        problems.append(Problem("--workers", "counts processes of Ray.", "Add --engine ray, or leave it out."))
    if engine == "ray" and (world := current_process().world) > 1:
        what = f"starts processes of its own, and a launcher has started {world}."
        problems.append(
            Problem("--engine ray", what, "Start the command without the launcher, or leave the option out.")
        )
    return problems


class _Worker:
    """A process of the cluster.

    Args:
        open_work: Function that returns the function of a portion; it reads the same files on every machine.
        threads: Threads of torch: as many as in the process that writes, since another number rounds otherwise.
    """

    def __init__(self, open_work: Callable[[], Callable[[Any], Any]], threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._work = open_work()

    def answer(self, asked: Any) -> Any:
        """Return the result for the rows of a portion."""
        return self._work(asked)


class RayCluster(Generic[R, A]):
    """Processes of a Ray cluster that work on portions; a context manager, which ends them and a cluster of its own.

    Args:
        open_work: Function that returns, in each process, the function of a portion's rows.
        workers: Number of processes; None for one on each machine of the cluster.
        verb: What the processes do, for messages.
        kept: Sentence on what becomes of finished work if a process dies too often.
        on_gpu: Whether each process gets a GPU, where there are enough.

    Raises:
        MissingBackendError: If Ray is not installed.
    """

    def __init__(
        self,
        open_work: Callable[[], Callable[[R], A]],
        workers: int | None,
        verb: str,
        kept: str,
        on_gpu: bool,
    ) -> None:
        require("ray")
        self._open_work, self._wanted, self._verb, self._kept, self._on_gpu = open_work, workers, verb, kept, on_gpu
        self._ray: Any = None
        self._workers: list[Any] = []
        self._files = ExitStack()

    def __enter__(self) -> RayCluster[R, A]:
        """Start or join the cluster and start the processes.

        Raises:
            InputError: If more processes are asked for than the cluster has GPUs or, without GPUs, CPUs.
        """
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        import torch

        ray = self._ray = import_module("ray")
        wanted, own = self._wanted, "RAY_ADDRESS" not in os.environ
        local: dict[str, Any] = {}
        if own:  # its logs go when it ends; paths of its sockets must be short
            folder = self._files.enter_context(TemporaryDirectory("", "pb-ray-", _SHORT, ignore_cleanup_errors=True))
            cores = max(os.cpu_count() or 1, wanted or 1)
            local = {"num_cpus": cores, "include_dashboard": False, "_temp_dir": folder}
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **local)
        count = wanted or len([node for node in ray.nodes() if node["Alive"]])
        there = {kind: int(ray.cluster_resources().get(kind, 0)) for kind in ("GPU", "CPU")}
        kind = "GPU" if there["GPU"] and self._on_gpu else "CPU"
        if count > there[kind]:  # the processes would wait for ever
            self.__exit__()
            what = f"asks for {count} processes, and the cluster has {there[kind]} {kind}s."
            raise InputError(Problem("--workers", what, f"Set at most {there[kind]}."))
        # on all machines; a process that dies is started anew, and its portions are given to it again: a text that kills
        # every process that answers it would otherwise do so for ever
        placed = {"num_cpus": 1, "num_gpus": int(kind == "GPU"), "scheduling_strategy": "SPREAD"}
        worker = ray.remote(**placed, max_restarts=_RESTARTS, max_task_retries=_RESTARTS)(_Worker)
        threads = torch.get_num_threads()
        self._workers = [worker.remote(self._open_work, threads) for _ in range(count)]
        each = "on a GPU each" if kind == "GPU" else f"with {threads} threads each"
        print_note(f"  {count} processes of Ray {self._verb}, {each}")
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes, and the cluster if it was started here."""
        for worker in self._workers:
            self._ray.kill(worker)
        self._ray.shutdown()
        self._files.close()

    def map(self, portions: Iterable[tuple[P, R]]) -> Iterator[tuple[P, R, A]]:
        """Yield portions in their order, with the results for their rows.

        Args:
            portions: Anything that belongs to a portion, and its rows; read a few portions ahead.

        Raises:
            MachineError: If a process cannot open what it needs, or fails.
        """
        waiting = deque[tuple[P, R, Any]]()
        for number, (portion, rows) in enumerate(portions):
            if len(waiting) == _IN_FLIGHT * len(self._workers):
                before, its_rows, result = waiting.popleft()
                yield before, its_rows, self._wait_for(result)
            worker = self._workers[number % len(self._workers)]
            waiting.append((portion, rows, worker.answer.remote(rows)))
        while waiting:
            before, its_rows, result = waiting.popleft()
            yield before, its_rows, self._wait_for(result)

    def _wait_for(self, result: Any) -> A:
        """Return the result for a portion when it is there; raise MachineError with the reason if there will be none."""
        try:
            found: A = self._ray.get(result)
        except self._ray.exceptions.RayError as error:
            reason = f"failed: {str(error).strip().splitlines()[-1]:.300}"
            if isinstance(error, self._ray.exceptions.RayActorError) and "creation task" not in str(error):
                reason = (
                    f"was started anew {_RESTARTS} times and died again. It needs more memory than there is (fewer --workers, a "
                    "smaller --batch), or something ends it."
                )
            raise MachineError(f"a process of Ray {reason} {self._kept}") from error
        return found
