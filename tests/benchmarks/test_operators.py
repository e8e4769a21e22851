"""Time per operator: ONNX Runtime's trace, and LiteRT's own profiler on a real file, with nonsense and with nothing."""

import json
import subprocess
import sys

import numpy as np
import pytest

from pocketbert.benchmarks import operators
from pocketbert.benchmarks.cold_start import cold_start
from pocketbert.benchmarks.devices.on_target import litert_profiler
from pocketbert.benchmarks.devices.on_target.litert_profiler import _add_up, _Event, _RefusalError
from pocketbert.benchmarks.operators import LitertRequest, LitertTimes, profile_operators, read_profile
from pocketbert.core.errors import InputError
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.engines import EngineFile
from pocketbert.runtime.tflite import TflitePredictor, XnnpackCoverage

IDS = [2, 7, 8, 9, 3, *[5] * 11]
FEED = {
    "input_ids": np.array([IDS]),
    "attention_mask": np.array([[1] * 12 + [0] * 4]),
    "token_type_ids": np.zeros((1, 16), np.int64),
}


# --- ONNX Runtime's trace --------------------------------------------------------------------------------------------------------


def trace_node(name, op, ts, dur, provider="CPUExecutionProvider"):
    args = {"op_name": op, "provider": provider, "node_index": name}
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": ts, "dur": dur, "args": args}


def trace_inference(ts, slow=1):
    """Two MatMul nodes of 100 and 200 µs on the CPU, one Tanh of 100 µs elsewhere."""
    return [
        {"cat": "Session", "name": "model_run", "ts": ts, "dur": 1000, "args": {}},
        trace_node("m0", "MatMul", ts + 1, 100 * slow),
        trace_node("m1", "MatMul", ts + 200, 200 * slow),
        trace_node("t", "Tanh", ts + 500, 100 * slow, "NnapiExecutionProvider"),
        {"cat": "Node", "name": "m0_fence_before", "ts": ts, "dur": 9, "args": {"op_name": "MatMul"}},
    ]


def test_times_of_a_trace_add_up_by_type_and_nodes_by_provider(tmp_path):
    path = tmp_path / "p.json"
    loading = {"cat": "Session", "name": "model_loading", "ts": 0, "dur": 5}
    events = [loading, *trace_inference(0, slow=10), *trace_inference(20_000), *trace_inference(40_000)]
    path.write_text(json.dumps(events))
    found = read_profile(path, skip=1)
    assert found.runs == 2
    assert [(o.op_type, o.nodes, o.share, o.ms) for o in found.ops] == [
        ("MatMul", 2, pytest.approx(0.75), pytest.approx(0.3)),
        ("Tanh", 1, pytest.approx(0.25), pytest.approx(0.1)),
    ]
    assert [(p.provider, p.nodes, p.op_types) for p in found.placement] == [
        ("CPUExecutionProvider", 2, {"MatMul": 2}),
        ("NnapiExecutionProvider", 1, {"Tanh": 1}),
    ]
    with pytest.raises(InputError, match="no profiled inference"):
        read_profile(path, skip=3)


@pytest.mark.parametrize("kind", [(Format.COREML, None), (Format.ONNX, Runtime.OPENVINO)])
def test_what_has_no_profile_is_not_profiled_with_another_engine(folder, kind, monkeypatch):
    """The file is fine for ONNX Runtime: before, any format that was not TFLite was profiled with it."""
    monkeypatch.setattr(operators, "OnnxPredictor", None)
    assert profile_operators(EngineFile(folder / "teacher.onnx", *kind), FEED, 1, 2) is None


# --- LiteRT's profiler -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def path(exported_tflite):
    return exported_tflite("bert")


def test_the_profiler_runs_the_file_that_the_interpreter_runs(path):
    """Same answers, same built-in kernels: what is timed is what is measured elsewhere."""
    predictor = TflitePredictor(path, 1)

    def profile(request):
        command = [sys.executable, "-P", "-m", litert_profiler.__name__]
        text = request.model_dump_json()
        return json.loads(subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout)

    told = profile(LitertRequest.of(str(path), 1, 3, FEED))
    for name, value in predictor.run(FEED).items():
        np.testing.assert_allclose(told["answers"][name], value.ravel(), rtol=1e-6)
    outside = {o["name"]: o["nodes"] for o in told["operators"] if o["owner"] == "built-in"}
    assert outside == predictor.coverage.outside
    products = [o for o in told["operators"] if o["owner"] == "XNNPACK" and o["name"].startswith("Fully Connected")]
    assert sum(o["nodes"] for o in products) == predictor.coverage.inside["FULLY_CONNECTED"]
    assert told["runs"] == 3
    assert 0 < sum(o["us"] for o in told["operators"]) <= 1.02 * told["invoke_us"] + 50
    assert "status" in profile(LitertRequest.of(str(path.parent / "gone.tflite"), 1, 1, FEED))["error"]


def test_a_tflite_file_has_times_and_a_placement(path):
    found = cold_start(EngineFile(path, Format.TFLITE), IDS, threads=1, profile_runs=3).ops
    assert found.runs == 3
    assert [o.ms for o in found.ops] == sorted((o.ms for o in found.ops), reverse=True)
    assert sum(o.share for o in found.ops) == pytest.approx(1)
    assert {"XNNPACK, 1 partition", "built-in kernels"} == {p.provider for p in found.placement}
    assert found.note.startswith("LiteRT's own profiler")


def make_event(tag, kind, us):
    return _Event(tag=tag.encode(), kind=kind, elapsed_us=us)


def make_run(*operators, whole=100):
    """The events of one inference: a telemetry event whose time is none, the whole, and operators."""
    return [make_event("Invoke", 32, 1 << 32), make_event("Invoke", 1, whole), *operators]


def test_times_of_events_add_up_by_operator_and_owner():
    first = make_run(make_event("ADD", 2, 6), make_event("Add (ND)", 8, 10), make_event("Add (ND)", 8, 20))
    second = make_run(make_event("ADD", 2, 2), make_event("Add (ND)", 4, 10), make_event("Add (ND)", 4, 30), whole=120)
    told = _add_up([first, second])
    assert told["invoke_us"] == 110
    assert told["operators"] == [
        {"name": "ADD", "owner": "built-in", "nodes": 1, "us": 4},
        {"name": "Add (ND)", "owner": "XNNPACK", "nodes": 2, "us": 35},
    ]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (make_run(make_event("ADD", 2, 400)), "do not fit"),
        (make_run(), "do not fit"),
        (make_run(make_event("ADD", 2, 1), make_event("Invoke", 1, 100)), "do not fit"),
        (make_run(make_event("ADD", 3, 1)), "unknown kind"),
    ],
    ids=["longer than the whole", "no operator", "two inferences", "kind"],
)
def test_events_of_another_layout_are_refused(events, words):
    with pytest.raises(_RefusalError, match=words):
        _add_up([events])


def test_a_length_that_the_file_does_not_have_is_told(path):
    short = {name: rows[:, :5] for name, rows in FEED.items()}
    found = profile_operators(EngineFile(path, Format.TFLITE), short, 1, 1)
    assert "no signature of 5 tokens" in found.note


def test_a_program_that_crashes_costs_the_times_only(path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")
    found = profile_operators(EngineFile(path, Format.TFLITE), FEED, 1, 2)
    assert found.ops == []
    assert found.placement
    assert found.note == "No time per operator: the process of the profiler ended with exit status 1."


def test_an_older_engine_has_a_placement_and_a_reason(path, monkeypatch):
    coverage = XnnpackCoverage(partitions=1, inside={"ADD": 2}, outside={"CAST": 1})
    monkeypatch.setattr(TflitePredictor, "__init__", lambda self, *_: setattr(self, "engine", "tflite_runtime"))
    monkeypatch.setattr(TflitePredictor, "coverage", coverage)
    found = profile_operators(EngineFile(path, Format.TFLITE), FEED, 1, 2)
    assert (found.runs, found.ops) == (0, [])
    assert [p.provider for p in found.placement] == ["XNNPACK, 1 partition", "built-in kernels"]
    assert "tflite_runtime has no profiler" in found.note
    assert LitertTimes(error="it is not there").profile(None) is None
