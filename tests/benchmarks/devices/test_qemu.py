"""The device `qemu-arm64` with QEMU's user mode and Arm wheels, `make tools`: counts and answers, never times."""

import copy
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

from pocketbert import ExportOptions, api
from pocketbert.benchmarks.devices import connect, device
from pocketbert.benchmarks.devices.qemu import PROCESSORS, Guest, write_system_files
from pocketbert.benchmarks.inputs import compare_answers
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Variant
from pocketbert.benchmarks.report import render_report
from pocketbert.benchmarks.report.output import make_latency_table
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.errors import InputError, MachineError, MissingBackendError
from pocketbert.core.host.system import version_of
from pocketbert.core.types import Format, Provenance, Runtime, Scheme
from pocketbert.runtime.engines import add_missing_inputs
from support import arm
from support.counting_device import CountingConnection
from support.packages import build_packages

EMULATED = ("qemu-arm64:cortex-a76", "qemu-arm64:neoverse-n1")
SHORT = [text for text in SENTENCES if len(text) < 100]
WHOLE = (Format.TFLITE, Scheme.A8W8, Runtime.NPU)
FORMS = [
    (Format.ONNX, Scheme.INT8),
    (Format.ONNX, Scheme.A8W8),
    (Format.ONNX, Scheme.A16W8, Runtime.QNN),
    (Format.TFLITE, Scheme.INT8),
    (Format.TFLITE, Scheme.A8W8),
    WHOLE,
    (Format.TFLITE, Scheme.A16W8, Runtime.NPU),
]


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    """The device can be used while the tests of this file run."""
    if why_not := arm.missing():
        pytest.skip(why_not)
    with pytest.MonkeyPatch.context() as patch:
        arm.use(patch, tmp_path_factory.mktemp("emulator"))
        yield


@pytest.fixture(scope="module")
def files(folder, tmp_path_factory):
    """Two files of the tiny folder, the second one in dynamic int8."""
    small = tmp_path_factory.mktemp("dynamic") / "student_int8.onnx"
    quantize_dynamic(folder / "student.onnx", small, weight_type=QuantType.QInt8, per_channel=True)
    fp32 = Variant.of("fp32", folder / "teacher.onnx", folder, 32, Scheme.FP32)
    return [fp32, Variant.of("int8", small, folder, 32, Scheme.INT8)]


@pytest.fixture
def script(monkeypatch):
    """`script(name)`: a program of lab/runtimes as a module."""

    def read(name):
        path = Path(__file__).resolve().parents[3] / "lab" / "runtimes" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"lab_{name}", path)
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, made)  # dataclasses look there
        spec.loader.exec_module(made)
        return made

    return read


def make_feed(tokens):
    ids = np.array([[2, 7, 8, 9, 3, *[5] * (tokens - 5)]])
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def test_instructions_are_counted_answers_compared_and_no_time_is_told(tools, files, texts):
    options = BenchmarkOptions(devices=["qemu-arm64"], lengths=[16, 32], runs=10, repeats=2, label="", budget_s=600)
    result = benchmark(files, texts, options)
    assert len(result.measurements) == 4
    for m in result.measurements:
        assert (m.device, m.provenance, m.wall, m.cpu, m.cold) == ("qemu-arm64", Provenance.EMULATED, None, None, None)
        assert m.wall_ms == m.cpu_ms == []
        assert (m.machine.arch, m.machine.isa) == ("aarch64", ["asimd", "asimddp"])
        assert m.machine.cpu.startswith("4 × Cortex-A76, emulated by QEMU 7.2")
        assert m.guest_instructions.n == 20
        assert m.load.before is not None
    for name in ("fp32", "int8"):
        short, long = (result.find(name, 1, length).guest_instructions.p50 for length in (16, 32))
        assert 1.1 * short < long < 4 * short  # more tokens are more work
    assert result.comparisons == result.tokenizers == result.profiles == []
    assert {"onnxruntime", "numpy", "qemu"} == set(result.versions)
    header, _ = make_latency_table(result)
    assert header == ["file", "device", "threads", "length", "guest instructions"]
    assert "NaN" not in json.dumps(result.to_dict())
    assert BenchmarkResult.model_validate_json(result.model_dump_json()) == result
    fp32, int8 = result.answers
    assert (fp32.rows, fp32.provenance, fp32.passed, int8.passed) == (2, Provenance.EMULATED, True, True)
    assert fp32.largest < 1e-5
    assert "2 inputs compared with this machine: largest difference" in fp32.words


@pytest.mark.slow
def test_a_processor_without_dot_product(tools, files):
    connection, feed = connect("qemu-arm64:cortex-a53"), make_feed(5)
    try:
        assert connection.machine().isa == ["asimd"]
        assert compare_answers(files[1], [feed], connection.answers(files[1].file, [feed]), Provenance.EMULATED).passed
        with pytest.raises(InputError, match="1 thread only, not with 2.*Fix: Give --threads 1"):
            connection.open(files[1].file, 2)
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("name", "why"), [("max", "computes int8 models wrongly"), ("max-sme", "wrongly"), ("cortex-a710", "is unknown")]
)
def test_processors_that_are_refused(name, why):
    with pytest.raises(InputError, match=f"{why}.*allowed: cortex-a53, cortex-a72, cortex-a76, neoverse-n1"):
        connect(f"qemu-arm64:{name}")


def test_files_for_accelerators_are_run_where_nothing_is_timed():
    emulated, real = device("qemu-arm64").refusal, device("ssh:host").refusal
    for runtime in Runtime:
        own_engine = runtime is Runtime.OPENVINO
        assert bool(emulated(Format.TFLITE, runtime)) is own_engine
        assert (f"made for {runtime}" in real(Format.TFLITE, runtime)) is (runtime.accelerator or own_engine)
    assert emulated(Format.COREML, None) == "it runs ONNX and TFLite files only"


def test_what_is_missing_and_python_that_fails_in_the_emulator_are_told(monkeypatch, tmp_path):
    def write_program(name, script):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    def refused(error, said):
        with pytest.raises(error, match=said):
            connect("qemu-arm64")

    monkeypatch.setenv("PATH", str(tmp_path))
    refused(MissingBackendError, "apt-get install qemu-user")
    write_program("qemu-aarch64", "exit 1")
    refused(MissingBackendError, "apt-get install gcc")
    write_program("gcc", "exit 1")
    monkeypatch.setenv("POCKETBERT_ARM64_ROOT", str(tmp_path / "root"))
    refused(MissingBackendError, "export POCKETBERT_ARM64_ROOT=FOLDER")
    (tmp_path / "root/usr/bin").mkdir(parents=True)
    (tmp_path / "root/usr/bin/python3.11").write_bytes(b"")
    refused(MachineError, "cannot build the plugin")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    write_program("qemu-aarch64", "echo qemu-aarch64 version 9.1")
    refused(MissingBackendError, "older than 9.0")
    guest = Guest.of("qemu-arm64", PROCESSORS["cortex-a76"], tmp_path)
    assert guest.launcher[1:5] == ("-L", str(tmp_path / "system"), "-cpu", "cortex-a76")
    for printed, said in (
        ("echo 'no such option' >&2; exit 3", "ended with exit status 3: no such option"),
        ("echo hello", "prints something else"),
        ("kill -ILL $$", "ended with signal 4: no output"),  # a kernel for another processor
    ):
        write_program("qemu-aarch64", printed)
        with pytest.raises(MachineError, match=said):
            guest.facts()


def test_the_system_files_describe_the_processor(tmp_path):
    root, folder = tmp_path / "root", tmp_path / "prefix"
    for path in (root / "usr", root / "proc", folder):
        path.mkdir(parents=True)
    write_system_files(PROCESSORS["cortex-a53"], root, folder)
    text = (folder / "proc/cpuinfo").read_text()
    assert text.count("processor\t:") == 4
    assert "0xd03" in text
    assert "asimddp" not in text
    assert (folder / "usr").resolve() == root / "usr"
    assert (folder / "sys/devices/system/cpu/online").read_text() == "0-3\n"


# --- answers ---------------------------------------------------------------------------------------------------------------------


class Answers(CountingConnection):
    """A device that answers as this machine does, except for a change of one number of the files with this name."""

    damaged, change = "", staticmethod(lambda number: np.nextafter(number, np.float32(np.inf)))

    def lengths(self, file):
        return file.open(1).lengths

    def answers(self, file, feeds):
        predictor, out = file.open(1), []
        for feed in feeds:
            logits = predictor.run(add_missing_inputs(predictor, feed))["logits"].copy()
            if self.damaged and self.damaged in file.path.name:
                logits[0, 0] = self.change(logits[0, 0])
            out.append({"logits": logits})
        return out


@pytest.mark.parametrize("damaged", ["", "tflite a8w8 npu"])
def test_terminal_and_report_tell_whose_bits_are_equal(form, make_data, monkeypatch, damaged):
    monkeypatch.setattr(Answers, "damaged", damaged.replace(" ", "_"))
    monkeypatch.setattr("pocketbert.benchmarks.latency.connect", Answers)
    options = BenchmarkOptions(devices=EMULATED[:1], lengths=[16], runs=5, repeats=1, profile=False, label="")
    result = benchmark([form(*WHOLE), form(Format.TFLITE, Scheme.INT8)], SHORT, options)
    assert render_report(make_data(benchmark=result)).count("<small>equal bits</small>") == (1 if damaged else 2)
    for check in result.answers:
        assert check.passed
        assert check.equal is (check.variant != damaged)
        assert 0 < check.largest < 1e-6 or check.equal


class Lost(Answers):
    """A device that breaks off when it is measured."""

    def answers(self, file, feeds):
        raise MachineError("the cable was pulled.")


@pytest.mark.parametrize("devices", ["local,qemu-arm64", "qemu-arm64,local"])
def test_a_device_that_is_lost_takes_no_figures_of_others_with_it(phone, pocketbert, monkeypatch, tmp_path, devices):
    monkeypatch.setattr("pocketbert.benchmarks.latency.connect", lambda n: connect(n) if n == "local" else Lost(n))
    options = ("--runs", 10, "--repeats", 2, "--lengths", 16, "-o", tmp_path / "out.json")
    done = pocketbert("benchmark", "-m", phone, "--device", devices, *options)
    assert done.exit_code == 1, done.output
    assert "not measured: qemu-arm64: the cable was pulled." in done.stderr
    kept = BenchmarkResult.read(tmp_path / "out.json")
    assert kept.failed == {"qemu-arm64": "the cable was pulled."}
    assert {session.device for session in kept.sessions} == {"local"}
    alone = pocketbert("benchmark", "-m", phone, "--device", "qemu-arm64", *options[:-2], "-o", tmp_path / "alone.json")
    assert alone.exit_code == 1
    assert not (tmp_path / "alone.json").exists()


def test_the_command_line_ends_with_3_where_answers_differ(phone, pocketbert, monkeypatch):
    monkeypatch.setattr(Answers, "damaged", "model")
    monkeypatch.setattr(Answers, "change", staticmethod(lambda number: number + 9))
    monkeypatch.setattr("pocketbert.benchmarks.latency.connect", Answers)
    options = ("--runs", 10, "--repeats", 2, "--lengths", 16)
    done = pocketbert("benchmark", "-m", phone, "--device", "qemu-arm64", *options)
    assert done.exit_code == 3, done.output
    assert "inputs compared with this machine: largest difference 9" in done.stderr
    assert "Threads 2 left out: qemu-arm64 measures with 1 at most." in done.stdout  # 1,2 is the default


@pytest.mark.slow
def test_int8_and_static_files_answer_as_on_x86(tools, form):
    variants = [form(*of) for of in FORMS]
    lists = {"devices": EMULATED, "lengths": [16, "text"]}
    options = BenchmarkOptions(runs=5, repeats=1, profile=False, label="", budget_s=400, **lists)
    result = benchmark(variants, SHORT, options)
    assert [s.device for s in result.sessions] == list(EMULATED)
    for session in result.sessions:
        assert [a.variant for a in session.answers] == [v.name for v in variants]
        assert [(a.variant, a.words) for a in session.answers if not a.passed] == []
        for check in session.answers:
            assert (check.rows, check.provenance) == (5, Provenance.EMULATED)  # one of 16 tokens, four texts
            assert check.equal is (check.largest == 0)
        assert all(m.wall is None and m.guest_instructions.p50 > 0 for m in session.measurements)


# --- scripts that use the emulator -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_wheel_predicts_on_arm_as_here_and_needs_its_core_only(
    tools, tiny_model, tmp_path, tmp_path_factory, script
):
    wheel = build_packages(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist"))["wheel"]
    program, texts = script("predict_on_arm64"), ["one two", "a good day", "three bad words and one more"]
    phone = api.export(str(tiny_model("bert")), tmp_path / "phone", ExportOptions(formats=["onnx"], max_length=32))
    records = {r.path: r for r in read_artefacts(phone).models()}
    told = program.predict("cortex-a76", wheel, phone, list(records), texts)
    assert told["machine"] == "aarch64"
    assert told["module"].startswith(told["site"])  # not this checkout
    assert not told["torch"]
    assert told["versions"]["pocketbert"] == version_of("pocketbert")
    assert set(told["files"]) == set(records) == {"onnx/model.onnx", "onnx/model_int8.onnx"}
    for path, record in records.items():
        compared = program.compare(phone, record, texts, told["files"][path])
        assert compared.passed, compared
        assert compared.same == compared.texts == 3
        wrong = copy.deepcopy(told["files"][path])
        wrong["outputs"][0][0][0] += 1.0
        assert not program.compare(phone, record, texts, wrong).passed
