"""QEMU with an Arm system, and the forms of a tiny student."""

import importlib.util
import sys
from functools import cache
from pathlib import Path

import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

from pocketbert.benchmarks.measurement import Variant
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.types import Format, Runtime, Scheme
from support import arm

ROOT = Path(__file__).resolve().parents[4]
LONGEST = 40
FORMS = {
    "onnx int8": (Format.ONNX, Scheme.INT8, None),
    "onnx a8w8": (Format.ONNX, Scheme.A8W8, None),
    "onnx a16w8 qnn": (Format.ONNX, Scheme.A16W8, Runtime.QNN),
    "tflite int8": (Format.TFLITE, Scheme.INT8, None),
    "tflite a8w8": (Format.TFLITE, Scheme.A8W8, None),
    "tflite a8w8 npu": (Format.TFLITE, Scheme.A8W8, Runtime.NPU),
    "tflite a16w8 npu": (Format.TFLITE, Scheme.A16W8, Runtime.NPU),
}


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    """The device can be used while the tests of a module run."""
    if why_not := arm.missing():
        pytest.skip(why_not)
    with pytest.MonkeyPatch.context() as patch:
        arm.use(patch, tmp_path_factory.mktemp("emulator"))
        yield


@pytest.fixture(scope="session")
def files(folder, tmp_path_factory):
    """Two files of the folder's fixture, the second one in dynamic int8."""
    small = tmp_path_factory.mktemp("dynamic") / "student_int8.onnx"
    quantize_dynamic(folder / "student.onnx", small, weight_type=QuantType.QInt8, per_channel=True)
    return [
        Variant.of("fp32", folder / "teacher.onnx", folder, 32, Scheme.FP32),
        Variant.of("int8", small, folder, 32, Scheme.INT8),
    ]


@pytest.fixture(scope="session")
def form(exported, exported_tflite, open_tiny, tiny_model, tmp_path_factory):
    """`form(name)`: one of `FORMS`, such as ``tflite a8w8 npu``, as a file of a tiny student."""
    pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")
    from pocketbert.quantize import weights
    from pocketbert.quantize.files import quantize
    from pocketbert.quantize.table import Plan

    tokenizer, folder = open_tiny("bert", 2)[2], tmp_path_factory.mktemp("forms")
    rows = [tokenizer.pad([e]) for e in tokenizer.encode(list(SENTENCES)) if len(e) <= LONGEST]

    @cache
    def make(name):
        format, scheme, runtime = FORMS[name]
        path = folder / f"{name.replace(' ', '_')}.{format.value}"
        source = exported("bert") if format is Format.ONNX else exported_tflite("bert")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(weights, "SMALL", 512)  # tiny models have no matrix above the usual bound
            quantize(source, path, Plan(format, scheme, runtime, None if scheme is Scheme.INT8 else lambda: rows))
        return Variant.of(name, path, tiny_model("bert", 2), LONGEST, scheme, format, runtime)

    return make


@pytest.fixture
def script(monkeypatch):
    """`script(name)`: a program of scripts/runtimes as a module."""

    def read(name):
        path = ROOT / "scripts" / "runtimes" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"scripts_{name}", path)
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, made)  # dataclasses look there
        spec.loader.exec_module(made)
        return made

    return read
