"""How this machine trains: attention in fp32 where the CPU is slower in bf16, and the precision of each training."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pocketbert.distill.training.machine import AttentionInFp32, make_accelerator


def attention(length: int, learns: bool, exact: bool) -> list[torch.Tensor]:
    """Context of drawn queries, keys and values of bf16 under autocast, and the gradient of the queries."""
    random = torch.Generator().manual_seed(1)
    made = [torch.randn(2, 3, length, 8, generator=random).bfloat16().requires_grad_(learns) for _ in range(3)]
    mask = torch.zeros(2, 1, 1, length)
    mask[1, ..., -1] = torch.finfo(torch.float32).min
    if exact:
        context = F.scaled_dot_product_attention(*(x.float() for x in made), attn_mask=mask).bfloat16()
    else:
        with torch.autocast("cpu", torch.bfloat16), AttentionInFp32():
            context = F.scaled_dot_product_attention(*made, attn_mask=mask)
    if learns:
        context.float().square().sum().backward()
    return [context.detach(), *(x.grad for x in made if x.grad is not None)]


@pytest.mark.parametrize(("length", "learns", "changed"), [(8, True, True), (8, False, False), (256, True, False)])
def test_short_attention_with_gradients_is_that_of_fp32(length: int, learns: bool, changed: bool) -> None:
    found, exact = attention(length, learns, exact=False), attention(length, learns, exact=True)
    assert all(x.dtype is torch.bfloat16 for x in found)
    assert all(torch.equal(x, y) for x, y in zip(found, exact, strict=True)) is changed


def test_fp32_and_other_functions_are_left_alone() -> None:
    x = torch.randn(1, 1, 4, 8, requires_grad=True)
    with AttentionInFp32():
        assert torch.equal(F.scaled_dot_product_attention(x, x, x), F.scaled_dot_product_attention(x, x, x))
        assert torch.equal(F.softmax(x, -1), x.softmax(-1))


def test_each_training_of_a_process_has_its_own_precision() -> None:
    kinds = [torch.bfloat16, torch.float32, torch.bfloat16]
    assert [make_accelerator(kind).mixed_precision for kind in kinds] == ["bf16", "no", "bf16"]
