"""Core ML packages in fewer bits: older iOS, the neural engine, measured ranges, and compressors that leave weights float."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

cto = pytest.importorskip("coremltools.optimize", reason="needs pocketbert[coreml]").coreml

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.quantize import QuantizeSection
from pocketbert.core.types import Format, Layout, Role, Scheme, Shapes
from pocketbert.export.coreml import CoremlForm
from pocketbert.export.prepare import PreparedPredictor, prepare
from pocketbert.pipeline.formats.weight_roles import list_weights, resolve_schemes, simulation_of_file
from pocketbert.quantize import coreml
from pocketbert.quantize.coreml import read_weight_types
from pocketbert.quantize.files import find_weight_problems, quantize
from pocketbert.quantize.rounding import Simulation
from pocketbert.quantize.simulated import SimulatedPredictor
from pocketbert.quantize.table import Plan, find_row
from pocketbert.quantize.weights import Use
from pocketbert.runtime.coreml.evaluator import Evaluator
from pocketbert.runtime.coreml.predictor import CoremlPredictor
from support.exact import exact_bert
from support.quantized import CLASSIFY, Feed, answer_sentences, export_file

IOS_16, IOS_17 = CoremlForm(16, Shapes.FIXED), CoremlForm(17, Shapes.FIXED, Scheme.FP32)
ADDED = {"greater_equal", "select", "add"}  # coremltools checks the indices of a compressed table once more
SENTENCES = 12


def plan(scheme: Scheme, rows: list[Feed] | None = None, **more: Any) -> Plan:
    return Plan(Format.COREML, scheme, rows=None if rows is None else (lambda: rows[:SENTENCES]), **more)


def compare_answers(
    path: Path, how: Simulation, exact: PreparedPredictor, tokenizer: TextTokenizer, rows: Sequence[Feed] = ()
) -> tuple[float, float, float]:
    """RMS errors: of the package, of its simulation, and of the package against its simulation."""
    predictors = CoremlPredictor(path), SimulatedPredictor(exact, how, rows[:SENTENCES]), exact
    found, simulated, right = (answer_sentences(p, tokenizer, SENTENCES) for p in predictors)
    return rms_error(found, right), rms_error(simulated, right), rms_error(found, simulated)


@pytest.mark.parametrize(
    ("form", "scheme"), [(IOS_16, Scheme.SMALL), (IOS_16, Scheme.W8), (IOS_17, Scheme.W8)], ids=lambda v: str(v)[-30:]
)
def test_packages_for_older_ios_answer_as_simulated_and_keep_their_description(
    form, scheme, exported_coreml, open_tiny, tmp_path
):
    source, path = exported_coreml(1, form), tmp_path / "a.mlpackage"
    before, types = read_weight_types(source), quantize(source, path, plan(scheme))
    assert find_row(Format.COREML, scheme).problems(before, "a")
    assert find_row(Format.COREML, form.precision).problems(before, "a") == []
    assert find_row(Format.COREML, form.precision).problems(types, "a")
    one, other = ({k: v for k, v in t.operators.items() if k not in ADDED} for t in (types, before))
    assert one == other
    how = find_row(Format.COREML, scheme).simulation
    assert how is not None
    exact, tokenizer = exact_bert(open_tiny, 1, Format.COREML), open_tiny("bert", 1)[2]
    _, error, apart = compare_answers(path, how.made_from(form.precision), exact, tokenizer)
    assert error > 0.001
    assert apart < max(0.15 * error, 0.01)
    plain, small = Evaluator(source), Evaluator(path)
    assert small.labels == plain.labels == ("negative", "neutral", "positive")
    assert (small.lengths, small.specification) == (plain.lengths, plain.specification)
    assert plain.metadata.items() <= small.metadata.items()
    assert not any("date" in k for k in small.metadata)
    assert [f.name for f in small.outputs] == [f.name for f in plain.outputs]


def test_a_vector_that_a_product_and_a_normalization_share(open_tiny, tmp_path):
    model, folder, _ = open_tiny("bert", 1)  # as in a model that was never trained: all biases are zero
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    module = prepare(model, folder.family, CLASSIFY, Format.COREML)
    source = export_file(module, folder.family, tmp_path / "zero.mlpackage", (16,))
    assert quantize(source, tmp_path / "w8.mlpackage", plan(Scheme.W8)).int8_matmuls > 5


# Activations in 8 bits.


def test_static_packages_for_the_neural_engine_answer_as_simulated(exported_coreml, sentence_rows, open_tiny, tmp_path):
    path = tmp_path / "a.mlpackage"
    types = quantize(exported_coreml(layout=Layout.ANE), path, plan(Scheme.A8W8, sentence_rows))
    assert all(u.bits == 8 for u in types.uses if u.use is Use.MATMUL)
    how = find_row(Format.COREML, Scheme.A8W8).simulation
    assert how is not None
    exact, tokenizer = exact_bert(open_tiny, 1, Format.COREML, Layout.ANE), open_tiny("bert", 1)[2]
    how = how.made_from(Scheme.FP16).of_lengths(2)
    found, error, _ = compare_answers(path, how, exact, tokenizer, sentence_rows)
    assert 0.005 < error < 0.5
    assert 0.5 * error < found < 1.6 * error


def test_a_role_can_keep_float_activations_or_be_left(exported_coreml, sentence_rows, open_tiny, tmp_path):
    exact, tokenizer = exact_bert(open_tiny, 1, Format.COREML), open_tiny("bert", 1)[2]
    row, path = find_row(Format.COREML, Scheme.A8W8), tmp_path / "a.mlpackage"
    held = list_weights(exact.module, Scheme.FP16)
    section = QuantizeSection.model_validate({"roles": {"ffn_up": None}})
    chosen = resolve_schemes(section, held, row.scheme_of)
    assert {w.scheme for w in chosen if w.role is Role.FFN_DOWN} == {Scheme.W8}
    types = quantize(exported_coreml(), path, plan(Scheme.A8W8, sentence_rows, weights=chosen))
    kinds = sorted((u.dtype, u.bits) for u in types.uses if u.use is Use.MATMUL and u.bits is None)
    assert kinds == [("float16", None), ("int8", None)]
    how = simulation_of_file(row, chosen, Scheme.FP16).of_lengths(2)
    found, error, _ = compare_answers(path, how, exact, tokenizer, sentence_rows)
    assert 0.5 * error < found < 1.6 * error
    whole = resolve_schemes(QuantizeSection(), held, lambda _: row.scheme)
    problems = find_weight_problems(path, row, types, "mixed", whole)
    assert any("not in a measured range" in line for line in problems), problems


def test_ranges_are_those_of_all_rows_without_their_padding(exported_coreml, sentence_rows):
    def measure(rows: list[Feed], form: CoremlForm | None = None) -> dict[str, tuple[float, float]]:
        return coreml._measure_ranges(exported_coreml(1, form), plan(Scheme.A8W8, rows), "a")

    first, last, both = measure(sentence_rows[:1]), measure(sentence_rows[1:2]), measure(sentence_rows[:2])
    assert len(both) > 8  # coremltools keeps the range of the last row only
    assert both == {n: (min(first[n][0], last[n][0]), max(first[n][1], last[n][1])) for n in both}
    assert sentence_rows[0]["input_ids"].shape[1] not in (16, 40)
    longer = measure(sentence_rows[:1], CoremlForm(17, Shapes.FIXED))  # which pads the row to 40, not to 16
    shared = [n for n in first if n in longer]
    assert len(shared) > 4
    np.testing.assert_allclose([first[n] for n in shared], [longer[n] for n in shared], rtol=0.02, atol=0.02)


# Compressors that leave something float in silence, and what is refused.


def test_activations_that_a_compressor_leaves_float_are_an_error(exported_coreml, sentence_rows, tmp_path, monkeypatch):
    monkeypatch.setattr(cto.experimental, "linear_quantize_activations", lambda model, *_: model)
    with pytest.raises(GateError, match="on the fly, not in a measured range"):
        quantize(exported_coreml(), tmp_path / "a.mlpackage", plan(Scheme.A8W8, sentence_rows))


def test_a_table_that_a_group_size_leaves_float_in_silence_is_an_error(exported_coreml, tmp_path, monkeypatch):
    words = max(read_weight_types(exported_coreml()).uses, key=lambda u: (u.use is Use.TABLE, u.numbers))
    rows = words.numbers // 32
    group = next(size for size in range(2, rows) if rows % size)  # coremltools only warns
    grouped = partial(cto.OpPalettizerConfig, granularity="per_grouped_channel", group_size=group)
    monkeypatch.setattr(cto, "OpPalettizerConfig", grouped)
    with pytest.raises(GateError, match="still float: |no embedding table has lut4 numbers") as caught:
        quantize(exported_coreml(), tmp_path / "a.mlpackage", plan(Scheme.SMALL))
    assert words.name in str(caught.value)


def test_weights_that_blocks_leave_float_in_silence_are_an_error(exported_coreml, tmp_path, monkeypatch):
    monkeypatch.setattr(coreml, "BLOCK", 48)  # no divisor of rows of 32, which coremltools only warns about
    monkeypatch.setattr(coreml, "_block_problems", lambda *_: [])
    with pytest.raises(GateError) as caught:
        quantize(exported_coreml(), tmp_path / "a.mlpackage", plan(Scheme.W4))
    said = "\n".join(caught.value.failures)
    assert "a.mlpackage: still float: " in said
    assert "no embedding table has int4 numbers" in said


def test_packages_that_a_scheme_cannot_use_are_refused(exported_coreml, sentence_rows, tmp_path, monkeypatch):
    path = tmp_path / "a.mlpackage"
    with pytest.raises(InputError, match="is for iOS 16; weights in blocks need iOS 18. Fix: Choose the scheme lut4"):
        quantize(exported_coreml(1, IOS_16), path, plan(Scheme.W4))
    with pytest.raises(InputError, match="is for iOS 16; activations in 8 bits need iOS 17"):
        quantize(exported_coreml(1, IOS_16), path, plan(Scheme.A8W8, sentence_rows))
    monkeypatch.setattr(coreml, "BLOCK", 48)
    with pytest.raises(InputError, match="has rows of 32 numbers; 4-bit weights of Core ML have blocks of 48"):
        quantize(exported_coreml(), path, plan(Scheme.W4))
    assert not list(tmp_path.iterdir())
