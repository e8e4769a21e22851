"""ModernBERT: two masks, rotary positions, two kinds of layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pocketbert.core.errors import InputError
from pocketbert.core.families import find_family
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.recipe.stages import MiniLmStage, TaskStage
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.distill.capture import record_attention
from pocketbert.distill.methods.method import TeacherStudent, map_layers
from pocketbert.distill.methods.minilm import MiniLmDistillation
from pocketbert.distill.methods.task import TaskDistillation
from pocketbert.distill.students.build import build_student
from pocketbert.distill.students.layer_map import layer_map
from pocketbert.export.adapters.modernbert import FirstRowGatedLayer
from pocketbert.export.prepare import prepare
from support.drawn import difference, draw_inputs
from support.published import edit_json
from support.tiny import noisy_model

ROW = find_family("modernbert")
TASK = TASKS[TaskName.TEXT_CLASSIFICATION]
LOCAL, GLOBAL = "sliding_attention", "full_attention"


def model_of(layers: int = 4, **changes: Any) -> Any:
    return noisy_model("modernbert", layers, TASK.auto_class, **changes)


@pytest.mark.parametrize(("pooling", "count"), [("cls", 1), ("mean", 0)])
def test_the_last_layer_is_for_one_row_where_the_head_reads_one(pooling: str, count: int) -> None:
    module = prepare(model_of(classifier_pooling=pooling), ROW, TASK)
    assert sum(isinstance(m, FirstRowGatedLayer) for m in module.modules()) == count


@torch.no_grad()
def test_the_window_would_be_missed() -> None:
    model, wide, inputs = model_of(), model_of(local_attention=128), draw_inputs("modernbert", 40)
    assert float((model(**inputs).logits - wide(**inputs).logits).abs().max()) > 0.02


@torch.no_grad()
def test_captured_scores_keep_the_window_where_no_mask_is_given() -> None:
    model, ids = model_of(), draw_inputs("modernbert", 20, (0, 0))["input_ids"]
    model.set_attn_implementation("eager")
    maps = model(input_ids=ids, output_attentions=True).attentions
    with record_attention(model, ROW, range(4), [1]) as recorder:
        model(input_ids=ids)
    for layer, wanted in enumerate(maps):
        torch.testing.assert_close(recorder.scores[layer].softmax(-1), wanted, rtol=0, atol=1e-5)
    assert float(recorder.scores[1][0, 0, 0, 5:].max()) < -5e3  # layer 1 is local, with a window of 4 to either side
    relation = recorder.relations[1]
    again = torch.matmul(relation.query, relation.key.transpose(2, 3)) * relation.query.shape[-1] ** -0.5
    torch.testing.assert_close(again[0, :, 3, :7], recorder.scores[1][0, :, 3, :7], rtol=1e-4, atol=1e-4)


# Students, whose layers keep their kinds.


@pytest.mark.parametrize("layers", [2, 4, 6])
def test_students_keep_the_kinds_of_their_layers(layers: int) -> None:
    teacher = model_of(8)
    student = build_student(teacher, ROW, StudentSection(layers=layers), 0)
    kinds = teacher.config.layer_types
    assert student.config.layer_types == kinds[:layers]
    for place, layer in enumerate(student.model.layers):
        weight = layer.mlp.Wi.weight
        (source,) = [n for n, other in enumerate(teacher.model.layers) if torch.equal(weight, other.mlp.Wi.weight)]
        assert kinds[source] == layer.attention_type == kinds[place]


@pytest.mark.parametrize(("listed", "message"), [([1, 4], "of the kind"), ([2, 3], "the first layer can only start")])
def test_layers_of_another_kind_are_refused(listed: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_student(model_of(6), ROW, StudentSection(layers=2, teacher_layers=listed), 0)


def pair_of(teacher: int, student: int, attention: float, layers: list[int] | None = None) -> TeacherStudent[Any]:
    signals = {"logits": 1, "hidden": 1, "attention": attention}
    stage = TaskStage.model_validate({"method": "task", "steps": 1, "signals": signals, "layers": layers})
    return TeacherStudent(model_of(teacher), model_of(student), ROW, stage, "distill.0")


def layers_of(pair: TeacherStudent[Any]) -> list[int]:
    return TaskDistillation(pair.teacher, pair.student, ROW, TASK, pair.stage).layers


@pytest.mark.parametrize("student", [1, 2, 3, 4, 5])
def test_attention_is_learnt_from_a_layer_of_the_same_kind(student: int) -> None:
    pair = pair_of(8, student, 1)
    theirs, ours = pair.teacher.config.layer_types, pair.student.config.layer_types
    layers = map_layers(pair, attention=True)
    assert [theirs[n - 1] for n in layers] == ours
    assert layers == sorted(layers) == layers_of(pair)
    usual = layer_map(student, 8)
    assert map_layers(pair, attention=False) == usual
    assert usual[0] == layers[0] or theirs[usual[0] - 1] != ours[0]


def test_attention_of_a_layer_of_another_kind_is_refused() -> None:
    said = r"distill\.0\.layers: layer 2 of the student is of the kind sliding_attention, layer 4 of the teacher of the kind"
    with pytest.raises(InputError, match=said):
        layers_of(pair_of(6, 2, 1, [1, 4]))
    assert layers_of(pair_of(6, 2, 0, [1, 4])) == [1, 4]
    pair = pair_of(6, 2, 1)
    pair.student.config.layer_types = ["chunked_attention"] * 2
    with pytest.raises(InputError, match="Set the weight of attention to 0"):
        map_layers(pair, True)


@pytest.mark.parametrize(
    ("signal", "asked", "layer"), [("value", None, 4), ("attention", None, 3), ("attention", 2, 2), ("attention", 4, 0)]
)
def test_minilm_learns_attention_from_a_layer_of_the_kind_of_the_last(
    signal: str, asked: int | None, layer: int
) -> None:
    weights = {**dict.fromkeys(("attention", "query", "key", "value"), 0), signal: 1}
    values = {"method": "minilm", "steps": 1, "weights": weights, "teacher_layer": asked}
    stage = MiniLmStage.model_validate(values)
    if layer:
        assert MiniLmDistillation(model_of(4), model_of(2), ROW, stage).layer + 1 == layer
        return
    with pytest.raises(InputError, match=r"teacher_layer: layer 2 of the student is of the kind sliding_attention"):
        MiniLmDistillation(model_of(4), model_of(2), ROW, stage)


# Configurations.


def write_folder(folder: Path, changes: dict[str, Any]) -> Path:
    model_of().save_pretrained(folder)
    edit_json(folder / "config.json", **changes)
    return folder


def test_published_names_and_linear_scaling_of_rotary_positions_are_read(tmp_path: Path) -> None:
    old = {"global_rope_theta": 80000.0, "local_rope_theta": 500.0, "global_attn_every_n_layers": 2}
    folder = write_folder(tmp_path, {**old, "rope_parameters": None, "layer_types": None})
    config = load_model(open_model_folder(str(folder)), TASK).config
    assert [config.rope_parameters[kind]["rope_theta"] for kind in (GLOBAL, LOCAL)] == [80000.0, 500.0]
    assert config.layer_types == [GLOBAL, LOCAL, GLOBAL, LOCAL]
    scaled = {kind: {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0} for kind in (GLOBAL, LOCAL)}
    model = load_model(open_model_folder(str(write_folder(tmp_path, {"rope_parameters": scaled}))), TASK)
    assert difference(model, prepare(model, ROW, TASK), draw_inputs("modernbert", 30)) < 1e-5
