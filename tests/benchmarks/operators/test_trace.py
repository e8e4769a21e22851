import json

import pytest

from pocketbert.benchmarks.operators import read_profile
from pocketbert.core.errors import InputError


def node(name, op, ts, dur, provider="CPUExecutionProvider", index=0):
    args = {"op_name": op, "provider": provider, "node_index": str(index)}
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": ts, "dur": dur, "args": args}


def inference(ts):
    """Two MatMul nodes of 100 and 200 µs on the CPU, one Tanh of 100 µs elsewhere."""
    return [
        {"cat": "Session", "name": "model_run", "ts": ts, "dur": 1000, "args": {}},
        node("m0", "MatMul", ts + 1, 100, index=1),
        node("m1", "MatMul", ts + 200, 200, index=2),
        node("t", "Tanh", ts + 500, 100, "NnapiExecutionProvider", index=3),
        {"cat": "Node", "name": "m0_fence_before", "ts": ts, "dur": 9, "args": {"op_name": "MatMul"}},
    ]


def write(path, events):
    path.write_text(json.dumps(events))
    return path


def test_times_add_up_by_type_and_nodes_by_provider(tmp_path):
    slow = [{**e, "dur": 10 * e["dur"]} for e in inference(0)]
    events = [
        {"cat": "Session", "name": "model_loading", "ts": 0, "dur": 5},
        *slow,
        *inference(20_000),
        *inference(40_000),
    ]
    found = read_profile(write(tmp_path / "p.json", events), skip=1)
    assert found.runs == 2
    assert [(o.op_type, o.nodes, o.share, o.ms) for o in found.ops] == [
        ("MatMul", 2, pytest.approx(0.75), pytest.approx(0.3)),
        ("Tanh", 1, pytest.approx(0.25), pytest.approx(0.1)),
    ]
    assert [(p.provider, p.nodes, p.op_types) for p in found.placement] == [
        ("CPUExecutionProvider", 2, {"MatMul": 2}),
        ("NnapiExecutionProvider", 1, {"Tanh": 1}),
    ]


def test_a_profile_without_inferences_is_refused(tmp_path):
    with pytest.raises(InputError, match="no profiled inference"):
        read_profile(write(tmp_path / "p.json", inference(0)), skip=1)
