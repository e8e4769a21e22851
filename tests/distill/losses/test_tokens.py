"""Losses over the tokens of plain text, and the sample of a teacher's distributions that stands for all of them."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pocketbert.distill.losses.common import Term, soft_targets
from pocketbert.distill.losses.tokens import (
    SparseLogits,
    draw_uniform_numbers,
    masked_lm,
    next_sentence,
    sparse_token_soft_targets,
    sparsify,
    token_soft_targets,
)
from pocketbert.distill.losses.transfer import pretraining_distillation

V = 60
SEEDS = st.integers(0, 10_000)
laws = settings(max_examples=8)
TEMPERATURES = st.sampled_from([0.5, 1.0, 2.0, 4.0])
Compute = Callable[[Tensor, Tensor, Tensor], Term]


def draw(seed: int, *shape: int, scale: float = 1.5) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


# --- losses of selected tokens ----------------------------------------------------------------------------------------


def mixed(truth: float) -> Compute:
    return lambda s, t, labels: pretraining_distillation(s, t, labels, truth)


def soft(temperature: float) -> Compute:
    return lambda s, t, _: token_soft_targets(s, t, temperature)


def mixed_formula(truth: float) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Original ids with a weight, the teacher's guesses with the rest, of the tokens that have a label."""

    def compute(student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        losses = []
        for s, t, label in zip(student, teacher, labels.tolist(), strict=True):
            if label >= 0:
                log_p = s - s.exp().sum().log()
                losses.append(-truth * log_p[label] - (1 - truth) * (t.exp() / t.exp().sum() * log_p).sum())
        return torch.stack(losses).mean()

    return compute


def soft_formula(temperature: float) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def compute(student: Tensor, teacher: Tensor, _: Tensor) -> Tensor:
        p, q = (x.div(temperature).exp() / x.div(temperature).exp().sum(-1, keepdim=True) for x in (teacher, student))
        return temperature**2 * (p * (p / q).log()).sum(-1).mean()

    return compute


LOSSES = {
    "original ids": (lambda s, _, labels: masked_lm(s, labels), mixed_formula(1.0)),
    "pairs": (lambda s, _, labels: next_sentence(s, labels), mixed_formula(1.0)),
    "mixture": (mixed(0.3), mixed_formula(0.3)),
    "mixture by default": (lambda s, t, labels: pretraining_distillation(s, t, labels), mixed_formula(0.5)),
    "soft, 2": (soft(2.0), soft_formula(2.0)),
}


@pytest.mark.parametrize("name", LOSSES)
@laws
@given(seed=SEEDS)
def test_value_gradient_and_count_are_those_of_the_formula(name, seed):
    compute, formula = LOSSES[name]
    student, teacher = draw(seed, 9, 30).requires_grad_(), draw(seed + 1, 9, 30).requires_grad_()
    labels = torch.randint(0, 30, (9,), generator=torch.Generator().manual_seed(seed))
    labels[[0, 4, 5]] = -100
    term, wide = compute(student, teacher, labels), student.detach().double().requires_grad_()
    wanted = formula(wide, teacher.detach().double(), labels)
    assert float(term.mean.detach()) == pytest.approx(float(wanted.detach()), rel=1e-5, abs=1e-6)
    assert float(term.count) == (9 if name.startswith("soft") else 6)
    term.mean.backward()
    (derived,) = torch.autograd.grad(wanted, wide)
    torch.testing.assert_close(student.grad, derived.float(), rtol=1e-4, atol=1e-6)
    assert teacher.grad is None


@pytest.mark.parametrize("name", LOSSES)
def test_a_mean_over_no_token_is_zero_with_a_zero_gradient(name):
    compute, _ = LOSSES[name]
    none = [torch.zeros(0, V, requires_grad=True), torch.zeros(0, V), torch.zeros(0, dtype=torch.long)]
    unlabelled = [draw(0, 3, V).requires_grad_(), draw(1, 3, V), torch.full((3,), -100)]
    for given_tensors in (none,) if name.startswith("soft") else (none, unlabelled):
        term = compute(*given_tensors)
        term.mean.backward()
        assert (float(term.mean.detach()), float(term.count)) == (0.0, 0.0)
        assert given_tensors[0].grad is not None and not given_tensors[0].grad.any()


def test_huge_logits_keep_their_digits():
    student, teacher, labels = 1e6 * draw(0, 4, 9), 1e6 * draw(1, 4, 9), torch.tensor([0, 3, 8, 1])
    for compute in (mixed(0.5), soft(2.0), LOSSES["original ids"][0]):
        wanted = compute(student.double(), teacher.double(), labels).mean
        assert float(compute(student, teacher, labels).mean) == pytest.approx(float(wanted), rel=1e-5)


# --- a sample of the teacher's distributions --------------------------------------------------------------------------


def sparse_kl(student: Tensor, teacher: SparseLogits) -> Tensor:
    return sparse_token_soft_targets(student, teacher).mean


def no_draws(rows: int) -> Tensor:
    return torch.empty(rows, 0)


def draw_many(teacher: Tensor, k: int, samples: int, temperature: float, times: int = 4000) -> SparseLogits:
    """As many independent sparse copies of one distribution [V]."""
    return sparsify(teacher.expand(times, -1), k, draw_uniform_numbers(times, samples, 0, 0, 0), temperature)


def dense(sparse: SparseLogits) -> Tensor:
    """Estimated distributions, [N, V]."""
    return torch.zeros(len(sparse), sparse.vocabulary).scatter_add(1, sparse.ids.long(), sparse.weights)


def losses_by_position(student: Tensor, sparse: SparseLogits) -> Tensor:
    """The divergence at each position by itself, [N]."""
    log_p = (student / sparse.temperature).log_softmax(-1)
    sums = (sparse.weights * log_p[sparse.ids.long()]).sum(-1)
    return sparse.temperature**2 * (sparse.negative_entropy - sums)


def assert_unbiased(samples: Tensor, wanted: Tensor) -> None:
    """Means over the first dimension are within four standard errors."""
    error = samples.std(0) / math.sqrt(len(samples))
    assert ((samples.mean(0) - wanted).abs() <= 4 * error + 1e-5).all()


@laws
@given(SEEDS, TEMPERATURES, st.integers(0, 6))
def test_all_tokens_kept_is_exact(seed, temperature, samples):
    teacher, student = draw(seed, 7, V), draw(seed + 1, 7, V)
    sparse = sparsify(teacher, V, draw_uniform_numbers(7, samples, seed, 0, 0), temperature)
    wanted = soft_targets(student, teacher, temperature)
    torch.testing.assert_close(sparse_kl(student, sparse), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dense(sparse), (teacher / temperature).softmax(-1), rtol=1e-5, atol=1e-6)


@laws
@given(SEEDS, TEMPERATURES, st.integers(0, 8), st.integers(1, 20))
def test_weights_are_a_distribution_with_the_top_exact(seed, temperature, k, samples):
    teacher = draw(seed, 5, V)
    p = (teacher / temperature).softmax(-1)
    sparse = sparsify(teacher, k, draw_uniform_numbers(5, samples, seed, 3, 1), temperature)
    assert sparse.ids.dtype == torch.int32 and sparse.ids.shape == sparse.weights.shape == (5, k + samples)
    torch.testing.assert_close(sparse.weights.sum(-1), torch.ones(5))
    torch.testing.assert_close(sparse.weights[:, :k], p.topk(k).values)
    torch.testing.assert_close(sparse.negative_entropy, (p * p.log()).sum(-1))
    for ids, weights in zip(sparse.ids.tolist(), sparse.weights.tolist(), strict=True):
        used = [i for i, w in zip(ids, weights, strict=True) if w > 0]
        assert len(set(used)) == len(used), "merged, and none of the top among the sampled"


@pytest.mark.parametrize(("k", "samples", "temperature"), [(0, 1, 1.0), (2, 3, 3.0), (8, 16, 1.0), (0, 16, 3.0)])
def test_every_probability_is_unbiased(k, samples, temperature):
    teacher = draw(k + samples, V)
    found = dense(draw_many(teacher, k, samples, temperature))
    p = (teacher / temperature).softmax(-1)
    rest = 1 - p.topk(k).values.sum()
    # of independent draws, as known beforehand: a rare token may not turn up at all
    sigma = (p * (rest - p).clip(0) / samples / len(found)).sqrt()
    assert ((found.mean(0) - p).abs() <= 4 * sigma + 1e-6).all()


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_loss_and_gradient_are_unbiased_and_without_samples_they_are_not(temperature):
    teacher, student = draw(0, V), draw(1, V).requires_grad_()
    wanted = soft_targets(student[None], teacher[None], temperature)
    (gradient,) = torch.autograd.grad(wanted, student)
    sampled = draw_many(teacher, 4, 8, temperature)
    each = student.detach().repeat(len(sampled), 1).requires_grad_()
    made, by_position = sparse_kl(each, sampled), losses_by_position(student.detach(), sampled)
    torch.testing.assert_close(made.detach(), by_position.mean())
    assert_unbiased(by_position, wanted.detach())
    assert_unbiased(torch.autograd.grad(made * len(sampled), each)[0], gradient)
    # as many ids, and all the best ones: far off, and a student that equals its teacher is pulled all the same
    cut = sparsify(teacher[None], 12, no_draws(1), temperature)
    error = float(by_position.std() / math.sqrt(len(by_position)))
    assert abs(float(sparse_kl(student.detach()[None], cut) - wanted.detach())) > 20 * error
    equal = teacher.clone().requires_grad_()
    assert float(torch.autograd.grad(sparse_kl(equal[None], cut), equal)[0].abs().sum()) > 0.05


def test_stratified_draws_scatter_less_than_independent_ones():
    teacher, student, samples, times = draw(5, V), draw(6, V), 12, 3000
    stratified = losses_by_position(student, draw_many(teacher, 3, samples, 1.0, times))
    single = losses_by_position(student, draw_many(teacher, 3, 1, 1.0, times * samples))
    assert float(stratified.var()) < 0.8 * float(single.reshape(times, samples).mean(-1).var())


def test_one_sure_token_leaves_nothing_to_sample():
    teacher = torch.full((2, V), -1e4)
    teacher[:, 7] = 1e4
    sparse = sparsify(teacher, 1, torch.rand(2, 5))
    assert sparse.ids[:, 0].tolist() == [7, 7]
    assert torch.equal(dense(sparse), torch.eye(V)[[7, 7]])
    assert sparse.negative_entropy.tolist() == [0.0, 0.0]
    assert sparse_kl(draw(0, 2, V), sparse).isfinite()


@pytest.mark.parametrize("u", [0.0, 1.0])
def test_extreme_draws_hit_tokens_that_can_happen(u):
    teacher = draw(0, 3, V)
    teacher[:, [0, 1, V - 1]] = -torch.inf
    teacher[:, 30] = 50.0
    sparse = sparsify(teacher, 1, torch.full((3, 4), u))
    assert not set(sparse.ids[sparse.weights > 0].tolist()) & {0, 1, V - 1}
    assert (sparse.weights.sum(-1) - 1).abs().max() < 1e-6


def test_a_row_draws_the_same_in_any_batch():
    first = draw_uniform_numbers(3, 5, 11, 4, 2)
    assert torch.equal(first, draw_uniform_numbers(3, 5, 11, 4, 2))
    for other in ((3, 5, 12, 4, 2), (3, 5, 11, 5, 2), (3, 5, 11, 4, 3)):
        assert not torch.equal(first, draw_uniform_numbers(*other))
    teacher, draws = draw(0, 600, V), draw_uniform_numbers(600, 5, 0, 0, 0)
    whole, part = sparsify(teacher, 3, draws), sparsify(teacher[400:410], 3, draws[400:410])
    assert torch.equal(whole.ids[400:410], part.ids) and torch.equal(whole.weights[400:410], part.weights)
    nothing = sparsify(torch.empty(0, V), 3, torch.empty(0, 2)).to(torch.device("cpu"))
    term = sparse_token_soft_targets(torch.empty(0, V), nothing)
    assert (len(nothing), float(term.mean), float(term.count)) == (0, 0.0, 0.0)
