"""SIGKILL at any moment, the same command again: bit-identical weights, no half file, no step lost or done twice."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.disk.ownership import write_marker
from support.commands import command, one_core
from support.folders import tree
from support.tiny_texts import task_rows, write_lines
from support.victims import TIMED, Victim, leftovers


@pytest.mark.slow
def test_killed_three_times(task: Any, finished: Path, tmp_path: Path) -> None:
    from pocketbert import api

    draw = random.Random(11)
    victim = Victim(["run", task.recipe, "-o", tmp_path / "run"], tmp_path / "run")
    run = victim.folder
    assert victim.kill(lambda: any(run.glob(".work/teacher-*/latest")), draw.uniform(0, 0.2))
    assert not (run / "teacher").exists()
    assert victim.kill(lambda: any(run.glob(".work/distill.0-*/distill.0/latest")), draw.uniform(0, 0.2))
    assert not (run / "distill").exists()
    assert victim.kill((run / ".work" / "onnx.new").exists, draw.uniform(0, 2))
    assert not (run / "onnx").exists()
    said = victim.finish()
    assert "student: finished before, skipped" in said
    log = (run / "run.log").read_text()
    assert "step teacher unfinished" in log
    assert "step distill.0 unfinished" in log
    victim.check_whole(finished)
    assert api.verify(run / "phone").status == "passed"


DEADLY = """
import os, pathlib, shutil, sys
left = int(sys.argv.pop(1))
def deadly(call):
    def counted(*args, **options):
        global left
        left -= 1
        if left < 0:
            os._exit(137)
        return call(*args, **options)
    return counted
for owner, name in ((pathlib.Path, "rename"), (pathlib.Path, "replace"), (pathlib.Path, "unlink"), (shutil, "rmtree"), (os, "fsync")):
    setattr(owner, name, deadly(getattr(owner, name)))
from pocketbert.cli.main import main
main()
"""


@pytest.mark.parametrize("apart", [8, pytest.param(3, marks=pytest.mark.slow)])
def test_killed_between_two_steps_of_a_commit(task: Any, run_copy: Path, finished: Path, apart: int) -> None:
    # the windows are microseconds wide: random moments do not meet them, so the process ends itself there
    mark = run_copy / ".steps" / "pack.json"
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "status": "failed"}))
    for name in ("data", "teacher", "student", "onnx", "golden", "verify"):
        assert (run_copy / ".steps" / f"{name}.json").is_file()
    deaths = 0
    for count in range(0, 400, apart):
        process = subprocess.run(
            one_core([sys.executable, "-c", DEADLY, str(count), "run", str(task.recipe), "-o", str(run_copy)]),
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode == 0:
            break
        assert process.returncode == 137, process.stderr
        deaths += 1
        packed = run_copy / "phone"
        if packed.exists():  # whenever there is a folder under the final name, it is a whole one
            assert tree(packed) == tree(finished / "phone")
    assert deaths >= 5
    assert tree(run_copy / "phone") == tree(finished / "phone")
    assert leftovers(run_copy) == []


@pytest.mark.slow
def test_killed_inside_each_kind_of_step(task: Any, tmp_path: Path) -> None:
    text = write_lines(tmp_path / "text.jsonl", [{"text": r["text"]} for r in task_rows(3000, 9)])
    plan = {"batch": 16, "lr": 1e-3, "checkpoint": 5}
    recipe = task.variant(
        tmp_path / "r.yaml",
        data={"corpus": {"sources": [{"path": str(text)}], "length": 32}},
        distill=[{"method": "minilm", "steps": 60, **plan}, {"method": "task", "steps": 120, **plan, "lr": 3e-3}],
        benchmark={"threads": [1], "runs": 10, "repeats": 2, "gaps_ms": []},
    )
    reference = Victim(["run", recipe, "-o", tmp_path / "reference"], tmp_path / "reference")
    reference.finish()
    run = tmp_path / "run"
    victim = Victim(["run", recipe, "-o", run], run)
    for step, seen in {
        "corpus": ".work/corpus.new",
        "teacher": ".work/teacher-*/latest",
        "distill.0": ".work/distill.0-*/distill.0/latest",
        "distill.1": ".work/distill.1-*/distill.1/latest",
        **{s: f".work/{s}.new" for s in ("student", "onnx", "onnx-int8", "golden", "verify", "benchmark", "pack")},
    }.items():
        assert victim.kill(lambda seen=seen: any(run.glob(seen)), 0), step
        if step.startswith("distill."):
            edited = Victim(["run", recipe, f"{step}.steps=130", "-o", run], run)
            with edited.running() as process:
                _, err = process.communicate(timeout=300)
            assert process.returncode == 2, err
            said = " ".join(err.split())  # lines are broken at 200 columns
            assert f"{step}.steps was " in said
            assert f"unfinished work of {step}: {run}/.work/{step}-" in said
    victim.finish()
    assert victim.kills == 11
    victim.check_whole(tmp_path / "reference", ignored=TIMED)
    for number in (0, 1):
        ours, theirs = (tree(base / "distill" / str(number)) for base in (run, tmp_path / "reference"))
        assert ours == theirs


@pytest.mark.slow
def test_killed_twenty_times_at_random(task: Any, tmp_path: Path) -> None:
    recipe = task.variant(tmp_path / "r.yaml", benchmark={"threads": [1], "runs": 10, "repeats": 2, "gaps_ms": []})
    began = time.monotonic()
    reference = Victim(["run", recipe, "-o", tmp_path / "reference"], tmp_path / "reference")
    reference.finish()
    whole = time.monotonic() - began
    seed = int(os.environ.get("POCKETBERT_KILL_SEED", "5"))
    draw, kills, finished_rounds = random.Random(seed), 0, 0
    while kills < 20:
        run = tmp_path / f"run-{finished_rounds}"
        victim = Victim(["run", recipe, "-o", run], run)
        while kills < 20 and victim.kill(lambda: True, draw.uniform(0, whole)):
            kills += 1
        victim.finish()
        victim.check_whole(tmp_path / "reference", ignored=TIMED)
        finished_rounds += 1
        print(f"round {finished_rounds}: {victim.kills} kills")
    print(f"{kills} kills in {finished_rounds} rounds of {whole:.1f} s, seed {seed}")


@pytest.mark.slow
def test_killed_export_verb(finished: Path, tmp_path: Path) -> None:
    output = tmp_path / "phone"
    arguments = ["export", "-m", finished / "student", "-o", output, "--format", "onnx"]
    reference = tmp_path / "reference" / "phone"
    subprocess.run(
        one_core(command("export", "-m", finished / "student", "-o", reference, "--format", "onnx")),
        check=True,
        capture_output=True,
    )
    victim = Victim(arguments, tmp_path / "no-run")  # its work folder has a random name
    left: list[Path] = []
    for pattern in (".phone.*/run/.work/onnx.new", ".phone.*/run/golden", "phone"):
        victim.kill(lambda seen=pattern: any(tmp_path.glob(seen)), 0)
        left = list(tmp_path.glob(".phone.*")) or left
        assert len(left) == 1  # taken up, not begun anew
    victim.finish()
    assert tree(output) == tree(reference)
    assert list(tmp_path.glob(".phone.*")) == []
    # as a kill between the last rename and the last removal leaves it
    left[0].mkdir()
    write_marker(left[0], "temporary folder", output="phone", of="export")
    assert "finished before with the same model and settings, skipped" in victim.finish()
    assert not left[0].exists()
