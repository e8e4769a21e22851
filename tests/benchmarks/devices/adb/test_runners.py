"""What the runners are given, and what Android tells of a phone."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pocketbert.benchmarks.devices.adb_phone import (
    _cores_of_kind,
    _read_clocks,
    _read_clusters,
    _read_thermal,
    pin_command,
    read_machine,
)
from pocketbert.benchmarks.devices.runners import (
    litert_command,
    litert_profile_command,
    perf_test_command,
    tensor_proto,
)
from support.adb_device import BATTERY, THERMAL


def test_profiles_are_separate_commands():
    plain, profiled = litert_command("m.tflite", 2, "seq_16"), litert_profile_command("m.tflite", 2, "seq_16", 10)
    assert not any("profil" in argument for argument in plain)
    assert "--num_runs=1" in plain
    assert {"--enable_op_profiling=true", "--num_runs=10", "--signature_to_run_for=seq_16"} <= set(profiled)
    assert "--run_delay=0.1" in litert_command("m.tflite", 2, "seq_16", delay_s=0.1)
    assert not any("delay" in argument for argument in [*plain, *profiled])
    assert "-p" not in perf_test_command("m.onnx", 2, "r.csv", runs=5)
    assert perf_test_command("m.onnx", 2, "r.csv", runs=5, trace="trace")[-4:] == ["-p", "trace", "m.onnx", "r.csv"]
    assert perf_test_command("m.onnx", 2, "r.csv", seconds=60)[3:7] == [
        "-m",
        "duration",
        "-t",
        "60",
    ]  # -r would undo it


@pytest.mark.parametrize("dtype", ["int64", "int32", "float32", "float16"])
def test_tensors_are_read_by_onnx(dtype):
    value = np.arange(-3, 297).reshape(1, 150, 2).astype(dtype)
    proto = onnx.TensorProto.FromString(tensor_proto("input_ids", value))
    assert proto.name == "input_ids"
    np.testing.assert_array_equal(numpy_helper.to_array(proto), value)


def test_kinds_of_cores():
    clusters = _read_clusters("2900000 7\n1800000 0 1 2 3\n2400000 4 5 6\ncat: no such file\n")
    assert clusters == [(1800000, (0, 1, 2, 3)), (2400000, (4, 5, 6)), (2900000, (7,))]
    assert [_cores_of_kind(clusters, kind) for kind in ("little", "big", "prime")] == [(0, 1, 2, 3), (4, 5, 6), (7,)]
    assert _cores_of_kind(clusters[:2], "big") == (4, 5, 6)
    with pytest.raises(ValueError, match="has no prime cores; it has little, big"):
        _cores_of_kind(clusters[:2], "prime")
    with pytest.raises(ValueError, match="one kind of cores only"):
        _cores_of_kind(clusters[:1], "big")
    assert (pin_command(["x"], (7,)), pin_command(["x"], (0, 1, 2, 3))) == (
        ["taskset", "80", "x"],
        ["taskset", "f", "x"],
    )


def test_clock_rates_of_chosen_cores():
    text = "1800000 schedutil 0 1 2 3\n1094400 schedutil 4 5 6\n500000  7\n"
    assert _read_clocks(text, ()) == (("schedutil", "schedutil"), (1800.0, 1094.4, 500.0))
    assert _read_clocks(text, (4, 5, 6)) == (("schedutil",), (1094.4,))
    unreadable = " schedutil 0 1 2 3\n  4 5 6\ncat: Permission denied\n"
    assert _read_clocks(unreadable, ()) == ((), ())


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
    assert _read_thermal(THERMAL, BATTERY) == "thermal status 1, battery 31.2 °C, charge 81 %"
    assert _read_thermal("", "") == ""
