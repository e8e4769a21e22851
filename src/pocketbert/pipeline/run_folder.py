"""The run folder: stages that are finished, resumed or refused; one process at a time."""

from __future__ import annotations

import contextlib
import logging
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import BaseModel

from pocketbert.core.data_source import DataSource
from pocketbert.core.errors import GateError, InputError, MachineError, Problem
from pocketbert.core.files import (
    TEMPORARY,
    check_writable,
    read_json,
    remove_tree,
    replace_folder,
    sha256_file,
    sha256_json,
    sync,
    write_json,
)
from pocketbert.core.progress import say
from pocketbert.core.types import Status
from pocketbert.core.versions import installed
from pocketbert.distill.processes import Order, here, train_together

log = logging.getLogger("pocketbert")

_MARKS, _WORK, _LOCK = ".stages", ".work", ".lock"


class Mark(BaseModel):
    """What is remembered of a finished stage.

    Attributes:
        name: Stage name.
        hash: Of its settings, its inputs' hashes and the library versions.
        status: Passed or failed.
        failures: Gates that failed.
        wall_s: Seconds it took, in the process that finished it.
        cpu_s: CPU seconds of that process and its children.
    """

    name: str
    hash: str
    status: Status
    failures: list[str] = []
    wall_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True)
class Stage:
    """One step of a run.

    Attributes:
        name: Short name, e.g. ``student``.
        title: What is said while it runs.
        output: Folder or file it writes, relative to the run folder.
        settings: JSON-able settings that decide its result.
        needs: Names of stages it reads.
        make: Writes the output at the given path (a folder is there already, a file is not) with the help
            of a work folder that survives a kill; returns gate failures.
        libraries: Distributions whose versions decide its result.
        trains: Whether all processes of a launch make it together; process 0 makes the others alone.
    """

    name: str
    title: str
    output: str
    settings: object
    needs: tuple[str, ...]
    make: Callable[[Path, Path], Sequence[str]]
    libraries: tuple[str, ...] = ()
    trains: bool = False

    @property
    def is_folder(self) -> bool:
        """Whether the output is a folder."""
        return "." not in self.output


@dataclass
class RunFolder:
    """A folder that stages are run in.

    Attributes:
        path: The folder.
        overwrite: Whether results of other settings may be replaced.
        hashes: Stage hashes of the current plan.
    """

    path: Path
    overwrite: bool = False
    hashes: dict[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder; a second process is refused. The lock dies with its process.

        Raises:
            MachineError: If another process holds it, or the folder cannot be written.
        """
        self.refuse_foreign()
        check_writable(self.path)
        lock = FileLock(self.path / _LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise MachineError(
                f"another process is working in {self.path}. Wait for it, or choose another folder with -o/--output."
            ) from None
        try:
            (self.path / _MARKS).mkdir(exist_ok=True)
            for stale in (*self.path.glob(f".*{TEMPORARY}"), *(self.path / _MARKS).glob(f".*{TEMPORARY}")):
                stale.unlink(missing_ok=True)  # of a killed process: nobody else writes here
            yield
        finally:
            lock.release()

    def refuse_foreign(self) -> None:
        """Refuse a file, and a folder that holds something else.

        Raises:
            InputError: Saying so; nothing was written.
        """
        if not self.path.exists() or (self.path / _MARKS).is_dir():
            return
        # a process killed in its first moment leaves a lock, or a temporary file, and nothing else
        ours = self.path.is_dir() and all(
            p.name == _LOCK or p.name.endswith(TEMPORARY) for p in self.path.iterdir()
        )
        if not ours:
            raise InputError(
                Problem(str(self.path), "exists and is no run folder; nothing was written.",
                        "Choose another folder with -o/--output.")
            )  # fmt: skip

    def mark(self, name: str) -> Mark | None:
        """What is remembered of a stage."""
        path = self.path / _MARKS / f"{name}.json"
        return Mark.model_validate(read_json(path)) if path.is_file() else None

    def marks(self) -> list[Mark]:
        """All finished stages, in order of their completion."""
        paths = sorted((self.path / _MARKS).glob("*.json"), key=lambda p: p.stat().st_mtime)
        return [Mark.model_validate(read_json(p)) for p in paths]

    def plan(self, stages: Sequence[Stage]) -> list[str]:
        """Compute all hashes and refuse, before anything runs, results of other settings.

        Returns:
            Names of the stages whose results may be replaced and must run again; nothing is changed yet.

        Raises:
            InputError: Listing every stage whose result was made with other settings.
        """
        problems, outdated = [], []
        for stage in stages:
            self._hash(stage)
            mark = self.mark(stage.name)
            if mark is None or mark.hash == self.hashes[stage.name]:
                continue
            if self.overwrite:
                outdated.append(stage.name)
            else:
                problems.append(
                    Problem(f"{self.path}/{stage.output}", "was made with another recipe, other inputs or other versions.",
                            "Use another -o/--output, or --overwrite to replace it.")
                )  # fmt: skip
        if problems:
            raise InputError(problems)
        return outdated

    def _hash(self, stage: Stage) -> None:
        self.hashes[stage.name] = sha256_json({
            "stage": stage.name, "settings": stage.settings, "versions": installed(("pocketbert", *stage.libraries)),
            "needs": {n: self.hashes[n] for n in stage.needs},
        })  # fmt: skip

    def state(self, stage: Stage) -> str:
        """``finished``, ``unfinished`` (will be resumed) or ``to do``."""
        mark = self.mark(stage.name)
        if mark is not None and mark.status is Status.PASSED and (self.path / stage.output).exists():
            return "finished"
        return "unfinished" if self._work(stage).exists() else "to do"

    def forget(self, stage: Stage) -> None:
        """Drop the mark and the output of a stage, so that nothing of another recipe lies beside new results."""
        (self.path / _MARKS / f"{stage.name}.json").unlink(missing_ok=True)
        remove_tree(self.path / stage.output)

    def run(self, stage: Stage) -> None:
        """Run one stage unless it is finished.

        Raises:
            GateError: If a gate failed; the output stays, marked failed.
        """
        state = self.state(stage)
        if state == "finished":
            say(f"{stage.title}: finished before, skipped")
            remove_tree(self._work(stage))  # a process killed right after its mark leaves it
            return
        say(f"{stage.title}{': resumed' if state == 'unfinished' else ''}")
        log.info("stage %s %s, hash %s", stage.name, state, self.hashes[stage.name])
        work = self._work(stage)
        for stale in self.path.glob(f"{_WORK}/{stage.name}-*"):
            if stale != work:
                remove_tree(stale)
        work.mkdir(parents=True, exist_ok=True)
        target, partial = self.path / stage.output, self.path / f".{stage.output}.partial"
        remove_tree(partial)
        if stage.is_folder:
            partial.mkdir()
        began, cpu = time.monotonic(), _cpu_seconds()
        if stage.trains:
            train_together(stage.name, self.hashes[stage.name])
        failures = list(stage.make(partial, work))
        _commit(partial, target)
        mark = Mark(
            name=stage.name, hash=self.hashes[stage.name], failures=failures,
            status=Status.FAILED if failures else Status.PASSED,
            wall_s=round(time.monotonic() - began, 2), cpu_s=round(_cpu_seconds() - cpu, 2),
        )  # fmt: skip
        write_json(self.path / _MARKS / f"{stage.name}.json", mark.model_dump(mode="json"))
        remove_tree(work)
        log.info("stage %s %s: %.1f s, %.1f CPU-s", stage.name, mark.status, mark.wall_s, mark.cpu_s)
        if failures:
            raise GateError([*failures, f"The files stay in {target}, marked failed; nothing was packed."])

    def take_part(self, stages: Sequence[Stage], order: Order) -> None:
        """In a process other than 0: train a stage together with process 0, and write nothing here.

        Raises:
            InputError: If this process sees another recipe, other data or another folder than process 0.
        """
        for known in stages:
            self._hash(known)
        stage = next((s for s in stages if s.name == order.stage), None)
        rank = f"rank {here().rank}"
        if stage is None or self.hashes[stage.name] != order.hash:
            raise InputError(
                Problem(rank, f"sees another recipe, other data, another model or other versions than process 0 (stage {order.stage}).",
                        "Give every node the same recipe, files and installation.")
            )  # fmt: skip
        missing = [p for p in (self._work(stage), *(self.path / s.output for s in stages if s.name in stage.needs))
                   if not p.exists()]  # fmt: skip
        if missing:
            raise InputError(
                Problem(rank, f"does not see {', '.join(map(str, missing))}, which process 0 has written.",
                        "Put the run folder on a file system that all nodes share, under the same path.")
            )  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="pocketbert-") as thrown_away:
            target = Path(thrown_away) / stage.output
            if stage.is_folder:
                target.mkdir()
            stage.make(target, self._work(stage))

    def _work(self, stage: Stage) -> Path:
        return self.path / _WORK / f"{stage.name}-{self.hashes[stage.name][:12]}"


def _commit(partial: Path, target: Path) -> None:
    if partial.is_dir():
        for path in partial.rglob("*"):
            sync(path)
        sync(partial)
        replace_folder(partial, target)
    else:
        sync(partial)
        partial.replace(target)
        sync(target.parent)


def _cpu_seconds() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def data_digest(source: DataSource | None) -> str | None:
    """Digest of a local data file; None for Hub data, which its settings alone identify."""
    path = Path(source.path) if source is not None and source.path is not None else None
    return sha256_file(path) if path is not None and path.is_file() else None
