"""Ctrl-C and SIGTERM in a training: a checkpoint at the end of the step, and the numbers of a run that nobody stopped."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.victims import Victim

RARE = ("teacher.finetune.checkpoint=1000", "distill.0.checkpoint=1000")
"""No checkpoint but the one that a signal asks for."""


def until(process: subprocess.Popen[str], line: str) -> None:
    assert process.stderr is not None
    for said in process.stderr:
        if line in said:
            return
    raise AssertionError(f"the command never said {line!r}")


def stopped(victim: Victim, line: str, number: signal.Signals) -> tuple[int, int, str]:
    """Send a signal once a line was printed; the exit code, the step of the checkpoint, and what was said after the line."""
    with victim.running() as process:
        until(process, line)
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    found = re.search(r"stopped after step (\d+) of (\d+), checkpoint written", err)
    assert found, err
    return process.returncode, int(found[1]), err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_the_run_goes_on_where_it_was_stopped(
    task: Any, finished: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    run = tmp_path / "run"
    victim = Victim(["distill", task.recipe, *RARE, "-o", run], run)
    ended, step, said = stopped(victim, "train finetune: 140 steps of 32 rows", number)
    assert ended == code
    assert "Finished work is kept" in said
    assert 0 < step < 140
    ended, later, said = stopped(victim, f"resumed at step {step} of 140", number)
    assert (ended, later > step) == (code, True)
    said = victim.finish()
    assert f"resumed at step {later} of 140" in said
    assert "80 steps of 32 rows: 4.27 passes over 600 rows" in said
    for folder in ("teacher", "student"):
        name = f"{folder}/model.safetensors"
        assert (run / name).read_bytes() == (finished / name).read_bytes()
    curves = [json.loads((folder / "student" / "training.json").read_text())["curves"] for folder in (run, finished)]
    assert curves[0] == curves[1]
    assert "Traceback" not in (run / "run.log").read_text()


def test_without_a_checkpoint_it_begins_again(task: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    victim = Victim(["finetune", task.recipe, *RARE, "-o", run], run)
    with victim.running() as process:
        until(process, "train finetune: 140 steps of 32 rows")
    said = victim.finish()
    assert "begins again, no checkpoint yet" in said
    assert "resumed" not in said
