"""The run folder: steps that are finished, resumed or refused; one process at a time."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel

from pocketbert.core.data.source import DataSource
from pocketbert.core.disk.files import check_writable, digests, read_json, sha256_file, sha256_json, sync, write_json
from pocketbert.core.disk.ownership import claim, install, refuse_unmarked, remove, remove_temporary_files, replace_file
from pocketbert.core.disk.workspace import sync_tree
from pocketbert.core.errors import GateError, InputError, Problem
from pocketbert.core.host.processes import Order, here, train_together
from pocketbert.core.host.progress import say
from pocketbert.core.host.versions import installed
from pocketbert.core.types import Status
from pocketbert.distill.training.checkpoint_folder import steps_done

log = logging.getLogger("pocketbert")

KIND = "run folder"
METRICS = "metrics.jsonl"
_MARKS, _WORK = ".steps", ".work"
_OWN_WORK = re.compile(r"-[0-9a-f]{12}")


class Mark(BaseModel):
    """What is remembered of a finished step.

    Attributes:
        name: Step name.
        hash: Of its settings, its inputs' hashes and the library versions.
        status: Passed or failed.
        files: sha256 of each file of its output by its path in it; see `pocketbert.core.disk.files.digests`.
        failures: Gates that failed.
        wall_s: Seconds it took, in the process that finished it.
        cpu_s: CPU seconds of that process and its children.
    """

    name: str
    hash: str
    status: Status
    files: dict[str, str] = {}
    failures: list[str] = []
    wall_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True)
class Places:
    """Where a step writes.

    Attributes:
        output: Where its output is built: a folder is there already, a file is not. Renamed when the step has ended.
        work: A folder that survives a kill, for checkpoints and caches.
        metrics: A .jsonl file that all steps of a run share, for losses.
    """

    output: Path
    work: Path
    metrics: Path


@dataclass(frozen=True)
class Step:
    """One step of a run.

    Attributes:
        name: Short name, e.g. ``student``.
        title: What is said while it runs.
        output: Folder or file it writes, relative to the run folder.
        settings: JSON-able settings that decide its result.
        needs: Names of steps it reads.
        make: Writes the output; returns gate failures.
        libraries: Distributions whose versions decide its result.
        trains: Whether all processes of a launch make it together; process 0 makes the others alone.
    """

    name: str
    title: str
    output: str
    settings: object
    needs: tuple[str, ...]
    make: Callable[[Places], Sequence[str]]
    libraries: tuple[str, ...] = ()
    trains: bool = False

    @property
    def is_folder(self) -> bool:
        """Whether the output is a folder."""
        return "." not in self.output


@dataclass
class RunFolder:
    """A folder that steps are run in.

    Attributes:
        path: The folder.
        overwrite: Whether results and unfinished work of other settings may be replaced.
        hashes: Step hashes of the current plan.
    """

    path: Path
    overwrite: bool = False
    hashes: dict[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder; a second process is refused. The lock dies with its process.

        Raises:
            InputError: If the folder holds something else.
            MachineError: If another process holds it, or the folder cannot be written.
        """
        self.refuse_foreign()
        check_writable(self.path)
        with claim(self.path, KIND):
            (self.path / _MARKS).mkdir(exist_ok=True)
            for folder in (self.path, self.path / _MARKS):
                remove_temporary_files(folder)
            yield

    def refuse_foreign(self) -> None:
        """Refuse a file, and a folder that holds something else.

        Raises:
            InputError: Saying so; nothing was written.
        """
        refuse_unmarked(self.path, KIND)

    def mark(self, name: str) -> Mark | None:
        """What is remembered of a step."""
        path = self.path / _MARKS / f"{name}.json"
        return Mark.model_validate(read_json(path)) if path.is_file() else None

    def write_mark(self, mark: Mark) -> None:
        """Remember a step."""
        write_json(self.path / _MARKS / f"{mark.name}.json", mark.model_dump(mode="json"))

    def marks(self) -> list[Mark]:
        """All finished steps, in order of their completion."""
        paths = sorted((self.path / _MARKS).glob("*.json"), key=lambda p: p.stat().st_mtime)
        return [Mark.model_validate(read_json(p)) for p in paths]

    def plan(self, steps: Sequence[Step]) -> list[str]:
        """Compute all hashes and refuse, before anything runs, what would have to be replaced.

        Returns:
            Names of the steps whose results may be replaced and must run again; nothing is changed yet.

        Raises:
            InputError: Listing every output that was made with other settings or changed since, every output that this
                run did not make, and all unfinished work of other settings.
        """
        problems, outdated = list[Problem](), list[str]()
        self.hash(steps)
        for step in steps:
            found = self._replaced(step)
            if any(p.final for p in found) or not self.overwrite:
                problems += [p.problem for p in found if p.final or not self.overwrite]
            elif any(p.result for p in found):
                outdated.append(step.name)
        if problems:
            raise InputError(problems)
        return outdated

    def hash(self, steps: Sequence[Step]) -> dict[str, str]:
        """Compute the hash of every step: of its settings, its inputs' hashes and the library versions."""
        for step in steps:
            self.hashes[step.name] = sha256_json(
                {
                    "step": step.name,
                    "settings": step.settings,
                    "versions": installed(("pocketbert", *step.libraries)),
                    "needs": {n: self.hashes[n] for n in step.needs},
                }
            )
        return self.hashes

    def _replaced(self, step: Step) -> list[_Replaced]:
        """What running a step would replace, although it is not this step's own unfinished work."""
        mark, output = self.mark(step.name), self.path / step.output
        again = "Use another -o/--output, or --overwrite to make it again."
        if mark is None:
            if os.path.lexists(output):
                return [
                    _Replaced(
                        Problem(
                            str(output),
                            "exists and was not made by this run; nothing was written.",
                            "Move it away, or choose another -o/--output.",
                        ),
                        final=True,
                    )
                ]
            return self._unfinished(step)
        have = digests(output)
        if strangers := sorted(set(have) - set(mark.files)):
            return [
                _Replaced(
                    Problem(
                        str(output / strangers[0]),
                        f"was not written by this run; {output} is not touched.",
                        "Move it away.",
                    ),
                    final=True,
                )
            ]
        if mark.hash != self.hashes[step.name]:
            what = "was made with another recipe, other inputs or other versions."
            return [_Replaced(Problem(str(output), what, again), result=True)]
        changed = sorted(n for n in mark.files if have.get(n) != mark.files[n])
        if have and changed and digests(self._built(step)) != mark.files:
            what = f"{changed[0] or 'the file'} was changed or removed after it was made."
            return [_Replaced(Problem(str(output), what, again), result=True)]
        return [] if have and mark.status is Status.PASSED else self._unfinished(step)

    def _unfinished(self, step: Step) -> list[_Replaced]:
        out = []
        for work in self._other_work(step):
            if not any(p.is_file() for p in work.rglob("*")):
                continue
            done = [f"{name or step.name} at step {number:,}" for name, number in steps_done(work)]
            what = f"is unfinished work of other settings or versions{': ' if done else ''}{', '.join(done)}."
            fix = "Put the settings back to resume it, use another -o/--output, or --overwrite to remove it."
            out.append(_Replaced(Problem(str(work), what, fix)))
        return out

    def state(self, step: Step) -> str:
        """``finished``, ``unfinished`` (will be resumed) or ``to do``."""
        mark = self.mark(step.name)
        if mark is not None and mark.status is Status.PASSED and (self.path / step.output).exists():
            return "finished"
        return "unfinished" if self._work(step).exists() else "to do"

    def recover(self, steps: Sequence[Step]) -> None:
        """Finish what a process did not that was killed after it had marked a step and before the last rename."""
        for step in steps:
            mark, built = self.mark(step.name), self._built(step)
            if (
                mark is not None
                and mark.hash == self.hashes[step.name]
                and built.exists()
                and digests(built) == mark.files
            ):
                self._commit(step)

    def forget(self, step: Step) -> None:
        """Drop the output and the mark of a step, so that nothing of another recipe lies beside new results."""
        remove(self.path / step.output)
        remove(self.path / _MARKS / f"{step.name}.json")  # last: an output without its mark would be a stranger

    def run(self, step: Step) -> None:
        """Run one step unless it is finished.

        Raises:
            GateError: If a gate failed; the output stays, marked failed.
        """
        state = self.state(step)
        if state == "finished":
            say(f"{step.title}: finished before, skipped")
            self._clear(step)  # a process killed right after its mark leaves it
            return
        say(f"{step.title}{': resumed' if state == 'unfinished' else ''}")
        log.info("step %s %s, hash %s", step.name, state, self.hashes[step.name])
        work, built = self._work(step), self._built(step)
        for stale in self._other_work(step):
            if any(stale.iterdir()):
                say(f"  removed unfinished work of other settings: {stale}")
            remove(stale)
        work.mkdir(parents=True, exist_ok=True)
        remove(built.parent)
        (built if step.is_folder else built.parent).mkdir(parents=True)
        began, cpu = time.monotonic(), _cpu_seconds()
        if step.trains:
            train_together(step.name, self.hashes[step.name])
        failures = list(step.make(Places(built, work, self.path / METRICS)))
        (sync_tree if built.is_dir() else sync)(built)
        mark = Mark(
            name=step.name,
            hash=self.hashes[step.name],
            failures=failures,
            files=digests(built),
            status=Status.FAILED if failures else Status.PASSED,
            wall_s=round(time.monotonic() - began, 2),
            cpu_s=round(_cpu_seconds() - cpu, 2),
        )
        self.write_mark(mark)
        self._commit(step)
        self._clear(step)
        log.info("step %s %s: %.1f s, %.1f CPU-s", step.name, mark.status, mark.wall_s, mark.cpu_s)
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
        if step is None or self.hashes[step.name] != order.hash:
            raise InputError(
                Problem(
                    rank,
                    f"sees another recipe, other data, another model or other versions than process 0 (step {order.step}).",
                    "Give every node the same recipe, files and installation.",
                )
            )
        missing = [
            p
            for p in (self._work(step), *(self.path / s.output for s in steps if s.name in step.needs))
            if not p.exists()
        ]
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
            if step.is_folder:
                output.mkdir()
            step.make(Places(output, self._work(step), Path(thrown_away) / METRICS))

    def _work(self, step: Step) -> Path:
        return self.path / _WORK / f"{step.name}-{self.hashes[step.name][:12]}"

    def _built(self, step: Step) -> Path:
        """Where the output of a step is built: a rename away from its final name."""
        return self.path / _WORK / f"{step.name}.new" / step.output

    def _other_work(self, step: Step) -> list[Path]:
        """Work folders of a step that belong to other settings or versions."""
        return [
            p
            for p in sorted(self.path.glob(f"{_WORK}/{step.name}-*"))
            if _OWN_WORK.fullmatch(p.name.removeprefix(step.name)) and p != self._work(step)
        ]

    def _commit(self, step: Step) -> None:
        """Rename what was built to its final name; an older output of the step, which a mark named, goes."""
        built, output = self._built(step), self.path / step.output
        if step.is_folder:
            install(built, output, built.parent / "old")
        else:
            replace_file(built, output)
        sync(self.path)

    def _clear(self, step: Step) -> None:
        remove(self._work(step))
        remove(self._built(step).parent)


@dataclass(frozen=True)
class _Replaced:
    """Something that running a step would replace.

    Attributes:
        problem: What, and what to do about it.
        result: Whether it is a finished result, to be made again.
        final: Whether not even ``--overwrite`` replaces it.
    """

    problem: Problem
    result: bool = False
    final: bool = False


def _cpu_seconds() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def data_digest(source: DataSource | None) -> str | None:
    """Digest of a local data file; None for Hub data, which its settings alone identify."""
    path = Path(source.path) if source is not None and source.path is not None else None
    return sha256_file(path) if path is not None and path.is_file() else None
