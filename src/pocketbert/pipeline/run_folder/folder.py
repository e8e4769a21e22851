"""A folder that steps are run in: results and unfinished work under a lock, each known by what it is made from."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbert.core.disk.destination import folder_destination, leaving_nothing
from pocketbert.core.disk.files import check_writable, digests, read_json, sync, write_json
from pocketbert.core.disk.ownership import (
    claim,
    empty,
    install,
    is_marked,
    refuse_unmarked,
    remove,
    remove_temporary_files,
    replace_file,
)
from pocketbert.core.disk.workspace import sync_tree
from pocketbert.core.errors import GateError, InputError, MissingBackendError, Problem, note_kept
from pocketbert.core.host.processes import Order, here, train_together
from pocketbert.core.host.progress import say
from pocketbert.core.host.terminal import html_table
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.types import Status
from pocketbert.distill.training.progress import steps_done
from pocketbert.pipeline.run_folder.plan import Finding, Permission, Plan, plan_of
from pocketbert.pipeline.run_folder.step import MadeFrom, Mark, Marks, Places, Step

if TYPE_CHECKING:
    from pocketbert.benchmarks.report import ModelFigures


# --- work ---
# Where a step works before it has a result: checkpoints that survive a kill, and what is being built.


RECORD = "made-from.json"
"""What unfinished work is made from, in its folder."""
NEW = ".new"
"""Ending of the folder in which the output of a step is built."""
_OWN = re.compile(r"-[0-9a-f]{12}")


class Work:
    """The unfinished work of a step.

    Args:
        root: Folder of the unfinished work of all steps.
        step: The step.
        now: What it is made from.
    """

    def __init__(self, root: Path, step: Step, now: MadeFrom) -> None:
        self.root, self.step, self.now = root, step, now
        self.path = root / f"{step.name}-{now.hash[:12]}"
        """Where checkpoints and caches go."""
        self.built = root / f"{step.name}{NEW}" / step.output
        """Where the output is built: a rename away from its final name."""
        self.aside = root / f"{step.name}{NEW}" / "old"
        """Where an older output is moved in that moment."""

    def others(self) -> list[Path]:
        """Work folders of the step that were made from something else, and hold anything."""
        return [p for p in self._folders() if p != self.path and holds_work(p)]

    def unwanted(self) -> list[Path]:
        """Work folders of the step that hold anything."""
        return [p for p in self._folders() if holds_work(p)]

    def begin(self) -> MadeFrom:
        """Make room for the output, and take up the work that is there.

        Returns:
            What the result is made from: with the versions that the work was begun with.
        """
        for stale in self._folders():
            if stale != self.path:
                remove(stale)
        self.path.mkdir(parents=True, exist_ok=True)
        made_from = recorded(self.path)
        if made_from is None or not holds_work(self.path):
            made_from = self.now
        made_from = made_from.model_copy(update={"gates": self.now.gates})
        write_json(self.path / RECORD, made_from.model_dump(mode="json"))
        remove(self._new)
        (self.built if self.step.is_folder else self.built.parent).mkdir(parents=True)
        return made_from

    def accept(self) -> None:
        """Remember that unfinished work goes on with the library versions of now."""
        made_from = recorded(self.path)
        if made_from is not None:
            write_json(self.path / RECORD, made_from.accepting(self.now).model_dump(mode="json"))

    def clear(self) -> None:
        """Remove the work of a step that has ended."""
        remove(self.path)
        remove(self._new)

    def remove_all(self) -> None:
        """Remove all work of the step, whatever it was made from."""
        for path in self._folders():
            remove(path)
        remove(self._new)

    @property
    def steps_done(self) -> bool:
        """Whether there is a checkpoint of a training."""
        return bool(steps_done(self.path))

    @property
    def _new(self) -> Path:
        return self.root / f"{self.step.name}{NEW}"

    def _folders(self) -> list[Path]:
        name = self.step.name
        return [p for p in sorted(self.root.glob(f"{name}-*")) if _OWN.fullmatch(p.name.removeprefix(name))]


def recorded(work: Path) -> MadeFrom | None:
    """What unfinished work is made from; None where that was not written."""
    path = work / RECORD
    return MadeFrom.model_validate(read_json(path)) if path.is_file() else None


def holds_work(work: Path) -> bool:
    """Whether a work folder holds anything that would be lost with it."""
    return any(p.is_file() and p != work / RECORD for p in work.rglob("*"))


def progress_in(work: Path) -> str:
    """How far unfinished work is, and where it lies."""
    done = [f"{name} at step {count:,}" if name else f"step {count:,}" for name, count in steps_done(work)]
    return f"{work}{', ' if done else ''}{', '.join(done)}"


# --- finding ---
# What a run folder has of a step, compared with what the step is made from now.


def found_of(step: Step, output: Path, mark: Mark | None, work: Work) -> Finding | None:
    """What is there of a step; None where there is nothing.

    Args:
        step: The step, as the recipe has it now.
        output: Its file or folder.
        mark: What is remembered of it.
        work: Its unfinished work.
    """
    if mark is None:
        if os.path.lexists(output):
            what = "exists and was not made by this run; nothing was written."
            fix = "Move it away, or choose another -o/--output."
            return Finding(step, foreign=(Problem(str(output), what, fix),))
        return _found_work(step, work)
    have = digests(output)
    if strangers := sorted(set(have) - set(mark.files)):
        what = f"was not written by this run; {output} is not touched."
        return Finding(step, foreign=(Problem(str(output / strangers[0]), what, "Move it away."),))
    if mark.status is Status.PASSED and not have:
        return _found_work(step, work)
    made_from, now = mark.made_from, work.now
    return Finding(
        step,
        failed=mark.status is Status.FAILED,
        changes=tuple(made_from.changes(now)),
        gates=tuple(made_from.gate_changes(now)),
        versions=tuple(made_from.version_changes(now)),
        differs=made_from.hash != now.hash,
        damage=_damage(output, have, mark, work),
    )


def _damage(output: Path, have: dict[str, str], mark: Mark, work: Work) -> tuple[Problem, ...]:
    """Files that are not as they were written; not those of an output whose successor waits for its rename."""
    changed = sorted(n for n in mark.files if have.get(n) != mark.files[n])
    if not have or not changed or digests(work.built) == mark.files:
        return ()
    what = f"{changed[0] or 'the file'} was changed or removed after it was made."
    return (Problem(str(output), what, "Use another -o/--output, or --overwrite to make it again."),)


def _found_work(step: Step, work: Work) -> Finding | None:
    others = work.others()
    if others:
        made_from = recorded(others[0])
        changes = (
            tuple(made_from.changes(work.now))
            if made_from is not None
            else (f"{others[0].name} does not tell what it is made from",)
        )
        return Finding(step, work="; ".join(map(progress_in, others)), changes=changes, differs=True)
    made_from = recorded(work.path)
    if made_from is None or not holds_work(work.path):
        return None
    return Finding(step, work=progress_in(work.path), versions=tuple(made_from.version_changes(work.now)))


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


# --- place ---
# The place of a run folder, known to be usable before anything runs.


def run_destination(recipe: Recipe, output: Path) -> Path:
    """Find out which folder the output of a run means; see `pocketbert.core.disk.destination.folder_destination`.

    Raises:
        InputError: If it cannot be used, or is a model folder or corpus of the recipe, or lies in one.
    """
    student, corpus = recipe.student, recipe.data.corpus
    named = [recipe.teacher.model, student.model if student else None]
    named += [source.path for source in corpus.sources] if corpus else []
    return folder_destination(output, *(path for name in named if name and (path := Path(name)).is_dir()))


# --- result ---
# What a finished run leaves.


@dataclass(frozen=True, repr=False)
class RunResult:
    """The files and figures that a run made.

    Attributes:
        folder: The run folder.
        phone: The artefact folder, if it was packed.
        report: The HTML page, if it was written.
        header: Column titles of the closing table.
        table: Its rows.
        models: The figures of the same models as numbers.
    """

    folder: Path
    phone: Path | None
    report: Path | None
    header: list[str]
    table: list[list[str]]
    models: Sequence[ModelFigures] = ()

    def __repr__(self) -> str:
        return f"<RunResult of {len(self.table)} models, folder={str(self.folder)!r}, phone={str(self.phone)!r}>"

    def _repr_html_(self) -> str:
        return html_table(self.header, self.table, str(self.phone or self.folder), self.report)

    def to_dict(self) -> dict[str, Any]:
        """Folders as texts, and the figures of each model as numbers, None where there is none."""
        places = {name: str(p) if (p := getattr(self, name)) else None for name in ("folder", "phone", "report")}
        return {**places, "models": [asdict(m) for m in self.models]}
