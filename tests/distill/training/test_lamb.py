from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from pocketbert.distill.training.checkpoints import load_checkpoint, save_checkpoint
from pocketbert.distill.training.optimizer import Lamb
from pocketbert.distill.training.progress import Progress

Array = NDArray[np.float64]
SHAPES: tuple[tuple[int, ...], ...] = ((4, 3), (3,), (2, 3, 5), (6,))


def parameters(seed: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=random, dtype=dtype)) for shape in SHAPES]


def gradients(seed: int, steps: int) -> list[list[torch.Tensor]]:
    random = torch.Generator().manual_seed(seed)
    return [[torch.randn(shape, generator=random) * 3**n for n, shape in enumerate(SHAPES)] for _ in range(steps)]


def follow(optimizer: Lamb, params: Sequence[nn.Parameter], given: Sequence[Sequence[torch.Tensor]]) -> None:
    for each in given:
        for parameter, gradient in zip(params, each, strict=True):
            parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()


def as_published(start: Array, given: Sequence[Array], lr: float, decay: float, adapted: bool) -> Array:
    """Algorithm 2 without bias correction, one parameter alone, in float64."""
    x, m, v = start.copy(), np.zeros_like(start), np.zeros_like(start)
    for g in given:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        update = m / (np.sqrt(v) + 1e-6) + decay * x
        size, length = float(np.sqrt((x**2).sum())), float(np.sqrt((update**2).sum()))
        x = x - lr * (size / length if adapted and size > 0 and length > 0 else 1.0) * update
    return x


def grouped(params: Sequence[nn.Parameter]) -> list[dict[str, Any]]:
    """Rates and decays of their own for three groups."""
    return [
        {"params": [params[0]], "lr": 3e-2, "weight_decay": 0.01},
        {"params": [params[2]], "lr": 3e-3, "weight_decay": 0.1},
        {"params": [params[1], params[3]], "lr": 1e-2, "weight_decay": 0.0},
    ]


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_it_is_the_published_update(seed: int, steps: int) -> None:
    params, given = parameters(seed, torch.float64), gradients(seed + 1, steps)
    starts = [p.detach().numpy().copy() for p in params]
    follow(Lamb(grouped(params)), params, given)
    rates = [(3e-2, 0.01), (1e-2, 0.0), (3e-3, 0.1), (1e-2, 0.0)]
    for n, (parameter, start, (lr, decay)) in enumerate(zip(params, starts, rates, strict=True)):
        mine = [np.asarray(each[n].double().numpy()) for each in given]
        wanted = as_published(start, mine, lr, decay, adapted=parameter.ndim > 1)
        np.testing.assert_allclose(parameter.detach().numpy(), wanted, rtol=1e-10)


def test_single_precision_stays_close() -> None:
    low, high, given = parameters(0), parameters(0, torch.float64), gradients(1, 20)
    with torch.no_grad():
        for a, b in zip(low, high, strict=True):
            b.copy_(a)
    follow(Lamb(grouped(low)), low, given)
    follow(Lamb(grouped(high)), high, given)
    for a, b in zip(low, high, strict=True):
        torch.testing.assert_close(a.detach().double(), b.detach(), rtol=1e-4, atol=1e-5)


def test_a_matrix_moves_by_the_rate_in_parts_of_itself() -> None:
    params = parameters(3)
    before = [p.detach().clone() for p in params]
    follow(Lamb(params, lr=0.02, weight_decay=0.0), params, gradients(4, 1))
    for parameter, old in zip(params, before, strict=True):
        moved = float((parameter.detach() - old).norm() / old.norm())
        if parameter.ndim > 1:
            assert moved == pytest.approx(0.02, rel=1e-4)
        else:  # sqrt(10), the first update without bias correction
            np.testing.assert_allclose((parameter - old).abs().detach(), 0.02 * 10**0.5, rtol=1e-3)


def test_what_is_0_has_a_ratio_of_1_and_stays_finite() -> None:
    zero, still = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.ones(2, 2))
    zero.grad, still.grad = torch.full((2, 2), 5.0), torch.zeros(2, 2)
    Lamb([zero, still], lr=0.1, weight_decay=0.0).step()
    np.testing.assert_allclose(zero.detach(), -0.1 * 10**0.5, rtol=1e-4)
    assert torch.equal(still.detach(), torch.ones(2, 2))


def test_parameters_without_gradient_are_left_alone() -> None:
    params = parameters(5)
    before = params[0].detach().clone()
    optimizer = Lamb(params, lr=0.1)
    for parameter in params[1:]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert torch.equal(params[0].detach(), before)
    assert params[0] not in optimizer.state


def equal_states(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
    return all(torch.equal(one[k][f], other[k][f]) for k in one for f in ("step", "exp_avg", "exp_avg_sq"))


def test_a_saved_state_goes_on_exactly() -> None:
    params, given = parameters(6), gradients(7, 8)
    optimizer = Lamb(grouped(params))
    follow(optimizer, params, given[:5])
    saved, copies = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(params)
    follow(optimizer, params, given[5:])
    other = Lamb(grouped(copies), lr=9.0)
    other.load_state_dict(saved)
    follow(other, copies, given[5:])
    assert all(torch.equal(a, b) for a, b in zip(params, copies, strict=True))
    assert equal_states(optimizer.state_dict()["state"], other.state_dict()["state"])


def test_the_runs_checkpoints_hold_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer, x = Lamb(model.parameters(), lr=0.1), torch.randn(5, 3)

    def step(network: nn.Module, by: Lamb) -> None:
        network(x).square().sum().backward()
        by.step()
        by.zero_grad()

    for _ in range(3):
        step(model, optimizer)
    save_checkpoint(tmp_path, Progress(step=3, history=[], pending={}), model, optimizer)
    other = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    resumed = Lamb(other.parameters(), lr=0.1)
    assert load_checkpoint(tmp_path, other, resumed) is not None
    step(model, optimizer)
    step(other, resumed)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert float(next(iter(resumed.state.values()))["step"]) == 4


def test_a_closure_is_called_with_gradients() -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = Lamb([weight], lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert float(optimizer.step(closure).detach()) == 4.0
    assert float(weight.detach().square().sum()) < 4.0


def test_wrong_settings_are_refused_together() -> None:
    with pytest.raises(ValueError, match=r"lr is -1.*betas is \(0.9, 1.0\).*eps is 0.*weight_decay is -0.1"):
        Lamb(parameters(0), lr=-1, betas=(0.9, 1.0), eps=0, weight_decay=-0.1)
