from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pocketbert.distill.losses import common as squared_error
from pocketbert.distill.losses.common import _squared_error_sum

SEEDS = st.integers(0, 10_000)


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 3.0


def real_of(seed: int, *shape: int) -> Tensor:
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed))


def written_out(student: Tensor, teacher: Tensor, real: Tensor) -> Tensor:
    return ((student - teacher).square() * real).sum()


@given(SEEDS, st.sampled_from([((3, 2, 4, 4), (3, 1, 4, 4)), ((5, 4, 6), (5, 4, 1)), ((1, 7), (1, 7))]))
def test_sum_and_gradient_are_those_of_the_formula(seed: int, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    shape, mask = shapes
    teacher, real = draw(seed + 1, *shape), real_of(seed + 2, *mask)
    ours, theirs = (draw(seed, *shape).requires_grad_() for _ in range(2))
    made, wanted = _squared_error_sum(ours, teacher, real), written_out(theirs, teacher, real)
    (made * 0.7).backward()
    (wanted * 0.7).backward()
    assert float(made.detach()) == pytest.approx(float(wanted.detach()), rel=1e-12)
    assert ours.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=0)
    assert not ours.grad[(real == 0).expand(shape)].any()


def test_the_gradient_agrees_with_finite_differences() -> None:
    teacher, real = draw(1, 3, 4, 2), real_of(2, 3, 4, 1)
    student = draw(0, 3, 4, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: _squared_error_sum(s, teacher, real), (student,))


@pytest.mark.parametrize("at_once", [1, 7, 24, 25, 1000])
def test_rows_at_a_time_do_not_matter(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    student, teacher, real = draw(0, 5, 4, 3), draw(1, 5, 4, 3), real_of(2, 5, 4, 1)
    monkeypatch.setattr(squared_error, "_SQUARED_ERROR_CHUNK", at_once)
    wanted = float(written_out(student, teacher, real))
    assert float(_squared_error_sum(student, teacher, real)) == pytest.approx(wanted, rel=1e-12)


def test_a_gradient_may_be_asked_for_twice() -> None:
    student = draw(0, 2, 3, 4).requires_grad_()
    total = _squared_error_sum(student, draw(1, 2, 3, 4), real_of(2, 2, 3, 1))
    one, two = (torch.autograd.grad(total, student, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(one, two)


def test_the_sum_of_millions_is_as_exact_as_float32() -> None:
    student, teacher = (draw(seed, 8, 512, 512, dtype=torch.float32) for seed in (0, 1))
    made = _squared_error_sum(student, teacher, torch.ones(8, 512, 1))
    wanted = float(written_out(student.double(), teacher.double(), torch.ones(8, 512, 1)))
    assert float(made) == pytest.approx(wanted, rel=1e-6)


def test_half_precision_is_widened_before_the_difference_and_the_gradient_comes_back_in_it() -> None:
    student, teacher, real = draw(0, 3, 4, 8).bfloat16(), draw(1, 3, 4, 8).bfloat16(), real_of(2, 3, 4, 1)
    made = _squared_error_sum(student.requires_grad_(), teacher, real)
    made.backward()
    assert made.dtype is torch.float32
    assert torch.equal(made, _squared_error_sum(student.float(), teacher.float(), real))
    assert student.grad is not None
    assert student.grad.dtype is torch.bfloat16


def test_neither_teacher_nor_inputs_are_touched() -> None:
    student, teacher, real = draw(0, 3, 4).requires_grad_(), draw(1, 3, 4).requires_grad_(), real_of(2, 3, 4)
    before = student.detach().clone(), teacher.detach().clone(), real.clone()
    _squared_error_sum(student, teacher, real).backward()
    assert teacher.grad is None
    assert all(torch.equal(a.detach(), b) for a, b in zip((student, teacher, real), before, strict=True))


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(2, 4\)"):
        _squared_error_sum(draw(0, 2, 3), draw(1, 2, 4), torch.ones(2, 1))
