"""Ctrl-C and SIGTERM in a training: a checkpoint at the end of the step, and the numbers of a run that nobody stopped."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.cli.commands import signals
from pocketbert.distill.training import loop

RARE = {"batch": 32, "lr": 3e-3, "dropout": 0.0, "checkpoint": 1000}
"""No checkpoint but the one that a signal asks for."""


@pytest.fixture
def send_at(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`send_at(signal, step, *arguments)`: a command that gets a signal in a step of its training."""

    def run(number: signal.Signals, at: int, *arguments: object) -> Any:
        step, kept = loop.TrainingLoop.step, {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}

        def interrupted(self: Any) -> float:
            if self.progress.step == at:
                signal.raise_signal(number)
            return step(self)

        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            with monkeypatch.context() as patched, signals():
                patched.setattr(loop.TrainingLoop, "step", interrupted)
                return cli(*arguments)
        finally:
            for one, handler in kept.items():
                signal.signal(one, handler)

    return run


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_run_goes_on_where_it_was_stopped(
    number: signal.Signals,
    code: int,
    task: Any,
    tmp_path: Path,
    succeed: Callable[..., Any],
    send_at: Callable[..., Any],
) -> None:
    stages = [{"method": "task", "steps": 12, **RARE}]
    recipe = task.variant(tmp_path / "r.yaml", teacher={"finetune": {"steps": 30, **RARE}}, distill=stages)
    run, whole = tmp_path / "run", tmp_path / "whole"
    for at, resumed in ((7, ""), (20, "resumed at step 8 of 30")):
        told = send_at(number, at, "distill", recipe, "-o", run)
        assert told.exit_code == code, told.output
        assert resumed in told.stderr
        assert f"stopped after step {at + 1} of 30, checkpoint written" in told.stderr
        assert "Finished work is kept" in told.stderr
    last = succeed("distill", recipe, "-o", run)
    assert "resumed at step 21 of 30" in last.stderr
    assert "12 steps of 32 rows: 0.64 passes over 600 rows" in last.stderr
    succeed("distill", recipe, "-o", whole)
    for name in ("teacher/model.safetensors", "student/model.safetensors"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    curves = [json.loads((folder / "student" / "training.json").read_text())["curves"] for folder in (run, whole)]
    assert curves[0] == curves[1]
    assert "Traceback" not in (run / "run.log").read_text()


def test_without_a_checkpoint_it_begins_again(
    task: Any, tmp_path: Path, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: Any) -> float:
        raise MemoryError

    recipe = task.variant(tmp_path / "r.yaml", teacher={"finetune": {"steps": 4, **RARE}})
    with monkeypatch.context() as patched:
        patched.setattr(loop.TrainingLoop, "step", die)
        assert cli("finetune", recipe, "-o", tmp_path / "run").exit_code != 0
    said = cli("finetune", recipe, "-o", tmp_path / "run").stderr
    assert "begins again, no checkpoint yet" in said
    assert "resumed" not in said
