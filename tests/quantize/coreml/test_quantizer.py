from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("coremltools", reason="needs pocketbert[coreml]")

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.disk.files import sha256_path
from pocketbert.core.errors import GateError, MissingBackendError
from pocketbert.core.predict.predictor import join_texts, run_rows
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName, task_of
from pocketbert.core.types import Format, Scheme, Shapes
from pocketbert.export import coreml as exporter
from pocketbert.export.coreml import CoremlForm, CoremlInfo
from pocketbert.export.prepare import prepare
from pocketbert.quantize import coreml, weights
from pocketbert.quantize.coreml import read_stored_numbers, read_weight_types
from pocketbert.quantize.files import quantize
from pocketbert.quantize.table import Plan, find_row
from pocketbert.quantize.weights import Use
from pocketbert.runtime.coreml.evaluator import Evaluator
from pocketbert.runtime.coreml.predictor import CoremlPredictor

LABELS = ("negative", "neutral", "positive")
FORMS = {
    "ios18": CoremlForm(),
    "ios17": CoremlForm(17, Shapes.FIXED, Scheme.FP32),
    "ios16": CoremlForm(16, Shapes.FIXED),
}
W8 = Plan(Format.COREML, Scheme.W8)
MATRICES = 6 * 2 + 2  # in two layers, the pooler and the output


@pytest.fixture(autouse=True)
def small_matrices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have no matrix above the usual bound."""
    monkeypatch.setattr(weights, "SMALL", coreml.THRESHOLD)


@pytest.fixture(scope="module")
def exported(open_tiny: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`exported(form)`: the float package of a tiny classifier."""
    folder = tmp_path_factory.mktemp("coreml")
    task = TASKS[TaskName.TEXT_CLASSIFICATION]

    def make(name: str) -> Path:
        path = folder / f"{name}.mlpackage"
        if not path.exists():
            model, source, _ = open_tiny("bert", 2)
            module = prepare(model, source.family, task, Format.COREML)
            info = CoremlInfo("One sentence.", "v", "a", "l", LABELS)
            exporter.export(module, source.family, task, [16, 40], path, FORMS[name], info)
        return path

    return make


@pytest.mark.parametrize("form", FORMS)
def test_every_weight_and_table_has_the_type_of_the_scheme(
    form: str, exported: Callable[[str], Path], tmp_path: Path
) -> None:
    source, target = exported(form), tmp_path / "w8.mlpackage"
    before, types = read_weight_types(source), quantize(source, target, W8)
    assert types == read_weight_types(target)
    assert find_row(Format.COREML, Scheme.W8).problems(types, "w8") == []
    large = [u for u in types.uses if u.numbers >= 512]
    assert {u.dtype for u in large} == {"int8"}
    assert all(u.per_channel and u.dequantized for u in large)
    assert types.count(Use.MATMUL, "int8") == MATRICES - 1  # the last one has 3 rows
    assert types.count(Use.TABLE, "int8") >= 1
    added = {
        "greater_equal",
        "select",
        "add",
    }  # coremltools checks the indices of a compressed table once more
    assert {k: v for k, v in types.operators.items() if k not in added} == {
        k: v for k, v in before.operators.items() if k not in added
    }
    ratio = {Scheme.FP16: 0.62, Scheme.FP32: 0.36}[FORMS[form].precision]
    assert (types.int8_bytes + types.float_bytes) < ratio * before.float_bytes
    scheme = FORMS[form].precision
    assert find_row(Format.COREML, scheme).problems(before, "x") == []
    assert find_row(Format.COREML, Scheme.W8).problems(before, "x")
    assert find_row(Format.COREML, scheme).problems(types, "x")


@pytest.mark.parametrize("form", FORMS)
def test_answers_stay_close_and_the_description_stays(
    form: str, exported: Callable[[str], Path], open_tiny: Callable[..., Any], tmp_path: Path
) -> None:
    _, folder, _ = open_tiny("bert", 2)
    tokenizer = TextTokenizer(folder.path, 40)
    source, target = exported(form), tmp_path / "w8.mlpackage"
    quantize(source, target, W8)
    rows = tokenizer.encode(list(SENTENCES))
    before, after = (
        join_texts(run_rows(CoremlPredictor(p), tokenizer, rows, task_of("text-classification")))
        for p in (source, target)
    )
    assert 1e-5 < rms_error(after, before) < 0.15
    a, b = Evaluator(source), Evaluator(target)
    assert b.labels == LABELS
    assert b.lengths == a.lengths
    assert a.metadata.items() <= b.metadata.items()
    assert b.specification == a.specification
    assert [f.name for f in b.outputs] == [f.name for f in a.outputs]
    assert not any("date" in k for k in b.metadata)


def test_the_same_package_gives_the_same_bytes(exported: Callable[[str], Path], tmp_path: Path) -> None:
    for name in ("a", "b"):
        quantize(exported("ios18"), tmp_path / f"{name}.mlpackage", W8)
    assert sha256_path(tmp_path / "a.mlpackage") == sha256_path(tmp_path / "b.mlpackage")


def test_stored_numbers_are_all_there_and_a_nan_is_seen(exported: Callable[[str], Path], tmp_path: Path) -> None:
    import shutil

    source = exported("ios16")
    numbers = dict(read_stored_numbers(source))
    assert sum(v.size for v in numbers.values() if v.dtype.kind == "f") > 10_000
    assert all(np.isfinite(v).all() for v in numbers.values() if v.dtype.kind == "f")
    copy = tmp_path / "nan.mlpackage"
    shutil.copytree(source, copy)
    file = copy / "Data/com.apple.CoreML/weights/weight.bin"
    content = bytearray(file.read_bytes())
    content[-2:] = np.array([np.nan], np.float16).tobytes()
    file.write_bytes(content)
    assert any(not np.isfinite(v).all() for _, v in read_stored_numbers(copy) if v.dtype.kind == "f")


def test_a_vector_that_a_product_and_a_normalization_share(open_tiny: Callable[..., Any], tmp_path: Path) -> None:
    model, folder, _ = open_tiny("bert", 1)  # as in a model that was never trained: all biases are zero
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    task = TASKS[TaskName.TEXT_CLASSIFICATION]
    path = tmp_path / "zero.mlpackage"
    module = prepare(model, folder.family, task, Format.COREML)
    info = CoremlInfo("One sentence.", "v", "a", "l", LABELS)
    exporter.export(module, folder.family, task, [16], path, FORMS["ios18"], info)
    assert quantize(path, tmp_path / "w8.mlpackage", W8).int8_matmuls > 5


def test_a_compressor_that_does_nothing_is_an_error(
    exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import coremltools.optimize as cto

    monkeypatch.setattr(cto.coreml, "linear_quantize_weights", lambda model, config: model)
    with pytest.raises(GateError, match="the quantizer did nothing"):
        quantize(exported("ios18"), tmp_path / "w8.mlpackage", W8)


def test_without_coremltools_the_message_names_the_command(
    exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coreml, "version_of", lambda _: None)
    with pytest.raises(MissingBackendError, match=r"pocketbert\[coreml\]"):
        quantize(exported("ios18"), tmp_path / "w8.mlpackage", W8)
