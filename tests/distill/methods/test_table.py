"""The table of methods: every row whole, an unknown method refused, a method from outside known to recipes."""

import runpy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field

from pocketbert.core.errors import InputError
from pocketbert.core.recipe.file import recipe_from_values, recipe_schema
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.sections import GeneralText, StagePlace, register_stage, stage_sections
from pocketbert.core.recipe.stages import TaskStage
from pocketbert.distill.methods.method import Heads, Method, MethodSource, register_method
from pocketbert.distill.methods.table import ROWS, find_method
from support.own_method import LOGITS, LogitsStage, registered, train

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def own_method() -> Iterator[None]:
    with registered():
        yield


def read_recipe(**stage: Any) -> Recipe:
    content = {
        "schema": 1,
        "name": "a",
        "task": "text-classification",
        "teacher": {"model": "minilm-l6"},
        "student": {"layers": 1},
        "data": {"train": {"path": "t.jsonl"}, "eval": {"path": "e.jsonl"}},
    }
    return recipe_from_values({**content, "distill": [stage]}, "R")


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_every_row_is_whole(row):
    assert stage_sections()[row.name] is row.section
    assert (row.section.__doc__ or "").startswith(f"Method `{row.name}`: ")
    assert row.section.model_fields["method"].description
    named = {"generator": {"model": "generator"}} if "generator" in row.section.model_fields else {}
    stage = row.section.model_validate({"method": row.name, "steps": 520_000, **named})
    assert find_method(stage) is row
    assert issubclass(row.section, GeneralText) is row.section.general
    needs = row.needs(stage, "distill.0")
    assert needs.heads is Heads.ENCODER or row.section.general
    assert needs.heads is not Heads.ENCODER or not needs.words
    assert stage.problems(StagePlace(0, [stage], 1)) == []


def test_the_table_of_defaults_and_differences_is_current_and_has_methods_of_packages():
    page = runpy.run_path(str(ROOT / "scripts/methods_reference.py"))["page"]
    assert page() == (ROOT / "docs/lab/methods.md").read_text("utf-8"), "run `make reference`"
    assert all(f"\n| `{row.name}` | source |  | {row.source.paper} |\n" in page() for row in ROWS if row.source)
    source = MethodSource("Nobody 2026", {"scale": 2.0, "lr": 1e-4}, (("scores", "a | b", "c"),))
    with registered():
        assert "| `logits` | source | that of its package | not named |" in page()
    with registered(replace(LOGITS, source=source)):
        end = page().rpartition("| `logits` | source |  | Nobody 2026 |\n")[2]
    assert end.splitlines() == [
        "| `logits` | as published | `lr` `1e-4` | the same |",
        "| `logits` | `scale` | `1` | `2` |",
        "| `logits` | scores | a \\| b | c |",
    ]


def test_every_section_has_a_row():
    assert list(stage_sections()) == [row.name for row in ROWS]


def test_a_section_without_code_says_what_is_missing(own_method):
    class Bare(LogitsStage):
        """Method `bare`: nothing."""

        method: Literal["bare"] = Field(description="Distillation method.")  # type: ignore[assignment]

    register_stage(Bare)
    with pytest.raises(LookupError, match=r"'bare' has a section and no code"):
        find_method(Bare(method="bare", steps=1))


def test_one_name_is_one_method(own_method):
    class Other(LogitsStage):
        """Method `logits`: another one."""

    assert register_method(LOGITS) is LOGITS
    with pytest.raises(ValueError, match="'logits' is registered already"):
        register_method(Method(section=Other, train=train))
    with pytest.raises(ValueError, match="'task' is registered already"):
        register_stage(type("Mine", (TaskStage,), {}))


def test_recipes_know_a_method_as_long_as_it_is_registered():
    with registered():
        made = read_recipe(method="logits", steps=3, scale=2)
        assert made.distill == [LogitsStage(method="logits", steps=3, scale=2)]
        assert Recipe.model_validate(made.model_dump(by_alias=True)) == made
        assert "LogitsStage" in recipe_schema()["$defs"]
    assert "LogitsStage" not in recipe_schema()["$defs"]


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ({"method": "minlm"}, r"did you mean 'minilm'\?"),
        ({"method": "logit"}, r"did you mean 'logits'\? \(allowed: distilbert, logits, minilm"),
        ({"method": "logits", "scal": 2}, r"distill.0.scal: unknown key 'scal'; did you mean 'scale'\?"),
        ({"method": "logits", "scale": 10}, r"R distill.0.scale: above 9, the student runs away"),
    ],
)
def test_stages_that_are_wrong_are_refused(stage, message, own_method):
    with pytest.raises(InputError, match=message):
        read_recipe(steps=3, **stage)
