"""The device `adb` with the real client and the real adbd, `make tools`: measured, refused, lost, and nothing left."""

import re
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pocketbert.benchmarks.devices import Sample, connect
from pocketbert.benchmarks.devices.adb import _adb_missing, _attached
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Variant
from pocketbert.benchmarks.records import ColdStart
from pocketbert.benchmarks.timing import _SLICES
from pocketbert.core.devices import parse_measuring_device
from pocketbert.core.errors import ExitCode, InputError, MachineError, MissingBackendError
from pocketbert.core.types import Format
from pocketbert.runtime.engines import EngineFile
from support.adb_device import SERIAL, write_runners

DEVICE = f"adb:{SERIAL}"
TEXTS = ["a good day", "what a bad day it was", "the day was good"]


def test_both_runners_are_pushed_run_and_removed(phone, reach, tiny_model, exported, exported_tflite):
    runners = reach(phone)
    words = tiny_model("bert")
    files = [
        Variant.of("onnx", exported("bert"), words, 32),
        Variant.of("tflite", exported_tflite("bert"), words, 32, format=Format.TFLITE),
    ]
    options = BenchmarkOptions(
        devices=[f"{DEVICE}@big"],
        threads=[2],
        lengths=["text", 16],
        runs=5,
        repeats=2,
        gaps_ms=[100],
        budget_s=900,
        label="",
    )
    result = benchmark(files, TEXTS, options)
    assert len(result.measurements) == 6
    onnx, tflite = result.find("onnx", 2, 16), result.find("tflite", 2, 16)
    assert onnx.wall_ms == [[1.15, 1.25, 1.35, 1.45, 1.55]] * 2  # of 6 in one process, the first is left out
    assert tflite.wall_ms == [[2.502] * 5] * 2  # the last digit is the number of threads
    assert result.find("onnx", 2, "text").wall_ms == [[1.15, *[1.05] * 4]] * 2  # a process for each input
    for m in result.measurements:
        assert (m.device, m.provenance, m.cpu, m.cpu_ms) == (f"{DEVICE}@big", "measured", None, [])
        assert m.machine.cpu.startswith("Maker Phone 9 (Chip 3")
        assert m.machine.cores == 3
        assert m.engine_version.startswith("sha256 ")
        assert m.load.thermal.startswith("thermal status 1, battery 31.2 °C, charge 81 % →")
        clock = re.fullmatch(r"governor sched, fastest core (\d+) → (\d+) MHz", m.load.clock)  # of the big cores
        assert clock is not None
        assert 2400 < int(clock[1]) < int(clock[2]) < 2900  # the runner raises it, and both ends are read
        assert m.load.energy is not None
        assert "not discharging" in m.load.energy.words  # it is powered by the cable
    assert onnx.cold == ColdStart(
        load_ms=14.9,
        first_ms=3,
        length=16,
        peak_memory_bytes=None,
        peak_rss_bytes=45678592,
        told_by="onnxruntime_perf_test",
    )
    assert tflite.cold == ColdStart(
        load_ms=17.187,
        first_ms=9,
        length=16,
        peak_memory_bytes=round(46.0859 * 2**20),
        peak_rss_bytes=None,
        told_by="benchmark_model",
    )
    idle = [m for m in result.measurements if m.gap_ms]
    assert [(m.variant, m.gap_ms, m.length) for m in idle] == [("tflite", 100, "text"), ("tflite", 100, 16)]
    assert [m.wall_ms for m in idle] == [[[3.102] * 5] * 2] * 2
    assert "Not timed after idle times: onnx, since onnxruntime_perf_test cannot wait" in " ".join(
        result.protocol.notes
    )
    assert {c.variant for c in result.comparisons} == {"tflite"}
    assert {c.cpu for c in result.comparisons} == {None}
    assert set(result.versions) == {"benchmark_model", "onnxruntime_perf_test"}
    assert BenchmarkResult.model_validate_json(result.model_dump_json()) == result
    assert (runners / "benchmark_model").is_file()
    of_onnx, of_tflite = result.profiles  # of runs that timed nothing else
    assert of_onnx.note == ""
    assert (of_onnx.variant, of_onnx.threads, of_onnx.runs, of_onnx.length) == ("onnx", 2, 10, 16)
    assert [(o.op_type, o.nodes, o.ms, o.share) for o in of_onnx.ops] == [("MatMul", 1, 0.04, 1.0)]
    assert [(p.provider, p.nodes) for p in of_onnx.placement] == [("CPUExecutionProvider", 1)]
    assert (of_tflite.variant, of_tflite.runs, of_tflite.length, of_tflite.provenance) == ("tflite", 10, 16, "measured")
    assert [(o.op_type, o.nodes, o.ms) for o in of_tflite.ops] == [
        ("Fully Connected (NC, F32) GEMM", 2, 0.9),
        ("EMBEDDING_LOOKUP", 1, 0.1),
    ]
    assert [(p.provider, p.nodes) for p in of_tflite.placement] == [("XNNPACK", 2), ("built-in kernels", 1)]
    assert phone.left() == []


def test_an_idle_time_that_the_runner_does_not_keep(phone, reach, exported_tflite):
    reach(phone)
    connection = connect(DEVICE)
    opened = connection.open(EngineFile(exported_tflite("bert"), Format.TFLITE), 1)
    burst = opened.prepare_idle([{"input_ids": np.ones((1, 16), np.int64)}], 33.3)
    try:
        assert burst([0]) == [Sample(3.101)]
        connection.adb.shell("touch", "no_delay")
        with pytest.raises(
            InputError, match="does not tell that it waits between inferences; --run_delay was asked for"
        ):
            burst([0])
    finally:
        connection.close()


def test_minutes_without_a_pause_are_one_process(phone, reach, tiny_model, exported, exported_tflite):
    reach(phone)
    words = tiny_model("bert")
    onnx = Variant.of("onnx", exported("bert"), words, 32)
    tflite = Variant.of("tflite", exported_tflite("bert"), words, 32, format=Format.TFLITE)
    options = BenchmarkOptions(
        devices=[DEVICE], lengths=["text"], runs=5, repeats=1, profile=False, sustained_min=0.05, label=""
    )
    result = benchmark([onnx, tflite], TEXTS, options)
    (told,) = result.sustained
    assert (told.variant, told.length, len(told.slices)) == ("onnx", "text", _SLICES)
    assert sum(map(len, told.wall_ms)) == 240  # what the one run of 3 s wrote
    assert told.slices[0].wall.p50 == pytest.approx(3000 / 360, abs=1e-3)
    assert told.drift.median == pytest.approx(2, rel=1e-3)
    assert all(s.thermal and s.clock for s in told.slices)
    assert "Not run for minutes: tflite, since benchmark_model tells no single times" in " ".join(result.protocol.notes)
    with pytest.raises(InputError, match=r"adb:127.* tflite: not run for minutes: .*\(--app\).*Leave --sustained out"):
        benchmark([tflite], TEXTS, options)
    assert phone.left() == []


def test_the_end_of_the_connection_ends_what_runs(phone, reach, exported):
    reach(phone)
    connection = connect(DEVICE)
    opened = connection.open(EngineFile(exported("bert"), Format.ONNX), 1)
    with ThreadPoolExecutor(1) as pool:
        feed = {name: np.ones((1, 16), np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
        running = pool.submit(opened.run_for, [feed], 600)
        while not list(phone.temporary.glob("*/running.pid")):
            assert not running.done()
            time.sleep(0.02)
        connection.close()
        with pytest.raises(MachineError):
            running.result(timeout=60)
    assert phone.left() == []


def test_a_runner_without_a_profiler_keeps_the_latencies(phone, reach, tmp_path, exported, exported_tflite):
    reach(phone)
    connection = connect(DEVICE)
    feed = {"input_ids": np.ones((1, 16), np.int64)}
    file = EngineFile(exported_tflite("bert"), Format.TFLITE)
    connection.open(file, 1)
    connection.adb.shell("touch", "no_profiler")
    try:
        told = connection.profile(file, feed, 1, 10)
        assert (told.runs, told.ops) == (0, [])
        assert told.note.startswith("No time per operator: benchmark_model prints no table of operators: INFO: Memory")
        connection.runners.send_runner(Format.ONNX)
        connection.adb.shell(
            "sh", "-c", "printf '#!/bin/sh\necho no such option: -p; exit 1\n' > onnxruntime_perf_test"
        )
        told = connection.profile(EngineFile(exported("bert"), Format.ONNX), feed, 1, 10)
        assert "no such option: -p" in told.note
    finally:
        connection.close()
    assert phone.left() == []


def test_what_is_pulled_is_bounded(phone, reach, tmp_path, monkeypatch):
    reach(phone)
    connection = connect(DEVICE)
    try:
        connection.adb.shell("sh", "-c", "echo four > small; echo larger > large")
        monkeypatch.setattr("pocketbert.benchmarks.devices.adb_phone._MAX_PULLED", 5)
        connection.adb.pull("small", tmp_path / "small")
        assert (tmp_path / "small").read_text() == "four\n"
        with pytest.raises(MachineError, match="large has 7 bytes; at most 5 are copied"):
            connection.adb.pull("large", tmp_path / "large")
        with pytest.raises(MachineError, match="No such file"):
            connection.adb.pull("absent", tmp_path / "absent")
    finally:
        connection.close()


def test_a_runner_that_refuses_the_file(phone, reach, tmp_path, exported_tflite):
    reach(phone)
    connection = connect(DEVICE)
    opened = connection.open(EngineFile(exported_tflite("bert"), Format.TFLITE), 1)
    connection.adb.shell("sh", "-c", "for f in *.tflite; do : > $f; done")
    try:
        with pytest.raises(MachineError, match="ERROR: Failed to load model"):
            opened.prepare([{"input_ids": np.zeros((1, 16), np.int64)}])([0])
    finally:
        connection.close()
    assert phone.left() == []


def test_cores_that_it_lacks_and_what_is_no_device(phone, reach):
    reach(phone)
    phone_folder = phone.temporary
    with pytest.raises(InputError, match="is not connected; connected: 127.0.0.1:5555"):
        connect("adb:elsewhere")
    for text in ("adb:-s", "adb:a b", "adb:x@huge", "adb:;id", "adb:"):
        with pytest.raises(ValueError, match=r"write adb\[:\[SERIAL\]\[@CORES\]\]"):
            parse_measuring_device(text)
    assert list(phone_folder.iterdir()) == []


def test_without_a_serial_number(phone, reach):
    reach(phone)
    connection = connect("adb")
    assert connection.where == DEVICE
    connection.close()
    adb = phone.tools / "adb"
    subprocess.run([adb, "connect", "localhost:5555"], check=True, capture_output=True)
    try:
        subprocess.run([adb, "-s", "localhost:5555", "wait-for-device"], check=True, timeout=60)
        with pytest.raises(InputError, match="2 devices are connected: .*Fix: Name one: adb:") as caught:
            connect("adb:@big")
        assert caught.value.exit_code == ExitCode.INPUT
    finally:
        subprocess.run([adb, "disconnect", "localhost:5555"], check=True, capture_output=True)
    assert phone.left() == []


def test_no_client_and_no_runner(phone, reach, monkeypatch, tmp_path, exported):
    reach(phone)
    monkeypatch.setenv("POCKETBERT_ADB_RUNNERS", str(tmp_path))
    connection = connect(DEVICE)
    with pytest.raises(MissingBackendError, match="export POCKETBERT_ADB_RUNNERS=FOLDER .with onnxruntime_perf_test"):
        connection.bring([EngineFile(exported("bert"), Format.ONNX)])  # before anything is measured on any device
    connection.close()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingBackendError, match="apt-get install adb") as caught:
        connect("adb")
    assert caught.value.exit_code == ExitCode.MISSING


def test_a_device_that_is_lost_leaves_nothing(start_phone, reach, exported):
    phone = start_phone()
    reach(phone)
    connection = connect(DEVICE)
    assert len(list(phone.temporary.iterdir())) == 1
    threading.Timer(0.3, phone.unplug).start()
    with pytest.raises(MachineError, match="the device was lost"):
        while True:
            connection.adb.shell("true")
    connection.close()
    assert phone.left() == []


def test_no_space(start_phone, reach, tmp_path):
    phone = start_phone(space="256k")
    reach(phone)
    large = tmp_path / "large.onnx"
    large.write_bytes(bytes(1 << 20))
    connection = connect(DEVICE)
    with pytest.raises(MachineError, match="no space is left in /data/local/tmp") as caught:
        connection.runners.send_model(EngineFile(large, Format.ONNX))
    assert caught.value.exit_code == ExitCode.MACHINE
    connection.close()
    assert phone.left() == []


def test_permission_refused(start_phone, reach):
    phone = start_phone(owner=0)
    reach(phone)
    with pytest.raises(
        InputError, match=r"permission refused: mkdir: .*Permission denied.*Fix: Check that this works: adb"
    ):
        connect(DEVICE)
    assert phone.left() == []


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("unauthorized", "has not allowed this computer"),
        ("offline", "does not answer"),
        ("recovery", "in the state 'recovery'"),
    ],
)
def test_a_device_that_is_not_ready(state, words, monkeypatch, tmp_path):
    client = tmp_path / "adb"
    client.write_text(f'#!/bin/sh\nprintf "List of devices attached\\nABC123\\t{state}\\n\\n"\n')
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(InputError, match=words):
        connect("adb:ABC123")


def test_no_device_at_all(monkeypatch, tmp_path):
    client = tmp_path / "adb"
    client.write_text('#!/bin/sh\nprintf "List of devices attached\\n\\n"\n')
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(InputError, match="no device is connected"):
        connect("adb")


def test_the_runners_of_the_tests_are_those_of_the_readers(tmp_path):
    folder = write_runners(tmp_path / "runners")
    assert sorted(p.name for p in folder.iterdir()) == ["benchmark_model", "libonnxruntime.so", "onnxruntime_perf_test"]


def test_connected_devices_are_listed_by_the_real_client(phone, reach):
    reach(phone)
    assert _adb_missing() == ""
    assert f"adb:{SERIAL}" in [one.name for one in _attached() if not one.problem]
