"""Training that meets a NaN ends a command with exit code 3, finishes nothing, and is resumed by the same command."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pocketbert.distill.losses.common import Term
from pocketbert.distill.methods import task as task_distillation
from pocketbert.distill.training import loop

Cli = Callable[..., Any]
SHORT = {"steps": 12, "batch": 16, "lr": 1e-3, "checkpoint": 4}


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, since two that wait for each other on a busy machine take ten times as long; and precision as it was."""
    from accelerate.state import AcceleratorState

    before = torch.get_num_threads()
    monkeypatch.setattr(loop, "default_threads", lambda: 1)
    yield
    torch.set_num_threads(before)
    AcceleratorState._reset_state(reset_partial_state=True)


def test_settings_that_break_the_weights_end_a_run(cli: Cli, task: Any, tmp_path: Path) -> None:
    # an eps that float32 takes for 0: rows of the word table without a gradient become 0 / 0
    recipe = task.variant(tmp_path / "r.yaml", teacher={"finetune": {**SHORT, "eps": 1e-50}})
    run = tmp_path / "run"
    result = cli("run", recipe, "-o", run)
    assert result.exit_code == 3, result.output
    assert result.stdout == ""
    message = result.stderr.splitlines()[-1]
    assert message.startswith("Error: finetune: step 2 of 12 was not made: the loss is nan (terms: labels nan); ")
    assert "The weights were not finite even before this step" in message
    assert "Fix: Raise eps (1e-50), or lower lr" in message
    assert "packed" not in message  # the words for a finished step whose gate failed
    assert not (run / "teacher").exists()
    assert [p.name for p in (run / ".steps").iterdir()] == ["data.json"]
    assert "teacher\t" in cli("run", recipe, "-o", run, "--dry-run").stdout


def test_the_same_command_resumes_after_a_nan(
    cli: Cli, task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = {"teacher": {"finetune": SHORT}, "distill": [{"method": "task", **SHORT}]}
    recipe = task.variant(tmp_path / "r.yaml", **stages)
    right, passes = task_distillation.TaskDistillation.__call__, 0

    def poisoned(self: Any, model: Any, batch: Any) -> Any:
        nonlocal passes
        passes += 1
        terms = dict(right(self, model, batch))
        if passes == 11:
            terms["hidden"] = Term(terms["hidden"].mean * float("inf"), terms["hidden"].count)
        return terms

    with monkeypatch.context() as patched:
        patched.setattr(task_distillation.TaskDistillation, "__call__", poisoned)
        stopped = cli("distill", recipe, "-o", tmp_path / "run")
    assert stopped.exit_code == 3, stopped.output
    message = stopped.stderr.splitlines()[-1]
    assert message.startswith("Error: distill.0: step 11 of 12 was not made: the loss is inf (terms: hidden inf, ")
    run = tmp_path / "run"
    work = next((run / ".work").glob("distill.0-*")) / "distill.0"
    assert f"The checkpoint of step 8 in {work} is kept: the same command resumes from it" in message
    assert sorted(p.name for p in work.iterdir()) == ["latest", "step-0000004", "step-0000008"]
    assert not (run / "student").exists()
    assert sorted(p.stem for p in (run / ".steps").iterdir()) == ["data", "teacher"]
    assert "Traceback" not in (run / "run.log").read_text()

    resumed = cli("distill", recipe, "-o", run)
    assert resumed.exit_code == 0, resumed.output
    assert "resumed" in resumed.stderr
    whole = cli("distill", recipe, "-o", tmp_path / "whole")
    assert whole.exit_code == 0, whole.output
    for name in ("student/model.safetensors", "metrics.jsonl"):
        assert (run / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert bool(torch.isfinite(torch.tensor(losses)).all())
