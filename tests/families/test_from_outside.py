"""CamemBERT from an installed package, with the code of docs/extending.md: exported, verified, distilled from. No file of the package knows it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from pocketbert.core.families import ADAPTERS, CAPTURES, family_named
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.distill.capture import record_attention
from pocketbert.export.adapters import mask_4d
from pocketbert.export.adapters.plan import ExportPlan
from pocketbert.export.prepare import prepare
from support.plugins import blocks, fresh_tables
from support.tiny import tiny_classifier
from support.tiny_tokenizers import write_tokenizer

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/extending.md"
LABELS = ("negative", "neutral", "positive")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the page, installed by pip into a folder."""
    base = tmp_path_factory.mktemp("outside")
    source, folder = base / "source", base / "site"
    source.mkdir()
    found = blocks(PAGE)
    assert set(found) == {"pyproject.toml", "pocketbert_camembert.py"}
    for name, text in found.items():
        (source / name).write_text(text, "utf-8")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(folder), str(source)], check=True, capture_output=True, cwd=base)
    return folder


@pytest.fixture
def camembert(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package, installed for this process."""
    with fresh_tables(monkeypatch):
        monkeypatch.syspath_prepend(str(site))
        yield
    sys.modules.pop("pocketbert_camembert", None)


@pytest.fixture
def model(camembert: None, tmp_path: Path) -> Path:
    folder = tmp_path / "teacher"
    tiny_classifier("camembert", 2, LABELS).save_pretrained(folder)
    write_tokenizer(folder, pad_id=1)
    return folder


def run(site: Path, *words: object) -> str:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [Path(sys.executable).with_name("pocketbert"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_nothing_of_the_package_names_it_so_that_it_does_come_from_outside() -> None:
    with pytest.raises(Exception, match="not in the family table"):
        family_named("camembert")


def test_families_and_doctor_list_it(site: Path) -> None:
    rows = {f["name"]: f for f in json.loads(run(site, "families", "--json"))}
    assert rows["camembert"]["title"] == "CamemBERT"
    (plugin,) = json.loads(run(site, "doctor", "--json"))["plugins"]
    assert (plugin["name"], plugin["package"], plugin["error"]) == ("camembert", "pocketbert-camembert 1.0", "")
    assert plugin["registered"] == ["layer-parts camembert", "family camembert"]


def test_it_is_exported_and_verified(site: Path, model: Path, tmp_path: Path) -> None:
    run(site, "export", "-m", model, "-o", tmp_path / "phone", "--format", "onnx", "--max-length", 32)
    listed = json.loads((tmp_path / "phone/artifacts.json").read_text())
    status = {f["path"]: f.get("status") for f in listed["files"]}
    assert {status["onnx/model.onnx"], status["onnx/model_int8.onnx"]} == {"passed"}


def test_it_teaches_a_student(
    site: Path, model: Path, labelled_rows: Callable[..., Any], write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    for name, count in (("train.jsonl", 48), ("eval.jsonl", 24)):
        write_rows(tmp_path / name, labelled_rows(count, LABELS))
    recipe = {
        "schema": 1,
        "name": "camembert",
        "task": "text-classification",
        "seed": 3,
        "data": {
            "train": {"path": "train.jsonl"},
            "eval": {"path": "eval.jsonl"},
            "labels": list(LABELS),
            "max_length": 32,
        },
        "teacher": {"model": str(model)},
        "student": {"layers": 1},
        "distill": [
            {
                "method": "task",
                "steps": 2,
                "batch": 8,
                "lr": 1e-3,
                "signals": {"logits": 1, "hidden": 1, "attention": 1},
            }
        ],
        "export": {"formats": ["onnx"], "lengths": [16, 32]},
        "verify": {"max_drop": 1.0},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    run(site, "distill", tmp_path / "recipe.yaml", "-o", tmp_path / "run")
    config = json.loads((tmp_path / "run/student/config.json").read_text())
    assert (config["model_type"], config["num_hidden_layers"]) == ("camembert", 1)


@torch.no_grad()
def test_its_graph_is_the_cheaper_one_and_its_numbers_the_models_own(camembert: None) -> None:
    row, task = family_named("camembert"), TASKS[TaskName.TEXT_CLASSIFICATION]
    model = tiny_classifier("camembert", 2, LABELS)
    module = mask_4d.with_additive_mask(tiny_classifier("camembert", 2, LABELS), ExportPlan(row, task))
    ids = torch.randint(5, 90, (2, 13), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs["attention_mask"][1, 7:] = 0
    torch.testing.assert_close(module(*inputs.values())[0], model(**inputs).logits, rtol=1e-4, atol=1e-4)
    last = module.model.roberta.encoder.layer[-1]
    assert type(last).__name__ == "PostNormLayer"
    assert last.first_row


@torch.no_grad()
def test_the_pages_adapter_and_capture_work(camembert: None) -> None:
    snippets = re.findall(r"^```python\n(from .*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    for code in snippets[:2]:
        exec(compile(code, str(PAGE), "exec"), {})
    row = replace(family_named("camembert"), adapter="without-cache", capture="eager-hooks")
    assert callable(ADAPTERS.find(row.adapter, ""))
    assert callable(CAPTURES.find(row.capture, ""))
    model, task = tiny_classifier("camembert", 2, LABELS), TASKS[TaskName.TEXT_CLASSIFICATION]
    ids = torch.randint(5, 90, (2, 13), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    expected = tiny_classifier("camembert", 2, LABELS)
    with record_attention(expected, family_named("camembert"), range(2)) as theirs:
        expected(**inputs)
    with record_attention(model, row, range(2)) as ours:
        model(**inputs)
    for layer in range(2):
        torch.testing.assert_close(
            ours.scores[layer].softmax(-1), theirs.scores[layer].softmax(-1), rtol=1e-3, atol=1e-5
        )
    prepared = prepare(tiny_classifier("camembert", 2, LABELS), row, task)
    torch.testing.assert_close(prepared(*inputs.values())[0], expected(**inputs).logits, rtol=1e-4, atol=1e-4)
