"""`pocketbert distill` with a cached general teacher, on a corpus made here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

STEPS = 12


@pytest.fixture
def recipe(
    tmp_path: Path,
    tiny_model: Callable[..., Path],
    write_rows: Callable[..., Path],
    labelled_rows: Callable[..., list[dict[str, Any]]],
) -> Callable[..., Path]:
    """`recipe(**keys of the stage)`: a recipe file with one general stage."""
    text = write_rows(tmp_path / "text.jsonl", labelled_rows(40))
    model = tiny_model("bert", 2, auto_class="AutoModelForMaskedLM")

    def write(**stage: Any) -> Path:
        plain = {
            "method": "distilbert",
            "steps": STEPS,
            "batch": 8,
            "lr": 1e-3,
            "checkpoint": 4,
            "masked_only": True,
            "weights": {"logits": 5, "mlm": 2, "cosine": 0},
        }
        whole = {
            "schema": 1,
            "name": "cached",
            "task": "fill-mask",
            "data": {"corpus": {"sources": [{"path": str(text)}], "length": 32}, "max_length": 32},
            "teacher": {"model": str(model)},
            "student": {"layers": 1},
            "distill": [{**plain, **stage}],
            "export": {"formats": ["onnx"]},
        }
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(whole))
        return path

    return write


def curve(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_cached_stage_makes_the_student_that_the_teacher_itself_makes(
    recipe: Callable[..., Path], cli: Callable[..., Any], tmp_path: Path
) -> None:
    made = {}
    for name, more in (("online", {}), ("cached", {"cache": {"top": 100, "samples": 32}})):
        run = cli("distill", recipe(**more), "-o", tmp_path / name)
        assert run.exit_code == 0, run.output
        made[name] = curve(tmp_path / name)
        assert (tmp_path / name / "student" / "model.safetensors").is_file()
    assert [r["step"] for r in made["cached"]] == [r["step"] for r in made["online"]] == [STEPS]
    assert made["cached"][0]["terms"] != made["online"][0]["terms"]
    assert made["cached"][0]["terms"] == pytest.approx(made["online"][0]["terms"], rel=0.02)
    assert not list((tmp_path / "cached").rglob("distill.0-cache*"))


def test_a_run_killed_after_asking_the_teacher_does_not_ask_again(
    recipe: Callable[..., Path], cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pocketbert.distill.teacher import sparse as sparse_teacher
    from pocketbert.distill.training import loop

    asked: list[int] = []
    ask, step = sparse_teacher._write_logits, loop.TrainingLoop.step

    def counted(*arguments: Any) -> None:
        asked.append(1)
        ask(*arguments)

    def dying(self: Any) -> float:
        if self.progress.step == 6 and len(asked) == STEPS:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(sparse_teacher, "_write_logits", counted)
    path = recipe(cache={})
    with monkeypatch.context() as patched:
        patched.setattr(loop.TrainingLoop, "step", dying)
        assert cli("distill", path, "-o", tmp_path / "run").exit_code != 0
    assert len(asked) == STEPS
    resumed = cli("distill", path, "-o", tmp_path / "run")
    assert resumed.exit_code == 0, resumed.output
    assert len(asked) == STEPS
    assert cli("distill", path, "-o", tmp_path / "whole").exit_code == 0
    weights = [(tmp_path / n / "student" / "model.safetensors").read_bytes() for n in ("run", "whole")]
    assert weights[0] == weights[1]


def test_what_a_cache_cannot_do_is_listed_at_once(
    recipe: Callable[..., Path], cli: Callable[..., Any], tmp_path: Path
) -> None:
    path = recipe(cache={}, masked_only=False, weights={"logits": 0, "mlm": 2, "cosine": 1})
    run = cli("distill", path, "-o", tmp_path / "run")
    assert run.exit_code == 2
    said = [line for line in run.stderr.splitlines() if "distill.0.cache" in line]
    assert [key for line in said for key in ("masked_only", "cosine", "logits") if key in line] == [
        "masked_only",
        "cosine",
        "logits",
    ]
    assert not (tmp_path / "run").exists()
