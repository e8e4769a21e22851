"""Losses of two models' layers against their formulas written out over real tokens; `methods/test_laws.py` has padding and parts."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pocketbert.core.errors import InputError
from pocketbert.distill.losses.common import (
    attention_kl,
    attention_score_mse,
    divergence_sum,
    hidden_mse,
    reference_score_mse,
    reference_state_mse,
    scale_partial_mean,
)
from pocketbert.distill.losses.relations import relation_heads, relation_kl
from pocketbert.distill.losses.tokens import cosine_distance, replaced_soft_targets, replaced_tokens
from pocketbert.distill.losses.transfer import feature_transfer

Compute = Callable[[Tensor, Tensor, Tensor], Tensor]
SEEDS = st.integers(0, 10_000)
ROWS, LENGTH = 3, 5
RELATION_HEADS = 4


@dataclass(frozen=True)
class Loss:
    """A loss of two models' signals.

    Attributes:
        kind: Shape of the signals.
        compute: The mean of student, teacher and mask.
        formula: The same, written out.
        empty: Whether it is 0 where there is no real token.
        close: Relative difference that rounding may make: one loss computes in float32.
    """

    kind: str
    compute: Compute
    formula: Compute
    empty: bool = False
    close: float = 1e-9


def rows_kl(student: Tensor, teacher: Tensor) -> Tensor:
    log_s, log_t = student.log_softmax(-1), teacher.log_softmax(-1)
    return (log_t.exp() * (log_t - log_s)).sum(-1)


def score_errors(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """At each pair of real tokens of each row."""
    apart = student - teacher
    return (
        torch.cat([apart[row][:, real][:, :, real].flatten() for row, real in enumerate(mask.bool())]).square().mean()
    )


def open_scores(scores: Tensor) -> Tensor:
    """As the released code has it: -100 and less is a padded key."""
    return torch.where(scores > -100, scores, 0.0)


def feature_part(part: str) -> Compute:
    return lambda s, t, mask: getattr(feature_transfer(s, t, mask), part)


def normalize(states: Tensor) -> Tensor:
    centred = states - states.mean(-1, keepdim=True)
    return centred / centred.square().mean(-1, keepdim=True).sqrt()


def relation_formula(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """Row by row and head by head, over the real tokens alone."""
    found = []
    for ours, theirs, real in zip(student, teacher, mask.bool(), strict=True):
        vectors = [x[:, real].transpose(0, 1).flatten(1).chunk(RELATION_HEADS, 1) for x in (ours, theirs)]
        for pair in zip(*vectors, strict=True):
            ours_scores, theirs_scores = (x @ x.T / x.shape[1] ** 0.5 for x in pair)
            found.append(rows_kl(ours_scores, theirs_scores))
    return torch.cat(found).mean()


def judge_tokens(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    share = torch.sigmoid(student[mask.bool()])
    return -torch.where(teacher[mask.bool()] > 0, share, 1 - share).log().mean()


def two_classes(logits: Tensor) -> Tensor:
    return torch.stack([torch.zeros_like(logits), logits], -1)


LOSSES = {
    "hidden": Loss("states", hidden_mse, lambda s, t, mask: (s - t)[mask.bool()].square().mean()),
    "hidden, reference": Loss(
        "states", lambda s, t, _: reference_state_mse(s, t), lambda s, t, _: (s - t).square().mean()
    ),
    "attention": Loss("scores", attention_kl, lambda s, t, mask: rows_kl(s, t).transpose(1, 2)[mask.bool()].mean()),
    "scores": Loss("scores", attention_score_mse, score_errors),
    "scores, reference": Loss(
        "scores",
        lambda s, t, _: reference_score_mse(s, t),
        lambda s, t, _: (open_scores(s) - open_scores(t)).square().mean(),
    ),
    "maps": Loss(
        "states",
        feature_part("maps"),
        lambda s, t, mask: (normalize(s) - normalize(t))[mask.bool()].square().mean(),
        empty=True,
    ),
    "means": Loss(
        "states", feature_part("means"), lambda s, t, mask: (s - t)[mask.bool()].mean(-1).square().mean(), empty=True
    ),
    "variances": Loss(
        "states",
        feature_part("variances"),
        lambda s, t, mask: (s.var(-1, correction=0) - t.var(-1, correction=0))[mask.bool()].abs().mean(),
        empty=True,
    ),
    "cosine": Loss(
        "states",
        lambda s, t, mask: cosine_distance(s, t, mask).mean,
        lambda s, t, mask: 1 - F.cosine_similarity(s, t, dim=-1)[mask.bool()].mean(),
        empty=True,
        close=1e-5,
    ),
    "relations": Loss(
        "vectors", lambda s, t, mask: relation_kl(s, t, mask, RELATION_HEADS), relation_formula, empty=True
    ),
    "replaced": Loss("logits", lambda s, t, mask: replaced_tokens(s, t > 0, mask).mean, judge_tokens, empty=True),
    "replaced, soft": Loss(
        "logits",
        lambda s, t, mask: replaced_soft_targets(s, t, mask, 2.0).mean,
        lambda s, t, mask: 4 * rows_kl(two_classes(s / 2), two_classes(t / 2))[mask.bool()].mean(),
        empty=True,
    ),
}
laws = settings(max_examples=8)
every_loss = pytest.mark.parametrize("name", LOSSES)


def draw_mask(seed: int, rows: int = ROWS, length: int = LENGTH) -> Tensor:
    """Real tokens anywhere, two at least in each row: one alone looks at itself, whatever the model."""
    random = torch.Generator().manual_seed(seed)
    mask = (torch.rand(rows, length, generator=random) > 0.3).long()
    mask[:, [0, 2]] = 1
    return mask


def draw_signals(kind: str, seed: int, mask: Tensor) -> tuple[Tensor, Tensor]:
    """A student's and a teacher's; scores with the additive mask."""
    random, (rows, length) = torch.Generator().manual_seed(seed), mask.shape
    shapes = {
        "states": 2 * [(rows, length, 8)],
        "scores": 2 * [(rows, 2, length, length)],
        "vectors": [(rows, 2, length, 12), (rows, 4, length, 8)],
        "logits": 2 * [(rows, length)],
    }
    student, teacher = (torch.randn(s, generator=random, dtype=torch.float64) * 2 + 0.5 for s in shapes[kind])
    if kind == "scores":
        student, teacher = (x + (1.0 - mask[:, None, None, :]) * -1e4 for x in (student, teacher))
        student[0, 0, 0, 0] = -100.0  # masked by the bound of the released code, and no padding
    return student, teacher


@every_loss
@laws
@given(seed=SEEDS)
def test_value_and_gradient_are_those_of_the_formula(name, seed):
    loss, mask = LOSSES[name], draw_mask(seed)
    student, teacher = draw_signals(loss.kind, seed, mask)
    made, wanted = (f(student.requires_grad_(), teacher, mask) for f in (loss.compute, loss.formula))
    torch.testing.assert_close(made.double(), wanted, rtol=loss.close, atol=1e-12)
    (found,), (derived,) = (torch.autograd.grad(3 * value, student) for value in (made, wanted))
    torch.testing.assert_close(found, derived, rtol=loss.close, atol=1e-2 * loss.close)


@pytest.mark.parametrize("name", [name for name in LOSSES if not name.startswith("replaced")])
def test_half_precision_is_widened_before_the_difference_and_gradients_come_back_in_it(name):
    loss, mask = LOSSES[name], draw_mask(3)
    low = [x.bfloat16() for x in draw_signals(loss.kind, 3, mask)]
    with torch.autocast("cpu", torch.bfloat16):
        made = loss.compute(low[0].requires_grad_(), low[1], mask)
    made.backward()
    assert made.dtype is torch.float32
    assert torch.equal(made, loss.compute(low[0].float(), low[1].float(), mask))
    assert low[0].grad is not None and low[0].grad.dtype is torch.bfloat16


@pytest.mark.parametrize("name", [name for name, loss in LOSSES.items() if loss.empty])
def test_no_real_token_is_zero_and_teaches_nothing(name):
    loss = LOSSES[name]
    student, teacher = draw_signals(loss.kind, 4, draw_mask(4))
    made = loss.compute(student.requires_grad_(), teacher, torch.zeros(ROWS, LENGTH, dtype=torch.long))
    (gradient,) = torch.autograd.grad(made, student)
    assert float(made.detach()) == 0.0 and not gradient.any()


@pytest.mark.parametrize(
    ("name", "rows", "length"), [("hidden", 37, 2000), ("attention", 5, 400), ("relations", 5, 256)]
)
def test_rows_that_are_computed_in_portions_make_no_difference(name, rows, length):
    """Each is several times as large as what is computed at once, and the last portion is smaller."""
    loss, mask = LOSSES[name], draw_mask(5, rows, length)
    student, teacher = (x.float() for x in draw_signals(loss.kind, 5, mask))
    made = loss.compute(student.requires_grad_(), teacher, mask)
    wide = student.detach().double().requires_grad_()
    wanted = loss.formula(wide, teacher.double(), mask)
    assert float(made.detach()) == pytest.approx(float(wanted.detach()), rel=1e-5)
    (found,), (derived,) = torch.autograd.grad(made, student), torch.autograd.grad(wanted, wide)
    torch.testing.assert_close(found.double(), derived, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("name", ["attention", "relations"])
def test_large_scores_stay_finite(name):
    loss, mask = LOSSES[name], draw_mask(6)
    student, teacher = (1e4 * x.float() for x in draw_signals(loss.kind, 6, mask))
    made = loss.compute(student.requires_grad_(), teacher, mask)
    (gradient,) = torch.autograd.grad(made, student)
    assert made.isfinite() and made >= 0 and gradient.isfinite().all()


@pytest.mark.parametrize("scale", [1e5, 1e6])
@pytest.mark.parametrize("far", [False, True], ids=["a few channels", "all far from 0"])
def test_huge_states_of_mobilebert_keep_their_digits(far, scale):
    """A mean of squares less a square of the mean would have none left."""
    mask = draw_mask(7)
    for part in ("maps", "means", "variances"):
        loss = LOSSES[part]
        student, teacher = (x.float() for x in draw_signals("states", 7, mask))
        for states in (student, teacher):
            states += scale if far else 0.0
            states[..., :2] *= 1.0 if far else scale
        made, wanted = loss.compute(student, teacher, mask), loss.formula(student.double(), teacher.double(), mask)
        assert float(made) == pytest.approx(float(wanted), rel=5e-2 if far else 1e-4), part


# relation heads


@settings(max_examples=25)
@given(st.integers(1, 2000), st.integers(1, 2000))
def test_default_heads_are_the_most_up_to_48_that_divide_both(student, teacher):
    found = relation_heads(student, teacher)
    assert found == [n for n in range(1, 49) if student % n == 0 and teacher % n == 0][-1]
    assert relation_heads(student, teacher, found) == found


def test_explicit_heads_must_divide_both_widths():
    assert relation_heads(768, 1024, 64) == 64
    with pytest.raises(
        InputError, match=r"^distill\.1\.relation_heads: 48 .* 312 .* 384 .*: 1, 2, 3, 4, 6, 8, 12, 24\."
    ):
        relation_heads(312, 384, 48, "distill.1.relation_heads")
    with pytest.raises(ValueError, match="5 relation heads do not divide 24 and 32 numbers"):
        relation_kl(torch.zeros(1, 2, 3, 12), torch.zeros(1, 4, 3, 8), torch.ones(1, 3), 5)


# means of parts, divergences and squared errors


def draw_tensor(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 3


def test_a_part_that_is_the_whole_is_untouched_and_one_without_items_adds_nothing():
    mean = torch.tensor(0.1, requires_grad=True)
    assert scale_partial_mean(mean, 3.0, 3.0) is mean
    for whole in (0.0, 5.0):
        nothing = scale_partial_mean(torch.zeros(0, requires_grad=True).mean(), 0.0, whole)  # of a NaN
        assert float(nothing) == 0.0 and not nothing.requires_grad


def naive_divergence(student: Tensor, teacher: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """As autograd computes it."""
    log_s, log_t = (F.log_softmax(x / temperature, -1) for x in (student, teacher))
    rows = F.kl_div(log_s, log_t, reduction="none", log_target=True).sum(-1)
    return (rows * weight).sum()


@pytest.mark.parametrize(
    ("rows", "classes", "temperature"), [(1, 1, 1.0), (9, 7, 0.5), (9, 7, 1.0), (9, 7, 2.0), (40, 30_000, 2.0)]
)
def test_a_weighted_divergence_has_autograds_value_and_gradient(rows, classes, temperature):
    student, teacher = draw_tensor(0, rows, classes).requires_grad_(), draw_tensor(1, rows, classes)
    weight = torch.arange(rows, dtype=torch.float64) / 2  # the first row counts nothing
    ours = divergence_sum(student, teacher, weight, temperature)
    theirs = naive_divergence(student, teacher, weight, temperature)
    (gradient,), (wanted,) = (torch.autograd.grad(5 * value, student) for value in (ours, theirs))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradient, wanted)
    assert not gradient[0].any()


def test_a_mean_of_millions_of_squares_is_as_exact_as_float32():
    student, teacher = (draw_tensor(seed, 8, 512, 512, dtype=torch.float32) for seed in (0, 1))
    wanted = (student.double() - teacher.double()).square().mean()
    assert float(hidden_mse(student, teacher, torch.ones(8, 512))) == pytest.approx(float(wanted), rel=1e-6)
