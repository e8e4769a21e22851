from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pocketbert.distill.losses.common import (
    Term,
    count_items,
    count_rows,
    divergence_sum,
    hidden_mse,
    mean_over_layers,
    scale_partial_mean,
    sum_over_layers,
    to_terms,
)

PARTS = st.lists(st.lists(st.floats(-100, 100), max_size=6), min_size=1, max_size=6).filter(any)


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 3


# --- terms ------------------------------------------------------------------------------------------------------------


@settings(max_examples=10)
@given(PARTS)
def test_shares_of_parts_add_up_to_the_mean_of_the_whole(parts: list[list[float]]) -> None:
    whole = [value for part in parts for value in part]
    made = [scale_partial_mean(torch.tensor(part, dtype=torch.float64).mean(), len(part), len(whole)) for part in parts]
    assert float(sum(made)) == pytest.approx(sum(whole) / len(whole), abs=1e-9)


def test_a_part_that_is_the_whole_is_untouched_and_one_without_items_adds_nothing() -> None:
    mean = torch.tensor(0.1, requires_grad=True)
    assert scale_partial_mean(mean, 3.0, 3.0) is mean
    for whole in (0.0, 5.0):
        nothing = scale_partial_mean(torch.zeros(0, requires_grad=True).mean(), 0.0, whole)  # of a NaN
        assert float(nothing) == 0.0 and not nothing.requires_grad


def test_what_is_no_term_and_is_not_counted_is_a_mean_over_rows() -> None:
    class Counts:
        def counts(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
            return {"tokens": batch["mask"].sum()}

    own = Term.of(torch.tensor(2.0), torch.tensor(7.0, requires_grad=True))
    terms = to_terms({"a": torch.tensor(1.0), "b": own}, 4)
    assert float(terms["a"].count) == 4 and terms["b"] is own and not own.count.requires_grad
    batch = {"mask": torch.tensor([[1, 1, 0], [1, 0, 0]])}
    assert count_items(Counts(), ["tokens", "labels"], batch) == {"tokens": 3.0, "labels": 2.0}
    assert count_items(object(), ["tokens"], batch) == {"tokens": 2.0}
    with pytest.raises(ValueError, match="'a': 2, 'b': 3"):
        count_rows({"a": torch.zeros(2), "b": torch.zeros(3)})


@pytest.mark.parametrize(("combine", "wanted"), [(mean_over_layers, 2.0), (sum_over_layers, 4.0)])
def test_layers_are_combined_and_none_are_refused(combine: object, wanted: float) -> None:
    assert float(combine([torch.tensor(1.0), torch.tensor(3.0)])) == wanted
    with pytest.raises(ValueError, match="no signal was captured"):
        combine([])


# --- divergences and squared errors -----------------------------------------------------------------------------------


def naive_divergence(student: Tensor, teacher: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """As autograd computes it."""
    log_s, log_t = (F.log_softmax(x / temperature, -1) for x in (student, teacher))
    rows = F.kl_div(log_s, log_t, reduction="none", log_target=True).sum(-1)
    return (rows * weight).sum()


@pytest.mark.parametrize(
    ("rows", "classes", "temperature"), [(1, 1, 1.0), (9, 7, 0.5), (9, 7, 1.0), (9, 7, 2.0), (40, 30_000, 2.0)]
)
def test_a_weighted_divergence_has_autograds_value_and_gradient(rows: int, classes: int, temperature: float) -> None:
    student, teacher = draw(0, rows, classes).requires_grad_(), draw(1, rows, classes)
    weight = torch.arange(rows, dtype=torch.float64) / 2  # the first row counts nothing
    ours = divergence_sum(student, teacher, weight, temperature)
    theirs = naive_divergence(student, teacher, weight, temperature)
    (gradient,), (wanted,) = (torch.autograd.grad(5 * value, student) for value in (ours, theirs))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradient, wanted)
    assert not gradient[0].any()


def test_weights_of_a_divergence_expand_over_heads_and_no_rows_are_0() -> None:
    student, teacher = draw(0, 2, 3, 4, 4), draw(1, 2, 3, 4, 4)
    weight = torch.tensor([[1.0, 1, 1, 0], [1, 1, 0, 0]], dtype=torch.float64)[:, None, :]
    torch.testing.assert_close(
        divergence_sum(student, teacher, weight), naive_divergence(student, teacher, weight, 1.0)
    )
    none = torch.zeros(0, 5, requires_grad=True)
    total = divergence_sum(none, torch.zeros(0, 5))
    total.backward()
    assert float(total.detach()) == 0 and none.grad is not None and none.grad.shape == (0, 5)


def test_a_mean_of_millions_of_squares_is_as_exact_as_float32() -> None:
    student, teacher = (draw(seed, 8, 512, 512, dtype=torch.float32) for seed in (0, 1))
    wanted = (student.double() - teacher.double()).square().mean()
    assert float(hidden_mse(student, teacher, torch.ones(8, 512))) == pytest.approx(float(wanted), rel=1e-6)
