"""The door and the table behind it: every row is made and checked, wrong plans are refused, a stub needs only a row."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketbert.core.errors import GateError, InputError
from pocketbert.core.formats import FORMATS
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.quantize import Plan, find_row, quantize, read_stored_numbers, read_weight_types, table, weights
from pocketbert.quantize.table import SchemeRow, find_reader, find_row_for_plan, list_rows, register_scheme
from pocketbert.quantize.weights import ExpectedForm, ExpectedWeights, Use

Rows = list[dict[str, Any]]
WRITTEN = [r for r in list_rows() if r.write is not None]
NEEDS = {Format.ONNX: "onnx", Format.TFLITE: "ai_edge_quantizer", Format.COREML: "coremltools"}


@pytest.fixture(autouse=True)
def small_matrices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have no matrix above the usual bound."""
    monkeypatch.setattr(weights, "SMALL", 512)


def rows() -> Rows:
    draw = np.random.default_rng(0)
    ids = [draw.integers(5, 90, (1, draw.integers(4, 31))) for _ in range(20)]
    return [{"input_ids": i, "attention_mask": np.ones_like(i), "token_type_ids": i * 0} for i in ids]


def plan_of(row: SchemeRow) -> Plan:
    return Plan(row.format, row.scheme, row.runtime, rows if row.calibrated else None)


@pytest.fixture(scope="module")
def source(
    exported: Callable[[str], Path],
    request: pytest.FixtureRequest,
    open_tiny: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Format], Path]:
    """`source(format)`: the exported file of a tiny classifier."""

    def make(format: Format) -> Path:
        pytest.importorskip(NEEDS[format])
        if format is Format.ONNX:
            return exported("bert")
        if format is Format.TFLITE:
            return Path(request.getfixturevalue("exported_tflite")("bert"))
        from pocketbert.export import coreml
        from pocketbert.export.prepare import prepare

        path = tmp_path_factory.mktemp("table") / "Model.mlpackage"
        model, folder, _ = open_tiny("bert", 2)
        task = TASKS[TaskName.TEXT_CLASSIFICATION]
        info = coreml.CoremlInfo("One sentence.", "v", "a", "l", ("a", "b", "c"))
        module = prepare(model, folder.family, task, format)
        coreml.export(module, folder.family, task, [16], path, coreml.CoremlForm(), info)
        return path

    return make


@pytest.fixture
def own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that may be changed."""
    monkeypatch.setattr(table, "_ROWS", dict(table._ROWS))


def test_the_table_has_what_the_formats_offer_and_nothing_else() -> None:
    offered = {(f, s, None) for f, info in FORMATS.items() for s in info.schemes}
    offered |= {(f, s, r) for f, info in FORMATS.items() for s, r in info.forms}
    assert {(r.format, r.scheme, r.runtime) for r in list_rows()} == offered
    exported = {(r.format, r.scheme) for r in list_rows() if r.write is None}
    assert exported == {(f, s) for f, info in FORMATS.items() for s in (Scheme.FP32, info.base)}
    assert all(find_reader(format) for format in Format)
    assert {r.title for r in WRITTEN if r.calibrated} == {
        "onnx a8w8",
        "onnx a8w8 for openvino",
        "onnx a8w8 for qnn",
        "onnx a16w8 for qnn",
        "tflite a8w8",
        "tflite a8w8 for npu",
        "tflite a16w8 for npu",
        "coreml a8w8",
    }


@pytest.mark.parametrize("row", WRITTEN, ids=lambda r: r.title)
def test_every_row_makes_a_file_with_its_weight_types(
    row: SchemeRow, source: Callable[[Format], Path], tmp_path: Path
) -> None:
    before, path = source(row.format), tmp_path / f"small{FORMATS[row.format].suffix}"
    types = quantize(before, path, plan_of(row))
    assert types == read_weight_types(path, row.format)
    assert row.problems(types, "a") == []
    for use, wanted in ((Use.MATMUL, row.weights.products), (Use.TABLE, row.weights.tables)):
        large = [u for u in types.uses if u.use is use and u.numbers >= 512]
        assert large
        most = max(u.numbers for u in large)
        others = row.weights.other_tables if use is Use.TABLE else None
        for weight in large:
            due = wanted if others is None or weight.numbers == most else others
            assert (weight.dtype, weight.dequantized, weight.bits is None) == (
                due.dtype,
                due.dequantized,
                due.bits is None,
            )
            assert due.per_channel in (None, weight.per_channel)
    assert all(np.isfinite(v).all() for _, v in read_stored_numbers(path, row.format) if v.dtype.kind == "f")
    others = [r for r in list_rows() if r.format is row.format and r.weights != row.weights]
    assert all(other.problems(types, "a") for other in others)
    assert row.problems(read_weight_types(before, row.format), "a"), "the exported file is none of this row"


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Plan(Format.ONNX, Scheme.W8), "onnx w8: does not exist in this version; onnx has: onnx int8, onnx "),
        (Plan(Format.ONNX, Scheme.INT8, Runtime.OPENVINO), "onnx int8 for openvino: does not exist in this version; onnx"),
        (Plan(Format.ONNX, Scheme.FP32), "onnx fp32: does not exist in this version"),
        (Plan(Format.TFLITE, Scheme.W8, Runtime.TFLITE_2_16), "tflite has: tflite fp16, tflite fp16 for gpu, tflite w8, tflite int8, tflite int8 for"),
        (Plan(Format.TFLITE, Scheme.A8W8, Runtime.OPENVINO, rows), "tflite a8w8 for openvino: does not exist"),
        (Plan(Format.COREML, Scheme.INT8), "coreml int8: does not exist in this version; coreml has: coreml w8, coreml a8w8, coreml small, coreml w4, "),
        (Plan(Format.ONNX, Scheme.A8W8, Runtime.OPENVINO), "measures ranges on calibration rows, and the plan has none"),
        (Plan(Format.ONNX, Scheme.INT8, None, rows), "onnx int8: reads no calibration rows"),
    ],
    ids=lambda value: value.title if isinstance(value, Plan) else "",
)  # fmt: skip
def test_a_wrong_plan_is_refused_before_any_work(plan: Plan, said: str, tmp_path: Path) -> None:
    for refuse in (lambda: find_row_for_plan(plan), lambda: quantize(tmp_path / "none", tmp_path / "small", plan)):
        with pytest.raises(InputError) as caught:
            refuse()
        assert said in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_the_types_of_a_file_that_no_row_describes_are_not_guessed() -> None:
    assert find_row(Format.COREML, Scheme.FP16).write is None
    with pytest.raises(InputError, match="onnx fp16: does not exist in this version; onnx has: onnx fp32, onnx int8"):
        find_row(Format.ONNX, Scheme.FP16)


@pytest.mark.usefixtures("own_table")
def test_a_stub_scheme_is_one_row(source: Callable[[Format], Path], tmp_path: Path) -> None:
    seen: list[object] = []

    def copies(before: Path, destination: Path, plan: Plan) -> None:
        assert plan.rows is not None
        seen.extend(plan.rows())
        shutil.copyfile(before, destination)

    before, after = source(Format.ONNX), tmp_path / "copy.onnx"
    float32 = ExpectedForm("float32")
    register_scheme(SchemeRow(Format.ONNX, Scheme.A8W8, ExpectedWeights(float32, float32), copies))
    types = quantize(before, after, Plan(Format.ONNX, Scheme.A8W8, rows=rows))
    assert after.read_bytes() == before.read_bytes()
    assert len(seen) == 20
    assert types == read_weight_types(before, Format.ONNX)
    assert find_row(Format.ONNX, Scheme.A8W8).problems(types, "a") == []
    # and one that does not do what its row says is found out
    register_scheme(
        SchemeRow(Format.ONNX, Scheme.W8, ExpectedWeights(ExpectedForm("int8", True), float32), copies_only)
    )
    with pytest.raises(GateError, match=r"bad.onnx: no matrix product has int8 weights; the quantizer did nothing"):
        quantize(before, tmp_path / "bad.onnx", Plan(Format.ONNX, Scheme.W8))
    assert (tmp_path / "bad.onnx").is_file(), "it stays where the run marks it failed"


def copies_only(before: Path, destination: Path, plan: Plan) -> None:
    shutil.copyfile(before, destination)
