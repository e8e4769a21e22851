"""The script that compares two ONNX files of one model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts" / "runtimes"))
sys.path.append(str(ROOT / "benchmarks" / "peers"))

import compare_files
from compare_files import AGAIN, FIRST, SECOND, measure, ratio_of


def test_ratios_are_paired_by_round_and_their_interval_is_that_of_processes():
    # a machine that becomes three times as slow: the ratio stays
    first = [1.0] * 4 + [3.0] * 4
    generations = [{FIRST: first, SECOND: [t * r for t in first], AGAIN: first} for r in (1.9, 2.0, 2.1)]
    assert ratio_of(generations, SECOND) == "1.998 [1.765, 2.263]"
    assert ratio_of(generations, AGAIN) == "1.000 [1.000, 1.000]"


class _File:
    """Takes as many clock steps of CPU time as it is told."""

    def __init__(self, clock, ms):
        self.clock, self.ms, self.rows = clock, ms, []

    def prepare(self, row):
        self.rows.append(row)
        return row

    def run(self, feed):
        self.clock[0] += int(self.ms * 1e6)


def test_files_take_turns_on_the_same_row(monkeypatch):
    clock = [0]
    monkeypatch.setattr(compare_files.time, "process_time_ns", lambda: clock[0])
    files = {FIRST: _File(clock, 1.0), SECOND: _File(clock, 2.0), AGAIN: _File(clock, 1.0)}
    times = measure(files, length=16, rounds=3, burst=2, seed=1)
    assert times == {FIRST: [1.0] * 3, SECOND: [2.0] * 3, AGAIN: [1.0] * 3}
    assert {f.rows[0]["input_ids"].shape for f in files.values()} == {(1, 16)}
    assert files[FIRST].rows[0]["attention_mask"].all()


def test_a_file_that_an_engine_refuses_ends_the_comparison(monkeypatch, tmp_path):
    (tmp_path / "no.onnx").write_bytes(b"no model")
    words = ["compare_files.py", str(tmp_path / "no.onnx"), str(tmp_path / "no.onnx"), "--generations", "3"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="onnxruntime does not run these files"):
        compare_files.main()


def test_an_engine_that_is_not_known_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["compare_files.py", "a.onnx", "b.onnx", "--engines", "tensorrt"])
    with pytest.raises(SystemExit, match="tensorrt is not among onnxruntime, openvino"):
        compare_files.main()
