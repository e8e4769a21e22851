from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pocketbert.core.compare.parity import build_probe, compare_with_probe, measure_padding_effect
from pocketbert.core.compare.sample_texts import SENTENCES, sample_pairs
from pocketbert.core.errors import GateError, MissingBackendError
from pocketbert.core.families import family_of
from pocketbert.core.predict.predictor import TorchPredictor
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.export import onnx as exporter
from pocketbert.export.onnx import _MAX_IR, _MAX_OPSET, check_readable, clean_file
from pocketbert.runtime.onnx import OnnxPredictor
from support.tiny import BASIC

TASK = TASKS[TaskName.TEXT_CLASSIFICATION]
FAMILIES = ["bert", *(pytest.param(f, marks=pytest.mark.slow) for f in BASIC if f != "bert")]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_file_computes_what_the_model_computes(
    name: str, open_tiny: Callable[..., Any], exported: Callable[[str], Path]
) -> None:
    model, folder, tokenizer = open_tiny(name, 2)
    family = folder.family
    texts = [*SENTENCES, *(sample_pairs()[:8] if family.uses_segments else [])]
    probe = build_probe(TorchPredictor(model, TASK, family.inputs), tokenizer, texts, [16, 32, 48], TASK, ["logits"])
    predictor = OnnxPredictor(exported(name))
    found = compare_with_probe(predictor, "model.onnx", "model", probe, ["logits"], family.parity_atol)
    assert found.passed, found
    assert found.mask_effect > 0.1
    rows = tokenizer.encode(list(SENTENCES[:6]))
    assert measure_padding_effect(predictor, tokenizer, rows, TASK) < 1e-4


@pytest.mark.parametrize("name", FAMILIES)
def test_phones_can_read_the_file(name: str, exported: Callable[[str], Path]) -> None:
    path = exported(name)
    model = onnx.load(path)
    assert model.ir_version <= _MAX_IR == 10
    assert max(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")) <= _MAX_OPSET == 20
    assert {o.domain for o in model.opset_import} <= {"", "ai.onnx"}
    assert not model.functions
    check_readable(path)
    assert [p.name for p in path.parent.iterdir() if p.suffix not in (".lock", ".onnx")] == []


@pytest.mark.parametrize("name", FAMILIES)
def test_batch_and_length_are_free_and_names_are_those_of_the_tables(
    name: str, exported: Callable[[str], Path]
) -> None:
    signature = OnnxPredictor(exported(name)).signature
    assert tuple(t.name for t in signature.inputs) == family_of(name).inputs
    assert [t.name for t in signature.outputs] == ["logits"]
    assert all(isinstance(axis, str) for t in signature.inputs for axis in t.shape)
    assert {t.dtype for t in signature.inputs} == {"int64"}
    batch, classes = signature.outputs[0].shape
    assert isinstance(batch, str)
    assert classes == 3


@pytest.mark.parametrize("name", FAMILIES)
def test_the_bytes_tell_nothing_of_the_machine(name: str, exported: Callable[[str], Path]) -> None:
    raw = exported(name).read_bytes()
    for trace in (
        b"/work/",
        b"/root/",
        b"/home/",
        b"/tmp/",
        b"/usr/",
        b"site-packages",
        b".py",
        b"Traceback",
        b"stack_trace",
    ):
        assert trace not in raw, trace
    assert str(Path.home()).encode() not in raw


def test_the_mask_is_finite_and_small_enough_for_half_precision(exported: Callable[[str], Path]) -> None:
    model = onnx.load(exported("bert"))
    numbers = [onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.data_type == TensorProto.FLOAT]
    numbers += [
        onnx.numpy_helper.to_array(a.t)
        for n in model.graph.node
        for a in n.attribute
        if a.type == onnx.AttributeProto.TENSOR
    ]
    floats = np.concatenate([n.ravel() for n in numbers if n.dtype == np.float32])
    assert np.isfinite(floats).all()
    assert np.abs(floats).max() <= 1e4
    assert not {n.op_type for n in model.graph.node} & {"Where", "IsNaN", "And", "Or", "Not"}


def test_a_file_whose_mask_was_lost_is_caught(
    open_tiny: Callable[..., Any], exported: Callable[[str], Path], tmp_path: Path
) -> None:
    model = onnx.load(exported("bert"))
    for tensor in model.graph.initializer:
        value = onnx.numpy_helper.to_array(tensor)
        if value.size == 1 and value.dtype == np.float32 and float(value.ravel()[0]) == -1e4:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.zeros_like(value), tensor.name))
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                value = onnx.numpy_helper.to_array(attribute.t)
                if value.size == 1 and value.dtype == np.float32 and float(value.ravel()[0]) == -1e4:
                    attribute.t.CopyFrom(onnx.numpy_helper.from_array(np.zeros_like(value)))
    onnx.save(model, tmp_path / "broken.onnx")
    torch_model, folder, tokenizer = open_tiny("bert", 2)
    reference = TorchPredictor(torch_model, TASK, folder.family.inputs)
    probe = build_probe(reference, tokenizer, SENTENCES, [32], TASK, ["logits"])
    found = compare_with_probe(
        OnnxPredictor(tmp_path / "broken.onnx"),
        "broken",
        "model",
        probe,
        ["logits"],
        folder.family.parity_atol,
    )
    assert not found.passed
    assert found.worst == pytest.approx(found.mask_effect, rel=0.05)


def small_model(path: Path, ir: int = 8, opset: int = 17) -> Path:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "small", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)
    path.write_bytes(model.SerializeToString())
    return path


def test_a_file_that_phones_cannot_read_is_refused(tmp_path: Path) -> None:
    check_readable(small_model(tmp_path / "good.onnx", 10, 20))
    with pytest.raises(GateError, match="new.onnx: IR 11, opset 17; phones read IR 10, opset 20"):
        check_readable(small_model(tmp_path / "new.onnx", ir=11))
    with pytest.raises(GateError, match="IR 8, opset 21"):
        check_readable(small_model(tmp_path / "new.onnx", opset=21))


def test_tidying_drops_notes_of_the_exporter(tmp_path: Path) -> None:
    path = small_model(tmp_path / "a.onnx")
    model = onnx.load(path)
    model.graph.node[0].doc_string = "File /home/me/model.py"
    model.graph.node[0].metadata_props.add(key="pkg.torch.onnx.stack_trace", value="/home/me/model.py")
    model.graph.metadata_props.add(key="a", value="/home/me")
    model.graph.input[0].metadata_props.add(key="a", value="/home/me")
    model.metadata_props.add(key="a", value="/home/me")
    model.ir_version = 13
    path.write_bytes(model.SerializeToString())
    clean_file(path)
    assert b"/home/me" not in path.read_bytes()
    assert onnx.load(path).ir_version == _MAX_IR
    check_readable(path)


@pytest.mark.parametrize("absent", ["onnx", "onnxscript"])
def test_a_missing_exporter_is_named_with_its_command(
    absent: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(exporter, "version_of", lambda name: None if name == absent else "1")
    with pytest.raises(MissingBackendError, match=rf"{absent} is not installed.*pip install 'pocketbert\[onnx\]'"):
        exporter.export(None, family_of("bert"), TASK, {}, tmp_path / "a.onnx")  # type: ignore[arg-type]
