"""Teachers in several processes of a Ray cluster, for texts that one machine would take too long to answer.

`TeachingCluster` starts the processes, or uses the cluster that RAY_ADDRESS names. Each opens the same models and answers portions of
rows; `TeachingCluster.answer` returns the answers in the order of the portions. These are the portions that one process would answer, so
that the written file is the same; Ray Data would cut rows into blocks of its own. A process that dies is started anew, and what it was
answering is answered again.

Ray is imported only here, with its usage reports off.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from pocketbert.core.errors import InputError, MachineError, Problem
from pocketbert.core.host.progress import print_note
from pocketbert.pipeline.doctor import require
from pocketbert.pipeline.options import TeachOptions
from pocketbert.pipeline.teach.answering import Array, AskedRow, Teacher

_IN_FLIGHT = 2
"""Portions that each process has at once: one that it answers, and one that waits."""

_RESTARTS = 3
"""How often a process is started anew before the command gives up."""
_SHORT = "/tmp" if Path("/tmp").is_dir() else None  # noqa: S108 - a folder of its own is made in it
P = TypeVar("P")


class _Worker:
    """A process of the cluster with the teachers in it.

    Args:
        open_teachers: Function that opens the teachers; it reads the same files on every machine.
        threads: Threads of torch: as many as in the process that writes, since another number rounds otherwise.
    """

    def __init__(self, open_teachers: Callable[[], list[Teacher]], threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._teachers = open_teachers()

    def answer(self, asked: Sequence[AskedRow]) -> list[list[Array]]:
        """Return the answers of each teacher for each row."""
        return [teacher.answer(asked) for teacher in self._teachers]


class TeachingCluster:
    """Processes of a Ray cluster that answer rows; a context manager, which ends them and a cluster of its own.

    Args:
        open_teachers: Function that opens the teachers, in each process.
        options: The number of processes; default one on each machine of the cluster.

    Raises:
        MissingBackendError: If Ray is not installed.
        InputError: If a language model is to be asked, whose server may be asked from one process as well.
    """

    def __init__(self, open_teachers: Callable[[], list[Teacher]], options: TeachOptions) -> None:
        if options.endpoint is not None:
            what = "starts processes that open models, and --endpoint asks a server."
            raise InputError(Problem("--engine ray", what, "Leave it out: --parallel requests are sent at once."))
        require("ray")
        self._open_teachers, self._wanted = open_teachers, options.workers
        self._ray: Any = None
        self._workers: list[Any] = []
        self._files = ExitStack()

    def __enter__(self) -> TeachingCluster:
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
        kind = "GPU" if there["GPU"] else "CPU"
        if count > there[kind]:  # the processes would wait for ever
            self.__exit__()
            what = f"asks for {count} processes, and the cluster has {there[kind]} {kind}s."
            raise InputError(Problem("--workers", what, f"Set at most {there[kind]}."))
        # on all machines; a process that dies is started anew, and its portions are given to it again: a text that kills
        # every process that answers it would otherwise do so for ever
        placed = {"num_cpus": 1, "num_gpus": int(kind == "GPU"), "scheduling_strategy": "SPREAD"}
        worker = ray.remote(**placed, max_restarts=_RESTARTS, max_task_retries=_RESTARTS)(_Worker)
        threads = torch.get_num_threads()
        self._workers = [worker.remote(self._open_teachers, threads) for _ in range(count)]
        each = "on a GPU each" if kind == "GPU" else f"with {threads} threads each"
        print_note(f"  {count} processes of Ray answer, {each}")
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes, and the cluster if it was started here."""
        for worker in self._workers:
            self._ray.kill(worker)
        self._ray.shutdown()
        self._files.close()

    def answer(
        self, portions: Iterable[tuple[P, list[AskedRow]]]
    ) -> Iterator[tuple[P, list[AskedRow], list[list[Array]]]]:
        """Yield portions of rows in their order, with the answers of each teacher.

        Args:
            portions: Anything that belongs to a portion, and its rows; read a few portions ahead.

        Raises:
            MachineError: If a process cannot open or ask the teachers.
        """
        waiting = deque[tuple[P, list[AskedRow], Any]]()
        for number, (portion, asked) in enumerate(portions):
            if len(waiting) == _IN_FLIGHT * len(self._workers):
                before, its_rows, answers = waiting.popleft()
                yield before, its_rows, self._wait_for(answers)
            worker = self._workers[number % len(self._workers)]
            waiting.append((portion, asked, worker.answer.remote(asked)))
        while waiting:
            before, its_rows, answers = waiting.popleft()
            yield before, its_rows, self._wait_for(answers)

    def _wait_for(self, answers: Any) -> list[list[Array]]:
        """Return the answers of a portion when they are there; raise MachineError with the reason if there will be none."""
        try:
            found: list[list[Array]] = self._ray.get(answers)
        except self._ray.exceptions.RayError as error:
            reason = f"failed: {str(error).strip().splitlines()[-1]:.300}"
            if isinstance(error, self._ray.exceptions.RayActorError) and "creation task" not in str(error):
                reason = (
                    f"was started anew {_RESTARTS} times and died again. It needs more memory than there is (fewer --workers, a "
                    "smaller --batch), or something ends it."
                )
            what = "What is answered is kept: the same command continues."
            raise MachineError(f"a process of Ray {reason} {what}") from error
        return found
