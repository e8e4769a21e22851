"""int8, w8, fp16, small and w4 for TFLite: sizes, scales, tied tables, and quantizers that leave weights as they were."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")

from ai_edge_quantizer.qtyping import QuantGranularity
from ai_edge_quantizer.recipe_manager import RecipeManager

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.errors import GateError, InputError, MissingBackendError
from pocketbert.core.families import find_family
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.export.prepare import prepare
from pocketbert.quantize.files import quantize
from pocketbert.quantize.table import Plan
from pocketbert.quantize.tflite import quantizer, reading
from pocketbert.quantize.tflite.reading import TfliteGraph, read_weight_types
from pocketbert.quantize.weights import Use
from pocketbert.runtime.tflite import TflitePredictor
from support.quantized import export_file
from support.tiny import noisy_model

Write = Callable[..., Path]
FORMS = {name: Plan(Format.TFLITE, Scheme(name)) for name in ("int8", "w8", "fp16", "small", "w4")}
FORMS["old"] = Plan(Format.TFLITE, Scheme.INT8, Runtime.TFLITE_2_16)


@pytest.fixture
def source(exported_tflite) -> Path:
    return exported_tflite("bert")


@pytest.fixture
def write_form(write) -> Write:
    """`write_form(form, base=None)`: a file of a form anew."""
    return lambda form, **more: write(Format.TFLITE, FORMS[form].scheme, FORMS[form].runtime, **more)


# Quantizers that do not do what they are told.


def set_recipe(patch: pytest.MonkeyPatch, **config: Any) -> None:
    """Replace the recipe that the quantizer reads by one of a single entry."""
    manager = RecipeManager()
    manager.add_dynamic_config(config.pop("regex", ".*"), config.pop("operation", "*"), **config)
    patch.setattr(quantizer, "_quantizer_recipe", lambda *_: manager.get_quantization_recipe())


def leave_float(patch: pytest.MonkeyPatch, regex: str, operation: str) -> None:
    """Let the recipe leave some operators as they are."""
    good = quantizer._quantizer_recipe

    def changed(*asked: Any) -> Any:
        manager = RecipeManager()
        manager.load_quantization_recipe(good(*asked))
        manager.add_quantization_config(regex, operation, algorithm_key="no_quantize")
        return manager.get_quantization_recipe()

    patch.setattr(quantizer, "_quantizer_recipe", changed)


@pytest.mark.parametrize(
    ("what", "form"),
    [
        *(("one product", "small"), ("all tables", "w4"), ("the words", "small")),
        *(
            pytest.param(what, form, marks=pytest.mark.slow)
            for what, forms in (("one product", FORMS), ("all tables", FORMS), ("the words", ("w4",)))
            for form in forms
            if (what, form) not in (("one product", "small"), ("all tables", "w4"))
        ),
    ],
)
def test_what_was_left_float_in_silence_is_named(what, form, source, write_form, monkeypatch):
    graph = TfliteGraph(source)
    kind = "FULLY_CONNECTED" if what == "one product" else "EMBEDDING_LOOKUP"
    operators = [o for o in graph.operators if o.name == kind]
    words = max(operators, key=lambda o: graph.tensors[o.inputs[1]].numbers)
    left = operators[0] if what == "one product" else words
    scope = re.escape(graph.tensors[left.outputs[0]].name)
    leave_float(monkeypatch, ".*.*" if what == "all tables" else f"^{scope}", kind)
    with pytest.raises(GateError) as caught:
        write_form(form)
    said = "\n".join(caught.value.failures)
    if what == "one product":
        assert re.fullmatch(r"a.tflite: still float: .*\(1 in all\)\.", said)
        assert graph.tensors[left.inputs[1]].name in said
    elif what == "all tables":
        assert re.search("no embedding table has .* numbers", said)
    else:
        assert re.search("a.tflite: (still float: |no embedding table has .* numbers)", said)


@pytest.mark.parametrize(
    ("form", "config", "message"),
    [
        ("old", None, "a scale per output channel, not one per matrix: .*, .*"),
        (
            "int8",
            {"num_bits": 8, "granularity": QuantGranularity.TENSORWISE},
            "one scale per matrix, not per output channel: .*, .*",
        ),
        ("w4", {"num_bits": 4}, "a scale is shared by all numbers of a channel: .*, .*"),
    ],
)
def test_scales_of_another_kind_are_an_error(form, config, message, write_form, monkeypatch):
    if config is None:
        monkeypatch.setattr(quantizer, "one_scale_per_tensor", lambda model: model)
    else:
        set_recipe(monkeypatch, **config)
    with pytest.raises(GateError, match=message):
        write_form(form)


# Blocks, and what is refused.


@pytest.mark.parametrize("form", ["small", "w4"])
def test_widths_that_blocks_do_not_divide_are_refused(form, write_form, tmp_path, monkeypatch):
    monkeypatch.setattr(quantizer, "BLOCK", 48)
    said = "has rows of 32 numbers; 4-bit weights of TFLite have blocks of 48. Fix: Choose the scheme int8"
    with pytest.raises(InputError, match=said):
        write_form(form)
    assert not list(tmp_path.iterdir())


def test_a_table_that_is_multiplied_too_has_the_weight_s_numbers(tmp_path):
    task, family = task_of("fill-mask"), find_family("bert")
    module = prepare(noisy_model("bert", 1, "AutoModelForMaskedLM"), family, task, Format.TFLITE)
    source = export_file(module, family, tmp_path / "fp32.tflite", (8, 16), task)
    types = quantize(source, tmp_path / "a.tflite", FORMS["small"])
    tables = {u.name: u.dtype for u in types.uses if u.use is Use.TABLE}
    multiplied = {u.name for u in types.uses if u.use is Use.MATMUL} & tables.keys()
    assert {tables[name] for name in multiplied} == {"int8"}
    ids = np.array([[2, 7, 9, 3] * 2])
    row = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": ids * 0}
    exact, small = (TflitePredictor(p, 1).run(row)["logits"] for p in (source, tmp_path / "a.tflite"))
    assert 0 < rms_error(small, exact) < 0.2


def test_another_file_is_no_tflite_file_and_reading_needs_litert(exported, source, tmp_path, monkeypatch):
    (tmp_path / "empty.tflite").touch()
    for path in (exported("bert"), tmp_path / "empty.tflite"):
        with pytest.raises(InputError, match=f"{path.name}: is no TFLite file"):
            read_weight_types(path)
    monkeypatch.setattr(reading, "version_of", lambda _: None)
    with pytest.raises(MissingBackendError, match=r"ai-edge-litert .*'pocketbert\[tflite-runtime\]'"):
        read_weight_types(source)
