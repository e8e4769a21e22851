"""The device `qnn-host`: with Qualcomm's compiler and emulator where the package is, and with a scripted worker anywhere."""

import json
import tempfile
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import helper

from pocketbert.benchmarks.devices import qnn
from pocketbert.benchmarks.devices.qnn import CHIPS, DEVICE, UNKNOWN_REASON, UNKNOWN_TYPE, rejection_reasons
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Variant
from pocketbert.benchmarks.records import LeftNodes
from pocketbert.benchmarks.report import make_summary_table, render_report
from pocketbert.benchmarks.report.compiled import describe_compilations, make_compilation_table
from pocketbert.core.errors import InputError
from pocketbert.core.types import Format, Provenance, Runtime, Scheme

with_package = pytest.mark.skipif(bool(DEVICE.missing()), reason=DEVICE.missing())
NAME = "qnn-host:SM8650"


@pytest.fixture(scope="module")
def compiled(folder, texts, tmp_path_factory):
    """A graph that goes as a whole and one with an operator at its end that the provider does not know."""
    place = tmp_path_factory.mktemp("bad")
    model = onnx.load(folder / "student.onnx")
    model.graph.node[-1].output[0] = "before"
    model.graph.node.append(helper.make_node("Erf", ["before"], ["logits"], name="unknown"))
    onnx.save(model, place / "bad.onnx")
    variants = [
        Variant.of("good", folder / "student.onnx", folder, 32, Scheme.FP32),
        Variant.of("bad", place / "bad.onnx", folder, 32, Scheme.FP32),
    ]
    before, temporary = sorted(folder.rglob("*")), tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(temporary))
        options = BenchmarkOptions(devices=[NAME], lengths=[16, "text"], label="", budget_s=60)
        result = benchmark(variants, texts, options)
    assert not list(temporary.iterdir())
    assert sorted(folder.rglob("*")) == before
    assert [p.name for p in place.iterdir()] == ["bad.onnx"]
    return result


@with_package
def test_a_graph_that_goes_is_on_the_npu_as_a_whole_and_an_unknown_operator_is_named(compiled):
    good, bad = compiled.compilations
    assert (good.variant, good.device, good.length) == ("good", NAME, 16)
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
    assert bad.left == [LeftNodes(op_type="Erf", nodes=1, reason=UNKNOWN_TYPE)]
    assert bad.nodes == good.nodes
    lines = "\n".join(describe_compilations(compiled.compilations))
    assert f"bad on {NAME} leaves on the CPU: 1 Erf ({UNKNOWN_TYPE})" in lines
    assert "good on" not in lines


@with_package
def test_nothing_is_shown_as_a_time_of_the_npu(compiled, make_data, tmp_path):
    assert compiled.measurements == compiled.comparisons == compiled.sessions == []
    header, rows = make_compilation_table(compiled.compilations)
    assert not [title for title in header if "ms" in title]
    assert rows[1][header.index("nodes on NPU")] == f"{compiled.compilations[1].nodes} of {rows[1][3].split()[2]}"
    compiled.write(tmp_path / "benchmark.json")
    assert BenchmarkResult.read(tmp_path / "benchmark.json") == compiled
    html = render_report(make_data(benchmark=compiled))
    for words in ("Compiled for an NPU", "Snapdragon 8 Gen 3 (SM8650), Hexagon v75", UNKNOWN_TYPE):
        assert words in html
    assert make_summary_table(make_data(benchmark=compiled))[0] == ["model", "size"]


@pytest.mark.slow
@with_package
@pytest.mark.parametrize("name", sorted(CHIPS))
def test_every_chip_of_the_table_compiles(name, folder, texts):
    one = Variant.of("student", folder / "student.onnx", folder, 32, Scheme.FP32)
    options = BenchmarkOptions(devices=[f"qnn-host:{name}"], lengths=[16], label="", budget_s=1)
    (made,) = benchmark([one], texts, options).compilations
    assert (made.left, made.wrong) == ([], "")


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


def test_reasons_are_read_from_a_recorded_log():
    assert rejection_reasons(LOG) == {
        "node_embedding_1": "refused by the validation of the compiler: error 3110 of Gather",
        "erf": UNKNOWN_TYPE,
        "odd": UNKNOWN_REASON,
    }
    assert rejection_reasons("") == {}


def test_an_unknown_chip_and_a_missing_package_are_told(phone, pocketbert, monkeypatch):
    done = pocketbert("benchmark", "-m", phone, "--device", "qnn-host:SM8651")
    assert done.exit_code == 2
    assert "unknown SoC 'SM8651'; did you mean 'SM8" in done.stderr
    assert ", ".join(sorted(CHIPS)) in done.stderr
    assert qnn.find_qnn_chip("sm8650").model == 57
    monkeypatch.setattr(qnn.platform, "machine", lambda: "riscv64")
    with pytest.raises(InputError, match="the emulator needs Linux on x86-64"):
        DEVICE.compiler("SM8650")
    assert "the emulator needs Linux on x86-64" in DEVICE.missing()
    monkeypatch.setattr(qnn, "version_of", lambda _: None)
    monkeypatch.setattr(qnn, "_unsupported_system", str)
    done = pocketbert("benchmark", "-m", phone, "--device", NAME)
    assert done.exit_code == 4
    assert "onnxruntime-qnn is not installed. Install it with: pip install 'pocketbert[qnn]'" in done.stderr
    (listed,) = [d for d in json.loads(pocketbert("devices", "--json").stdout) if d["name"] == "qnn-host:SOC"]
    assert listed["missing"] == "onnxruntime-qnn is not installed (pip install 'pocketbert[qnn]')"


def test_files_of_other_formats_and_runtimes_are_left_out():
    assert DEVICE.refusal(Format.ONNX, None) == ""
    assert "does not go through" in DEVICE.refusal(Format.TFLITE, None)
    assert DEVICE.refusal(Format.ONNX, Runtime.OPENVINO) == "it is made for openvino"


DIES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)\n"
COMPILES = """
import pathlib, sys
folder = pathlib.Path(sys.argv[1])
groups = '[{{"provider": "QNNExecutionProvider", "nodes": [["a", "MatMul"]]}}]'
(folder / "told.json").write_text('{{"groups": %s, "compile_s": 1, "bytes": 7, "failed": "{}"}}' % groups)
"""


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (DIES, {"failed": "the process was ended by SIGSEGV"}),
        (
            COMPILES.format("") + DIES,
            {
                "op_types": {"MatMul": 1},
                "bytes": 7,
                "answers": [],
                "stopped": "the emulator stopped after 0 rows: the process was ended by SIGSEGV",
            },
        ),
        (COMPILES.format("QNN_COMMON_ERROR_MEM_ALLOC"), {"failed": "QNN_COMMON_ERROR_MEM_ALLOC"}),
        ("import time; time.sleep(60)", {"failed": "the process did not end within 0 s"}),
        ("", {"failed": "the compiler ended without an outcome that can be read"}),
    ],
    ids=["crash", "crash of the emulator", "not compiled", "hang", "no outcome"],
)
def test_a_library_that_fails_crashes_or_hangs_keeps_what_was_compiled(monkeypatch, folder, script, told):
    monkeypatch.setattr(qnn, "_WORKER", ("-c", script))
    monkeypatch.setattr(qnn, "_unsupported_system", str)
    monkeypatch.setattr(qnn, "version_of", lambda _: "1")
    if "sleep" in script:
        monkeypatch.setattr(qnn, "_COMPILE_S", 0.2)
        monkeypatch.setattr(qnn, "_ROW_S", 0.0)
    predictor = Variant.of("student", folder / "student.onnx", folder, 32, Scheme.FP32).file.open(1)
    feed = {name: np.ones((1, 16), np.int64) for name in ("input_ids", "attention_mask")}
    made = DEVICE.compiler("SM8650").compile(predictor, folder / "student.onnx", 16, [feed, feed], 0.0)
    assert SimpleNamespace(**{name: getattr(made, name) for name in told}) == SimpleNamespace(**told)
