"""`pocketbert run` with one tiny model of each system: fine-tuned on a toy task, distilled, exported, verified, packed, opened."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pocketbert.core.families import find_family
from pocketbert.core.types import Signal
from pocketbert.runtime import load
from support.commands import command
from support.matrix.cells import graph_of
from support.tiny import EXPORTED, write_classifier
from support.tiny_texts import FILLERS, write_lines

KEYWORDS = {"lamp": "bulb", "music": "song"}
ROWS = [name for name in EXPORTED if graph_of(find_family(name)) == name]


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    """A few words, one of which is the keyword that decides."""
    draw = random.Random(seed)
    out = []
    for i in range(count):
        label = list(KEYWORDS)[i % len(KEYWORDS)]
        words = [draw.choice(FILLERS) for _ in range(draw.randint(1, 4))]
        words.insert(draw.randint(0, len(words)), KEYWORDS[label])
        out.append({"text": " ".join(words), "label": label})
    return out


def write_task(folder: Path, name: str) -> Path:
    """Rows, an untrained model, and the recipe."""
    (folder / "teacher").mkdir(parents=True)
    write_classifier(folder / "teacher", name, 0.0)
    write_lines(folder / "train.jsonl", rows(400, 1))
    write_lines(folder / "eval.jsonl", rows(100, 2))
    row = find_family(name)
    weights = {s.value: int(s in row.signals) for s in (Signal.LOGITS, Signal.HIDDEN, Signal.ATTENTION)}
    recipe = {
        "schema": 1,
        "name": f"tiny-{name}",
        "task": "text-classification",
        "seed": 3,
        "data": {
            "train": {"path": "train.jsonl"},
            "eval": {"path": "eval.jsonl"},
            "labels": list(KEYWORDS),
            "max_length": 32,
        },
        "teacher": {
            "model": "./teacher",
            "finetune": {"steps": 60, "batch": 32, "lr": 5e-3, "dropout": 0.0},
        },
        "student": {"layers": 1},
        "distill": [{"method": "task", "steps": 40, "batch": 32, "lr": 3e-3, "dropout": 0.0, "signals": weights}],
        "export": {"formats": ["onnx", "tflite", "coreml"], "lengths": [16, 32]},
        "verify": {"max_drop": 0.1},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_the_whole_chain_ends_well_and_the_folder_opens(name: str, tmp_path: Path) -> None:
    recipe = write_task(tmp_path / "task", name)
    run = subprocess.run(command("run", recipe, "-o", tmp_path / "run"), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    phone = tmp_path / "run/phone"
    listed = json.loads((phone / "artifacts.json").read_text())
    models = {f["path"]: f["status"] for f in listed["files"] if f.get("status")}
    assert {"onnx/model_int8.onnx", "tflite/model_int8.tflite", "coreml/Model_w8.mlpackage"} <= set(models)
    assert set(models.values()) == {"passed"}
    model = load(phone)
    answers = [a.label for a in model.predict(["the bulb please", "a song in the room", "bulb", "song"])]
    assert answers == ["lamp", "music", "lamp", "music"]
