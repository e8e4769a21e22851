"""ModernBERT: two masks, rotary positions, two kinds of layers."""

from __future__ import annotations

import json
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
from pocketbert.core.types import Format
from pocketbert.distill.capture import record_attention
from pocketbert.distill.methods.method import TeacherStudent, map_layers
from pocketbert.distill.methods.minilm import MiniLmDistillation
from pocketbert.distill.methods.task import TaskDistillation
from pocketbert.distill.students.build import build_student
from pocketbert.distill.students.layer_map import layer_map
from pocketbert.export.adapters.modernbert import FirstRowGatedLayer
from pocketbert.export.prepare import prepare
from support.tiny import ENTRIES, NAMES, noisy_model

ROW = find_family("modernbert")
TASK = TASKS[TaskName.TEXT_CLASSIFICATION]
OFF = dict.fromkeys(("attention", "query", "key", "value"), 0)
LOCAL, GLOBAL = "sliding_attention", "full_attention"


def model_of(layers: int = 4, task: TaskName = TASK.name, **changes: Any) -> Any:
    labels = NAMES[:2] if task is TaskName.QUESTION_ANSWERING else NAMES
    return noisy_model("modernbert", layers, TASKS[task].auto_class, labels, **changes)


def inputs_of(length: int, rows: int = 2, padded: int = 0) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 90, (rows, length), generator=torch.Generator().manual_seed(length))
    mask = torch.ones_like(ids)
    if padded:
        mask[-1, -padded:] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("changes", [{}, *ENTRIES["modernbert"].shapes])
@pytest.mark.parametrize("format", Format)
@torch.no_grad()
def test_the_numbers_stay_the_same(changes: dict[str, Any], format: Format) -> None:
    model = model_of(**changes).double()
    module = prepare(model, ROW, TASK, format)
    for inputs in (inputs_of(9), inputs_of(40, 3, 17), inputs_of(1), inputs_of(64, 2, 41)):
        expected = model(**inputs).logits
        # masks and angles are fp32 in every graph
        torch.testing.assert_close(module(**inputs)[0], expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@torch.no_grad()
def test_the_window_would_be_missed() -> None:
    model, wide, inputs = model_of(), model_of(local_attention=128), inputs_of(40)
    assert float((model(**inputs).logits - wide(**inputs).logits).abs().max()) > 0.02


def test_the_last_layer_is_for_one_row_where_the_head_reads_one() -> None:
    for pooling, count in (("cls", 1), ("mean", 0)):
        module = prepare(model_of(classifier_pooling=pooling), ROW, TASK)
        assert sum(isinstance(m, FirstRowGatedLayer) for m in module.modules()) == count


@torch.no_grad()
def test_captured_scores_keep_the_window_with_and_without_padding() -> None:
    for padded in (0, 7):
        model, inputs = model_of(), inputs_of(20, 2, padded)
        model.set_attn_implementation("eager")
        maps = model(**inputs, output_attentions=True).attentions
        given = inputs if padded else {"input_ids": inputs["input_ids"]}
        with record_attention(model, ROW, range(4), [1]) as recorder:
            model(**given)
        real = inputs["attention_mask"].bool()
        for layer, wanted in enumerate(maps):
            found = recorder.scores[layer].softmax(-1).transpose(1, 2)[real]
            torch.testing.assert_close(found, wanted.transpose(1, 2)[real], rtol=0, atol=1e-5)
        far = recorder.scores[1][0, 0, 0, 5:]
        assert float(far.max()) < -5e3  # layer 1 is local, with a window of 4 to either side
        relation = recorder.relations[1]
        again = torch.matmul(relation.query, relation.key.transpose(2, 3)) * relation.query.shape[-1] ** -0.5
        torch.testing.assert_close(again[0, :, 3, :7], recorder.scores[1][0, :, 3, :7], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layers", [2, 4, 6])
def test_students_keep_the_kinds_of_their_layers(layers: int) -> None:
    teacher = model_of(8)
    student = build_student(teacher, ROW, StudentSection(layers=layers), 0)
    kinds = teacher.config.layer_types
    assert student.config.layer_types == kinds[:layers]
    for place, layer in enumerate(student.model.layers):
        sources = [
            n
            for n, other in enumerate(teacher.model.layers, 1)
            if torch.equal(layer.mlp.Wi.weight, other.mlp.Wi.weight)
        ]
        assert len(sources) == 1
        assert kinds[sources[0] - 1] == layer.attention_type == kinds[place]


@pytest.mark.parametrize(("listed", "message"), [([1, 4], "of the kind"), ([2, 3], "the first layer can only start")])
def test_layers_of_another_kind_are_refused(listed: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_student(model_of(6), ROW, StudentSection(layers=2, teacher_layers=listed), 0)


def pair_of(teacher: int, student: int, stage: Any) -> TeacherStudent[Any]:
    return TeacherStudent(model_of(teacher), model_of(student), ROW, stage, "distill.0")


def task_stage(attention: float, layers: list[int] | None = None) -> TaskStage:
    signals = {"logits": 1, "hidden": 1, "attention": attention}
    return TaskStage.model_validate({"method": "task", "steps": 1, "signals": signals, "layers": layers})


@pytest.mark.parametrize("student", [1, 2, 3, 4, 5])
def test_attention_is_learnt_from_a_layer_of_the_same_kind(student: int) -> None:
    pair = pair_of(8, student, task_stage(1))
    theirs, ours = pair.teacher.config.layer_types, pair.student.config.layer_types
    layers = map_layers(pair, attention=True)
    assert [theirs[n - 1] for n in layers] == ours
    assert layers == sorted(layers)
    usual = layer_map(student, 8)
    assert map_layers(pair, attention=False) == usual
    assert usual[0] == layers[0] or theirs[usual[0] - 1] != ours[0]
    done = TaskDistillation(pair.teacher, pair.student, ROW, TASK, pair.stage)
    assert done.layers == layers


def test_attention_of_a_layer_of_another_kind_is_refused() -> None:
    said = r"distill\.0\.layers: layer 2 of the student is of the kind sliding_attention, layer 4 of the teacher of the kind"
    pair = pair_of(6, 2, task_stage(1, [1, 4]))
    with pytest.raises(InputError, match=said):
        TaskDistillation(pair.teacher, pair.student, ROW, TASK, pair.stage)
    pair = pair_of(6, 2, task_stage(0, [1, 4]))
    assert TaskDistillation(pair.teacher, pair.student, ROW, TASK, pair.stage).layers == [1, 4]
    pair.student.config.layer_types = ["chunked_attention"] * 2
    with pytest.raises(InputError, match="Set the weight of attention to 0"):
        map_layers(TeacherStudent(pair.teacher, pair.student, ROW, task_stage(1), "distill.0"), True)


def test_minilm_learns_attention_from_a_layer_of_the_kind_of_the_last() -> None:
    def layer(weights: dict[str, int], wanted: int | None = None) -> int:
        stage = MiniLmStage.model_validate(
            {"method": "minilm", "steps": 1, "weights": {**OFF, **weights}, "teacher_layer": wanted}
        )
        return MiniLmDistillation(model_of(4), model_of(2), ROW, stage).layer + 1

    assert layer({"value": 1}) == 4
    assert layer({"attention": 1}) == 3
    assert layer({"attention": 1}, 2) == 2
    with pytest.raises(InputError, match=r"teacher_layer: layer 2 of the student is of the kind sliding_attention"):
        layer({"attention": 1}, 4)


def written(folder: Path, changes: dict[str, Any], dropped: tuple[str, ...] = ()) -> Path:
    model_of().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    kept = {k: v for k, v in config.items() if k not in dropped}
    (folder / "config.json").write_text(json.dumps({**kept, **changes}))
    return folder


def test_the_published_names_of_rotary_positions_are_read(tmp_path: Path) -> None:
    old = {"global_rope_theta": 80000.0, "local_rope_theta": 500.0, "global_attn_every_n_layers": 2}
    folder = written(tmp_path, old, ("rope_parameters", "layer_types"))
    model = load_model(open_model_folder(str(folder)), TASK)
    assert model.config.rope_parameters[GLOBAL]["rope_theta"] == 80000.0
    assert model.config.rope_parameters[LOCAL]["rope_theta"] == 500.0
    assert model.config.layer_types == [GLOBAL, LOCAL, GLOBAL, LOCAL]


def test_linear_scaling_is_read_and_exported(tmp_path: Path) -> None:
    scaled = {kind: {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0} for kind in (GLOBAL, LOCAL)}
    model = load_model(open_model_folder(str(written(tmp_path, {"rope_parameters": scaled}))), TASK)
    inputs = inputs_of(30)
    with torch.no_grad():
        expected = model(**inputs).logits
        torch.testing.assert_close(prepare(model, ROW, TASK)(**inputs)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_parameters": {GLOBAL: {"rope_type": "dynamic", "factor": 2.0}}}, "has the rope_type dynamic"),
        ({"rope_parameters": [1]}, "an object with rope_type"),
        ({"rope_scaling": {"type": "yarn"}}, "has the rope_type yarn"),
        ({"global_rope_theta": 0}, "a number from 1 to"),
        ({"local_rope_theta": "many"}, "a number from 1 to"),
        ({"rope_parameters": {GLOBAL: {"beta_fast": 2}}}, "beta_fast, which nothing here computes"),
        ({"layer_types": [GLOBAL]}, "one for each layer"),
        ({"layer_types": [GLOBAL, "chunked", GLOBAL, GLOBAL]}, "one for each layer"),
        ({"local_attention": 1 << 30}, "local_attention is"),
    ],
)
def test_what_no_rotary_position_can_be_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        open_model_folder(str(written(tmp_path, changes)))
