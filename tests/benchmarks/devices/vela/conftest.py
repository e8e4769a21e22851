"""A tiny student as whole-graph integers."""

import pytest

from pocketbert.benchmarks.measurement import Variant
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.types import Format, Runtime, Scheme


@pytest.fixture(scope="session")
def npu_file(exported_tflite, open_tiny, tmp_path_factory):
    pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")
    from pocketbert.quantize import weights
    from pocketbert.quantize.files import quantize
    from pocketbert.quantize.table import Plan

    tokenizer = open_tiny("bert", 2)[2]
    rows = [tokenizer.pad([e]) for e in tokenizer.encode(list(SENTENCES)[:8]) if len(e) <= 40]
    path = tmp_path_factory.mktemp("npu") / "model_a8w8_npu.tflite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "SMALL", 512)  # tiny models have no matrix above the usual bound
        quantize(exported_tflite("bert"), path, Plan(Format.TFLITE, Scheme.A8W8, Runtime.NPU, lambda: rows))
    return path


@pytest.fixture
def npu_variant(npu_file, tiny_model):
    return Variant.of("student", npu_file, tiny_model("bert"), 64, Scheme.A8W8, Format.TFLITE, Runtime.NPU)


@pytest.fixture
def float_variant(exported_tflite, tiny_model):
    """The same student in floats, named as if it were made for an NPU."""
    return Variant.of(
        "floats", exported_tflite("bert"), tiny_model("bert"), 64, Scheme.A8W8, Format.TFLITE, Runtime.NPU
    )
