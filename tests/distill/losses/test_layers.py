from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.distill.losses.common import (
    attention_score_mse,
    count_token_pairs,
    reference_score_mse,
    reference_state_mse,
    scale_partial_mean,
    sum_over_layers,
)

MASKED = -1e4
SEEDS = st.integers(0, 10_000)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 2.0


def mask_of(seed: int, rows: int = 3, length: int = 5) -> Tensor:
    real = torch.randint(1, length + 1, (rows,), generator=torch.Generator().manual_seed(seed))
    return (torch.arange(length)[None] < real[:, None]).long()


def scores_of(seed: int, mask: Tensor, heads: int = 2) -> Tensor:
    """Attention scores with the additive mask applied."""
    rows, length = mask.shape
    return draw(seed, rows, heads, length, length) + (1.0 - mask[:, None, None, :].float()) * MASKED


def wide(x: Tensor) -> NDArray[np.float64]:
    return np.asarray(x.detach().double().numpy())


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-6, abs=1e-6)


@given(SEEDS)
def test_attention_scores_are_compared_at_real_pairs_alone(seed: int) -> None:
    mask = mask_of(seed)
    student, teacher = scores_of(seed, mask), scores_of(seed + 1, mask)
    s, t, total, count = wide(student), wide(teacher), 0.0, 0
    for b, real in enumerate(mask.bool().tolist()):
        for q, k in np.ndindex(len(real), len(real)):
            if real[q] and real[k]:
                count += 1
                total += ((s[b, :, q, k] - t[b, :, q, k]) ** 2).mean()
    assert float(attention_score_mse(student, teacher, mask)) == near(total / count)
    assert float(count_token_pairs(mask)) == count


@given(SEEDS)
def test_the_reference_averages_scores_over_everything(seed: int) -> None:
    mask = mask_of(seed)
    student, teacher = scores_of(seed, mask), scores_of(seed + 1, mask)
    student[0, 0, 0, 0] = -100.0  # at the bound: counts as masked, in the student alone
    teacher[0, 0, 0, 0] = -99.0
    s, t, total = wide(student), wide(teacher), 0.0
    for place in np.ndindex(*s.shape):
        a, b = (0.0 if x[place] <= -100 else x[place] for x in (s, t))
        total += (a - b) ** 2
    assert float(reference_score_mse(student, teacher)) == near(total / s.size)


@given(SEEDS)
def test_the_reference_averages_states_over_everything(seed: int) -> None:
    student, teacher = draw(seed, 3, 5, 4), draw(seed + 1, 3, 5, 4)
    s, t = wide(student), wide(teacher)
    total = sum((s[place] - t[place]) ** 2 for place in np.ndindex(*s.shape))
    assert float(reference_state_mse(student, teacher)) == near(total / s.size)


def padded(scores: Tensor, extra: int, seed: int) -> Tensor:
    """Scores of the same rows with more padding: whatever the models compute there."""
    rows, heads, length, _ = scores.shape
    out = draw(seed, rows, heads, length + extra, length + extra)
    out[..., length:] += MASKED
    out[:, :, :length, :length] = scores
    return out


@given(SEEDS, st.integers(1, 4))
def test_appended_padding_changes_the_reference_alone(seed: int, extra: int) -> None:
    mask = mask_of(seed)
    student, teacher = scores_of(seed, mask), scores_of(seed + 1, mask)
    longer = torch.nn.functional.pad(mask, (0, extra))
    wider = padded(student, extra, seed + 2), padded(teacher, extra, seed + 3)
    alone = float(attention_score_mse(student, teacher, mask))
    assert float(attention_score_mse(*wider, longer)) == pytest.approx(alone, rel=1e-6)
    assert float(count_token_pairs(longer)) == float(count_token_pairs(mask))
    reference = float(reference_score_mse(student, teacher))
    assert abs(float(reference_score_mse(*wider)) - reference) > 1e-4 * reference


@given(SEEDS, st.integers(1, 2))
def test_parts_of_a_batch_add_up_to_it(seed: int, cut: int) -> None:
    mask = mask_of(seed)
    student, teacher = scores_of(seed, mask), scores_of(seed + 1, mask)
    whole, pairs = float(attention_score_mse(student, teacher, mask)), float(count_token_pairs(mask))
    total = 0.0
    for rows in (slice(cut), slice(cut, None)):
        mean = attention_score_mse(student[rows], teacher[rows], mask[rows])
        total += float(scale_partial_mean(mean, float(count_token_pairs(mask[rows])), pairs))
    assert total == pytest.approx(whole, rel=1e-6)


@given(SEEDS)
def test_no_gradient_reaches_padding(seed: int) -> None:
    mask = mask_of(seed)
    student, teacher = scores_of(seed, mask).requires_grad_(), scores_of(seed + 1, mask)
    attention_score_mse(student, teacher, mask).backward()
    pairs = (mask[:, None, :, None] * mask[:, None, None, :]).bool().expand_as(student)
    apart = 2 * (wide(student) - wide(teacher)) / (2 * float(count_token_pairs(mask)))
    assert student.grad is not None
    np.testing.assert_allclose(wide(student.grad), np.where(pairs, apart, 0.0), rtol=1e-5, atol=1e-6)


def test_half_precision_is_widened_before_the_difference() -> None:
    mask = torch.ones(2, 4, dtype=torch.long)
    student, teacher = scores_of(0, mask).bfloat16(), scores_of(1, mask).bfloat16()
    for made, wanted in (
        (attention_score_mse(student, teacher, mask), attention_score_mse(student.float(), teacher.float(), mask)),
        (reference_score_mse(student, teacher), reference_score_mse(student.float(), teacher.float())),
        (reference_state_mse(student, teacher), reference_state_mse(student.float(), teacher.float())),
    ):
        assert made.dtype is torch.float32
        assert torch.equal(made, wanted)


def test_layers_are_summed_and_none_are_refused() -> None:
    assert float(sum_over_layers([torch.tensor(1.5), torch.tensor(2.0)])) == 3.5
    with pytest.raises(ValueError, match="no signal was captured"):
        sum_over_layers([])
