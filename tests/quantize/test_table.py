"""The table of schemes: every row is made and checked, wrong plans are refused, a stub is one row, the page lists it all."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.disk.files import sha256_path
from pocketbert.core.errors import GateError, InputError, MissingBackendError
from pocketbert.core.formats import FORMATS
from pocketbert.core.types import Format, Role, Runtime, Scheme
from pocketbert.export.onnx import check_readable
from pocketbert.quantize import Plan, quantize, read_stored_numbers, read_weight_types, table
from pocketbert.quantize.simulated import SimulatedPredictor
from pocketbert.quantize.table import (
    WEIGHTED_ROLES,
    SchemeRow,
    find_reader,
    find_row_for_plan,
    list_rows,
    register_scheme,
    repeat_tokens,
)
from pocketbert.quantize.weights import ExpectedForm, ExpectedWeights, Use
from pocketbert.runtime.engines import open_file
from support.defects import NEEDS
from support.exact import exact_bert
from support.learned import learned_of
from support.quantized import SUFFIX, Feed, answer_rows, answer_sentences, draw_rows, join_rows, pad_row

WRITTEN = [r for r in list_rows() if r.write is not None]
PLAIN = {(r.format, r.scheme): r for r in WRITTEN if r.runtime is None}
QUICK = ("onnx int8", "onnx a8w8", "tflite int8", "tflite w4", "coreml w8")
"""Rows that the fast suite writes: one of each format, of static ranges and of blocks."""
BLOCKS = (Scheme.INT8_B32, Scheme.W4)
SENTENCES = 12


def title_of(row: SchemeRow) -> str:
    return row.title


def as_cases(rows: list[SchemeRow]) -> list[Any]:
    """Rows as cases of a test, slow ones but for the quick rows."""
    return [pytest.param(r, marks=[] if r.title in QUICK else pytest.mark.slow, id=r.title) for r in rows]


def plan_of(row: SchemeRow, rows: list[Feed], **more: Any) -> Plan:
    return Plan(row.format, row.scheme, row.runtime, (lambda: rows) if row.calibrated else None, **more)


@pytest.fixture(autouse=True)
def installed(request) -> None:
    """A test of a row skips where the extra of its format is not installed."""
    row = getattr(request.node, "callspec", None) and request.node.callspec.params.get("row")
    if row:
        pytest.importorskip(NEEDS.get(row.format, "onnx"))


def test_the_table_has_what_the_formats_offer_and_nothing_else():
    offered = {(f, s, None) for f, info in FORMATS.items() for s in info.schemes}
    offered |= {(f, s, r) for f, info in FORMATS.items() for s, r in info.forms}
    assert {(r.format, r.scheme, r.runtime) for r in list_rows()} == offered
    exported = {(r.format, r.scheme) for r in list_rows() if r.write is None}
    assert exported == {(f, s) for f, info in FORMATS.items() for s in (Scheme.FP32, info.base)}
    assert all(find_reader(format) for format in Format)


# Every row.


@pytest.mark.parametrize("row", as_cases(WRITTEN))
def test_every_row_makes_a_file_with_its_weight_types(row, exported_file, quantized):
    path, types = quantized(row.format, row.scheme, row.runtime)
    before = read_weight_types(exported_file(row.format), row.format)
    assert types == read_weight_types(path, row.format)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    if row.format is Format.ONNX:
        check_readable(path)
    assert row.problems(types, "a") == []
    for use, wanted in ((Use.MATMUL, row.weights.products), (Use.TABLE, row.weights.tables)):
        large = [u for u in types.uses if u.use is use and u.numbers >= 512]
        most = max(u.numbers for u in large)
        others = row.weights.other_tables if use is Use.TABLE else None
        for found in large:
            due = wanted if others is None or found.numbers == most else others
            form = (found.dtype, found.dequantized, found.bits is None, found.block)
            assert form == (due.dtype, due.dequantized, due.bits is None, due.block)
            assert due.per_channel in (None, found.per_channel)
    assert sum(u.use is Use.MATMUL for u in types.uses) == 6 * 2 + 2
    assert types.int8_bytes + types.float_bytes < 0.7 * before.float_bytes
    assert before.int8_bytes == 0  # shapes and ids are no such integers
    if row.format is Format.ONNX:
        floats = (v.nbytes for _, v in read_stored_numbers(path, row.format) if v.dtype.kind == "f")
        assert types.float_bytes == sum(floats)
    assert all(np.isfinite(v).all() for _, v in read_stored_numbers(path, row.format) if v.dtype.kind == "f")
    others = [r for r in list_rows() if r.format is row.format and r.weights != row.weights]
    assert all(other.problems(types, "a") for other in others)
    assert row.problems(before, "a"), "the exported file is none of this row"


@pytest.mark.parametrize("row", as_cases(WRITTEN))
def test_a_file_answers_as_its_scheme_simulated(row, exported_file, quantized, sentence_rows, open_tiny):
    predictor = open_file(quantized(row.format, row.scheme, row.runtime)[0], row.format)
    exact, tokenizer = exact_bert(open_tiny, 2, row.format), open_tiny("bert", 2)[2]
    found, right = (answer_sentences(p, tokenizer, SENTENCES) for p in (predictor, exact))
    error = rms_error(found, right)
    if row.simulation is None:  # halves
        assert 0 < error < 0.01
        return
    how = row.simulation.made_from(FORMATS[row.format].base).of_lengths(2)
    simulated = answer_sentences(SimulatedPredictor(exact, how, sentence_rows), tokenizer, SENTENCES)
    wanted = rms_error(simulated, right)
    assert wanted > 0.001
    assert 0.6 * wanted < error < 1.5 * wanted or max(wanted, error) < 0.01
    if row.simulation.inputs is None and not row.calibrated:
        assert rms_error(found, simulated) < max(0.15 * wanted, 0.01), "only weights are rounded"
    if row.runtime is None:
        assert open_file(exported_file(row.format), row.format).lengths == predictor.lengths


@pytest.mark.parametrize("row", as_cases([r for r in WRITTEN if r.calibrated or r.scheme in BLOCKS]))
def test_padding_changes_no_answer_of_static_ranges_and_blocks(row, quantized):
    predictor = open_file(quantized(row.format, row.scheme, row.runtime)[0], row.format)
    lengths = predictor.lengths or (16, 40)
    rows = [r for r in draw_rows(12, seed=3) if r["input_ids"].shape[1] <= lengths[0]]
    assert rows
    short, long = (answer_rows(predictor, [pad_row(r, n) for r in rows]) for n in (lengths[0], lengths[-1]))
    # a sum in another order may fall to the other side of half a step
    assert rms_error(long, short) < 0.02
    if not predictor.lengths:
        together = predictor.run(join_rows(rows, 40))["logits"]
        assert max(rms_error(together, short), rms_error(answer_rows(predictor, rows), short)) < 0.02


@pytest.mark.parametrize("row", as_cases([r for r in WRITTEN if r.scheme is Scheme.A8W8]))
def test_learned_ranges_take_the_place_of_measured_ones(row, exported_file, sentence_rows, open_tiny, tmp_path):
    exact, tokenizer = exact_bert(open_tiny, 2, row.format), open_tiny("bert", 2)[2]
    learned, path = learned_of(exact.module, row.format, row.runtime), tmp_path / f"a{SUFFIX[row.format]}"
    quantize(exported_file(row.format), path, plan_of(row, sentence_rows, learned=learned))
    assert row.simulation is not None
    how = row.simulation.made_from(FORMATS[row.format].base).of_lengths(2)
    predictors = [open_file(path, row.format)]
    predictors += [SimulatedPredictor(exact, how, sentence_rows, learned=own) for own in (learned, None)]
    found, simulated, measured = (answer_sentences(p, tokenizer, SENTENCES) for p in predictors)
    change = rms_error(simulated, measured)
    assert change > 0.3, "ranges that are far too small"
    assert rms_error(found, simulated) < 0.3 * change


@pytest.mark.parametrize("row", as_cases([r for r in WRITTEN if r.calibrated]))
def test_rows_that_measure_nothing_are_refused_and_an_older_file_stays(row, exported_file, sentence_rows, tmp_path):
    path = tmp_path / f"a{SUFFIX[row.format]}"
    path.write_bytes(b"older")
    wrong: list[list[Feed]] = [[], [{"input_ids": sentence_rows[0]["input_ids"]}]]
    if row.format is not Format.ONNX:
        wrong[1] = [{name: np.ones((1, 41), np.int64) for name in sentence_rows[0]}]
    for rows, said in zip(wrong, ("no row to measure ranges on", "no row to measure|attention_mask"), strict=True):
        with pytest.raises(InputError, match=said):
            quantize(exported_file(row.format), path, plan_of(row, rows))
    assert path.read_bytes() == b"older"
    assert [p.name for p in tmp_path.iterdir() if p.suffix == path.suffix] == [path.name]


@pytest.mark.parametrize(
    "row", [r for r in WRITTEN if r.title in ("onnx int8", "tflite int8", "coreml small")], ids=title_of
)
def test_the_same_file_gives_the_same_bytes_and_nothing_is_printed(row, exported_file, quantized, tmp_path, capfd):
    made, before = quantized(row.format, row.scheme)[0], sha256_path(exported_file(row.format))
    capfd.readouterr()
    quantize(exported_file(row.format), tmp_path / "a", plan_of(row, []))
    assert tuple(capfd.readouterr()) == ("", "")
    assert sha256_path(tmp_path / "a") == sha256_path(made)
    assert sha256_path(exported_file(row.format)) == before


@pytest.mark.parametrize("row", [r for r in WRITTEN if r.runtime is None], ids=title_of)
def test_missing_libraries_are_named_with_their_command(row, exported_file, tmp_path, monkeypatch):
    before = exported_file(row.format)
    for module in ("onnx.dynamic", "tflite.quantizer", "tflite.static", "coreml"):
        monkeypatch.setattr(f"pocketbert.quantize.{module}.version_of", lambda _: None)
    with pytest.raises(MissingBackendError, match=rf"is not installed.*pip install 'pocketbert\[{row.format}\]'"):
        quantize(before, tmp_path / "a", plan_of(row, draw_rows(1)))
    assert not list(tmp_path.iterdir())


# Plans, and rows from outside.


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Plan(Format.ONNX, Scheme.W8), "onnx w8: does not exist in this version; onnx has: onnx int8, onnx "),
        (Plan(Format.ONNX, Scheme.INT8, Runtime.OPENVINO), "onnx int8 for openvino: does not exist in this version"),
        (Plan(Format.ONNX, Scheme.FP32), "onnx fp32: does not exist in this version"),
        (Plan(Format.TFLITE, Scheme.W8, Runtime.TFLITE_2_16), "tflite has: tflite fp16, tflite fp16 for gpu, tflite"),
        (Plan(Format.COREML, Scheme.INT8), "coreml int8: does not exist in this version; coreml has: coreml w8, "),
        (Plan(Format.ONNX, Scheme.A8W8), "measures ranges on calibration rows, and the plan has none"),
        (Plan(Format.ONNX, Scheme.INT8, None, list), "onnx int8: reads no calibration rows"),
    ],
    ids=lambda value: value.title if isinstance(value, Plan) else "",
)
def test_a_wrong_plan_is_refused_before_any_work(plan, said, tmp_path):
    for refuse in (lambda: find_row_for_plan(plan), lambda: quantize(tmp_path / "none", tmp_path / "small", plan)):
        with pytest.raises(InputError, match=said):
            refuse()
    assert not list(tmp_path.iterdir())


def test_a_stub_scheme_is_one_row(exported_file, tmp_path, monkeypatch):
    monkeypatch.setattr(table, "_ROWS", dict(table._ROWS))  # a table that may be changed
    seen: list[Feed] = []

    def copy(before: Path, destination: Path, plan: Plan) -> None:
        seen.extend(plan.rows() if plan.rows is not None else [])
        shutil.copyfile(before, destination)

    before, after = exported_file(Format.ONNX), tmp_path / "copy.onnx"
    float32 = ExpectedForm("float32")
    register_scheme(SchemeRow(Format.ONNX, Scheme.A8W8, ExpectedWeights(float32, float32), copy))
    types = quantize(before, after, Plan(Format.ONNX, Scheme.A8W8, rows=lambda: draw_rows(20)))
    assert after.read_bytes() == before.read_bytes()
    assert len(seen) == 20
    assert types == read_weight_types(before, Format.ONNX)
    # and one that does not do what its row says is found out
    register_scheme(SchemeRow(Format.ONNX, Scheme.W8, ExpectedWeights(ExpectedForm("int8", True), float32), copy))
    with pytest.raises(GateError, match=r"bad.onnx: no matrix product has int8 weights; the quantizer did nothing"):
        quantize(before, tmp_path / "bad.onnx", Plan(Format.ONNX, Scheme.W8))
    assert (tmp_path / "bad.onnx").is_file(), "it stays where the run marks it failed"


def test_rows_are_repeated_up_to_a_length_and_longer_ones_stay():
    given = [{"input_ids": np.arange(n)[None], "attention_mask": np.ones((1, n), np.int64)} for n in (3, 8, 9)]
    short, whole, long = repeat_tokens(given, 8)
    assert short["input_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 0, 1]]
    assert short["attention_mask"].tolist() == [[1] * 8]  # no padding, which ranges would have to leave out
    assert whole["input_ids"].tolist() == [list(range(8))]
    assert long["input_ids"].shape == (1, 9)


# docs/lab/quantization.md lists what may be left float and what may have a second scheme.

PAGE = (Path(__file__).resolve().parents[2] / "docs/lab/quantization.md").read_text("utf-8")
TITLES = {"ONNX": Format.ONNX, "TFLite": Format.TFLITE, "Core ML": Format.COREML}
LISTED = r"(ONNX|TFLite|Core ML) ((?:`[^`]+`(?:, | and )?)+)"


def list_names(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def list_files(text: str) -> list[tuple[Format, Scheme]]:
    return [(TITLES[title], Scheme(n)) for title, some in re.findall(LISTED, text) for n in list_names(some)]


def test_the_page_lists_what_may_be_left_float_and_which_roles_are_compressed():
    (sentence,) = re.findall(r"^Weights can be left in (.+?), in files for any runtime\.", PAGE, re.M)
    found = list_files(sentence)
    assert len(found) == len(set(found)) > 5
    assert set(found) == {key for key, row in PLAIN.items() if row.selective}
    rows = re.findall(r"^\| (`[a-z_]+`(?:, `[a-z_]+`)*) \| [^|]+ \| (compressed|always float)[^|]* \|$", PAGE, re.M)
    kinds = {Role(name): kind for cell, kind in rows for name in list_names(cell)}
    assert set(kinds) == set(Role)
    assert {role for role, kind in kinds.items() if kind == "compressed"} == WEIGHTED_ROLES
    assert {row.computes for row in PLAIN.values()} == {WEIGHTED_ROLES}


def test_the_page_lists_second_schemes():
    found: dict[tuple[Format, Scheme], dict[Scheme, frozenset[Role]]] = {}
    usual: dict[tuple[Format, Scheme], dict[Role, Scheme]] = {}
    (lines,) = re.findall(r"^\| file \| second scheme of a role or a name \|\n(.+?)\n\n", PAGE, re.M | re.S)
    for cell, what in re.findall(r"^\| ((?:ONNX|TFLite|Core ML) [^|]+) \| (.+) \|$", lines, re.M):
        files = list_files(cell)
        first, _, roles = what.partition(" for ")
        of_any = roles.startswith("any role with weights")
        chosen = WEIGHTED_ROLES if of_any else frozenset(map(Role, list_names(roles)[:1]))
        for key in files:
            rest = [s for f, s in files if s is not key[1]]
            others = rest if "other one of both" in first else [Scheme(list_names(first)[0])]
            found[key] = dict.fromkeys(others, chosen)
            usual[key] = {Role(r): others[0] for r in re.findall(r"\*\*`(\w+)` has it by default\*\*", what)}
    assert found == {key: {s: one.roles for s, one in row.seconds.items()} for key, row in PLAIN.items() if row.seconds}
    assert {k: v for k, v in usual.items() if v} == {k: dict(row.usual) for k, row in PLAIN.items() if row.usual}
