"""Static students through the whole chain: recipes of every task that they can do, files, gates, and what opens them."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from pocketbert import ExportOptions, api
from pocketbert.core.data.labels import Labels
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError
from pocketbert.core.models.checkpoints import load_model, save_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Layout, Status
from pocketbert.distill.students.static import build_static_student
from pocketbert.pipeline.gates.stored import PreparedModels
from pocketbert.pipeline.gates.verify import verify_artefacts
from pocketbert.runtime import load
from support.commands import command
from support.defects.stored import WORDS, Damage, damage, record_again, rows_lost
from support.tiny import write_bert
from support.tiny_task import RECIPE, merged
from support.tiny_texts import FILLERS, LABELS, task_rows, write_lines

CLASSIFY = TASKS[TaskName.TEXT_CLASSIFICATION]
SIGNALS = {"logits": 1, "hidden": 0, "attention": 0, "labels": 1}
TEXTS = ["the lamp please", "a song in the hall", "alarm", "zq", ""]


@pytest.fixture(scope="module")
def phone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported folder of an untrained static student in ONNX; read-only by convention."""
    folder = tmp_path_factory.mktemp("static")
    source = open_model_folder(str(write_bert(folder / "teacher", LABELS)))
    teacher, tokenizer = load_model(source, CLASSIFY), TextTokenizer(source.path, 40)
    student = build_static_student(teacher, source.family, tokenizer, CLASSIFY, seed=1).eval()
    (folder / "student").mkdir()
    save_model(student, source, Labels(LABELS), 40, folder / "student")
    return api.export(str(folder / "student"), folder / "phone", ExportOptions(formats=["onnx"]))


def test_the_folder_opens_like_any_other_and_answers_as_the_torch_model(phone: Path) -> None:
    listed = json.loads((phone / "artifacts.json").read_text())
    assert listed["family"] == "static-embeddings"
    status = {f["path"]: f["status"] for f in listed["files"] if f.get("status")}
    assert status == dict.fromkeys((f"onnx/model{end}.onnx" for end in ("", "_int8", "_quantized")), "passed")
    source = open_model_folder(str(phone.parent / "student"))
    model, tokenizer = load_model(source, CLASSIFY), TextTokenizer(source.path, 40)
    for text, answer in zip(TEXTS, load(phone, scheme="fp32").predict(TEXTS), strict=True):
        feed = {k: torch.from_numpy(v) for k, v in tokenizer.pad(tokenizer.encode([text])).items()}
        with torch.no_grad():
            expected = torch.softmax(model(**feed).logits, -1)[0].numpy()
        np.testing.assert_allclose(list(answer.scores.values()), expected, atol=1e-5)
    assert load(phone).record.path == "onnx/model_int8.onnx"


@pytest.mark.parametrize("file", ["onnx/model.onnx", "onnx/model_int8.onnx"])
def test_a_lost_row_of_the_table_is_found_although_no_recorded_answer_tells(
    file: str, phone: Path, tmp_path: Path
) -> None:
    broken = Path(shutil.copytree(phone, tmp_path / "phone"))
    reference = PreparedModels(broken, CLASSIFY, 40).reference(Format.ONNX, Layout.PLAIN)
    damage(broken / file, reference, Damage("row", "one word is zeroed", rows_lost(WORDS, [7])))
    record_again(broken, file)
    result = verify_artefacts(broken)
    assert result.status is Status.FAILED
    assert (file, "stored") in {(g.file, g.name) for g in result.gates if not g.passed}


def test_files_for_npus_are_refused_before_the_first_step(phone: Path, tmp_path: Path) -> None:
    rows = write_lines(tmp_path / "train.jsonl", task_rows(60, 1))
    options = ExportOptions(formats=["tflite"], schemes=["a8w8"], runtimes=["npu"], calibrate=DataSource.at(str(rows)))
    with pytest.raises(InputError, match="a model without layers has no files for npu and qnn"):
        api.export(str(phone.parent / "student"), tmp_path / "phone", options)
    assert not (tmp_path / "phone").exists()


# --- recipes ----------------------------------------------------------------------------------------------------------


def write_recipe(folder: Path, task: str, rows: Callable[[int, int], list[dict[str, Any]]], **changes: Any) -> Path:
    """Rows, an untrained encoder and the recipe of a static student."""
    folder.mkdir(parents=True, exist_ok=True)
    write_bert(folder / "teacher")
    write_lines(folder / "train.jsonl", rows(300, 1))
    write_lines(folder / "eval.jsonl", rows(100, 2))
    is_embedding = task == "feature-extraction"
    signals = {**SIGNALS, "labels": int(not is_embedding)}
    columns = {"text_pair": "text_pair"} if "text_pair" in rows(1, 0)[0] else {}
    settings = {
        "task": task,
        "data": {"train": columns, "eval": columns, "labels": None, "max_length": 40},
        "teacher": {"finetune": None if is_embedding else {"steps": 100, "lr": 5e-3, "checkpoint": None}},
        "student": {"layers": 0},
        "distill": [{"method": "task", "steps": 80, "batch": 32, "lr": 1e-2, "signals": signals}],
        "export": {"formats": ["onnx", "tflite", "coreml"]},
        "verify": {"max_drop": 0.1},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({**merged(RECIPE, settings), **changes}, sort_keys=False))
    return path


def pairs(count: int, seed: int) -> list[dict[str, Any]]:
    """Two texts, of which one word in the second decides the number."""
    draw, rows = random.Random(seed), list[dict[str, Any]]()
    for i in range(count):
        first, second = (draw.choices(FILLERS, k=draw.randint(1, 4)) for _ in range(2))
        second.append(("song", "bulb")[i % 2])
        rows.append({"text": " ".join(first), "text_pair": " ".join(second), "label": float(i % 2)})
    return rows


def several(count: int, seed: int) -> list[dict[str, Any]]:
    """Texts with one label, or with another one behind it."""
    out = []
    for i, (one, other) in enumerate(zip(task_rows(count, seed), task_rows(count + 1, seed + 50)[1:], strict=True)):
        both = [one, other] if i % 2 else [one]
        out.append({"text": " ".join(r["text"] for r in both), "label": sorted({r["label"] for r in both})})
    return out


def without_chairs(count: int, seed: int) -> list[dict[str, Any]]:
    """Texts in which some pieces of the vocabulary do not occur."""
    rows = (row for row in task_rows(8 * count, seed) if not {"chair", "quick"} & set(row["text"].split()))
    return list(islice(rows, count))


def texts(count: int, seed: int) -> list[dict[str, Any]]:
    """Texts without labels."""
    return [{"text": row["text"]} for row in task_rows(count, seed)]


def tags(count: int, seed: int) -> list[dict[str, Any]]:
    """Words, of which two have a tag."""
    rows, draw, named = list[dict[str, Any]](), random.Random(seed), {"song": "B-thing", "bulb": "B-other"}
    for _ in range(count):
        words = draw.choices([*FILLERS[:10], *named], weights=[1] * 10 + [5] * 2, k=draw.randint(3, 9))
        rows.append({"text": words, "label": [named.get(word, "O") for word in words]})
    return rows


RECIPES: dict[str, tuple[str, Callable[[int, int], list[dict[str, Any]]], dict[str, Any]]] = {
    "a pruned vocabulary and 4 bits": (
        "text-classification",
        without_chairs,
        {"student": {"layers": 0, "dimensions": 32, "vocabulary": {}}, "quantize": {"scheme": "w4"}},
    ),
    "pairs": ("regression", pairs, {}),
    "several labels": ("multi-label", several, {}),
    "embeddings": ("feature-extraction", texts, {}),
    "tags": ("token-classification", tags, {"quantize": {"files": ["int8", "w4"]}}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_the_whole_chain_ends_well_in_three_formats(name: str, tmp_path: Path) -> None:
    task, rows, changes = RECIPES[name]
    recipe = write_recipe(tmp_path / "task", task, rows, **changes)
    run = subprocess.run(command("run", recipe, "-o", tmp_path / "run"), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    phone = tmp_path / "run/phone"
    listed = json.loads((phone / "artifacts.json").read_text())
    status = {f["path"]: f["status"] for f in listed["files"] if f.get("status")}
    assert {Path(path).parts[0] for path in status} == {"onnx", "tflite", "coreml"}
    assert set(status.values()) == {"passed"}
    config = json.loads((phone / "config.json").read_text())
    assert config["type_vocab_size"] == (2 if name == "pairs" else 0)
    pieces = len((tmp_path / "task/teacher/vocab.txt").read_text().splitlines())
    assert (config["vocab_size"] < pieces) == ("vocabulary" in changes.get("student", {}))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"student": {"layers": 2, "dimensions": 64}}, "dimensions is for a student without layers"),
        ({"student": {"layers": 0, "hidden": 64}}, "hidden: a student without layers has a table"),
        ({"student": {"layers": 0, "init": "random"}}, "init: random: a student without layers has a table"),
        ({"task": "question-answering"}, "student.layers: 0 is for text-classification, .*not for question-answering"),
        ({"distill": [{"method": "task", "steps": 2}]}, r"distill.0: .*learns outputs only"),
        ({"distill": [{"method": "tinybert-intermediate", "steps": 2}]}, r"distill.0: .*set method: task with signals"),
    ],
)
def test_settings_that_contradict_a_student_without_layers_are_refused(
    changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    settings = {"task": "text-classification", **changes}
    recipe = write_recipe(tmp_path, rows=task_rows, **settings)
    with pytest.raises(InputError, match=problem):
        load_recipe(recipe)
