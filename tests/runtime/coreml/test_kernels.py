"""Every operation, written by coremltools' own builder, against torch; all of them in one program, in fp32 and in fp16."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbert.runtime.coreml.evaluator import Evaluator, Step
from pocketbert.runtime.coreml.kernels import KERNELS

RANDOM = np.random.default_rng(0)


def numbers(*shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return RANDOM.uniform(low, high, shape).astype(np.float32)


def whole(*shape: int, low: int = 0, high: int = 4) -> np.ndarray:
    return RANDOM.integers(low, high, shape).astype(np.int32)


@dataclass
class Case:
    op: str
    inputs: list[np.ndarray]
    body: Callable[..., Any]
    """Of the builder and the inputs; returns one value."""
    expected: Callable[..., Any]
    """Of torch tensors."""
    name: str = ""

    def __post_init__(self) -> None:
        self.name = self.name or self.op


X, Y = numbers(2, 3, 4), numbers(2, 3, 4)
P = numbers(2, 3, 4, low=0.25, high=2.0)
ROW = numbers(4)
IDS = whole(2, 5, high=6)
TABLE = numbers(6, 3)
W, B = numbers(5, 4), numbers(5)
POINT, FILTER_1D = numbers(5, 4, 1, 1), numbers(5, 4, 3)
IMAGE, FILTER = numbers(1, 4, 5, 6), numbers(6, 2, 3, 2)


def unary(op: str, function: Callable[[Any], Any], x: np.ndarray = X, name: str = "", **more: Any) -> Case:
    return Case(op, [x], lambda mb, x: getattr(mb, op)(x=x, **more), function, name)


def binary(
    op: str, function: Callable[[Any, Any], Any], x: np.ndarray = X, y: np.ndarray = Y, name: str = "", **more: Any
) -> Case:
    return Case(op, [x, y], lambda mb, x, y: getattr(mb, op)(x=x, y=y, **more), function, name)


def several(op: str, function: Callable[[Any, Any], Any], x: np.ndarray, y: np.ndarray, name: str, **more: Any) -> Case:
    return Case(op, [x, y], lambda mb, x, y: getattr(mb, op)(values=(x, y), **more), function, name)


def picked(op: str, function: Callable[[Any, Any], Any], indices: np.ndarray, name: str = "", **more: Any) -> Case:
    return Case(op, [X, indices], lambda mb, x, i: getattr(mb, op)(x=x, indices=i, **more), function, name)


def compared(op: str, function: Callable[[Any, Any], Any]) -> Case:
    return Case(
        op, [whole(3, 4), whole(4)], lambda mb, x, y: mb.cast(x=getattr(mb, op)(x=x, y=y), dtype="int32"), function
    )


def logical(op: str, function: Callable[[Any, Any], Any]) -> Case:
    def body(mb: Any, x: Any, y: Any) -> Any:
        both = getattr(mb, op)(x=mb.greater(x=x, y=1), y=mb.greater(x=y, y=1))
        return mb.cast(x=both, dtype="int32")

    return Case(op, [whole(3, 4), whole(3, 4)], body, lambda x, y: function(x > 1, y > 1))


def quantized(x: Any) -> Any:
    return ((x / 0.02).round() + 3).clamp(-128, 127)


def running(x: Any, exclusive: bool, reverse: bool) -> Any:
    x = x.flip(1) if reverse else x
    out = x.cumsum(1) - (x if exclusive else 0)
    return out.flip(1) if reverse else out


def torched(*values: np.ndarray) -> list[Any]:
    return [torch.from_numpy(value) for value in values]


BOTH_WAYS = [(False, False), (False, True), (True, False), (True, True)]
STEPS = {"scale": np.float32(0.02), "zero_point": np.int8(3)}
EINSUMS = {
    "nchw,nwhu->nchu": ((2, 3, 4, 5), (2, 5, 4, 6)),
    "bkhc,bchq->bkhq": ((1, 5, 2, 4), (1, 4, 2, 3)),
    "chw,whu->chu": ((3, 4, 5), (5, 4, 6)),
}
CASES = [
    unary("abs", torch.abs), unary("ceil", torch.ceil), unary("floor", torch.floor), unary("round", torch.round),
    unary("sign", torch.sign), unary("cos", torch.cos), unary("sin", torch.sin), unary("exp", torch.exp),
    unary("sqrt", torch.sqrt, P), unary("square", torch.square), unary("tanh", torch.tanh),
    unary("erf", torch.erf), unary("sigmoid", torch.sigmoid), unary("silu", F.silu), unary("relu", F.relu),
    unary("log", torch.log, P), unary("log", lambda x: torch.log(x + 0.5), P, "log_epsilon", epsilon=0.5),
    unary("rsqrt", torch.rsqrt, P), unary("rsqrt", lambda x: torch.rsqrt(x + 0.5), P, "rsqrt_epsilon", epsilon=0.5),
    unary("clip", lambda x: x.clamp(-0.5, 0.75), alpha=-0.5, beta=0.75),
    binary("add", torch.add, y=ROW), binary("sub", torch.sub), binary("mul", torch.mul, y=numbers(3, 1)),
    binary("real_div", torch.div, y=P), binary("maximum", torch.maximum), binary("minimum", torch.minimum),
    binary("add", torch.add, whole(3), whole(3), "add_int"), binary("pow", torch.pow, x=P),
    binary("floor_div", torch.floor_divide, whole(3, 4, low=-9, high=9), whole(3, 4, low=1)),
    binary("mod", torch.remainder, whole(3, 4, low=-9, high=9), whole(3, 4, low=1)),
    compared("equal", torch.eq), compared("not_equal", torch.ne), compared("greater", torch.gt),
    compared("greater_equal", torch.ge), compared("less", torch.lt), compared("less_equal", torch.le),
    logical("logical_and", torch.logical_and), logical("logical_or", torch.logical_or),
    logical("logical_xor", torch.logical_xor),
    Case(
        "logical_not", [whole(3, 4)],
        lambda mb, x: mb.cast(x=mb.logical_not(x=mb.equal(x=x, y=1)), dtype="int32"), lambda x: x != 1,
    ),
    Case(
        "select", [X, numbers(3, 4), whole(3, 4, high=2)],
        lambda mb, a, b, c: mb.select(cond=mb.cast(x=c, dtype="bool"), a=a, b=mb.add(x=b, y=a)),
        lambda a, b, c: torch.where(c.bool(), a, a + b),
    ),
    unary("cast", lambda x: x.to(torch.int32), dtype="int32"),
    unary("gelu", F.gelu, name="gelu_exact", mode="EXACT"),
    unary("gelu", lambda x: F.gelu(x, approximate="tanh"), name="gelu_tanh", mode="TANH_APPROXIMATION"),
    unary("gelu", lambda x: x * torch.sigmoid(1.702 * x), name="gelu_sigmoid", mode="SIGMOID_APPROXIMATION"),
    unary("softmax", lambda x: F.softmax(x, 1), axis=1), unary("softmax", lambda x: F.softmax(x, -1), name="softmax_last"),
    unary("softmax", lambda x: F.softmax(x, 1), np.full((1, 4), -1e4, np.float32), axis=1, name="softmax_masked"),
    unary("layer_norm", lambda x: F.layer_norm(x, (4,), *torched(ROW, 2 * ROW), 0.1), axes=[-1], gamma=ROW, beta=2 * ROW, epsilon=0.1),
    unary(
        "layer_norm", lambda x: F.layer_norm(x.transpose(1, 2), (3,), eps=1e-3).transpose(1, 2),
        name="layer_norm_middle", axes=[1], epsilon=1e-3,
    ),
    unary(
        "batch_norm", lambda x: F.batch_norm(x, *torched(ROW, ROW**2 + 1, ROW, ROW)), IMAGE,
        mean=ROW, variance=ROW**2 + 1, gamma=ROW, beta=ROW,
    ),
    unary("linear", lambda x: F.linear(x, *torched(W, B)), weight=W, bias=B),
    unary("linear", lambda x: F.linear(x, *torched(W)), name="linear_no_bias", weight=W),
    *(
        binary(
            "matmul", lambda x, y, tx=tx, ty=ty: (x.mT if tx else x) @ (y.mT if ty else y),
            numbers(2, 4, 3) if tx else X, numbers(2, 5, 4) if ty else numbers(2, 4, 5), f"matmul_{tx:d}{ty:d}",
            transpose_x=tx, transpose_y=ty,
        ) for tx, ty in BOTH_WAYS
    ),
    binary("matmul", torch.matmul, numbers(1, 2, 3, 4), numbers(5, 1, 4, 2), "matmul_broadcast"),
    *(
        several(
            "einsum", lambda x, y, e=equation: torch.einsum(e, x, y), numbers(*left), numbers(*right),
            "einsum_" + equation.replace(",", "_").replace("->", "_"), equation=equation,
        ) for equation, (left, right) in EINSUMS.items()
    ),
    several(
        "einsum", lambda x, y: torch.einsum("nchw,nwhu->nchu", x.expand(2, -1, -1, -1), y.expand(-1, -1, 4, -1)),
        numbers(1, 3, 4, 5), numbers(2, 5, 1, 6), "einsum_broadcast", equation="nchw,nwhu->nchu",
    ),
    unary("conv", lambda x: F.conv2d(x, *torched(POINT, B)), IMAGE, "conv_1x1", weight=POINT, bias=B),
    unary(
        "conv", lambda x: F.conv2d(x, *torched(FILTER), None, (2, 1), (1, 2), (1, 2), 2), IMAGE, "conv_groups",
        weight=FILTER, strides=[2, 1], pad_type="custom", pad=[1, 1, 2, 2], dilations=[1, 2], groups=2,
    ),
    unary("conv", lambda x: F.conv1d(x, *torched(FILTER_1D), padding="same"), numbers(2, 4, 7), "conv_same", weight=FILTER_1D, pad_type="same"),
    unary("reduce_mean", lambda x: x.mean((0, 2), True), axes=[0, 2], keep_dims=True),
    unary("reduce_mean", lambda x: x.mean((0, 1, 2)), name="reduce_mean_all", axes=[0, 1, 2]),
    unary("reduce_sum", lambda x: x.sum(1), axes=[1]), unary("reduce_max", lambda x: x.amax((1, 2)), axes=[1, 2]),
    unary("reduce_min", lambda x: x.amin(-1, True), axes=[-1], keep_dims=True),
    unary("reduce_prod", lambda x: x.prod(2), axes=[2]), unary("reduce_argmax", lambda x: x.argmax(1), axis=1),
    *(
        unary("cumsum", lambda x, e=e, r=r: running(x, e, r), name=f"cumsum_{e:d}{r:d}", axis=1, exclusive=e, reverse=r)
        for e, r in BOTH_WAYS
    ),
    Case("gather", [IDS], lambda mb, i: mb.gather(x=TABLE, indices=i), lambda i: torch.from_numpy(TABLE)[i.long()]),
    picked(
        "gather", lambda x, i: torch.stack([row[:, j.long()] for row, j in zip(x, i, strict=True)]),
        whole(2, 2, high=4), "gather_batch", axis=2, batch_dims=1, validate_indices=True,
    ),
    picked("gather_along_axis", lambda x, i: torch.gather(x, 1, i.long()), whole(2, 5, 4, high=3), axis=1),
    picked("gather_nd", lambda x, i: x[i[:, 0].long(), i[:, 1].long()], whole(5, 2, high=2)),
    picked(
        "gather_nd", lambda x, i: torch.stack([row[j[:, 0].long()] for row, j in zip(x, i, strict=True)]),
        whole(2, 5, 1, high=3), "gather_nd_batch", batch_dims=1,
    ),
    unary("reshape", lambda x: x.reshape(3, 8), shape=[3, -1]), unary("transpose", lambda x: x.permute(2, 0, 1), perm=[2, 0, 1]),
    unary("expand_dims", lambda x: x[None, ..., None], axes=[0, -1]),
    unary("squeeze", lambda x: x.squeeze(-1), numbers(1, 3, 1), axes=[-1]),
    unary("squeeze", lambda x: x.squeeze(), numbers(1, 3, 1), "squeeze_all"),
    Case("split", [X], lambda mb, x: mb.sub(x=(p := mb.split(x=x, axis=2, num_splits=2))[1], y=p[0]), lambda x: x[..., 2:] - x[..., :2]),
    Case("split", [X], lambda mb, x: mb.split(x=x, axis=2, split_sizes=[1, 3])[1], lambda x: x[..., 1:], "split_sizes"),
    several("concat", lambda x, y: torch.cat([x, y], 1), X, Y, "concat", axis=1),
    several("concat", lambda x, y: torch.stack([x, y], 2).reshape(2, 6, 4), X, Y, "concat_interleave", axis=1, interleave=True),
    several("stack", lambda x, y: torch.stack([x, y], 1), X, Y, "stack", axis=1),
    unary("tile", lambda x: x.tile(1, 2, 3), reps=[1, 2, 3]),
    unary(
        "slice_by_index", lambda x: x[1, -2:].flip(-1)[:, ::2], begin=[1, -2, 3], end=[2, 0, 0], stride=[1, 1, -2],
        end_mask=[False, True, True], squeeze_mask=[True, False, False],
    ),
    unary("slice_by_index", lambda x: x[:, 1:3, 1:-1], name="slice_plain", begin=[0, 1, 1], end=[2, 3, -1]),
    unary("slice_by_size", lambda x: x[:, 1:, 2:3], begin=[0, 1, 2], size=[2, -1, 1]),
    unary("pad", lambda x: F.pad(x, (0, 2, 1, 0), value=3.0), pad=[1, 0, 0, 2], constant_val=3.0),
    unary("pad", lambda x: F.pad(x, (2, 1), "reflect"), name="pad_reflect", pad=[2, 1], mode="reflect"),
    unary("pad", lambda x: F.pad(x, (2, 1), "replicate"), name="pad_edge", pad=[2, 1], mode="replicate"),
    Case("fill", [whole(2, low=2, high=5)], lambda mb, s: mb.fill(shape=s, value=1.5), lambda s: torch.full(tuple(s.tolist()), 1.5)),
    Case(
        "range_1d", [np.array([7], np.int32)],
        lambda mb, n: mb.range_1d(start=1, end=mb.squeeze(x=n, axes=[0]), step=2), lambda n: torch.arange(1, 7, 2),
    ),
    Case(
        "shape", [X, whole(1, high=3)],
        # a value that depends on the data keeps the converter from folding the shape
        lambda mb, x, n: mb.shape(x=mb.tile(x=x, reps=mb.concat(values=[[1, 1], mb.add(x=n, y=1)], axis=0))),
        lambda x, n: torch.tensor([2, 3, 4 * (int(n[0]) + 1)]),
    ),
    Case("quantize", [X], lambda mb, x: mb.cast(x=mb.quantize(input=x, output_dtype="int8", **STEPS), dtype="int32"), quantized),
    Case(
        "dequantize", [X], lambda mb, x: mb.dequantize(input=mb.quantize(input=x, output_dtype="int8", **STEPS), **STEPS),
        lambda x: (quantized(x) - 3) * 0.02,
    ),
]  # fmt: skip


@dataclass
class Ran:
    values: dict[str, np.ndarray]
    operations: set[str]
    half: bool


@pytest.fixture(scope="module", params=["FLOAT32", "FLOAT16"])
def ran(request: pytest.FixtureRequest, build_program: Callable[..., Path]) -> Ran:
    """All cases as one program."""
    inputs = [x for case in CASES for x in case.inputs]

    def body(mb: Any, *given: Any) -> Any:
        left, out = list(given), []
        for i, case in enumerate(CASES):
            mine = [left.pop(0) for _ in case.inputs]
            out.append(mb.identity(x=case.body(mb, *mine), name=f"result_{i}"))
        return out

    shapes = [(x.shape, "int32" if x.dtype == np.int32 else "fp32") for x in inputs]
    evaluator = Evaluator(build_program(shapes, body, precision=request.param))
    operations: set[str] = set()
    steps: Callable[[Step], None] = lambda step: operations.add(step.op_type)  # noqa: E731
    results = evaluator.run({f"x{i}": x for i, x in enumerate(inputs)}, steps)
    return Ran(
        {c.name: np.asarray(results[f"result_{i}"]) for i, c in enumerate(CASES)},
        operations,
        request.param == "FLOAT16",
    )


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_an_operation_equals_torch(ran: Ran, case: Case) -> None:
    have = ran.values[case.name]
    want = np.asarray(case.expected(*(torch.from_numpy(x) for x in case.inputs)))
    assert have.shape == want.shape
    half = ran.half
    size = max(1.0, float(np.abs(want).max()))
    if want.dtype.kind == "f":
        gap = np.abs(have.astype(np.float64) - want).max() / size
        # in fp16 an input beside a step (ceil, quantize) may fall on its other side
        step = {"quantize": 1 / size, "dequantize": 0.021 / size, "ceil": 1, "floor": 1, "round": 1}.get(case.op, 0)
        assert gap <= (5e-3 + step if half else 1e-5)
    else:
        assert np.abs(have.astype(np.int64) - want.astype(np.int64)).max() <= (half and case.op in ("quantize", "cast"))


def test_the_converter_left_every_operation_in_the_program(ran: Ran) -> None:
    assert {c.op for c in CASES} <= ran.operations


def test_every_operation_of_the_table_has_a_case() -> None:
    elsewhere = {"classify", "identity", *(k for k in KERNELS if k.startswith("constexpr_"))}
    assert set(KERNELS) - elsewhere == {c.op for c in CASES}


def test_pi_is_not_rounded_twice(build_program: Callable[..., Path]) -> None:
    """One operation sums in float32 and rounds once, where fp16 arithmetic would round at every step."""
    path = build_program([(1, 2048)], lambda mb, x: mb.reduce_sum(x=x, axes=[1]), precision="FLOAT16")
    value = np.full((1, 2048), math.pi, np.float32)
    (result,) = Evaluator(path).run({"x0": value}).values()
    want = 2048 * float(np.float16(math.pi))
    assert abs(float(np.asarray(result)[0]) - want) <= np.spacing(np.float16(want)) / 2


def test_the_error_function_is_exact_to_float32(build_program: Callable[..., Path]) -> None:
    x = np.concatenate([np.linspace(-7, 7, 20_001), np.geomspace(1e-30, 1, 1000), [0, 1e30, np.inf, np.nan]])
    x = np.concatenate([x, -x]).astype(np.float32)
    (have,) = Evaluator(build_program([x.shape], lambda mb, x: mb.erf(x=x))).run({"x0": x}).values()
    have, want = np.asarray(have), np.array([math.erf(v) for v in x.tolist()])
    np.testing.assert_allclose(have, want, rtol=1e-6, atol=1e-37)
    np.testing.assert_array_equal(have[len(x) // 2 :], -have[: len(x) // 2])


@settings(max_examples=25)
@given(st.data())
def test_einstein_sums_of_any_two_arrays_equal_numpys(data: st.DataObject) -> None:
    """Straight at the kernel: coremltools' builder writes a few equations only, a file may hold others."""
    sides = [data.draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True)) for _ in range(2)]
    every = sorted({letter for side in sides for letter in side})
    out = data.draw(st.lists(st.sampled_from(every), max_size=len(every), unique=True))
    sizes = {t: data.draw(st.integers(1, 3)) for t in every}
    a, b = (np.random.default_rng(0).integers(-3, 4, [sizes[t] for t in side]).astype(np.float32) for side in sides)
    equation = f"{''.join(sides[0])},{''.join(sides[1])}->{''.join(out)}"
    found = KERNELS["einsum"].function(values=(a, b), equation=equation)
    np.testing.assert_array_equal(found, np.einsum(equation, a, b))


@pytest.mark.parametrize("equation", ["aa,ab->b", "ab,bc->ad", "ab,bc", "a1,1b->ab", "ab,bc,cd->ad"])
def test_einstein_sums_of_another_kind_are_refused(equation: str) -> None:
    with pytest.raises(ValueError):
        KERNELS["einsum"].function(values=(np.ones((2, 2), np.float32),) * 2, equation=equation)


def test_negative_indices_count_from_the_end_before_ios_17_only() -> None:
    """Straight at the kernel: coremltools' builder writes programs that add to a negative index themselves."""
    table, gather = np.arange(6.0).reshape(3, 2), KERNELS["gather"].function
    np.testing.assert_array_equal(gather(table, np.array([-1]), opset=6), [[4, 5]])
    for index, opset in ((-1, 7), (3, 7), (-4, 6), (3, 6)):
        with pytest.raises(IndexError, match="outside a table of 3"):
            gather(table, np.array([index]), opset=opset)
