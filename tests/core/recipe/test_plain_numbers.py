"""Every number of a recipe is a number: neither true nor infinite; label names can be told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketbert.core.errors import InputError
from pocketbert.core.recipe.file import load_recipe

GOOD = """\
schema: 1
name: x
task: text-classification
data: {train: {path: a.jsonl}, eval: {path: b.jsonl}}
teacher: {model: minilm-l6, finetune: {steps: 5}}
student: {layers: 2}
distill: [{method: task, steps: 5, lr: 1e-4}]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "r.yaml").write_text(GOOD)
    return tmp_path / "r.yaml"


def test_numbers_written_as_text_stay_numbers(recipe: Path) -> None:
    # YAML reads 1e-4, without a point, as text
    assert load_recipe(recipe, ["verify.max_drop=1e-2"]).verify.max_drop == 0.01


@pytest.mark.parametrize(
    "key",
    [
        "verify.max_drop",
        "schema",
        "seed",
        "distill.0.steps",
        "student.layers",
        "export.lengths.0",
        "distill.0.signals.logits",
        "data.max_length",
        "data.train.max_rows",
        "answer.thresholds",
        "export.opset",
        "export.coreml.ios",
        "benchmark.threads.0",
    ],
)
@pytest.mark.parametrize("value", ["yes", "true", ".inf", ".nan", "inf"])
def test_what_is_no_number_is_refused(recipe: Path, key: str, value: str) -> None:
    if key.endswith(".0") and not key.startswith("distill"):
        key, value = key.removesuffix(".0"), f"[{value}]"
    with pytest.raises(InputError) as caught:
        load_recipe(recipe, [f"{key}={value}"])
    assert all(problem.where.startswith("override") for problem in caught.value.problems)


@pytest.mark.parametrize("value", ["yes", "true", "false"])
def test_switches_stay_switches(recipe: Path, value: str) -> None:
    wanted = value != "false"
    assert load_recipe(recipe, [f"distill.0.freeze_embeddings={value}"]).distill[0].freeze_embeddings is wanted


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ('["a", "a"]', "the label 'a' occurs twice"),
        ('["a", "a "]', "the labels 'a' and 'a ' differ only in what cannot be seen"),
        ('["a", " "]', "the label ' ' is empty"),
        ('["1", "01"]', "the labels '1' and '01' are the same number"),
    ],
)
def test_labels_that_cannot_be_told_apart_are_refused(recipe: Path, labels: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_recipe(recipe, [f"data.labels={labels}"])


def test_a_number_in_quotes_is_named_as_text(recipe: Path) -> None:
    with pytest.raises(InputError, match="'1' is text, not a number. Fix: Write it without quotes."):
        load_recipe(recipe, ["schema='1'"])
