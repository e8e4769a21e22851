"""The device `litert-npu`: with LiteRT's tool and Qualcomm's libraries where they are, and with a scripted tool anywhere."""

import importlib.util
import re
from types import SimpleNamespace

import pytest

from pocketbert.benchmarks.devices import litert_npu
from pocketbert.benchmarks.devices.litert_npu import DEVICE
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions
from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.core.types import Format, Provenance
from pocketbert.runtime.tflite import TflitePredictor

NAME = "litert-npu:SM8650"
READY = any(one.what.startswith("Qualcomm") and not one.problem for one in DEVICE.look())
TEXTS = ["a good day", "what a bad day it was", "the day was good"]
QUALCOMM = ("libQnnHtp.so", "libQnnSystem.so", "libQnnIr.so", "libQnnSaver.so")
# After what the plug-in of ai-edge-litert 2.3.0 prints on the demo's int8 file, with the libraries of onnxruntime-qnn 2.7.0.
LOG = """
     0.0ms [ ERROR ]   <E> Unsupported input/output datatypes requested for the HTP Op 'Gather' in the node 'Gather_5'.
QNN op validation failed: 'Gather_5' (type=Gather)
  QNN error=3110. See the QNN validator log lines above for the specific reason.
LiteRT Op #5 'EmbeddingLookup' (code=7) is not supported in Qualcomm Compiler.
LiteRT Op #9 'Add' (code=0) is not supported in Qualcomm Compiler.
INFO: [compiler_plugin.cc:742] Partitioned subgraph<0>, selected 160 ops, from a total of 162 ops. resulted in 2 partitions.
"""
FAILED = """
[LITERT_TOOLS:APPLY] Starting Select Plugin...
WARNING: [compiler_plugin.cc:312] Failed to load plugin at: /x.so with error: ERROR: [litert/compiler/plugin.cc:259]
└ Could not load shared library /x.so: libQnnLpai.so: cannot open shared object file: No such file or directory.
[LITERT_TOOLS:APPLY] 	Failed
"""


@pytest.fixture
def variant(files):
    return files[1]


def compile_for(variant, *lengths):
    options = BenchmarkOptions(devices=[NAME], lengths=lengths or [16], label="", budget_s=60)
    return benchmark([variant], TEXTS, options).compilations


@pytest.mark.skipif(not READY, reason=f"no LiteRT with the libraries of Qualcomm: {DEVICE.missing()}")
def test_a_graph_is_compiled_for_one_length(variant):
    (one,) = compile_for(variant)
    assert (one.device, one.target, one.length) == (NAME, "Qualcomm SM8650", 16)
    assert (one.failed, one.wrong, one.left, one.partitions, one.answers) == ("", "", [], 1, None)
    assert one.provenance is Provenance.COMPILED_ONLY
    assert one.op_types["FULLY_CONNECTED"] > 4
    assert one.compiled_bytes > 1000
    assert one.engine_version.startswith("2.")


@pytest.fixture
def install(monkeypatch, tmp_path):
    """`install(script)`: LiteRT's tool is a shell script that writes the file `$out` of `$model`; no vendor has libraries.

    Returns `packages(module, *files)`: that package is installed with these files.
    """
    installed, real = {}, importlib.util.find_spec

    def find_spec(module):
        if not module.startswith(("ai_edge_litert", "onnxruntime_qnn")):
            return real(module)
        folder = installed.get(module)
        return folder and SimpleNamespace(submodule_search_locations=[str(folder)])

    def packages(module, *files):
        installed[module] = tmp_path / module
        for name in files:
            path = tmp_path / module / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
        return installed[module]

    def use(script):
        tool = packages("ai_edge_litert", "tools/apply_plugin_main") / "tools/apply_plugin_main"
        read = 'for a in "$@"; do case $a in --o=*) out=${a#--o=};; --model=*) model=${a#--model=};; esac; done'
        tool.write_text(f"#!/bin/sh\n{read}\n{script}\n")
        tool.chmod(0o755)
        return packages

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    monkeypatch.setattr(litert_npu, "_unsupported_system", str)
    return use


def test_operators_and_the_reasons_of_the_log_are_counted(install, write_compiled, variant, tmp_path):
    (tmp_path / "log").write_text(LOG)
    made = write_compiled(variant.path, "DISPATCH_OP", "EMBEDDING_LOOKUP", "ADD", "MUL")
    install(f"cp {made} $out; cat {tmp_path}/log")("ai_edge_litert_sdk_qualcomm", *QUALCOMM)
    (one,) = compile_for(variant)
    assert (one.failed, one.partitions, one.compiled_bytes) == ("", 2, made.stat().st_size)
    assert one.op_types["FULLY_CONNECTED"] > 4
    assert {left.op_type: left.reason for left in one.left} == {
        "EMBEDDING_LOOKUP": "refused by the validation of the compiler: error 3110",
        "ADD": "refused by the plug-in",
        "MUL": "the log of the plug-in gives no reason",
    }


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            "echo 'ERROR: [qnn.cc:101] Unexpected SoC model: SM1'; : > $out; exit 1",
            "status 1; .*Unexpected SoC model: SM1",
        ),
        (f"cat <<'X'\n{FAILED}X\nexit 1", "libQnnLpai.so: cannot open shared object file"),
        ("kill -SEGV $$", "the process was ended by SIGSEGV"),
        ("exit 0", "not compiled: no output"),
        ("cp $model $out", r"the plug-in took none of \d+ operators"),  # a tool that did nothing and says it is well
    ],
)
def test_what_is_not_compiled_fails(install, variant, script, why):
    install(script)("onnxruntime_qnn", *QUALCOMM)
    taken = TflitePredictor(variant.path, 1).lengths
    (one,) = compile_for(variant, 3, taken[0])  # lengths that a file does not have are those that hold them
    assert one.length == taken[0]
    assert one.failed
    assert re.search(why, one.wrong), one.wrong


def test_a_package_without_libraries_is_none(install):
    """What `pip install` leaves behind where the vendor's site cannot be reached."""
    assert "ai-edge-litert is not installed" in DEVICE.missing()
    assert DEVICE.look() == []
    packages = install("exit 1")
    packages("ai_edge_litert_sdk_mediatek", "__init__.py")
    assert "the vendors' libraries are not there (pip install ai-edge-litert-sdk-qualcomm, or" in DEVICE.missing()
    with pytest.raises(MissingBackendError, match="SDK of MediaTek .*pip install ai-edge-litert-sdk-mediatek"):
        DEVICE.compiler("MT6991")
    packages("ai_edge_litert_sdk_mediatek", "v8/host/lib/libneuronusdk_adapter.mtk.so")
    assert DEVICE.compiler("mt6991").target == "MediaTek MT6991"
    assert [bool(one.problem) for one in DEVICE.look()] == [True, False]
    assert DEVICE.missing() == ""


def test_what_cannot_be_compiled_for(monkeypatch):
    with pytest.raises(InputError, match="unknown SoC 'SM8651'; did you mean 'SM8650'"):
        DEVICE.compiler("SM8651")
    assert DEVICE.refusal(Format.ONNX, None) == "ONNX does not go through LiteRT"
    assert DEVICE.refusal(Format.TFLITE, None) == ""
    monkeypatch.setattr(litert_npu.platform, "machine", lambda: "riscv64")
    with pytest.raises(InputError, match="the compilers need Linux on x86-64"):
        DEVICE.compiler("SM8650")
    assert "need Linux on x86-64" in DEVICE.missing()


def test_the_chips_are_those_of_the_installed_package():
    chips = []
    for vendor in ("qualcomm", "mediatek"):
        target = pytest.importorskip(f"ai_edge_litert.aot.vendors.{vendor}.target")
        chips += [chip.value for chip in target.SocModel if chip.value != "ALL"]
    assert sorted(DEVICE.allowed[0].values) == sorted(chips)
