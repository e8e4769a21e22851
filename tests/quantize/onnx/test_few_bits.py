"""small, int8-b32 and w4 for ONNX: which operators and types, answers near fp32, tied tables, widths that no block divides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize import Plan, quantize, weights
from pocketbert.quantize.onnx import blocks
from pocketbert.quantize.onnx import dynamic as small
from pocketbert.quantize.onnx.tables import find_largest_table
from pocketbert.quantize.weights import Use
from pocketbert.runtime.onnx import OnnxPredictor

SCHEMES = (Scheme.SMALL, Scheme.INT8_B32, Scheme.W4)
WORST = {Scheme.SMALL: 0.5, Scheme.INT8_B32: 0.1, Scheme.W4: 1.2}
"""RMS of logits of a tiny random model, whose weights are noise."""


@pytest.fixture(autouse=True)
def small_matrices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have no matrix above the usual bound."""
    monkeypatch.setattr(weights, "SMALL", 512)


def rows(count: int = 12) -> list[dict[str, Any]]:
    draw = np.random.default_rng(3)
    ids = [draw.integers(5, 90, (1, draw.integers(4, 31))) for _ in range(count)]
    return [{"input_ids": i, "attention_mask": np.ones_like(i), "token_type_ids": i * 0} for i in ids]


def logits(path: Path) -> Any:
    predictor = OnnxPredictor(path, threads=1)
    return np.concatenate([predictor.run(r)["logits"] for r in rows()])


@pytest.fixture(scope="module")
def made(exported: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[Scheme, Path]:
    """A file of each scheme."""
    folder = tmp_path_factory.mktemp("few-bits")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "SMALL", 512)
        for scheme in SCHEMES:
            quantize(exported("bert"), folder / f"{scheme}.onnx", Plan(Format.ONNX, scheme))
    return {s: folder / f"{s}.onnx" for s in SCHEMES}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_answers_stay_near_those_of_fp32(
    scheme: Scheme, made: dict[Scheme, Path], exported: Callable[[str], Path]
) -> None:
    assert 0 < rms_error(logits(made[scheme]), logits(exported("bert"))) < WORST[scheme]


def test_small_has_standard_operators_only(made: dict[Scheme, Path]) -> None:
    assert {n.domain for n in onnx.load(made[Scheme.SMALL]).graph.node} == {""}


@pytest.mark.parametrize("scheme", [Scheme.INT8_B32, Scheme.W4])
def test_blocks_are_operators_of_onnx_runtime(scheme: Scheme, made: dict[Scheme, Path]) -> None:
    graph = onnx.load(made[scheme]).graph
    own = {n.op_type for n in graph.node if n.domain == blocks.DOMAIN}
    assert own == {"MatMulNBits", "GatherBlockQuantized"}
    # products of two activations stay as they are
    stored = {t.name for t in graph.initializer}
    assert all(n.input[1] not in stored for n in graph.node if n.op_type == "MatMul")


@pytest.mark.parametrize("scheme", [Scheme.INT8_B32, Scheme.W4])
def test_batch_and_padding_change_no_answer_of_blocks(scheme: Scheme, made: dict[Scheme, Path]) -> None:
    feeds = rows()
    batch = {n: np.concatenate([np.pad(f[n], ((0, 0), (0, 40 - f[n].shape[1]))) for f in feeds]) for n in feeds[0]}
    assert rms_error(OnnxPredictor(made[scheme], threads=1).run(batch)["logits"], logits(made[scheme])) < 0.02


def test_only_the_largest_table_has_4_bits(made: dict[Scheme, Path], exported: Callable[[str], Path]) -> None:
    largest = find_largest_table(onnx.load(exported("bert")).graph)
    from pocketbert.quantize import read_weight_types

    for scheme in (Scheme.SMALL, Scheme.W4):
        tables = {
            u.name: u.dtype
            for u in read_weight_types(made[scheme], Format.ONNX).uses
            if u.use is Use.TABLE and u.numbers > 99
        }
        few = [name for name, dtype in tables.items() if dtype == "int4"]
        assert len(few) == 1
        assert largest
        assert few[0].startswith(largest)
        assert len(tables) > 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_width_that_no_block_divides_is_refused_with_the_way_out(
    scheme: Scheme, exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("blocks", "tables"):
        monkeypatch.setattr(f"pocketbert.quantize.onnx.{module}.block_size_of", lambda _: None)
    with pytest.raises(InputError, match="Choose the scheme int8, or a student whose hidden size is a multiple of 16"):
        quantize(exported("bert"), tmp_path / "a.onnx", Plan(Format.ONNX, scheme))
    assert not list(tmp_path.iterdir())


def test_a_table_that_stays_in_int8_is_refused(
    exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small, "pack_largest_table", lambda _: [])
    with pytest.raises(GateError, match="of another type: .*word_embeddings"):
        quantize(exported("bert"), tmp_path / "a.onnx", Plan(Format.ONNX, Scheme.SMALL))


def test_products_that_stay_float_are_refused(
    exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks._BlockWriter, "_product", lambda self, node: [node])
    with pytest.raises(GateError, match="no matrix product has int4 weights"):
        quantize(exported("bert"), tmp_path / "a.onnx", Plan(Format.ONNX, Scheme.W4))


@pytest.mark.parametrize("scheme", [Scheme.W4, Scheme.INT8_B32])
def test_a_table_that_blocks_leave_float_in_silence_is_refused(
    scheme: Scheme, exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what a quantizer does that skips a table whose rows its blocks do not divide, with a warning at most
    lookup = blocks._BlockWriter._lookup
    monkeypatch.setattr(
        blocks._BlockWriter, "_lookup", lambda self, node: node if "word" in node.input[0] else lookup(self, node)
    )
    with pytest.raises(GateError, match="a.onnx: (still float: .*word_embeddings|no embedding table has int4 numbers)"):
        quantize(exported("bert"), tmp_path / "a.onnx", Plan(Format.ONNX, scheme))
