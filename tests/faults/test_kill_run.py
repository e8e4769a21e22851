"""A run of three formats that is killed again and again ends with the same bytes in every file as an unbroken one."""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.folders import tree
from support.runs import output_of
from support.victims import Victim, leftovers

FORMATS = "export.formats=[onnx, tflite, coreml]"
START, REPORT = "start", "report"
_BEGAN = re.compile(r"^(\S+ \S+) INFO step (\S+) (?:to do|unfinished), hash", re.MULTILINE)
_ENDED = re.compile(r"^(\S+ \S+) INFO step (\S+) passed:", re.MULTILINE)


@dataclass(frozen=True)
class Moment:
    """When to kill: some seconds into a step."""

    step: str
    seconds: float


class Timeline:
    """How long each step of an unbroken run took, in order: from the start of the process to its end.

    Attributes:
        seconds: By step; `START` is before the first one, `REPORT` after the last one.
    """

    def __init__(self, log: str, began: datetime, ended: datetime) -> None:
        starts = [(name, _time(at)) for at, name in _BEGAN.findall(log)]
        last = _time(_ENDED.findall(log)[-1][0])
        marks = [(START, began), *starts, (REPORT, last), ("", ended)]
        self.seconds = {name: (after - at).total_seconds() for (name, at), (_, after) in itertools.pairwise(marks)}

    @property
    def steps(self) -> list[str]:
        """Names in order."""
        return list(self.seconds)

    def moments(self, draw: random.Random, count: int) -> list[Moment]:
        """One random moment in every step, the others anywhere, long steps more often; in order of time."""
        names, weights = self.steps, list(self.seconds.values())
        chosen = [*names, *draw.choices(names, weights, k=count - len(names))]
        # the end of the report varies: a moment there would find the run over
        share = {REPORT: 0.6}
        made = [Moment(name, draw.uniform(0, self.seconds[name] * share.get(name, 1.0))) for name in chosen]
        return sorted(made, key=lambda m: (names.index(m.step), m.seconds))


def _time(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f")


def log_of(folder: Path) -> str:
    path = folder / "run.log"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def landed(log: str) -> str:
    """The step that the log ends in."""
    began = [(m.start(), m[2]) for m in _BEGAN.finditer(log)]
    ended = [m.start() for m in _ENDED.finditer(log)]
    if not began:
        return START
    return began[-1][1] if not ended or began[-1][0] > ended[-1] else f"after {began[-1][1]}"


def strike(victim: Any, moment: Moment, timeline: Timeline) -> bool:
    """Start the run and kill it at a moment; False if it ended before."""
    before, names = len(log_of(victim.folder)), timeline.steps
    late = names[names.index(moment.step) :]

    def ready() -> bool:
        if moment.step == START:
            return True
        log = log_of(victim.folder)[before:]
        # a step that an earlier moment's process finished is skipped: the next one is hit
        return any(m[2] in late for m in _BEGAN.finditer(log)) or "step pack passed" in log

    if moment.step == REPORT and "step pack passed" in log_of(victim.folder):
        return bool(victim.kill(lambda: True, timeline.seconds[START] + moment.seconds))
    return bool(victim.kill(ready, moment.seconds))


def differing(folder: Path, reference: Path) -> list[str]:
    """Files of an artefact folder that are not byte for byte the reference's, lost and additional ones included."""
    ours, theirs = tree(folder), tree(reference)
    return sorted(n for n in ours.keys() | theirs.keys() if ours.get(n) != theirs.get(n))


def check_as_unbroken(victim: Any, reference: Path) -> None:
    """Every packed file, every file of every step, and nothing left over."""
    assert differing(victim.folder / "phone", reference / "phone") == []
    steps = {p.stem for p in (reference / ".steps").iterdir()}
    assert {p.stem for p in (victim.folder / ".steps").iterdir()} == steps
    for name in steps - {"pack", "verify"}:
        ours, theirs = output_of(victim.folder, name), output_of(reference, name)
        if theirs.is_dir():
            assert differing(ours, theirs) == [], name
        else:
            assert ours.read_bytes() == theirs.read_bytes(), name
    for name in ("verify.json", "metrics.jsonl"):
        assert (victim.folder / name).read_bytes() == (reference / name).read_bytes(), name
    assert leftovers(victim.folder) == []


def test_killed_in_each_format(task: Any, finished: Path, trio: Path, tmp_path: Path) -> None:
    from pocketbert import api

    run = Path(shutil.copytree(finished, tmp_path / "run"))
    victim = Victim(["run", task.recipe, FORMATS, "--overwrite", "-o", run], run)
    draw = random.Random(17)
    hit = []
    for step, most in (("tflite", 2.0), ("coreml-w8", 0.1), ("golden", 0.5)):
        names = ["tflite", "tflite-int8", "coreml", "coreml-w8", "golden", "verify", "pack"]
        timeline = SimpleNamespace(steps=[START, *names, REPORT], seconds={})
        assert strike(victim, Moment(step, draw.uniform(0, most)), timeline)
        hit.append(landed(log_of(run)))
    assert victim.kills == 3, hit
    victim.finish()
    check_as_unbroken(victim, trio)
    assert api.verify(run / "phone").status == "passed"


@pytest.mark.slow
def test_killed_thirty_times_at_random(task: Any, tmp_path: Path) -> None:
    reference = Victim(["run", task.recipe, FORMATS, "-o", tmp_path / "reference"], tmp_path / "reference")
    began = datetime.now()
    reference.finish()
    timeline = Timeline(log_of(reference.folder), began, datetime.now())
    print({name: round(s, 1) for name, s in timeline.seconds.items()})
    seed = int(os.environ.get("POCKETBERT_KILL_SEED", "5"))
    moments = timeline.moments(random.Random(seed), 30)
    where: Counter[str] = Counter()
    rounds = 0
    clock = time.monotonic()
    while moments:
        rounds += 1
        run = tmp_path / f"run-{rounds}"
        victim = Victim(["run", task.recipe, FORMATS, "-o", run], run)
        while moments and strike(victim, moments[0], timeline):
            where[landed(log_of(run))] += 1
            moments.pop(0)
        if victim.kills == 0:
            moments.pop(0)  # the last step ended before this moment came; the next round takes the others
        victim.finish()
        check_as_unbroken(victim, reference.folder)
    print(
        f"{sum(where.values())} kills in {rounds} rounds, {time.monotonic() - clock:.0f} s, seed {seed}: {dict(where)}"
    )
    assert sum(where.values()) >= 29
    assert {"teacher", "distill.0", "onnx", "tflite", "coreml", "golden", "verify"} <= set(where)
