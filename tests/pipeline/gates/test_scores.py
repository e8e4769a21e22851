"""The gates that compare scores, each closed by a score that is too low."""

from __future__ import annotations

import pytest

from pocketbert.core.predict.scores import Score
from pocketbert.pipeline.gates.checks import check_chance, check_drop, check_kept


def score(value: float, chance: float = 0.5, finite: bool = True) -> Score:
    return Score(metric="accuracy", value=value, others={}, rows=1000, chance=chance, finite=finite)


@pytest.mark.parametrize(("value", "passed"), [(0.90, True), (0.855, True), (0.854, False), (float("nan"), False)])
def test_kept(value: float, passed: bool) -> None:
    gate = check_kept("file", score(value), score(0.90), 0.95)
    assert gate.passed is passed
    assert "required 95.0%" in gate.detail


@pytest.mark.parametrize(("value", "passed"), [(0.95, True), (0.89, True), (0.88, False), (float("nan"), False)])
def test_drop(value: float, passed: bool) -> None:
    assert check_drop("file", score(value), score(0.90), 0.0101, "fp32").passed is passed


@pytest.mark.parametrize(("value", "finite", "passed"), [(0.51, True, True), (0.5, True, False), (0.9, False, False)])
def test_chance(value: float, finite: bool, passed: bool) -> None:
    assert check_chance("file", score(value, finite=finite), "eval").passed is passed
