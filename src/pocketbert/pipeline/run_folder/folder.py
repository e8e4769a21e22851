"""A folder that steps are run in: results and unfinished work under a lock, each known by what it is made from."""

from __future__ import annotations

import contextlib
import logging
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pocketbert.core.disk.destination import leaving_nothing
from pocketbert.core.disk.files import check_writable, digests, sync
from pocketbert.core.disk.marker import is_marked
from pocketbert.core.disk.ownership import (
    claim,
    empty,
    install,
    refuse_unmarked,
    remove,
    remove_temporary_files,
    replace_file,
)
from pocketbert.core.disk.workspace import sync_tree
from pocketbert.core.errors import GateError, InputError, MissingBackendError, Problem, note_kept
from pocketbert.core.host.processes import Order, here, train_together
from pocketbert.core.host.progress import say
from pocketbert.core.types import Status
from pocketbert.pipeline.run_folder.finding import found_of
from pocketbert.pipeline.run_folder.made_from import MadeFrom
from pocketbert.pipeline.run_folder.mark import Mark, Marks
from pocketbert.pipeline.run_folder.plan import Finding, Permission, Plan, plan_of
from pocketbert.pipeline.run_folder.step import Places, Step
from pocketbert.pipeline.run_folder.work import NEW, Work, holds_work

log = logging.getLogger("pocketbert")

KIND = "run folder"
METRICS = "metrics.jsonl"
TOLD_S = 2.0
"""Seconds from which the user is told what a step took."""
DATA = "data"
"""The step that reads the data, in seconds."""
_MARKS, _WORK = ".steps", ".work"


@dataclass
class RunFolder:
    """A folder that steps are run in.

    Attributes:
        path: The folder.
        allowed: What may be replaced, and what may be taken as it is.
        now: What each step of the current recipe is made from.
        hashes: The hash of each: of its settings and what it reads.
        exact: The same with what only judges it and with library versions.
    """

    path: Path
    allowed: Permission = field(default_factory=Permission)
    now: dict[str, MadeFrom] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    exact: dict[str, str] = field(default_factory=dict)

    @property
    def marks(self) -> Marks:
        """What is remembered of steps that have ended."""
        return Marks(self.path / _MARKS)

    def work(self, step: Step) -> Work:
        """Where a step works before it has a result."""
        return Work(self.path / _WORK, step, self.now[step.name])

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder; a second process is refused. The lock dies with its process.

        Where the input turns out to be wrong, a folder that was new is empty or gone again, unless training was begun.

        Raises:
            InputError: If the folder holds something else.
            MachineError: If another process holds it, or the folder cannot be written.
        """
        self.refuse_foreign()
        check_writable(self.path)
        new = not is_marked(self.path, KIND)
        with leaving_nothing(self.path), claim(self.path, KIND):
            (self.path / _MARKS).mkdir(exist_ok=True)
            for folder in (self.path, self.path / _MARKS):
                remove_temporary_files(folder)
            try:
                yield
            except (InputError, MissingBackendError):
                if new and not self._holds_results():
                    empty(self.path)
                raise
            except BaseException as error:
                note_kept(error, self.path)
                raise

    def _holds_results(self) -> bool:
        """Whether a step after the reading of the data is finished or was begun."""
        marked = any(mark.name != DATA for mark in self.marks.all())
        return marked or any(holds_work(p) for p in (self.path / _WORK).glob("*") if p.suffix != NEW)

    def refuse_foreign(self) -> None:
        """Refuse a file, and a folder that holds something else.

        Raises:
            InputError: Naming it; nothing was written.
        """
        refuse_unmarked(self.path, KIND)

    def hash(self, steps: Sequence[Step]) -> None:
        """Compute what every step is made from now."""
        for step in steps:
            made_from = step.made_from(self.hashes)
            self.now[step.name], self.hashes[step.name] = made_from, made_from.hash
            self.exact[step.name] = made_from.exact(self.exact)

    def plan(self, steps: Sequence[Step]) -> Plan:
        """Decide, before anything runs, what is made again, and refuse what must not be replaced.

        Raises:
            InputError: Listing every output and all unfinished work that was made from something else or changed since,
                and every output that this run did not make; nothing was changed.
        """
        self.hash(steps)
        return plan_of([f for s in steps if (f := self._found(s)) is not None], self.allowed, str(self.path))

    def _found(self, step: Step) -> Finding | None:
        return found_of(step, self.path / step.output, self.marks.read(step.name), self.work(step))

    def carry_out(self, plan: Plan, steps: Sequence[Step]) -> None:
        """Drop what is made again and remember what was accepted, so that a kill from here on finds it decided."""
        for step in reversed(steps):  # a step whose inputs are gone must be gone before them
            if step.name in plan.anew:
                self._forget(step)
        again = {**plan.anew, **plan.retried}
        for why in dict.fromkeys(again.values()):
            names = ", ".join(name for name in again if again[name] == why)
            say(f"  made again: {names}: {why}")
            log.info("made again: %s: %s", names, why)
        for step in steps:
            if step.name in plan.accepted:
                mark, now = self.marks.read(step.name), self.now[step.name]
                if mark is not None:
                    self.marks.write(mark.model_copy(update={"made_from": mark.made_from.accepting(now)}))
                self.work(step).accept()
        if plan.accepted:
            say(f"  taken as they are, made with other library versions: {', '.join(plan.accepted)}")

    def _forget(self, step: Step) -> None:
        """Drop the output and the mark of a step, so that nothing of another recipe lies next to new results."""
        for stale in self.work(step).unwanted():
            say(f"  removed unfinished work of other settings: {stale}")
        self.work(step).remove_all()
        remove(self.path / step.output)
        self.marks.remove(step.name)  # last: an output without its mark would be a stranger

    def state(self, step: Step) -> str:
        """``finished``, ``unfinished`` (will be resumed) or ``to do``."""
        mark = self.marks.read(step.name)
        if mark is not None and mark.status is Status.PASSED and (self.path / step.output).exists():
            return "finished"
        return "unfinished" if self.work(step).path.exists() else "to do"

    def recover(self, steps: Sequence[Step]) -> None:
        """Finish what a process did not that was killed after it had marked a step and before the last rename."""
        for step in steps:
            mark, built = self.marks.read(step.name), self.work(step).built
            if mark is not None and built.exists() and digests(built) == mark.files:
                self._commit(step)

    def run(self, step: Step, number: int, count: int) -> None:
        """Run one step unless it is finished.

        Args:
            step: The step.
            number: Its number among the steps, from 1.
            count: How many steps there are.

        Raises:
            GateError: If a gate failed; the output stays, marked failed.
        """
        state, work, head = self.state(step), self.work(step), f"[{number}/{count}] {step.title}"
        if state == "finished":
            say(f"{head}: finished before, skipped")
            work.clear()  # a process killed right after its mark leaves it
            return
        say(f"{head}{_taken_up(step, work) if state == 'unfinished' else ''}")
        log.info("step %s %s, hash %s", step.name, state, self.hashes[step.name])
        made_from = work.begin()
        began, cpu = time.monotonic(), _cpu_seconds()
        if step.trains:
            train_together(step.name, self.exact[step.name])
        failures = list(step.make(Places(work.built, work.path, self.path / METRICS)))
        (sync_tree if work.built.is_dir() else sync)(work.built)
        mark = Mark(
            name=step.name,
            made_from=made_from,
            failures=failures,
            files=digests(work.built),
            status=Status.FAILED if failures else Status.PASSED,
            wall_s=round(time.monotonic() - began, 2),
            cpu_s=round(_cpu_seconds() - cpu, 2),
        )
        self.marks.write(mark)
        self._commit(step)
        work.clear()
        log.info("step %s %s: %.1f s, %.1f CPU-s", step.name, mark.status, mark.wall_s, mark.cpu_s)
        if mark.wall_s >= TOLD_S:
            say(f"  {step.name}: {mark.wall_s:.1f} s")
        if failures:
            kept = self.path / step.output
            raise GateError([*failures, f"The files stay in {kept}, marked failed; nothing was packed."])

    def take_part(self, steps: Sequence[Step], order: Order) -> None:
        """In a process other than 0: train a step together with process 0, and write nothing here.

        Raises:
            InputError: If this process sees another recipe, other data or another folder than process 0.
        """
        self.hash(steps)
        step = next((s for s in steps if s.name == order.step), None)
        rank = f"rank {here().rank}"
        if step is None or self.exact[step.name] != order.hash:
            raise InputError(
                Problem(
                    rank,
                    f"sees another recipe, other data, another model or other versions than process 0 (step {order.step}).",
                    "Give every node the same recipe, files and installation.",
                )
            )
        work = self.work(step).path
        read = (work, *(self.path / s.output for s in steps if s.name in step.needs))
        missing = [p for p in read if not p.exists()]
        if missing:
            raise InputError(
                Problem(
                    rank,
                    f"does not see {', '.join(map(str, missing))}, which process 0 has written.",
                    "Put the run folder on a file system that all nodes share, under the same path.",
                )
            )
        with tempfile.TemporaryDirectory(prefix="pocketbert-") as thrown_away:
            output = Path(thrown_away) / step.output
            (output if step.is_folder else output.parent).mkdir(parents=True, exist_ok=True)
            step.make(Places(output, work, Path(thrown_away) / METRICS))

    def accepted_versions(self, steps: Sequence[Step]) -> list[str]:
        """What was made with other library versions than those it was taken on with, by step."""
        out = []
        for step in steps:
            mark = self.marks.read(step.name)
            if mark is not None and mark.made_from.accepted:
                out.append(f"{step.name} ({mark.made_from.history})")
        return out

    def _commit(self, step: Step) -> None:
        """Rename what was built to its final name; an older output of the step, which a mark named, goes."""
        built, output = self.work(step).built, self.path / step.output
        output.parent.mkdir(exist_ok=True)
        if step.is_folder:
            install(built, output, self.work(step).aside)
        else:
            replace_file(built, output)
        sync(output.parent)


def _taken_up(step: Step, work: Work) -> str:
    """How unfinished work goes on; a training without a checkpoint has nothing to go on with."""
    return ": resumed" if not step.trains or work.steps_done else ": begins again, no checkpoint yet"


def _cpu_seconds() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
