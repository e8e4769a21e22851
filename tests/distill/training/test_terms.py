from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.distill.losses.common import Term, count_items, count_rows, scale_partial_mean, to_terms

PARTS = st.lists(st.lists(st.floats(-100, 100), max_size=6), min_size=1, max_size=6).filter(any)


@given(PARTS)
def test_shares_of_parts_add_up_to_the_mean_of_the_whole(parts: list[list[float]]) -> None:
    whole = [value for part in parts for value in part]
    made = [scale_partial_mean(torch.tensor(part, dtype=torch.float64).mean(), len(part), len(whole)) for part in parts]
    assert float(sum(made)) == pytest.approx(sum(whole) / len(whole), abs=1e-9)


def test_a_part_that_is_the_whole_is_untouched() -> None:
    mean = torch.tensor(0.1, requires_grad=True)
    assert scale_partial_mean(mean, 3.0, 3.0) is mean


@pytest.mark.parametrize("whole", [0.0, 5.0])
def test_a_part_without_items_adds_nothing_and_no_gradient(whole: float) -> None:
    values = torch.zeros(0, requires_grad=True)
    nothing = scale_partial_mean(values.mean(), 0.0, whole)
    assert math.isnan(float(values.detach().mean()))
    assert float(nothing) == 0.0
    assert not nothing.requires_grad


def test_a_plain_tensor_is_a_mean_over_rows() -> None:
    given_term = Term.of(torch.tensor(2.0), 7)
    terms = to_terms({"a": torch.tensor(1.0), "b": given_term}, 4)
    assert float(terms["a"].count) == 4
    assert terms["b"] is given_term
    assert not Term.of(torch.tensor(1.0), torch.tensor(3.0, requires_grad=True)).count.requires_grad


def test_what_an_objective_does_not_count_is_rows() -> None:
    class Counts:
        def counts(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {"tokens": batch["mask"].sum()}

    batch = {"mask": torch.tensor([[1, 1, 0], [1, 0, 0]])}
    assert count_items(Counts(), ["tokens", "labels"], batch) == {"tokens": 3.0, "labels": 2.0}
    assert count_items(object(), ["tokens"], batch) == {"tokens": 2.0}


def test_a_batch_that_has_no_rows_first_is_refused() -> None:
    with pytest.raises(ValueError, match="'a': 2, 'b': 3"):
        count_rows({"a": torch.zeros(2), "b": torch.zeros(3)})
