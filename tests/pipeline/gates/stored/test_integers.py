"""Files for NPUs that were broken in their graphs, or are another file: the gates `types` and `placement` name what."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.quantize import find_row, read_weight_types, weights
from support.defects import format_of, integers

NPU = {
    "model_a8w8_npu.tflite": (Scheme.A8W8, Runtime.NPU),
    "model_a16w8_npu.tflite": (Scheme.A16W8, Runtime.NPU),
    "model_a8w8_qnn.onnx": (Scheme.A8W8, Runtime.QNN),
    "model_a16w8_qnn.onnx": (Scheme.A16W8, Runtime.QNN),
}
SCORES = "attention scores in steps that probabilities are lost in"
DAMAGES = {
    integers.deep_scores: SCORES,
    integers.deep_mask: SCORES,
    integers.float_scores: "computed with floats, where an NPU takes integers: MatMul 'node_matmul",
    integers.float_weight: "still float: a_float_weight (1 in all)",
}
CASES = [(f, d) for f in NPU for d in DAMAGES if f.endswith("onnx") or d in (integers.deep_scores, integers.deep_mask)]


@pytest.fixture(autouse=True)
def small_matrices_count(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tiny models have no matrix above the usual bound."""
    monkeypatch.setattr(weights, "SMALL", 512)
    yield


def problems(path: Path, file: str) -> list[str]:
    format = format_of(path)
    return find_row(format, *NPU[file]).problems(read_weight_types(path, format), file)


@pytest.mark.parametrize("file", NPU)
def test_a_file_that_nobody_changed_passes(file: str, every_file: Path) -> None:
    assert problems(every_file / "files" / file, file) == []


@pytest.mark.parametrize(("file", "change"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_every_damage_is_named(file: str, change: Callable[[Path], None], copied: Callable[[str], Path]) -> None:
    path = copied(file)
    change(path)
    found = problems(path, file)
    assert any(DAMAGES[change] in line and line.startswith(f"{file}: ") for line in found), found


@pytest.mark.parametrize("file", NPU)
def test_the_exported_file_under_the_name_of_a_smaller_one(file: str, every_file: Path, tmp_path: Path) -> None:
    """What a quantizer that does nothing leaves."""
    path = tmp_path / file
    shutil.copyfile(every_file / "files" / f"model{path.suffix}", path)
    found = problems(path, file)
    assert f"{file}: no matrix product has int8 weights; the quantizer did nothing." in found
    if format_of(path) is Format.TFLITE:
        assert any("only matrix products are computed in integers" in line for line in found)
    else:
        assert any("computed with floats" in line for line in found)
