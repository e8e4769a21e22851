"""The recipe that `export` follows: options under their keys, and problems that name flags."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from pocketbert import api
from pocketbert.core.data.source import DataSource
from pocketbert.core.disk import files
from pocketbert.core.errors import InputError
from pocketbert.core.recipe.file import recipe_from_values
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.pipeline import inputs
from pocketbert.pipeline.direct.exporting import export_recipe, option_problems, unread_calibration
from pocketbert.pipeline.options import OPTION_RECIPE_KEYS, RECIPE_KEY_FLAGS, ExportOptions

LEAST = {"schema": 1, "name": "model", "task": "text-classification", "teacher": {"model": "minilm-l6"}}


def value_at(recipe: Recipe, key: str) -> object:
    """The value of a dotted key."""
    value: object = recipe
    for part in key.split("."):
        value = getattr(value, part)
    return value


def test_every_option_has_a_key_of_the_recipe_and_a_flag() -> None:
    assert {f.name for f in fields(ExportOptions)} == set(OPTION_RECIPE_KEYS)
    recipe = recipe_from_values(LEAST, "test")
    for key in OPTION_RECIPE_KEYS.values():
        value_at(recipe, key)
        assert RECIPE_KEY_FLAGS[key].startswith("--")


def test_defaults_of_the_options_are_those_of_the_recipe(tiny_model: Callable[..., Path]) -> None:
    made, folder = export_recipe(str(tiny_model("bert")), ExportOptions())
    least = recipe_from_values(
        {**LEAST, "name": made.name, "task": made.task, "teacher": {"model": str(folder.path)}}, "test"
    )
    assert made == least


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("formats", ["tflite"]),
        ("lengths", (16, 24)),
        ("opset", 18),
        ("atol", 0.5),
        ("max_length", 33),
        ("labels", ["no", "yes"]),
        ("ios", 17),
        ("shapes", "ranged"),
        ("precision", "fp32"),
        ("layout", "ane"),
        ("revision", "main"),
    ],
)
def test_an_option_sets_its_key(tiny_model: Callable[..., Path], option: str, value: object) -> None:
    recipe, _ = export_recipe(str(tiny_model("bert")), ExportOptions(**{option: value}))  # type: ignore[arg-type]
    found = value_at(recipe, OPTION_RECIPE_KEYS[option])
    assert (list(found) if isinstance(found, list) else found) == (list(value) if isinstance(value, tuple) else value)


def test_schemes_and_runtimes_become_the_files_of_the_recipe(tiny_model: Callable[..., Path]) -> None:
    model = str(tiny_model("bert"))
    made = [
        export_recipe(model, o)[0].quantize.model_dump(mode="json", exclude_none=True)
        for o in (
            ExportOptions(schemes=["fp32"]),
            ExportOptions(schemes=["int8", "w8"]),
            ExportOptions(runtimes=["tflite216"]),
        )
    ]
    assert made == [
        {"scheme": "fp32"},
        {"files": ["int8", "w8"]},
        {"files": ["int8", {"scheme": "int8", "runtime": "tflite216"}]},
    ]


def test_every_problem_of_model_and_options_is_listed_under_its_flag() -> None:
    options = ExportOptions(task="foo", opset=21, formats=["onx"], ios=15, lengths=(0,), answer={"stride": 0})
    with pytest.raises(InputError) as caught:
        export_recipe("nowhere", options)
    assert [p.where for p in caught.value.problems] == [
        "--model",
        "--task",
        "--answer stride",
        "--format",
        "--lengths",
        "--opset",
        "--ios",
    ]


def test_rules_between_options_are_the_recipes_and_name_flags() -> None:
    (twice,) = option_problems("model", ExportOptions(formats=["onnx", "onnx"]))
    assert str(twice) == "--format: lists a format twice."
    (old,) = option_problems("model", ExportOptions(ios=17, shapes="enumerated"))
    assert old.where == "--ios, --shapes, --precision, --layout"
    assert "'enumerated' needs ios 18" in old.what
    (wrong,) = option_problems("model", ExportOptions(task="text-classification", answer={"stride": 3}))
    assert wrong.where == "--answer stride"


def test_a_rule_about_static_schemes_names_the_flag_of_their_rows(tmp_path: Path) -> None:
    (problem,) = option_problems("model", ExportOptions(schemes=["int8", "a8w8"]))
    assert problem.where == "--scheme, --runtime"
    assert problem.what == "'a8w8' measures ranges on training texts; name them in --calibrate."
    rows = DataSource.at("train.csv")
    assert not option_problems("model", ExportOptions(schemes=["int8", "a8w8"], calibrate=rows))
    assert not unread_calibration(ExportOptions(schemes=["int8", "a8w8"], calibrate=rows))
    assert not unread_calibration(ExportOptions(schemes=["int8"]))
    (unread,) = unread_calibration(ExportOptions(schemes=["int8", "small"], calibrate=rows))
    assert str(unread).startswith("--calibrate: int8, small reads no calibration rows. Fix: Add a static scheme")
    with pytest.raises(InputError, match="int8 reads no calibration rows"):
        api.export("nowhere", tmp_path / "phone", ExportOptions(calibrate=rows))
    with pytest.raises(InputError, match="int8 reads no calibration rows"):
        api.plan_export("nowhere", tmp_path / "phone", ExportOptions(calibrate=rows))
    assert not (tmp_path / "phone").exists()


def test_nothing_is_said_of_answers_where_the_task_is_unknown() -> None:
    assert option_problems("model", ExportOptions(answer={"stride": 3}, labels=["a", "b"])) == []


def test_export_reads_the_weights_of_a_model_once_to_hash_them(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pocketbert import ExportOptions, api
    from pocketbert.core.models import folder

    hashed: list[Path] = []

    def counted(path: Path) -> str:
        hashed.append(path)
        return files.sha256_file(path)

    monkeypatch.setattr(folder, "sha256_file", counted)
    model, options = tiny_model("bert"), ExportOptions(formats=["onnx"], schemes=["fp32"], max_length=16)
    api.export(model, tmp_path / "phone", options)
    assert [p.name for p in hashed if p.parent == model.resolve()].count("model.safetensors") == 1
    hashed.clear()
    api.export(model, tmp_path / "phone", options)  # finished before: the weights are what it is known by
    assert [p.name for p in hashed if p.parent == model.resolve()].count("model.safetensors") == 1


def test_quantize_hashes_each_exported_file_once(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pocketbert import ExportOptions, api

    options = ExportOptions(formats=["onnx"], schemes=["fp32"], max_length=16)
    phone = api.export(tiny_model("bert"), tmp_path / "phone", options)
    hashed: list[Path] = []

    def counted(path: Path) -> str:
        hashed.append(path)
        return files.sha256_path(path)

    monkeypatch.setattr(inputs, "sha256_path", counted)
    api.quantize(phone, tmp_path / "small")
    assert hashed == [phone / "onnx/model.onnx"]
