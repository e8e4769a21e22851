import json
import sys

import numpy as np
import pytest

from pocketbert.benchmarks import operators
from pocketbert.benchmarks.cold_start import cold_start, main
from pocketbert.core.errors import InputError, MachineError
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.engines import EngineFile


def test_the_child_measures_and_profiles(folder):
    found = cold_start(EngineFile(folder / "teacher.onnx", Format.ONNX), [2, 5, 6, 3], threads=1, profile_runs=3)
    assert found.start.length == 4
    assert found.start.load_ms > 0
    assert found.start.first_ms > 0
    assert found.start.peak_rss_bytes > found.start.peak_memory_bytes >= 0
    assert found.ops is not None
    assert found.ops.runs == 3
    assert {o.op_type for o in found.ops.ops} >= {"MatMul", "Tanh", "Gather"}


def test_the_parents_memory_is_not_counted(folder):
    ballast = np.ones(50_000_000)  # 400 MB, resident; ru_maxrss of a child would start from here
    found = cold_start(EngineFile(folder / "student.onnx", Format.ONNX), [2, 5, 3], threads=1)
    assert found.start.peak_rss_bytes < ballast.nbytes
    assert found.ops is None


def test_a_refused_file_is_the_users_error(tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(InputError, match="refuses the file"):
        cold_start(EngineFile(broken, Format.ONNX), [2, 3], 1)


def test_a_crash_is_the_machines_error(folder, monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(MachineError, match="exit status 1"):
        cold_start(EngineFile(folder / "student.onnx", Format.ONNX), [2, 3], 1)


def test_the_command_line_prints_one_json_object(folder, capsys):
    assert main([str(folder / "student.onnx"), "--ids", "2,7,3"]) == 0
    assert json.loads(capsys.readouterr().out)["start"]["length"] == 3
    assert main([str(folder / "gone.onnx")]) == 2
    assert "file not found" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [(Format.COREML, None), (Format.ONNX, Runtime.OPENVINO)])
def test_what_has_no_profile_is_not_profiled_with_another_engine(folder, kind, monkeypatch):
    """The file is fine for ONNX Runtime: before, any format that was not TFLite was profiled with it."""
    monkeypatch.setattr(operators, "OnnxPredictor", None)
    feed = {n: np.ones((1, 4), np.int64) for n in ("input_ids", "attention_mask", "token_type_ids")}
    assert operators.profile_operators(EngineFile(folder / "teacher.onnx", *kind), feed, 1, 2) is None
