"""The run folder: stages that are finished, resumed or refused; one process at a time."""

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
_MARKS, _WORK = ".stages", ".work"
_OWN_WORK = re.compile(r"-[0-9a-f]{12}")


class Mark(BaseModel):
    """What is remembered of a finished stage.

    Attributes:
        name: Stage name.
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
    """Where a stage writes.

    Attributes:
        output: Where its output is built: a folder is there already, a file is not. Renamed when the stage has ended.
        work: A folder that survives a kill, for checkpoints and caches.
        metrics: A .jsonl file that all stages of a run share, for losses.
    """

    output: Path
    work: Path
    metrics: Path


@dataclass(frozen=True)
class Stage:
    """One step of a run.

    Attributes:
        name: Short name, e.g. ``student``.
        title: What is said while it runs.
        output: Folder or file it writes, relative to the run folder.
        settings: JSON-able settings that decide its result.
        needs: Names of stages it reads.
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
    """A folder that stages are run in.

    Attributes:
        path: The folder.
        overwrite: Whether results and unfinished work of other settings may be replaced.
        hashes: Stage hashes of the current plan.
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
        """What is remembered of a stage."""
        path = self.path / _MARKS / f"{name}.json"
        return Mark.model_validate(read_json(path)) if path.is_file() else None

    def write_mark(self, mark: Mark) -> None:
        """Remember a stage."""
        write_json(self.path / _MARKS / f"{mark.name}.json", mark.model_dump(mode="json"))

    def marks(self) -> list[Mark]:
        """All finished stages, in order of their completion."""
        paths = sorted((self.path / _MARKS).glob("*.json"), key=lambda p: p.stat().st_mtime)
        return [Mark.model_validate(read_json(p)) for p in paths]

    def plan(self, stages: Sequence[Stage]) -> list[str]:
        """Compute all hashes and refuse, before anything runs, what would have to be replaced.

        Returns:
            Names of the stages whose results may be replaced and must run again; nothing is changed yet.

        Raises:
            InputError: Listing every output that was made with other settings or changed since, every output that this
                run did not make, and all unfinished work of other settings.
        """
        problems, outdated = list[Problem](), list[str]()
        self.hash(stages)
        for stage in stages:
            found = self._replaced(stage)
            if any(p.final for p in found) or not self.overwrite:
                problems += [p.problem for p in found if p.final or not self.overwrite]
            elif any(p.result for p in found):
                outdated.append(stage.name)
        if problems:
            raise InputError(problems)
        return outdated

    def hash(self, stages: Sequence[Stage]) -> dict[str, str]:
        """Compute the hash of every stage: of its settings, its inputs' hashes and the library versions."""
        for stage in stages:
            self.hashes[stage.name] = sha256_json(
                {
                    "stage": stage.name,
                    "settings": stage.settings,
                    "versions": installed(("pocketbert", *stage.libraries)),
                    "needs": {n: self.hashes[n] for n in stage.needs},
                }
            )
        return self.hashes

    def _replaced(self, stage: Stage) -> list[_Replaced]:
        """What running a stage would replace, although it is not this stage's own unfinished work."""
        mark, output = self.mark(stage.name), self.path / stage.output
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
            return self._unfinished(stage)
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
        if mark.hash != self.hashes[stage.name]:
            what = "was made with another recipe, other inputs or other versions."
            return [_Replaced(Problem(str(output), what, again), result=True)]
        changed = sorted(n for n in mark.files if have.get(n) != mark.files[n])
        if have and changed and digests(self._built(stage)) != mark.files:
            what = f"{changed[0] or 'the file'} was changed or removed after it was made."
            return [_Replaced(Problem(str(output), what, again), result=True)]
        return [] if have and mark.status is Status.PASSED else self._unfinished(stage)

    def _unfinished(self, stage: Stage) -> list[_Replaced]:
        out = []
        for work in self._other_work(stage):
            if not any(p.is_file() for p in work.rglob("*")):
                continue
            done = [f"{name or stage.name} at step {step:,}" for name, step in steps_done(work)]
            what = f"is unfinished work of other settings or versions{': ' if done else ''}{', '.join(done)}."
            fix = "Put the settings back to resume it, use another -o/--output, or --overwrite to remove it."
            out.append(_Replaced(Problem(str(work), what, fix)))
        return out

    def state(self, stage: Stage) -> str:
        """``finished``, ``unfinished`` (will be resumed) or ``to do``."""
        mark = self.mark(stage.name)
        if mark is not None and mark.status is Status.PASSED and (self.path / stage.output).exists():
            return "finished"
        return "unfinished" if self._work(stage).exists() else "to do"

    def recover(self, stages: Sequence[Stage]) -> None:
        """Finish what a process did not that was killed after it had marked a stage and before the last rename."""
        for stage in stages:
            mark, built = self.mark(stage.name), self._built(stage)
            if (
                mark is not None
                and mark.hash == self.hashes[stage.name]
                and built.exists()
                and digests(built) == mark.files
            ):
                self._commit(stage)

    def forget(self, stage: Stage) -> None:
        """Drop the output and the mark of a stage, so that nothing of another recipe lies beside new results."""
        remove(self.path / stage.output)
        remove(self.path / _MARKS / f"{stage.name}.json")  # last: an output without its mark would be a stranger

    def run(self, stage: Stage) -> None:
        """Run one stage unless it is finished.

        Raises:
            GateError: If a gate failed; the output stays, marked failed.
        """
        state = self.state(stage)
        if state == "finished":
            say(f"{stage.title}: finished before, skipped")
            self._clear(stage)  # a process killed right after its mark leaves it
            return
        say(f"{stage.title}{': resumed' if state == 'unfinished' else ''}")
        log.info("stage %s %s, hash %s", stage.name, state, self.hashes[stage.name])
        work, built = self._work(stage), self._built(stage)
        for stale in self._other_work(stage):
            if any(stale.iterdir()):
                say(f"  removed unfinished work of other settings: {stale}")
            remove(stale)
        work.mkdir(parents=True, exist_ok=True)
        remove(built.parent)
        (built if stage.is_folder else built.parent).mkdir(parents=True)
        began, cpu = time.monotonic(), _cpu_seconds()
        if stage.trains:
            train_together(stage.name, self.hashes[stage.name])
        failures = list(stage.make(Places(built, work, self.path / METRICS)))
        (sync_tree if built.is_dir() else sync)(built)
        mark = Mark(
            name=stage.name,
            hash=self.hashes[stage.name],
            failures=failures,
            files=digests(built),
            status=Status.FAILED if failures else Status.PASSED,
            wall_s=round(time.monotonic() - began, 2),
            cpu_s=round(_cpu_seconds() - cpu, 2),
        )
        self.write_mark(mark)
        self._commit(stage)
        self._clear(stage)
        log.info("stage %s %s: %.1f s, %.1f CPU-s", stage.name, mark.status, mark.wall_s, mark.cpu_s)
        if failures:
            kept = self.path / stage.output
            raise GateError([*failures, f"The files stay in {kept}, marked failed; nothing was packed."])

    def take_part(self, stages: Sequence[Stage], order: Order) -> None:
        """In a process other than 0: train a stage together with process 0, and write nothing here.

        Raises:
            InputError: If this process sees another recipe, other data or another folder than process 0.
        """
        self.hash(stages)
        stage = next((s for s in stages if s.name == order.stage), None)
        rank = f"rank {here().rank}"
        if stage is None or self.hashes[stage.name] != order.hash:
            raise InputError(
                Problem(
                    rank,
                    f"sees another recipe, other data, another model or other versions than process 0 (stage {order.stage}).",
                    "Give every node the same recipe, files and installation.",
                )
            )
        missing = [
            p
            for p in (self._work(stage), *(self.path / s.output for s in stages if s.name in stage.needs))
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
            output = Path(thrown_away) / stage.output
            if stage.is_folder:
                output.mkdir()
            stage.make(Places(output, self._work(stage), Path(thrown_away) / METRICS))

    def _work(self, stage: Stage) -> Path:
        return self.path / _WORK / f"{stage.name}-{self.hashes[stage.name][:12]}"

    def _built(self, stage: Stage) -> Path:
        """Where the output of a stage is built: a rename away from its final name."""
        return self.path / _WORK / f"{stage.name}.new" / stage.output

    def _other_work(self, stage: Stage) -> list[Path]:
        """Work folders of a stage that belong to other settings or versions."""
        return [
            p
            for p in sorted(self.path.glob(f"{_WORK}/{stage.name}-*"))
            if _OWN_WORK.fullmatch(p.name.removeprefix(stage.name)) and p != self._work(stage)
        ]

    def _commit(self, stage: Stage) -> None:
        """Rename what was built to its final name; an older output of the stage, which a mark named, goes."""
        built, output = self._built(stage), self.path / stage.output
        if stage.is_folder:
            install(built, output, built.parent / "old")
        else:
            replace_file(built, output)
        sync(self.path)

    def _clear(self, stage: Stage) -> None:
        remove(self._work(stage))
        remove(self._built(stage).parent)


@dataclass(frozen=True)
class _Replaced:
    """Something that running a stage would replace.

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
