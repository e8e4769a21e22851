"""The folder that a run works in: finished steps, unfinished work, and a lock for one process at a time.

A run calls, under `RunFolder.locked`:

    hash       what each step is made from now
    recover    finish the rename of a step whose process was killed in between
    plan       compare with what is there; refuse, or decide what is made again
    carry_out  remove what is made again
    run        each step: skipped if finished, resumed from its work folder or begun, and recorded in a `Mark`

`run_destination` checks the path of a new run folder, and `RunResult` names the files of a finished run.
"""

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

from pocketbert.core.artefacts.search import TriedStudents
from pocketbert.core.disk.destination import remove_new_folders_on_error, resolve_output_folder
from pocketbert.core.disk.files import check_writable, file_digests, read_json, sync_path, write_json
from pocketbert.core.disk.ownership import (
    claim_folder,
    empty_folder,
    install_folder,
    is_marked,
    refuse_unmarked,
    remove,
    remove_temporary_files,
    replace_file,
)
from pocketbert.core.disk.workspace import sync_tree
from pocketbert.core.errors import GateError, InputError, MissingBackendError, Problem, note_kept
from pocketbert.core.host.processes import Order, current_process, order_training
from pocketbert.core.host.progress import describe_seconds, expect_end, print_note
from pocketbert.core.host.system import release_memory
from pocketbert.core.host.terminal import html_table
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.types import Status
from pocketbert.distill.training.progress import read_steps_done
from pocketbert.pipeline.run_folder.plan import Finding, Permission, Plan, make_plan
from pocketbert.pipeline.run_folder.step import MadeFrom, Mark, Marks, Step, StepPaths

if TYPE_CHECKING:
    from pocketbert.benchmarks.report import ModelFigures

RUN_FOLDER_KIND = "run folder"
"""Kind of the folder in its ownership mark."""
_METRICS = "metrics.jsonl"
_MARKS, _WORK = ".steps", ".work"
_MADE_FROM = "made-from.json"
"""File in a work folder that records what the unfinished work is made from."""
_NEW = ".new"
"""Ending of the folder in which the output of a step is built."""
_WORK_HASH = re.compile(r"-[0-9a-f]{12}")
"""Ending of a work folder: the begin of the hash of what the step is made from."""
_DATA_STEP = "data"
"""The step that reads the rows, in seconds; its result is no loss."""
_SLOW_S = 2.0
"""Seconds from which the duration of a step is printed."""

_LOG = logging.getLogger("pocketbert")


@dataclass
class RunFolder:
    """The folder of a run, in which steps are planned, run and recorded.

    Attributes:
        path: The folder.
        allowed: Whether old results may be replaced, or kept despite other library versions.
        now: The current settings and inputs of each step, by name.
        hashes: Hash of the settings of a step and of what it reads, by name of the step.
        exact: Hash that also depends on gates and library versions, by name of the step.
        expected_s: Seconds that steps are expected to take, by name, so that progress says how long the rest may take;
            empty if that is not known.
    """

    path: Path
    allowed: Permission = field(default_factory=Permission)
    now: dict[str, MadeFrom] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    exact: dict[str, str] = field(default_factory=dict)
    expected_s: dict[str, float] = field(default_factory=dict)
    _took_s: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _step: str | None = field(default=None, init=False, repr=False)  # run last; None in commands that run none

    @property
    def marks(self) -> Marks:
        """The records of steps that have ended."""
        return Marks(self.path / _MARKS)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Create the run folder and lock it while the `with` block runs, so that no other process works in it.

        If the block ends with an input error, a missing library or Ctrl-C, a new folder is emptied or removed again, unless
        a step after reading the rows has ended or keeps work. If steps were run and one has or does, other errors get a
        note that names the folder, and the step that begins anew.

        Raises:
            InputError: If the folder has content and no mark of a run.
            MachineError: If another process holds it, or the folder cannot be written.
        """
        self.refuse_foreign()
        check_writable(self.path)
        new = not is_marked(self.path, RUN_FOLDER_KIND)
        with remove_new_folders_on_error(self.path), claim_folder(self.path, RUN_FOLDER_KIND):
            (self.path / _MARKS).mkdir(exist_ok=True)
            for folder in (self.path, self.path / _MARKS):
                remove_temporary_files(folder)
            try:
                yield
            except BaseException as error:
                work = self.path / _WORK
                begun = any(_holds_work(p) for p in work.glob("*") if p.suffix != _NEW)
                kept = begun or any(mark.name != _DATA_STEP for mark in self.marks.all())
                is_wrong_input = isinstance(error, InputError | MissingBackendError)
                if new and not kept and (is_wrong_input or isinstance(error, KeyboardInterrupt)):
                    empty_folder(self.path)
                elif kept and self._step is not None and not is_wrong_input:
                    is_anew = not begun and (work / f"{self._step}{_NEW}").exists()
                    note_kept(error, self.path, self._step if is_anew else "")
                raise

    def refuse_foreign(self) -> None:
        """Check that the path is a run folder, an empty folder, or does not exist.

        Raises:
            InputError: If it is anything else. Nothing was written then.
        """
        refuse_unmarked(self.path, RUN_FOLDER_KIND)

    def hash(self, steps: Sequence[Step]) -> None:
        """Store in `now`, `hashes` and `exact` the current settings and inputs of every step, and their hashes."""
        for step in steps:
            made_from = step.made_from(self.hashes)
            self.now[step.name], self.hashes[step.name] = made_from, made_from.hash
            self.exact[step.name] = made_from.exact(self.exact)

    def recover(self, steps: Sequence[Step]) -> None:
        """Move outputs to their final names, for steps whose process was killed after their end was recorded."""
        for step in steps:
            mark, built = self.marks.read(step.name), self._work(step).built
            if mark is not None and built.exists() and file_digests(built) == mark.files:
                self._install_output(step)

    def plan(self, steps: Sequence[Step]) -> Plan:
        """Return which steps are made again, and which results of other library versions are kept.

        Raises:
            InputError: If results would have to be replaced and the user did not allow it. It lists every output and all
                unfinished work that was made from something else or changed since, and in any case every output that
                this run did not make. Nothing was changed then.
        """
        self.hash(steps)
        self._step = self._step or ""
        findings = [finding for step in steps if (finding := self._find(step)) is not None]
        return make_plan(findings, self.allowed, str(self.path))

    def _find(self, step: Step) -> Finding | None:
        """Compare a step's result and unfinished work with its current settings; None if it has neither."""
        output, mark, work = self.path / step.output, self.marks.read(step.name), self._work(step)
        if mark is None:
            if os.path.lexists(output):
                what = "exists and was not made by this run; nothing was written."
                fix = "Move it away, or choose another -o/--output."
                return Finding(step, foreign=(Problem(str(output), what, fix),))
            return work.find()
        present = file_digests(output)
        if foreign := sorted(set(present) - set(mark.files)):
            what = f"was not written by this run; {output} is not touched."
            return Finding(step, foreign=(Problem(str(output / foreign[0]), what, "Move it away."),))
        if mark.status is Status.PASSED and not present:
            return work.find()
        damage: tuple[Problem, ...] = ()
        changed = sorted(name for name in mark.files if present.get(name) != mark.files[name])
        if present and changed and file_digests(work.built) != mark.files:  # else the new output waits for its rename
            what = f"{changed[0] or 'the file'} was changed or removed after it was made."
            damage = (Problem(str(output), what, "Use another -o/--output, or --overwrite to make it again."),)
        made_from, now = mark.made_from, work.now
        return Finding(
            step,
            failed=mark.status is Status.FAILED,
            changes=tuple(made_from.changes(now)),
            gates=tuple(made_from.gate_changes(now)),
            versions=tuple(made_from.version_changes(now)),
            differs=made_from.hash != now.hash,
            damage=damage,
        )

    def carry_out(self, plan: Plan, steps: Sequence[Step]) -> None:
        """Remove the results of steps that a plan makes again, and record which results of other versions it keeps."""
        for step in reversed(steps):  # the output of a step is removed before that of the steps it reads
            if step.name in plan.anew:
                self._remove_results(step)
        again = {**plan.anew, **plan.retried}
        for reason in dict.fromkeys(again.values()):
            names = ", ".join(name for name in again if again[name] == reason)
            print_note(f"  made again: {names}: {reason}")
            _LOG.info("made again: %s: %s", names, reason)
        for step in steps:
            if step.name in plan.accepted:
                mark, now = self.marks.read(step.name), self.now[step.name]
                if mark is not None:
                    self.marks.write(mark.model_copy(update={"made_from": mark.made_from.accepting(now)}))
                self._work(step).accept_versions()
        if plan.accepted:
            print_note(f"  taken as they are, made with other library versions: {', '.join(plan.accepted)}")

    def _remove_results(self, step: Step) -> None:
        """Remove a step's output, unfinished work and record from the run folder."""
        work = self._work(step)
        for path in work.folders():
            if _holds_work(path):
                print_note(f"  removed unfinished work of other settings: {path}")
        for path in work.folders():
            remove(path)
        remove(work.new)
        remove(self.path / step.output)
        self.marks.remove(step.name)  # last: an output without its mark would be taken for a foreign file

    def state(self, step: Step) -> str:
        """Return the state of a step: ``finished``, ``unfinished`` (will be resumed) or ``to do``."""
        mark = self.marks.read(step.name)
        if mark is not None and mark.status is Status.PASSED and (self.path / step.output).exists():
            return "finished"
        return "unfinished" if self._work(step).path.exists() else "to do"

    def run(self, step: Step, number: int, count: int) -> None:
        """Run a step, record it, and put its output into the run folder. A finished step is skipped.

        Args:
            step: The step.
            number: Number of the step, for the message.
            count: Number of all steps.

        Raises:
            GateError: If a gate failed. The output is kept and marked failed.
        """
        state, work, head = self.state(step), self._work(step), f"[{number}/{count}] {step.title}"
        self._step = step.name
        if state == "finished":
            print_note(f"{head}: finished before, skipped")
            work.remove()  # a process that was killed right after it wrote the mark leaves it
            self.expected_s.pop(step.name, None)
            return
        resumed = ""
        if state == "unfinished":
            has_work = bool(read_steps_done(work.path)) if step.trains else _holds_work(work.path)
            again = ": begins again, no checkpoint yet" if step.trains else ": begins again"
            resumed = ": resumed" if has_work else again
        left = self._estimate_left() if step.name in self.expected_s else 0.0
        print_note(f"{head}{resumed}{f', about {describe_seconds(left)} left in all' if left else ''}")
        _LOG.info("step %s %s, hash %s", step.name, state, self.hashes[step.name])
        made_from = work.begin()
        began, cpu = time.monotonic(), _read_cpu_seconds()
        if step.trains:
            order_training(step.name, self.exact[step.name])
        with expect_end(left):
            failures = list(step.make(StepPaths(work.built, work.path, self.path / _METRICS)))
        release_memory(work.built)
        (sync_tree if work.built.is_dir() else sync_path)(work.built)
        mark = Mark(
            name=step.name,
            made_from=made_from,
            failures=failures,
            files=file_digests(work.built),
            status=Status.FAILED if failures else Status.PASSED,
            wall_s=round(time.monotonic() - began, 2),
            cpu_s=round(_read_cpu_seconds() - cpu, 2),
        )
        self._took_s[step.name] = mark.wall_s
        self.marks.write(mark)
        self._install_output(step)
        work.remove()
        _LOG.info("step %s %s: %.1f s, %.1f CPU-s", step.name, mark.status, mark.wall_s, mark.cpu_s)
        if mark.wall_s >= _SLOW_S:
            print_note(f"  {step.name}: {mark.wall_s:.1f} s")
        if failures:
            kept = self.path / step.output
            raise GateError(
                [*failures[:-1], f"{failures[-1]} The files stay in {kept}, marked failed; nothing was packed."]
            )

    def _estimate_left(self) -> float:
        """Estimate the seconds that this step and those after it take; 0 if that is not known.

        Once a tenth of the work is done, the forecast is multiplied by how much longer those steps have taken than it said.
        """
        known = [name for name in self._took_s if name in self.expected_s]
        planned, took = sum(self.expected_s[name] for name in known), sum(self._took_s[name] for name in known)
        left = sum(self.expected_s.values()) - planned
        return left * (took / planned if planned > 0.1 * (planned + left) else 1.0)

    def _install_output(self, step: Step) -> None:
        """Move a step's built output to its final name in the run folder, where it replaces an older output."""
        work, output = self._work(step), self.path / step.output
        output.parent.mkdir(exist_ok=True)
        if step.is_folder:
            install_folder(work.built, output, work.replaced)
        else:
            replace_file(work.built, output)
        sync_path(output.parent)

    def take_part(self, steps: Sequence[Step], order: Order) -> None:
        """Train a step together with process 0, in another process of a multi-process launch.

        Nothing is written into the run folder, except its share of teacher caches and corpora.

        Args:
            steps: All steps of the run.
            order: Name and hash of the step that process 0 trains.

        Raises:
            InputError: If this process sees another recipe, other data or another folder than process 0.
        """
        self.hash(steps)
        step = next((s for s in steps if s.name == order.step), None)
        rank = f"rank {current_process().rank}"
        if step is None or self.exact[step.name] != order.hash:
            what = (
                f"sees another recipe, other data, another model or other versions than process 0 (step {order.step})."
            )
            fix = "Give every node the same recipe, files and installation."
            raise InputError(Problem(rank, what, fix))
        work = self._work(step).path
        read = (work, *(self.path / s.output for s in steps if s.name in step.needs))
        missing = [p for p in read if not p.exists()]
        if missing:
            what = f"does not see {', '.join(map(str, missing))}, which process 0 has written."
            fix = "Put the run folder on a file system that all nodes share, under the same path."
            raise InputError(Problem(rank, what, fix))
        with tempfile.TemporaryDirectory(prefix="pocketbert-") as temporary:
            output = Path(temporary) / step.output
            (output if step.is_folder else output.parent).mkdir(parents=True, exist_ok=True)
            step.make(StepPaths(output, work, Path(temporary) / _METRICS))

    def accepted_versions(self, steps: Sequence[Step]) -> list[str]:
        """Return a text for each step whose result was kept although library versions changed, with the versions."""
        marks = [mark for step in steps if (mark := self.marks.read(step.name)) is not None]
        return [f"{mark.name} ({mark.made_from.history})" for mark in marks if mark.made_from.accepted]

    def _work(self, step: Step) -> _Work:
        return _Work(self.path / _WORK, step, self.now[step.name])


class _Work:
    """The folders of a step's unfinished work: checkpoints that survive a kill, and the output being built.

    Attributes:
        path: Folder of checkpoints and caches.
        new: Folder in which the output is built.
        built: The output that is being built. One rename moves it to its final name.
        replaced: Path to which an older output is moved during that rename.
    """

    def __init__(self, root: Path, step: Step, now: MadeFrom) -> None:
        self.root, self.step, self.now = root, step, now
        self.path = root / f"{step.name}-{now.hash[:12]}"
        self.new = root / f"{step.name}{_NEW}"
        self.built = self.new / step.output
        self.replaced = self.new / "old"

    def folders(self) -> list[Path]:
        """Return all work folders of the step, those begun with other settings too."""
        name = self.step.name
        return [p for p in sorted(self.root.glob(f"{name}-*")) if _WORK_HASH.fullmatch(p.name.removeprefix(name))]

    def find(self) -> Finding | None:
        """Compare the step's unfinished work with its current settings; None if there is no unfinished work."""
        others = [path for path in self.folders() if path != self.path and _holds_work(path)]
        if others:
            made_from = _read_made_from(others[0])
            changes = [f"{others[0].name} does not tell what it is made from"]
            if made_from is not None:
                changes = made_from.changes(self.now)
            return Finding(
                self.step, work="; ".join(map(_describe_progress, others)), changes=tuple(changes), differs=True
            )
        made_from = _read_made_from(self.path)
        if made_from is None or not _holds_work(self.path):
            return None
        versions = tuple(made_from.version_changes(self.now))
        return Finding(self.step, work=_describe_progress(self.path), versions=versions)

    def begin(self) -> MadeFrom:
        """Create the step's work folder and an empty output, and remove work that was begun with other settings.

        Returns:
            The settings and inputs that decide the result, with the library versions that unfinished work was begun
            with.
        """
        for path in self.folders():
            if path != self.path:
                remove(path)
        self.path.mkdir(parents=True, exist_ok=True)
        made_from = _read_made_from(self.path)
        if made_from is None or not _holds_work(self.path):
            made_from = self.now
        made_from = made_from.model_copy(update={"gates": self.now.gates})
        write_json(self.path / _MADE_FROM, made_from.model_dump(mode="json"))
        remove(self.new)
        (self.built if self.step.is_folder else self.built.parent).mkdir(parents=True)
        return made_from

    def accept_versions(self) -> None:
        """Record that the step's unfinished work is continued with the current library versions."""
        made_from = _read_made_from(self.path)
        if made_from is not None:
            write_json(self.path / _MADE_FROM, made_from.accepting(self.now).model_dump(mode="json"))

    def remove(self) -> None:
        """Remove the work folder and the unfinished output of the step."""
        remove(self.path)
        remove(self.new)


def _read_made_from(work: Path) -> MadeFrom | None:
    """Read the settings and inputs that a work folder was begun with; None if it has no record of them."""
    path = work / _MADE_FROM
    return MadeFrom.model_validate(read_json(path)) if path.is_file() else None


def _holds_work(work: Path) -> bool:
    """Return whether a work folder holds files such as checkpoints, beside the record of its settings."""
    return any(p.is_file() and p != work / _MADE_FROM for p in work.rglob("*"))


def _describe_progress(work: Path) -> str:
    """Return the path of a work folder and the training steps done in it, as text."""
    done = [f"{name} at step {count:,}" if name else f"step {count:,}" for name, count in read_steps_done(work)]
    return f"{work}{', ' if done else ''}{', '.join(done)}"


def _read_cpu_seconds() -> float:
    """Return the CPU seconds that this process and its ended children have used."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def run_destination(recipe: Recipe, output: Path) -> Path:
    """Return the absolute run folder for an output path, after checking that the recipe reads no model or corpus there.

    Raises:
        InputError: If the path cannot be used, or is a local model folder or corpus of the recipe, or lies in one.
    """
    student, corpus = recipe.student, recipe.data.corpus
    read = [recipe.teacher.model, student.model if student else None]
    read += [teacher.model for teacher in recipe.head_columns.values()]
    read += [source.path for source in corpus.sources] if corpus else []
    return resolve_output_folder(output, *(path for name in read if name and (path := Path(name)).is_dir()))


@dataclass(frozen=True, repr=False)
class RunResult:
    """The files of a finished run, and the sizes, scores and latencies of its models.

    Attributes:
        folder: The run folder.
        phone: The artefact folder, if it was packed.
        report: The HTML report, if it was written.
        header: Column titles of the closing table.
        table: Rows of that table.
        models: Sizes, scores and latencies of each model as numbers.
        tried: The students among which the run chose one; None if the recipe named its student.
    """

    folder: Path
    phone: Path | None
    report: Path | None
    header: list[str]
    table: list[list[str]]
    models: Sequence[ModelFigures] = ()
    tried: TriedStudents | None = None

    def __repr__(self) -> str:
        return f"<RunResult of {len(self.table)} models, folder={str(self.folder)!r}, phone={str(self.phone)!r}>"

    def _repr_html_(self) -> str:
        return html_table(self.header, self.table, str(self.phone or self.folder), self.report)

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON: the paths, the numbers of each model, and the students if the run chose among several."""
        paths = {name: str(p) if (p := getattr(self, name)) else None for name in ("folder", "phone", "report")}
        tried = {"students": self.tried.model_dump(mode="json")} if self.tried is not None else {}
        return {**paths, "models": [asdict(m) for m in self.models], **tried}
