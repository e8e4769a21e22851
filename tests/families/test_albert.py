"""ALBERT: layers that share their weights are stored once, and captured as often as they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pocketbert.core.errors import InputError
from pocketbert.core.families import find_family
from pocketbert.core.model_files import load_model as load_tflite
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Layout, Scheme
from pocketbert.distill.capture import record_attention
from pocketbert.distill.capture.outputs import LayerOutputs
from pocketbert.distill.students.build import build_student
from pocketbert.export import coreml, onnx, tflite
from pocketbert.export.prepare import prepare
from pocketbert.pipeline.inputs import Inputs
from pocketbert.quantize import Plan, quantize
from pocketbert.runtime.onnx import OnnxPredictor
from support.drawn import draw_inputs
from support.tiny import ENTRIES, noisy_model

ROW = find_family("albert")
TASK = TASKS[TaskName.TEXT_CLASSIFICATION]
DEPTH = 4


def model_of(layers: int = DEPTH, **changes: Any) -> Any:
    return noisy_model("albert", layers, TASK.auto_class, **changes)


def test_the_depth_may_be_larger_than_the_weights(tmp_path: Path) -> None:
    model_of().save_pretrained(tmp_path)
    model: Any = load_model(open_model_folder(str(tmp_path)), TASK)
    assert (model.config.num_hidden_layers, len(model.albert.encoder.albert_layer_groups)) == (DEPTH, 1)


@pytest.mark.parametrize("changes", [{}, *ENTRIES["albert"].shapes], ids=str)
@pytest.mark.parametrize(("format", "layout"), [*((f, Layout.PLAIN) for f in Format), (Format.COREML, Layout.ANE)])
def test_a_prepared_module_has_each_stored_layer_once(changes: dict[str, Any], format: Format, layout: Layout) -> None:
    model = model_of(**changes)
    stored = model.config.num_hidden_groups * model.config.inner_group_num
    parameters = prepare(model, ROW, TASK, format, layout).parameters()
    assert sum(p.shape == (64, 32) or p.shape == (64, 32, 1, 1) for p in parameters) == stored


@torch.no_grad()
def test_every_run_of_a_layer_is_captured() -> None:
    model, inputs = model_of(), draw_inputs("albert", 13, (0, 5))
    states = model(**inputs, output_hidden_states=True).hidden_states
    with record_attention(model, ROW, range(DEPTH)) as recorder:
        model(**inputs)
    assert sorted(recorder.scores) == list(range(DEPTH))
    with LayerOutputs(model, ROW.layer_path, [0, 2]) as outputs:
        model(**inputs)
    assert all(torch.allclose(outputs.states[n], states[n + 1], atol=1e-5) for n in (0, 2))
    with LayerOutputs(model, ROW.layer_path, [1], stop=True) as outputs:
        model(**inputs)
        raise AssertionError("the pass went on")
    assert torch.allclose(outputs.states[1], states[2], atol=1e-5)
    with pytest.raises(ValueError, match="which has 4"):
        LayerOutputs(model, ROW.layer_path, [4])


def test_layers_that_cannot_be_counted_neither_teach_nor_learn(tmp_path: Path) -> None:
    model = model_of(inner_group_num=2)
    with pytest.raises(
        InputError, match="inner_group_num is 2, distillation of ALBERT knows 1 only: with inner_group_num"
    ):
        record_attention(model, ROW, ())
    model.save_pretrained(tmp_path)
    recipe = {"schema": 1, "name": "x", "task": TASK.name.value, "teacher": {"model": str(tmp_path)}}
    Inputs(Recipe.model_validate(recipe)).check_exported()
    rows = tmp_path / "rows.jsonl"
    rows.write_text("")
    data = {name: {"path": str(rows)} for name in ("train", "eval")}
    taught = {"student": {"layers": 1}, "distill": [{"method": "task", "steps": 1}], "data": data}
    with pytest.raises(InputError, match="inner_group_num is 2"):
        Inputs(Recipe.model_validate({**recipe, **taught})).check_exported()


@torch.no_grad()
def test_a_student_has_fewer_runs_of_the_same_layers() -> None:
    teacher = model_of(6)
    student = build_student(teacher, ROW, StudentSection(layers=2), 0)
    assert student.config.num_hidden_layers == 2
    assert all(torch.equal(v, teacher.state_dict()[k]) for k, v in student.state_dict().items())
    pair = model_of(6, num_hidden_groups=2)
    half = build_student(pair, ROW, StudentSection(layers=1), 0)
    assert half.config.num_hidden_groups == 1
    ours, theirs = half.albert.encoder.albert_layer_groups, pair.albert.encoder.albert_layer_groups
    assert torch.equal(ours[0].albert_layers[0].ffn.weight, theirs[1].albert_layers[0].ffn.weight)
    with pytest.raises(InputError, match="starts shared layer 1 of the student from several"):
        build_student(pair, ROW, StudentSection(layers=4, teacher_layers=[1, 6, 1, 6]), 0)


def count_matrices(sizes: list[int]) -> int:
    """How often a matrix with as many numbers as the feed-forward part's two is stored."""
    return sizes.count(64 * 32)


def test_onnx_stores_a_shared_layer_once_and_int8_leaves_it_so(tmp_path: Path) -> None:
    import onnx as library

    file, small = tmp_path / "model.onnx", tmp_path / "small.onnx"
    onnx.export(
        prepare(model_of(), ROW, TASK),
        ROW,
        TASK,
        {k: v.numpy() for k, v in draw_inputs("albert", 13, (0, 5)).items()},
        file,
    )
    quantize(file, small, Plan(Format.ONNX, Scheme.INT8))
    for path in (file, small):
        sizes = [int(np.prod(t.dims)) for t in library.load(path).graph.initializer]
        assert count_matrices(sizes) == 2
        assert sizes.count(32 * 32) == 6  # four projections, the pooler, and the table of positions
    inputs = {k: v.numpy() for k, v in draw_inputs("albert", 20, (0, 5)).items()}
    exact, found = (OnnxPredictor(p).run(inputs)["logits"] for p in (file, small))
    assert float(np.abs(found - exact).max()) < 0.5 * float(np.abs(exact).max())


@pytest.mark.slow
def test_tflite_and_core_ml_store_a_shared_layer_once(tmp_path: Path) -> None:
    file, small = tmp_path / "model.tflite", tmp_path / "small.tflite"
    tflite.export(prepare(model_of(), ROW, TASK, Format.TFLITE), ROW, TASK, [16, 40], file)
    quantize(file, small, Plan(Format.TFLITE, Scheme.INT8))
    for path, width in ((file, 4), (small, 1)):
        buffers = load_tflite(path.read_bytes()).buffers
        assert count_matrices([len(b.data) // width for b in buffers if b.data is not None]) == 2
    package, packed = tmp_path / "model.mlpackage", tmp_path / "packed.mlpackage"
    info = coreml.CoremlInfo("d", "1", "a", "l")
    module = prepare(model_of(), ROW, TASK, Format.COREML)
    coreml.export(module, ROW, TASK, [16, 40], package, coreml.CoremlForm(), info)
    quantize(package, packed, Plan(Format.COREML, Scheme.W8))
    parameters = sum(p.numel() for p in model_of().parameters())
    weights = [sum(f.stat().st_size for f in p.rglob("weight.bin")) for p in (package, packed)]
    assert weights[0] < 2.3 * parameters
    assert weights[1] < 1.9 * parameters
