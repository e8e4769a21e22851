from __future__ import annotations

import json
import os
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from pocketbert.core.errors import InputError
from pocketbert.core.recipe import file as recipe_file
from pocketbert.core.recipe.file import dump_recipe, load_recipe, recipe_schema
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


def lines(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        load_recipe(path, overrides)
    return [line.replace(str(path), "R") for line in str(caught.value).splitlines()]


def rewritten(path: Path, old: str, new: str) -> Path:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def test_a_good_recipe(recipe: Path) -> None:
    made = load_recipe(recipe)
    assert made.name == "films-phone"
    assert made.distill[0].lr == 1e-4
    assert made.distill[0].signals.hidden == 0
    assert made.distill[1].signals.hidden == 1
    assert made.benchmark is None


def test_paths_count_from_the_recipes_folder(recipe: Path) -> None:
    made = load_recipe(recipe)
    assert made.data.train is not None
    assert made.data.eval is not None
    assert made.data.train.path == str(recipe.parent / "train.jsonl.gz")
    assert made.data.eval.path == str(recipe.parent.parent / "dev.csv")
    assert made.teacher.model == str(recipe.parent / "teacher")


def test_names_that_are_no_paths_stay(recipe: Path) -> None:
    made = load_recipe(rewritten(recipe, "./teacher", "org/model"))
    assert made.teacher.model == "org/model"


def test_a_folder_beside_the_recipe_is_found_without_a_dot(recipe: Path) -> None:
    (recipe.parent / "minilm").mkdir()
    made = load_recipe(rewritten(recipe, "./teacher", "minilm"))
    assert made.teacher.model == str(recipe.parent / "minilm")


def test_a_folder_of_data_counts_from_the_recipes_folder(recipe: Path) -> None:
    rewritten(recipe, "{path: train.jsonl.gz}", "{dataset: ./films, split: train}")
    made = load_recipe(recipe)
    assert made.data.train is not None
    assert made.data.train.dataset == str(recipe.parent / "films")
    rewritten(recipe, "./films", "nyu-mll/glue")
    again = load_recipe(recipe)
    assert again.data.train is not None
    assert again.data.train.dataset == "nyu-mll/glue"


def test_all_mistakes_are_listed_with_line_and_nearest_key(recipe: Path) -> None:
    text = GOOD.replace("seed: 7", "sed: 7").replace("method: task, steps: 12", "method: tasks, steps: 12")
    text = text.replace("layers: 3", "layers: 0")
    text = text.replace("labels: [negative, positive]", "lables: [negative, positive]").replace("    steps: 5\n", "")
    recipe.write_text(text)
    assert lines(recipe) == [
        "R:8 data.lables: unknown key 'lables'; did you mean 'labels'? (allowed: augment, corpus, eval, holdout, labels, "
        "max_length, selection, train).",
        "R:10 student.layers: 0: input should be greater than 0.",
        "R:12 distill.0: method 'tasks' is unknown; did you mean 'task'? (allowed: distilbert, minilm, mobilebert, qat, "
        "replaced-tokens, task, tinybert-general, tinybert-intermediate, tinybert-prediction).",
        "R:13 distill.1: give exactly one of 'steps' and 'epochs', e.g. steps: 1000, or epochs: 3.",
        "R:4 sed: unknown key 'sed'; did you mean 'seed'? (allowed: answer, benchmark, data, description, distill, "
        "export, name, quantize, schema, seed, student, task, teacher, verify).",
    ]


def test_sections_that_do_not_go_together_are_named_line_by_line(recipe: Path) -> None:
    text = recipe.read_text().replace("student: {layers: 3}\n", "").rstrip()
    recipe.write_text(text + "\nexport: {formats: [onnx, onnx]}\nquantize: {scheme: w8}\n")
    found = lines(recipe)
    assert len(found) == 3
    assert any(re.fullmatch(r"R:\d+ quantize\.scheme: onnx has no 'w8' in this version, .*", line) for line in found)
    assert any(re.fullmatch(r"R:\d+ export\.formats: lists a format twice\.", line) for line in found)
    assert any(re.fullmatch(r"R:\d+ distill: distill stages need a student section.*", line) for line in found)


def test_a_key_that_occurs_twice(recipe: Path) -> None:
    assert lines(rewritten(recipe, "seed: 7", "seed: 7\nname: again")) == ["R:5 name: the key occurs twice."]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "distill:\n  - {method: task, steps: 12, lr: 1e-4, signals: {logits: 1, hidden: 0}}\n  - method: task\n    steps: 5\n",
            "",
            "R:10 student: a student without a distill stage would never learn",
        ),
        ("student: {layers: 3}\n", "", "distill stages need a student section"),
        ("  eval: {path: ../dev.csv, text: sentence}\n", "", "training needs data.eval"),
        (
            "    steps: 5",
            "    steps: 5\n    layers: [1, 2]",
            "R:15 distill.1.layers: lists 2 layers, the student has 3",
        ),
        ("{layers: 3}", "{layers: 3, hidden: 64}", "R:10 student: a student of another width"),
        ("{layers: 3}", "{layers: 3, teacher_layers: [1, 2]}", "teacher_layers lists 2 layers, the student has 3"),
        ("{layers: 3}", "{layers: 1, init: random, teacher_layers: [1]}", "no meaning with init: random"),
        ("{logits: 1, hidden: 0}", "{logits: 0, hidden: 0, attention: 0}", "all weights are 0"),
        ("{path: train.jsonl.gz}", "{path: a.csv, dataset: b}", "R:6 data.train: give exactly one of"),
        ("task: text-classification", "task: fill-mask", "R:8 data.labels: fill-mask has no labels"),
        (
            "task: text-classification",
            "task: text-clasification",
            "R:3 task: 'text-clasification' is not allowed; did you mean",
        ),
        ("schema: 1", "schema: 2", "R:1 schema: '2' is not allowed; allowed: 1."),
        ("name: films-phone", "name: ../evil", "R:2 name:"),
        ("[negative, positive]", "[negative]", "R:8 data.labels:"),
        ("lr: 1e-4", "lr: fast", "R:12 distill.0.lr: 'fast':"),
        ("schema: 1\n", "", "required key 'schema' is missing"),
    ],
)
def test_rules_of_the_recipe(recipe: Path, old: str, new: str, message: str) -> None:
    assert any(message in line for line in lines(rewritten(recipe, old, new))), lines(recipe)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "R: the recipe is empty."),
        (b"- 1\n- 2\n", "R: a recipe is a mapping"),
        (b"a: [1\nb: 2\n", "R:2: not valid YAML"),
        (b"name: na\xefve\n", "not UTF-8"),
        (b"a: !!python/name:os.system\n", "not valid YAML"),
        (b"a: &a [*a]\n", "nested more than 20 deep"),
        (b"[" * 5000, "nested more than 20 deep"),
        (
            b"a: &a [1,1,1,1,1,1,1,1,1,1]\n"
            + b"".join(
                f"{n}: &{n} [{','.join([f'*{p}'] * 10)}]\n".encode()
                for p, n in zip("abcdefgh", "bcdefghi", strict=True)
            ),
            "more than",
        ),
    ],
)
def test_files_that_are_no_recipe(recipe: Path, raw: bytes, message: str) -> None:
    recipe.write_bytes(raw)
    assert message in lines(recipe)[0]


def test_a_missing_recipe_and_a_huge_one_are_refused(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="recipe not found.*pocketbert recipes ls"):
        load_recipe(recipe.with_name("none.yaml"))
    monkeypatch.setattr(recipe_file, "_MAX_BYTES", 10)
    assert re.search("larger than .* MiB, refused", lines(recipe)[0])


@pytest.mark.parametrize("odd", ["pipe", "folder", "/dev/zero", "/proc/self/mem"])
def test_a_recipe_that_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path, odd: str) -> None:
    path = tmp_path / "recipe.yaml"
    if odd == "pipe":
        os.mkfifo(path)
    elif odd == "folder":
        path.mkdir()
    else:
        path.symlink_to(odd)
    with pytest.raises(InputError, match=r"is a (pipe|folder|device|file of the system)"):
        load_recipe(path)


def test_a_link_to_data_keeps_the_name_that_tells_its_kind(recipe: Path) -> None:
    blob = recipe.parent / "0f3a"  # as in the cache of the Hub
    blob.write_text("")
    (recipe.parent / "train.csv").symlink_to(blob)
    recipe.write_text(GOOD.replace("train.jsonl.gz", "train.csv"))
    made = load_recipe(recipe)
    assert made.data.train is not None
    assert made.data.train.path == str(recipe.parent.resolve() / "train.csv")


@pytest.mark.parametrize("override", ['name="a\\uDFFFb"', 'student.family="\\ud800"', 'data.labels=["a", "\\udc00"]'])
def test_halves_of_surrogate_pairs_are_refused_with_their_key(recipe: Path, override: str) -> None:
    with pytest.raises(InputError, match=rf"{override.partition('=')[0]}.*holds half of a surrogate pair") as caught:
        load_recipe(recipe, [override])
    assert str(caught.value).isprintable() or "\n" in str(caught.value)


def test_overrides_reach_nested_keys_list_entries_and_whole_mappings(recipe: Path) -> None:
    made = load_recipe(
        recipe,
        [
            "seed=9",
            "distill.0.signals.hidden=0.5",
            "distill.1.steps=8",
            "export.lengths=[16, 32]",
            "teacher.finetune={steps: 3, batch: 4}",
            "benchmark.runs=10",
            "data.labels=[a, b]",
            "student.layers=2",
        ],
    )
    assert made.seed == 9
    assert made.distill[0].signals.hidden == 0.5
    assert made.distill[0].signals.logits == 1
    assert made.distill[1].steps == 8
    assert made.export.lengths == [16, 32]
    assert made.teacher.finetune is not None
    assert made.teacher.finetune.batch == 4
    assert made.benchmark is not None
    assert made.benchmark.runs == 10
    assert made.data.labels == ["a", "b"]


@pytest.mark.parametrize("order", [1, -1])
def test_a_path_replaces_a_data_set_and_what_belonged_to_it(tmp_path: Path, order: int) -> None:
    rows = tmp_path / "rows.csv"
    words = [f"data.train.path={rows}", "data.train.label=intent"][::order]
    source = load_recipe(recipe_path("sst2"), words).data.train
    assert source is not None
    assert (source.path, source.dataset, source.config, source.split) == (str(rows), None, None, None)
    assert (source.text, source.label) == ("text", "intent")


def test_a_data_set_replaces_a_path(recipe: Path) -> None:
    words = ["data.train.split=train", "data.train.dataset=some/set"]
    source = load_recipe(recipe, words).data.train
    assert source is not None
    assert (source.path, source.dataset, source.split) == (None, "some/set", "train")


def test_paths_in_overrides_count_from_the_working_folder(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = recipe.parent.parent / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    made = load_recipe(recipe, ["data.train.path=mine.csv", "data.eval={path: ../mine.csv}", "teacher.model=./m"])
    assert made.data.train is not None
    assert made.data.eval is not None
    assert made.data.train.path == str(work / "mine.csv")
    assert made.data.eval.path == str(work.parent / "mine.csv")
    assert made.teacher.model == str(work / "m")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "not of the form key.sub=value"),
        ("=3", "not of the form"),
        ("data..path=x", "not of the form"),
        ("distill.7.steps=3", "the recipe has no 'distill.7'"),
        ("distill.2=3", "has no entry 'distill.2'"),
        ("distill.first.steps=3", "has no 'distill.first'"),
        ("seed=[1", "not valid YAML"),
    ],
)
def test_overrides_that_fit_nowhere(recipe: Path, override: str, message: str) -> None:
    [line] = lines(recipe, override)
    assert line.startswith(f"override {override!r}: ")
    assert message in line


def test_a_wrong_override_is_blamed_on_the_override(recipe: Path) -> None:
    found = lines(recipe, "student.layer=2", "seed=-1", "oops")
    assert found == [
        "override 'oops': not of the form key.sub=value. Fix: For example seed=3, or data.max_length=64.",
        "override seed: -1: input should be greater than or equal to 0.",
        "override student.layer: unknown key 'layer'; did you mean 'layers'? (allowed: family, fold_segments, heads, "
        "hidden, init, intermediate, layers, model, revision, size, teacher_layers, vocabulary).",
    ]


def test_overrides_and_mistakes_of_the_file_are_listed_together(recipe: Path) -> None:
    found = lines(rewritten(recipe, "seed: 7", "sed: 7"), "distill.1.steps=0")
    assert [line.split(":")[0] for line in found] == ["override distill.1.steps", "R"]


def test_a_dumped_recipe_loads_equal(recipe: Path, tmp_path: Path) -> None:
    made = load_recipe(recipe, ["benchmark.runs=11"])
    other = tmp_path / "resolved.yaml"
    other.write_text(dump_recipe(made))
    assert load_recipe(other) == made
    assert yaml.safe_load(other.read_text())["distill"][0]["temperature"] == 2.0


def test_the_schema_accepts_a_good_recipe_and_refuses_bad_ones(recipe: Path) -> None:
    schema = json.loads(json.dumps(recipe_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    good = yaml.safe_load(dump_recipe(load_recipe(recipe)))
    assert not list(validator.iter_errors(good))
    tflite = {
        "export": {"formats": ["tflite"]},
        "quantize": {"files": ["int8", {"scheme": "int8", "runtime": "tflite216"}]},
    }
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
    undescribed = [k for d in sections for k, v in d["properties"].items() if "description" not in v]
    assert set(undescribed) <= {"steps", "batch"} - {"steps", "batch"}
