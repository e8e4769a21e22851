"""What LiteRT's tool prints, in the formats of its sources and of published logs: times and operators."""

import pytest

from pocketbert.benchmarks.devices.runners import read_delay, read_litert, read_operators
from support.runner_texts import ANDROID, OLD, OPERATORS

TABS = (
    OLD
    + """Operator-wise Profiling Info for Regular Benchmark Runs:
============================== Run Order ==============================
\t             [node type]\t          [start]\t  [first]\t [avg ms]\t     [%]\t  [cdf%]\t  [mem KB]\t[times called]\t[Name]
\t         FULLY_CONNECTED\t            0.066\t   87.754\t   60.957\t  2.066%\t  2.066%\t     0.000\t        1\t[bert/dense]:0

Number of nodes executed: 2
============================== Summary by node type ==============================
\t             [Node type]\t  [count]\t  [avg ms]\t    [avg %]\t    [cdf %]\t  [mem KB]\t[times called]
\t         FULLY_CONNECTED\t       34\t   266.475\t    75.118%\t    75.118%\t     0.000\t       34
\t        DelegateOpInvoke\t        9\t    83.740\t    23.606%\t    98.724%\t     0.000\t        9
\t     TfLiteNnapiDelegate\t        1\t    90.000\t    24.882%\t   100.000%\t     0.000\t        1

Timings (microseconds): count=50 first=1 curr=1 min=1 max=1 avg=1 std=0
Memory (bytes): count=0
44 nodes observed


Delegate internal:
============================== Summary by node type ==============================
\t             [Node type]\t  [count]\t  [avg ms]\t    [avg %]\t    [cdf %]\t  [mem KB]\t[times called]
\t        DelegateOpInvoke\t        9\t    83.740\t    23.606%\t    98.724%\t     0.000\t        9

Timings (microseconds): count=50 curr=0
9 nodes observed
"""
)


def test_both_versions_of_litert_s_output():
    old = read_litert(OLD)
    assert (old.count, old.last_us, old.mean_us, old.init_us, old.first_us) == (50, 2913402, 2950340, 17187, 3512391)
    assert old.memory_bytes == round(138.809 * 2**20)
    new = read_litert(ANDROID)
    assert (new.count, new.last_us, new.mean_us, new.memory_bytes) == (1, 140990, 140990, round(73.4102 * 2**20))
    assert read_litert(ANDROID.rpartition("I tflite")[0]).memory_bytes is None


@pytest.mark.parametrize("text", ["", "ERROR: Failed to load model\n", OLD.partition("Inference timings")[0]])
def test_litert_without_an_inference(text):
    with pytest.raises(ValueError, match="benchmark_model reports no inference"):
        read_litert(text)


def test_operators_of_xnnpack_and_built_in_ones():
    found = read_operators(OPERATORS)
    assert found.runs == 64
    assert [(o.op_type, o.nodes, o.ms) for o in found.ops] == [
        ("Fully Connected (NC, QD8, F32, QC8W) GEMM", 13, 5.236),
        ("EMBEDDING_LOOKUP", 1, 0.203),
        ("Add (ND, F32)", 3, 0.009),
    ]
    assert sum(o.share for o in found.ops) == pytest.approx(1)
    assert [(p.provider, p.nodes, list(p.op_types)) for p in found.placement] == [
        ("XNNPACK", 16, ["Fully Connected (NC, QD8, F32, QC8W) GEMM", "Add (ND, F32)"]),
        ("built-in kernels", 1, ["EMBEDDING_LOOKUP"]),
    ]
    assert "together 5.45 of 15.5 ms per inference, with the profiler on" in found.note


def test_the_inside_of_a_delegate_is_not_counted_twice():
    found = read_operators(TABS)
    assert [(o.op_type, o.nodes, o.ms) for o in found.ops] == [
        ("FULLY_CONNECTED", 34, 266.475),
        ("TfLiteNnapiDelegate", 1, 90.0),
    ]


def test_several_graphs_are_added_up():
    table = OPERATORS.partition("Regular Benchmark Runs:\n")[2]
    text = OPERATORS.replace(table, f"Primary graph profile:\n{table}Subgraph (index: 1) profile:\n{table}")
    assert text.count("3 nodes observed") == 2
    assert read_operators(text).ops[0].ms == pytest.approx(2 * 5.236)
    assert read_operators(text).ops[0].nodes == 26


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OLD, "prints no table of operators: Peak memory"),
        (OPERATORS[: OPERATORS.rindex("EMBEDDING_LOOKUP")], "is cut short"),
        (OPERATORS[: OPERATORS.rindex("Top by")], "is cut short"),
        (OPERATORS[: OPERATORS.rindex("3 nodes observed")], "is cut short"),
        (
            OPERATORS.replace("           5.236 ", "           often ")
            .replace("0.203   ", "–  ")
            .replace("0.009   ", "– "),
            "is empty",
        ),
    ],
)
def test_operators_that_are_not_there(text, said):
    with pytest.raises(ValueError, match=said):
        read_operators(text)


def test_the_idle_time_that_it_keeps():
    assert read_delay("INFO: Inter-run delay (seconds): [0.1]\n") == 0.1
    assert read_delay("Inter-run delay (seconds): [-1]\n") is None
    assert read_delay(OLD) is None
