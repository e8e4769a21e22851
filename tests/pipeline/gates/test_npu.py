"""Files in integers throughout that were broken in their graphs: the gate `types` names what no stored number shows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")

from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.quantize import find_row, read_weight_types, weights
from support.defects import integers
from support.stored_models import StoredFiles
from support.tiny_task import Task

Form = tuple[Format, Scheme, Runtime]
FORMS: dict[str, Form] = {
    "tflite/model_a16w8_npu.tflite": (Format.TFLITE, Scheme.A16W8, Runtime.NPU),
    "tflite/model_a8w8_npu.tflite": (Format.TFLITE, Scheme.A8W8, Runtime.NPU),
    "onnx/model_a16w8_qnn.onnx": (Format.ONNX, Scheme.A16W8, Runtime.QNN),
    "onnx/model_a8w8_qnn.onnx": (Format.ONNX, Scheme.A8W8, Runtime.QNN),
}
ONNX = [file for file in FORMS if file.startswith("onnx")]
SCORES = "attention scores in steps that probabilities are lost in"


def copy_exported(path: Path) -> None:
    """What a quantizer that does nothing leaves."""
    shutil.copyfile(path.with_name(f"model{path.suffix}"), path)


FLOATS = "computed with floats, where an NPU takes integers: MatMul 'node_matmul"
GRAPHS = [
    *((f, how, SCORES) for f in FORMS for how in (integers.deep_scores, integers.deep_mask)),
    *((f, integers.float_scores, FLOATS) for f in ONNX),
    *((f, integers.float_weight, "still float: a_float_weight (1 in all)") for f in ONNX),
    *((f, copy_exported, "no matrix product has int8 weights; the quantizer did nothing.") for f in FORMS),
]
Change = Callable[[Path], None]


@pytest.fixture(autouse=True)
def small_matrices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have no matrix above the usual bound."""
    monkeypatch.setattr(weights, "SMALL", 512)


def name_of(value: object) -> str:
    return str(value.args[0]) if isinstance(value, partial) else getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("file", "change", "said"), GRAPHS, ids=name_of)
def test_a_broken_graph_is_named(file: str, change: Change, said: str, stored: StoredFiles, tmp_path: Path) -> None:
    row, format = find_row(*FORMS[file]), FORMS[file][0]
    path = Path(shutil.copyfile(stored.file(*FORMS[file]), tmp_path / Path(file).name))
    shutil.copyfile(stored.file(format), path.with_name(f"model{path.suffix}"))
    assert row.problems(read_weight_types(path, format), file) == []
    change(path)
    found = row.problems(read_weight_types(path, format), file)
    assert any(said in line and line.startswith(f"{file}: ") for line in found), found


@pytest.mark.slow
def test_a_file_with_one_length_is_compared_with_ranges_of_rows_that_fill_it(
    finished_tflite: Path, task: Task, cli: Callable[..., Any], tmp_path: Path
) -> None:
    form = "--format tflite --scheme a16w8 --runtime npu --lengths 48 --max-length 48".split()
    model, rows = finished_tflite / "student", task.folder / "train.jsonl"
    result = cli("export", "-m", model, "-o", tmp_path / "phone", *form, "--calibrate", rows)
    assert result.exit_code == 0, result.output
