"""A tiny student in the forms that devices take, and as compilers write it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pocketbert.benchmarks.measurement import Variant
from pocketbert.core.artefacts import ModelRecord, read_artefacts, write_artefacts
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.disk.files import sha256_file
from pocketbert.core.model_files import dump_model, load_model, tflite_schema
from pocketbert.core.types import Format, Runtime, Scheme

LONGEST = 40


@pytest.fixture(scope="session")
def files(tiny_model, exported, exported_tflite) -> list[Variant]:
    """A tiny student as ONNX and as TFLite."""
    words = tiny_model("bert")
    onnx = Variant.of("onnx", exported("bert"), words, 32)
    return [onnx, Variant.of("tflite", exported_tflite("bert"), words, 32, format=Format.TFLITE)]


@pytest.fixture(scope="session")
def form(exported, exported_tflite, open_tiny, tiny_model, tmp_path_factory) -> Callable[..., Variant]:
    """`form(format, scheme, runtime=None)`: a tiny student as such a file."""
    pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")
    from pocketbert.quantize import weights
    from pocketbert.quantize.files import quantize
    from pocketbert.quantize.table import Plan

    tokenizer, folder = open_tiny("bert", 2)[2], tmp_path_factory.mktemp("forms")
    rows = [tokenizer.pad([e]) for e in tokenizer.encode(list(SENTENCES)[:8]) if len(e) <= LONGEST]

    def make(format: Format, scheme: Scheme, runtime: Runtime | None = None) -> Variant:
        name = " ".join(filter(None, (format, scheme, runtime)))
        path = folder / f"{name.replace(' ', '_')}.{format.value}"
        source = exported("bert") if format is Format.ONNX else exported_tflite("bert")
        if not path.is_file():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(weights, "SMALL", 512)  # tiny models have no matrix above the usual bound
                calibrate = None if scheme is Scheme.INT8 else lambda: rows
                quantize(source, path, Plan(format, scheme, runtime, calibrate))
        return Variant.of(name, path, tiny_model("bert", 2), LONGEST, scheme, format, runtime)

    return make


@pytest.fixture
def npu_variant(form) -> Variant:
    return form(Format.TFLITE, Scheme.A8W8, Runtime.NPU)


@pytest.fixture
def float_variant(exported_tflite, tiny_model) -> Variant:
    """The same student in floats, named as if it were made for an NPU."""
    words = tiny_model("bert", 2)
    return Variant.of("floats", exported_tflite("bert"), words, LONGEST, Scheme.A8W8, Format.TFLITE, Runtime.NPU)


@pytest.fixture
def npu_phone(phone, tmp_path) -> Callable[[Path], Path]:
    """`npu_phone(file)`: an artefact folder whose file for an NPU is that one."""

    def make(file: Path) -> Path:
        folder = shutil.copytree(phone, tmp_path / "phone")
        (folder / "tflite").mkdir()
        path = shutil.copy(file, folder / "tflite/model_a8w8_npu.tflite")
        facts = {"format": Format.TFLITE, "scheme": Scheme.A8W8, "runtime": Runtime.NPU, "bytes": 1}
        record = ModelRecord(path="tflite/model_a8w8_npu.tflite", sha256=sha256_file(path), **facts)
        artefacts = read_artefacts(folder)
        write_artefacts(folder, artefacts.model_copy(update={"files": [*artefacts.files, record]}))
        return folder

    return make


@pytest.fixture
def write_compiled(tmp_path) -> Callable[..., Path]:
    """`write_compiled(source, code, *kept)`: the file as an NPU's compiler writes it.

    Of each signature all operators but the `kept` types have gone into two pieces with that custom code.
    """

    def write(source: Path, code: str, *kept: str) -> Path:
        schema = tflite_schema()
        numbers, model = vars(schema.BuiltinOperator), load_model(source.read_bytes())
        custom = schema.OperatorCodeT()
        custom.builtinCode = custom.deprecatedBuiltinCode = numbers["CUSTOM"]
        custom.customCode = code
        model.operatorCodes.append(custom)
        for graph in model.subgraphs:
            stays = [op for op in graph.operators if _number(model, op) in {numbers[name] for name in kept}]
            pieces = [op for op in graph.operators if op not in stays][:2]
            for piece in pieces:
                piece.opcodeIndex, piece.builtinOptions, piece.builtinOptionsType = (
                    len(model.operatorCodes) - 1,
                    None,
                    0,
                )
            graph.operators = [*stays, *pieces]
        path = tmp_path / "compiled.tflite"
        path.write_bytes(dump_model(model))
        return path

    return write


def _number(model, operator) -> int:
    code = model.operatorCodes[operator.opcodeIndex]
    return max(code.builtinCode, code.deprecatedBuiltinCode)
