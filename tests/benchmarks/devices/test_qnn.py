"""The device `qnn-host`: with Qualcomm's compiler and emulator where the package is, and with a scripted worker anywhere."""

import json
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from typer.testing import CliRunner

from pocketbert.benchmarks.compiling import _SCALED, Target, compile_for
from pocketbert.benchmarks.devices import Compiled, Device, register_device, unregister_device
from pocketbert.benchmarks.devices import qnn as compiler
from pocketbert.benchmarks.devices.qnn import (
    CHIPS,
    UNKNOWN_REASON,
    UNKNOWN_TYPE,
    _connect_qnn,
    _qnn_missing,
    _qnn_refusal,
    _QnnCompiler,
    find_qnn_chip,
    rejection_reasons,
)
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Variant
from pocketbert.benchmarks.records import Compilation, LeftNodes
from pocketbert.benchmarks.report import ModelRow, ReportData, make_summary_table, render_report
from pocketbert.benchmarks.report.compiled import describe_compilations, make_compilation_table
from pocketbert.cli.main import app
from pocketbert.core.compare.evaluate import EvalSet
from pocketbert.core.data.examples import Example
from pocketbert.core.data.labels import Labels
from pocketbert.core.devices import DeviceInfo, DeviceName, Figure
from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.core.heads.table import make_head
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import BenchmarkSection
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Provenance, Runtime, Scheme
from pocketbert.pipeline.make.measuring import measure, section_options

WHY_NOT = _qnn_missing()
FIGURES = {Figure.ANSWERS: Provenance.EMULATED, Figure.PLACEMENT: Provenance.COMPILED_ONLY}
with_package = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
# An excerpt of the verbose log of onnxruntime 1.31.1 with onnxruntime-qnn 2.7.0 on the demo's int8 file and on a graph with Erf.
LOG = """
2026-11-24 [V:onnxruntime:, qnn_model_wrapper.cc:557 CreateQnnNode] Qnn_OpConfig node name: node_embedding_1 package_name: qti.aisw
2026-11-24 [W:onnxruntime:, qnn_model_wrapper.cc:565 CreateQnnNode] QNN.backendValidateOpConfig() failed for node `node_embedding_1` of type `Gather` with error code 3110

2026-11-24 [V:onnxruntime:, qnn_execution_provider.cc:1713 LogNodeSupport] Validation FAILED for 1 nodes in OrtNodeUnit (Gather) :
	Operator type: Gather Node name: node_embedding_1 Node index: 3
	REASON : Failed to add node.

2026-11-24 [V:onnxruntime:, qnn_execution_provider.cc:1713 LogNodeSupport] Validation FAILED for 1 nodes in OrtNodeUnit (Erf) :
	Operator type: Erf Node name: erf Node index: 2
	REASON : Operators of type `Erf` are not supported by QNN EP.Erf node `erf` will not be assigned to QNN EP.

2026-11-24 [V:onnxruntime:, qnn_execution_provider.cc:1713 LogNodeSupport] Validation FAILED for 1 nodes in OrtNodeUnit (Cast) :
	Operator type: Cast Node name: odd Node index: 7
	REASON : Failed to add node.
"""


def pocketbert(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def write_bad(source, destination):
    """The same graph with an operator at its end that the provider does not know."""
    model = onnx.load(source)
    model.graph.node[-1].output[0] = "before"
    model.graph.node.append(helper.make_node("Erf", ["before"], ["logits"], name="unknown"))
    onnx.save(model, destination)


@pytest.fixture
def one(folder):
    return Variant.of("student", folder / "student.onnx", folder, 32, Scheme.FP32)


@pytest.fixture(scope="module")
def compiled(folder, texts, tmp_path_factory):
    """A graph that goes as a whole and one that does not, on one chip."""
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    place = tmp_path_factory.mktemp("bad")
    write_bad(folder / "student.onnx", place / "bad.onnx")
    variants = [
        Variant.of("good", folder / "student.onnx", folder, 32, Scheme.FP32),
        Variant.of("bad", place / "bad.onnx", folder, 32, Scheme.FP32),
    ]
    before = sorted(folder.rglob("*")), sorted(place.rglob("*"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
        options = BenchmarkOptions(devices=["qnn-host:SM8650"], lengths=[16, "text"], label="", budget_s=60)
        result = benchmark(variants, texts, options)
        assert not list(tmp_path_factory.getbasetemp().glob("temporary*/*"))
    assert (sorted(folder.rglob("*")), sorted(place.rglob("*"))) == before
    return result


@with_package
def test_a_graph_that_goes_is_on_the_npu_as_a_whole(compiled):
    good = compiled.compilations[0]
    assert (good.variant, good.device, good.length) == ("good", "qnn-host:SM8650", 16)
    assert (good.left, good.partitions, good.failed, good.wrong) == ([], 1, "", "")
    assert good.op_types["MatMul"] == 2
    assert good.compiled_bytes > 1000
    assert good.provenance is Provenance.COMPILED_ONLY
    answers = good.answers
    assert answers.provenance is Provenance.EMULATED
    assert answers.rows == answers.available == 12
    assert answers.passed
    assert 0 < answers.largest < answers.tolerance  # fp16, and no copy of this machine's answer
    assert answers.same >= 0.9


@with_package
def test_an_operator_that_does_not_go_is_named_with_its_reason(compiled):
    bad = compiled.compilations[1]
    assert bad.left == [LeftNodes(op_type="Erf", nodes=1, reason=UNKNOWN_TYPE)]
    assert bad.nodes == compiled.compilations[0].nodes
    lines = "\n".join(describe_compilations(compiled.compilations))
    assert f"bad on qnn-host:SM8650 leaves on the CPU: 1 Erf ({UNKNOWN_TYPE})" in lines
    assert "good on" not in lines


@with_package
def test_nothing_is_shown_as_a_time_of_the_npu(compiled, tmp_path):
    assert compiled.measurements == compiled.comparisons == compiled.sessions == []
    header, rows = make_compilation_table(compiled.compilations)
    assert not [title for title in header if "ms" in title]
    assert rows[1][header.index("nodes on NPU")] == f"{compiled.compilations[1].nodes} of {rows[1][3].split()[2]}"
    compiled.write(tmp_path / "benchmark.json")
    assert BenchmarkResult.read(tmp_path / "benchmark.json") == compiled
    data = ReportData(
        title="t",
        task=TaskName.TEXT_CLASSIFICATION,
        machine=compiled.machine,
        rows=[ModelRow(name=v.name, bytes=v.bytes) for v in compiled.variants],
        benchmark=compiled,
    )
    html = render_report(data)
    assert "Compiled for an NPU" in html
    assert "Snapdragon 8 Gen 3 (SM8650), Hexagon v75" in html
    assert UNKNOWN_TYPE in html
    assert make_summary_table(data)[0] == ["model", "size"]


@pytest.mark.slow
@with_package
@pytest.mark.parametrize("name", sorted(CHIPS))
def test_every_chip_of_the_table_compiles(name, one, texts):
    options = BenchmarkOptions(devices=[f"qnn-host:{name}"], lengths=[16], label="", budget_s=1)
    (made,) = benchmark([one], texts, options).compilations
    assert (made.left, made.wrong) == ([], "")


def test_reasons_are_read_from_a_recorded_log():
    assert rejection_reasons(LOG) == {
        "node_embedding_1": "refused by the validation of the compiler: error 3110 of Gather",
        "erf": UNKNOWN_TYPE,
        "odd": UNKNOWN_REASON,
    }
    assert rejection_reasons("") == {}


def test_an_unknown_chip_is_told_with_those_that_are_known(phone):
    assert find_qnn_chip("sm8650").model == 57
    done = pocketbert("benchmark", "-m", phone, "--device", "qnn-host:SM8651")
    assert done.exit_code == 2
    assert "unknown SoC 'SM8651'; did you mean 'SM8" in done.stderr
    assert ", ".join(sorted(CHIPS)) in done.stderr


def test_the_missing_package_is_told_with_the_command(phone, monkeypatch):
    monkeypatch.setattr(compiler, "version_of", lambda _: None)
    monkeypatch.setattr(compiler, "_unsupported_system", str)
    done = pocketbert("benchmark", "-m", phone, "--device", "qnn-host:SM8650")
    assert done.exit_code == 4
    assert done.stderr.strip().endswith(
        "onnxruntime-qnn is not installed. Install it with: pip install 'pocketbert[qnn]'"
    )
    (listed,) = [d for d in json.loads(pocketbert("devices", "--json").stdout) if d["name"] == "qnn-host:SOC"]
    assert listed["missing"] == "onnxruntime-qnn is not installed (pip install 'pocketbert[qnn]')"
    monkeypatch.undo()
    monkeypatch.setattr(compiler.platform, "machine", lambda: "riscv64")
    with pytest.raises(InputError, match="the emulator needs Linux on x86-64"):
        _connect_qnn("SM8650")


def test_files_of_other_formats_and_runtimes_are_left_out():
    assert _qnn_refusal(Format.ONNX, None) == ""
    assert "does not go through" in _qnn_refusal(Format.TFLITE, None)
    assert _qnn_refusal(Format.ONNX, Runtime.OPENVINO) == "it is made for openvino"


def scripted(monkeypatch, one, texts, script):
    """What is told of a file where the worker is a script; the folder of the job is its argument."""
    monkeypatch.setattr(compiler, "_WORKER", ("-c", script))
    made = _QnnCompiler(find_qnn_chip("SM8650"))
    feed = {"input_ids": np.ones((1, 16), np.int64), "attention_mask": np.ones((1, 16), np.int64)}
    return made.compile(one.file.open(1), one.path, 16, [feed, feed], 0.0)


DIES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
COMPILES = """
import pathlib, sys
folder = pathlib.Path(sys.argv[1])
groups = '[{"provider": "QNNExecutionProvider", "nodes": [["a", "MatMul"]]}]'
(folder / "told.json").write_text('{"groups": %s, "compile_s": 1, "bytes": 7, "failed": "%s"}' % (groups, FAILED))
"""


def test_a_library_that_crashes_does_not_end_the_benchmark(monkeypatch, one, texts):
    assert scripted(monkeypatch, one, texts, DIES).failed == "the process was ended by SIGSEGV"


def test_a_crash_of_the_emulator_keeps_what_was_compiled(monkeypatch, one, texts):
    made = scripted(monkeypatch, one, texts, "FAILED = ''" + COMPILES + DIES)
    assert (made.op_types, made.bytes, made.answers) == ({"MatMul": 1}, 7, [])
    assert made.stopped == "the emulator stopped after 0 rows: the process was ended by SIGSEGV"


def test_a_file_that_does_not_compile_is_told(monkeypatch, one, texts):
    made = scripted(monkeypatch, one, texts, "FAILED = 'QNN_COMMON_ERROR_MEM_ALLOC'" + COMPILES)
    assert made.failed == "QNN_COMMON_ERROR_MEM_ALLOC"


def test_a_library_that_hangs_is_ended(monkeypatch, one, texts):
    monkeypatch.setattr(compiler, "_COMPILE_S", 0.2)
    monkeypatch.setattr(compiler, "_ROW_S", 0.0)
    made = scripted(monkeypatch, one, texts, "import time; time.sleep(60)")
    assert made.failed == "the process did not end within 0 s"


class _Exact:
    """A compiler whose emulator answers three rows, and those as this machine does."""

    method, target, engine, engine_version = "scripted", "a chip", "nothing", "1"

    def compile(self, predictor, path, length, feeds, budget_s):
        return Compiled(op_types={"MatMul": 2}, partitions=1, answers=[dict(predictor.run(f)) for f in feeds[:3]])


class _Slow:
    """A compiler whose emulator answers one row, and that a little wrong."""

    method, target, engine, engine_version = "scripted", "a chip", "nothing", "1"

    def compile(self, predictor, path, length, feeds, budget_s):
        self.largest = [float(np.abs(predictor.run(f)["logits"]).max()) for f in feeds]
        told = predictor.run(feeds[0])["logits"] + np.float32(0.04 * max(self.largest))
        return Compiled(op_types={"MatMul": 2}, partitions=1, answers=[{"logits": told}])


class _Stuck:
    """A compiler whose emulator answers zeros."""

    method, target, engine, engine_version = "scripted", "a chip", "nothing", "1"

    def compile(self, predictor, path, length, feeds, budget_s):
        assert {f["input_ids"].shape for f in feeds} == {(1, length)}
        return Compiled(op_types={"MatMul": 2}, partitions=1, answers=[{"logits": np.zeros((1, 3), np.float32)}])


@pytest.fixture
def stuck():
    register_device(Device(DeviceInfo("stuck", FIGURES, "a script"), refusal=_qnn_refusal, compiler=lambda _: _Stuck()))
    yield
    unregister_device("stuck")


@pytest.mark.usefixtures("stuck")
def test_wrong_answers_of_the_emulator_end_with_exit_code_3(phone):
    done = pocketbert("benchmark", "-m", phone, "--device", "stuck", "--lengths", 16)
    assert done.exit_code == 3, done.output
    assert "on stuck, 16 tokens: 1 rows compared with this machine's CPU: largest difference" in done.stderr
    assert "No NPU was timed" in done.stdout


@pytest.mark.usefixtures("stuck")
def test_it_is_measured_and_compiled_in_one_benchmark(phone, tmp_path):
    arguments = ["--runs", 10, "--repeats", 2, "--lengths", 16, "--threads", 1, "-o", tmp_path / "benchmark.json"]
    pocketbert("benchmark", "-m", phone, "--device", "stuck", "--device", "local", *arguments)
    result = BenchmarkResult.read(tmp_path / "benchmark.json")
    assert [s.device for s in result.sessions] == ["local"]
    assert [(c.device, c.length) for c in result.compilations] == [("stuck", 16)]


def test_one_row_with_small_answers_is_held_against_the_largest_of_more_rows(one, texts):
    name, slow = DeviceName(DeviceInfo("slow", FIGURES, "a script")), _Slow()
    options = BenchmarkOptions(lengths=[16], label="")
    (made,) = compile_for([Target(name, slow, [one])], texts, options, 1.0)
    assert (made.answers.rows, made.answers.available) == (1, len(slow.largest))
    assert len(slow.largest) <= _SCALED
    assert slow.largest[0] < max(slow.largest)
    assert made.answers.tolerance == pytest.approx(0.05 * max(slow.largest))
    assert made.answers.passed


def test_emulated_rows_are_scored_on_labelled_data(one, texts):
    labels = ["a", "b", "c"]
    head = make_head(TASKS[TaskName.TEXT_CLASSIFICATION], Labels(tuple(labels)))
    tokenizer = TextTokenizer(one.tokenizer, one.max_length)
    rows = [Example(text, None, labels[i % 3], i) for i, text in enumerate(texts)]
    labelled = EvalSet("dev", head, head.prepare(rows, tokenizer, "dev"))
    name = DeviceName(DeviceInfo("exact", FIGURES, "a script"))
    options = BenchmarkOptions(lengths=[16], label="")
    (made,) = compile_for([Target(name, _Exact(), [one])], texts, options, 1.0, labelled)
    answers = made.answers
    assert (answers.rows, answers.available, answers.largest) == (3, 12, 0.0)
    assert (answers.score.rows, answers.score) == (3, answers.score_here)
    assert answers.score_words.startswith("accuracy ")
    header, (row,) = make_compilation_table([made])
    assert row[header.index("score (emulated)")] == answers.score_words


def test_labelled_data_needs_an_emulator(phone, tmp_path):
    (tmp_path / "dev.csv").write_text("text,label\nset an alarm,a\n")
    done = pocketbert("benchmark", "-m", phone, "--data", tmp_path / "dev.csv")
    assert done.exit_code == 2
    assert "--data: is scored on devices with an emulator of an NPU only" in done.stderr


@pytest.mark.usefixtures("stuck")
def test_a_recipe_may_name_it_without_a_device_that_runs_files(one, texts, tmp_path):
    section = BenchmarkSection(devices=["stuck"], threads=[1], runs=10, repeats=2)
    result = measure([one], texts, section_options(section, [16]), root=one.path.parent)
    assert repr(result) == "<BenchmarkResult 1 files, 0 measurements, 1 compilations on stuck>"
    assert [v.path for v in result.variants] == [Path("student.onnx")]
    result.write(tmp_path / "benchmark.json")
    again = BenchmarkResult.read(tmp_path / "benchmark.json")
    assert (again.sessions, again.headline.timed, again.compilations) == ([], False, result.compilations)


@pytest.mark.usefixtures("stuck")
def test_recording_needs_a_device_that_runs_files(phone):
    done = pocketbert("benchmark", "-m", phone, "--device", "stuck", "--record")
    assert done.exit_code == 2
    assert "--record" in done.stderr


def test_no_compiler_is_started_for_an_empty_list():
    assert compile_for([], [], BenchmarkOptions(label=""), 1.0) == []


def test_a_missing_package_is_an_error_of_its_own():
    assert MissingBackendError("x", "y").exit_code == 4
    assert Compilation.model_fields["provenance"].is_required()
