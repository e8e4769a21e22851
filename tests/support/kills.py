"""Commands killed with SIGKILL at random moments and at every rename and fsync, then started again until they end.

    .venv/bin/python tests/support/kills.py --kills 100 [--seed 5] [--every] [--finished RUN] [-o FOLDER]

Each command runs in a forked process of this one, which has imported everything and is bound to one core. What it leaves
is compared byte by byte with what a command leaves that nobody killed, and a stranger's files around the output must
survive. ``--every`` also kills at every single rename, fsync, unlink, rmdir and mkdir instead of a sample of them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

CALLS = ("rename", "replace", "fsync", "unlink", "rmdir", "mkdir")
"""Calls of the system that are counted; a process dies right before one of them."""
MOVES = ("rename", "replace", "fsync")
TIMED = {"README.md", "artifacts.json", "benchmark.json"}
"""Files of a run's artefact folder that hold latencies, or digests of files that do."""
OWN = {".lock", ".steps", ".work", ".pocketbert.json", "run.log", "report.html", "benchmark.json"}
"""What a run folder keeps for itself, and files that hold latencies."""
PATIENCE_S = 300


@dataclass(frozen=True)
class Case:
    """A command, and what it leaves."""

    name: str
    arguments: Callable[[Path], list[object]]  # of the command line, for a place to work in
    output: str  # what it writes there
    prepare: Callable[[Path], object] = lambda _: None  # fills the place before the first kill
    ignored: frozenset[str] = frozenset()  # files of the output that hold times


def forked(arguments: list[object], log: Path, deadly: int | None = None, seconds: float = PATIENCE_S) -> int | None:
    """Run a command in a forked process, its prints in a log; its exit status, None where it was killed.

    It is killed right before its call number `deadly`, or after some seconds.
    """
    child = os.fork()
    if child == 0:
        _become(arguments, log, deadly)
    end = time.monotonic() + seconds
    ended, status = 0, 0
    while not ended and time.monotonic() < end:
        time.sleep(0.002)
        ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    return None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _become(arguments: list[object], log: Path, deadly: int | None) -> None:
    """In the forked process: run the command and exit."""
    code = 1
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        record = os.open(f"{log}.calls", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        count = [0]

        def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def around(*args: Any, **options: Any) -> Any:
                if count[0] == deadly:
                    os.kill(os.getpid(), signal.SIGKILL)
                count[0] += 1
                os.write(record, f"{name}\n".encode())
                return call(*args, **options)

            return around

        for name in CALLS:
            setattr(os, name, counted(name, getattr(os, name)))
        from pocketbert.cli.main import main

        sys.argv = ["pocketbert", *map(str, arguments)]
        main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def left(case: Case, place: Path) -> dict[str, bytes]:
    """Every file that a case left in its output, without those that hold times."""
    output = place / case.output
    return {
        name: p.read_bytes()
        for p in sorted(output.rglob("*"))
        if p.is_file() and (name := p.relative_to(output).as_posix()) not in case.ignored and not OWN & set(p.parts)
    }


class Campaign:
    """Kills the commands of some cases."""

    def __init__(self, root: Path, cases: list[Case], seed: int) -> None:
        self.root, self.cases, self.draw = root, cases, random.Random(seed)
        self.kills: Counter[str] = Counter()  # by case and kind
        self.points: dict[str, list[str]] = {}  # calls that each case makes when nobody kills it
        self.problems: list[str] = []
        self.seconds: dict[str, float] = {}
        self._wanted: dict[str, dict[str, bytes]] = {}
        self._log = root / "log"

    def reference(self, case: Case) -> None:
        """Run a case that nobody kills."""
        place, began = self._place(case, "reference"), time.monotonic()
        code = forked(case.arguments(place), self._log)
        if code != 0:
            raise SystemExit(f"{case.name}: exit {code}: {self._log.read_text()[-2000:]}")
        self.seconds[case.name] = time.monotonic() - began
        self._wanted[case.name] = left(case, place)
        self.points[case.name] = Path(f"{self._log}.calls").read_text().split()

    def _place(self, case: Case, name: str) -> Path:
        place = self.root / f"{case.name}-{name}"
        place.mkdir()
        case.prepare(place)
        return place

    def round(self, case: Case, moments: list[int | float]) -> None:
        """Kill one command at some moments, one after the other, then let it end and compare.

        Moments are numbers of calls (int) or seconds (float), each counted from the start of a process.
        """
        from support.canaries import Canaries

        place = self._place(case, f"{self.kills.total()}")
        known = {case.output, *(p.name for p in place.iterdir())}
        planted = Canaries(place / case.output)
        known |= {p.name for p in place.iterdir()}
        for moment in moments:
            at: dict[str, Any] = {"deadly": moment} if isinstance(moment, int) else {"seconds": moment}
            code = forked(case.arguments(place), self._log, **at)
            if code not in (None, 0):
                self._blame(case, moments, f"exit {code} instead of a kill: {self._log.read_text()[-600:]}")
            if code is not None:
                break  # it ended before the moment came
            self.kills[f"{case.name} {'call' if isinstance(moment, int) else 'time'}"] += 1
        code = forked(case.arguments(place), self._log)
        got, wanted = left(case, place), self._wanted[case.name]
        for what, found in (
            (f"continued with exit {code}", [self._log.read_text()[-600:]] if code != 0 else []),
            ("other bytes in", sorted(n for n in got.keys() | wanted.keys() if got.get(n) != wanted.get(n))[:5]),
            ("left behind", sorted({p.name for p in place.iterdir()} - known)),
            ("removed what is not its own", planted.collect()),
        ):
            if found:
                self._blame(case, moments, f"{what}: {found}")
        shutil.rmtree(place)

    def _blame(self, case: Case, moments: list[int | float], what: str) -> None:
        self.problems.append(f"{case.name}, killed at {moments}: {what}")
        print(self.problems[-1], flush=True)

    def plan(self, kills: int, every: bool) -> Iterator[tuple[Case, list[int | float]]]:
        """Which case is killed when: a share of the kills for each, half at calls and half at random times."""
        for case in self.cases:
            share = -(-kills // len(self.cases))
            calls = [i for i, name in enumerate(self.points[case.name]) if every or name in MOVES]
            at_calls = (share + 1) // 2
            chosen = calls if every else sorted(self.draw.sample(calls, min(len(calls), at_calls)))
            for call in chosen:
                yield case, [call]
            times = [self.draw.uniform(0, self.seconds[case.name]) for _ in range(share - at_calls)]
            for first in range(0, len(times), 3):
                yield case, [*times[first : first + 3]]


def cases(root: Path, finished: Path | None = None) -> list[Case]:
    """The commands on the tiny task; with the run folder of a finished one only those that take seconds."""
    if finished is not None:
        return _of_run(finished)
    from support.tiny_task import Task, write_task

    write_task(root / "task")
    task = Task(root / "task")
    plan = {"batch": 16, "lr": 3e-3, "checkpoint": 10}
    recipe = task.variant(
        root / "recipe.yaml",
        teacher={"finetune": {"steps": 60, **plan}},
        distill=[{"method": "task", "steps": 40, **plan}],
        benchmark={"threads": [1], "runs": 10, "repeats": 2, "gaps_ms": []},
        verify={"max_drop": 0.5},
    )
    made, phone = root / "finished", root / "phone"
    source = ["export", "-m", made / "student", "--format", "onnx", "-o"]
    for arguments in (["run", recipe, "-o", made], [*source, phone, "--scheme", "fp32"]):
        if forked(arguments, root / "log") != 0:
            raise SystemExit((root / "log").read_text())
    timed = frozenset({f"phone/{name}" for name in TIMED})
    return [
        Case("export", lambda p: [*source, p / "phone"], "phone"),
        Case("run", lambda p: ["run", recipe, "-o", p / "run"], "run", ignored=timed),
        Case("quantize", lambda p: ["quantize", "-m", phone, "-o", p / "phone"], "phone"),
        *_of_run(made),
    ]


def _of_run(made: Path) -> list[Case]:
    def pack(place: Path) -> list[object]:
        return ["pack", "-m", made, "-o", place / "phone"]

    return [
        Case("pack", pack, "phone"),
        Case("verify", lambda p: ["verify", "-m", p / "run"], "run", lambda p: shutil.copytree(made, p / "run")),
        Case("record", _recording, "phone", lambda p: _with_rows(made / "phone", p)),
        Case("pack-in-place", pack, "phone", _enter),
    ]


def _with_rows(phone: Path, place: Path) -> None:
    from support.tiny_texts import task_rows, write_lines

    shutil.copytree(phone, place / "phone")
    write_lines(place / "rows.jsonl", task_rows(300, 7))


def _recording(place: Path) -> list[object]:
    return ["verify", "-m", place / "phone", "--data", place / "rows.jsonl", "--max-drop", "0.5", "--record"]


def _enter(place: Path) -> None:
    """A folder that keeps its place, as a mount point does: the command is started in it."""
    (place / "phone").mkdir()
    os.chdir(place / "phone")


def run(root: Path, kills: int, seed: int, every: bool = False, finished: Path | None = None) -> list[str]:
    """Run a campaign and print what it counted; the problems."""
    os.environ["POCKETBERT_CACHE"] = str(root / "cache")
    campaign = Campaign(root, cases(root, finished), seed)
    for case in campaign.cases:
        campaign.reference(case)
        points = Counter(campaign.points[case.name])
        print(f"{case.name}: {campaign.seconds[case.name]:.1f} s, {dict(points)}", flush=True)
    began = time.monotonic()
    for case, moments in campaign.plan(kills, every):
        os.chdir(root)
        campaign.round(case, moments)
    print(f"{campaign.kills.total()} kills in {time.monotonic() - began:.0f} s, seed {seed}: {dict(campaign.kills)}")
    print(f"{len(campaign.problems)} problems")
    return campaign.problems


def main() -> None:
    """Read the options and run."""
    options = argparse.ArgumentParser(description="Kill commands and start them again.")
    options.add_argument("--kills", type=int, default=100)
    options.add_argument("--seed", type=int, default=5)
    options.add_argument("--every", action="store_true", help="kill at every call")
    options.add_argument("--finished", type=Path, help="the run folder of the tiny task: kill only what reads it")
    options.add_argument("-o", "--output", type=Path, help="an empty folder; default a temporary one")
    given = options.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before OpenMP counts the cores
    import onnx
    import onnxruntime
    import torch
    import transformers

    import pocketbert.pipeline.direct

    print(", ".join(m.__name__ for m in (onnx, onnxruntime, torch, transformers, pocketbert.pipeline.direct)))
    with tempfile.TemporaryDirectory() as temporary:
        root = given.output or Path(temporary)
        root.mkdir(exist_ok=True)
        sys.exit(bool(run(root, given.kills, given.seed, given.every, given.finished)))


if __name__ == "__main__":
    main()
