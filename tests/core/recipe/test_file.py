"""Recipe files: paths, overrides and numbers; every mistake is named with its line, all at once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import yaml

from pocketbert.core.errors import InputError
from pocketbert.core.recipe.file import dump_recipe, load_recipe, recipe_schema
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.pipeline.recipes import recipe_path

GOOD = """\
schema: 1
name: films-phone
task: text-classification
seed: 7
data:
  train: {path: train.jsonl.gz}
  eval: {path: ../dev.csv, text: sentence}
  labels: [negative, positive]
teacher: {model: ./teacher}
student: {layers: 3}
distill:
  - {method: task, steps: 12, lr: 1e-4, signals: {logits: 1, hidden: 0}}
  - method: task
    steps: 5
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "here" / "recipe.yaml"
    path.parent.mkdir()
    path.write_text(GOOD)
    return path


def list_problems(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        load_recipe(path, overrides)
    return [line.replace(str(path), "R") for line in str(caught.value).splitlines()]


def edit(path: Path, *changes: tuple[str, str]) -> Path:
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


def test_a_good_recipe_and_what_is_dumped_of_it_load_equal(recipe: Path, tmp_path: Path) -> None:
    made = load_recipe(recipe, ["benchmark.runs=11"])
    assert made.name == "films-phone"
    assert made.distill[0].lr == 1e-4
    assert (made.distill[0].signals.hidden, made.distill[1].signals.hidden) == (0, 1)
    assert load_recipe(recipe).benchmark is None
    other = tmp_path / "resolved.yaml"
    other.write_text(dump_recipe(made))
    assert load_recipe(other) == made
    assert yaml.safe_load(other.read_text())["distill"][0]["temperature"] == 2.0


# Paths


def read_paths(made: Recipe) -> tuple[str | None, str | None, str]:
    assert made.data.train is not None
    assert made.data.eval is not None
    return made.data.train.path or made.data.train.dataset, made.data.eval.path, made.teacher.model


def test_paths_count_from_the_recipes_folder_and_names_stay(recipe: Path) -> None:
    here = recipe.parent
    (here / "minilm").mkdir()
    assert read_paths(load_recipe(recipe)) == (
        str(here / "train.jsonl.gz"),
        str(here.parent / "dev.csv"),
        str(here / "teacher"),
    )
    edit(recipe, ("./teacher", "org/model"), ("{path: train.jsonl.gz}", "{dataset: nyu-mll/glue, split: train}"))
    assert read_paths(load_recipe(recipe))[::2] == ("nyu-mll/glue", "org/model")
    edit(recipe, ("org/model", "minilm"), ("nyu-mll/glue", "./films"))
    assert read_paths(load_recipe(recipe))[::2] == (str(here / "films"), str(here / "minilm"))


def test_paths_in_overrides_count_from_the_working_folder_those_of_adapters_too(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = recipe.parent.parent / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    made = load_recipe(recipe, ["data.train.path=mine.csv", "data.eval={path: ../mine.csv}", "teacher.model=./m"])
    assert read_paths(made) == (str(work / "mine.csv"), str(work.parent / "mine.csv"), str(work / "m"))
    edit(recipe, ("{model: ./teacher}", "{model: ./teacher, adapters: [./one, org/two]}"))
    assert load_recipe(recipe).teacher.adapters == [str(recipe.parent / "one"), "org/two"]
    monkeypatch.chdir(recipe.parent.parent)
    made = load_recipe(recipe, ["teacher.adapters.1=./three"])
    assert made.teacher.adapters == [str(recipe.parent / "one"), str(recipe.parent.parent / "three")]


def test_a_link_to_data_keeps_the_name_that_tells_its_kind(recipe: Path) -> None:
    blob = recipe.parent / "0f3a"  # as in the cache of the Hub
    blob.write_text("")
    (recipe.parent / "train.csv").symlink_to(blob)
    made = load_recipe(edit(recipe, ("train.jsonl.gz", "train.csv")))
    assert read_paths(made)[0] == str(recipe.parent.resolve() / "train.csv")


# Mistakes


def test_all_mistakes_are_listed_with_line_and_nearest_key(recipe: Path) -> None:
    edit(
        recipe,
        ("seed: 7", "sed: 7"),
        ("method: task, steps: 12", "method: tasks, steps: 12"),
        ("layers: 3", "layers: -1"),
        ("labels: [negative, positive]", "lables: [negative, positive]"),
        ("    steps: 5\n", ""),
    )
    starts = [
        "R:8 data.lables: unknown key 'lables'; did you mean 'labels'? (allowed: augment, ",
        "R:10 student.layers: -1: input should be greater than or equal to 0.",
        "R:12 distill.0: method 'tasks' is unknown; did you mean 'task'? (allowed: distilbert, ",
        "R:13 distill.1: give exactly one of 'steps' and 'epochs', e.g. steps: 1000, or epochs: 3.",
        "R:4 sed: unknown key 'sed'; did you mean 'seed'? (allowed: answer, ",
    ]
    found = list_problems(recipe)
    assert [line[: len(start)] for line, start in zip(found, starts, strict=True)] == starts


DISTILL = GOOD[GOOD.index("distill:") :]


@pytest.mark.parametrize(
    ("old", "new", "messages"),
    [
        ("seed: 7", "seed: 7\nname: again", ["R:5 name: the key occurs twice."]),
        (DISTILL, "", ["R:10 student: a student without a distill stage would never learn"]),
        ("student: {layers: 3}\n", "", ["distill stages need a student section"]),
        ("  eval: {path: ../dev.csv, text: sentence}\n", "", ["training needs data.eval"]),
        (
            "    steps: 5",
            "    steps: 5\n    layers: [1, 2]",
            ["R:15 distill.1.layers: lists 2 layers, the student has 3"],
        ),
        ("{layers: 3}", "{layers: 3, intermediate: 64}", ["R:10 student: a student of another width"]),
        ("{layers: 3}", "{layers: 3, teacher_layers: [1, 2]}", ["teacher_layers lists 2 layers, the student has 3"]),
        ("{layers: 3}", "{layers: 1, init: random, teacher_layers: [1]}", ["no meaning with init: random"]),
        ("{logits: 1, hidden: 0}", "{logits: 0, hidden: 0, attention: 0}", ["all weights are 0"]),
        ("{path: train.jsonl.gz}", "{path: a.csv, dataset: b}", ["R:6 data.train: give exactly one of"]),
        ("task: text-classification", "task: fill-mask", ["R:8 data.labels: fill-mask has no labels"]),
        ("text-classification", "text-clasification", ["R:3 task: 'text-clasification' is not allowed; did you mean"]),
        ("schema: 1\n", "", ["required key 'schema' is missing"]),
        ("name: films-phone", "name: ../evil", ["R:2 name:"]),
        ("lr: 1e-4", "lr: fast", ["R:12 distill.0.lr: 'fast':"]),
        (
            "student: {layers: 3}\n",
            "export: {formats: [onnx, onnx]}\nquantize: {scheme: w8}\n",
            ["quantize.scheme: onnx has no 'w8' in", "export.formats: lists a format twice", "distill: distill stages"],
        ),
    ],
)
def test_rules_of_the_recipe(recipe: Path, old: str, new: str, messages: list[str]) -> None:
    found = list_problems(edit(recipe, (old, new)))
    for message in messages:
        assert any(message in line for line in found), found


BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{n}: &{n} [{','.join([f'*{p}'] * 10)}]\n" for p, n in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "R: the recipe is empty."),
        (b"- 1\n- 2\n", "R: a recipe is a mapping"),
        (b"a: [1\nb: 2\n", "R:2: not valid YAML"),
        (b"name: na\xefve\n", "not UTF-8"),
        (b"a: !!python/name:os.system\n", "not valid YAML"),
        (b"a: &a [*a]\n", "nested more than 20 deep"),
        (b"[" * 700, "nested more than 20 deep"),
        (BOMB.encode(), "more than"),
        (b"#" * (1 << 20), "MiB, refused"),
    ],
)
def test_files_that_are_no_recipe(recipe: Path, raw: bytes, message: str) -> None:
    recipe.write_bytes(raw)
    assert message in list_problems(recipe)[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "recipe not found.*pocketbert recipes ls"),
        (os.mkfifo, "is a pipe"),
        (lambda path: path.symlink_to("/proc/self/mem"), "is a file of the system"),
    ],
)
def test_what_is_no_regular_file_is_refused_and_not_waited_for(
    tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    make(tmp_path / "recipe.yaml")
    with pytest.raises(InputError, match=message):
        load_recipe(tmp_path / "recipe.yaml")


# Overrides


def test_overrides_reach_nested_keys_list_entries_and_whole_mappings(recipe: Path) -> None:
    overrides = (
        "seed=9|distill.0.signals.hidden=0.5|distill.1.steps=8|distill.1.freeze_embeddings=yes|export.lengths=[16, 32]|"
        "teacher.finetune={steps: 3, batch: 4}|benchmark.runs=10|data.labels=[a, b]|verify.max_drop=1e-2"
    )  # YAML reads 1e-2, without a point, as text
    made = load_recipe(recipe, overrides.split("|")).model_dump()
    assert (made["seed"], made["export"]["lengths"], made["data"]["labels"]) == (9, [16, 32], ["a", "b"])
    first, second = made["distill"]
    assert (first["signals"]["hidden"], first["signals"]["logits"]) == (0.5, 1)
    assert (second["steps"], second["freeze_embeddings"]) == (8, True)
    assert made["teacher"]["finetune"]["batch"] == 4
    assert (made["benchmark"]["runs"], made["verify"]["max_drop"]) == (10, 0.01)


@pytest.mark.parametrize("order", [1, -1])
def test_a_path_replaces_a_data_set_and_what_belonged_to_it(tmp_path: Path, recipe: Path, order: int) -> None:
    rows = tmp_path / "rows.csv"
    words = [f"data.train.path={rows}", "data.train.label=intent"][::order]
    source = load_recipe(recipe_path("sst2"), words).data.train
    assert source is not None
    assert (source.path, source.dataset, source.config, source.split) == (str(rows), None, None, None)
    assert (source.text, source.label) == ("text", "intent")
    source = load_recipe(recipe, ["data.train.split=train", "data.train.dataset=some/set"][::order]).data.train
    assert source is not None
    assert (source.path, source.dataset, source.split) == (None, "some/set", "train")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "not of the form key.sub=value. Fix: For example seed=3"),
        ("=3", "not of the form"),
        ("data..path=x", "not of the form"),
        ("distill.7.steps=3", "the recipe has no 'distill.7'"),
        ("distill.2=3", "has no entry 'distill.2'"),
        ("distill.first.steps=3", "has no 'distill.first'"),
        ("seed=[1", "not valid YAML"),
        ("seed=-1", "-1: input should be greater than or equal to 0."),
        ("student.layer=2", "unknown key 'layer'; did you mean 'layers'? (allowed: auto, dimensions, "),
        ("schema='1'", "'1' is text, not a number. Fix: Write it without quotes."),
        ('data.labels=["a", "a"]', "the label 'a' occurs twice"),
        ('data.labels=["a", "a "]', "the labels 'a' and 'a ' differ only in what cannot be seen"),
        ('name="a\\uDFFFb"', "holds half of a surrogate pair"),
        ('student.family="\\ud800"', "holds half of a surrogate pair"),
    ],
)
def test_a_wrong_override_is_blamed_on_the_override(recipe: Path, override: str, message: str) -> None:
    [found] = list_problems(recipe, override)
    assert message in found
    assert found.startswith((f"override {override!r}: ", f"override {override.partition('=')[0]}"))


def test_overrides_and_mistakes_of_the_file_are_listed_together(recipe: Path) -> None:
    found = list_problems(edit(recipe, ("seed: 7", "sed: 7")), "distill.1.steps=0")
    assert [line.split(":")[0] for line in found] == ["override distill.1.steps", "R"]


NUMBERS = (
    "verify.max_drop schema seed distill.0.steps student.layers distill.0.signals.logits data.max_length "
    "data.train.max_rows answer.thresholds export.opset export.coreml.ios export.lengths benchmark.threads"
).split()


@pytest.mark.parametrize("key", NUMBERS)
def test_what_is_no_number_is_refused(recipe: Path, key: str) -> None:
    for value in ("yes", ".nan", "inf"):
        whole = f"{key}=[{value}]" if key in ("export.lengths", "benchmark.threads") else f"{key}={value}"
        assert all(line.startswith("override") for line in list_problems(recipe, whole))


# The schema


def test_the_schema_accepts_a_good_recipe_and_refuses_bad_ones(recipe: Path) -> None:
    schema = json.loads(json.dumps(recipe_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    good = yaml.safe_load(dump_recipe(load_recipe(recipe)))
    assert not list(validator.iter_errors(good))
    files = ["int8", {"scheme": "int8", "runtime": "tflite216"}]
    tflite = {"export": {"formats": ["tflite"]}, "quantize": {"files": files}}
    assert not list(validator.iter_errors({**good, **tflite}))
    for key, value in (
        ("sed", 1),
        ("schema", 2),
        ("export", {"formats": ["tflit"]}),
        ("export", {"formats": []}),
        ("export", {"clients": ["web"]}),
        ("quantize", {"scheme": "w2"}),
        ("quantize", {"files": ["int8", "w2"]}),
        ("quantize", {"files": [{"scheme": "int8", "runtime": "ios"}]}),
        ("quantize", {"files": [{"runtime": "tflite216"}]}),
        ("distill", [{"method": "tasks", "steps": 1}]),
        ("teacher", {}),
    ):
        assert list(validator.iter_errors({**good, key: value})), key


def test_every_key_of_the_schema_is_described() -> None:
    definitions = recipe_schema()["$defs"]
    sections = [d for n, d in definitions.items() if n.endswith(("Section", "Stage", "Optimisation", "Weights"))]
    assert sections
    assert [k for d in sections for k, v in d["properties"].items() if "description" not in v] == []
