from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from pocketbert.core.recipe.sections import Optimisation
from pocketbert.core.types import Schedule
from pocketbert.distill.training.optimizer import AdamWCourse, Lamb

Array = NDArray[np.float64]
SHAPES: tuple[tuple[int, ...], ...] = ((4, 3), (3,), (2, 3, 5), (6,))


# --- AdamW ------------------------------------------------------------------------------------------------------------


def learning_rates(plan: Optimisation, steps: range) -> list[float]:
    course, optimizer = AdamWCourse(plan), torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.0)
    return [course.prepare(optimizer, step) for step in steps]


def test_a_constant_rate_stays_after_its_warm_up():
    plan = Optimisation(steps=10, lr=1e-3, warmup=0.2, schedule=Schedule.CONSTANT)
    assert learning_rates(plan, range(10)) == pytest.approx([5e-4, *[1e-3] * 9])


@settings(max_examples=25)
@given(st.integers(1, 500), st.floats(0, 1), st.floats(1e-6, 1))
def test_the_learning_rate_rises_and_falls_to_zero(steps, warmup, peak):
    plan = Optimisation(steps=steps, warmup=warmup, lr=peak)
    *rates, behind_the_last = learning_rates(plan, range(steps + 1))
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert max(rates) == pytest.approx(peak)
    assert min(rates) > 0
    assert behind_the_last == pytest.approx(0.0) or round(warmup * steps) >= steps


def test_biases_and_norms_do_not_decay_and_frozen_weights_are_left_out():
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 2).requires_grad_(False))
    optimizer = AdamWCourse(Optimisation(steps=1, weight_decay=0.3, beta2=0.9, eps=1e-5)).optimizer(model)
    assert [(len(g["params"]), g["weight_decay"]) for g in optimizer.param_groups] == [(1, 0.3), (3, 0.0)]
    assert {(g["betas"], g["eps"]) for g in optimizer.param_groups} == {((0.9, 0.9), 1e-5)}


# --- LAMB -------------------------------------------------------------------------------------------------------------


def draw_parameters(seed: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=random, dtype=dtype)) for shape in SHAPES]


def draw_gradients(seed: int, steps: int) -> list[list[torch.Tensor]]:
    random = torch.Generator().manual_seed(seed)
    return [[torch.randn(shape, generator=random) * 3**n for n, shape in enumerate(SHAPES)] for _ in range(steps)]


def follow(optimizer: Lamb, params: Sequence[nn.Parameter], gradients: Sequence[Sequence[torch.Tensor]]) -> None:
    for each in gradients:
        for parameter, gradient in zip(params, each, strict=True):
            parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()


def group_parameters(params: Sequence[nn.Parameter]) -> list[dict[str, Any]]:
    """Rates and decays of their own for three groups."""
    return [
        {"params": [params[0]], "lr": 3e-2, "weight_decay": 0.01},
        {"params": [params[2]], "lr": 3e-3, "weight_decay": 0.1},
        {"params": [params[1], params[3]], "lr": 1e-2, "weight_decay": 0.0},
    ]


def published_update(start: Array, gradients: Sequence[Array], lr: float, decay: float, adapted: bool) -> Array:
    """Algorithm 2 without bias correction, one parameter alone, in float64."""
    x, m, v = start.copy(), np.zeros_like(start), np.zeros_like(start)
    for g in gradients:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        update = m / (np.sqrt(v) + 1e-6) + decay * x
        size, length = float(np.sqrt((x**2).sum())), float(np.sqrt((update**2).sum()))
        x = x - lr * (size / length if adapted and size > 0 and length > 0 else 1.0) * update
    return x


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_lamb_is_the_published_update(seed, steps):
    params, gradients = draw_parameters(seed, torch.float64), draw_gradients(seed + 1, steps)
    starts = [p.detach().numpy().copy() for p in params]
    follow(Lamb(group_parameters(params)), params, gradients)
    rates = [(3e-2, 0.01), (1e-2, 0.0), (3e-3, 0.1), (1e-2, 0.0)]
    for n, (parameter, start, (lr, decay)) in enumerate(zip(params, starts, rates, strict=True)):
        mine = [np.asarray(each[n].double().numpy()) for each in gradients]
        wanted = published_update(start, mine, lr, decay, adapted=parameter.ndim > 1)
        np.testing.assert_allclose(parameter.detach().numpy(), wanted, rtol=1e-10)


def test_what_is_0_has_a_ratio_of_1_and_stays_finite():
    zero, still = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.ones(2, 2))
    zero.grad, still.grad = torch.full((2, 2), 5.0), torch.zeros(2, 2)
    Lamb([zero, still], lr=0.1, weight_decay=0.0).step()
    np.testing.assert_allclose(zero.detach(), -0.1 * 10**0.5, rtol=1e-4)
    assert torch.equal(still.detach(), torch.ones(2, 2))
