"""Overflow is found where it starts, ranges are those of the values, rounding errors are put to operations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketbert.runtime.coreml.evaluator import Evaluator, Step
from pocketbert.runtime.coreml.scan import Scan, activation_statistics, layer_differences, overflow_scan
from pocketbert.runtime.coreml.types import Dtype

WEIGHT = np.array([[100, 0], [0, 1]], np.float32)


def body(mb: Any, x: Any) -> Any:
    wide = mb.linear(x=x, weight=WEIGHT, bias=np.zeros(2, np.float32), name="wide")
    squared = mb.mul(x=wide, y=wide, name="squared")
    return mb.mul(x=mb.rsqrt(x=squared, epsilon=1.0), y=wide, name="normal")


@pytest.fixture(scope="module")
def half(build_program: Callable[..., Path]) -> Path:
    return build_program([(1, 2)], body, precision="FLOAT16")


def inputs(*values: float) -> dict[str, np.ndarray]:
    return {"x0": np.array([values], np.float32)}


def named(scan: Scan, start: str) -> Any:
    return next(r for r in scan.ranges if r.output.startswith(start))


def test_a_planted_overflow_is_found_where_it_starts(half: Path) -> None:
    scan = overflow_scan(half, [inputs(1, 1), inputs(3, 2)])
    assert scan.rows == 2 and scan.first is not None
    assert scan.first.output.startswith("squared") and scan.first.op_type in ("mul", "square")
    assert scan.first.largest == 90_000 and scan.first.headroom < 1
    assert scan.first.broken == 0 and scan.first.broken_declared == 1
    assert "squared" in scan.summary and "9e+04" in scan.summary and "65504" in scan.summary


def test_without_overflow_the_margin_and_numbers_below_fp16_are_told(half: Path) -> None:
    scan = overflow_scan(half, [inputs(1, 1e-5), inputs(2, 0)])  # 1e-10 after squaring; zero is no number that is lost
    assert scan.first is None and scan.largest is not None
    assert scan.largest.largest == 40_000 and scan.largest.output.startswith("squared")
    assert "largest magnitude 4e+04" in scan.summary
    assert (named(scan, "squared").underflow, named(scan, "wide").underflow) == (pytest.approx(1 / 3), 0)


def test_fp32_results_may_be_large_but_not_broken(build_program: Callable[..., Path]) -> None:
    single = build_program([(1, 2)], body)
    assert overflow_scan(single, [inputs(3, 2)]).first is None
    assert named(overflow_scan(single, [inputs(3, 2)]), "squared").declared is Dtype.FP32
    broken = build_program([(1, 2)], lambda mb, x: mb.relu(x=mb.log(x=x, name="logarithm")))
    scan = overflow_scan(broken, [inputs(1, -1)])
    assert scan.first is not None and scan.first.output == "logarithm" and scan.first.broken == 1
    assert "NaN" in scan.summary


def test_statistics_are_those_of_all_values(bert16: Path, batch: Callable[..., dict[str, np.ndarray]]) -> None:
    rows = [batch(n, seed=n) for n in (8, 16, 24)]
    found = activation_statistics(bert16, iter(rows))
    values: dict[str, list[np.ndarray]] = {}

    def keep(step: Step) -> None:
        if step.output in found:
            values.setdefault(step.output, []).append(np.asarray(step.value, np.float64).ravel())

    for row in rows:
        Evaluator(bert16).run(row, keep)
    assert list(found) == list(values)
    for name, statistic in found.items():
        every = np.concatenate(values[name])
        assert (statistic.minimum, statistic.maximum, statistic.count) == (
            every.min(),
            every.max(),
            every.size,
        )
        assert statistic.mean_abs == pytest.approx(np.abs(every).mean(), rel=1e-6)


def test_differences_name_the_operation_that_loses_precision(build_program: Callable[..., Path]) -> None:
    def cancels(mb: Any, x: Any) -> Any:
        moved = mb.add(x=x, y=np.full((1, 64), 1000, np.float32), name="moved")
        return mb.tanh(x=mb.sub(x=moved, y=np.full((1, 64), 1000.5, np.float32), name="back"), name="end")

    path = build_program([(1, 64)], cancels, precision="FLOAT16")
    found = layer_differences(path, {"x0": np.linspace(-1, 1, 64, dtype=np.float32)[None]})
    assert found[0].output.startswith("back") and found[0].relative > 0.05
    by_name = {d.output.split("_cast")[0]: d for d in found}
    assert by_name["moved"].relative < 1e-3 and by_name["end"].growth < found[0].growth
    assert [d.growth for d in found] == sorted((d.growth for d in found), reverse=True)


def test_two_packages_are_compared_by_names(build_program: Callable[..., Path]) -> None:
    def model(scale: float) -> Path:
        weight = (np.eye(4) * scale).astype(np.float32)
        return build_program([(1, 4)], lambda mb, x: mb.relu(x=mb.linear(x=x, weight=weight, name="inner"), name="out"))

    found = layer_differences(model(1.5), {"x0": np.ones((1, 4), np.float32)}, model(1.0))
    assert found[0].output == "inner" and found[0].relative == pytest.approx(0.5) and found[0].largest == 0.5
    assert found[1].growth == pytest.approx(0)
