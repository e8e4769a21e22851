"""Which students `student: auto` tries, and the plain recipe of each."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from pocketbert.core.errors import InputError
from pocketbert.core.families import find_family
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.recipe.ladder import list_rungs, rung_recipe
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import TaskName
from pocketbert.pipeline.recipes import student_lines
from support.tiny_task import Task, write_task

CLASSIFY, TAG = TaskName.TEXT_CLASSIFICATION, TaskName.TOKEN_CLASSIFICATION
MINILM = {"num_hidden_layers": 6, "hidden_size": 384, "intermediate_size": 1536}
BASE = {"num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 3072}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = tmp_path_factory.mktemp("ladder") / "task"
    write_task(folder)
    return Task(folder)


@pytest.mark.parametrize(
    ("config", "family", "task_name", "pairs", "expected"),
    [
        (MINILM, "bert", CLASSIFY, False, "static 1 2/768 2 4/768 3 4 6"),
        (BASE, "bert", TAG, False, "static 1 2/1536 2 4/1536 3 4 6"),
        (BASE, "roberta", CLASSIFY, False, "static 1 2/1536 2 4/1536 3 4 6"),
        (BASE, "roberta", CLASSIFY, True, "1 2/1536 2 4/1536 3 4 6"),
        ({"n_layers": 6, "dim": 768, "hidden_dim": 3072}, "distilbert", TAG, False, "static 1 2/1536 2 4/1536 3 4 6"),
        ({"n_layer": 12, "d_model": 768, "d_inner": 3072}, "xlnet", CLASSIFY, False, "1 2/1536 2 4/1536 3 4 6"),
        ({"n_layers": 12, "emb_dim": 1024}, "xlm", TAG, False, "static 1 2 3 4 6"),
        ({"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64}, "bert", TAG, False, "static 1 2/32 2"),
    ],
)
def test_the_rungs_of_a_teacher(
    config: dict[str, Any], family: str, task_name: TaskName, pairs: bool, expected: str
) -> None:
    rungs = list_rungs(config, find_family(family), task_name, pairs)
    names = [f"{r.layers}/{r.width}" if r.width else str(r.layers) if r.layers else "static" for r in rungs]
    assert " ".join(names) == expected
    depth = next(config[k] for k in ("num_hidden_layers", "n_layers", "n_layer") if k in config)
    assert [r.layers for r in rungs if r.is_teacher] == ([depth] if depth in (1, 2, 3, 4, 6) else [])
    assert [r.work for r in rungs] == sorted(r.work for r in rungs)
    assert {r.cost for r in rungs if r.layers == 3} <= {1.0}


def test_a_rung_is_a_plain_recipe(task: Task) -> None:
    recipe = load_recipe(task.recipe, ["student={auto: {keep: 0.9, max_size_mb: 4, max_latency_ms: 2}}"])
    assert recipe.student is not None
    assert recipe.student.auto is not None
    assert recipe.student.auto.text == "90 % of the teacher's score kept, at most 4 MB, at most 2 ms"
    rungs = {r.name: r for r in list_rungs({**MINILM, "num_hidden_layers": 4}, find_family("bert"), CLASSIFY)}
    plain = load_recipe(task.recipe, ["student={layers: 1}"])
    assert rung_recipe(recipe, rungs["layers-1"]) == plain
    assert rung_recipe(recipe, rungs["layers-1"], 0.1) == load_recipe(
        task.recipe, ["student={layers: 1}", "distill.0.steps=8"]
    )
    narrow = rung_recipe(recipe, rungs["layers-2-width-768"]).student
    assert narrow is not None
    assert (narrow.layers, narrow.init, narrow.intermediate) == (2, "pruned", 768)
    (stage,) = rung_recipe(recipe, rungs["static"]).distill
    assert (stage.steps, stage.lr, stage.by_text, stage.needs_labels(CLASSIFY)) == (160, 2e-3, True, True)
    (stage,) = rung_recipe(recipe, rungs["layers-4"]).distill
    assert stage.steps == 1, "it starts as the teacher"


def test_the_lines_that_a_user_copies_are_the_same_recipe(task: Task) -> None:
    recipe = load_recipe(task.recipe, ["student=auto"])
    for rung in list_rungs(MINILM, find_family("bert"), CLASSIFY):
        plain = rung_recipe(recipe, rung)
        lines = yaml.safe_load("\n".join(student_lines(plain)[1:]))
        content = {**recipe.model_dump(mode="json", by_alias=True), **lines}
        assert Recipe.model_validate(content) == plain, rung.name


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["student={auto: {}, layers: 2}"], "layers: auto chooses the student's size"),
        (["student={auto: {keep: 97}}"], "student.auto.keep"),
        (["student={auto: {max_size_mb: 0}}"], "student.auto.max_size_mb"),
        (["student=auto", "distill=[]"], "trains each student in one stage of method task"),
        (["student=auto", "distill.0.layers=[1]"], "distill.0.layers: is a map for one number of layers"),
        (["student=auto", "task=fill-mask", "data.labels=null", "teacher.finetune=null"], "student.auto: students of fill-mask"),
        (["student=auto", "data.train.teacher={column: t}", "teacher.finetune=null"], "student.auto: compares students with a teacher"),
        (["student=auto", "quantize.budget={max_drop: 0.01, students: [{vocabulary: {}}]}"], "student.auto chooses one"),
        (["student=best"], "student"),
    ],
)  # fmt: skip
def test_what_contradicts_a_student_that_the_run_chooses(overrides: list[str], problem: str, task: Task) -> None:
    with pytest.raises(InputError, match=problem):
        load_recipe(task.recipe, overrides)
