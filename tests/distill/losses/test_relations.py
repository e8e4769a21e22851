from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pocketbert.core.errors import InputError
from pocketbert.distill.losses import relations as relation_losses
from pocketbert.distill.losses.relations import relation_heads, relation_kl

MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0]])


def vectors(heads: int, size: int, seed: int, scale: float = 1.0) -> Tensor:
    """[B, H, S, size] for `MASK`."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(len(MASK), heads, MASK.shape[1], size, generator=random) * scale


def slowly(student: Tensor, teacher: Tensor, mask: Tensor, heads: int) -> float:
    """The formula, number by number."""

    def cut(given: Tensor, row: int, head: int) -> list[list[float]]:
        flat = given[row].transpose(0, 1).flatten(1).double()
        size = flat.shape[1] // heads
        return flat[:, head * size : (head + 1) * size].tolist()

    def relation(its: list[list[float]], query: int, keys: list[int]) -> list[float]:
        scores = [sum(a * b for a, b in zip(its[query], its[k], strict=True)) / math.sqrt(len(its[0])) for k in keys]
        total = math.fsum(math.exp(s - max(scores)) for s in scores)
        return [math.exp(s - max(scores)) / total for s in scores]

    found = []
    for row in range(len(mask)):
        keys = torch.nonzero(mask[row]).flatten().tolist()
        for head in range(heads):
            ours, theirs = cut(student, row, head), cut(teacher, row, head)
            for query in keys:
                p, q = relation(theirs, query, keys), relation(ours, query, keys)
                found.append(math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))
    return math.fsum(found) / len(found)


@pytest.mark.parametrize(
    ("student", "teacher", "heads"),
    [
        ((4, 6), (4, 6), 4),
        ((2, 12), (4, 8), 4),
        ((3, 8), (4, 12), 12),
        ((2, 6), (3, 8), 1),
        ((2, 4), (3, 8), 8),
    ],
)
def test_the_loss_is_the_formula_of_the_paper(student: tuple[int, int], teacher: tuple[int, int], heads: int) -> None:
    ours, theirs = vectors(*student, 0), vectors(*teacher, 1)
    wanted = slowly(ours, theirs, MASK, heads)
    assert wanted > 0.01
    assert float(relation_kl(ours, theirs, MASK, heads)) == pytest.approx(wanted, abs=1e-6)


def test_equal_vectors_cost_nothing() -> None:
    ours = vectors(4, 6, 0, 3.0).requires_grad_()
    loss = relation_kl(ours, ours.detach().clone(), MASK, 8)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert ours.grad is not None and float(ours.grad.abs().max()) == 0.0


def plainly(student: Tensor, teacher: Tensor, mask: Tensor, heads: int) -> Tensor:
    """By autograd, everything in memory."""

    def logs(given: Tensor) -> Tensor:
        its = given.transpose(1, 2).flatten(2).reshape(*mask.shape, heads, -1).transpose(1, 2)
        scores = its @ its.transpose(2, 3) / its.shape[-1] ** 0.5
        return scores.masked_fill(mask[:, None, None] == 0, -1e30).log_softmax(-1)

    log_s, log_t = logs(student), logs(teacher)
    rows = (log_t.exp() * (log_t - log_s)).sum(-1) * mask[:, None]
    return rows.sum() / (mask.sum() * heads)


@pytest.mark.parametrize("at_once", [1, 300, 1 << 24])
def test_the_gradient_is_the_derivative(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relation_losses, "_CPU_CHUNK", at_once)
    ours, theirs = vectors(2, 12, 0).double().requires_grad_(), vectors(4, 8, 1).double()
    (3 * relation_kl(ours, theirs, MASK, 8)).backward()
    found, ours.grad = ours.grad, None
    (3 * plainly(ours, theirs, MASK, 8)).backward()
    torch.testing.assert_close(found, ours.grad, rtol=1e-12, atol=1e-15)


def test_a_teacher_gets_no_gradient() -> None:
    ours, theirs = vectors(2, 12, 0).requires_grad_(), vectors(2, 12, 1).requires_grad_()
    relation_kl(ours, theirs, MASK, 4).backward()
    assert theirs.grad is None and ours.grad is not None


@given(
    st.integers(1, 3),
    st.integers(0, 5),
    st.integers(0, 5),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(0, 1000),
)
def test_appended_padding_changes_nothing(rows: int, before: int, behind: int, heads: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    length = int(torch.randint(1, 7, (), generator=random))
    mask = (torch.rand(rows, length, generator=random) > 0.3).long()
    mask[:, 0] = 1
    ours = torch.randn(rows, 2, length, 8, generator=random)
    theirs = torch.randn(rows, 4, length, 8, generator=random)

    def wider(value: Tensor, fill: Callable[..., Tensor]) -> Tensor:
        shapes = [(*value.shape[:-2], n, value.shape[-1]) for n in (before, behind)]
        left, right = (fill(shape) for shape in shapes)
        return torch.cat([left, value, right], -2)

    def noise(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=random) * 50

    short = relation_kl(ours, theirs, mask, heads)
    longer = wider(mask[..., None].float(), torch.zeros)[..., 0].long()
    long = relation_kl(wider(ours, noise), wider(theirs, noise), longer, heads)
    assert float(long) == pytest.approx(float(short), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("scale", [30.0, 1e4])
def test_large_vectors_stay_finite(scale: float) -> None:
    ours = vectors(2, 12, 0, scale).requires_grad_()
    loss = relation_kl(ours, vectors(2, 12, 1, scale), MASK, 4)
    loss.backward()
    assert torch.isfinite(loss) and loss >= 0
    assert ours.grad is not None and torch.isfinite(ours.grad).all()


def test_half_precision_vectors_are_compared_in_single() -> None:
    ours, theirs = vectors(2, 12, 0).bfloat16().requires_grad_(), vectors(4, 8, 1).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        loss = relation_kl(ours, theirs, MASK, 4)
    loss.backward()
    assert (loss.dtype, ours.grad.dtype) == (torch.float32, torch.bfloat16)  # type: ignore[union-attr]
    exact = slowly(ours.detach().float(), theirs.float(), MASK, 4)
    assert float(loss.detach()) == pytest.approx(exact, abs=1e-6)


def test_no_real_token_is_zero_and_teaches_nothing() -> None:
    ours = vectors(2, 12, 0).requires_grad_()
    loss = relation_kl(ours, vectors(2, 12, 1), torch.zeros_like(MASK), 4)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert ours.grad is not None and float(ours.grad.abs().max()) == 0.0


def test_heads_that_do_not_divide_are_an_error() -> None:
    with pytest.raises(ValueError, match="5 relation heads do not divide 24 and 32 numbers"):
        relation_kl(vectors(2, 12, 0), vectors(4, 8, 1), MASK, 5)


@pytest.mark.parametrize(
    ("student", "teacher", "heads"),
    [
        (384, 768, 48),
        (312, 384, 24),
        (768, 768, 48),
        (384, 1024, 32),
        (312, 768, 24),
        (128, 768, 32),
        (35, 32, 1),
    ],
)
def test_default_heads(student: int, teacher: int, heads: int) -> None:
    assert relation_heads(student, teacher) == heads


@given(st.integers(1, 2000), st.integers(1, 2000))
def test_default_heads_are_the_most_that_divide_both(student: int, teacher: int) -> None:
    found = relation_heads(student, teacher)
    dividing = [n for n in range(1, 49) if student % n == 0 and teacher % n == 0]
    assert found == dividing[-1]
    assert relation_heads(student, teacher, found) == found


def test_explicit_heads_must_divide_both_widths() -> None:
    assert relation_heads(768, 1024, 64) == 64
    with pytest.raises(InputError) as caught:
        relation_heads(312, 384, 48, "distill.1.relation_heads")
    assert str(caught.value) == (
        "distill.1.relation_heads: 48 relation heads do not divide the student's 312 and the teacher's 384 numbers; "
        "possible: 1, 2, 3, 4, 6, 8, 12, 24. Fix: Choose one of these, or leave it out."
    )
