"""a8w8 for TFLite: ranges of real tokens, roles that stay dynamic, and what a mask in int8 does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")

from ai_edge_quantizer.qtyping import TFLOperationName
from ai_edge_quantizer.recipe_manager import RecipeManager

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.errors import GateError
from pocketbert.core.recipe.quantize import QuantizeSection
from pocketbert.core.types import Format, Role, Scheme
from pocketbert.pipeline.formats.weight_roles import list_weights, resolve_schemes, simulation_of_file
from pocketbert.quantize.calibration import Ranges
from pocketbert.quantize.files import find_weight_problems, read_weight_types
from pocketbert.quantize.simulated import SimulatedPredictor
from pocketbert.quantize.table import find_row
from pocketbert.quantize.tflite import quantizer, static
from pocketbert.quantize.weights import Use
from pocketbert.runtime.tflite import TflitePredictor
from support.exact import exact_bert
from support.quantized import answer_rows, answer_sentences, pad_row

Write = Callable[..., Path]
ROW = find_row(Format.TFLITE, Scheme.A8W8)


@pytest.fixture
def source(exported_tflite) -> Path:
    return exported_tflite("bert")


@pytest.fixture
def write_static(write) -> Write:
    """`write_static(rows=None, weights=())`: the a8w8 file anew."""
    return lambda **more: write(Format.TFLITE, Scheme.A8W8, **more)


def test_a_role_can_be_dynamic_and_the_gate_knows_a_file_without_it(write_static, quantized, sentence_rows, open_tiny):
    exact, tokenizer = exact_bert(open_tiny, 2, Format.TFLITE), open_tiny("bert", 2)[2]
    # the lookup of positions is a constant in the file
    held = [w for w in list_weights(exact.module) if "position" not in w.name]
    chosen = resolve_schemes(QuantizeSection(), held, ROW.scheme_of)
    assert {w.scheme for w in chosen if w.role is Role.FFN_DOWN} == {Scheme.INT8}
    path = write_static(weights=chosen)
    types = read_weight_types(path, Format.TFLITE)
    products = [u for u in types.uses if u.use is Use.MATMUL]
    assert {u.dtype for u in products} == {"int8"}
    assert sum(u.bits is None for u in products) == sum(w.role is Role.FFN_DOWN for w in chosen) == 2
    simulation = SimulatedPredictor(exact, simulation_of_file(ROW, chosen, Scheme.FP32), sentence_rows)
    found, simulated, right = (answer_sentences(p, tokenizer) for p in (TflitePredictor(path, 1), simulation, exact))
    error = rms_error(simulated, right)
    assert 0.6 * error < rms_error(found, right) < 1.5 * error
    assert rms_error(found, simulated) < error
    whole, whole_types = quantized(Format.TFLITE, Scheme.A8W8)
    alike = find_weight_problems(whole, ROW, whole_types, "alike", chosen)
    assert any("is to have int8 (int8), and the file has too few such weights" in line for line in alike), alike
    assert find_weight_problems(path, ROW, types, "mixed"), "and the other way round"


def test_padding_is_in_no_range(source, write_static, sentence_rows, monkeypatch):
    seen: list[int] = []
    cut = static._cut

    def watched(values: Any, axes: list[int], *how: Any) -> Any:
        out = cut(values, axes, *how)
        seen.append(out.shape[axes[0]] if axes else -1)
        return out

    monkeypatch.setattr(static, "_cut", watched)
    tokens = sentence_rows[0]["input_ids"].shape[1]
    write_static(rows=sentence_rows[:1])
    assert tokens not in TflitePredictor(source, 1).lengths
    assert set(seen) == {tokens, -1}  # and what the first token alone has
    assert seen.count(tokens) == 6 * 2  # what the products of the first layer read and write
    values = np.arange(5.0).reshape(1, 5, 1)
    assert [cut(values, [1], 2, left).ravel().tolist() for left in (False, True)] == [[0, 1, 2], [2, 3, 4]]


class WithMask(Ranges):
    """Ranges that do not refuse zeros, which is all that a mask adds to unpadded rows: it gets its largest instead."""

    def chosen(self, title: str) -> dict[str, tuple[float, float]]:
        found = {name: (h.low, h.high) for name, h in self._histograms.items()}
        return {name: (-1e4, 0.0) if ends == (0.0, 0.0) else ends for name, ends in found.items()}


def test_a_mask_in_int8_is_refused_and_with_reason(source, write_static, sentence_rows, tmp_path, monkeypatch):
    everything, kinds = RecipeManager(), ("FULLY_CONNECTED", "MUL", "ADD", "SUB")
    for name in kinds:
        everything.add_static_config(".*", TFLOperationName(name), activation_num_bits=8, weight_num_bits=8)
    everything.add_dynamic_config(".*", TFLOperationName.EMBEDDING_LOOKUP, num_bits=8)
    monkeypatch.setattr(static, "_MEASURED", kinds)
    monkeypatch.setattr(static, "_quantizer_recipe", lambda *_: everything.get_quantization_recipe())
    with pytest.raises(GateError, match="nothing but zeros on the calibration texts"):
        write_static()
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(static, "Ranges", WithMask)
    with pytest.raises(GateError, match=r"a.tflite: .*MUL.* computed in integers \(\d+ in all\); the attention mask"):
        write_static()
    exact, broken = TflitePredictor(source, 1), TflitePredictor(tmp_path / "a.tflite", 1)
    padded = [pad_row(row, max(exact.lengths)) for row in sentence_rows]
    assert rms_error(answer_rows(broken, padded), answer_rows(exact, padded)) > 0.5  # the gate `reference`


def test_products_on_the_fly_are_not_static(write_static, monkeypatch):
    dynamic = quantizer._quantizer_recipe(Scheme.INT8)
    monkeypatch.setattr(static, "_quantizer_recipe", lambda *_: dynamic)
    with pytest.raises(GateError, match="on the fly, not in a measured range"):
        write_static()
