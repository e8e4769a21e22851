"""Shipped recipes of published methods: what the reduced ones leave out, and that the full ones can be started."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.pipeline.recipes import recipe_path, shipped_names
from support.tiny_texts import write_lines

FULL = {
    "distilbert-full": {"distilbert": (None, 3, 2000, 512)},
    "tinybert-full": {
        "tinybert-general": (300_000, None, 256, 128),
        "tinybert-intermediate": (None, 20, 32, 64),
        "tinybert-prediction": (None, 3, 32, 64),
    },
    "minilm-full": {"minilm": (400_000, None, 256, 512)},
    "mobilebert-full": {"mobilebert": (740_000, None, 2048, 512)},
    "ib-bert": {"pretrain": (500_000, None, 4096, 512)},
}
"""Steps, epochs, rows of a step and tokens of a row of each paper."""
SAID = re.compile(r"([\d,]+) of ([\d,]+) (steps of|epochs of|rows of a step|tokens of a row)(?: ([a-z-]+))?")


def protocol(recipe: Recipe) -> dict[str, tuple[Any, ...]]:
    corpus = recipe.data.corpus
    return {
        s.method: (s.steps or None, s.epochs, s.batch, corpus.length if s.general else recipe.data.max_length)
        for s in recipe.distill
    }


@pytest.mark.parametrize("name", FULL)
def test_a_full_recipe_has_the_numbers_of_the_paper(name: str) -> None:
    made = protocol(load_recipe(recipe_path(name)))
    assert {method: made[method] for method in FULL[name]} == FULL[name]


@pytest.mark.parametrize("name", [name for name in FULL if name.endswith("-full")])
def test_a_run_of_a_full_recipe_would_begin(
    name: str, succeed: Callable[..., Any], tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    kind = {
        "distilbert-full": ("bert", 12, "AutoModelForMaskedLM"),
        "mobilebert-full": ("ib-bert", 24, "AutoModelForPreTraining"),
    }
    family, layers, head = kind.get(name, ("bert", 12, "AutoModel"))
    teacher = tiny_model(family, layers, (), auto_class=head)
    files = {
        split: write_lines(
            tmp_path / f"{split}.jsonl", [{"text": f"a good {split} {i}", "label": i % 2} for i in range(40)]
        )
        for split in ("train", "dev", "text")
    }
    changes = [
        f"teacher.model={teacher}",
        f"data.eval={{path: {files['dev']}}}",
        f"data.corpus.sources=[{{path: {files['text']}}}]",
    ]
    small = ["data.max_length=64", "export.lengths=[32,64]"]  # the longest that the tiny models read
    changes += small if name == "distilbert-full" else [f"data.train={{path: {files['train']}}}"]
    succeed("recipes", "validate", name, *changes)
    assert "distill.0" in succeed("run", "--dry-run", "-o", tmp_path / "run", name, *changes).stdout
    assert not (tmp_path / "run").exists()


def test_reduced_recipes_say_of_what_in_one_wording() -> None:
    said = {}
    for name in shipped_names():
        first = recipe_path(name).read_text("utf-8").splitlines()[1]
        recipe = load_recipe(recipe_path(name))
        published = {s.method for s in recipe.distill} & {method for full in FULL.values() for method in full}
        assert first.startswith("# Reduced to ") == bool(published and name not in FULL), name
        if not first.startswith("# Reduced"):
            continue
        (full,) = [
            other
            for other in FULL
            if re.search(f"; {other}\\b(?!-)", first) and first.endswith(" is the published protocol.")
        ]
        own, whole, said[name] = protocol(recipe), FULL[full], SAID.findall(first)
        general = next(s.method for s in recipe.distill if s.general)
        for reduced, of, unit, method in said[name]:
            place = ("steps of", "epochs of", "rows of a step", "tokens of a row").index(unit)
            numbers = tuple(float(n.replace(",", "")) for n in (reduced, of))
            assert numbers == (own[method or general][place], whole[method or general][place]), (name, unit)
    assert set(said) == {
        "fill-mask",
        "wikitext",
        "tinybert",
        "minilm",
        "mobilebert",
        "mobilebert-tiny",
        "mobilebert-mini",
        "ib-bert-mini",
    }
    assert all(said.values())
