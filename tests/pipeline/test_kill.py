"""SIGKILL at any moment, the same command again: bit-identical weights, no half file, no step lost or done twice.

Random moments are in tests/faults.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.disk.ownership import write_marker
from support import kills
from support.commands import command, one_core
from support.folders import tree
from support.tiny_texts import task_rows, write_lines
from support.victims import TIMED, Victim, leftovers

DEADLY = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(kills.__file__).parents[1])!r})
import onnx, onnxruntime, torch, transformers, pocketbert.pipeline.direct
from support.kills import forked
log, apart, *arguments = sys.argv[1:]
for call in range(0, 400, int(apart)):
    print(forked(arguments, Path(log), deadly=call), flush=True)
    if not sys.stdin.readline():
        break
"""
"""A command in forks of one process, each killed right before a later rename, fsync or removal; a line for each death."""


@pytest.mark.parametrize("apart", [16, pytest.param(3, marks=pytest.mark.slow)])
def test_killed_between_two_steps_of_a_commit(
    task: Any, run_copy: Path, finished: Path, tmp_path: Path, apart: int
) -> None:
    # the windows are microseconds wide: random moments do not meet them, so the process ends itself there
    mark = run_copy / ".steps" / "pack.json"
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "status": "failed"}))
    arguments = [str(tmp_path / "log"), str(apart), "run", str(task.recipe), "-o", str(run_copy)]
    deaths, pipes = 0, {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(one_core([sys.executable, "-c", DEADLY, *arguments]), **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            if line != "None\n":
                break
            deaths += 1
            if (run_copy / "phone").exists():  # whenever there is a folder under the final name, it is a whole one
                assert tree(run_copy / "phone") == tree(finished / "phone")
            process.stdin.write("\n")
            process.stdin.flush()
        assert line == "0\n", (tmp_path / "log").read_text()
    assert deaths >= 3
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
    moments = {
        "corpus": ".work/corpus.new",
        "teacher": ".work/teacher-*/latest",
        "distill.0": ".work/distill.0-*/distill.0/latest",
        "distill.1": ".work/distill.1-*/distill.1/latest",
        **{s: f".work/{s}.new" for s in ("student", "onnx", "onnx-int8", "golden", "verify", "benchmark", "pack")},
    }
    for step, seen in moments.items():
        assert victim.kill(lambda seen=seen: any(run.glob(seen)), 0), step
    said = victim.finish()
    assert "student: finished before, skipped" in said
    assert victim.kills == len(moments)
    victim.check_whole(tmp_path / "reference", ignored=TIMED)
    for number in (0, 1):
        ours, theirs = (tree(base / "distill" / str(number)) for base in (run, tmp_path / "reference"))
        assert ours == theirs


@pytest.mark.slow
def test_killed_export_verb(finished: Path, tmp_path: Path) -> None:
    output, reference = tmp_path / "phone", tmp_path / "reference" / "phone"
    arguments = ["export", "-m", finished / "student", "--format", "onnx", "-o"]
    subprocess.run(one_core(command(*arguments, reference)), check=True, capture_output=True)
    victim = Victim([*arguments, output], tmp_path / "no-run")  # its work folder has a random name
    left: list[Path] = []
    for pattern in (".phone.*/run/.work/onnx.new", ".phone.*/run/golden", "phone"):
        victim.kill(lambda seen=pattern: any(tmp_path.glob(seen)), 0)
        left = list(tmp_path.glob(".phone.*")) or left
        assert len(left) == 1, "taken up, not begun anew"
    victim.finish()
    assert tree(output) == tree(reference)
    assert list(tmp_path.glob(".phone.*")) == []
    # as a kill between the last rename and the last removal leaves it
    left[0].mkdir()
    write_marker(left[0], "temporary folder", output="phone", of="export")
    assert "finished before with the same model and settings, skipped" in victim.finish()
    assert not left[0].exists()
