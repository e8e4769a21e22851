from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pocketbert.distill.losses.common import soft_targets
from pocketbert.distill.losses.tokens import SparseLogits, draw_uniform_numbers, sparse_token_soft_targets, sparsify

V = 60
SEEDS = st.integers(0, 10_000)
TEMPERATURES = st.sampled_from([0.5, 1.0, 2.0, 4.0])


def sparse_kl(student: Tensor, teacher: SparseLogits) -> Tensor:
    return sparse_token_soft_targets(student, teacher).mean


def draw(seed: int, *shape: int, scale: float = 1.5) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def none(rows: int) -> Tensor:
    return torch.empty(rows, 0)


def many(teacher: Tensor, k: int, samples: int, temperature: float, times: int = 4000, seed: int = 0) -> SparseLogits:
    """As many independent sparse copies of one distribution [V]."""
    draws = draw_uniform_numbers(times, samples, seed, 0, 0)
    return sparsify(teacher.expand(times, -1), k, draws, temperature)


def dense(sparse: SparseLogits) -> Tensor:
    """Estimated distributions, [N, V]."""
    return torch.zeros(len(sparse), sparse.vocabulary).scatter_add(1, sparse.ids.long(), sparse.weights)


def within(samples: Tensor, wanted: Tensor, sigmas: float = 4.0) -> Tensor:
    """Whether means over the first dimension are within so many standard errors."""
    error = samples.std(0) / math.sqrt(len(samples))
    return (samples.mean(0) - wanted).abs() <= sigmas * error + 1e-5


@given(SEEDS, TEMPERATURES, st.integers(1, 6))
def test_all_tokens_kept_is_exact(seed: int, temperature: float, samples: int) -> None:
    teacher, student = draw(seed, 7, V), draw(seed + 1, 7, V)
    for draws in (none(7), draw_uniform_numbers(7, samples, seed, 0, 0)):
        sparse = sparsify(teacher, V, draws, temperature)
        torch.testing.assert_close(
            sparse_kl(student, sparse), soft_targets(student, teacher, temperature), rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(dense(sparse), (teacher / temperature).softmax(-1), rtol=1e-5, atol=1e-6)


@given(SEEDS, TEMPERATURES, st.integers(0, 8), st.integers(1, 20))
def test_weights_are_a_distribution_with_the_top_exact(seed: int, temperature: float, k: int, samples: int) -> None:
    teacher = draw(seed, 5, V)
    p = (teacher / temperature).softmax(-1)
    sparse = sparsify(teacher, k, draw_uniform_numbers(5, samples, seed, 3, 1), temperature)
    assert sparse.ids.dtype == torch.int32 and sparse.ids.shape == sparse.weights.shape == (5, k + samples)
    torch.testing.assert_close(sparse.weights.sum(-1), torch.ones(5))
    torch.testing.assert_close(sparse.weights[:, :k], p.topk(k).values)
    torch.testing.assert_close(sparse.negative_entropy, (p * p.log()).sum(-1))
    for ids, weights in zip(sparse.ids.tolist(), sparse.weights.tolist(), strict=True):
        used = [i for i, w in zip(ids, weights, strict=True) if w > 0]
        assert len(set(used)) == len(used)  # merged, and none of the top among the sampled


@pytest.mark.parametrize("samples", [1, 3, 16])
@pytest.mark.parametrize("k", [0, 2, 8])
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_every_probability_is_unbiased(k: int, samples: int, temperature: float) -> None:
    teacher = draw(k + samples, V)
    found = dense(many(teacher, k, samples, temperature))
    p = (teacher / temperature).softmax(-1)
    rest = 1 - p.topk(k).values.sum()
    # of independent draws, as known beforehand: a rare token may not turn up at all
    sigma = (p * (rest - p).clip(0) / samples / len(found)).sqrt()
    assert ((found.mean(0) - p).abs() <= 4 * sigma + 1e-6).all()


def per_position_kl(student: Tensor, sparse: SparseLogits) -> Tensor:
    """The divergence at each position by itself, [N]."""
    log_p = (student / sparse.temperature).log_softmax(-1)
    sums = (sparse.weights * log_p[sparse.ids.long()]).sum(-1)
    return sparse.temperature**2 * (sparse.negative_entropy - sums)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_loss_is_unbiased_and_without_samples_it_is_not(temperature: float) -> None:
    teacher, student = draw(0, V), draw(1, V)
    wanted = soft_targets(student[None], teacher[None], temperature)
    sampled = many(teacher, 4, 8, temperature)
    each = per_position_kl(student, sampled)
    torch.testing.assert_close(sparse_kl(student.expand(len(sampled), -1), sampled), each.mean())
    assert within(each[:, None], wanted[None]).all()
    cut = sparsify(teacher[None], 12, none(1), temperature)  # as many ids, and all the best ones
    assert abs(float(sparse_kl(student[None], cut) - wanted)) > 20 * float(each.std() / math.sqrt(len(each)))


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_gradient_is_unbiased_and_without_samples_it_is_not(temperature: float) -> None:
    teacher = draw(0, V)
    for student in (draw(1, V), teacher):
        full = student.clone().requires_grad_()
        soft_targets(full[None], teacher[None], temperature).backward()
        sampled = many(teacher, 4, 8, temperature)
        each = student.repeat(len(sampled), 1).requires_grad_()
        (sparse_kl(each, sampled) * len(sampled)).backward()
        assert each.grad is not None and full.grad is not None
        assert within(each.grad, full.grad).all()
    # the student is the teacher: nothing is left to learn, and the cut-off tail pulls all the same
    torch.testing.assert_close(full.grad, torch.zeros(V), rtol=0, atol=1e-6)
    cut = teacher.clone().requires_grad_()
    sparse_kl(cut[None], sparsify(teacher[None], 12, none(1), temperature)).backward()
    assert cut.grad is not None and float(cut.grad.abs().sum()) > 0.05


def test_stratified_draws_scatter_less_than_independent_ones() -> None:
    teacher, student, samples, times = draw(5, V), draw(6, V), 12, 3000
    stratified = per_position_kl(student, many(teacher, 3, samples, 1.0, times))
    single = per_position_kl(student, many(teacher, 3, 1, 1.0, times * samples))
    independent = single.reshape(times, samples).mean(-1)
    assert float(stratified.var()) < 0.8 * float(independent.var())


def test_one_sure_token_leaves_nothing_to_sample() -> None:
    teacher = torch.full((2, V), -1e4)
    teacher[:, 7] = 1e4
    sparse = sparsify(teacher, 1, torch.rand(2, 5))
    assert sparse.ids[:, 0].tolist() == [7, 7]
    assert torch.equal(dense(sparse), torch.eye(V)[[7, 7]])
    assert sparse.negative_entropy.tolist() == [0.0, 0.0]
    assert torch.isfinite(sparse_kl(draw(0, 2, V), sparse))


@pytest.mark.parametrize("u", [0.0, 1.0])
def test_extreme_draws_hit_tokens_that_can_happen(u: float) -> None:
    teacher = draw(0, 3, V)
    teacher[:, [0, 1, V - 1]] = -torch.inf
    teacher[:, 30] = 50.0
    sparse = sparsify(teacher, 1, torch.full((3, 4), u))
    used = sparse.ids[sparse.weights > 0]
    assert not set(used.tolist()) & {0, 1, V - 1}
    assert (sparse.weights.sum(-1) - 1).abs().max() < 1e-6


def test_a_row_draws_the_same_in_any_batch() -> None:
    first = draw_uniform_numbers(3, 5, 11, 4, 2)
    assert torch.equal(first, draw_uniform_numbers(3, 5, 11, 4, 2))
    for other in ((3, 5, 12, 4, 2), (3, 5, 11, 5, 2), (3, 5, 11, 4, 3)):
        assert not torch.equal(first, draw_uniform_numbers(*other))
    teacher, draws = draw(0, 600, V), draw_uniform_numbers(600, 5, 0, 0, 0)
    whole = sparsify(teacher, 3, draws)
    part = sparsify(teacher[400:410], 3, draws[400:410])
    assert torch.equal(whole.ids[400:410], part.ids) and torch.equal(whole.weights[400:410], part.weights)


def test_no_positions_are_no_problem() -> None:
    sparse = sparsify(torch.empty(0, V), 3, torch.empty(0, 2))
    assert sparse.ids.shape == (0, 5) and len(sparse) == 0


def test_what_does_not_fit_is_refused() -> None:
    teacher = draw(0, 4, V)
    for k, draws, temperature in (
        (V + 1, none(4), 1.0),
        (0, none(4), 1.0),
        (2, none(3), 1.0),
        (2, none(4), 0.0),
    ):
        with pytest.raises(ValueError, match="do not fit together"):
            sparsify(teacher, k, draws, temperature)
    sparse = sparsify(teacher, 2, none(4))
    for student in (draw(0, 4, V + 4), draw(0, 3, V)):
        with pytest.raises(ValueError, match="do not match a teacher of 4 positions and 60 tokens"):
            sparse_token_soft_targets(student, sparse)
