"""Every system teaches a student with every signal that its row allows, and goes through the whole chain of `pocketbert run`."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from pocketbert.core.errors import InputError
from pocketbert.core.families import Family, find_family
from pocketbert.core.recipe.stages import MiniLmStage, SignalWeights, TaskStage
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Signal
from pocketbert.distill.methods.minilm import MiniLmDistillation
from pocketbert.distill.methods.task import TaskDistillation
from pocketbert.distill.students.build import build_student
from pocketbert.runtime import load
from support.commands import command
from support.matrix.measure import Model, make_model
from support.tiny import EXPORTED, write_classifier
from support.tiny_task import RECIPE, merged
from support.tiny_texts import FILLERS, write_lines

TASK = TASKS[TaskName.TEXT_CLASSIFICATION]
TEACHER, STUDENT, STEPS = 3, 2, 50
VALID = [(name, signal) for name in EXPORTED for signal in find_family(name).signals]
INVALID = [(name, signal) for name in EXPORTED for signal in Signal if signal not in find_family(name).signals]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """A tiny teacher of three layers, and its folder."""

    def made(name: str) -> Model:
        return make_model(tmp_path_factory.mktemp(name) / "model", name, TASK, TEACHER)

    return made


def batches(model: Model, rows: int = 8) -> Iterator[dict[str, torch.Tensor]]:
    """The project's sentences over and over, padded."""
    encoded = model.tokenizer.encode(model.texts("text-classification"))
    while True:
        for i in range(0, len(encoded) - rows, rows):
            padded = model.tokenizer.pad(encoded[i : i + rows])
            batch = {name: torch.from_numpy(value) for name, value in padded.items()}
            yield {**batch, "labels": torch.arange(rows) % 3}


def objective_of(row: Family, model: Model, student: Any, signal: Signal) -> Any:
    untouched: Any = model.reference.model
    if signal is Signal.RELATIONS:
        return MiniLmDistillation(untouched, student, row, MiniLmStage(method="minilm", steps=STEPS))
    weights = SignalWeights(**{"logits": 0, "hidden": 0, "attention": 0, signal.value: 1})
    return TaskDistillation(untouched, student, row, TASK, TaskStage(method="task", steps=STEPS, signals=weights))


def losses(student: Any, objective: Any, data: Iterator[dict[str, torch.Tensor]]) -> list[float]:
    optimizer = torch.optim.AdamW([p for p in student.parameters() if p.requires_grad], lr=2e-3)
    out = []
    for _ in range(STEPS):
        terms = objective(student, next(data))
        assert set(terms) == set(objective.weights)
        loss = sum((term.mean * objective.weights[name] for name, term in terms.items()), torch.zeros(()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        out.append(float(loss.detach()))
    return out


@pytest.mark.slow
@pytest.mark.parametrize(("name", "signal"), VALID)
def test_a_student_learns_from_every_valid_signal(name: str, signal: Signal, teacher: Callable[[str], Model]) -> None:
    torch.manual_seed(1)
    row, model = find_family(name), teacher(name)
    model.reference.model.requires_grad_(False)
    student = build_student(model.reference.model, row, StudentSection(layers=STUDENT, init="random"), 0).train()
    found = losses(student, objective_of(row, model, student, signal), batches(model))
    first, last = sum(found[:10]) / 10, sum(found[-10:]) / 10
    assert last < 0.9 * first, (first, last)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "signal"), INVALID)
def test_a_signal_that_means_nothing_is_refused_with_the_reason(
    name: str, signal: Signal, teacher: Callable[[str], Model]
) -> None:
    row, model = find_family(name), teacher(name)
    student = build_student(model.reference.model, row, StudentSection(layers=STUDENT), 0)
    with pytest.raises(InputError) as refused:
        objective_of(row, model, student, signal)
    assert row.invalid_signals[signal] in str(refused.value)


# The whole chain.

KEYWORDS = {"lamp": "bulb", "music": "song"}


def draw_rows(count: int, seed: int) -> list[dict[str, Any]]:
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
    write_lines(folder / "train.jsonl", draw_rows(400, 1))
    write_lines(folder / "eval.jsonl", draw_rows(100, 2))
    row = find_family(name)
    weights = {s.value: int(s in row.signals) for s in (Signal.LOGITS, Signal.HIDDEN, Signal.ATTENTION)}
    changes = {
        "data": {"labels": list(KEYWORDS), "max_length": 32},
        "teacher": {"finetune": {"steps": 60, "lr": 5e-3, "checkpoint": None}},
        "distill": [{"method": "task", "steps": 40, "batch": 32, "lr": 3e-3, "dropout": 0.0, "signals": weights}],
        "export": {"formats": ["onnx", "tflite", "coreml"]},
        "verify": {"max_drop": 0.1},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(merged(RECIPE, changes), sort_keys=False))
    return folder / "recipe.yaml"


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED)
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
    right = [a == b for a, b in zip(answers, ["lamp", "music", "lamp", "music"], strict=True)]
    assert sum(right) >= 3, f"{answers}: sixty steps from random weights may leave one wrong"
