"""Formats and their files: every form is complete, a recipe makes the files it asks for, a package brings a format of its own."""

from __future__ import annotations

import json
import math
import runpy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pocketbert
from pocketbert import ExportOptions, api
from pocketbert.core.artefacts import Artefacts, ModelRecord, Processing, Signature, Tensor, read_artefacts
from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.core.families import family_of
from pocketbert.core.formats import _FP32_BOUNDS, FORMATS, Bounds, register_format
from pocketbert.core.recipe.quantize import QuantizedFile, list_quantized_files
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Client, Format, Layout, Runtime, Scheme
from pocketbert.pipeline import doctor
from pocketbert.pipeline.formats import base, coreml, tflite
from pocketbert.pipeline.formats.base import (
    FormatPlace,
    ModelFile,
    bounds_of,
    check_bounds,
    choose_default_file,
    exported_file,
    exported_source,
    format_place,
    format_places,
    list_model_files,
    register_format_place,
)
from pocketbert.pipeline.formats.onnx import OnnxPlace
from pocketbert.pipeline.make.model_files import quantization_plan
from pocketbert.pipeline.phone.card import CardFacts, render_card
from pocketbert.pipeline.results import Subject
from pocketbert.pipeline.run import Run
from pocketbert.quantize import find_row, table
from pocketbert.quantize.onnx import reading
from pocketbert.quantize.table import Reader, find_row_for_plan, register_reader, register_scheme
from pocketbert.runtime import engines
from pocketbert.runtime.engines import register_engine
from pocketbert.runtime.onnx import OnnxPredictor

ROOT = Path(__file__).resolve().parents[3]
FORMS = [(f, s, r) for f, info in FORMATS.items() for s, r in info.every_form]
FACTS = CardFacts(family_of("bert"), "unknown")


def recipe(task: str = "text-classification", files: list[Any] | None = None, **sections: Any) -> Recipe:
    content = {"schema": 1, "name": "a", "task": task, "teacher": {"model": "minilm-l6"}, **sections}
    if files is not None:
        more = {"data": {"train": {"path": "t.jsonl"}}, "export": {"clients": []}, "quantize": {"files": files}}
        content |= more
    return Recipe.model_validate(content)


def folder(format: Format, scheme: Scheme, runtime: Runtime | None, task: TaskName) -> Artefacts:
    """A folder with one file of a form, and with the exported one where that form is for one runtime only."""
    row, info = TASKS[task], FORMATS[format]
    signature = Signature(
        inputs=[Tensor(name=n, dtype="int32", shape=[1, 32]) for n in ("input_ids", "attention_mask")],
        outputs=[Tensor(name=n, dtype="float32", shape=[1, 2]) for n in row.outputs],
        lengths=[16, 32] if info.fixed_lengths else [],
    )
    exported = exported_file(format, info.base)
    forms = {exported.path: (exported.scheme, None), f"{format}/file{info.suffix}": (scheme, runtime)}
    files = [
        ModelRecord(path=p, sha256="0", bytes=1, format=format, scheme=s, runtime=r, signature=signature)
        for p, (s, r) in forms.items()
    ]
    how = Processing(max_length=32, score=row.score, stride=8, answer_length=8, thresholds=[0.5, 0.5])
    labels = ["no", "yes"] if row.names_labels else []
    return Artefacts(name="a", task=task, family="bert", labels=labels, processing=how, files=files)


# What is allowed in the tables has bounds, code in the card, notes, and gates.


@pytest.mark.parametrize(("format", "scheme", "runtime"), FORMS)
def test_every_form_is_complete(format: Format, scheme: Scheme, runtime: Runtime | None) -> None:
    place = format_place(format)
    bounds = place.info.bounds[scheme, runtime]
    assert all(math.isfinite(v) and v > 0 for v in (bounds.reference, bounds.padding, bounds.golden, bounds.loss))
    assert bounds.reference < 1.4, "unrelated answers would pass"
    assert bounds.padding <= 1, "a file that ignores the mask moves by 1 to 4"
    assert 0 < bounds.drop <= 0.01
    assert bounds_of(ModelFile("a/b", "a/b", format, scheme, None, runtime)) is bounds
    assert (bounds == _FP32_BOUNDS) is (scheme is Scheme.FP32)
    assert find_row(format, scheme, runtime).scheme is scheme, "the types gate knows what its weights must be"
    for task in TASKS:
        artefacts = folder(format, scheme, runtime, task)
        card, offers = render_card(artefacts, FACTS), place.offers(artefacts)
        assert place.info.title in card.split("## Processing")[1].split("## Lineage")[0]
        code = [*(offer.snippet for offer in offers), *place.snippets(artefacts)]
        assert code
        assert len({offer.platform for offer in offers}) == len(offers)
        assert all(f"`{offer.record.path}`" in card.split("## Use")[0] for offer in offers)
        for one in code:
            assert one in card
            assert one.partition("\n\n```")[0].endswith(":")
            assert one.endswith("\n```")


def test_gates_that_only_some_files_have(monkeypatch: pytest.MonkeyPatch) -> None:
    unread: Any = None

    def list_gates(format: Format, client: Client | None = None) -> Any:
        form = (format, Scheme.FP32, client, None)
        one = Subject("a", Path("a"), *form, unread, unread, [], TASKS[TaskName.TEXT_CLASSIFICATION], Path())
        return format_place(format).gates(one, [])

    assert list_gates(Format.ONNX) == [] == list_gates(Format.TFLITE)
    monkeypatch.setattr(tflite, "version_of", lambda _: None)
    [metadata] = list_gates(Format.TFLITE, Client.MEDIAPIPE)
    assert (metadata.name, metadata.skipped) == ("metadata", True)
    monkeypatch.setattr(coreml, "skipped_gate_without_reader", lambda s, name: name)
    assert list_gates(Format.COREML) == ["overflow"]


def test_every_format_has_one_place_and_an_engine() -> None:
    assert {p.format for p in format_places()} == set(FORMATS) == set(engines._ENGINES)


def test_the_page_on_bounds_is_current() -> None:
    page = runpy.run_path(str(ROOT / "scripts/bounds_reference.py"))["page"]()
    assert page == (ROOT / "docs/bounds.md").read_text("utf-8"), "run `make reference`"
    assert page.count("\n| ") == len(FORMS) + 1


# What is read of a recipe.


def test_exported_scheme_layout_and_settings() -> None:
    given = recipe(export={"coreml": {"precision": "fp32", "layout": "ane"}, "opset": 19})
    assert [p.exported_scheme(given) for p in format_places()] == [Scheme.FP32] * 3
    assert [p.exported_scheme(recipe()) for p in format_places()] == [Scheme.FP32, Scheme.FP32, Scheme.FP16]
    assert [p.layout(given) for p in format_places()] == [Layout.PLAIN, Layout.PLAIN, Layout.ANE]
    named = {"name": "a", "description": ""}
    assert [p.settings(given) for p in format_places()] == [
        {"export": {"opset": 19}},
        {"export": {"clients": [Client.MEDIAPIPE]}, **named},
        {"export": {"coreml": given.export.coreml.model_dump(mode="json")}, **named},
    ]


@pytest.mark.parametrize(("wanted", "lengths"), [([32, 64], [32, 64, 128]), ([32, 256], [32, 128])])
def test_lengths_of_a_file(wanted: list[int], lengths: list[int]) -> None:
    most, fixed = 128, recipe(export={"lengths": wanted, "coreml": {"ios": 16}})
    tflite_place, coreml_place = format_place(Format.TFLITE), format_place(Format.COREML)
    plain, package = (exported_file(f, Scheme.FP32) for f in (Format.TFLITE, Format.COREML))
    assert tflite_place.lengths(fixed, plain, most) == lengths
    assert coreml_place.lengths(recipe(export={"lengths": wanted}), package, most) == lengths
    # one length pads everything: the recipe's longest, cut to what the model takes
    longest = [min(max(wanted), most)]
    assert coreml_place.lengths(fixed, package, most) == longest
    assert tflite_place.lengths(fixed, exported_file(Format.TFLITE, Scheme.FP32, Client.MEDIAPIPE), most) == longest
    for_gpu = replace(plain, scheme=Scheme.FP16, runtime=Runtime.GPU)
    assert tflite_place.lengths(fixed, for_gpu, most) == [most]


def test_absent_files_are_those_of_mediapipe(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    unwanted = format_place(Format.TFLITE).absent(recipe(export={"clients": []}), tmp_path)
    assert unwanted == {"tflite/mediapipe.tflite": "The recipe asked for no file for MediaPipe (export.clients)."}
    assert all(format_place(f).absent(recipe(), tmp_path) == {} for f in (Format.ONNX, Format.COREML))


OLD = {"scheme": "int8", "runtime": "tflite216"}
STATIC = {"scheme": "a8w8", "runtime": "openvino"}
OF_FORMATS = [{"scheme": s, "format": f} for s, f in (("small", "onnx"), ("lut6", "coreml"), ("w8", "tflite"))]
INT8 = ["onnx-int8/model_int8.onnx", "tflite-int8/model_int8.tflite", "coreml-w8/Model_w8.mlpackage"]


@pytest.mark.parametrize(
    ("files", "sources", "default"),
    [
        (["fp32"], [], "onnx/model.onnx"),
        (["int8"], INT8, "onnx/model_int8.onnx"),
        (
            [OLD, "w8", "int8", STATIC],
            [
                INT8[0],
                "onnx-a8w8/model_a8w8_openvino.onnx",
                INT8[1],
                "tflite-int8/model_int8_tflite216.tflite",
                "tflite-w8/model_w8.tflite",
                INT8[2],
            ],
            "onnx/model_int8.onnx",
        ),
        ([STATIC], ["onnx-a8w8/model_a8w8_openvino.onnx"], "onnx/model.onnx"),
        (
            OF_FORMATS,
            ["onnx-small/model_small.onnx", "tflite-w8/model_w8.tflite", "coreml-lut6/Model_lut6.mlpackage"],
            "onnx/model_small.onnx",
        ),
    ],
    ids=str,
)
def test_smaller_files_of_a_recipe(files: list[Any], sources: list[str], default: str, tmp_path: Path) -> None:
    found = list_model_files(recipe(files=files), Path("weights"))
    assert [f.source for f in found if not f.exported] == sources
    assert choose_default_file(found).path == default
    assert all(f.path.count(".") == 1 for f in found), "Android's packer deflates names with two dots"
    for file in found:
        if not file.exported:
            assert exported_source(file, found).exported
            assert find_row_for_plan(quantization_plan(file, list, tmp_path)).calibrated is (file.scheme is Scheme.A8W8)


def test_whatever_a_recipe_may_ask_for_has_a_row(tmp_path: Path) -> None:
    forms = [{"scheme": s, "runtime": r} for info in FORMATS.values() for s, r in info.forms]
    plain = {s for info in FORMATS.values() for s in info.schemes}
    files = list_model_files(recipe(files=[*plain, *forms]), Path("weights"))
    smaller = [f for f in files if not f.exported and find_row_for_plan(quantization_plan(f, list, tmp_path))]
    wanted = {(f, s, None) for f, info in FORMATS.items() for s in info.schemes if s not in (Scheme.FP32, info.base)}
    wanted |= {(f, s, r) for f, info in FORMATS.items() for s, r in info.forms}
    assert {(f.format, f.scheme, f.runtime) for f in smaller} == wanted


@pytest.mark.parametrize(
    ("schemes", "runtimes", "wanted"),
    [
        ("int8", "", "int8"),
        ("int8 w8", "tflite216", "int8 w8 int8:tflite216"),
        ("int8 a8w8", "openvino", "int8 a8w8 a8w8:openvino"),
        ("int8 int8", "", "int8"),
        ("int8 fp16", "gpu", "int8 fp16:gpu"),
    ],
)
def test_flags_become_files(schemes: str, runtimes: str, wanted: str) -> None:
    # those that do not exist are refused afterwards, in the words of the entry
    found = list_quantized_files([Scheme(s) for s in schemes.split()], [Runtime(r) for r in runtimes.split()])
    pairs = [one.partition(":") for one in wanted.split()]
    assert found == [QuantizedFile(scheme=Scheme(s), runtime=Runtime(r) if r else None) for s, _, r in pairs]


# A format that an installed package brings.


class Toy(FormatPlace):
    """A place without an exporter."""

    format = Format.ONNX  # replaced when it is registered

    def write(self, *_: Any) -> None:
        raise NotImplementedError

    def processing(self, artefacts: Artefacts) -> list[str]:
        return ["Toy: any inputs."] if any(r.format is self.format for r in artefacts.models()) else []

    def snippets(self, artefacts: Artefacts) -> list[str]:
        return ["Toy, in Python:\n\n```python\npass\n```"] if self.processing(artefacts) else []


def make_place(format: Format, kind: type[FormatPlace] = Toy, **changes: Any) -> FormatPlace:
    return type("Mine", (kind,), {"format": format, **changes})()


def forget(name: Format) -> None:
    """Take a format out of all tables."""
    for known in (FORMATS, base._FORMATS, engines._ENGINES, table._READERS):
        known.pop(name, None)
    for key in [k for k in table._ROWS if k[0] == name]:
        del table._ROWS[key]
    del Format._known[name.value]


@pytest.fixture
def toy() -> Iterator[Format]:
    """A registered name with a row, and no place yet."""
    name = Format.register("toy")
    bounds = {(Scheme.FP32, None): _FP32_BOUNDS, (Scheme.INT8, None): Bounds(reference=0.5)}
    register_format(replace(FORMATS[Format.ONNX], name=name, title="Toy", suffix=".toy", bounds=bounds))
    yield name
    forget(name)


@pytest.fixture
def outside() -> Iterator[Format]:
    """What an installed package would do when it is loaded: ONNX under another name."""
    name, plain = Format.register("outside"), FORMATS[Format.ONNX]
    bounds = {form: b for form, b in plain.bounds.items() if form[1] is None}
    row = replace(plain, name=name, title="Outside", suffix=".outside", bounds=bounds)
    register_format(row)
    register_format_place(make_place(name, OnnxPlace, pack=lambda self, *_: base.Extras()))
    register_engine(name, OnnxPredictor)
    register_reader(name, Reader(reading.read_weight_types, reading.read_stored_numbers))
    for scheme in row.schemes:
        register_scheme(replace(find_row(Format.ONNX, scheme), format=name))
    yield name
    forget(name)


def test_a_format_from_outside_goes_the_whole_way(
    outside: Format, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    options = ExportOptions(formats=["outside"], schemes=["int8"])
    phone = api.export(str(tiny_model("bert", 2)), tmp_path / "phone", options)
    made, small = read_artefacts(phone), "outside/model_int8.outside"
    assert [(r.path, r.format, r.scheme, r.default) for r in made.models()] == [
        ("outside/model.outside", outside, Scheme.FP32, False),
        (small, outside, Scheme.INT8, True),
    ]
    result = api.verify(phone)
    assert not result.failures
    assert {g.name for g in result.gates if g.file == small} >= {"golden", "types", "padding"}
    assert pocketbert.load(phone).predict(["play music"])[0].label in made.labels
    listed = json.loads((phone / "artifacts.json").read_text())
    assert {f.get("format") for f in listed["files"]} == {None, "outside"}
    card = (phone / "README.md").read_text()
    assert "library_name: outside" in card
    assert f'onnxruntime.InferenceSession("{small}", options)' in card


def test_what_a_format_from_outside_lacks_is_named_by_its_distributions(
    outside: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    FORMATS[outside] = replace(FORMATS[outside], needs=("outside-writer", "outside-reader"))
    with pytest.raises(MissingBackendError, match="outside-reader is not installed") as error:
        doctor.require("outside")
    assert str(error.value).endswith("with: pip install outside-writer outside-reader")
    monkeypatch.setattr(doctor, "missing", lambda extra: [f"missing-{extra}"])
    with pytest.raises(MissingBackendError) as error:
        doctor.require("train", "outside")
    assert str(error.value).endswith("with: pip install 'pocketbert[train]' missing-outside")


def test_a_package_brings_a_format(toy: Format, tmp_path: Path) -> None:
    register_format_place(make_place(toy))
    given = recipe(export={"formats": ["toy", "onnx"]})
    check_bounds(given)
    assert [f.path for f in list_model_files(given, tmp_path)][:2] == ["toy/model.toy", "toy/model_int8.toy"]
    card = render_card(folder(toy, Scheme.FP32, None, TaskName.FILL_MASK), FACTS)
    assert "Toy: any inputs." in card
    assert "Toy, in Python:" in card
    assert "`pocketbert benchmark -m .` measures it" in card
    with pytest.raises(InputError, match="Toy has no bounds for w8") as caught:
        bounds_of(ModelFile("a/b", "a/b", toy, Scheme.W8))
    assert "Choose among fp32, int8." in str(caught.value)


def test_a_row_and_a_place_are_registered_once_and_the_row_first(toy: Format) -> None:
    row = FORMATS[toy]
    with pytest.raises(ValueError, match="format 'onnx' has a place already"):
        register_format_place(make_place(Format.ONNX))
    with pytest.raises(ValueError, match="format 'toy' is registered already"):
        register_format(row)
    del FORMATS[toy]
    with pytest.raises(ValueError, match="format 'toy' has no row"):
        register_format_place(make_place(toy))


def test_a_recipe_without_bounds_is_refused_before_its_first_step(
    toy: Format, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = recipe(export={"formats": ["toy", "onnx", "tflite"], "clients": []})
    monkeypatch.setattr(type(format_place(Format.TFLITE)), "exported_scheme", lambda place, recipe: Scheme.LUT4)
    with pytest.raises(InputError) as caught:
        Run(given, tmp_path / "run").execute()
    [unwritable, unbound] = map(str, caught.value.problems)
    assert "'toy' can be opened, but not written" in unwritable
    assert "TFLite has no bounds for lut4" in unbound
    assert "fp32, fp16, w8, int8" in unbound
    assert not (tmp_path / "run").exists()
