from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.core.recipe.stages import MobileBertStage
from pocketbert.distill.losses.common import attention_kl, scale_partial_mean
from pocketbert.distill.losses.tokens import masked_lm, token_soft_targets
from pocketbert.distill.losses.transfer import (
    FeatureTransfer,
    counted_mask,
    feature_transfer,
    pretraining_distillation,
)

SEEDS = st.integers(0, 10_000)
PARTS = ("maps", "means", "variances")
MASKED = torch.finfo(torch.float32).min


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 2 + 0.5


def mask_of(seed: int, rows: int = 3, length: int = 5) -> Tensor:
    real = torch.randint(1, length + 1, (rows,), generator=torch.Generator().manual_seed(seed))
    return (torch.arange(length)[None] < real[:, None]).long()


def scores_of(seed: int, mask: Tensor, heads: int = 2) -> Tensor:
    rows, length = mask.shape
    scores = draw(seed, rows, heads, length, length)
    return scores.masked_fill(mask[:, None, None, :] == 0, MASKED)


def wide(x: Tensor) -> NDArray[np.float64]:
    return np.asarray(x.detach().double().numpy())


def softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(-1, keepdims=True))


def by_hand(student: Tensor, teacher: Tensor, counted: Tensor) -> dict[str, float]:
    """The three terms token by token in float64."""
    found: dict[str, list[float]] = {name: [] for name in PARTS}
    for b, t in np.argwhere(counted.numpy() != 0):
        s, r = wide(student)[b, t], wide(teacher)[b, t]
        normal = [(x - x.mean()) / np.sqrt(((x - x.mean()) ** 2).mean()) for x in (r, s)]
        found["maps"].append(float(((normal[0] - normal[1]) ** 2).mean()))
        found["means"].append(float((r.mean() - s.mean()) ** 2))
        found["variances"].append(float(abs(r.var() - s.var())))
    return {name: float(np.mean(values)) for name, values in found.items()}


def floats(made: FeatureTransfer) -> dict[str, float]:
    return {name: float(getattr(made, name).detach()) for name in PARTS}


@given(SEEDS, st.booleans())
def test_feature_transfer_token_by_token(seed: int, reference: bool) -> None:
    student, teacher = draw(seed, 3, 5, 8), draw(seed + 1, 3, 5, 8)
    counted = counted_mask(mask_of(seed), reference)
    assert int(counted.sum()) == (15 if reference else int(mask_of(seed).sum()))
    wanted = by_hand(student, teacher, counted)
    assert floats(feature_transfer(student, teacher, counted)) == pytest.approx(wanted, rel=1e-4)


def test_the_released_factors() -> None:
    stage = MobileBertStage(method="mobilebert", steps=1000)
    weights = stage.weights
    factors = (weights.maps, weights.means, weights.variances, weights.attention, stage.truth)
    assert factors == (100, 5000, 5, 1, 0.5)
    assert pretraining_distillation.__defaults__ == (stage.truth,)


@pytest.mark.parametrize("scale", [1e5, 1e6])
def test_huge_states_keep_their_digits(scale: float) -> None:
    """As in MobileBERT: a few channels a million times larger than the others, and all far from 0."""
    student, teacher = draw(0, 3, 5, 64), draw(1, 3, 5, 64)
    for x in (student, teacher):
        x[..., :2] *= scale
    far_s, far_t = draw(2, 3, 5, 64) + scale, draw(3, 3, 5, 64) + scale
    for s, t in ((student, teacher), (student * scale, teacher * scale)):
        s.requires_grad_()
        made = feature_transfer(s, t, mask_of(0))
        assert floats(made) == pytest.approx(by_hand(s, t, mask_of(0)), rel=1e-4)
        (100 * made.maps + 5000 * made.means + 5 * made.variances).backward()
        assert s.grad is not None and s.grad.isfinite().all()
    # a mean of squares less a square of the mean would have no digit left here
    assert floats(feature_transfer(far_s, far_t, mask_of(0))) == pytest.approx(
        by_hand(far_s, far_t, mask_of(0)), rel=5e-2
    )


@given(SEEDS)
def test_a_teacher_copied_has_no_loss(seed: int) -> None:
    mask, states = mask_of(seed), draw(seed, 3, 5, 8) * 1e6
    scores, logits, labels = scores_of(seed, mask), draw(seed, 4, 9), torch.tensor([0, 3, 8, 1])
    assert floats(feature_transfer(states, states.clone(), mask)) == dict.fromkeys(PARTS, 0.0)
    assert float(attention_kl(scores, scores.clone(), mask)) == 0
    q = softmax(wide(logits))
    guessed = pretraining_distillation(logits, logits.clone(), labels, truth=0.0)
    assert float(guessed.mean) == pytest.approx(-(q * np.log(q)).sum(-1).mean(), rel=1e-5)


@given(SEEDS, st.integers(1, 4))
def test_appended_padding_changes_the_reference_alone(seed: int, extra: int) -> None:
    mask = mask_of(seed)
    mask[0] = 1  # one token alone looks at itself, whatever the model: no divergence to change
    longer = F.pad(mask, (0, extra))
    states = [torch.cat((draw(seed + n, 3, 5, 8), 1e3 * draw(seed + n + 9, 3, extra, 8)), 1) for n in (0, 1)]
    scores = [scores_of(seed + n, longer) for n in (0, 1)]
    for reference in (False, True):
        short, long = counted_mask(mask, reference), counted_mask(longer, reference)
        before = floats(feature_transfer(states[0][:, :5], states[1][:, :5], short))
        after = floats(feature_transfer(*states, long))
        before["attention"] = float(attention_kl(*(x[..., :5, :5] for x in scores), short))
        after["attention"] = float(attention_kl(scores[0], scores[1], long))
        for name, value in before.items():
            assert (after[name] == pytest.approx(value, rel=1e-5)) is not reference, name


@given(SEEDS, st.integers(1, 2), st.booleans())
def test_parts_of_a_batch_add_up_to_it(seed: int, cut: int, reference: bool) -> None:
    mask = mask_of(seed)
    counted = counted_mask(mask, reference)
    states, scores = (
        (draw(seed, 3, 5, 8), draw(seed + 1, 3, 5, 8)),
        (scores_of(seed, mask), scores_of(seed + 1, mask)),
    )

    def terms(rows: slice) -> dict[str, float]:
        made = floats(feature_transfer(states[0][rows], states[1][rows], counted[rows]))
        made["attention"] = float(attention_kl(scores[0][rows], scores[1][rows], counted[rows]))
        return made

    whole, total = terms(slice(None)), dict.fromkeys((*PARTS, "attention"), 0.0)
    for rows in (slice(cut), slice(cut, None)):
        for name, value in terms(rows).items():
            total[name] += float(
                scale_partial_mean(torch.tensor(value), float(counted[rows].sum()), float(counted.sum()))
            )
    assert total == pytest.approx(whole, rel=1e-5)


@given(SEEDS)
def test_no_gradient_reaches_padding_or_the_teacher(seed: int) -> None:
    mask = mask_of(seed)
    student, teacher = draw(seed, 3, 5, 8).requires_grad_(), draw(seed + 1, 3, 5, 8).requires_grad_()
    made = feature_transfer(student, teacher, mask)
    (made.maps + made.means + made.variances).backward()
    assert teacher.grad is None and student.grad is not None
    assert torch.equal(student.grad.abs().sum(-1) > 0, mask.bool())


def test_no_tokens_are_0_not_nan() -> None:
    states = draw(0, 2, 3, 4).requires_grad_()
    made = feature_transfer(states, draw(1, 2, 3, 4), torch.zeros(2, 3, dtype=torch.long))
    assert floats(made) == dict.fromkeys(PARTS, 0.0)
    term = pretraining_distillation(draw(0, 2, 7), draw(1, 2, 7), torch.tensor([-100, -100]))
    assert (float(term.mean.detach()), float(term.count)) == (0.0, 0.0)


@given(SEEDS, st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_pretraining_distillation(seed: int, truth: float) -> None:
    student, teacher = draw(seed, 9, 30).requires_grad_(), draw(seed + 1, 9, 30)
    labels = torch.randint(0, 30, (9,), generator=torch.Generator().manual_seed(seed))
    labels[[0, 4, 5]] = -100
    kept = [1, 2, 3, 6, 7, 8]
    target = truth * np.eye(30)[labels[kept].numpy()] + (1 - truth) * softmax(wide(teacher))[kept]
    wanted = -(target * np.log(softmax(wide(student))[kept])).sum(-1).mean()
    term = pretraining_distillation(student, teacher, labels, truth)
    assert float(term.mean.detach()) == pytest.approx(wanted, rel=1e-5)
    assert float(term.count) == 6
    # the two terms apart have the same gradient
    apart = truth * masked_lm(student, labels).mean
    apart = apart + (1 - truth) * token_soft_targets(student[kept], teacher[kept], 1.0).mean
    (one,), (two,) = torch.autograd.grad(term.mean, student), torch.autograd.grad(apart, student)
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_huge_logits_and_half_precision() -> None:
    student, teacher, labels = 1e6 * draw(0, 4, 9), 1e6 * draw(1, 4, 9), torch.tensor([0, 3, 8, 1])
    wanted = pretraining_distillation(student.double(), teacher.double(), labels)
    made = pretraining_distillation(student, teacher, labels)
    assert float(made.mean) == pytest.approx(float(wanted.mean), rel=1e-5)
    low = [x.bfloat16() for x in (draw(2, 2, 3, 8), draw(3, 2, 3, 8))]
    ones = torch.ones(2, 3, dtype=torch.long)
    for name in PARTS:
        value = getattr(feature_transfer(low[0], low[1], ones), name)
        assert value.dtype is torch.float32
        assert torch.equal(value, getattr(feature_transfer(low[0].float(), low[1].float(), ones), name))


@pytest.mark.parametrize("truth", [-0.1, 1.5])
def test_a_share_outside_0_to_1_is_refused(truth: float) -> None:
    with pytest.raises(ValueError, match="allowed: 0 to 1"):
        pretraining_distillation(draw(0, 1, 3), draw(1, 1, 3), torch.tensor([0]), truth)
