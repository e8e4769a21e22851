"""The files of a tiny classifier in every format and scheme, and the modules that they were made of."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs pocketbert[onnx]")

from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.pipeline.gates.stored import PreparedModels
from pocketbert.quantize import Plan, quantize
from support.folders import once
from support.stored_models import CLASSIFY, write_model


def write_files(model: Path, destination: Path) -> None:
    """Every file of a classifier, without the rest of an artefact folder."""
    from pocketbert.core.models.checkpoints import load_model
    from pocketbert.core.models.folder import open_model_folder
    from pocketbert.export import coreml, onnx, tflite
    from pocketbert.export.prepare import prepare

    folder, tokenizer = open_model_folder(str(model)), TextTokenizer(model, 40)
    loaded, family = load_model(folder, CLASSIFY), folder.family
    rows = tokenizer.encode(list(SENTENCES))
    made = {f: prepare(loaded, family, CLASSIFY, f) for f in Format}
    destination.mkdir()
    plain = {
        f: destination / name for f, name in zip(Format, ("model.onnx", "model.tflite", "Model.mlpackage"), strict=True)
    }
    onnx.export(made[Format.ONNX], family, CLASSIFY, tokenizer.pad(rows[:2], 32), plain[Format.ONNX])
    tflite.export(made[Format.TFLITE], family, CLASSIFY, LENGTHS, plain[Format.TFLITE])
    info = coreml.CoremlInfo("a", "1", "b", "c")
    coreml.export(made[Format.COREML], family, CLASSIFY, LENGTHS, plain[Format.COREML], coreml.CoremlForm(), info)
    for name, plan in SMALLER.items():
        if plan.scheme.static:
            plan = replace(plan, rows=lambda: [tokenizer.pad([r]) for r in rows])
        quantize(plain[plan.format], destination / name, plan)


LENGTHS = (16, 40)
SMALLER = {
    "model_int8.onnx": Plan(Format.ONNX, Scheme.INT8),
    "model_a8w8.onnx": Plan(Format.ONNX, Scheme.A8W8),
    "model_small.onnx": Plan(Format.ONNX, Scheme.SMALL),
    "model_int8-b32.onnx": Plan(Format.ONNX, Scheme.INT8_B32),
    "model_w4.onnx": Plan(Format.ONNX, Scheme.W4),
    "model_a8w8_openvino.onnx": Plan(Format.ONNX, Scheme.A8W8, Runtime.OPENVINO),
    "model_a8w8_qnn.onnx": Plan(Format.ONNX, Scheme.A8W8, Runtime.QNN),
    "model_a16w8_qnn.onnx": Plan(Format.ONNX, Scheme.A16W8, Runtime.QNN),
    "model_int8.tflite": Plan(Format.TFLITE, Scheme.INT8),
    "model_w8.tflite": Plan(Format.TFLITE, Scheme.W8),
    "model_fp16.tflite": Plan(Format.TFLITE, Scheme.FP16),
    "model_a8w8.tflite": Plan(Format.TFLITE, Scheme.A8W8),
    "model_small.tflite": Plan(Format.TFLITE, Scheme.SMALL),
    "model_w4.tflite": Plan(Format.TFLITE, Scheme.W4),
    "model_int8_tflite216.tflite": Plan(Format.TFLITE, Scheme.INT8, Runtime.TFLITE_2_16),
    "model_fp16_gpu.tflite": Plan(Format.TFLITE, Scheme.FP16, Runtime.GPU),
    "model_a8w8_npu.tflite": Plan(Format.TFLITE, Scheme.A8W8, Runtime.NPU),
    "model_a16w8_npu.tflite": Plan(Format.TFLITE, Scheme.A16W8, Runtime.NPU),
    "Model_w8.mlpackage": Plan(Format.COREML, Scheme.W8),
    "Model_a8w8.mlpackage": Plan(Format.COREML, Scheme.A8W8),
    "Model_small.mlpackage": Plan(Format.COREML, Scheme.SMALL),
    "Model_w4.mlpackage": Plan(Format.COREML, Scheme.W4),
}


@pytest.fixture(scope="session")
def every_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny BERT as `model` and its files in all formats and schemes as `files`; read-only by convention."""
    for needed in ("litert_torch", "coremltools"):
        pytest.importorskip(needed, reason="needs pocketbert[tflite,coreml]")
    with once(tmp_path_factory, "stored-files") as (folder, there):
        if not there:
            folder.mkdir()
            write_files(write_model(folder / "model", "bert"), folder / "files")
    return folder


@pytest.fixture(scope="session")
def models(every_file: Path) -> PreparedModels:
    """The prepared modules of that BERT."""
    return PreparedModels(every_file / "model", CLASSIFY, 40)


@pytest.fixture
def copied(every_file: Path, tmp_path: Path) -> Callable[[str], Path]:
    """`copied(file)`: a copy of one file, to be broken."""

    def copy(file: str) -> Path:
        source, destination = every_file / "files" / file, tmp_path / Path(file).name
        if source.is_dir():
            shutil.copytree(source, destination)
        else:
            shutil.copyfile(source, destination)
        return destination

    return copy
