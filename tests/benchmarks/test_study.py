"""The study's plan: arms that are compared differ in what they say, cost the same, and share a teacher."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from study.arms import ARMS, BASE_MINUTES, arm_recipe, teacher_recipe
from study.comparisons import COMPARISONS
from study.sources import Sources, sources

from pocketbert.core.errors import InputError
from pocketbert.core.recipe.file import dump_recipe, load_recipe

BY_NAME = {a.name: a for a in ARMS}


@pytest.fixture
def data(tmp_path: Path) -> Sources:
    for name in ("sst2/train", "sst2/dev", "text/a", "text/b"):
        path = tmp_path / f"{name}.jsonl.gz"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return sources(tmp_path / "sst2", tmp_path / "text")


@pytest.mark.parametrize("minutes", [0.01, 0.5, 1.7, 6.0, 90.0])
@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda c: f"{c.having}-{c.lacking}")
def test_compared_arms_see_as_many_task_rows(comparison, minutes):
    with_it, without = BY_NAME[comparison.having], BY_NAME[comparison.lacking]
    factor = minutes / BASE_MINUTES
    assert with_it.student == without.student
    assert with_it.task_rows(factor) == without.task_rows(factor) > 0


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda c: f"{c.having}-{c.lacking}")
def test_compared_arms_differ_in_one_thing(comparison):
    with_it, without = BY_NAME[comparison.having], BY_NAME[comparison.lacking]
    more = [s.method for s in with_it.stages if s.method not in {w.method for w in without.stages}]
    if "instead" in comparison.what:
        one, other = (arm.stages for arm in (with_it, without))
        assert one[1:] == other[1:]
        assert one[0].strategy != other[0].strategy
        same = {"strategy": "joint", "transfer_steps": None}
        assert one[0].model_copy(update=same) == other[0].model_copy(update=same)
    elif "general" in comparison.what or "transfer" in comparison.what:
        assert with_it.stages[1:] == without.stages
        assert with_it.stages[0].general
    elif "Augmentation" in comparison.what:
        assert [s.model_copy(update={"augmented": False}) for s in with_it.stages] == list(without.stages)
        assert with_it.augmented
        assert not without.augmented
    else:
        assert more == ["tinybert-intermediate"]
        assert with_it.augmented == without.augmented


@pytest.mark.parametrize("arm", ARMS, ids=lambda a: a.name)
def test_an_arm_is_a_recipe_that_can_be_run_alone(arm, data, tmp_path):
    recipe = arm_recipe(arm, data, seed=3, factor=0.1, teacher_steps=7)
    path = tmp_path / "arm.yaml"
    path.write_text(dump_recipe(recipe))
    assert load_recipe(path) == recipe
    assert (recipe.data.corpus is not None) == arm.general
    assert (recipe.data.augment is not None) == arm.augmented


@pytest.mark.parametrize("arm", ARMS, ids=lambda a: a.name)
def test_arms_of_a_seed_have_the_same_teacher(arm, data):
    mine, teacher = arm_recipe(arm, data, 5, 1.0, 9), teacher_recipe(data, 5, 9)
    assert (mine.teacher, mine.seed, mine.task, mine.answer) == (
        teacher.teacher,
        teacher.seed,
        teacher.task,
        teacher.answer,
    )
    changed = {"corpus": None, "augment": None}
    assert mine.data.model_copy(update=changed) == teacher.data


def test_more_minutes_are_more_steps_of_every_stage():
    for arm in ARMS:
        few, many = arm.scaled(0.24), arm.scaled(4)
        assert [s.method for s in few] == [s.method for s in many]
        assert all(a.steps * 200 == b.steps * 12 for a, b in zip(few, many, strict=True))


def test_steps_can_be_scaled_exactly():
    assert all(s.steps % 50 == 0 for a in ARMS for s in a.stages)
    assert all(a.scaled(1.0) == list(a.stages) for a in ARMS)


def test_files_that_are_missing_are_all_named(tmp_path):
    with pytest.raises(InputError) as caught:
        sources(tmp_path / "nothing", tmp_path)
    said = str(caught.value)
    assert "train.jsonl.gz" in said
    assert "dev.jsonl.gz" in said
    assert "--wikitext" in said


def test_without_folders_the_data_come_from_the_hub():
    data = sources(None, None)
    assert (data.train.dataset, data.train.split) == ("nyu-mll/glue", "train")
    assert data.dev.split == "validation"
    assert data.corpus.sources[0].dataset == "Salesforce/wikitext"
