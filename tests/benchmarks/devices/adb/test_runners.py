"""What the runners print, in the formats of their sources and of published logs, and what they are given."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pocketbert.benchmarks.devices.adb.facts import Cluster, choose, mask, read_clusters, read_machine, read_thermal
from pocketbert.benchmarks.devices.adb.runners import read_litert, read_perf_test, tensor_proto
from support.adb_device import BATTERY, THERMAL

OLD = """STARTING!
Loaded model ./model.tflite
Initialized session in 17.187ms.
Running benchmark for at least 1 iterations and at least 0.5 seconds but terminate if exceeding 150 seconds.
count=1 curr=3512391

Running benchmark for at least 50 iterations and at least 1 seconds but terminate if exceeding 150 seconds.
count=50 first=2990275 curr=2913402 min=2727568 max=3189954 avg=2.95034e+06 std=109798

Inference timings in us: Init: 17187, First inference: 3512391, Warmup (avg): 3.51239e+06, Inference (avg): 2.95034e+06
Note: as the benchmark tool itself affects memory footprint, the following is only APPROXIMATE
Peak memory footprint (MB): init=4.92969 overall=138.809
"""
ANDROID = """I tflite  : count=4 first=211669 curr=1 min=1 max=211669 avg=211669 std=9
I tflite  : count=1 curr=140990 p5=140990 median=140990 p95=140990
I tflite  : Inference timings in us: Init: 92318, First inference: 187533, Warmup (avg): 211669, Inference (avg): 140990
I tflite  : Memory footprint delta from the start of the tool (MB): init=54.2852 overall=73.4102
"""
RESULTS = """model,0.00183404,36696064,96,0
model,0.00190312,36696064,96,1
model,1.5e-05,36696064,96,2

Min Latency: 0.00183404 s
P999 Latency: 0.00190312 s
"""


def test_both_versions_of_litert_s_output():
    old = read_litert(OLD)
    assert (old.count, old.last_us, old.mean_us, old.init_us, old.first_us) == (50, 2913402, 2950340, 17187, 3512391)
    assert old.memory_bytes == 138809000
    new = read_litert(ANDROID)
    assert (new.count, new.last_us, new.mean_us, new.memory_bytes) == (1, 140990, 140990, 73410200)
    assert read_litert(ANDROID.rpartition("I tflite")[0]).memory_bytes is None


@pytest.mark.parametrize("text", ["", "ERROR: Failed to load model\n", OLD.partition("Inference timings")[0]])
def test_litert_without_an_inference(text):
    with pytest.raises(ValueError, match="benchmark_model reports no inference"):
        read_litert(text)


def test_results_of_onnx_runtime():
    assert read_perf_test(RESULTS) == pytest.approx([1.83404, 1.90312, 0.015])
    assert read_perf_test("a,b.onnx,0.5,1,2,0\n") == [500]  # a name with a comma


@pytest.mark.parametrize(
    "text", ["", "there is no test data for model x\n", RESULTS.replace(",96,1", ",96,7"), "m,soon,1,2,0\n"]
)
def test_results_of_onnx_runtime_that_are_none(text):
    with pytest.raises(ValueError, match=r"onnxruntime_perf_test (reports no inference|wrote a line)"):
        read_perf_test(text)


@pytest.mark.parametrize("dtype", ["int64", "int32", "float32", "float16"])
def test_tensors_are_read_by_onnx(dtype):
    value = np.arange(-3, 297).reshape(1, 150, 2).astype(dtype)
    proto = onnx.TensorProto.FromString(tensor_proto("input_ids", value))
    assert proto.name == "input_ids"
    np.testing.assert_array_equal(numpy_helper.to_array(proto), value)


def test_kinds_of_cores():
    clusters = read_clusters("2900000 7\n1800000 0 1 2 3\n2400000 4 5 6\ncat: no such file\n")
    assert clusters == [Cluster((0, 1, 2, 3), 1800000), Cluster((4, 5, 6), 2400000), Cluster((7,), 2900000)]
    assert [choose(clusters, kind) for kind in ("little", "big", "prime")] == [(0, 1, 2, 3), (4, 5, 6), (7,)]
    assert choose(clusters[:2], "big") == (4, 5, 6)
    with pytest.raises(ValueError, match="has no prime cores; it has little, big"):
        choose(clusters[:2], "prime")
    with pytest.raises(ValueError, match="one kind of cores only"):
        choose(clusters[:1], "big")
    assert (mask((7,)), mask((0, 1, 2, 3))) == ("80", "f")


def test_the_machine_of_an_arm_phone():
    cpuinfo = "".join(
        f"processor\t: {n}\nFeatures\t: fp asimd asimddp i8mm\nCPU implementer\t: 0x41\nCPU part\t: {part}\n\n"
        for n, part in enumerate(["0xd46", "0xd46", "0xd47", "0x999"])
    )
    machine = read_machine(cpuinfo, ["Maker", "Phone 9", "Chip 3", "16"], "Linux 6.1.99 aarch64\n", ())
    assert machine.cpu == "Maker Phone 9 (Chip 3, 2 × Cortex-A510, 1 × Cortex-A710, 1 × 0x41:0x999)"
    assert (machine.arch, machine.isa, machine.cores) == ("aarch64", ["asimd", "asimddp", "i8mm"], 4)
    assert machine.system == "Android 16, Linux 6.1.99"
    assert read_machine("", ["", "", "", ""], "Linux 6 x86_64", ()).cpu == "x86_64"


def test_temperature_and_battery():
    assert read_thermal(THERMAL, BATTERY) == "thermal status 1, battery 31.2 °C, charge 81 %"
    assert read_thermal("", "") == ""
