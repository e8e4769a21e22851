"""A format that no file of this package names goes the whole way: exported, quantized, verified, loaded, asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs pocketbert[onnx]")

import pocketbert
from pocketbert import ExportOptions, api
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.errors import MissingBackendError
from pocketbert.core.formats import FORMATS, register_format
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline import doctor as requirements
from pocketbert.pipeline.doctor import require
from pocketbert.pipeline.formats import base as registry
from pocketbert.pipeline.formats.base import register_format_place
from pocketbert.pipeline.formats.onnx import OnnxPlace
from pocketbert.quantize import table
from pocketbert.quantize.onnx import reading as quantize_onnx
from pocketbert.quantize.table import Reader, find_row, register_reader, register_scheme
from pocketbert.runtime import engines
from pocketbert.runtime.engines import register_engine
from pocketbert.runtime.onnx import OnnxPredictor

TITLE = "Outside"


@pytest.fixture
def outside() -> Iterator[Format]:
    """What an installed package would do when it is loaded: ONNX under another name."""
    name = Format.register("outside")
    bounds = {form: b for form, b in FORMATS[Format.ONNX].bounds.items() if form[1] is None}
    row = replace(FORMATS[Format.ONNX], name=name, title=TITLE, suffix=".outside", bounds=bounds)
    register_format(row)
    place = type("OutsidePlace", (OnnxPlace,), {"format": name, "pack": _nothing})
    register_format_place(place())
    register_engine(name, OnnxPredictor)
    register_reader(name, Reader(quantize_onnx.read_weight_types, quantize_onnx.read_stored_numbers))
    for scheme in row.schemes:
        register_scheme(replace(find_row(Format.ONNX, scheme), format=name))
    yield name
    del Format._known["outside"], FORMATS[name], registry._FORMATS[name], engines._ENGINES[name], table._READERS[name]
    for key in [k for k in table._ROWS if k[0] == name]:
        del table._ROWS[key]


def _nothing(self: Any, *_: Any) -> registry.Extras:
    return registry.Extras()


def test_the_whole_way(outside: Format, tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    phone = api.export(
        str(tiny_model("bert", 2)), tmp_path / "phone", ExportOptions(formats=["outside"], schemes=["int8"])
    )
    made = read_artefacts(phone)
    assert [(r.path, r.format, r.scheme, r.default) for r in made.models()] == [
        ("outside/model.outside", outside, Scheme.FP32, False),
        ("outside/model_int8.outside", outside, Scheme.INT8, True),
    ]
    result = api.verify(phone)
    assert not result.failures
    assert {g.name for g in result.gates if g.file == "outside/model_int8.outside"} >= {"golden", "types", "padding"}
    model = pocketbert.load(phone)
    assert model.predict(["play music"])[0].label in made.labels
    listed = json.loads((phone / "artifacts.json").read_text())
    assert {f.get("format") for f in listed["files"]} == {None, "outside"}
    card = (phone / "README.md").read_text()
    assert "library_name: outside" in card
    assert 'onnxruntime.InferenceSession("outside/model_int8.outside", options)' in card


def test_what_a_format_of_a_plug_in_lacks_is_named_by_its_distributions(
    outside: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:  # the fixture takes the row away when the test ends
        patched.setitem(FORMATS, outside, replace(FORMATS[outside], needs=("outside-writer", "outside-reader")))
        with pytest.raises(MissingBackendError, match="outside-reader is not installed") as error:
            require("outside")
        assert str(error.value).endswith("with: pip install outside-writer outside-reader")
        patched.setattr(requirements, "missing", lambda extra: [f"missing-{extra}"])
        with pytest.raises(MissingBackendError) as error:
            require("train", "outside")
        assert str(error.value).endswith("with: pip install 'pocketbert[train]' missing-outside")
