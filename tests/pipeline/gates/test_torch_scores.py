"""`verify --data` against the torch model: files that are wrong in the same way agree with each other, not with torch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.defects import ONNX, ONNX_INT8, relist
from support.defects import onnx as defects
from support.tiny_task import Task

Cli = Callable[..., Any]


@pytest.fixture
def verified(cli: Cli, task: Task, phone: Path) -> Callable[[], tuple[int, dict[str, dict[str, Any]], str]]:
    """`verified()`: the exit code, the drop gates by file, and what was said."""

    def run() -> tuple[int, dict[str, dict[str, Any]], str]:
        found = cli("verify", "-m", phone, "--data", task.folder / "eval.jsonl", "--json")
        gates = json.loads(found.stdout.splitlines()[-1])["gates"]
        return found.exit_code, {g["file"]: g for g in gates if g["name"] == "drop"}, found.stderr

    return run


def forget_words(model: defects.Model) -> None:
    """All rows of the table of words but those of the special tokens are zero."""
    defects.change_array(defects.words(model), lambda v: np.where(np.arange(len(v))[:, None] < 5, v, 0))


def test_a_sound_folder_agrees_with_torch(verified: Any) -> None:
    code, drops, _ = verified()
    assert code == 0
    assert "the torch model has" in drops[ONNX]["detail"]
    assert drops[ONNX]["value"] <= drops[ONNX]["bound"]
    assert not drops[ONNX]["skipped"]


def test_words_that_both_files_forgot_are_missed(verified: Any, phone: Path) -> None:
    for name in (ONNX, ONNX_INT8):
        defects.edit(phone / name, forget_words)
        relist(phone, name)
    code, drops, said = verified()
    assert code == 3
    assert not drops[ONNX]["passed"]
    assert re.search(r"onnx/model.onnx: gate 'drop' failed: accuracy .*, the torch model has .* points worse", said)


def test_without_weights_the_comparison_is_skipped_and_said(verified: Any, phone: Path) -> None:
    (phone / "model.safetensors").unlink()
    listed = json.loads((phone / "artifacts.json").read_text())
    listed["files"] = [r for r in listed["files"] if r["path"] != "model.safetensors"]
    (phone / "artifacts.json").write_text(json.dumps(listed))
    code, drops, said = verified()
    assert code == 0
    assert drops[ONNX]["skipped"]
    assert not drops[ONNX_INT8]["skipped"]
    assert "skipped  onnx/model.onnx drop: not compared with the torch model on eval.jsonl: the folder has no" in said
