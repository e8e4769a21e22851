"""The registry, and a device from outside: named in a recipe, measured, shown."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pocketbert.benchmarks.devices import Device, connect, device, refusals, register_device, unregister_device
from pocketbert.benchmarks.devices.local import _LocalConnection
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult
from pocketbert.benchmarks.report import ModelRow, ReportData, make_summary_table, render_report
from pocketbert.benchmarks.report.output import describe_sessions, make_latency_table
from pocketbert.cli.main import app
from pocketbert.core.devices import DEVICES, DeviceInfo, Figure
from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.core.recipe.recipe import BenchmarkSection
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, Provenance, Runtime
from pocketbert.pipeline.make.measuring import measure, section_options
from support.counting_device import MACHINE, NAME, NONSENSE_MS, counting_device

SECTION = {"threads": [1], "runs": 10, "repeats": 2, "gaps_ms": []}


@pytest.fixture
def connections():
    """The connections made to the registered dummy device."""
    made = []
    register_device(counting_device(made))
    yield made
    unregister_device(NAME)


def pocketbert(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def shown(result):
    rows = [ModelRow(name=v.name, bytes=v.bytes) for v in result.variants]
    return ReportData(title="t", task=TaskName.TEXT_CLASSIFICATION, machine=result.machine, rows=rows, benchmark=result)


def test_every_device_has_its_code():
    for info in DEVICES.values():
        if not info.instead:
            argument = ":there" if info.argument and not info.optional else ""
            assert device(info.name + argument).info == info
    assert isinstance(connect("local"), _LocalConnection)


def test_a_registered_device_is_measured_and_shown_without_any_time(connections, variants, texts, tmp_path):
    section = BenchmarkSection(devices=["local", f"{NAME}:a76"], **SECTION)
    result = measure(variants, texts, section_options(section, [16]), root=variants[0].path.parent)
    (made,) = connections
    assert made.argument == "a76"
    assert made.closed
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


def test_figures_are_grouped_by_device(connections, variants, texts):
    options = BenchmarkOptions(devices=[NAME, "local"], runs=10, repeats=2, label="", profile=False)
    result = benchmark(variants, texts, options)
    assert [s.device for s in result.sessions] == [NAME, "local"]
    assert result.headline is result.others[0]
    header, rows = make_summary_table(shown(result))
    assert header == [
        "model",
        "size",
        "local: p50 ms (1 thread, real text, batch 1)",
        "local: vs teacher fp32",
        "dummy: guest instructions, emulated (1 thread, real text, batch 1)",
    ]
    assert all("–" not in row[4] for row in rows)
    html = render_report(shown(result))
    for words in (
        "<h3>On dummy</h3>",
        "<h3>On local</h3>",
        "The figures of this device are emulated: its times do not tell the latency of a real device and are not shown.",
        "emulated · counter 7 · dummy: Dummy A76",
        "cool",
        rows[0][4],
    ):
        assert words in html, words
    assert str(int(NONSENSE_MS)) not in html
    header, rows = make_latency_table(result)
    assert header[-1] == "guest instructions"
    assert [(row[1], row[3] == "–", row[-1] == "–") for row in rows] == [
        *[("dummy (emulated)", False, False)] * 2,
        *[("local", False, True)] * 2,
    ]
    assert {row[4] for row in rows[:2]} == {"–"}
    assert describe_sessions(result)[0].startswith("emulated on Dummy A76")


def test_a_device_alone(connections, variants, texts):
    options = BenchmarkOptions(devices=[NAME], runs=10, repeats=2, label="")
    result = benchmark(variants, texts, options)
    html = render_report(shown(result))
    assert "<h3>On dummy</h3>" in html
    assert "median latency (p50)" not in html
    assert not any("p50" in title for title in make_summary_table(shown(result))[0])
    header, _ = make_latency_table(result)
    assert header == ["file", "device", "threads", "length", "guest instructions"]


def test_files_that_a_device_refuses_are_left_out_there(connections, variants, texts, capsys):
    tflite = variants[1].model_copy(update={"format": Format.TFLITE})
    options = BenchmarkOptions(devices=[NAME], runs=5, repeats=1, label="")
    result = benchmark([variants[0], tflite], texts, options)
    assert [v.name for v in result.variants] == ["teacher fp32"]
    assert "dummy student int8: left out: it takes ONNX only." in capsys.readouterr().err
    with pytest.raises(InputError, match="it takes ONNX only"):
        benchmark([tflite], texts, options)
    assert refusals([NAME, "local"], Format.TFLITE, None) == []
    assert refusals([NAME], Format.TFLITE, None) == ["it takes ONNX only"]
    assert refusals(["local"], Format.COREML, None) == [
        "Core ML is timed by its own engine only, which does not run on this machine"
    ]


def test_the_connection_is_closed_after_a_failure(connections, variants, texts, monkeypatch):
    monkeypatch.setattr("support.counting_device.CountingConnection.open", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        benchmark(variants, texts, BenchmarkOptions(devices=[NAME], label=""))
    assert connections[0].closed


def test_nothing_is_measured_where_another_device_lacks_its_engine(connections, variants, texts, monkeypatch):
    def bring(self, files):
        if self.argument == "bare":
            raise MissingBackendError(f"an engine for {len(files)} files", "export ENGINE=FOLDER")

    monkeypatch.setattr("support.counting_device.CountingConnection.bring", bring, raising=False)
    with pytest.raises(MissingBackendError, match="an engine for 2 files is not installed"):
        benchmark(variants, texts, BenchmarkOptions(devices=[NAME, f"{NAME}:bare"], label=""))
    assert [(one.opened, one.closed) for one in connections] == [([], True), ([], True)]


def test_what_cannot_be_registered(connections):
    with pytest.raises(ValueError, match="registered already"):
        register_device(counting_device([]))
    info = DeviceInfo("empty", {Figure.LATENCY: Provenance.MEASURED}, "")
    with pytest.raises(ValueError, match="one of 'connect', 'compiler', 'service' and 'info.instead'"):
        register_device(Device(info))
    assert "empty" not in DEVICES


def test_the_commands_know_it(connections, phone):
    listed = pocketbert("devices")
    assert "dummy[:CPU]\temulated: guest instructions\ta counter in this process" in listed.stdout
    names = [d["name"] for d in json.loads(pocketbert("devices", "--json").stdout)]
    assert names == [
        "local",
        "ssh:[USER@]HOST[:PORT]",
        "adb[:[SERIAL][@CORES]]",
        "qemu-arm64[:CPU]",
        "qnn-host:SOC",
        "litert-npu:SOC",
        "vela:CONFIG[@SYSTEM+MEMORY]",
        "qai-hub:PHONE",
        "coreml",
        "android",
        "dummy[:CPU]",
    ]
    done = pocketbert("benchmark", "-m", phone, "--device", "dummy:a53", "--runs", 10, "--repeats", 2, "--lengths", 16)
    assert done.exit_code == 0, done.output
    assert "dummy:a53 (emulated)" in done.stdout
    assert "idle" not in done.stdout  # it cannot time inferences after idle times
    wrong = pocketbert("benchmark", "-m", phone, "--device", "dumy", "--device", "coreml")
    assert wrong.exit_code == 2
    assert "unknown device 'dumy'; did you mean 'dummy" in wrong.stderr
    assert "device 'coreml' cannot be named here: run coreml/benchmark_on_mac.py" in wrong.stderr


def test_openvino_files_need_openvino(monkeypatch):
    monkeypatch.setattr("pocketbert.benchmarks.devices.local.version_of", lambda _: None)
    assert refusals(["local"], Format.ONNX, Runtime.OPENVINO) == [
        "openvino is not installed (pip install 'pocketbert[openvino]')"
    ]
