"""The recipe that `export` follows: options under their keys, problems that name flags, and weights that are read once."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pocketbert import api
from pocketbert.core.data.source import DataSource
from pocketbert.core.disk import files
from pocketbert.core.errors import InputError, MachineError
from pocketbert.core.formats import FORMATS
from pocketbert.core.models import folder
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.recipe.file import recipe_from_values
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.types import Format
from pocketbert.export import onnx
from pocketbert.pipeline import inputs
from pocketbert.pipeline.direct import exporting
from pocketbert.pipeline.direct.exporting import (
    export_recipe,
    forecast_export,
    option_problems,
    unread_calibration,
)
from pocketbert.pipeline.gates import library, verify
from pocketbert.pipeline.options import OPTION_RECIPE_KEYS, RECIPE_KEY_FLAGS, ExportOptions
from pocketbert.pipeline.reference import open_teacher
from pocketbert.pipeline.run_folder import folder as run_folder
from support.published import write_sentence_model


def value_at(recipe: Recipe, key: str) -> object:
    """The value of a dotted key."""
    value: object = recipe
    for part in key.split("."):
        value = getattr(value, part)
    return value


def test_every_option_has_a_key_of_the_recipe_a_flag_and_its_default(tiny_model: Callable[..., Path]) -> None:
    assert {f.name for f in fields(ExportOptions)} == set(OPTION_RECIPE_KEYS)
    made, model = export_recipe(str(tiny_model("bert")), ExportOptions())
    for key in OPTION_RECIPE_KEYS.values():
        value_at(made, key)
        assert RECIPE_KEY_FLAGS[key].startswith("--")
    least = {"schema": 1, "name": made.name, "task": made.task, "teacher": {"model": str(model.path)}}
    assert made == recipe_from_values(least, "test")


def test_a_head_in_a_pickle_is_refused_unless_the_encoder_alone_is_wanted(tmp_path: Path) -> None:
    model = write_sentence_model(tmp_path / "model")
    (model / "model_head.pkl").write_bytes(b"x")
    said = "classifier of SetFit, whose head model_head.pkl is a pickle.*feature-extraction"
    with pytest.raises(InputError, match=said):
        export_recipe(str(model), ExportOptions())
    made, _ = export_recipe(str(model), ExportOptions(task="feature-extraction"))
    assert made.task == "feature-extraction"


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


@pytest.mark.parametrize(
    ("options", "section"),
    [
        (ExportOptions(schemes=["fp32"]), {"scheme": "fp32"}),
        (ExportOptions(schemes=["int8", "w8"]), {"files": ["int8", "w8"]}),
        (ExportOptions(runtimes=["tflite216"]), {"files": ["int8", {"scheme": "int8", "runtime": "tflite216"}]}),
    ],
)
def test_schemes_and_runtimes_become_the_files_of_the_recipe(
    tiny_model: Callable[..., Path], options: ExportOptions, section: dict[str, object]
) -> None:
    recipe, _ = export_recipe(str(tiny_model("bert")), options)
    assert recipe.quantize.model_dump(mode="json", exclude_none=True) == section


def test_a_folder_of_any_name_gives_the_recipe_one(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model("bert"), tmp_path / "stimmung-gefühl 2")
    assert export_recipe(str(folder), ExportOptions())[0].name == "stimmung-gef-hl-2"


def test_adapters_are_merged_into_the_model_and_named_by_their_flag(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    base, adapter = tiny_model("bert", 2), tmp_path / "adapter"
    adapter.mkdir()
    rows = load_file(base / "model.safetensors")["classifier.weight"]
    save_file({"base_model.model.classifier.weight": rows + 1}, adapter / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "task_type": "SEQ_CLS", "base_model_name_or_path": str(base)}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    for model, adapters in ((str(base), (str(adapter),)), (str(adapter), ())):
        made, opened = export_recipe(model, ExportOptions(adapters=adapters))
        assert (made.teacher.model, made.teacher.adapters) == (model, [*adapters])
        assert np.array_equal(load_file(opened.weight_files[0])["classifier.weight"], rows + 1)
        assert opened.title == model
        assert open_teacher(made).digest == opened.digest
    (adapter / "adapter_config.json").write_text(json.dumps({**settings, "base_model_name_or_path": "./gone"}))
    said = "no model folder './gone'. Fix: Name the base .* in --model, and this folder in --adapter"
    with pytest.raises(InputError, match=said):
        export_recipe(str(adapter), ExportOptions())
    with pytest.raises(InputError, match="^--adapter: no model folder './gone'"):
        export_recipe(str(base), ExportOptions(adapters=("./gone",)))


def test_every_problem_of_model_and_options_is_listed_under_its_flag() -> None:
    options = ExportOptions(task="foo", opset=21, formats=["onx"], ios=15, lengths=(0,), answer={"stride": 0})
    with pytest.raises(InputError) as caught:
        export_recipe("nowhere", options)
    flags = ["--model", "--task", "--answer stride", "--format", "--lengths", "--opset", "--ios"]
    assert [p.where for p in caught.value.problems] == flags


ROWS = DataSource.at("train.csv")
STATIC = ["int8", "a8w8"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (ExportOptions(formats=["onnx", "onnx"]), "--format: lists a format twice."),
        (ExportOptions(ios=17, shapes="enumerated"), "--ios, --shapes, --precision, --layout: "),
        (ExportOptions(ios=17, shapes="enumerated"), "'enumerated' needs ios 18"),
        (ExportOptions(task="text-classification", answer={"stride": 3}), "--answer stride: "),
        (ExportOptions(answer={"stride": 3}, labels=["a", "b"]), None),  # the task is unknown
        (ExportOptions(schemes=STATIC), "--scheme, --runtime: 'a8w8' measures ranges on training texts; name them in"),
        (ExportOptions(schemes=STATIC, calibrate=ROWS), None),
    ],
)
def test_rules_between_options_are_the_recipes_and_name_flags(options: ExportOptions, problem: str | None) -> None:
    found = option_problems("model", options)
    assert len(found) == (problem is not None)
    assert (problem or "") in "".join(map(str, found))


def test_calibration_rows_that_nothing_reads_are_refused(tmp_path: Path) -> None:
    assert not unread_calibration(ExportOptions(schemes=STATIC, calibrate=ROWS))
    assert not unread_calibration(ExportOptions(schemes=["int8"]))
    said = "--calibrate: no scheme of int8, small reads calibration rows. Fix: Add a static scheme"
    for verb in (api.export, api.plan_export):
        with pytest.raises(InputError, match=said):
            verb("nowhere", tmp_path / "phone", ExportOptions(schemes=["int8", "small"], calibrate=ROWS))
    assert not (tmp_path / "phone").exists()


# What an export takes.


def test_an_export_says_what_it_takes_and_larger_models_take_more(
    tiny_model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small, model = (open_model_folder(str(tiny_model("bert", layers))) for layers in (2, 3))
    assert model.fp32_bytes == sum(4 * p.size for p in load_file(model.weight_files[0]).values())
    one, other = (forecast_export([Format.ONNX], folder) for folder in (small, model))
    both = forecast_export([Format.ONNX, Format.TFLITE], model)
    for less, more in ((one, other), (other, both)):
        assert less.seconds < more.seconds
        assert less.memory < more.memory
        assert less.disk < more.disk
    api.export(small.path, tmp_path / "phone", ExportOptions(formats=["onnx"], schemes=["fp32"], max_length=16))
    told = f"this will take {one.seconds:.0f} s to {2 * one.seconds:.0f} s on two quiet cores, which depends on the CPU, up to {one.memory / 1e9:.1f} GB of memory"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("what", "value", "reason"),
    [
        ("usable_memory", lambda: 10**9, "this machine has 1.0 GB of memory"),
        ("disk_usage", lambda _: SimpleNamespace(free=1000), "has 0.0 GB of room"),
    ],
)
def test_what_the_machine_cannot_do_is_refused_before_anything_is_written(
    what: str,
    value: object,
    reason: str,
    tiny_model: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(exporting.shutil if what == "disk_usage" else exporting, what, value)
    with pytest.raises(MachineError, match=reason) as caught:
        api.export(tiny_model("bert"), tmp_path / "new" / "phone", ExportOptions(benchmark=True))
    assert "which depends on the CPU, and the benchmark its own time, up to" in capsys.readouterr().err
    assert "Fix: export one format at a time" in str(caught.value)
    assert not list(tmp_path.glob("new*"))


def test_a_format_whose_files_are_too_small_for_the_weights_is_refused(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = FORMATS[Format.ONNX]
    monkeypatch.setitem(FORMATS, Format.ONNX, replace(row, cost=replace(row.cost, max_gib=1e-6)))
    model, options = tiny_model("bert"), ExportOptions(formats=["onnx", "tflite"])
    for verb in (api.export, api.plan_export):
        with pytest.raises(InputError, match=r"--format: a file of ONNX holds at most 1e-06 GiB") as caught:
            verb(model, tmp_path / "phone", options)
        assert "Choose among tflite, coreml" in str(caught.value)
        assert "TFLite" not in str(caught.value)


@pytest.mark.parametrize(
    ("student", "fits"),
    [
        ({"layers": 1}, True),
        ({"layers": 2}, False),
        ({"layers": 1, "hidden": 16, "heads": 2}, True),
        ({"layers": 1, "init": "random", "intermediate": 4096}, False),
        ({"layers": 0}, True),
        ({"layers": 0, "dimensions": 4096}, False),
        ({"model": "{teacher}"}, False),
        ({"layers": 2, "vocabulary": {}}, True),  # how much of the table stays is not known yet
    ],
)
def test_a_student_that_no_file_can_hold_is_refused_before_it_is_trained(
    task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, student: dict[str, Any], fits: bool
) -> None:
    teacher = task.folder / "teacher"
    row, size = FORMATS[Format.ONNX], open_model_folder(str(teacher)).fp32_bytes
    monkeypatch.setitem(FORMATS, Format.ONNX, replace(row, cost=replace(row.cost, max_gib=0.9 * size / 2**30)))
    student = {key: str(teacher) if value == "{teacher}" else value for key, value in student.items()}
    path = task.variant(tmp_path / "r.yaml", student=None)
    signals = ["distill.0.signals={logits: 1, hidden: 0, attention: 0}"] if student.get("layers") == 0 else []
    recipe = api.load_recipe(path, [f"student={json.dumps(student)}", *signals])
    if fits:
        assert api.plan(recipe, tmp_path / "run")
        return
    said = r"a file of ONNX holds at most .*, the student's weights would take about"
    for verb in (api.plan, api.run):
        with pytest.raises(InputError, match=said):
            verb(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_an_export_names_its_steps_in_order_and_what_is_left(
    tiny_model: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stages = list[str]()
    for module in (onnx, library, verify):
        monkeypatch.setattr(module, "note_stage", stages.append)
    # each step takes a second: what is left depends on how long those before it took
    monkeypatch.setattr(run_folder, "time", SimpleNamespace(monotonic=map(float, count()).__next__))
    api.export(tiny_model("bert"), tmp_path / "phone", ExportOptions(formats=["onnx"], max_length=16))
    shown = capsys.readouterr().err
    steps = re.findall(r"^\[(\d)/7\] (.+), about (\d+) s left in all$", shown, re.MULTILINE)
    assert [int(number) for number, *_ in steps] == [1, 2, 3, 4, 5, 6, 7]
    titles = ["export to ONNX", "quantize ONNX to int8", "golden rows", "verify", "pack"]
    assert [title for _, title, _ in steps][2:] == titles
    whole = int(re.search(r"this will take (\d+) s to \d+ s on", shown)[1])  # type: ignore[index]
    assert 0 <= int(steps[-1][2]) < int(steps[0][2]) <= whole
    gates = ["gate answer", "gates golden and reference", "gate padding", "gates chance and drop"]
    gates.append("gates weights, types")
    assert stages == ["1 of 2, tracing and translating", "2 of 2, checking and writing", *gates, *gates, "gate answer"]


def test_weights_and_exported_files_are_hashed_once(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[Path] = []
    monkeypatch.setattr(folder, "sha256_file", lambda path: hashed.append(path) or files.sha256_file(path))
    model, options = tiny_model("bert"), ExportOptions(formats=["onnx"], schemes=["fp32"], max_length=16)
    for _ in range(2):  # finished before the second time: the weights are what it is known by
        hashed.clear()
        phone = api.export(model, tmp_path / "phone", options)
        assert [p.name for p in hashed if p.parent == model.resolve()].count("model.safetensors") == 1
    exported: list[Path] = []
    monkeypatch.setattr(inputs, "sha256_path", lambda path: exported.append(path) or files.sha256_path(path))
    api.quantize(phone, tmp_path / "small")
    assert exported == [phone / "onnx/model.onnx"]
