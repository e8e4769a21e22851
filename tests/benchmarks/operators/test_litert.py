"""LiteRT's own profiler: the times it tells of a real file, and what happens when it tells nonsense or nothing."""

import json
import subprocess
import sys

import numpy as np
import pytest

from pocketbert.benchmarks import operators as litert
from pocketbert.benchmarks.cold_start import cold_start
from pocketbert.benchmarks.devices.on_target import litert_profiler as program
from pocketbert.benchmarks.devices.on_target.litert_profiler import _add_up, _Event, _RefusalError
from pocketbert.benchmarks.operators import LitertRequest, LitertTimes, _litert_times, profile_operators
from pocketbert.core.types import Format
from pocketbert.runtime.engines import EngineFile
from pocketbert.runtime.tflite import TflitePredictor, XnnpackCoverage

IDS = [2, 7, 8, 9, 3, *[5] * 11]
FEED = {
    "input_ids": np.array([IDS]),
    "attention_mask": np.array([[1] * 12 + [0] * 4]),
    "token_type_ids": np.zeros((1, 16), np.int64),
}
FOUND = XnnpackCoverage(partitions=1, inside={"ADD": 2}, outside={"CAST": 1})


@pytest.fixture(scope="module")
def path(exported_tflite):
    return exported_tflite("bert")


def event(tag, kind, us):
    return _Event(tag=tag.encode(), kind=kind, elapsed_us=us)


def run(*operators, whole=100, extra=()):
    """The events of one inference: a telemetry event whose time is none, the whole, and operators."""
    return [event("Invoke", 32, 1 << 32), event("Invoke", 1, whole), *operators, *extra]


def test_the_profiler_runs_the_file_that_the_interpreter_runs(path):
    """Same answers, same built-in kernels: what is timed is what is measured elsewhere."""
    predictor = TflitePredictor(path, 1)
    request = LitertRequest.of(str(path), 1, 3, FEED)
    command = [sys.executable, "-P", "-m", program.__name__]
    done = subprocess.run(command, input=request.model_dump_json(), capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    for name, value in predictor.run(FEED).items():
        np.testing.assert_allclose(told["answers"][name], value.ravel(), rtol=1e-6)
    outside = {o["name"]: o["nodes"] for o in told["operators"] if o["owner"] == "built-in"}
    assert outside == predictor.coverage.outside
    products = [o for o in told["operators"] if o["owner"] == "XNNPACK" and o["name"].startswith("Fully Connected")]
    assert sum(o["nodes"] for o in products) == predictor.coverage.inside["FULLY_CONNECTED"]
    assert told["runs"] == 3
    assert 0 < sum(o["us"] for o in told["operators"]) <= 1.02 * told["invoke_us"] + 50


def test_a_tflite_file_has_times_and_a_placement(path):
    found = cold_start(EngineFile(path, Format.TFLITE), IDS, threads=1, profile_runs=3).ops
    assert found.runs == 3
    assert [o.ms for o in found.ops] == sorted((o.ms for o in found.ops), reverse=True)
    assert sum(o.share for o in found.ops) == pytest.approx(1)
    assert {"XNNPACK, 1 partition", "built-in kernels"} == {p.provider for p in found.placement}
    assert found.note.startswith("LiteRT's own profiler")


def test_times_add_up_by_operator_and_owner():
    first = run(event("ADD", 2, 6), event("Add (ND)", 8, 10), event("Add (ND)", 8, 20))
    second = run(event("ADD", 2, 2), event("Add (ND)", 4, 10), event("Add (ND)", 4, 30), whole=120)
    told = _add_up([first, second])
    assert told["invoke_us"] == 110
    assert told["operators"] == [
        {"name": "ADD", "owner": "built-in", "nodes": 1, "us": 4},
        {"name": "Add (ND)", "owner": "XNNPACK", "nodes": 2, "us": 35},
    ]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (run(event("ADD", 2, 400)), "do not fit"),
        (run(), "do not fit"),
        (run(event("ADD", 2, 1), extra=[event("Invoke", 1, 100)]), "do not fit"),
        (run(event("ADD", 3, 1)), "unknown kind"),
    ],
    ids=["longer than the whole", "no operator", "two inferences", "kind"],
)
def test_events_of_another_layout_are_refused(events, words):
    with pytest.raises(_RefusalError, match=words):
        _add_up([events])


@pytest.mark.parametrize(
    ("request_of", "words"),
    [
        (lambda path: LitertRequest.of(str(path.parent / "gone.tflite"), 1, 1, FEED), "status"),
        (
            lambda path: LitertRequest.of(str(path), 1, 1, {n: v[:, :5] for n, v in FEED.items()}),
            "no signature of 5 tokens",
        ),
    ],
    ids=["no file", "no such length"],
)
def test_what_litert_refuses_is_told(path, request_of, words):
    assert words in _litert_times(request_of(path)).error


def test_a_program_that_crashes_costs_the_times_only(path, monkeypatch):
    monkeypatch.setattr(litert.sys, "executable", "false")
    found = profile_operators(EngineFile(path, Format.TFLITE), FEED, 1, 2)
    assert found.ops == []
    assert found.placement
    assert found.note == "No time per operator: the process of the profiler ended with exit status 1."


def test_an_older_engine_has_a_placement_and_a_reason(path, monkeypatch):
    monkeypatch.setattr(TflitePredictor, "__init__", lambda self, *_: setattr(self, "engine", "tflite_runtime"))
    monkeypatch.setattr(TflitePredictor, "coverage", FOUND)
    found = profile_operators(EngineFile(path, Format.TFLITE), FEED, 1, 2)
    assert (found.runs, found.ops) == (0, [])
    assert [p.provider for p in found.placement] == ["XNNPACK, 1 partition", "built-in kernels"]
    assert "tflite_runtime has no profiler" in found.note


def test_neither_times_nor_a_placement_is_no_profile():
    assert LitertTimes(error="it is not there").profile(None) is None


def test_a_package_without_the_library_is_told(monkeypatch):
    monkeypatch.setattr(program.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(_RefusalError, match="not installed"):
        program._find_library()
