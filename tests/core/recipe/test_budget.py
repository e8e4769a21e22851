"""Limits of files: wrong units, unknown names and missing values are refused, all at once."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from pocketbert.core.errors import InputError
from pocketbert.core.recipe.budget import BudgetSection, parse_budget


def test_limits_are_read_and_written_as_the_command_line_takes_them() -> None:
    budget = parse_budget(["max_drop=0.01", " max_size_mb = 8 "], "--budget")
    assert budget.set_limits == {"max_drop": 0.01, "max_size_mb": 8.0}
    assert budget.text == "max_drop=0.01,max_size_mb=8"
    assert not budget.smallest_wins
    assert parse_budget(["max_drop=0.01"], "--budget").smallest_wins
    assert BudgetSection(max_drop=0.01, max_size_mb=8) == budget


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_drop=1", "0.01 is one point. For 1 point write 0.01"),
        ("max_drop=2", "200 points: it is a fraction, 0.01 is one point. For 2 points write 0.02"),
        ("max_drop=0.5", "For 0.5 points write 0.005"),
        ("max_drop=-0.01", "it is the loss that is allowed"),
        ("max_size_mb=8000000", "for 8,000,000 bytes write 8"),
        ("max_size_mb=0", "not above 0"),
        ("max_p90_ms=5000000", "for 5,000,000 microseconds write 5000"),
        ("max_p90_ms=0.005", "0.005 ms is less than any encoder takes: for 0.005 seconds write 5"),
        ("max_size_mb=13500000", "13,500,000 MB is no phone file: for 13,500,000 bytes write 13.5"),
        ("max_p90_ms=5ms", "units are part of the name"),
        ("max_drop=nan", "max_drop=nan is not a number"),
        ("max_drop", "max_drop has no value"),
        ("max_size_mb=", "max_size_mb has no value"),
        ("max_dorp=0.01", "did you mean 'max_drop'?"),
        ("", "is no limit"),
    ],
)
def test_a_wrong_limit_is_refused_with_the_reason(text: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_budget([text], "--budget")
    assert told in str(caught.value), str(caught.value)
    assert all(p.where.startswith("--budget") for p in caught.value.problems)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        parse_budget(["max_drop=2", "max_size_mb=8000000", "size=3", "max_p90_ms", "max_drop=0.1"], "--budget")
    told = str(caught.value)
    assert len(caught.value.problems) == 5, told
    for part in ("2 points", "8,000,000 bytes", "'size' is no limit", "max_p90_ms has no value", "given twice"):
        assert part in told


def test_a_budget_without_limits_is_none() -> None:
    with pytest.raises(ValidationError, match="no limit is set"):
        BudgetSection()
