"""Stored numbers: compressed weights expanded as coremltools expands them, packed bits, and rounding to fp16."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbert.runtime.coreml import types
from pocketbert.runtime.coreml.evaluator import Evaluator
from pocketbert.runtime.coreml.kernels import KERNELS
from pocketbert.runtime.coreml.package import read_package
from pocketbert.runtime.coreml.program import read_program
from pocketbert.runtime.coreml.types import Dtype, convert_to_half, round_half
from pocketbert.runtime.coreml.weights import unpack_bits

OUT, IN = 24, 64


@dataclass(frozen=True)
class Scheme:
    name: str
    target: str
    precision: str
    steps: tuple[tuple[str, dict[str, Any]], ...]
    operations: frozenset[str]


def scheme(
    name: str, target: str, operations: str, *steps: tuple[str, dict[str, Any]], precision: str = "FLOAT16"
) -> Scheme:
    return Scheme(f"{name}-{target}-{precision}", target, precision, steps, frozenset(operations.split()))


LINEAR, SYMMETRIC = {"mode": "linear"}, {"mode": "linear_symmetric"}
AFFINE, BLOCKS, LUT, DENSE = (
    "constexpr_affine_dequantize",
    "constexpr_blockwise_shift_scale",
    "constexpr_lut_to_dense",
    "constexpr_sparse_to_dense",
)
SCHEMES = [
    scheme("linear", "iOS16", AFFINE, ("quantize", LINEAR)),
    scheme("linear", "iOS17", AFFINE, ("quantize", LINEAR), precision="FLOAT32"),
    scheme("linear", "iOS18", BLOCKS, ("quantize", LINEAR)),
    scheme("symmetric", "iOS18", BLOCKS, ("quantize", SYMMETRIC)),
    scheme("per-tensor", "iOS18", BLOCKS, ("quantize", {**LINEAR, "granularity": "per_tensor"})),
    scheme("int4-blocks", "iOS18", BLOCKS, ("quantize", {**SYMMETRIC, "dtype": "int4", "granularity": "per_block", "block_size": 8})),
    scheme("uint4-blocks", "iOS18", BLOCKS, ("quantize", {**LINEAR, "dtype": "uint4", "granularity": "per_block", "block_size": 16})),
    *(scheme(f"palette{n}", "iOS16", LUT, ("palettize", {"mode": "uniform", "nbits": n})) for n in (2, 6, 8)),
    *(scheme(f"palette{n}", "iOS18", LUT, ("palettize", {"mode": "uniform", "nbits": n})) for n in (1, 3, 8)),
    scheme("palette-groups", "iOS18", LUT, ("palettize", {"mode": "uniform", "nbits": 4, "granularity": "per_grouped_channel", "group_size": 8})),
    scheme("prune", "iOS16", DENSE, ("prune", {"target_sparsity": 0.5})),
    scheme("prune", "iOS18", DENSE, ("prune", {"target_sparsity": 0.5})),
    scheme("prune-int8", "iOS18", f"constexpr_sparse_blockwise_shift_scale {DENSE}", ("prune", {"target_sparsity": 0.5}), ("quantize", LINEAR)),
    scheme("prune-palette", "iOS18", f"constexpr_lut_to_sparse {DENSE}", ("prune", {"target_sparsity": 0.5}), ("palettize", {"mode": "uniform", "nbits": 6})),
]  # fmt: skip


def compress(path: Path, made: Scheme) -> Path:
    import coremltools as ct
    import coremltools.optimize.coreml as cto

    model = ct.models.MLModel(str(path), skip_model_load=True)
    for i, (kind, chosen) in enumerate(made.steps):
        chosen = {**chosen, "weight_threshold": 0}
        if "dtype" in chosen:
            chosen["dtype"] = getattr(ct.converters.mil.mil.types, chosen["dtype"])
        name, function = {
            "quantize": ("OpLinearQuantizerConfig", cto.linear_quantize_weights),
            "palettize": ("OpPalettizerConfig", cto.palettize_weights),
            "prune": ("OpMagnitudePrunerConfig", cto.prune_weights),
        }[kind]
        config = cto.OptimizationConfig(global_config=getattr(cto, name)(**chosen))
        model = function(model, config, **({"joint_compression": True} if i else {}))
    out = path.with_name("compressed.mlpackage")
    model.save(str(out))
    return out


def materialize(path: Path) -> dict[str, np.ndarray]:
    """What coremltools makes of each compressed constant, by name of the linear layer's parameter."""
    import coremltools as ct
    from coremltools.converters.mil.frontend.milproto.load import load
    from coremltools.models.utils import _convert_model_spec_to_pymil_prog

    model = ct.models.MLModel(str(path), skip_model_load=True)
    program = _convert_model_spec_to_pymil_prog(model, model.get_spec().specificationVersion, load)
    out = {}
    for operation in program.functions["main"].operations:
        if operation.op_type in ("linear", "gather"):
            parameter = operation.weight if operation.op_type == "linear" else operation.x
            maker = parameter.op
            if maker.op_type.startswith("constexpr_"):
                value = maker.materialized_val_inference()
                out[parameter.name] = value[1] if isinstance(value, tuple) else value
    return out


@pytest.fixture(scope="module")
def layer(build_program: Callable[..., Path]) -> Callable[[str, str], Path]:
    """`layer(target, precision)`: a table, a gather, a linear layer."""
    table, weight = (np.random.default_rng(n).normal(size=(n, IN)).astype(np.float32) for n in (40, OUT))

    def body(mb: Any, ids: Any) -> Any:
        return mb.linear(x=mb.gather(x=table, indices=ids, axis=0), weight=weight, bias=np.ones(OUT, np.float32))

    return cache(lambda target, precision: build_program([((5,), "int32")], body, target, precision))


@pytest.mark.parametrize("made", SCHEMES, ids=lambda s: s.name)
def test_compressed_weights_expand_as_coremltools_expands_them(
    made: Scheme, layer: Callable[[str, str], Path], tmp_path: Path
) -> None:
    plain = Path(shutil.copytree(layer(made.target, made.precision), tmp_path / "plain.mlpackage"))
    path = compress(plain, made)
    package = read_package(path)
    assert made.operations <= {o.type for o in package.block.operations}
    want = materialize(path)
    assert len(want) == 2
    operations = read_program(package, rounds=True).operations
    by_type = {o.type: o for o in operations}
    for name, have in (
        ("gather", by_type["gather"].fixed["x"]),
        ("linear", by_type["linear"].fixed["weight"]),
    ):
        (expected,) = (v for v in want.values() if v.shape == have.shape)
        np.testing.assert_array_equal(have.astype(np.float32), expected.astype(np.float32), err_msg=name)
    # and the whole program, with these weights
    ids = np.array([0, 7, 39, 3, 3])
    (result,) = Evaluator(path).run({"x0": ids}).values()
    table, weight = (next(v for v in want.values() if v.shape[0] == n).astype(np.float64) for n in (40, OUT))
    assert np.abs(np.asarray(result) - (table[ids] @ weight.T + 1)).max() <= 5e-3 * np.abs(result).max()


def test_vector_palettes_and_casts_expand() -> None:
    """Straight at the kernels: coremltools writes neither without further libraries."""
    lut = np.array([[2.0, 2.5], [3.0, 3.5]], np.float32).reshape(1, 1, 2, 2)
    indices = np.array([[0, 1], [1, 0]], np.uint8)
    dense = KERNELS["constexpr_lut_to_dense"].function(indices, lut, vector_axis=0)
    np.testing.assert_array_equal(dense, [[2, 3], [2.5, 3.5], [3, 2], [3.5, 2.5]])
    mask, to_sparse = np.array([[1, 0], [1, 1]], np.uint8), KERNELS["constexpr_lut_to_sparse"].function
    spread, values = to_sparse(mask, np.array([0, 1, 0], np.uint8), lut, vector_axis=0)
    np.testing.assert_array_equal(spread, [[1, 0], [1, 0], [1, 1], [1, 1]])
    np.testing.assert_array_equal(values, [2, 2.5, 3, 2, 3.5, 2.5])
    value = np.array([0.1, -2.5], np.float32)
    np.testing.assert_array_equal(KERNELS["constexpr_cast"].function(value, output_dtype="fp32"), value)


@settings(max_examples=25)
@given(st.sampled_from([d for d in Dtype if 0 < d.bits < 8]), st.integers(0, 50), st.randoms(use_true_random=False))
def test_unpacking_reads_bits_from_the_least_significant_on(dtype: Dtype, count: int, draw: Any) -> None:
    raw = draw.randbytes((count * dtype.bits + 7) // 8)
    big = int.from_bytes(raw, "little")
    want = [(big >> (i * dtype.bits)) % (1 << dtype.bits) for i in range(count)]
    if dtype is Dtype.INT4:
        want = [v - 16 if v > 7 else v for v in want]
    assert unpack_bits(np.frombuffer(raw, np.uint8), dtype, count).tolist() == want


HALVES = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
MIDDLES = (HALVES[:-1] + HALVES[1:]) / 2
LARGE = np.array([65504, 65519.9, 65520, -1e9, 1e30, np.nan, np.inf, -0.0], np.float32)
DRAWN = np.random.default_rng(1).normal(scale=3e4, size=(40, 50, 60)).astype(np.float32)
LAYOUTS = [
    DRAWN.transpose(1, 2, 0),
    DRAWN.transpose(0, 2, 1)[:1],
    DRAWN[::-1, ::2],
    DRAWN[:, 10:30].swapaxes(0, 1),
    np.resize(LARGE, (70, 80)),
    np.broadcast_to(DRAWN[:1], DRAWN.shape),
]
"""Arrays whose numbers lie in memory in another order, or with gaps, or once for many places."""
PARTS = (500, 350)
"""Shape of a table that is rounded in several parts."""


@pytest.mark.parametrize("imported", [True, False], ids=["torch", "numpy"])
@pytest.mark.parametrize(
    "value",
    [
        HALVES, -HALVES, MIDDLES, np.nextafter(MIDDLES, 0), np.nextafter(MIDDLES, np.float32(np.inf)), LARGE,
        *(np.random.default_rng(0).normal(size=s).astype(np.float32).T for s in ((), (0,), (3, 0), (4, 5, 6), PARTS)),
        *LAYOUTS,
    ],
    ids=lambda v: str(v.shape),
)  # fmt: skip
def test_rounding_equals_numpys_conversion_and_leaves_its_argument_alone(
    value: np.ndarray, imported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if imported:
        pytest.importorskip("torch")
    else:  # as in an installation that only runs models
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    if value.T.shape == PARTS:
        monkeypatch.setattr(types, "_ROUNDED_AT_ONCE", 1 << 12)
    before = value.copy()
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(round_half(value), value.astype(np.float16).astype(np.float32))
        np.testing.assert_array_equal(convert_to_half(value), value.astype(np.float16))
    np.testing.assert_array_equal(value, before)
