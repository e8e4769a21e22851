"""RoFormer from an installed package, with the code of docs/extending.md: exported, verified, distilled from. No file of the package knows it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from pocketbert.core.families import Family, TokenizerKind, find_family, register_family
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.distill.capture import record_attention
from pocketbert.export.adapters import mask_4d
from pocketbert.export.adapters.mask_4d import ExportPlan
from pocketbert.export.prepare import prepare
from support.plugins import blocks, fresh_tables
from support.tiny import tiny_classifier
from support.tiny_task import RECIPE, merged
from support.tiny_tokenizers import write_tokenizer

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/extending.md"
LABELS = ("negative", "neutral", "positive")
TASK = TASKS[TaskName.TEXT_CLASSIFICATION]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the page, installed by pip into a folder."""
    base = tmp_path_factory.mktemp("outside")
    source, folder = base / "source", base / "site"
    source.mkdir()
    found = blocks(PAGE)
    assert set(found) == {"pyproject.toml", "pocketbert_roformer.py"}
    for name, text in found.items():
        (source / name).write_text(text, "utf-8")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(folder), str(source)], check=True, capture_output=True, cwd=base)
    return folder


@pytest.fixture
def roformer(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package, installed for this process."""
    with fresh_tables(monkeypatch):
        monkeypatch.syspath_prepend(str(site))
        yield
    sys.modules.pop("pocketbert_roformer", None)


@pytest.fixture
def model(roformer: None, tmp_path: Path) -> Path:
    folder = tmp_path / "teacher"
    tiny_classifier("roformer", 2, LABELS).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def inputs_of(length: int, padding: int) -> dict[str, torch.Tensor]:
    """Two rows of ids, the second with padding at its end."""
    ids = torch.randint(5, 90, (2, length), generator=torch.Generator().manual_seed(length))
    mask = torch.ones_like(ids)
    mask[1, length - padding :], ids[1, length - padding :] = 0, 0
    segments = (torch.arange(length) > length // 2).to(torch.int64).expand(2, -1)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}


@pytest.fixture
def run(cli: Callable[..., Any], roformer: None) -> Callable[..., str]:
    """`run(*words)`: a command with the package installed; what it prints."""

    def succeed(*words: object) -> str:
        done = cli(*words)
        assert done.exit_code == 0, done.output
        return str(done.stdout)

    return succeed


def test_families_and_doctor_list_it(run: Callable[..., str]) -> None:
    rows = {f["name"]: f for f in json.loads(run("families", "--json"))}
    assert rows["roformer"]["title"] == "RoFormer"
    (plugin,) = json.loads(run("doctor", "--json"))["plugins"]
    assert (plugin["name"], plugin["package"], plugin["error"]) == ("roformer", "pocketbert-roformer 1.0", "")
    assert plugin["registered"] == ["adapter roformer", "capture roformer", "family roformer"]


def test_it_is_exported_and_verified(run: Callable[..., str], model: Path, tmp_path: Path) -> None:
    run("export", "-m", model, "-o", tmp_path / "phone", "--format", "onnx", "--max-length", 32)
    listed = json.loads((tmp_path / "phone/artifacts.json").read_text())
    status = {f["path"]: f.get("status") for f in listed["files"]}
    assert {status["onnx/model.onnx"], status["onnx/model_int8.onnx"]} == {"passed"}


def test_it_teaches_a_student(
    run: Callable[..., str],
    model: Path,
    labelled_rows: Callable[..., Any],
    write_rows: Callable[..., Path],
    tmp_path: Path,
) -> None:
    for name, count in (("train.jsonl", 48), ("eval.jsonl", 24)):
        write_rows(tmp_path / name, labelled_rows(count, LABELS))
    signals = {"logits": 1, "hidden": 1, "attention": 1}
    changes = {
        "data": {"labels": list(LABELS), "max_length": 32},
        "teacher": {"model": str(model), "finetune": None},
        "distill": [{"method": "task", "steps": 2, "batch": 8, "lr": 1e-3, "signals": signals}],
        "verify": {"max_drop": 1.0},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(merged(RECIPE, changes)), "utf-8")
    run("distill", tmp_path / "recipe.yaml", "-o", tmp_path / "run")
    config = json.loads((tmp_path / "run/student/config.json").read_text())
    assert (config["model_type"], config["num_hidden_layers"]) == ("roformer", 1)


@torch.no_grad()
@pytest.mark.parametrize(("length", "padding"), [(3, 0), (13, 6), (64, 1)])
def test_its_adapter_gives_the_models_own_numbers(roformer: None, length: int, padding: int) -> None:
    row, model, inputs = find_family("roformer"), tiny_classifier("roformer", 2, LABELS), inputs_of(length, padding)
    module = prepare(model, row, TASK)
    torch.testing.assert_close(module(*inputs.values())[0], model(**inputs).logits, rtol=1e-4, atol=1e-4)
    table = model.base_model.encoder.embed_positions.weight
    table.copy_(table.flip(1))
    moved = (module(*inputs.values())[0] - model(**inputs).logits).abs().max()
    assert float(moved) > 1e-3, "distances between tokens do not matter to this model"


@torch.no_grad()
def test_its_capture_hands_on_what_the_model_computes(roformer: None) -> None:
    model, inputs = tiny_classifier("roformer", 2, LABELS), inputs_of(13, 6)
    expected = model(**inputs, output_attentions=True)
    for _ in range(2):  # a second installation changes nothing
        with record_attention(model, find_family("roformer"), range(2), range(2)) as recorder:
            found = model(**inputs)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-5)
    for layer in range(2):
        probabilities = recorder.scores[layer].softmax(-1)
        torch.testing.assert_close(probabilities, expected.attentions[layer], rtol=1e-3, atol=1e-5)
        assert recorder.relations[layer].value.shape == (2, 4, 13, 8)


@torch.no_grad()
def test_the_pages_layer_parts_give_the_cheaper_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"^```python\n(from .*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    with fresh_tables(monkeypatch):
        exec(compile(code, str(PAGE), "exec"), {})
        register_family(
            Family(
                name="data2vec-text",
                title="Data2VecText",
                model_types=("data2vec-text",),
                classes="Data2VecText",
                tokenizer=TokenizerKind.BYTE_BPE,
                inputs=("input_ids", "attention_mask"),
                layer_path="data2vec_text.encoder.layer",
                position_offset=2,
                layer_parts="data2vec-text",
                tiny={**find_family("roberta").tiny},
            )
        )
        row, inputs = find_family("data2vec-text"), [*inputs_of(13, 6).values()][:2]
        model = tiny_classifier("data2vec-text", 2, LABELS)
        module = mask_4d.with_additive_mask(tiny_classifier("data2vec-text", 2, LABELS), ExportPlan(row, TASK))
        torch.testing.assert_close(module(*inputs)[0], model(*inputs).logits, rtol=1e-4, atol=1e-4)
        last = module.model.get_submodule(row.layer_path)[-1]
        assert type(last).__name__ == "PostNormLayer"
        assert last.first_row
