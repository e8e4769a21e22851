"""The measuring programs of LiteRT and ONNX Runtime: command lines, and what they print in published logs."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pocketbert.benchmarks.devices.runners import (
    litert_command,
    litert_profile_command,
    perf_test_command,
    read_delay,
    read_litert,
    read_operators,
    read_perf_test,
    read_printed,
    tensor_proto,
)
from support.runner_texts import ANDROID, OLD, OPERATORS, PRINTED, RESULTS


def test_profiles_and_idle_times_are_separate_commands():
    plain, profiled = litert_command("m.tflite", 2, "seq_16"), litert_profile_command("m.tflite", 2, "seq_16", 10)
    assert "--num_runs=1" in plain
    assert not any("profil" in argument for argument in plain)
    assert {"--enable_op_profiling=true", "--num_runs=10", "--signature_to_run_for=seq_16"} <= set(profiled)
    assert "--run_delay=0.1" in litert_command("m.tflite", 2, "seq_16", delay_s=0.1)
    assert not any("delay" in argument for argument in [*plain, *profiled])
    assert "-p" not in perf_test_command("m.onnx", 2, "r.csv", runs=5)
    assert perf_test_command("m.onnx", 2, "r.csv", runs=5, trace="trace")[-4:] == ["-p", "trace", "m.onnx", "r.csv"]
    lasting = perf_test_command("m.onnx", 2, "r.csv", seconds=60)
    assert lasting[3:7] == ["-m", "duration", "-t", "60"]  # -r would undo it


@pytest.mark.parametrize("dtype", ["int64", "int32", "float32", "float16"])
def test_tensors_are_read_by_onnx(dtype):
    value = np.arange(-3, 297).reshape(1, 150, 2).astype(dtype)
    proto = onnx.TensorProto.FromString(tensor_proto("input_ids", value))
    assert proto.name == "input_ids"
    np.testing.assert_array_equal(numpy_helper.to_array(proto), value)


# --- benchmark_model -------------------------------------------------------------------------------------------------------------

LINE, RULE = "\t {:>24}\t {:>8}\t {:>9}\t {:>9}\t {:>9}\t 0.000\t {:>8}\n", "=" * 30
TITLES = LINE.format("[Node type]", "[count]", "[avg ms]", "[avg %]", "[cdf %]", "[times called]")
DELEGATED = LINE.format("DelegateOpInvoke", 9, 83.740, "23.606%", "98.724%", 9)
OLD_PROFILE = f"""{OLD}Operator-wise Profiling Info for Regular Benchmark Runs:
{RULE} Run Order {RULE}
\t [node type]\t [start]\t [first]\t [avg ms]\t [%]\t [cdf%]\t [mem KB]\t[times called]\t[Name]
\t FULLY_CONNECTED\t 0.066\t 87.754\t 60.957\t 2.066%\t 2.066%\t 0.000\t 1\t[bert/dense]:0

Number of nodes executed: 2
{RULE} Summary by node type {RULE}
{TITLES}{LINE.format("FULLY_CONNECTED", 34, 266.475, "75.118%", "75.118%", 34)}{DELEGATED}\
{LINE.format("TfLiteNnapiDelegate", 1, 90.0, "24.882%", "100.000%", 1)}
Timings (microseconds): count=50 first=1 curr=1 min=1 max=1 avg=1 std=0
44 nodes observed


Delegate internal:
{RULE} Summary by node type {RULE}
{TITLES}{DELEGATED}
Timings (microseconds): count=50 curr=0
9 nodes observed
"""


def test_both_versions_of_litert_s_output():
    old, new = read_litert(OLD), read_litert(ANDROID)
    assert (old.count, old.last_us, old.mean_us, old.init_us, old.first_us) == (50, 2913402, 2950340, 17187, 3512391)
    assert (new.count, new.last_us, new.mean_us) == (1, 140990, 140990)
    assert (old.memory_bytes, new.memory_bytes) == (round(138.809 * 2**20), round(73.4102 * 2**20))
    assert read_litert(ANDROID.rpartition("I tflite")[0]).memory_bytes is None


@pytest.mark.parametrize("text", ["", "ERROR: Failed to load model\n", OLD.partition("Inference timings")[0]])
def test_litert_without_an_inference(text):
    with pytest.raises(ValueError, match="benchmark_model reports no inference"):
        read_litert(text)


def test_operators_of_xnnpack_and_built_in_ones_and_several_graphs():
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
    table = OPERATORS.partition("Regular Benchmark Runs:\n")[2]
    two = OPERATORS.replace(table, f"Primary graph profile:\n{table}Subgraph (index: 1) profile:\n{table}")
    twice = read_operators(two).ops[0]
    assert (twice.ms, twice.nodes) == (pytest.approx(2 * 5.236), 26)


def test_the_inside_of_a_delegate_is_not_counted_twice():
    assert [(o.op_type, o.nodes, o.ms) for o in read_operators(OLD_PROFILE).ops] == [
        ("FULLY_CONNECTED", 34, 266.475),
        ("TfLiteNnapiDelegate", 1, 90.0),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OLD, "prints no table of operators: Peak memory"),
        (OPERATORS[: OPERATORS.rindex("EMBEDDING_LOOKUP")], "is cut short"),
        (OPERATORS[: OPERATORS.rindex("3 nodes observed")], "is cut short"),
        (OPERATORS.replace(" 5.236 ", " often ").replace("0.203   ", "–  ").replace("0.009   ", "– "), "is empty"),
    ],
)
def test_operators_that_are_not_there(text, said):
    with pytest.raises(ValueError, match=said):
        read_operators(text)


@pytest.mark.parametrize(("printed", "seconds"), [("INFO: {}[0.1]\n", 0.1), ("{}[-1]\n", None), (OLD, None)])
def test_the_idle_time_that_it_keeps(printed, seconds):
    assert read_delay(printed.format("Inter-run delay (seconds): ")) == seconds


# --- onnxruntime_perf_test -------------------------------------------------------------------------------------------------------


def test_what_onnx_runtime_prints_and_what_it_does_not_print_is_absent():
    told = read_printed(PRINTED)
    assert (told.count, told.session_s, told.first_ms, told.peak_rss_bytes) == (5, 0.217932, 196, 271122432)
    assert told.mean_ms == 98.961997
    latencies = [told.min_ms, told.p50_ms, told.p90_ms, told.p99_ms, told.max_ms]
    assert latencies == pytest.approx([95.8204, 99.5086, 101.519, 101.519, 101.519])
    told = read_printed(PRINTED.partition("Avg CPU usage:11")[0])
    assert (told.count, told.p50_ms, told.p90_ms, told.min_ms) == (5, None, None, None)
    old = "Total time cost:58.8053\nTotal iterations:1000\nAverage time cost:58.8053 ms\nTotal run time:58.8102 s\n"
    told = read_printed(old + "Min Latency is 0.0559777 sec\nP50 Latency is 0.0587108sec\nP999 Latency is 0.06sec\n")
    assert (told.count, told.mean_ms, told.session_s, told.first_ms) == (1000, 58.8053, None, None)
    assert told.p50_ms == pytest.approx(58.7108)


@pytest.mark.parametrize("end", ["Average", "Peak working set size: ", "P999"])
def test_a_text_that_is_cut_short(end):
    with pytest.raises(ValueError, match="cut short"):
        read_printed(PRINTED.partition(end)[0])


def test_results_of_onnx_runtime():
    assert read_perf_test(RESULTS) == pytest.approx([1.83404, 1.90312, 0.015])
    assert read_perf_test("a,b.onnx,0.5,1,2,0\n") == [500]  # a name with a comma
    newer = "model,0.0015,0.00183404,36696064,96,0\nmodel,0.0015,0.00190312,36696064,96,1\n"
    assert read_perf_test(newer) == pytest.approx([1.83404, 1.90312])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "reports no inference"),
        (RESULTS.replace(",96,1", ",96,7"), "reports no inference"),
        ("m,soon,1,2,0\n", "wrote a line"),
        (RESULTS + RESULTS, "it holds 2 runs of onnxruntime_perf_test"),
    ],
)
def test_results_of_onnx_runtime_that_are_none(text, said):
    with pytest.raises(ValueError, match=said):
        read_perf_test(text)
