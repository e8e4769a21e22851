"""int8, small, int8-b32 and w4 for ONNX: operators, and quantizers that leave something as it was."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnxruntime.quantization import quantize_dynamic

from pocketbert.core.errors import GateError, InputError
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize import Plan, quantize
from pocketbert.quantize.onnx import blocks, dynamic

INT8 = Plan(Format.ONNX, Scheme.INT8)
BLOCKS = [Scheme.INT8_B32, Scheme.W4]
SCHEMES = [Scheme.SMALL, *BLOCKS]


FAULTY: dict[str, tuple[Callable[..., dict[str, Any]], bool, str]] = {
    "tables": (lambda _: {}, False, "no embedding table has int8 numbers"),
    "one matrix": (lambda names: {"nodes_to_exclude": names[:1]}, True, r"still float: .*\(1 in all\)"),
    "a scale per matrix": (lambda _: {"per_channel": False}, True, "one scale per matrix, not per output channel"),
    "a scale per table": (
        lambda _: {"op_types_to_quantize": ["MatMul", "Gemm", "Gather"]},
        False,
        "one scale per matrix, not per output channel: .*embeddings",
    ),
}
"""What a quantizer forgets, its changed settings, whether tables are packed, and what is said."""


@pytest.mark.parametrize("fault", FAULTY)
def test_a_quantizer_that_forgets_something_is_an_error(fault, exported, tmp_path, monkeypatch):
    settings, packs_tables, said = FAULTY[fault]
    names = [n.name for n in onnx.load(exported("bert")).graph.node if n.op_type == "MatMul"]

    def forgetful(source: Path, destination: Path, **given: Any) -> None:
        quantize_dynamic(source, destination, **{**given, **settings(names)})

    monkeypatch.setattr("onnxruntime.quantization.quantize_dynamic", forgetful)
    if not packs_tables:
        monkeypatch.setattr(dynamic, "pack_tables_int8", lambda *_: None)
    with pytest.raises(GateError, match=said):
        quantize(exported("bert"), tmp_path / "model_int8.onnx", INT8)


def test_the_applications_logging_is_left_alone(exported, tmp_path, monkeypatch):
    root = logging.getLogger()
    monkeypatch.setattr(root, "level", logging.INFO)
    quantize(exported("bert"), tmp_path / "model_int8.onnx", INT8)
    assert root.level == logging.INFO


# small, int8-b32 and w4: operators and tables, weights left in silence, and widths that no block divides.


def test_only_blocks_need_operators_of_onnx_runtime(quantized):
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
def test_a_width_that_no_block_divides_is_refused_with_the_way_out(scheme, exported, tmp_path, monkeypatch):
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
def test_weights_that_are_left_in_silence_are_found(scheme, leave, said, exported, tmp_path, monkeypatch):
    leave(monkeypatch)
    with pytest.raises(GateError, match=said):
        quantize(exported("bert"), tmp_path / "a.onnx", Plan(Format.ONNX, scheme))
