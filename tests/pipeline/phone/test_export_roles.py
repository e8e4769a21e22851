"""Folders whose files leave some roles as they were exported: what is recorded, gated and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pocketbert import ExportOptions, api
from pocketbert.benchmarks.report import render_report
from pocketbert.core.artefacts import RoleRow, read_artefacts, summarize_roles
from pocketbert.core.errors import InputError
from pocketbert.core.types import Role, Scheme
from pocketbert.pipeline.phone.recording import read_facts
from pocketbert.quantize import Plan, quantize, read_weight_types, weights
from pocketbert.quantize.weights import Use


def test_a_folder_records_what_was_left_and_its_gates_read_that(model: Callable[..., Path], tmp_path: Path) -> None:
    options = ExportOptions(formats=["onnx"], lengths=[16], roles={"ffn_down": "none"})
    folder = api.export(str(model("bert")), tmp_path / "phone", options)
    record = next(r for r in read_artefacts(folder).models() if r.scheme is Scheme.INT8 and r.alias_of is None)
    assert {w.role for w in record.weights if w.scheme is None} == {Role.FFN_DOWN}
    assert {w.scheme for w in record.weights if w.role is Role.FFN_UP} == {Scheme.INT8}
    assert api.verify(folder).status == "passed"
    rows = {(r.role, r.scheme): r for r in by_file(folder)[record.path]}
    down, up = rows[Role.FFN_DOWN, None], rows[Role.FFN_UP, Scheme.INT8]
    assert (down.stored, down.bytes, down.chosen) == ("float32", 4 * down.numbers, True)
    assert (up.stored, up.bytes, up.chosen) == ("int8", up.numbers, False)
    assert rows[Role.NORM, None].note == "stays float in every file of onnx int8"
    card = (folder / "README.md").read_text()
    assert f"| ffn_down | as exported | float32 | 2 | {down.bytes:,} |" in card
    assert "<details><summary>onnx/model_int8.onnx" not in card, "a table with choices is open"
    page = render_report(read_facts(folder))
    assert "<b>ffn_down</b>" in page and 'href="#roles"' in page
    listed = json.loads((folder / "artifacts.json").read_text())
    weight = next(w for f in listed["files"] for w in f.get("weights", ()) if w["role"] == "ffn_down")
    weight["digest"] = "0" * 64
    (folder / "artifacts.json").write_text(json.dumps(listed))
    assert any("not so in the file" in g.detail for g in api.verify(folder).gates if not g.passed)


def by_file(folder: Path) -> dict[str, list[RoleRow]]:
    return {row.path: row.roles for row in read_facts(folder).rows}


def test_a_plain_file_has_a_folded_table_that_is_read_from_the_file(model: Callable[..., Path], tmp_path: Path) -> None:
    options = ExportOptions(formats=["onnx"], lengths=[16], schemes=["int8", "small"])
    folder = api.export(str(model("bert")), tmp_path / "phone", options)
    tables = by_file(folder)
    assert tables["onnx/model.onnx"] == []
    small = [(r.stored, r.weights) for r in tables["onnx/model_small.onnx"] if r.role is Role.EMBEDDING]
    assert sorted(small) == [("int4", 1), ("int8", 2)], "the table of words, those of positions and segments"
    assert {r.note for r in tables["onnx/model_small.onnx"] if r.role is Role.FFN_UP} == {
        "the quantizer of onnx small leaves no role out"
    }
    line = summarize_roles(tables["onnx/model_int8.onnx"])
    assert line.endswith("compressed; without weights: attention_product, residual, norm, softmax")
    assert f"<details><summary>onnx/model_int8.onnx: {line}</summary>" in (folder / "README.md").read_text()


@pytest.mark.parametrize(("format", "scheme"), [("tflite", "int8"), ("coreml", "w8")])
def test_other_formats_leave_the_same_weights(
    model: Callable[..., Path], tmp_path: Path, format: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "SMALL", 600)
    options = ExportOptions(formats=[format], lengths=[16], roles={"ffn_down": "none", "embedding": "none"})
    folder = api.export(str(model("bert")), tmp_path / "phone", options)
    for record in (r for r in read_artefacts(folder).models() if r.scheme == scheme):
        assert {w.role for w in record.weights if w.scheme is None} == {Role.FFN_DOWN, Role.EMBEDDING}
        rows = [r for r in by_file(folder)[record.path] if r.weights] if record.client is None else []
        assert all(r.stored.startswith("float") is (r.scheme is None or bool(r.note)) for r in rows)
        assert not rows or {r.role for r in rows if r.stored == "int8"} >= {Role.FFN_UP, Role.ATTENTION_PROJECTION}
        types = read_weight_types(folder / record.path, record.format)
        kinds = {u.dtype for u in types.uses if u.numbers > 600 and u.use is Use.MATMUL}
        assert len(kinds) == 2 and any(k.startswith("float") for k in kinds)


@pytest.mark.parametrize(("format", "scheme", "second"), [("tflite", "int8", "w4"), ("coreml", "w8", "w4")])
def test_other_formats_mix_schemes(
    model: Callable[..., Path], tmp_path: Path, format: str, scheme: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "SMALL", 600)
    options = ExportOptions(
        formats=[format], schemes=[scheme], lengths=[16], roles={"ffn_down": "none", "embedding": second}
    )
    folder = api.export(str(model("bert")), tmp_path / "phone", options)
    record = next(r for r in read_artefacts(folder).models() if r.scheme == scheme and r.client is None)
    assert {str(w.scheme) for w in record.weights if w.role is Role.EMBEDDING} == {second}
    rows = {r.role: r.stored for r in by_file(folder)[record.path] if r.weights and not r.note}
    assert (rows[Role.EMBEDDING], rows[Role.FFN_UP]) == ("int4", "int8")
    assert rows[Role.FFN_DOWN].startswith("float")
    assert api.verify(folder).status == "passed"
    turned = {Scheme(scheme): Scheme(second), Scheme(second): Scheme(scheme), None: None}
    other = [w.model_copy(update={"scheme": turned[w.scheme]}) for w in record.weights]
    base = next(r for r in read_artefacts(folder).models() if r.client is None and r.scheme != scheme)
    plan = Plan(record.format, Scheme(second), weights=other)
    types = quantize(folder / base.path, tmp_path / Path(record.path).name, plan)
    kinds = {u.dtype for u in types.uses if u.numbers > 600}
    assert {"int4", "int8"} <= kinds and any(k.startswith("float") for k in kinds)


def test_what_no_file_can_do_is_refused_before_anything_is_written(model: Callable[..., Path], tmp_path: Path) -> None:
    options = ExportOptions(formats=["onnx"], schemes=["int8", "small"], roles={"norm": "int8", "ffn_up": "none"})
    with pytest.raises(InputError) as error:
        api.export(str(model("bert")), tmp_path / "phone", options)
    assert "norm stays float in every file of onnx int8" in str(error.value)
    assert "the quantizer of onnx small leaves no role out" in str(error.value)
    assert "--roles" in str(error.value)
