"""The device `litert-npu`: with LiteRT's tool and Qualcomm's libraries where they are, and with a scripted tool anywhere."""

import importlib
import re
from collections import Counter

import pytest
from typer.testing import CliRunner

from pocketbert.benchmarks.devices import litert_npu as compiler
from pocketbert.benchmarks.devices.litert_npu import (
    _UNKNOWN_REASON,
    _connect_litert,
    _last_error,
    _litert_missing,
    _litert_reasons,
    _litert_refusal,
    _LitertCompiler,
)
from pocketbert.benchmarks.devices.vendor_tools import only_signature, operators_of
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, Variant
from pocketbert.benchmarks.records import LeftNodes
from pocketbert.cli.main import app
from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.core.types import Format, Provenance, Scheme
from pocketbert.runtime.tflite import TflitePredictor

DEVICE = "litert-npu:SM8650"
QUALCOMM, MEDIATEK = compiler._VENDORS
WHY_NOT = _litert_missing() or ("" if compiler._find_libraries(QUALCOMM) else "no libraries of Qualcomm")
with_libraries = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
TEXTS = ["a good day", "what a bad day it was", "the day was good"]
# An excerpt of what the plug-in of ai-edge-litert 2.3.0 prints on the demo's int8 file, with the libraries of onnxruntime-qnn 2.7.0.
LOG = """
     0.0ms [ ERROR ]   <E> Unsupported input/output datatypes requested for the HTP Op 'Gather' in the node 'Gather_5'.
QNN op validation failed: 'Gather_5' (type=Gather)
  QNN error=3110. See the QNN validator log lines above for the specific reason.
LiteRT Op #5 'EmbeddingLookup' (code=7) is not supported in Qualcomm Compiler.
LiteRT Op #9 'Cos' (code=108) is not supported in Qualcomm Compiler.
INFO: [compiler_plugin.cc:742] Partitioned subgraph<0>, selected 160 ops, from a total of 162 ops. resulted in 2 partitions.
"""
FAILED = """
[LITERT_TOOLS:APPLY] Starting Select Plugin...
WARNING: [compiler_plugin.cc:312] Failed to load plugin at: /x.so with error: ERROR: [litert/compiler/plugin.cc:259]
└ Could not load shared library /x.so: libQnnLpai.so: cannot open shared object file: No such file or directory.
[LITERT_TOOLS:APPLY] 	Failed
"""


@pytest.fixture
def variant(tiny_model, exported_tflite):
    return Variant.of(
        "student", exported_tflite("bert"), tiny_model("bert"), 32, scheme=Scheme.FP32, format=Format.TFLITE
    )


def compiled(variant, *lengths):
    options = BenchmarkOptions(devices=[DEVICE], lengths=list(lengths), label="", budget_s=60)
    return benchmark([variant], TEXTS, options).compilations


@with_libraries
def test_a_graph_is_compiled_for_one_length(variant):
    (one,) = compiled(variant, 16)
    assert (one.device, one.target, one.length) == (DEVICE, "Qualcomm SM8650", 16)
    assert (one.failed, one.wrong, one.left, one.partitions) == ("", "", [], 1)
    assert one.provenance is Provenance.COMPILED_ONLY
    assert one.op_types["FULLY_CONNECTED"] > 4
    assert one.compiled_bytes > 1000
    assert one.answers is None
    assert one.engine_version.startswith("2.")


def scripted(monkeypatch, tmp_path, script):
    """LiteRT's tool replaced by a shell script; `$out` is the file that it shall write, `$model` the one it is given."""
    (tmp_path / "package/tools").mkdir(parents=True)
    tool = tmp_path / "package" / compiler._TOOL
    tool.write_text(
        '#!/bin/sh\nfor a in "$@"; do case $a in --o=*) out=${a#--o=};; --model=*) model=${a#--model=};; esac; done\n'
        + script
    )
    tool.chmod(0o755)
    libraries = compiler._Libraries(tmp_path, QUALCOMM.sources[0])
    made = _LitertCompiler(*compiler.find_litert_chip("SM8650"), libraries, tmp_path / "package")
    monkeypatch.setattr("pocketbert.benchmarks.latency.compiler_of", lambda name: made)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            "echo 'ERROR: [qnn.cc:101] Unexpected SoC model: SM1'; : > $out; exit 1",
            "status 1; .*Unexpected SoC model: SM1",
        ),
        ("kill -SEGV $$", "the process was ended by SIGSEGV"),
        ("exit 0", "not compiled: no output"),
        ("cp $model $out", r"the plug-in took none of \d+ operators"),  # a tool that did nothing and says it is well
    ],
)
def test_what_is_not_compiled_fails(monkeypatch, tmp_path, variant, script, why):
    scripted(monkeypatch, tmp_path, script)
    (one,) = compiled(variant, 16)
    assert one.failed
    assert re.search(why, one.wrong), one.wrong


def test_lengths_that_a_file_does_not_have_are_those_that_hold_them(monkeypatch, tmp_path, variant):
    scripted(monkeypatch, tmp_path, "exit 1")
    taken = TflitePredictor(variant.path, 1).lengths
    assert [one.length for one in compiled(variant, 3, taken[0])] == [taken[0]]


def test_one_signature_of_several(exported_tflite):
    file = exported_tflite("bert").read_bytes()
    keys = TflitePredictor(exported_tflite("bert"), 1).signature_keys
    longest = max(keys)
    small, graph = only_signature(file, keys[longest])
    assert graph == 0
    before = operators_of(small, 0)
    assert before.compiled == 0
    assert before.counts["FULLY_CONNECTED"] > 4
    assert only_signature(small, keys[longest]) == (small, 0)


def test_the_reasons_of_the_log():
    assert _litert_reasons(LOG) == {
        7: "refused by the validation of the compiler: error 3110",
        108: "refused by the plug-in",
    }
    assert "libQnnLpai.so: cannot open shared object file" in _last_error(FAILED)
    assert _last_error("") == "no output"
    before = compiler.GraphOperators(Counter(EMBEDDING_LOOKUP=1, ADD=3), 0)
    after = compiler.GraphOperators(Counter(EMBEDDING_LOOKUP=1, ADD=1), 2)
    made = compiler._count_compiled(before, after, LOG, 5, 1.0)
    assert made.op_types == {"ADD": 2}
    assert made.partitions == 2
    assert made.left == [
        LeftNodes(op_type="EMBEDDING_LOOKUP", nodes=1, reason="refused by the validation of the compiler: error 3110"),
        LeftNodes(op_type="ADD", nodes=1, reason=_UNKNOWN_REASON),
    ]


def test_a_package_without_libraries_is_none(monkeypatch, tmp_path):
    """What `pip install` leaves behind where the vendor's site cannot be reached."""
    package = tmp_path / "ai_edge_litert_sdk_mediatek"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    assert compiler._find_libraries(MEDIATEK) is None
    monkeypatch.setattr(compiler, "_unsupported_system", str)
    with pytest.raises(MissingBackendError, match="SDK of MediaTek .*pip install ai-edge-litert-sdk-mediatek"):
        _connect_litert("MT6991")
    done = CliRunner().invoke(app, ["devices"])
    assert "litert-npu:SOC\t" in done.stdout
    (package / "v8/host/lib").mkdir(parents=True)
    (package / "v8/host/lib/libneuronusdk_adapter.mtk.so").write_bytes(b"")
    assert compiler._find_libraries(MEDIATEK).folder == package / "v8/host/lib"
    assert _connect_litert("mt6991").target == "MediaTek MT6991"


def test_what_cannot_be_compiled_for(monkeypatch):
    with pytest.raises(InputError, match="unknown SoC 'SM8651'; did you mean 'SM8650'"):
        _connect_litert("SM8651")
    assert _litert_refusal(Format.ONNX, None) == "ONNX does not go through LiteRT"
    assert _litert_refusal(Format.TFLITE, None) == ""
    monkeypatch.setattr(compiler.platform, "machine", lambda: "riscv64")
    with pytest.raises(InputError, match="the compilers need Linux on x86-64"):
        _connect_litert("SM8650")
    assert "need Linux on x86-64" in _litert_missing()


@pytest.mark.parametrize("vendor", compiler._VENDORS, ids=lambda vendor: vendor.name)
def test_the_chips_are_those_of_the_installed_package(vendor):
    target = pytest.importorskip(f"ai_edge_litert.aot.vendors.{vendor.plugin}.target")
    assert sorted(vendor.chips) == sorted(chip.value for chip in target.SocModel if chip.value != "ALL")
