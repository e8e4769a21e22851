"""Compressed weights: expanded as coremltools expands them, and the model's results with them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketbert.runtime.coreml.evaluator import Evaluator
from pocketbert.runtime.coreml.kernels.constexpr import (
    _constexpr_cast,
    _constexpr_lut_to_dense,
    _constexpr_lut_to_sparse,
)
from pocketbert.runtime.coreml.package import read_package
from pocketbert.runtime.coreml.program import read_program

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
    scheme("symmetric", "iOS17", AFFINE, ("quantize", SYMMETRIC)),
    scheme("symmetric", "iOS18", BLOCKS, ("quantize", SYMMETRIC)),
    scheme("per-tensor", "iOS18", BLOCKS, ("quantize", {**LINEAR, "granularity": "per_tensor"})),
    scheme("int4-blocks", "iOS18", BLOCKS, ("quantize", {**SYMMETRIC, "dtype": "int4", "granularity": "per_block", "block_size": 8})),
    scheme("uint4-blocks", "iOS18", BLOCKS, ("quantize", {**LINEAR, "dtype": "uint4", "granularity": "per_block", "block_size": 16})),
    *(scheme(f"palette{n}", t, LUT, ("palettize", {"mode": "uniform", "nbits": n})) for n in (2, 6, 8) for t in ("iOS16", "iOS18")),
    *(scheme(f"palette{n}", "iOS18", LUT, ("palettize", {"mode": "uniform", "nbits": n})) for n in (1, 3, 4)),
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
    for i, (kind, settings) in enumerate(made.steps):
        settings = {**settings, "weight_threshold": 0}
        if "dtype" in settings:
            settings["dtype"] = getattr(ct.converters.mil.mil.types, settings["dtype"])
        name, function = {
            "quantize": ("OpLinearQuantizerConfig", cto.linear_quantize_weights),
            "palettize": ("OpPalettizerConfig", cto.palettize_weights),
            "prune": ("OpMagnitudePrunerConfig", cto.prune_weights),
        }[kind]
        config = cto.OptimizationConfig(global_config=getattr(cto, name)(**settings))
        model = function(model, config, **({"joint_compression": True} if i else {}))
    out = path.with_name("compressed.mlpackage")
    model.save(str(out))
    return out


def materialized(path: Path) -> dict[str, np.ndarray]:
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
    """A table, a gather, a linear layer."""
    made: dict[tuple[str, str], Path] = {}
    rng = np.random.default_rng(0)
    table, weight = (rng.normal(size=s).astype(np.float32) for s in ((40, IN), (OUT, IN)))

    def body(mb: Any, ids: Any) -> Any:
        return mb.linear(x=mb.gather(x=table, indices=ids, axis=0), weight=weight, bias=np.ones(OUT, np.float32))

    def build(target: str, precision: str) -> Path:
        if (target, precision) not in made:
            made[target, precision] = build_program([((5,), "int32")], body, target, precision)
        return made[target, precision]

    return build


@pytest.mark.parametrize("made", SCHEMES, ids=lambda s: s.name)
def test_compressed_weights_expand_as_coremltools_expands_them(
    made: Scheme, layer: Callable[[str, str], Path], tmp_path: Path
) -> None:
    plain = Path(shutil.copytree(layer(made.target, made.precision), tmp_path / "plain.mlpackage"))
    path = compress(plain, made)
    package = read_package(path)
    assert made.operations <= {o.type for o in package.block.operations}
    want = materialized(path)
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


def test_a_table_that_is_only_gathered_from_stays_fp16(layer: Callable[[str, str], Path]) -> None:
    operations = {o.type: o for o in read_program(read_package(layer("iOS17", "FLOAT16")), rounds=True).operations}
    assert operations["gather"].fixed["x"].dtype == np.float16
    assert operations["linear"].fixed["weight"].dtype == np.float32


def test_vector_palettes_expand_along_their_axis() -> None:
    lut = np.array([[2.0, 2.5], [3.0, 3.5]], np.float32).reshape(1, 1, 2, 2)
    dense = _constexpr_lut_to_dense(np.array([[0, 1], [1, 0]], np.uint8), lut, vector_axis=0)
    np.testing.assert_array_equal(dense, [[2, 3], [2.5, 3.5], [3, 2], [3.5, 2.5]])
    mask = np.array([[1, 0], [1, 1]], np.uint8)
    spread, values = _constexpr_lut_to_sparse(mask, np.array([0, 1, 0], np.uint8), lut, vector_axis=0)
    np.testing.assert_array_equal(spread, [[1, 0], [1, 0], [1, 1], [1, 1]])
    np.testing.assert_array_equal(values, [2, 2.5, 3, 2, 3.5, 2.5])


def test_a_cast_constant_is_exact() -> None:
    value = np.array([0.1, -2.5], np.float32)
    np.testing.assert_array_equal(_constexpr_cast(value, output_dtype="fp32"), value)
