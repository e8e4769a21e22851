"""CPU and wall time of each training stage of a run."""

from __future__ import annotations

import json
import resource
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

POLL_S = 0.2


@dataclass(frozen=True)
class Moment:
    """Time used up to some point, in seconds.

    Attributes:
        cpu: Of this process with its threads and of its finished children.
        wall: Of a clock on the wall.
    """

    cpu: float
    wall: float

    @classmethod
    def now(cls) -> Moment:
        """This one."""
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return cls(sum(u.ru_utime + u.ru_stime for u in used), time.monotonic())

    def since(self, before: Moment) -> Moment:
        """What was used between two moments."""
        return Moment(self.cpu - before.cpu, self.wall - before.wall)


class StageClock:
    """Watches ``metrics.jsonl`` of a run folder, in which each stage records its last step; exact to `POLL_S`.

    A stage's time counts from the end of the one before: what comes before its first step (reading data, making copies
    with other words) belongs to it, and what comes after the last stage (scoring, saving) to none.

    Args:
        metrics: The file; it need not be there yet.
        steps: Steps of each stage by name (``distill.0``), in order.
    """

    def __init__(self, metrics: Path, steps: dict[str, int]) -> None:
        self._metrics, self._steps = metrics, steps
        self._ends: dict[str, Moment] = {}
        self._began = Moment(0, 0)
        self._stop = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> StageClock:
        """Start watching."""
        self._began = Moment.now()
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Look a last time."""
        self._stop.set()
        self._watcher.join()
        self._look()

    def spent(self) -> dict[str, Moment]:
        """Time of each stage that ended."""
        out, before = {}, self._began
        for name in self._steps:
            if (end := self._ends.get(name)) is not None:
                out[name], before = end.since(before), end
        return out

    def _watch(self) -> None:
        while not self._stop.wait(POLL_S):
            self._look()

    def _look(self) -> None:
        if not self._metrics.is_file():
            return
        for line in self._metrics.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            name = row["stage"]
            if name not in self._ends and self._steps.get(name) == row["step"]:
                self._ends[name] = Moment.now()
