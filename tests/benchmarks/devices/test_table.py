"""The registry, what can be used now, and a device from outside: named in a recipe, measured, shown."""

import json
from pathlib import Path

import pytest

from pocketbert.benchmarks.devices import Device, connect, device, refusals, register_device, unregister_device
from pocketbert.benchmarks.devices.litert_npu import find_litert_chip
from pocketbert.benchmarks.devices.qemu import processor
from pocketbert.benchmarks.devices.qnn import find_qnn_chip
from pocketbert.benchmarks.devices.table import list_device_statuses
from pocketbert.benchmarks.devices.vela import vela_target
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult
from pocketbert.benchmarks.report import make_summary_table, render_report
from pocketbert.benchmarks.report.output import describe_sessions, make_latency_table
from pocketbert.core.devices import DEVICES, LITERT_NPU, QEMU, QNN, VELA, DeviceInfo, Figure, parse_device
from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.core.recipe.recipe import BenchmarkSection
from pocketbert.core.types import Format, Provenance, Runtime
from pocketbert.pipeline.make.measuring import measure, section_options
from support.counting_device import MACHINE, NAME, NONSENSE_MS, CountingConnection, counting_device

QUICK = {"runs": 10, "repeats": 2, "label": ""}


@pytest.fixture
def connections():
    """The connections made to the registered dummy device."""
    made = []
    register_device(counting_device(made))
    yield made
    unregister_device(NAME)


def test_a_registered_device_is_measured_and_shown_without_any_time(connections, variants, texts, tmp_path):
    section = BenchmarkSection(devices=["local", f"{NAME}:a76"], threads=[1], runs=10, repeats=2, gaps_ms=[])
    result = measure(variants, texts, section_options(section, [16]), root=variants[0].path.parent)
    (made,) = connections
    assert (made.argument, made.closed) == ("a76", True)
    assert made.opened == [("teacher.onnx", 1), ("student.onnx", 1)]
    local, dummy = result.sessions
    assert [m.device for m in local.measurements] == ["local"] * 4
    assert [m.device for m in dummy.measurements] == ["dummy:a76"] * 4
    assert dummy.machine == MACHINE
    for m in dummy.measurements:
        assert (m.provenance, m.wall, m.cpu, m.wall_ms, m.cold) == (Provenance.EMULATED, None, None, [], None)
        assert m.load.thermal == "cool"
    assert dummy.comparisons == dummy.tokenizers == dummy.profiles == []
    assert dummy.protocol.runs_made == (10, 10)
    counted = dummy.find("student int8", 1, 16).guest_instructions
    assert (counted.n, counted.p50) == (20, 16.0 * variants[1].bytes)
    assert {v.path for v in dummy.variants} == {Path("teacher.onnx"), Path("student.onnx")}
    result.write(tmp_path / "benchmark.json")
    assert BenchmarkResult.read(tmp_path / "benchmark.json") == result
    assert str(NONSENSE_MS) not in (tmp_path / "benchmark.json").read_text()  # six digits occur in other numbers


def test_figures_are_grouped_by_device(connections, variants, texts, make_data):
    result = benchmark(variants, texts, BenchmarkOptions(devices=[NAME, "local"], profile=False, **QUICK))
    assert [s.device for s in result.sessions] == [NAME, "local"]
    assert result.headline is result.others[0]
    header, rows = make_summary_table(make_data(benchmark=result))
    condition = "(1 thread, real text, batch 1)"
    assert header[:4] == ["model", "size", f"local: p50 ms {condition}", "local: vs teacher fp32"]
    assert header[4:] == [f"dummy: guest instructions, emulated {condition}"]
    assert all("–" not in row[4] for row in rows)
    html = render_report(make_data(benchmark=result))
    for words in (
        "<h3>On dummy</h3>",
        "<h3>On local</h3>",
        "The figures of this device are emulated: its times do not tell the latency of a real device and are not shown.",
        "emulated: guest instructions on dummy by counter 7",
        "Dummy A76",
        "cool",
        rows[0][4],
    ):
        assert words in html, words
    assert str(int(NONSENSE_MS)) not in html
    header, rows = make_latency_table(result)
    assert header[-1] == "guest instructions"
    shown = [(row[1], row[3] == "–", row[-1] == "–") for row in rows]
    assert shown == [("dummy (emulated)", False, False)] * 2 + [("local", False, True)] * 2
    assert {row[4] for row in rows[:2]} == {"–"}
    assert describe_sessions(result)[0].startswith("emulated on Dummy A76")


def test_files_that_a_device_refuses_are_left_out_there(connections, variants, texts, capsys, monkeypatch):
    tflite = variants[1].model_copy(update={"format": Format.TFLITE})
    options = BenchmarkOptions(devices=[NAME], runs=5, repeats=1, label="")
    result = benchmark([variants[0], tflite], texts, options)
    assert [v.name for v in result.variants] == ["teacher fp32"]
    assert "dummy student int8: left out: it takes ONNX only." in capsys.readouterr().err
    with pytest.raises(InputError, match="it takes ONNX only"):
        benchmark([tflite], texts, options)
    assert refusals([NAME, "local"], Format.TFLITE, None) == []
    assert refusals([NAME], Format.TFLITE, None) == ["it takes ONNX only"]
    (told,) = refusals(["local"], Format.COREML, None)
    assert told == "Core ML is timed by its own engine only, which does not run on this machine"
    monkeypatch.setattr("pocketbert.benchmarks.devices.local.version_of", lambda _: None)
    (told,) = refusals(["local"], Format.ONNX, Runtime.OPENVINO)
    assert told == "openvino is not installed (pip install 'pocketbert[openvino]')"


def test_connections_are_closed_after_a_failure_and_nothing_is_measured_where_an_engine_is_missing(
    connections, variants, texts, monkeypatch
):
    def bring(self, files):
        if self.argument == "bare":
            raise MissingBackendError(f"an engine for {len(files)} files", "export ENGINE=FOLDER")

    monkeypatch.setattr(CountingConnection, "bring", bring, raising=False)
    with pytest.raises(MissingBackendError, match="an engine for 2 files is not installed"):
        benchmark(variants, texts, BenchmarkOptions(devices=[NAME, f"{NAME}:bare"], label=""))
    assert [(one.opened, one.closed) for one in connections] == [([], True), ([], True)]
    monkeypatch.setattr(CountingConnection, "open", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        benchmark(variants, texts, BenchmarkOptions(devices=[NAME], label=""))
    assert connections[-1].closed


def test_what_cannot_be_registered(connections):
    with pytest.raises(ValueError, match="registered already"):
        register_device(counting_device([]))
    info = DeviceInfo("empty", {Figure.LATENCY: Provenance.MEASURED}, "")
    with pytest.raises(ValueError, match="one of 'connect', 'compiler', 'service' and 'info.instead'"):
        register_device(Device(info))
    assert "empty" not in DEVICES


def test_the_commands_know_it(connections, phone, pocketbert):
    listed = pocketbert("devices").stdout
    assert "dummy[:CPU]\temulated: guest instructions\ta counter in this process" in listed
    assert "CPU of qemu-arm64: cortex-a53, cortex-a72, cortex-a76, neoverse-n1\n" in listed
    names = [d["name"] for d in json.loads(pocketbert("devices", "--json").stdout)]
    assert names == [info.spelled for info in DEVICES.values()]
    assert names[-1] == "dummy[:CPU]"
    done = pocketbert("benchmark", "-m", phone, "--device", "dummy:a53", "--runs", 10, "--repeats", 2, "--lengths", 16)
    assert done.exit_code == 0, done.output
    assert "dummy:a53 (emulated)" in done.stdout
    assert "idle" not in done.stdout  # it cannot time inferences after idle times


def test_wrong_names_are_all_told_and_a_name_with_a_comma_is_several_devices(connections, phone, pocketbert):
    wrong = pocketbert("benchmark", "-m", phone, "--device", "dumy, adb:x y", "--device", "vela", "--device", "coreml")
    assert wrong.exit_code == 2, wrong.output
    for words in (
        "unknown device 'dumy'; did you mean 'dummy",
        "'x y' is no [SERIAL][@CORES]",
        "CONFIG[@SYSTEM+MEMORY] is missing",
        "device 'coreml' cannot be named here: run coreml/benchmark_on_mac.py",
    ):
        assert words in wrong.stderr
    with pytest.raises(ValueError, match="device 'local,adb': no name has a comma; give each device by itself"):
        parse_device("local,adb")


def test_every_device_has_its_code_and_allowed_values_that_it_takes():
    for info in DEVICES.values():
        if not info.instead:
            argument = ":there" if info.argument and not info.optional else ""
            assert device(info.name + argument).info == info
    statuses = list_device_statuses()
    allowed = {one.info.name: {part.part: part.values for part in one.allowed} for one in statuses}
    for name, look_up in ((QEMU, processor), (QNN, find_qnn_chip), (LITERT_NPU, find_litert_chip), (VELA, vela_target)):
        values = next(iter(allowed[name].values()))
        assert len(values) > 3
        for value in values:
            assert parse_device(f"{name}:{value}").argument == value
            look_up(value)
    assert set(allowed[VELA]) == {"CONFIG", "SYSTEM", "MEMORY"}
    assert all(part.part in one.info.argument for one in statuses for part in one.allowed)
    reachable = {one.info.name: one.reachable for one in statuses}
    assert reachable["ssh"] is reachable["qai-hub"] is None  # what only a try would tell is not tried
    assert [one.name for one in reachable["local"]] == ["local"]
    assert connect("local").machine().cores >= 1
