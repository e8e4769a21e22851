from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")

from pocketbert.core.compare.evaluate import label_agreement, logit_scale, rms_error, worst_difference
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.errors import GateError, InputError, MissingBackendError
from pocketbert.core.predict.predictor import join_texts, run_rows
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.export.prepare import PreparedPredictor, prepare
from pocketbert.quantize import weights
from pocketbert.quantize.files import quantize
from pocketbert.quantize.simulated import SimulatedPredictor
from pocketbert.quantize.table import Plan, find_row
from pocketbert.quantize.tflite import quantizer
from pocketbert.quantize.tflite import reading as tflite_graph
from pocketbert.quantize.tflite.reading import TfliteGraph, read_stored_numbers, read_weight_types
from pocketbert.quantize.weights import Use, WeightTypes
from pocketbert.runtime.tflite import TflitePredictor

DTYPES = {"fp16": ("float16", "float16"), "small": ("int8", "int4"), "w4": ("int4", "int4")}
"""Types of matrices and tables, where they are not int8."""
MATRICES = 6 * 2 + 2  # in two layers, the pooler and the output
FORMS = {
    "int8": Plan(Format.TFLITE, Scheme.INT8),
    "w8": Plan(Format.TFLITE, Scheme.W8),
    "fp16": Plan(Format.TFLITE, Scheme.FP16),
    "small": Plan(Format.TFLITE, Scheme.SMALL),
    "w4": Plan(Format.TFLITE, Scheme.W4),
    "old": Plan(Format.TFLITE, Scheme.INT8, Runtime.TFLITE_2_16),
}


def problems(types: WeightTypes, name: str, plan: Plan) -> list[str]:
    """What the row of a plan finds wrong."""
    return find_row(plan.format, plan.scheme, plan.runtime).problems(types, name)


@pytest.fixture(autouse=True)
def small_matrices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have no matrix above the usual bound."""
    monkeypatch.setattr(weights, "SMALL", 512)


@pytest.fixture(scope="module")
def made(
    exported_tflite: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, WeightTypes]]:
    """All forms of one file, with the types that were found in them."""
    folder = tmp_path_factory.mktemp("small")
    out = {}
    for name, plan in FORMS.items():
        path = folder / f"{name}.tflite"
        out[name] = (path, quantize(exported_tflite("bert"), path, plan))
    return out


@pytest.mark.parametrize("form", FORMS)
def test_every_operator_has_the_type_of_the_scheme(
    form: str, made: dict[str, tuple[Path, WeightTypes]], exported_tflite: Callable[[str], Path]
) -> None:
    path, types = made[form]
    assert types == read_weight_types(path)
    assert [u.use for u in types.uses] == [u.use for u in read_weight_types(exported_tflite("bert")).uses]
    assert problems(types, path.name, FORMS[form]) == []
    assert len([u for u in types.uses if u.use is Use.MATMUL]) == MATRICES
    assert len([u for u in types.uses if u.use is Use.TABLE]) >= 1
    dtypes = dict(zip((Use.MATMUL, Use.TABLE), DTYPES.get(form, ("int8", "int8")), strict=True))
    for use in types.uses:
        assert use.dtype == dtypes[use.use], use
        assert use.block == (32 if use.dtype == "int4" else None), use
        assert use.dequantized is (form in ("w8", "fp16")), use
        if use.use is Use.MATMUL:
            assert use.per_channel is (form in ("int8", "w8", "small", "w4")), use
        elif form == "old":
            assert not use.per_channel, use
    assert ("DEQUANTIZE" in types.operators) is (form in ("w8", "fp16"))
    other = [p for p in FORMS.values() if p != FORMS[form]]
    assert all(problems(types, path.name, p) for p in other)


@pytest.mark.parametrize("form", ["small", "w4"])
def test_a_file_in_blocks_answers_as_its_scheme_simulated(
    form: str, made: dict[str, tuple[Path, WeightTypes]], open_tiny: Callable[..., Any]
) -> None:
    model, folder, tokenizer = open_tiny("bert", 2)
    task, simulation = task_of("text-classification"), find_row(Format.TFLITE, FORMS[form].scheme).simulation
    assert simulation is not None
    exact = PreparedPredictor(prepare(model, folder.family, task, Format.TFLITE), folder.family, task)
    encoded = [e for e in tokenizer.encode(list(SENTENCES)) if len(e) <= 40]
    found, simulated, right = (
        join_texts(run_rows(p, tokenizer, encoded, task))
        for p in (TflitePredictor(made[form][0], 1), SimulatedPredictor(exact, simulation), exact)
    )
    error = rms_error(simulated, right)
    assert rms_error(found, simulated) < 0.1 * error
    assert abs(rms_error(found, right) - error) < 0.05 * error


@pytest.mark.parametrize("form", [f for f in FORMS if f != "w4"])  # random weights lose too much in 4 bits
def test_a_small_file_answers_about_as_the_large_one(
    form: str,
    made: dict[str, tuple[Path, WeightTypes]],
    exported_tflite: Callable[[str], Path],
    open_tiny: Callable[..., Any],
) -> None:
    tokenizer = open_tiny("bert", 2)[2]
    encoded = [e for e in tokenizer.encode(list(SENTENCES)) if len(e) <= 40]
    assert len(encoded) > 10
    ours, reference = (
        join_texts(run_rows(TflitePredictor(p, 1), tokenizer, encoded, task_of("text-classification")))
        for p in (made[form][0], exported_tflite("bert"))
    )
    worst = worst_difference(ours, reference) / logit_scale(reference)
    assert rms_error(ours, reference) < {"fp16": 0.01}.get(form, 0.3)
    assert label_agreement(ours, reference) > 0.8
    assert 0 < worst < {"fp16": 0.01}.get(form, 1.0)


@pytest.mark.parametrize("form", FORMS)
def test_signatures_stay_and_numbers_shrink(
    form: str, made: dict[str, tuple[Path, WeightTypes]], exported_tflite: Callable[[str], Path]
) -> None:
    path, types = made[form]
    before, after = TflitePredictor(exported_tflite("bert"), 1), TflitePredictor(path, 1)
    assert after.signature == before.signature
    large = read_weight_types(exported_tflite("bert"))
    assert {u.dtype for u in large.uses} == {"float32"}
    assert find_row(Format.TFLITE, Scheme.FP32).problems(large, "large") == []
    numbers = sum(u.numbers for u in large.uses)
    assert numbers == sum(u.numbers for u in types.uses)
    if form == "fp16":
        assert types.float_bytes < large.float_bytes - numbers  # two bytes less for each
    else:
        halves = sum(u.numbers for u in types.uses if u.dtype == "int4")
        assert types.int8_bytes == numbers - halves / 2
        assert types.float_bytes < large.float_bytes - 3 * numbers


def test_the_source_is_not_touched_and_nothing_else_is_left(
    made: dict[str, tuple[Path, WeightTypes]], exported_tflite: Callable[[str], Path], tmp_path: Path
) -> None:
    before = exported_tflite("bert").read_bytes()
    quantize(exported_tflite("bert"), tmp_path / "a.tflite", FORMS["int8"])
    assert exported_tflite("bert").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["a.tflite"]
    assert (tmp_path / "a.tflite").read_bytes() == made["int8"][0].read_bytes()


def test_scales_and_weights_can_be_read_back(
    made: dict[str, tuple[Path, WeightTypes]], exported_tflite: Callable[[str], Path]
) -> None:
    # what the gates look at: matrix times scale gives the fp32 matrix back, but for rounding
    large = dict(read_stored_numbers(exported_tflite("bert")))
    words = max((v for v in large.values() if v.dtype == np.float32), key=lambda v: v.size)
    small = list(read_stored_numbers(made["int8"][0]))
    name, whole = max(((n, v) for n, v in small if v.dtype == np.int8), key=lambda nv: nv[1].size)
    [scale] = [v for n, v in small if n == f"{name} scale"]
    assert whole.size == words.size
    rows = words.reshape(scale.size, -1)
    again = whole.reshape(scale.size, -1) * scale[:, None]
    np.testing.assert_allclose(again, rows, atol=float(np.abs(rows).max()) / 127)


# Quantizers that do not do what they are told.


def test_a_quantizer_that_does_nothing_is_an_error(
    exported_tflite: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ai_edge_quantizer.recipe_manager import RecipeManager

    manager = RecipeManager()
    manager.add_dynamic_config("no operator is called so", "FULLY_CONNECTED", num_bits=8)
    monkeypatch.setattr(quantizer, "_quantizer_recipe", lambda *_: manager.get_quantization_recipe())
    for scheme in (Scheme.INT8, Scheme.W8, Scheme.FP16, Scheme.SMALL, Scheme.W4):
        with pytest.raises(GateError) as caught:
            quantize(exported_tflite("bert"), tmp_path / "a.tflite", Plan(Format.TFLITE, scheme))
        kind, table = DTYPES.get(scheme, ("int8", "int8"))
        found = "\n".join(caught.value.failures)
        assert f"a.tflite: no matrix product has {kind} weights; the quantizer did nothing" in found
        assert f"no embedding table has {table} numbers" in found
        large = [u for u in read_weight_types(exported_tflite("bert")).uses if u.numbers >= weights.SMALL]
        assert f"({len(large)} in all)" in found
        assert len(large) >= MATRICES


def patched(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    """Change the recipe before the quantizer reads it."""
    from ai_edge_quantizer.recipe_manager import RecipeManager

    good = quantizer._quantizer_recipe

    def changed(*asked: Any) -> Any:
        manager = RecipeManager()
        manager.load_quantization_recipe(good(*asked))
        change(manager)
        return manager.get_quantization_recipe()

    monkeypatch.setattr(quantizer, "_quantizer_recipe", changed)


@pytest.mark.parametrize("form", FORMS)
def test_one_operator_left_float_is_named(
    form: str, exported_tflite: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = TfliteGraph(exported_tflite("bert"))
    left = next(o for o in graph.operators if o.name == "FULLY_CONNECTED")
    scope, weight = graph.tensors[left.outputs[0]].name, graph.tensors[left.inputs[1]].name

    def forget(manager: Any) -> None:
        manager.add_quantization_config(f"^{re.escape(scope)}", "FULLY_CONNECTED", algorithm_key="no_quantize")

    patched(monkeypatch, forget)
    with pytest.raises(GateError) as caught:
        quantize(exported_tflite("bert"), tmp_path / "a.tflite", FORMS[form])
    [line] = caught.value.failures
    assert line.startswith("a.tflite: still float: ")
    assert line.endswith("(1 in all).")
    assert weight in line


@pytest.mark.parametrize("form", FORMS)
def test_embeddings_left_float_are_an_error(
    form: str, exported_tflite: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def matrices_only(manager: Any) -> None:
        manager.add_quantization_config(".*.*", "EMBEDDING_LOOKUP", algorithm_key="no_quantize")

    patched(monkeypatch, matrices_only)
    with pytest.raises(GateError, match="no embedding table has .* numbers"):
        quantize(exported_tflite("bert"), tmp_path / "a.tflite", FORMS[form])


@pytest.mark.parametrize(
    ("form", "made_as", "message"),
    [
        ("w8", "int8", "not turned into fp32"),
        ("int8", "w8", "turned into fp32 before the product"),
        ("fp16", "int8", "no matrix product has float16 weights"),
        ("int8", "fp16", "no matrix product has int8 weights"),
        ("small", "int8", "no embedding table has int4 numbers"),
        ("w4", "small", "no matrix product has int4 weights"),
    ],
)
def test_another_form_than_was_asked_for_is_an_error(
    form: str,
    made_as: str,
    message: str,
    exported_tflite: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = quantizer._quantizer_recipe(FORMS[made_as].scheme)
    monkeypatch.setattr(quantizer, "_quantizer_recipe", lambda *_: other)
    with pytest.raises(GateError, match=message):
        quantize(exported_tflite("bert"), tmp_path / "a.tflite", FORMS[form])


def test_scales_of_the_other_kind_are_an_error(
    exported_tflite: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ai_edge_quantizer.qtyping import QuantGranularity
    from ai_edge_quantizer.recipe_manager import RecipeManager

    with monkeypatch.context() as patch:
        patch.setattr(quantizer, "one_scale_per_tensor", lambda model: model)
        with pytest.raises(GateError, match="a scale per output channel, not one per matrix: .*, .*"):
            quantize(exported_tflite("bert"), tmp_path / "a.tflite", FORMS["old"])
    coarse = RecipeManager()
    coarse.add_dynamic_config(".*", "*", num_bits=8, granularity=QuantGranularity.TENSORWISE)
    monkeypatch.setattr(quantizer, "_quantizer_recipe", lambda *_: coarse.get_quantization_recipe())
    with pytest.raises(GateError, match="one scale per matrix, not per output channel: .*, .*"):
        quantize(exported_tflite("bert"), tmp_path / "a.tflite", FORMS["int8"])


def test_blocks_that_are_too_large_are_an_error(
    exported_tflite: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ai_edge_quantizer.recipe_manager import RecipeManager

    whole = RecipeManager()
    whole.add_dynamic_config(".*", "*", num_bits=4)
    monkeypatch.setattr(quantizer, "_quantizer_recipe", lambda *_: whole.get_quantization_recipe())
    with pytest.raises(GateError, match="a scale is shared by all numbers of a channel: .*, .*"):
        quantize(exported_tflite("bert"), tmp_path / "a.tflite", FORMS["w4"])


@pytest.mark.parametrize("form", ["small", "w4"])
def test_widths_that_blocks_do_not_divide_are_refused(
    form: str, exported_tflite: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantizer, "BLOCK", 48)
    with pytest.raises(InputError) as caught:
        quantize(exported_tflite("bert"), tmp_path / "a.tflite", FORMS[form])
    assert "has rows of 32 numbers; 4-bit weights of TFLite have blocks of 48. Fix: Choose the scheme int8" in str(
        caught.value
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", ["small", "w4"])
def test_a_table_that_blocks_leave_float_in_silence_is_an_error(
    form: str, exported_tflite: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what a quantizer does that skips a table whose rows its blocks do not divide, with a warning at most
    graph = TfliteGraph(exported_tflite("bert"))
    lookups = [o for o in graph.operators if o.name == "EMBEDDING_LOOKUP"]
    words = max(lookups, key=lambda o: graph.tensors[o.inputs[1]].numbers)

    def skip(manager: Any) -> None:
        scope = re.escape(graph.tensors[words.outputs[0]].name)
        manager.add_quantization_config(f"^{scope}", "EMBEDDING_LOOKUP", algorithm_key="no_quantize")

    patched(monkeypatch, skip)
    with pytest.raises(GateError, match=r"a.tflite: (still float: |no embedding table has int4 numbers)"):
        quantize(exported_tflite("bert"), tmp_path / "a.tflite", FORMS[form])


def test_a_table_that_is_multiplied_too_has_the_weight_s_numbers(tmp_path: Path) -> None:
    from pocketbert.core.families import find_family
    from pocketbert.export import tflite
    from support.tiny import noisy_model

    task, family = task_of("fill-mask"), find_family("bert")
    module = prepare(noisy_model("bert", 1, "AutoModelForMaskedLM"), family, task, Format.TFLITE)
    tflite.export(module, family, task, [8, 16], tmp_path / "fp32.tflite")
    types = quantize(tmp_path / "fp32.tflite", tmp_path / "a.tflite", FORMS["small"])
    tables = {u.name: u.dtype for u in types.uses if u.use is Use.TABLE}
    multiplied = {u.name for u in types.uses if u.use is Use.MATMUL}
    assert multiplied & set(tables)
    assert all(tables[name] == "int8" for name in multiplied & set(tables))
    ids = {"input_ids": np.array([[2, 7, 9, 3] * 2]), "attention_mask": np.ones((1, 8), int)}
    ids["token_type_ids"] = ids["input_ids"] * 0
    exact, small = (TflitePredictor(tmp_path / name, 1).run(ids)["logits"] for name in ("fp32.tflite", "a.tflite"))
    assert 0 < rms_error(small, exact) < 0.2


# The rest.


def test_nothing_is_printed(
    exported_tflite: Callable[[str], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    quantize(exported_tflite("bert"), tmp_path / "a.tflite", FORMS["int8"])
    assert tuple(capfd.readouterr()) == ("", "")


def test_missing_libraries_are_named_with_their_command(
    exported_tflite: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantizer, "version_of", lambda _: None)
    said = r"ai-edge-quantizer is not installed.*pip install 'pocketbert\[tflite\]'"
    with pytest.raises(MissingBackendError, match=said):
        quantize(exported_tflite("bert"), tmp_path / "a.tflite", FORMS["int8"])
    assert not list(tmp_path.glob("*.tflite"))
    monkeypatch.setattr(tflite_graph, "version_of", lambda _: None)
    with pytest.raises(MissingBackendError, match=r"ai-edge-litert .*'pocketbert\[tflite-runtime\]'"):
        read_weight_types(exported_tflite("bert"))


def test_another_file_is_no_tflite_file(exported: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "empty.tflite").touch()
    for path in (exported("bert"), tmp_path / "empty.tflite"):
        with pytest.raises(InputError, match=f"{path.name}: is no TFLite file"):
            read_weight_types(path)
