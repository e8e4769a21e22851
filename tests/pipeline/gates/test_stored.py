"""The gate `stored`: files whose numbers, ranges or schemes were changed are found, sound ones of every family are not."""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from pocketbert.core.compare.golden import SIMULATED_FILE
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.disk.files import sha256_path
from pocketbert.core.families import find_family
from pocketbert.core.families.weight_records import ProductRanges, Range
from pocketbert.core.formats import FORMATS
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.types import Calibration, Format, Layout, Runtime, Scheme, Status
from pocketbert.export.adapters import half_range
from pocketbert.export.prepare import PreparedPredictor, is_rescaled_to_fp16, prepare
from pocketbert.pipeline.formats.constants import (
    ConstantTracker,
    StoredRange,
    StoredRanges,
    StoredTensor,
    read_tensor,
)
from pocketbert.pipeline.formats.weight_roles import digest_float_weights, list_weights
from pocketbert.pipeline.gates.reference_constants import ReferenceConstants
from pocketbert.pipeline.gates.stored import PreparedModels, _compare_ranges, compare_constants
from pocketbert.pipeline.gates.torch_constants import example_inputs, trace_constants
from pocketbert.pipeline.gates.verify import verify_artefacts
from pocketbert.quantize import Plan, find_row, quantize, read_weight_types, weights
from pocketbert.quantize.calibration import Ranges
from pocketbert.quantize.files import find_weight_problems
from pocketbert.quantize.simulated import measure_product_ranges
from pocketbert.quantize.table import list_rows
from support.defects import relist
from support.defects.stored import DAMAGES, WORDS, Damage, damage, record_again, rows_lost
from support.half_range import FAMILY, HEADS, ordinary, planted
from support.quantized import CLASSIFY, SUFFIX, export_file
from support.stored_models import Form, StoredFiles, check_file, scheme_of, write_model
from support.tiny import BASIC, EXPORTED, tiny_classifier
from support.tiny_tokenizers import write_tokenizer

ONNX, TFLITE, COREML = Format.ONNX, Format.TFLITE, Format.COREML
QUICK: list[Form] = [
    (ONNX,),
    (ONNX, Scheme.INT8),
    (ONNX, Scheme.W4),
    (ONNX, Scheme.A16W8, Runtime.QNN),
    (TFLITE, Scheme.INT8),
    (TFLITE, Scheme.W4),
    (TFLITE, Scheme.A8W8, Runtime.NPU),
    (COREML, Scheme.A8W8),
    (COREML, Scheme.SMALL),
    (COREML, Scheme.W4),
]
SMALLER: list[Form] = [(r.format, r.scheme, *filter(None, [r.runtime])) for r in list_rows() if r.write is not None]
ALL = [*((format,) for format in FORMATS), *SMALLER]
STATIC = [form for form in SMALLER if form[1].static]
SOME_STATIC = [(ONNX, Scheme.A8W8), (TFLITE, Scheme.A8W8), (TFLITE, Scheme.A16W8, Runtime.NPU), (COREML, Scheme.A8W8)]


def mark_slow(forms: list[Form], quick: list[Form]) -> list[Any]:
    """Parameters, of which only the quick ones are in the fast suite."""
    return [pytest.param(f, id="-".join(map(str, f)), marks=[pytest.mark.slow] * (f not in quick)) for f in forms]


# Numbers that were changed by hand.


@pytest.mark.parametrize("form", mark_slow(ALL, QUICK))
def test_every_damage_is_found_and_a_file_that_nobody_changed_passes(
    form: Form, stored: StoredFiles, tmp_path: Path
) -> None:
    sound = stored.check(stored.file(*form), form)
    assert sound.passed and not sound.skipped, sound.detail
    reference, passed = stored.reference(form), []
    is_compressed = scheme_of(form) not in (Scheme.FP32, Scheme.FP16)
    for how in DAMAGES:
        if how.compressed and not is_compressed:
            continue
        path = stored.copy(form, tmp_path)
        damage(path, reference, how)
        if stored.check(path, form).passed:
            passed.append(how.name)
    assert passed == []


@pytest.mark.parametrize("attribute", ["alpha", "beta"])
def test_a_product_that_is_multiplied_by_a_number_is_found(attribute: str, stored: StoredFiles, tmp_path: Path) -> None:
    path = stored.copy((ONNX,), tmp_path)
    model = onnx.load(path)
    node = next(n for n in model.graph.node if n.op_type == "Gemm")
    kept = [a for a in node.attribute if a.name != attribute]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute(attribute, 2.0)])
    onnx.save(model, path)
    assert not stored.check(path, (ONNX,)).passed


@pytest.mark.parametrize(
    ("file", "name"),
    [("model.onnx", "unseen-words"), ("model_int8.onnx", "position-tail"), ("model_int8.onnx", "scale")],
)
def test_golden_rows_recorded_from_the_broken_file_hide_nothing(file: str, name: str, phone: Path) -> None:
    file = f"onnx/{file}"
    lines = (phone / "golden_tokens.jsonl").read_text().splitlines()
    seen = {i for line in lines for i in json.loads(line)["ids"]}
    rows = len((phone / "vocab.txt").read_text().split())
    unseen = Damage("unseen-words", "", rows_lost(WORDS, [i for i in range(rows) if i not in seen]))
    reference = PreparedModels(phone, CLASSIFY, 40).reference(ONNX, Layout.PLAIN)
    damage(phone / file, reference, next(d for d in (*DAMAGES, unseen) if d.name == name))
    record_again(phone, file)
    result = verify_artefacts(phone)
    assert result.status is Status.FAILED
    failed = {(g.file, g.name) for g in result.gates if not g.passed}
    assert (file, "stored") in failed
    # rows of drawn words reach the last position, and selftest.json still has the answers of the whole file
    assert failed <= {(file, gate) for gate in ("stored", "reference", "temperature", "answer")}


@pytest.mark.parametrize("part", [None, "row_scales", "int8"])
def test_a_wrong_row_of_a_table_that_a_product_reads_is_found(
    part: str | None, exported: Callable[[str], Path], open_tiny: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    quantize(exported("xlnet"), path, Plan(ONNX, Scheme.INT8))
    model = onnx.load(path)
    names = f"transformer.encoder.offsets.weight_{part or 'int8'}"
    [table] = [t for t in model.graph.initializer if t.name.endswith(names)]
    value = onnx.numpy_helper.to_array(table)
    if part is not None:
        changed = value * np.float32(1.1) if part == "row_scales" else np.roll(value, 1, 0)
        table.CopyFrom(onnx.numpy_helper.from_array(changed.astype(value.dtype), table.name))
    onnx.save(model, path)
    found = check_file(path, PreparedModels(open_tiny("xlnet", 2)[1].path, CLASSIFY, 40), Scheme.INT8)
    assert found.passed is (part is None)
    assert part is None or "offsets" in found.detail


# Static files with the range of one activation too small or too large. The fault is made where ranges are chosen, so that
# the written file is whole and its golden rows are its own.

DOWN = "layer.1.down.weight"


def count_ranges(detail: str) -> int:
    return int(re.findall(r"(\d+) ranges of activations are those of the calibration texts", detail)[0])


@pytest.mark.parametrize("form", mark_slow(STATIC, STATIC))
def test_ranges_that_nobody_changed_pass(form: Form, stored: StoredFiles) -> None:
    measured = stored.measured(form)
    found = stored.check(stored.file(*form), form, ranges=measured)
    assert found.passed, found.detail
    signatures = 2 if form == (TFLITE, Scheme.A8W8) else 1
    assert count_ranges(found.detail) >= len(measured) * signatures > 10


# half and twice are the same range in 16 bits, with or without room
@pytest.mark.parametrize("form", mark_slow(STATIC, SOME_STATIC))
def test_one_wrong_range_is_found(
    form: Form, stored: StoredFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = stored.measured(form)
    [name] = [n for n in measured if n.endswith(DOWN)]
    wanted = measured[name][0].inputs
    assert wanted is not None
    for factor in (0.4, 2.5):
        with monkeypatch.context() as patch:
            spoil_range(patch, wanted, factor)
            path = stored.quantize(form, tmp_path / f"{factor}{SUFFIX[form[0]]}")
        found = stored.check(path, form, ranges=measured)
        assert f"{name} is multiplied with numbers from " in found.detail
        assert all("on the calibration texts" in problem for problem in found.detail.split("; "))


# in the last layer, which computes the first token only, the keys' matrix multiplies its query, without an offset
@pytest.mark.parametrize("form", [(TFLITE, Scheme.A8W8), (COREML, Scheme.A8W8), (ONNX, Scheme.A8W8, Runtime.OPENVINO)])
def test_a_wrong_range_of_results_without_offset_is_found(
    form: Form, stored: StoredFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [(name, [measured, *_])] = [
        (n, r) for n, r in stored.measured(form).items() if n.endswith("1.attention.key.weight")
    ]
    assert measured.before_offset is not None
    spoil_range(monkeypatch, measured.before_offset, 2.5)
    path = stored.quantize(form, tmp_path / f"a{SUFFIX[form[0]]}")
    found = stored.check(path, form, ranges=stored.measured(form))
    assert f"{name} gives results without offset from " in found.detail


def test_a_range_of_results_that_are_clipped_to_it_is_not_compared() -> None:
    found = {}
    for name, high in (("clipped", 6.0), ("narrower", 3.0)):
        tracker = ConstantTracker()
        tracker.store("weight", read_tensor(np.ones((4, 4), np.float32), "weight"))
        tracker.product("result", "x", "weight", None)
        tracker.set_range("result", StoredRange(0.0, high, step=high / 255))
        tracker.clip("clipped", "result", 0.0, 6.0)
        [matrix] = tracker.finish(["clipped"])
        found[name] = matrix.ranges.before_offset
    assert found == {"clipped": None, "narrower": StoredRange(0.0, 3.0, step=3 / 255)}


def spoil_range(patch: pytest.MonkeyPatch, wanted: Range, factor: float) -> None:
    """Multiply the range of the activations that have `wanted`, wherever a quantizer chooses ranges."""
    chosen, room = Ranges.chosen, 0.02 * (wanted[1] - wanted[0])

    def choose(self: Ranges, title: str) -> dict[str, Range]:
        def is_it(own: Range) -> bool:
            return all(abs(a - b) <= room for a, b in zip(own, wanted, strict=True))

        return {n: (r[0] * factor, r[1] * factor) if is_it(r) else r for n, r in chosen(self, title).items()}

    patch.setattr(Ranges, "chosen", choose)


@pytest.mark.parametrize("form", mark_slow(STATIC, SOME_STATIC))
def test_ranges_of_a_method_are_those_that_torch_chooses_by_it(form: Form, stored: StoredFiles, tmp_path: Path) -> None:
    method = Calibration.MSE
    path = stored.quantize(form, tmp_path / f"a{SUFFIX[form[0]]}", calibration=method)
    found = stored.check(path, form, ranges=stored.measured(form, method))
    assert found.passed, found.detail
    # 65,535 steps are fine enough for the whole range
    assert (sha256_path(path) == sha256_path(stored.file(*form))) is (form[1] is Scheme.A16W8)


@pytest.mark.slow
@pytest.mark.parametrize("family", EXPORTED)
def test_ranges_of_every_family(
    family: str,
    exported: Callable[[str], Path],
    exported_tflite: Callable[[str], Path],
    open_tiny: Callable[..., Any],
    tmp_path: Path,
) -> None:
    model, source, tokenizer = open_tiny(family, 2)
    models = PreparedModels(source.path, CLASSIFY, 40)
    rows = [tokenizer.pad([e]) for e in tokenizer.encode(list(SENTENCES)) if len(e) <= 40]
    modules = {f: prepare(model, source.family, CLASSIFY, f) for f in (ONNX, TFLITE, COREML)}
    bases = {ONNX: exported(family), TFLITE: exported_tflite(family)}
    bases[COREML] = export_file(modules[COREML], source.family, tmp_path / "Model.mlpackage")
    for form in STATIC:
        path, row = tmp_path / f"{'-'.join(map(str, form))}{SUFFIX[form[0]]}", find_row(*form)
        plan = Plan(*form, rows=lambda: rows, pads_left=tokenizer.padding_side == "left")
        assert row.write is not None
        row.write(bases[form[0]], path, plan)
        predictor = PreparedPredictor(modules[form[0]], source.family, CLASSIFY)
        found = check_file(path, models, *form[1:], ranges=measure_product_ranges(predictor, rows))
        assert found.passed, (form, found.detail)
        assert count_ranges(found.detail) >= 3


@pytest.mark.parametrize(
    ("stored", "measured_range", "whole", "right"),
    [
        ((-2.0, 6.0, 16), None, True, True),  # room in 16 bits
        ((-4.0, 12.0, 16), None, True, False),
        ((-1.004, 2.996), None, False, True),
        ((-3.0, 3.0), None, False, True),  # zero in the middle
        ((-9.0, 9.5), None, False, True),  # of the tensor that a product reads a part of
        ((-0.5, 1.5), None, False, False),
        ((-2.0, 6.0), None, False, False),
        ((-1.0, 6.0), None, False, False),
        ((-1.0, 1.0), None, False, False),
        ((-1.0, 0.992), (-0.6, 0.7), True, True),  # what compilers prescribe behind tanh
        ((-1.0, 0.992), None, True, False),  # numbers up to 3 are none of tanh
        ((float("nan"), 3.0), None, False, False),
        # 255 steps of 1e-7: fp16, in which Core ML stores the scale, has 1.2e-7 and nothing nearer
        ((-1.68e-5, 1.36e-5), (-1.4e-5, 1.13e-5), False, True),
        ((-2.8e-5, 2.26e-5), (-1.4e-5, 1.13e-5), False, False),
    ],
)
def test_which_ranges_are_right(
    stored: tuple[Any, ...], measured_range: Range | None, whole: bool, right: bool
) -> None:
    known = [ProductRanges(inputs=measured_range or (-1.0, 3.0)), ProductRanges(inputs=(-9.0, 9.5))]
    own = StoredRanges(StoredRange(*stored), StoredRange(5.0, 6.0))
    problems, count = _compare_ranges(
        [("a.weight", own), ("b", own)], {"a.weight": known[: 1 + (not measured_range)]}, whole
    )
    assert (problems == [], count) == (right, 1)
    of_table = StoredRanges(StoredRange(*stored[:2], of_table=True))
    assert _compare_ranges([("a.weight", of_table)], {"a.weight": known}, whole) == ([], 0), (
        "rows in their own integers"
    )


WIDEST = {".onnx": ("finished", "onnx/model"), ".tflite": ("finished_tflite", "tflite/model")}
WIDEST[".mlpackage"] = ("finished_coreml", "coreml/Model")


@pytest.mark.parametrize("suffix", [".onnx", *(pytest.param(s, marks=pytest.mark.slow) for s in list(WIDEST)[1:])])
def test_quantize_and_verify_end_with_3_where_a_range_is_wrong(
    suffix: str,
    task: Any,
    cli: Callable[..., Any],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, stem = WIDEST[suffix]
    source, phone, file = Path(request.getfixturevalue(run)) / "phone", tmp_path / "phone", f"{stem}_a8w8{suffix}"
    broken = tmp_path / "broken"
    # the widest range is that of ffn_down's results: by default, it is in no TFLite file and in no Core ML package
    arguments = ("--scheme", "a8w8", "--roles", "ffn_down=a8w8", "--calibrate", task.folder / "train.jsonl")
    chosen = Ranges.chosen

    def choose(self: Ranges, title: str) -> dict[str, Range]:
        """The ranges, of which the widest is twice as wide."""
        found = chosen(self, title)
        widest = max(found, key=lambda n: found[n][1] - found[n][0])
        return {**found, widest: (found[widest][0] * 2, found[widest][1] * 2)}

    with monkeypatch.context() as patch:
        patch.setattr(Ranges, "chosen", choose)
        result = cli("quantize", "-m", source, "-o", broken, *arguments)
    assert result.exit_code == 3, result.output
    failed = [line for line in result.stderr.splitlines() if "gate '" in line]
    assert any(f"{file}: gate 'stored' failed:" in line for line in failed)
    assert all("on the calibration texts" in line for line in failed if "_a8w8" in line), "no other gate sees it"
    assert not broken.exists()

    assert cli("quantize", "-m", source, "-o", phone, *arguments).exit_code == 0
    content = json.loads((phone / SIMULATED_FILE).read_text())
    one = next(n for n in content["ranges"][file] if n.endswith("up.weight"))
    for own in content["ranges"][file][one]:
        own["inputs"] = [2 * end for end in own["inputs"]]
    (phone / SIMULATED_FILE).write_text(json.dumps(content))
    relist(phone, SIMULATED_FILE)
    result = cli("verify", "-m", phone)
    assert result.exit_code == 3, result.output
    assert f"{file}: gate 'stored' failed: {one} is multiplied with numbers from " in result.stderr


# Two matrices of one size that exchanged their schemes: the types gate counts them and sees nothing.


@pytest.mark.parametrize(
    ("format", "scheme", "second"),
    [
        (ONNX, Scheme.W4, Scheme.INT8_B32),
        (TFLITE, Scheme.INT8, Scheme.W4),
        (COREML, Scheme.W8, Scheme.W4),
        (TFLITE, Scheme.A8W8, Scheme.INT8),
        (COREML, Scheme.A8W8, Scheme.W8),
    ],
)
def test_schemes_that_changed_places_are_found(
    format: Format,
    scheme: Scheme,
    second: Scheme,
    stored: StoredFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weights, "SMALL", 512)  # tiny models have no matrix above the usual bound
    query, key = (f"layer.0.attention.{n}.weight" for n in ("query", "key"))
    held, form = digest_float_weights(stored.file(format), format).values(), (format, scheme)
    plain = [w for w in list_weights(stored.module(format), FORMATS[format].base) if w.digest in held]
    asked, other = (
        [w.model_copy(update={"scheme": second if w.name.endswith(end) else scheme}) for w in plain]
        for end in (query, key)
    )
    path = stored.quantize(form, tmp_path / f"a{SUFFIX[format]}", weights=asked)
    row = find_row(format, scheme)
    assert find_weight_problems(path, row, read_weight_types(path, format), "a", other) == []
    assert stored.check(path, form, weights=asked).passed
    found = stored.check(path, form, weights=other)
    what = {s: f"is stored in {4 if s is Scheme.W4 else 8} bits" for s in (scheme, second)}
    if scheme.static:
        read = "is multiplied with numbers that have"
        what = {scheme: f"{read} a measured range", second: f"{read} no measured range"}
    assert f"{query} {what[second]}, and {scheme} was chosen for it" in found.detail
    assert f"{key} {what[scheme]}, and {second} was chosen for it" in found.detail
    assert found.value == 2


# No false alarm, also where an exporter merged constants or multiplied them by powers of two.


@pytest.mark.parametrize(
    "family", [*BASIC, *(pytest.param(f, marks=pytest.mark.slow) for f in EXPORTED if f not in BASIC)]
)
def test_files_of_every_family_pass(
    family: str,
    exported: Callable[[str], Path],
    exported_tflite: Callable[[str], Path],
    open_tiny: Callable[..., Any],
    tmp_path: Path,
) -> None:
    models, smaller = PreparedModels(open_tiny(family, 2)[1].path, CLASSIFY, 40), tmp_path / "small.onnx"
    quantize(exported(family), smaller, Plan(ONNX, Scheme.INT8))
    for path, scheme in (
        (exported(family), Scheme.FP32),
        (smaller, Scheme.INT8),
        (exported_tflite(family), Scheme.FP32),
    ):
        found = check_file(path, models, scheme)
        assert found.passed, (path.name, found.detail)


@pytest.mark.slow
@pytest.mark.parametrize("family", EXPORTED)
def test_ten_seeds_of_every_family(family: str, tmp_path: Path) -> None:
    alarms = []
    for seed in range(10):  # ten seconds each
        folder = open_model_folder(str(write_model(tmp_path / f"model-{seed}", family, seed)))
        module = prepare(load_model(folder, CLASSIFY), folder.family, CLASSIFY)
        file = export_file(module, folder.family, tmp_path / f"{seed}.onnx")
        quantize(file, tmp_path / f"{seed}-int8.onnx", Plan(ONNX, Scheme.INT8))
        models = PreparedModels(folder.path, CLASSIFY, 40)
        for path, scheme in ((file, Scheme.FP32), (tmp_path / f"{seed}-int8.onnx", Scheme.INT8)):
            found = check_file(path, models, scheme)
            alarms += [] if found.passed else [(seed, found.detail)]
    assert alarms == []


def test_powers_of_two_that_other_texts_lead_to_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.arange(60, dtype=np.int64).reshape(2, 30)
    samples = [{"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}]
    task = HEADS[0]
    model, inputs = planted(ordinary(task)), example_inputs(FAMILY.inputs, 8)
    written = trace_constants(prepare(model, FAMILY, task, samples=samples), inputs)
    monkeypatch.setattr(half_range, "ROOM", 4 * half_range.ROOM)  # as if larger numbers had been measured
    constants = trace_constants(prepare(model, FAMILY, task, samples=samples), inputs)
    assert is_rescaled_to_fp16(model, FAMILY, task, samples)
    assert compare_constants([written], ReferenceConstants(constants, True), ()).problems == []
    assert compare_constants([written], ReferenceConstants(constants), ()).problems
    # and the numbers of a file are let go of once it was compared
    reference, numbers = ReferenceConstants(constants, True), weakref.ref(written[0].tensor)
    assert compare_constants([written], reference, ()).problems == []
    del written
    assert numbers() is None
    # a model of ordinary numbers may not be multiplied
    assert not is_rescaled_to_fp16(ordinary(HEADS[0]), FAMILY, HEADS[0])
    assert not is_rescaled_to_fp16(tiny_classifier("bert", 1, ("a", "b")), find_family("bert"), CLASSIFY)


def test_long_tables_of_places_and_numbers_too_small_for_fp16(tmp_path: Path) -> None:
    family, model = find_family("bert"), tiny_classifier("bert", 1, ("a", "b"), max_position_embeddings=512)
    with torch.no_grad():
        model.bert.encoder.layer[0].output.LayerNorm.weight[:3] = torch.tensor([1e-33, -1e-33, 1e-9])
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    models = PreparedModels(tmp_path, CLASSIFY, 40, model)
    schemes = {ONNX: Scheme.FP32, COREML: Scheme.FP16}
    for format, scheme in schemes.items():
        path = export_file(prepare(model, family, CLASSIFY, format), family, tmp_path / f"a{SUFFIX[format]}", (16,))
        found = check_file(path, models, scheme)
        assert found.passed, found.detail


def test_the_folds_of_the_adapters_are_those_that_are_declared(tmp_path: Path) -> None:
    """Of BERT: the attention's scale into the query, and nothing else; recomputed from the untouched weights."""
    folder = open_model_folder(str(write_model(tmp_path / "model", "bert")))
    stock = {name: p.detach() for name, p in load_model(folder, CLASSIFY).named_parameters()}
    models = PreparedModels(folder.path, CLASSIFY, 40)
    depth = stock["bert.encoder.layer.0.attention.self.query.weight"].shape[0] // 4
    # TFLite: segment 0 is added to the positions, and segment 1 is a difference
    segments = stock["bert.embeddings.token_type_embeddings.weight"]
    merged = [stock["bert.embeddings.position_embeddings.weight"] + segments[0], segments[1] - segments[0]]
    tables = [*stock.values(), *merged]
    for format in (ONNX, TFLITE, COREML):
        found = models.reference(format, Layout.PLAIN).constants
        for constant in (c for c in found if c.used and not c.covers):
            name = constant.tensor.name
            if name.endswith(("own", "probing")):
                continue
            value = torch.from_numpy(np.asarray(constant.tensor.value))
            scaled = value * depth**0.5 if ".query." in name else value
            forms = [scaled, scaled.mT] if scaled.ndim == 2 else [scaled]
            same = any(t.shape == v.shape and torch.allclose(t, v, 1e-6, 0) for t in tables for v in forms)
            assert same, (format, name)


def test_a_sum_of_rounded_numbers_may_be_off_by_both_steps() -> None:
    one, other = (StoredTensor(np.ones(3, np.float32), step=np.array([step], np.float32)) for step in (0.25, 0.5))
    plain = replace(one, step=None)
    assert one.add(other).step == other.add(one).step == pytest.approx([0.75])
    assert plain.add(one).step == one.add(plain).step == pytest.approx([0.25])
    assert plain.add(plain).step is None
