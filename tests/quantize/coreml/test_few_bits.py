"""Core ML packages in fewer than 8 bits: palettes and blocks, what they are computed as, and what they must not be."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("coremltools", reason="needs pocketbert[coreml]")

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.disk.files import sha256_path
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.predict.predictor import join_texts, run_rows
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Scheme, Shapes
from pocketbert.export import coreml as exporter
from pocketbert.export.coreml import CoremlForm, CoremlInfo
from pocketbert.export.prepare import PreparedPredictor, prepare
from pocketbert.quantize import coreml, weights
from pocketbert.quantize.coreml import read_stored_numbers, read_weight_types
from pocketbert.quantize.files import quantize
from pocketbert.quantize.rounding import choose_palette, nearest_in_palette
from pocketbert.quantize.simulated import SimulatedPredictor
from pocketbert.quantize.table import Plan, find_row
from pocketbert.quantize.weights import Use
from pocketbert.runtime.coreml.predictor import CoremlPredictor

TASK = TASKS[TaskName.TEXT_CLASSIFICATION]
DTYPES = {
    Scheme.LUT6: ("lut6", "lut6"),
    Scheme.LUT4: ("lut4", "lut4"),
    Scheme.SMALL: ("lut6", "lut4"),
    Scheme.W4: ("int4", "int4"),
}
"""Types of products and of the largest table."""
FORMS = {18: CoremlForm(), 16: CoremlForm(16, Shapes.FIXED)}


@pytest.fixture(autouse=True)
def small_matrices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have no matrix above the usual bound."""
    monkeypatch.setattr(weights, "SMALL", coreml.THRESHOLD)


@pytest.fixture(scope="module")
def exported(open_tiny: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """`exported(ios)`: the fp16 package of a tiny classifier, of one layer."""
    folder = tmp_path_factory.mktemp("coreml")

    def make(ios: int) -> Path:
        path = folder / f"{ios}.mlpackage"
        if not path.exists():
            model, source, _ = open_tiny("bert", 1)
            module = prepare(model, source.family, TASK, Format.COREML)
            info = CoremlInfo("One sentence.", "v", "a", "l", ("negative", "neutral", "positive"))
            exporter.export(module, source.family, TASK, [40], path, FORMS[ios], info)
        return path

    return make


def plan(scheme: Scheme) -> Plan:
    return Plan(Format.COREML, scheme)


@pytest.mark.parametrize(("ios", "scheme"), [*((18, s) for s in DTYPES), (16, Scheme.SMALL)])
def test_numbers_are_few_and_answers_are_those_of_the_simulation(
    ios: int, scheme: Scheme, exported: Callable[[int], Path], open_tiny: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "a.mlpackage"
    types = quantize(exported(ios), path, plan(scheme))
    assert types == read_weight_types(path)
    large = [u for u in types.uses if u.numbers > coreml.THRESHOLD]
    for use, dtype in zip((Use.MATMUL, Use.TABLE), DTYPES[scheme], strict=True):
        own = [u for u in large if u.use is use]
        other = {u.dtype for u in own if u.numbers < max(u.numbers for u in own)}
        assert {u.dtype for u in own} - (other if use is Use.TABLE else set()) <= {dtype}
        assert other <= {DTYPES[scheme][0]}
        assert max(own, key=lambda u: u.numbers).dtype == dtype
        assert all(u.dequantized for u in own)
        assert {u.block for u in own} == {32 if dtype == "int4" else None}
    names = [u.name for u in read_weight_types(exported(ios)).uses]
    assert [u.numbers for u in types.uses] == [u.numbers for u in read_weight_types(exported(ios)).uses], names
    assert all(np.isfinite(v).all() for _, v in read_stored_numbers(path) if v.dtype.kind == "f")
    others = [s for s in (Scheme.FP16, Scheme.W8, *DTYPES) if s is not scheme]
    assert all(find_row(Format.COREML, other).problems(types, "a") for other in others)
    model, folder, _ = open_tiny("bert", 1)
    tokenizer = TextTokenizer(folder.path, 40)
    rows = tokenizer.encode(list(SENTENCES)[:12])
    exact = PreparedPredictor(prepare(model, folder.family, TASK, Format.COREML), folder.family, TASK)
    how = find_row(Format.COREML, scheme).simulation
    assert how is not None
    simulated = SimulatedPredictor(exact, how.made_from(Scheme.FP16))
    found, wanted, right = (
        join_texts(run_rows(p, tokenizer, rows, TASK)) for p in (CoremlPredictor(path), simulated, exact)
    )
    error = rms_error(wanted, right)
    assert error > 0.01
    assert rms_error(found, wanted) < max(0.15 * error, 0.01)


def test_the_same_package_gives_the_same_bytes(exported: Callable[[int], Path], tmp_path: Path) -> None:
    for name in ("a", "b"):
        quantize(exported(18), tmp_path / f"{name}.mlpackage", plan(Scheme.SMALL))
    assert sha256_path(tmp_path / "a.mlpackage") == sha256_path(tmp_path / "b.mlpackage")


def test_a_table_that_a_group_size_leaves_float_in_silence_is_an_error(
    exported: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import coremltools.optimize as cto

    source = exported(18)
    words = max(read_weight_types(source).uses, key=lambda u: (u.use is Use.TABLE, u.numbers))
    rows = words.numbers // 32
    group = next(
        size for size in range(2, rows) if rows % size
    )  # coremltools only warns, and its warnings are not shown
    grouped = partial(cto.coreml.OpPalettizerConfig, granularity="per_grouped_channel", group_size=group)
    monkeypatch.setattr(cto.coreml, "OpPalettizerConfig", grouped)
    with pytest.raises(GateError) as caught:
        quantize(source, tmp_path / "a.mlpackage", plan(Scheme.SMALL))
    said = "\n".join(caught.value.failures)
    assert "a.mlpackage: still float: " in said or "no embedding table has lut4 numbers" in said
    assert words.name in said


def test_weights_that_blocks_leave_float_in_silence_are_an_error(
    exported: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the check beforehand is passed by, and blocks of 48 do not divide rows of 32: coremltools warns only
    monkeypatch.setattr(coreml, "BLOCK", 48)
    monkeypatch.setattr(coreml, "_block_problems", lambda *_: [])
    with pytest.raises(GateError) as caught:
        quantize(exported(18), tmp_path / "a.mlpackage", plan(Scheme.W4))
    said = "\n".join(caught.value.failures)
    assert "a.mlpackage: still float: " in said
    assert "no embedding table has int4 numbers" in said


@pytest.mark.parametrize(
    ("scheme", "does"), [(Scheme.LUT4, "palettize_weights"), (Scheme.W4, "linear_quantize_weights")]
)
def test_a_compressor_that_does_nothing_is_an_error(
    scheme: Scheme, does: str, exported: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import coremltools.optimize as cto

    monkeypatch.setattr(cto.coreml, does, lambda model, config: model)
    with pytest.raises(GateError, match="the quantizer did nothing"):
        quantize(exported(18), tmp_path / "a.mlpackage", plan(scheme))


def test_blocks_need_ios_18_and_rows_that_they_divide(
    exported: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="is for iOS 16; weights in blocks need iOS 18. Fix: Choose the scheme lut4"):
        quantize(exported(16), tmp_path / "a.mlpackage", plan(Scheme.W4))
    monkeypatch.setattr(coreml, "BLOCK", 48)
    with pytest.raises(InputError, match="has rows of 32 numbers; 4-bit weights of Core ML have blocks of 48"):
        quantize(exported(18), tmp_path / "a.mlpackage", plan(Scheme.W4))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [16, 64])
def test_a_palette_is_where_its_numbers_are_and_never_worse_than_equal_steps(size: int) -> None:
    draw = np.random.default_rng(0)
    values = draw.standard_t(3, 50_000).astype(np.float16)  # with tails, as the weights of a trained model
    palette = choose_palette(values, size)
    places = nearest_in_palette(values, palette)
    assert palette.shape == (size,)
    assert (np.diff(palette) > 0).all()
    nearest = np.abs(values.astype(np.float32)[:, None] - palette).argmin(1)
    error, best = (np.mean((palette[p] - values.astype(np.float32)) ** 2) for p in (places, nearest))
    assert error == pytest.approx(best)
    means = [values[places == i].astype(np.float64).mean() for i in range(size)]
    np.testing.assert_allclose(palette, means, rtol=2e-3, atol=2e-4)
    equal = np.linspace(values.min(), values.max(), size).astype(np.float32)
    other = np.mean((equal[nearest_in_palette(values, equal)] - values.astype(np.float32)) ** 2)
    assert error < 0.2 * other
    assert np.array_equal(places, nearest_in_palette(values.astype(np.float32), palette))


def test_a_weight_with_fewer_numbers_than_its_palette_is_exact() -> None:
    values = np.array([[0.5, -1, 0.25], [0, 0.5, 0.5]], np.float16)
    palette = choose_palette(values, 16)
    assert np.array_equal(palette[nearest_in_palette(values, palette)].reshape(2, 3), values)
