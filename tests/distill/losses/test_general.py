from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.distill.losses.tokens import cosine_distance, masked_lm, token_soft_targets

Array = NDArray[np.float64]
SEEDS = st.integers(0, 10_000)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 2


def log_softmax(x: Array) -> Array:
    shifted = x - x.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def wide(x: Tensor) -> Array:
    return x.double().numpy()


@given(SEEDS, st.sampled_from([1.0, 2.0, 4.0]))
def test_token_soft_targets(seed: int, temperature: float) -> None:
    student, teacher = draw(seed, 7, 30), draw(seed + 1, 7, 30)
    log_s, log_t = log_softmax(wide(student) / temperature), log_softmax(wide(teacher) / temperature)
    wanted = temperature**2 * (np.exp(log_t) * (log_t - log_s)).sum(-1).mean()
    term = token_soft_targets(student, teacher, temperature)
    assert float(term.mean) == pytest.approx(wanted, rel=1e-6, abs=1e-6)
    assert float(term.count) == 7


@given(SEEDS)
def test_masked_lm(seed: int) -> None:
    logits = draw(seed, 9, 30)
    labels = torch.randint(0, 30, (9,), generator=torch.Generator().manual_seed(seed))
    labels[[0, 4, 5]] = -100
    kept = [1, 2, 3, 6, 7, 8]
    wanted = -log_softmax(wide(logits))[kept, labels[kept].numpy()].mean()
    term = masked_lm(logits, labels)
    assert float(term.mean) == pytest.approx(wanted, rel=1e-6, abs=1e-6)
    assert float(term.count) == 6


@given(SEEDS)
def test_cosine_distance_counts_real_tokens_only(seed: int) -> None:
    student, teacher = draw(seed, 3, 5, 8), draw(seed + 1, 3, 5, 8)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 1, 1, 0]])
    a, b = wide(student), wide(teacher)
    cosine = (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    wanted = (1 - cosine)[mask.numpy() == 1].mean()
    term = cosine_distance(student, teacher, mask)
    assert float(term.mean) == pytest.approx(wanted, rel=1e-6, abs=1e-6)
    assert float(term.count) == 10


@given(SEEDS)
def test_gradient_of_the_cosine_term_is_that_of_the_formula(seed: int) -> None:
    teacher, mask = draw(seed + 1, 2, 3, 8), torch.ones(2, 3)
    ours, theirs = (draw(seed, 2, 3, 8).requires_grad_() for _ in range(2))
    cosine_distance(ours, teacher, mask).mean.backward()
    (1 - torch.nn.functional.cosine_similarity(theirs, teacher, dim=-1)).mean().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def test_equal_states_and_logits_cost_exactly_nothing() -> None:
    states, logits = draw(0, 4, 6, 16) * 1e3, draw(1, 5, 40)
    assert float(cosine_distance(states, states.clone(), torch.ones(4, 6)).mean) == 0
    assert abs(float(token_soft_targets(logits, logits.clone(), 2.0).mean)) <= 1e-7
    assert float(cosine_distance(states, -states, torch.ones(4, 6)).mean) == pytest.approx(2, rel=1e-6)
    assert float(cosine_distance(states, 3 * states, torch.ones(4, 6)).mean) == pytest.approx(0, abs=1e-7)


def test_a_mean_over_no_token_is_zero_with_a_zero_gradient() -> None:
    logits, states = torch.zeros(0, 40, requires_grad=True), draw(0, 1, 3, 8).requires_grad_()
    terms = [
        token_soft_targets(logits, torch.zeros(0, 40), 2.0),
        masked_lm(logits, torch.zeros(0, dtype=torch.long)),
        cosine_distance(states, draw(1, 1, 3, 8), torch.zeros(1, 3)),
    ]
    assert [float(t.count) for t in terms] == [0, 0, 0]
    total = torch.stack([t.mean for t in terms]).sum()
    total.backward()
    assert float(total.detach()) == 0
    assert states.grad is not None and not states.grad.any()
