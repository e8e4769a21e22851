"""The divergence that computes its own gradient against the one that autograd derives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.distill.losses import common as divergence
from pocketbert.distill.losses.common import divergence_sum


def naive(student, teacher, weight, temperature):
    log_s, log_t = (F.log_softmax(x / temperature, -1) for x in (student, teacher))
    rows = F.kl_div(log_s, log_t, reduction="none", log_target=True).sum(-1)
    return (rows * weight).sum()


def scores(seed, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 3


@given(
    st.integers(1, 9),
    st.integers(1, 7),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.sampled_from([1, 7, 20, 1 << 20]),
)
def test_value_and_gradient_are_those_of_autograd_however_many_rows_are_at_work(rows, classes, temperature, at_once):
    student, teacher = scores(0, rows, classes).requires_grad_(), scores(1, rows, classes)
    weight = torch.arange(rows, dtype=torch.float64) / 2  # the first row counts nothing
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(divergence, "_DIVERGENCE_CHUNK", at_once)
        ours = divergence_sum(student, teacher, weight, temperature)
        (gradient,) = torch.autograd.grad(5 * ours, student)
    theirs = naive(student, teacher, weight, temperature)
    (wanted,) = torch.autograd.grad(5 * theirs, student)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradient, wanted)
    assert not gradient[0].any()


def test_weights_expand_over_heads():
    student, teacher = scores(0, 2, 3, 4, 4), scores(1, 2, 3, 4, 4)
    weight = torch.tensor([[1.0, 1, 1, 0], [1, 1, 0, 0]], dtype=torch.float64)[:, None, :]
    torch.testing.assert_close(divergence_sum(student, teacher, weight), naive(student, teacher, weight, 1.0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_sums_are_float32_or_wider_and_gradients_of_the_scores_own_type(dtype):
    student = scores(0, 4, 6, dtype=dtype).requires_grad_()
    total = divergence_sum(student, scores(1, 4, 6, dtype=dtype))
    total.backward()
    assert total.dtype == torch.promote_types(dtype, torch.float32) and student.grad.dtype == dtype
    wide = student.detach().double().requires_grad_()
    naive(wide, scores(1, 4, 6, dtype=dtype).double(), torch.ones(4), 1.0).backward()
    torch.testing.assert_close(student.grad.double(), wide.grad, rtol=1e-2, atol=1e-2)


def test_nothing_flows_to_the_teacher_and_scores_stay_as_they_were():
    student, teacher = scores(0, 3, 5).requires_grad_(), scores(1, 3, 5).requires_grad_()
    before = student.detach().clone(), teacher.detach().clone()
    divergence_sum(student, teacher).backward()
    assert teacher.grad is None
    assert torch.equal(student.detach(), before[0]) and torch.equal(teacher.detach(), before[1])


def test_no_rows_are_0_with_a_gradient():
    student = torch.zeros(0, 5, requires_grad=True)
    total = divergence_sum(student, torch.zeros(0, 5))
    total.backward()
    assert total.item() == 0 and student.grad.shape == (0, 5)


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\(2, 5\) and \(2, 6\)"):
        divergence_sum(torch.zeros(2, 5), torch.zeros(2, 6))
