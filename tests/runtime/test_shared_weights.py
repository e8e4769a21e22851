"""Int8 weights that products share are uint8 in memory where int8 products saturate, with the same answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from pocketbert.core.errors import InputError
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.files import quantize
from pocketbert.quantize.table import Plan
from pocketbert.runtime import onnx as engine
from pocketbert.runtime.onnx import convert_shared_weights_to_uint8


@pytest.fixture(scope="module")
def shared(exported: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ALBERT in int8: all its layers read the same weights."""
    path = tmp_path_factory.mktemp("shared") / "model_int8.onnx"
    quantize(exported("albert"), path, Plan(Format.ONNX, Scheme.INT8))
    return path


def tensors(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def products(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [n for n in model.graph.node if n.op_type == "MatMulInteger"]


def without_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    here = describe_machine().model_copy(update={"arch": "x86_64", "isa": ["avx2"]})
    monkeypatch.setattr(engine, "describe_machine", lambda: here)


def test_shared_weights_become_the_same_numbers_in_uint8_and_nothing_else_changes(shared: Path) -> None:
    before, content = onnx.load(shared), convert_shared_weights_to_uint8(shared)
    assert content is not None
    after = onnx.load_from_string(content)
    old, new = tensors(before), tensors(after)
    changed = {name for name in old if old[name].dtype != new[name].dtype}
    readers = [n.input[1] for n in products(before)]
    twice = {name for name in readers if readers.count(name) > 1}
    assert twice
    assert changed == {name for n in products(before) if n.input[1] in twice for name in (n.input[1], n.input[3])}
    for name in changed:
        assert (old[name].dtype, new[name].dtype) == (np.int8, np.uint8)
        np.testing.assert_array_equal(old[name].astype(int) + 128, new[name])
    kept = {t.name: t for t in before.graph.initializer}
    for tensor in after.graph.initializer:
        if tensor.name in changed:
            tensor.CopyFrom(kept[tensor.name])
    assert after == before


def test_answers_are_the_same_on_processors_without_vnni(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.random.default_rng(3).integers(5, 100, (2, 24))
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    found = engine.OnnxPredictor(shared, threads=1).run(feed)["logits"]
    without_vnni(monkeypatch)
    opened, real = list[object](), engine.onnxruntime.InferenceSession
    monkeypatch.setattr(engine.onnxruntime, "InferenceSession", lambda p, *a, **k: opened.append(p) or real(p, *a, **k))
    np.testing.assert_allclose(engine.OnnxPredictor(shared, threads=1).run(feed)["logits"], found, atol=1e-6)
    assert opened == [str(shared), convert_shared_weights_to_uint8(shared)]


def test_files_without_such_weights_and_broken_ones_are_left_to_the_engine(
    exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert convert_shared_weights_to_uint8(exported("bert")) is None
    without_vnni(monkeypatch)
    for raw in (b"", b"garbage" * 50, b"\x3a\xff\xff\x03" * 9):
        (tmp_path / "a.onnx").write_bytes(raw)
        assert convert_shared_weights_to_uint8(tmp_path / "a.onnx") is None
        with pytest.raises(InputError, match=r"a.onnx: ONNX Runtime [\d.]+ refuses the file: "):
            engine.OnnxPredictor(tmp_path / "a.onnx")
