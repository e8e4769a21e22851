"""The device `adb` with the real client and the real adbd, `make tools`: measured, refused, lost, and nothing left."""

import json
import os
import re
import shlex
import shutil
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pocketbert.benchmarks.devices import Sample, adb, connect
from pocketbert.benchmarks.devices.adb_phone import AdbWatch, pin_command, read_machine, select_cores
from pocketbert.benchmarks.devices.protocol import Reachable
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult
from pocketbert.core.devices import parse_measuring_device
from pocketbert.core.errors import ExitCode, InputError, MachineError, MissingBackendError
from pocketbert.core.types import Format
from pocketbert.runtime.engines import EngineFile
from support.adb_device import BATTERY, SERIAL, THERMAL

DEVICE = f"adb:{SERIAL}"
TEXTS = ["a good day", "what a bad day it was", "the day was good"]
FEED = {name: np.ones((1, 16), np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}


@pytest.fixture
def connection(android, reach):
    """A connection to the device, after which nothing is left there."""
    reach(android)
    connected = connect(DEVICE)
    yield connected
    connected.close()
    assert android.left() == []


def test_both_runners_are_pushed_run_and_removed(android, reach, files):
    runners = reach(android)
    lists = {"devices": [f"{DEVICE}@big"], "threads": [2], "lengths": ["text", 16], "gaps_ms": [100]}
    result = benchmark(files, TEXTS, BenchmarkOptions(runs=5, repeats=1, budget_s=900, label="", **lists))
    onnx, tflite = result.find("onnx", 2, 16), result.find("tflite", 2, 16)
    assert onnx.wall_ms == [[1.15, 1.25, 1.35, 1.45, 1.55]]  # of 6 in one process, the first is left out
    assert tflite.wall_ms == [[2.502] * 5]  # the last digit is the number of threads
    assert result.find("onnx", 2, "text").wall_ms == [[1.15, *[1.05] * 4]]  # a process for each input
    assert len(result.measurements) == 6
    for m in result.measurements:
        assert (m.device, m.provenance, m.cpu, m.cpu_ms) == (f"{DEVICE}@big", "measured", None, [])
        assert m.machine.cpu.startswith("Maker Phone 9 (Chip 3")
        assert m.machine.cores == 3
        assert m.engine_version.startswith("sha256 ")
        assert m.load.thermal.startswith("thermal status 1, battery 31.2 °C, charge 81 % →")
        clock = re.fullmatch(r"governor sched, fastest core (\d+) → (\d+) MHz", m.load.clock)  # of the big cores
        assert 2400 < int(clock[1]) < int(clock[2]) < 2900  # the runner raises it, and both ends are read
        assert "not discharging" in m.load.energy.words  # it is powered by the cable
    start = onnx.cold
    assert (start.load_ms, start.first_ms, start.length, start.told_by) == (14.9, 3, 16, "onnxruntime_perf_test")
    assert (start.peak_memory_bytes, start.peak_rss_bytes) == (None, 45678592)
    start = tflite.cold
    assert (start.load_ms, start.first_ms, start.length, start.told_by) == (17.187, 9, 16, "benchmark_model")
    assert (start.peak_memory_bytes, start.peak_rss_bytes) == (round(46.0859 * 2**20), None)
    idle = [m for m in result.measurements if m.gap_ms]
    assert [(m.variant, m.gap_ms, m.length) for m in idle] == [("tflite", 100, "text"), ("tflite", 100, 16)]
    assert [m.wall_ms for m in idle] == [[[3.102] * 5]] * 2
    notes = " ".join(result.protocol.notes)
    assert "Not timed after idle times: onnx, since onnxruntime_perf_test cannot wait" in notes
    assert {(c.variant, c.cpu) for c in result.comparisons} == {("tflite", None)}
    assert set(result.versions) == {"benchmark_model", "onnxruntime_perf_test"}
    assert BenchmarkResult.model_validate_json(result.model_dump_json()) == result
    assert (runners / "benchmark_model").is_file()
    of_onnx, of_tflite = result.profiles  # of runs that timed nothing else
    for profile in (of_onnx, of_tflite):
        assert (profile.threads, profile.runs, profile.length, profile.provenance) == (2, 10, 16, "measured")
    assert of_onnx.note == ""
    assert [(o.op_type, o.nodes, o.ms) for o in of_onnx.ops] == [("MatMul", 1, 0.04)]
    assert [(o.op_type, o.nodes, o.ms) for o in of_tflite.ops] == [
        ("Fully Connected (NC, F32) GEMM", 2, 0.9),
        ("EMBEDDING_LOOKUP", 1, 0.1),
    ]
    placed = [[(p.provider, p.nodes) for p in profile.placement] for profile in (of_onnx, of_tflite)]
    assert placed == [[("CPUExecutionProvider", 1)], [("XNNPACK", 2), ("built-in kernels", 1)]]
    assert android.left() == []


def test_minutes_without_a_pause_are_one_process(android, reach, files):
    reach(android)
    options = BenchmarkOptions(devices=[DEVICE], runs=5, repeats=1, profile=False, sustained_min=0.02, label="")
    result = benchmark(files, TEXTS, options)
    (told,) = result.sustained
    assert (told.variant, told.length, len(told.slices)) == ("onnx", "text", 10)
    assert sum(map(len, told.wall_ms)) == 240  # what the one run of 2 s wrote
    assert told.drift.median == pytest.approx(2, rel=1e-3)
    assert all(s.thermal and s.clock for s in told.slices)
    assert "Not run for minutes: tflite, since benchmark_model tells no single times" in " ".join(result.protocol.notes)
    with pytest.raises(InputError, match=r"adb:127.* tflite: not run for minutes: .*\(--app\).*Leave --sustained out"):
        benchmark(files[1:], TEXTS, options)
    assert android.left() == []


def test_an_idle_time_that_the_runner_does_not_keep(connection, files):
    burst = connection.open(files[1].file, 1).prepare_idle([FEED], 33.3)
    assert burst([0]) == [Sample(3.101)]
    connection.adb.shell("touch", "no_delay")
    with pytest.raises(InputError, match="does not tell that it waits between inferences; --run_delay was asked for"):
        burst([0])


def test_a_runner_without_a_profiler_keeps_the_latencies(connection, files):
    onnx, tflite = files
    connection.open(tflite.file, 1)
    connection.adb.shell("touch", "no_profiler")
    told = connection.profile(tflite.file, FEED, 1, 10)
    assert (told.runs, told.ops) == (0, [])
    assert told.note.startswith("No time per operator: benchmark_model prints no table of operators: INFO: Memory")
    connection.bring([onnx.file])
    connection.adb.script("printf '#!/bin/sh\necho no such option: -p; exit 1\n' > onnxruntime_perf_test")
    assert "no such option: -p" in connection.profile(onnx.file, FEED, 1, 10).note


def test_a_runner_that_refuses_the_file(connection, files):
    opened = connection.open(files[1].file, 1)
    connection.adb.script("for f in *.tflite; do : > $f; done")
    with pytest.raises(MachineError, match="ERROR: Failed to load model"):
        opened.prepare([FEED])([0])


def test_what_is_pulled_is_bounded(connection, tmp_path, monkeypatch):
    connection.adb.script("echo four > small; echo larger > large")
    monkeypatch.setattr("pocketbert.benchmarks.devices.adb_phone._MAX_PULLED", 5)
    connection.adb.pull("small", tmp_path / "small")
    assert (tmp_path / "small").read_text() == "four\n"
    for name, said in (("large", "large has 7 bytes; at most 5 are copied"), ("absent", "No such file")):
        with pytest.raises(MachineError, match=said):
            connection.adb.pull(name, tmp_path / name)


def test_the_end_of_the_connection_ends_what_runs(android, connection, files):
    opened = connection.open(files[0].file, 1)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(opened.run_for, [FEED], 600)
        while not list(android.temporary.glob("*/running.pid")):
            assert not running.done()
            time.sleep(0.02)
        connection.close()
        with pytest.raises(MachineError):
            running.result(timeout=60)


def test_a_device_that_is_lost_leaves_nothing(start_android, reach):
    device = start_android()
    reach(device)
    connection = connect(DEVICE)
    assert len(list(device.temporary.iterdir())) == 1
    threading.Timer(0.1, device.unplug).start()
    with pytest.raises(MachineError, match="the device was lost"):
        while True:
            connection.adb.shell("true")
    connection.close()
    assert device.left() == []


def test_no_space(start_android, reach, tmp_path):
    device = start_android(space="256k")
    reach(device)
    large = tmp_path / "large.onnx"
    large.write_bytes(bytes(1 << 20))
    connection = connect(DEVICE)
    with pytest.raises(MachineError, match="no space is left in /data/local/tmp") as caught:
        connection.runners.send_model(EngineFile(large, Format.ONNX))
    assert caught.value.exit_code == ExitCode.MACHINE
    connection.close()
    assert device.left() == []


def test_permission_refused(start_android, reach):
    device = start_android(owner=0)
    reach(device)
    refused = r"permission refused: mkdir: .*Permission denied.*Fix: Check that this works: adb"
    with pytest.raises(InputError, match=refused):
        connect(DEVICE)
    assert device.left() == []


def test_the_only_device_needs_no_name_and_of_two_one_must_be_named(android, reach):
    reach(android)
    assert adb.DEVICE.missing() == ""
    assert DEVICE in [one.name for one in adb.DEVICE.look() if not one.problem]
    connection = connect("adb")
    assert connection.where == DEVICE
    connection.close()
    with pytest.raises(InputError, match="is not connected; connected: 127.0.0.1:5555"):
        connect("adb:elsewhere")
    subprocess.run([android.tools / "adb", "connect", "localhost:5555"], check=True, capture_output=True)
    try:
        wait = [android.tools / "adb", "-s", "localhost:5555", "wait-for-device"]
        subprocess.run(wait, check=True, timeout=60)
        with pytest.raises(InputError, match="2 devices are connected: .*Fix: Name one: adb:") as caught:
            connect("adb:@big")
        assert caught.value.exit_code == ExitCode.INPUT
    finally:
        subprocess.run([android.tools / "adb", "disconnect", "localhost:5555"], check=True, capture_output=True)
    assert android.left() == []


@pytest.mark.slow
def test_every_step_of_the_docs_for_a_pixel_works_as_typed(
    start_android, phone, reach, pocketbert, monkeypatch, tmp_path
):
    device = start_android(masks="70|f")
    reach(device)
    work = tmp_path / "work"
    shutil.copytree(phone, work / "phone")
    monkeypatch.chdir(work)
    steps = (Path(__file__).parents[3] / "docs/lab/devices.md").read_text(encoding="utf-8")
    section = steps.partition("**A Pixel.**")[2].partition("\n**")[0]
    commands = [shlex.split(one)[1:] for one in re.findall(r"`(pocketbert [^`]+)`", section)]
    assert [c[0] for c in commands] == ["devices", *["benchmark"] * 3, "report"]
    probed, big, _, again, _ = done = [pocketbert(*one) for one in commands]
    assert [one.exit_code for one in done] == [0] * 5, [one.output for one in done]
    assert json.loads(probed.stdout)["facts"]["page_bytes"] > 0
    (line,) = re.findall(r"^load of adb:@big: .*", big.stdout, re.MULTILINE)
    assert re.search(r"thermal status 1, .* → thermal status 1, .*governor sched, fastest core \d+ → \d+ MHz", line)
    assert "of the baseline" in again.stdout
    written = {"pixel-again.json", "pixel-big.json", "pixel-little.json", "pixel.html"}
    assert {p.name for p in work.iterdir()} - {"phone"} == written
    assert device.left() == []


# --- a client that a script plays ------------------------------------------------------------------------------------------------

LISTED = """* daemon not running; starting now at tcp:5037
* daemon started successfully
List of devices attached
2A051FDH2004XY         device usb:1-1 product:shiba model:Pixel_8 device:shiba transport_id:1
R5CT20ABCDE            unauthorized usb:1-2 transport_id:2
192.168.1.7:5555       offline transport_id:3
0123456789ABCDEF       no permissions (user in plugdev group; are your udev rules wrong?); see [http://developer.android.com/tools/device.html] usb:1-3 transport_id:4
emulator-5554          recovery transport_id:5

"""


@pytest.fixture
def client(monkeypatch, tmp_path):
    """`client(script)`: the only `adb` that is found is this shell script."""

    def use(script):
        (tmp_path / "adb").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "adb").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return use


def test_phones_are_listed_by_serial_number_with_what_keeps_them_from_use(client, pocketbert, tmp_path):
    (tmp_path / "listed").write_text(LISTED)
    client(f'[ "$*" = "devices -l" ] && cat {tmp_path}/listed')
    good, *others = adb.DEVICE.look()
    assert good == Reachable("adb:2A051FDH2004XY", "Pixel 8")
    assert good.words == "adb:2A051FDH2004XY (Pixel 8)"
    assert [(one.name, one.problem.split(".")[0]) for one in others] == [
        ("adb:R5CT20ABCDE", "has not allowed this computer"),
        ("adb:192.168.1.7:5555", "does not answer"),
        ("adb:0123456789ABCDEF", "may not be opened by this user"),
        ("adb:emulator-5554", "is in the state 'recovery'"),
    ]
    for one in (good, *others):
        parse_measuring_device(one.name)
    told = {d["name"]: d for d in json.loads(pocketbert("devices", "--json").stdout)}["adb[:[SERIAL][@CORES]]"]
    assert told["reachable"][0] == {"name": "adb:2A051FDH2004XY", "what": "Pixel 8", "problem": ""}
    assert told["allowed"] == {"CORES": ["little", "big", "prime"]}


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo List of devices attached", []),
        ("echo cannot bind to port >&2; exit 1", [Reachable("adb", problem="cannot bind to port")]),
        ("exec sleep 30", [Reachable("adb", problem="the client does not answer within 0.2 s")]),
    ],
)
def test_a_client_without_phones_that_fails_or_hangs(client, monkeypatch, script, told):
    monkeypatch.setattr(adb, "_LIST_S", 0.2 if "sleep" in script else 30)
    client(script)
    assert adb.DEVICE.look() == told


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ("ABC123\\tunauthorized", "has not allowed this computer"),
        ("ABC123\\toffline", "does not answer"),
        ("ABC123\\trecovery", "in the state 'recovery'"),
        ("", "no device is connected"),
    ],
)
def test_a_device_that_is_not_ready_is_not_connected(client, listed, said):
    client(f'printf "List of devices attached\\n{listed}\\n\\n"')
    with pytest.raises(InputError, match=said):
        connect("adb:ABC123" if listed else "adb")


def test_what_is_missing_for_a_phone(client, connection, files, monkeypatch, tmp_path):
    client("true")
    monkeypatch.delenv("POCKETBERT_ADB_RUNNERS")
    named = "export POCKETBERT_ADB_RUNNERS=FOLDER, with benchmark_model and onnxruntime_perf_test built for the phone"
    assert adb.DEVICE.missing() == f"no runners are named ({named}); --app needs none"
    runners = tmp_path / "few"
    runners.mkdir()
    (runners / "benchmark_model").touch()
    monkeypatch.setenv("POCKETBERT_ADB_RUNNERS", str(runners))
    assert adb.DEVICE.missing() == f"POCKETBERT_ADB_RUNNERS={runners} lacks onnxruntime_perf_test; --app needs none"
    with pytest.raises(MissingBackendError, match="export POCKETBERT_ADB_RUNNERS=FOLDER .with onnxruntime_perf_test"):
        connection.bring([files[0].file])  # before anything is measured on any device
    (runners / "onnxruntime_perf_test").touch()
    assert adb.DEVICE.missing() == ""
    monkeypatch.setenv("PATH", str(runners))
    assert adb.DEVICE.missing() == "adb is not installed (sudo apt-get install adb)"
    assert adb.DEVICE.look() == []
    with pytest.raises(MissingBackendError, match="apt-get install adb") as caught:
        connect("adb")
    assert caught.value.exit_code == ExitCode.MISSING


@pytest.mark.parametrize("name", ["adb:-s", "adb:a b", "adb:x@huge", "adb:;id", "adb:"])
def test_what_is_no_name_of_a_device(name):
    with pytest.raises(ValueError, match=r"write adb\[:\[SERIAL\]\[@CORES\]\]"):
        parse_measuring_device(name)


# --- what Android tells of a phone -----------------------------------------------------------------------------------------------

CLUSTERS = "2900000 7\n1800000 0 1 2 3\n2400000 4 5 6\n"


@pytest.mark.parametrize(
    ("clusters", "kind", "cores"),
    [
        (CLUSTERS + "cat: no such file\n", "little", (0, 1, 2, 3)),
        (CLUSTERS, "big", (4, 5, 6)),
        (CLUSTERS, "prime", (7,)),
        (CLUSTERS, "", ()),
        (CLUSTERS[10:], "big", (4, 5, 6)),
        (CLUSTERS[10:], "prime", "has no prime cores; it has little, big"),
        (CLUSTERS[:10], "big", "one kind of cores only"),
    ],
)
def test_kinds_of_cores(clusters, kind, cores):
    device = SimpleNamespace(script=lambda text: clusters)
    if isinstance(cores, str):
        with pytest.raises(InputError, match=f"adb:X: .*{cores}.*Leave '@{kind}' away"):
            select_cores(device, kind, "adb:X")
    else:
        assert select_cores(device, kind, "adb:X") == cores
    assert pin_command(["x"], (7,)) == ["taskset", "80", "x"]
    assert pin_command(["x"], (0, 1, 2, 3)) == ["taskset", "f", "x"]


@pytest.mark.parametrize(
    ("clocks", "cpus", "words"),
    [
        (
            "1800000 walt 0 1 2 3\n1094400 sched 4 5 6\n500000  7\n",
            (),
            "governor sched, walt, fastest core 1800 → 1800 MHz",
        ),
        ("1800000 walt 0 1 2 3\n1094400 sched 4 5 6\n", (4, 5, 6), "governor sched, fastest core 1094 → 1094 MHz"),
        (" walt 0 1 2 3\n  4 5 6\ncat: Permission denied\n", (), ""),
    ],
)
def test_clock_rates_of_chosen_cores_and_heat(clocks, cpus, words):
    dumps = {"battery": BATTERY, "thermalservice": THERMAL, "/proc/loadavg": "0.25 0.5 1.0"}
    device = SimpleNamespace(script=lambda text: clocks, try_shell=lambda *line: dumps.get(line[-1], ""))
    found = AdbWatch(device, cpus).stop()
    assert (found.clock, found.before) == (words, 0.25)
    assert found.thermal.partition(" → ")[2] == "thermal status 1, battery 31.2 °C, charge 81 %"
    dumps.clear()
    found = AdbWatch(device, cpus).stop()
    assert (found.thermal, found.before, found.energy) == ("", None, None)


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
