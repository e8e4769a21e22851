"""Commands killed at random moments, and run again, leave the same bytes as unbroken ones and touch nothing foreign."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support import kills
from support.folders import tree
from support.runs import output_of
from support.victims import Victim, leftovers

FORMATS = "export.formats=[onnx, tflite, coreml]"
STEPS = ("tflite", "tflite-int8", "coreml", "coreml-w8", "golden", "verify", "pack")
"""Those that a run of three formats has after one of ONNX, in order."""
BEGAN = re.compile(r" INFO step (\S+) (?:to do|unfinished), hash")


def campaign(*arguments: object) -> str:
    """Run a campaign in a process of its own, which forks; what it printed."""
    command = [sys.executable, kills.__file__, *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert ended.stdout.endswith("\n0 problems\n")
    return ended.stdout


def test_pack_and_verify_killed_right_before_a_rename_or_fsync(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "k").mkdir()
    said = campaign("--kills", 4, "--finished", finished, "-o", tmp_path / "k")
    for case in ("pack", "verify", "record", "pack-in-place"):
        assert f"'{case} call'" in said


@pytest.mark.slow
def test_every_command_killed_a_hundred_times(tmp_path: Path) -> None:
    (tmp_path / "k").mkdir()
    print(campaign("--kills", 108, "-o", tmp_path / "k"))


def steps_begun(run: Path, skipped: int = 0) -> list[str]:
    """Steps that the log of a run tells of, beyond its first characters."""
    path = run / "run.log"
    return BEGAN.findall(path.read_text("utf-8")[skipped:]) if path.is_file() else []


def check_as_unbroken(victim: Victim, reference: Path) -> None:
    """Every packed file, every file of every step, and nothing left over."""
    steps = {p.stem for p in (reference / ".steps").iterdir()}
    assert {p.stem for p in (victim.folder / ".steps").iterdir()} == steps
    for name in steps - {"verify"}:
        ours, theirs = output_of(victim.folder, name), output_of(reference, name)
        if theirs.is_dir():
            left, right = tree(ours), tree(theirs)
            assert sorted(n for n in left.keys() | right.keys() if left.get(n) != right.get(n)) == [], name
        else:
            assert ours.read_bytes() == theirs.read_bytes(), name
    for name in ("verify.json", "metrics.jsonl"):
        assert (victim.folder / name).read_bytes() == (reference / name).read_bytes(), name
    assert leftovers(victim.folder) == []


def test_a_run_of_three_formats_killed_in_each(task: Any, finished: Path, trio: Path, tmp_path: Path) -> None:
    from pocketbert import api

    run = Path(shutil.copytree(finished, tmp_path / "run"))
    victim = Victim(["run", task.recipe, FORMATS, "--overwrite", "-o", run], run)
    draw = random.Random(17)
    for step, most in (("tflite", 2.0), ("coreml-w8", 0.1)):
        late, said = STEPS[STEPS.index(step) :], len((run / "run.log").read_text("utf-8"))
        # a step that an earlier process finished is skipped: the next one is hit
        assert victim.kill(lambda late=late, said=said: {*late} & {*steps_begun(run, said)}, draw.uniform(0, most)), (
            step
        )
    victim.finish()
    check_as_unbroken(victim, trio)
    assert api.verify(run / "phone").status == "passed"


@pytest.mark.slow
def test_runs_killed_thirty_times_at_random(task: Any, trio: Path, tmp_path: Path) -> None:
    seed = int(os.environ.get("POCKETBERT_KILL_SEED", "5"))
    draw, where, rounds = random.Random(seed), Counter[str](), 0
    while where.total() < 30:
        rounds += 1
        victim = Victim(["run", task.recipe, FORMATS, "-o", tmp_path / f"run-{rounds}"], tmp_path / f"run-{rounds}")
        while victim.kill(lambda: True, draw.uniform(0, 40)):  # each process goes on where the last one died
            where[(["start", *steps_begun(victim.folder)])[-1]] += 1
        victim.finish()
        check_as_unbroken(victim, trio)
    print(f"{where.total()} kills in {rounds} rounds, seed {seed}: {dict(where)}")
    assert len(where) >= 5
