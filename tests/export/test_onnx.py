"""ONNX files: the untouched model's numbers, readable by phones, nothing of the machine in them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pocketbert.core.compare.parity import (
    Parity,
    build_probe,
    compare_with_probe,
    count_drawn_rows,
    draw_rows,
    measure_padding_effect,
)
from pocketbert.core.compare.sample_texts import SENTENCES, sample_pairs
from pocketbert.core.errors import GateError, MissingBackendError
from pocketbert.core.families import family_of
from pocketbert.core.predict.predictor import TorchPredictor
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.export import onnx as exporter
from pocketbert.export.onnx import check_readable
from pocketbert.export.prepare import prepare
from pocketbert.runtime.onnx import OnnxPredictor
from support.tiny import BASIC, ENTRIES
from support.tiny_tokenizers import vocabulary

TASK = TASKS[TaskName.TEXT_CLASSIFICATION]
FAMILIES = ["bert", *(pytest.param(f, marks=pytest.mark.slow) for f in BASIC if f != "bert")]
TRACES = (b"/work/", b"/root/", b"/home/", b"/tmp/", b"/usr/", b"site-packages", b".py", b"Traceback", b"stack_trace")


def compare(path: Path, opened: tuple[Any, Any, Any], drawn: Any = (), margin: int = 1) -> Parity:
    """Compare a file with the untouched model on sentences, pairs, and rows of drawn ids."""
    model, folder, tokenizer = opened
    row = folder.family
    texts = [*SENTENCES, *(sample_pairs()[:8] if row.uses_segments else [])]
    reference = TorchPredictor(model, TASK, row.inputs)
    probe = build_probe(reference, tokenizer, texts, [16, 32, 48], TASK, ["logits"], (), drawn)
    return compare_with_probe(OnnxPredictor(path), "file", "model", probe, ["logits"], row.parity_atol / margin)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_file_computes_what_the_model_computes(
    name: str, open_tiny: Callable[..., Any], exported: Callable[[str], Path]
) -> None:
    opened = open_tiny(name, 2)
    row, tokenizer = opened[1].family, opened[2]
    length = tokenizer.max_length
    pairs = [row.uses_segments and i % 2 == 1 for i in range(count_drawn_rows(length))]
    drawn = draw_rows(tokenizer, len(vocabulary(row.tiny["pad_token_id"])), length, pairs)
    assert len(drawn) == 8
    found = compare(exported(name), opened, drawn, margin=2)
    assert found.passed, found
    assert found.mask_effect > 0.1
    rows = tokenizer.encode(list(SENTENCES[:6]))
    assert measure_padding_effect(OnnxPredictor(exported(name)), tokenizer, rows, TASK) < 1e-4


@pytest.mark.parametrize("name", FAMILIES)
def test_phones_can_read_the_file_and_its_bytes_tell_nothing_of_the_machine(
    name: str, exported: Callable[[str], Path]
) -> None:
    path = exported(name)
    model, raw = onnx.load(path), path.read_bytes()
    assert model.ir_version <= 10
    assert max(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")) <= 20
    assert {o.domain for o in model.opset_import} <= {"", "ai.onnx"}
    assert not model.functions
    check_readable(path)
    assert [p.name for p in path.parent.iterdir() if p.suffix not in (".lock", ".onnx")] == []
    assert [trace for trace in (*TRACES, str(Path.home()).encode()) if trace in raw] == []


@pytest.mark.parametrize("name", FAMILIES)
def test_batch_and_length_are_free_and_names_are_those_of_the_tables(
    name: str, exported: Callable[[str], Path]
) -> None:
    signature = OnnxPredictor(exported(name)).signature
    assert tuple(t.name for t in signature.inputs) == family_of(name).inputs
    assert [t.name for t in signature.outputs] == ["logits"]
    assert all(isinstance(axis, str) for t in signature.inputs for axis in t.shape)
    assert {t.dtype for t in signature.inputs} == {"int64"}
    rows, classes = signature.outputs[0].shape
    assert isinstance(rows, str)
    assert classes == 3


def find_constants(model: Any) -> Iterator[tuple[Any, np.ndarray]]:
    """Stored tensors and those in attributes, with their values."""
    attributes = (a for n in model.graph.node for a in n.attribute if a.type == onnx.AttributeProto.TENSOR)
    for tensor in (*model.graph.initializer, *(a.t for a in attributes)):
        yield tensor, numpy_helper.to_array(tensor)


def test_the_graph_is_the_cheap_one_and_its_mask_fits_half_precision(exported: Callable[[str], Path]) -> None:
    model = onnx.load(exported("bert"))
    operators = [n.op_type for n in model.graph.node]
    assert operators.count("ReduceSum") == 1  # the heads of the first row
    assert not {*operators} & {"Where", "IsNaN", "And", "Or", "Not"}
    floats = [v for _, v in find_constants(model) if v.dtype == np.float32]
    assert max(np.abs(v).max() for v in floats) <= 1e4
    scale = ENTRIES["bert"].head_size ** -0.5  # folded into the query's weights
    assert not any(np.isclose(np.abs(v), scale).any() for v in floats if v.size == 1)


def write_small(path: Path, ir: int = 8, opset: int = 17) -> Path:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "small", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)
    path.write_bytes(model.SerializeToString())
    return path


def test_a_file_that_phones_cannot_read_is_refused(tmp_path: Path) -> None:
    check_readable(write_small(tmp_path / "good.onnx", 10, 20))
    with pytest.raises(GateError, match="new.onnx: IR 11, opset 17; phones read IR 10, opset 20"):
        check_readable(write_small(tmp_path / "new.onnx", ir=11))
    with pytest.raises(GateError, match="IR 8, opset 21"):
        check_readable(write_small(tmp_path / "new.onnx", opset=21))


@pytest.mark.parametrize("absent", ["onnx", "onnxscript"])
def test_a_missing_exporter_is_named_with_its_command(
    absent: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(exporter, "version_of", lambda name: None if name == absent else "1")
    with pytest.raises(MissingBackendError, match=rf"{absent} is not installed.*pip install 'pocketbert\[onnx\]'"):
        exporter.export(None, family_of("bert"), TASK, {}, tmp_path / "a.onnx")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["bert", "deberta-v2"])
def test_the_weights_of_an_exported_model_are_freed_with_it(
    name: str, make_classifier: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(exporter, "_MUCH_MEMORY", 0)
    row, model = family_of(name), make_classifier(name, 2, ("a", "b"))
    module = prepare(model, row, TASK)
    example = {name: np.ones((2, 8), np.int64) for name in row.inputs}
    exporter.export(module, row, TASK, example, tmp_path / "model.onnx")
    weights = [weakref.ref(p) for p in (*model.parameters(), *module.parameters())]
    assert len(weights) > 40
    del model, module
    gc.collect()
    assert not [w for w in weights if w() is not None]
