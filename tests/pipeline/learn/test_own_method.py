"""A method that another package registers trains a student through a recipe."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.own_method import registered


def test_a_registered_method_trains_a_student(task: Any, cli: Callable[..., Any], tmp_path: Path) -> None:
    stages = [{"method": "logits", "steps": 40, "batch": 8, "lr": 3e-3}, {"method": "logits", "steps": 2, "batch": 8}]
    path = task.variant(tmp_path / "recipe.yaml", distill=stages, teacher={"finetune": {"steps": 10}})
    with registered():
        run = cli("distill", path, "-o", tmp_path / "run")
        assert run.exit_code == 0, run.output
        told = json.loads((tmp_path / "run" / "student" / "training.json").read_text())
        assert [c["stage"] for c in told["curves"]] == ["distill.0", "distill.1"]
        assert told["curves"][0]["loss"][-1] < told["curves"][0]["loss"][0]
        assert told["notes"] == ["scales [1.0]", "scales [1.0, 1.0]"]
    refused = cli("distill", path, "-o", tmp_path / "other")
    assert refused.exit_code == 2
    assert "method 'logits' is unknown" in refused.stderr
