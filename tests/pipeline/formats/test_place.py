"""Every format is complete: what is allowed in the tables has bounds, code in the card, notes, and gates."""

from __future__ import annotations

import math
import runpy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.artefacts import Artefacts, ModelRecord, Processing, Signature, Tensor
from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of
from pocketbert.core.formats import _FP32_BOUNDS, FORMATS, Bounds, FormatInfo, register_format
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Client, Format, Layout, Runtime, Scheme
from pocketbert.pipeline.formats import base as registry
from pocketbert.pipeline.formats.base import (
    FormatPlace,
    ModelFile,
    bounds_of,
    check_bounds,
    exported_file,
    format_place,
    format_places,
    list_model_files,
    register_format_place,
)
from pocketbert.pipeline.gates.verify import Subject
from pocketbert.pipeline.phone.card import CardFacts, render_card
from pocketbert.quantize import find_row
from pocketbert.runtime.engines import _ENGINES

ROOT = Path(__file__).resolve().parents[3]
FORMS = [(f, s, r) for f, info in FORMATS.items() for s, r in info.every_form]


def recipe(**sections: Any) -> Recipe:
    base = {"schema": 1, "name": "a", "task": "text-classification", "teacher": {"model": "minilm-l6"}}
    return Recipe.model_validate({**base, **sections})


def folder(format: Format, scheme: Scheme, runtime: Runtime | None, task: TaskName) -> Artefacts:
    """A folder with one file of a form, and with the exported one where that form is for one runtime only."""
    row = TASKS[task]
    signature = Signature(
        inputs=[Tensor(name=n, dtype="int32", shape=[1, 32]) for n in ("input_ids", "attention_mask")],
        outputs=[Tensor(name=n, dtype="float32", shape=[1, 2]) for n in row.outputs],
        lengths=[16, 32] if FORMATS[format].fixed_lengths else [],
    )
    base = exported_file(format, FORMATS[format].base)
    forms = {base.path: (base.scheme, None), f"{format}/file{FORMATS[format].suffix}": (scheme, runtime)}
    files = [
        ModelRecord(path=p, sha256="0", bytes=1, format=format, scheme=s, runtime=r, signature=signature)
        for p, (s, r) in forms.items()
    ]
    return Artefacts(
        name="a",
        task=task,
        family="bert",
        labels=["no", "yes"] if row.names_labels else [],
        processing=Processing(max_length=32, score=row.score, stride=8, answer_length=8, thresholds=[0.5, 0.5]),
        files=files,
    )


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
    for task in TaskName:
        artefacts = folder(format, scheme, runtime, task)
        card = render_card(artefacts, CardFacts(family_of("bert"), "unknown"))
        assert place.info.title in card.split("## Processing")[1].split("## Lineage")[0]
        offers = place.offers(artefacts)
        code = [*(offer.snippet for offer in offers), *place.snippets(artefacts)]
        assert code
        assert len({offer.platform for offer in offers}) == len(offers)
        assert all(f"`{offer.record.path}`" in card.split("## Use")[0] for offer in offers)
        assert all(re_colon_then_code(c) for c in code)
        assert all(c in card for c in code)


def re_colon_then_code(text: str) -> bool:
    sentence, _, rest = text.partition("\n\n```")
    return sentence.endswith(":") and rest.endswith("\n```")


def test_every_format_has_one_place_and_an_engine() -> None:
    assert [p.format for p in format_places()][:3] == [*Format][:3]
    assert {p.format for p in format_places()} == set(FORMATS) == set(_ENGINES)


def test_measured_bounds() -> None:
    """The numbers that files were measured against; a change is a decision, not an accident."""
    assert {(p.format, *form): b for p in format_places() for form, b in p.info.bounds.items() if b != _FP32_BOUNDS} == {
        ("onnx", "int8", None): Bounds(reference=0.5, padding=1.0, golden=0.25),
        ("onnx", "small", None): Bounds(reference=0.5, padding=1.0, golden=0.25),
        **{("onnx", s, None): Bounds(reference=0.5, padding=0.02, golden=0.1) for s in ("int8-b32", "w4")},
        ("onnx", "a8w8", None): Bounds(reference=0.5, padding=0.1, golden=0.25),
        ("onnx", "a8w8", "openvino"): Bounds(reference=0.5, padding=0.1, golden=0.25),
        ("onnx", "a8w8", "qnn"): Bounds(reference=0.5, padding=0.1, golden=0.25, least=0.1),
        ("onnx", "a16w8", "qnn"): Bounds(reference=0.5, padding=0.02, golden=0.1, least=0.1),
        **{("tflite", s, None): Bounds(reference=0.5, padding=0.02, golden=0.05) for s in ("small", "w4", "a8w8")},
        **{("coreml", s, None): Bounds(reference=0.5, padding=0.05, golden=0.1) for s in ("a8w8", "small", "w4", "lut6", "lut4")},
        ("tflite", "fp16", None): Bounds(reference=0.02),
        ("tflite", "fp16", "gpu"): Bounds(reference=0.02, golden=0.1),
        ("tflite", "a16w8", "npu"): Bounds(reference=0.5, padding=0.1, golden=0.1, least=0.1),
        ("tflite", "a8w8", "npu"): Bounds(reference=0.5, padding=0.1, golden=0.25, least=0.1),
        ("tflite", "w8", None): Bounds(reference=0.5),
        ("tflite", "int8", None): Bounds(reference=0.5, padding=0.02, golden=0.05),
        ("tflite", "int8", "tflite216"): Bounds(reference=0.5, padding=0.02, golden=0.25),
        ("coreml", "fp16", None): Bounds(reference=0.02, padding=0.05, golden=0.1, loss=300, drop=0.003),
        ("coreml", "w8", None): Bounds(reference=0.5, padding=0.05, golden=0.1),
    }  # fmt: skip


def test_the_page_on_bounds_is_current() -> None:
    page = runpy.run_path(str(ROOT / "scripts/bounds_reference.py"))["page"]()
    assert page == (ROOT / "docs/bounds.md").read_text("utf-8"), "run `make reference`"
    assert page.count("\n| ") == len(FORMS) + 1


# what is read of a recipe


def test_exported_scheme_layout_and_settings() -> None:
    given = recipe(export={"coreml": {"precision": "fp32", "layout": "ane"}, "opset": 19})
    assert [p.exported_scheme(given) for p in format_places()] == [Scheme.FP32] * 3
    assert [p.exported_scheme(recipe()) for p in format_places()] == [Scheme.FP32, Scheme.FP32, Scheme.FP16]
    assert [p.layout(given) for p in format_places()] == [Layout.PLAIN, Layout.PLAIN, Layout.ANE]
    onnx, tflite, coreml = (p.settings(given) for p in format_places())
    assert onnx == {"export": {"opset": 19}}
    assert tflite == {"export": {"clients": [Client.MEDIAPIPE]}, "name": "a", "description": ""}
    assert coreml == {"export": {"coreml": given.export.coreml.model_dump(mode="json")}, "name": "a", "description": ""}


@pytest.mark.parametrize(("wanted", "most", "lengths"), [([32, 64], 128, [32, 64, 128]), ([32, 256], 128, [32, 128])])
def test_lengths_of_a_file(wanted: list[int], most: int, lengths: list[int]) -> None:
    given = recipe(export={"lengths": wanted, "coreml": {"ios": 16}})
    files = {p.format: exported_file(p.format, Scheme.FP32) for p in format_places()}
    assert format_place(Format.TFLITE).lengths(given, files[Format.TFLITE], most) == lengths
    enumerated = given.model_copy(update={"export": recipe(export={"lengths": wanted}).export})
    assert format_place(Format.COREML).lengths(enumerated, files[Format.COREML], most) == lengths
    # one length pads everything: the recipe's longest, cut to what the model takes
    longest = [min(max(wanted), most)]
    assert format_place(Format.COREML).lengths(given, files[Format.COREML], most) == longest
    mediapipe = exported_file(Format.TFLITE, Scheme.FP32, Client.MEDIAPIPE)
    assert format_place(Format.TFLITE).lengths(given, mediapipe, most) == longest
    for_gpu = replace(files[Format.TFLITE], scheme=Scheme.FP16, runtime=Runtime.GPU)
    assert format_place(Format.TFLITE).lengths(given, for_gpu, most) == [most]


def test_absent_files_are_those_of_mediapipe(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    unwanted = format_place(Format.TFLITE).absent(recipe(export={"clients": []}), tmp_path)
    assert unwanted == {"tflite/mediapipe.tflite": "The recipe asked for no file for MediaPipe (export.clients)."}
    assert (
        format_place(Format.ONNX).absent(recipe(), tmp_path)
        == {}
        == format_place(Format.COREML).absent(recipe(), tmp_path)
    )


# gates


def subject(format: Format, **more: Any) -> Subject:
    given: dict[str, Any] = {
        "name": "a", "path": Path("a"), "format": format, "scheme": Scheme.FP32, "client": None, "runtime": None,
        "predictor": None, "tokenizer": None, "labels": [], "task": TASKS[TaskName.TEXT_CLASSIFICATION], "folder": Path(),
    }  # fmt: skip
    return Subject(**{**given, **more})


def test_gates_that_only_some_files_have(monkeypatch: pytest.MonkeyPatch) -> None:
    from pocketbert.pipeline.formats import coreml, tflite

    assert format_place(Format.ONNX).gates(subject(Format.ONNX), []) == []
    assert format_place(Format.TFLITE).gates(subject(Format.TFLITE), []) == []
    monkeypatch.setattr(tflite, "version_of", lambda _: None)
    [metadata] = format_place(Format.TFLITE).gates(subject(Format.TFLITE, client=Client.MEDIAPIPE), [])
    assert (metadata.name, metadata.skipped) == ("metadata", True)
    monkeypatch.setattr(coreml, "skipped_gate_without_reader", lambda s, name: name)
    assert format_place(Format.COREML).gates(subject(Format.COREML), []) == ["overflow"]


# the registry


class Toy(FormatPlace):
    """A format that an installed package brings."""

    format = Format.ONNX  # replaced when it is registered

    def write(self, *_: Any) -> None:
        raise NotImplementedError

    def processing(self, artefacts: Artefacts) -> list[str]:
        return ["Toy: any inputs."] if any(r.format is self.format for r in artefacts.models()) else []

    def snippets(self, artefacts: Artefacts) -> list[str]:
        return ["Toy, in Python:\n\n```python\npass\n```"] if self.processing(artefacts) else []


@pytest.fixture
def toy() -> Iterator[Format]:
    """A registered name with a row, and no place yet."""
    name = Format.register("toy")
    bounds = {(Scheme.FP32, None): _FP32_BOUNDS, (Scheme.INT8, None): Bounds(reference=0.5)}
    register_format(replace(FORMATS[Format.ONNX], name=name, title="Toy", suffix=".toy", bounds=bounds))
    yield name
    del Format._known["toy"], FORMATS[name]
    registry._FORMATS.pop(name, None)


def place(format: Format) -> FormatPlace:
    return type("Mine", (Toy,), {"format": format})()


def test_a_package_brings_a_format(toy: Format, tmp_path: Path) -> None:
    register_format_place(place(toy))
    given = recipe(export={"formats": ["toy", "onnx"]})
    check_bounds(given)
    assert [f.path for f in list_model_files(given, tmp_path)][:2] == ["toy/model.toy", "toy/model_int8.toy"]
    card = render_card(folder(toy, Scheme.FP32, None, TaskName.FILL_MASK), CardFacts(family_of("bert"), "unknown"))
    assert "Toy: any inputs." in card
    assert "Toy, in Python:" in card
    assert "`pocketbert benchmark -m .` measures it" in card


def test_a_format_has_one_place(toy: Format) -> None:
    with pytest.raises(ValueError, match="format 'onnx' has a place already"):
        register_format_place(place(Format.ONNX))


def test_a_file_of_a_form_that_its_format_does_not_have_is_refused(toy: Format) -> None:
    register_format_place(place(toy))
    with pytest.raises(InputError, match="Toy has no bounds for w8") as caught:
        bounds_of(ModelFile("a/b", "a/b", toy, Scheme.W8))
    assert "Choose among fp32, int8." in str(caught.value)


def test_a_row_is_registered_once_and_before_its_place(toy: Format) -> None:
    row: FormatInfo = FORMATS[toy]
    with pytest.raises(ValueError, match="format 'toy' is registered already"):
        register_format(row)
    del FORMATS[toy]
    try:
        with pytest.raises(ValueError, match="format 'toy' has no row"):
            register_format_place(place(toy))
    finally:
        FORMATS[toy] = row


def test_a_recipe_without_bounds_is_refused_before_its_first_step(
    toy: Format, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from pocketbert.pipeline.run import Run

    given = recipe(export={"formats": ["toy", "onnx", "tflite"], "clients": []})
    monkeypatch.setattr(type(format_place(Format.TFLITE)), "exported_scheme", lambda place, recipe: Scheme.LUT4)
    with pytest.raises(InputError) as caught:
        Run(given, tmp_path / "run").execute()
    [unwritable, unbound] = map(str, caught.value.problems)
    assert "'toy' can be opened, but not written" in unwritable
    assert "TFLite has no bounds for lut4" in unbound
    assert "fp32, fp16, w8, int8" in unbound
    assert not (tmp_path / "run").exists()
