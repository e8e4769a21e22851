"""Files for NPUs of every family go through the command's own steps, calibration on texts and all gates."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")
pytestmark = pytest.mark.slow

from pocketbert import ExportOptions, api
from pocketbert.core.data.source import DataSource
from pocketbert.quantize import weights
from support.tiny import EXPORTED, NAMES, write_classifier
from support.tiny_task import Task

FILES = "onnx/model_{}_qnn.onnx", "tflite/model_{}_npu.tflite"
SCHEMES = ["a16w8", "a8w8"]


@pytest.mark.parametrize("family", EXPORTED)
def test_all_gates_pass(family: str, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "SMALL", 512)  # tiny models have no matrix above the usual bound
    (tmp_path / "model").mkdir()
    model, rows = write_classifier(tmp_path / "model", family, 0.15), tmp_path / "train.jsonl"
    told = (task.folder / "train.jsonl").read_text()
    for own, name in zip(("lamp", "music", "timer"), NAMES, strict=True):
        told = told.replace(f'"label": "{own}"', f'"label": "{name}"')
    rows.write_text(told)
    options = ExportOptions(formats=["onnx", "tflite"], max_length=40)
    phone = api.export(str(model), tmp_path / "phone", options)
    small = api.quantize(phone, tmp_path / "npu", SCHEMES, ["npu", "qnn"], calibrate=DataSource.at(str(rows)))
    found = api.verify(small)
    assert found.status == "passed"
    files = {name.format(scheme) for name in FILES for scheme in SCHEMES}
    assert files <= {gate.file for gate in found.gates if gate.name == "reference"}
    assert files <= {gate.file for gate in found.gates if gate.name == "stored" and not gate.skipped}
