"""Folders with files for NPUs that were damaged: `verify` exits with 3 and names the gate and what is wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")
pytestmark = pytest.mark.slow

from pocketbert import api
from pocketbert.core.data.source import DataSource
from pocketbert.core.types import Layout
from pocketbert.pipeline.gates.stored import PreparedModels
from pocketbert.quantize import weights
from support.defects import format_of, integers, relist
from support.defects.stored import DAMAGES, damage
from support.stored_models import CLASSIFY
from support.tiny_task import Task

TFLITE = ["tflite/model_a16w8_npu.tflite", "tflite/model_a8w8_npu.tflite"]
ONNX = ["onnx/model_a16w8_qnn.onnx", "onnx/model_a8w8_qnn.onnx"]
BY_NAME = {d.name: d for d in DAMAGES}


@pytest.fixture(scope="module")
def npu_phone(finished_tflite: Path, task: Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artefact folder of the tiny task with all files for NPUs."""
    folder, rows = tmp_path_factory.mktemp("npu"), DataSource.at(str(task.folder / "train.jsonl"))
    return api.quantize(finished_tflite / "phone", folder / "phone", ["a16w8", "a8w8"], ["npu", "qnn"], calibrate=rows)


def stored(name: str, path: Path) -> None:
    """Change stored numbers."""
    models = PreparedModels(path.parents[1], CLASSIFY, 40)
    damage(path, models.reference(format_of(path), Layout.PLAIN), BY_NAME[name])


def exported(path: Path) -> None:
    """What a quantizer that does nothing leaves."""
    shutil.copyfile(path.with_name(f"model{path.suffix}"), path)


STORED = {
    "one-number": "layer.0.attention.key.weight has other numbers",
    "tables-swapped": "word_embeddings.weight has other numbers",
    "class-x4": "classifier.weight has other numbers",
    "bias": "layer.0.up.bias is not in the file",
}
CASES = [
    *((f, partial(stored, name), "stored", told) for f in (*TFLITE, *ONNX) for name, told in STORED.items()),
    *((f, integers.deep_scores, "types", "the constant of the mask is in their range") for f in (*TFLITE, *ONNX)),
    *((f, exported, "types", "the quantizer did nothing") for f in (*TFLITE, *ONNX)),
    *((f, integers.float_scores, "types", "computed with floats, where an NPU takes integers") for f in ONNX),
    *((f, integers.float_weight, "types", "still float: a_float_weight") for f in ONNX),
]


def name_of(value: object) -> str:
    if isinstance(value, partial):
        return str(value.args[0])
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("file", "change", "gate", "told"), CASES, ids=name_of)
def test_verify_ends_with_3_and_says_what_is_wrong(
    file: str,
    change: Callable[[Path], None],
    gate: str,
    told: str,
    npu_phone: Path,
    cli: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weights, "SMALL", 512)  # tiny models have no matrix above the usual bound
    phone = Path(shutil.copytree(npu_phone, tmp_path / "phone"))
    change(phone / file)
    relist(phone, file)
    result = cli("verify", "-m", phone)
    assert result.exit_code == 3, result.output
    [line] = [line for line in result.stderr.splitlines() if f"{file}: gate '{gate}' failed:" in line]
    assert told in line, line


def test_a_folder_that_nobody_changed_passes(npu_phone: Path, cli: Callable[..., Any]) -> None:
    assert cli("verify", "-m", npu_phone).exit_code == 0


def test_a_file_with_one_length_is_compared_with_ranges_of_rows_that_fill_it(
    finished_tflite: Path, task: Task, cli: Callable[..., Any], tmp_path: Path
) -> None:
    schemes = (
        "--format",
        "tflite",
        "--scheme",
        "a16w8",
        "--runtime",
        "npu",
        "--calibrate",
        task.folder / "train.jsonl",
    )
    lengths = ("--lengths", "48", "--max-length", "48")
    result = cli("export", "-m", finished_tflite / "student", "-o", tmp_path / "phone", *schemes, *lengths)
    assert result.exit_code == 0, result.output
