import json
import sys

import numpy as np
import pytest

from pocketbert.benchmarks import cold_start as cold_start_module
from pocketbert.benchmarks.cold_start import cold_start, main
from pocketbert.core.errors import InputError, MachineError, Problem
from pocketbert.core.types import Format
from pocketbert.runtime.engines import EngineFile


def test_the_process_measures_and_profiles_and_the_parents_memory_is_not_counted(folder):
    ballast = np.ones(50_000_000)  # 400 MB, resident; ru_maxrss of a child would start from here
    found = cold_start(EngineFile(folder / "teacher.onnx", Format.ONNX), [2, 5, 6, 3], threads=1, profile_runs=3)
    assert found.start.length == 4
    assert found.start.load_ms > 0
    assert found.start.first_ms > 0
    assert ballast.nbytes > found.start.peak_rss_bytes > found.start.peak_memory_bytes >= 0
    assert found.ops.runs == 3
    assert {o.op_type for o in found.ops.ops} >= {"MatMul", "Tanh", "Gather"}


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("pocketbert.runtime.tflite", ["--format", "tflite"]),
        ("pocketbert.runtime.openvino", ["--format", "onnx", "--runtime", "openvino"]),
    ],
)
def test_the_import_of_an_engine_is_no_part_of_the_load(module, arguments, monkeypatch):
    steps = []
    monkeypatch.setattr(f"{module}.import_engine", lambda: steps.append("imported"))
    monkeypatch.setattr(cold_start_module, "_reset_peak", lambda: steps.append("clock starts"))

    def refuse(*_):
        steps.append("opened")
        raise InputError(Problem("file", "is none"))

    monkeypatch.setattr(EngineFile, "open", refuse)
    assert main(["file", *arguments]) == 2
    assert steps == ["imported", "clock starts", "opened"]


def test_a_refused_file_is_the_users_error_and_a_crash_the_machines(tmp_path, folder, monkeypatch):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(InputError, match="refuses the file"):
        cold_start(EngineFile(broken, Format.ONNX), [2, 3], 1)
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(MachineError, match="exit status 1"):
        cold_start(EngineFile(folder / "student.onnx", Format.ONNX), [2, 3], 1)


def test_the_command_line_prints_one_json_object(folder, capsys):
    assert main([str(folder / "student.onnx"), "--ids", "2,7,3"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["start"]["length"], told["ops"]) == (3, None)
    assert main([str(folder / "gone.onnx")]) == 2
    assert "file not found" in capsys.readouterr().err
