from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.distill.losses.common import attention_kl, hard_targets, hidden_mse, mean_over_layers, soft_targets

Array = NDArray[np.float64]
MASKED = -1e4
SEEDS = st.integers(0, 10_000)


def draw(seed: int, *shape: int, scale: float = 2.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def mask_of(seed: int, rows: int, length: int) -> Tensor:
    real = torch.randint(1, length + 1, (rows,), generator=torch.Generator().manual_seed(seed))
    return (torch.arange(length)[None] < real[:, None]).long()


def scores_of(seed: int, mask: Tensor, heads: int = 3) -> Tensor:
    """Attention scores with the additive mask applied."""
    rows, length = mask.shape
    return draw(seed, rows, heads, length, length) + (1.0 - mask[:, None, None, :].float()) * MASKED


def log_softmax(x: Array) -> Array:
    shifted = x - x.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def wide(x: Tensor) -> Array:
    return x.double().numpy()


@given(SEEDS, st.sampled_from([0.5, 1.0, 2.0, 8.0]))
def test_soft_targets(seed: int, temperature: float) -> None:
    student, teacher = draw(seed, 5, 4), draw(seed + 1, 5, 4)
    log_s, log_t = log_softmax(wide(student) / temperature), log_softmax(wide(teacher) / temperature)
    wanted = temperature**2 * (np.exp(log_t) * (log_t - log_s)).sum(-1).mean()
    assert float(soft_targets(student, teacher, temperature)) == pytest.approx(wanted, rel=1e-5, abs=1e-6)


@given(SEEDS)
def test_hard_targets(seed: int) -> None:
    logits = draw(seed, 6, 4)
    labels = torch.randint(0, 4, (6,), generator=torch.Generator().manual_seed(seed))
    wanted = -log_softmax(wide(logits))[np.arange(6), labels.numpy()].mean()
    assert float(hard_targets(logits, labels)) == pytest.approx(wanted, rel=1e-6, abs=1e-6)


@given(SEEDS)
def test_hidden_mse_counts_real_tokens_only(seed: int) -> None:
    mask = mask_of(seed, 4, 6)
    student, teacher = draw(seed, 4, 6, 8), draw(seed + 1, 4, 6, 8)
    kept = mask.numpy().astype(bool)
    wanted = ((wide(student) - wide(teacher)) ** 2)[kept].mean()
    assert float(hidden_mse(student, teacher, mask)) == pytest.approx(wanted, rel=1e-6)


@given(SEEDS)
def test_attention_kl_counts_real_queries_only(seed: int) -> None:
    mask = mask_of(seed, 4, 6)
    student, teacher = scores_of(seed, mask), scores_of(seed + 1, mask)
    log_s, log_t = log_softmax(wide(student)), log_softmax(wide(teacher))
    rows = (np.exp(log_t) * (log_t - log_s)).sum(-1)
    wanted = rows.transpose(0, 2, 1)[mask.numpy().astype(bool)].mean()
    assert float(attention_kl(student, teacher, mask)) == pytest.approx(wanted, rel=1e-5, abs=1e-6)


def padded(x: Tensor, extra: int, *axes: int) -> Tensor:
    """`x` with `extra` rows of noise appended on each of the axes."""
    for axis in axes:
        shape = list(x.shape)
        shape[axis] = extra
        x = torch.cat([x, draw(99, *shape, scale=30.0)], axis)
    return x


@given(SEEDS, st.integers(1, 5))
def test_appending_padding_changes_no_loss(seed: int, extra: int) -> None:
    mask = mask_of(seed, 3, 5)
    longer = torch.cat([mask, torch.zeros(3, extra, dtype=mask.dtype)], 1)
    hidden = draw(seed, 3, 5, 8), draw(seed + 1, 3, 5, 8)
    before = hidden_mse(*hidden, mask)
    after = hidden_mse(padded(hidden[0], extra, 1), padded(hidden[1], extra, 1), longer)
    torch.testing.assert_close(after, before)
    raw = draw(seed, 3, 2, 5, 5), draw(seed + 1, 3, 2, 5, 5)

    def loss(pair: tuple[Tensor, ...], real: Tensor) -> Tensor:
        additive = (1.0 - real[:, None, None, :].float()) * MASKED
        return attention_kl(pair[0] + additive, pair[1] + additive, real)

    torch.testing.assert_close(loss(tuple(padded(x, extra, 2, 3) for x in raw), longer), loss(raw, mask))


@given(SEEDS)
def test_identical_inputs_cost_nothing(seed: int) -> None:
    mask = mask_of(seed, 3, 5)
    logits, hidden, scores = draw(seed, 3, 4), draw(seed, 3, 5, 8), scores_of(seed, mask)
    assert abs(float(soft_targets(logits, logits, 2.0))) < 1e-6
    assert float(hidden_mse(hidden, hidden, mask)) == 0.0
    assert abs(float(attention_kl(scores, scores, mask))) < 1e-6


@given(SEEDS)
def test_distributions_ignore_a_constant(seed: int) -> None:
    mask = mask_of(seed, 3, 5)
    student, teacher = scores_of(seed, mask), scores_of(seed + 1, mask)
    torch.testing.assert_close(
        attention_kl(student + 3.0, teacher - 1.0, mask), attention_kl(student, teacher, mask), rtol=1e-3, atol=1e-5
    )
    a, b = draw(seed, 3, 4), draw(seed + 1, 3, 4)
    torch.testing.assert_close(soft_targets(a + 3.0, b, 2.0), soft_targets(a, b, 2.0), rtol=1e-4, atol=1e-5)


def test_the_size_of_the_gradient_hardly_depends_on_the_temperature() -> None:
    teacher = draw(1, 8, 4, scale=0.1)
    sizes = []
    for temperature in (1.0, 4.0):
        student = draw(2, 8, 4, scale=0.1).requires_grad_()
        soft_targets(student, teacher, temperature).backward()
        assert student.grad is not None
        sizes.append(float(student.grad.norm()))
    assert sizes[1] == pytest.approx(sizes[0], rel=0.1)


def test_half_precision_inputs_are_computed_in_fp32() -> None:
    logits = draw(3, 4, 3)
    found = soft_targets(logits.bfloat16(), draw(4, 4, 3).bfloat16(), 2.0)
    assert found.dtype == torch.float32
    assert hidden_mse(draw(1, 2, 3, 4).half(), draw(2, 2, 3, 4).half(), torch.ones(2, 3)).dtype == torch.float32


def test_the_mean_over_no_layers_is_an_error() -> None:
    with pytest.raises(ValueError, match="no signal was captured"):
        mean_over_layers([])
    assert float(mean_over_layers([torch.tensor(1.0), torch.tensor(3.0)])) == 2.0
