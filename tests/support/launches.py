"""The processes of a launch as threads of which one runs at a time, for code that meets others in `exchange` only."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

import pytest

from pocketbert.core.host.processes import LaunchedProcess

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
