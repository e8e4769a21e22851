"""small, int8-b32 and w4 for ONNX: operators and tables, weights left in silence, and widths that no block divides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from pocketbert.core.errors import GateError, InputError
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize import Plan, quantize
from pocketbert.quantize.onnx import blocks, dynamic
from pocketbert.quantize.weights import WeightTypes

BLOCKS = [Scheme.INT8_B32, Scheme.W4]
SCHEMES = [Scheme.SMALL, *BLOCKS]
Exported = Callable[[str], Path]
Quantized = Callable[..., tuple[Path, WeightTypes]]


def test_only_blocks_need_operators_of_onnx_runtime(quantized: Quantized) -> None:
    graphs = {scheme: onnx.load(quantized(Format.ONNX, scheme)[0]).graph for scheme in SCHEMES}
    assert {n.domain for n in graphs[Scheme.SMALL].node} == {""}
    for scheme in BLOCKS:
        graph = graphs[scheme]
        own = {n.op_type for n in graph.node if n.domain == blocks.DOMAIN}
        assert own == {"MatMulNBits", "GatherBlockQuantized"}
        stored = {t.name for t in graph.initializer}
        products = [n for n in graph.node if n.op_type == "MatMul"]
        assert all(n.input[1] not in stored for n in products), "products of two activations stay as they are"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_width_that_no_block_divides_is_refused_with_the_way_out(
    scheme: Scheme, exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("blocks", "tables"):
        monkeypatch.setattr(f"pocketbert.quantize.onnx.{module}.block_size_of", lambda _: None)
    with pytest.raises(InputError, match="Choose the scheme int8, or a student whose hidden size is a multiple of 16"):
        quantize(exported("bert"), tmp_path / "a.onnx", Plan(Format.ONNX, scheme))
    assert not list(tmp_path.iterdir())


def leave_int8_table(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dynamic, "pack_largest_table", lambda *_: [])


def leave_products(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(blocks._BlockWriter, "_product", lambda self, node: [node])


def leave_words(patch: pytest.MonkeyPatch) -> None:
    """As a quantizer that skips a table whose rows its blocks do not divide, with a warning at most."""
    lookup = blocks._BlockWriter._lookup
    patch.setattr(blocks._BlockWriter, "_lookup", lambda self, n: n if "word" in n.input[0] else lookup(self, n))


@pytest.mark.parametrize(
    ("scheme", "leave", "said"),
    [
        (Scheme.SMALL, leave_int8_table, "of another type: .*word_embeddings"),
        (Scheme.W4, leave_products, "no matrix product has int4 weights"),
        (Scheme.W4, leave_words, "no embedding table has int4 numbers|still float: .*word_embeddings"),
        (Scheme.INT8_B32, leave_words, "a.onnx: still float: .*word_embeddings"),
    ],
)
def test_weights_that_are_left_in_silence_are_found(
    scheme: Scheme,
    leave: Callable[[pytest.MonkeyPatch], None],
    said: str,
    exported: Exported,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leave(monkeypatch)
    with pytest.raises(GateError, match=said):
        quantize(exported("bert"), tmp_path / "a.onnx", Plan(Format.ONNX, scheme))
