"""Whole encoders against torch: families, precisions, kinds of lengths, the Neural Engine layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pocketbert.core.errors import InputError
from pocketbert.runtime.coreml.evaluator import Evaluator, Precision
from support.tiny import BASIC

BOUNDS = {"FLOAT32": 1e-5, "FLOAT16": 5e-3}


def gap(
    path: Path, module: Any, inputs: dict[str, np.ndarray], logits_of: Callable[..., np.ndarray], **more: Any
) -> float:
    want = logits_of(module, inputs)
    have = np.asarray(Evaluator(path, **more).run(inputs)["logits"])
    assert have.shape == want.shape
    return float(np.abs(have.astype(np.float64) - want).max() / np.abs(want).max())


@pytest.mark.parametrize(
    ("family", "kind", "precision", "target"),
    [
        ("bert", "ranged", "FLOAT32", "iOS17"),
        ("roberta", "fixed", "FLOAT32", "iOS16"),
        ("distilbert", "enumerated", "FLOAT16", "iOS18"),
        ("mobilebert", "fixed", "FLOAT16", "iOS17"),
        *(
            pytest.param(family, kind, precision, target, marks=pytest.mark.slow)
            for family in BASIC
            for kind, target in (("fixed", "iOS16"), ("ranged", "iOS17"), ("enumerated", "iOS18"))
            for precision in BOUNDS
        ),
    ],
)
def test_an_encoder_equals_torch(
    family: str,
    kind: str,
    precision: str,
    target: str,
    encoder: Callable[[str], Any],
    convert: Callable[..., Path],
    batch: Callable[..., dict[str, np.ndarray]],
    logits_of: Callable[..., np.ndarray],
) -> None:
    module = encoder(family)
    path = convert(module, kind, precision, target)
    for length in {"fixed": (16,), "ranged": (8, 17, 32), "enumerated": (8, 16, 24)}[kind]:
        assert gap(path, module, batch(length), logits_of) <= BOUNDS[precision]


def test_precision_decides_on_rounding(
    bert16: Path,
    encoder: Callable[[str], Any],
    batch: Callable[..., dict[str, np.ndarray]],
    logits_of: Callable[..., np.ndarray],
) -> None:
    module, inputs = encoder("bert"), batch(16)
    declared, wide = (np.asarray(Evaluator(bert16, p).run(inputs)["logits"]) for p in Precision)
    assert declared.dtype == np.float16 and wide.dtype == np.float32
    assert gap(bert16, module, inputs, logits_of) <= 5e-3
    assert gap(bert16, module, inputs, logits_of, precision=Precision.FP32) <= 2e-3
    assert not np.array_equal(declared.astype(np.float32), wide)


def test_padding_does_not_matter(bert16: Path, batch: Callable[..., dict[str, np.ndarray]]) -> None:
    evaluator, short = Evaluator(bert16), batch(8)
    long = {n: np.pad(v, ((0, 0), (0, 16))) for n, v in short.items()}
    np.testing.assert_allclose(
        np.asarray(evaluator.run(short)["logits"]),
        np.asarray(evaluator.run(long)["logits"]),
        rtol=0,
        atol=2e-3,
    )


class AneBlock(torch.nn.Module):
    """Attention and a feed-forward layer on [B, C, 1, S], every linear layer a 1x1 convolution."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.words = torch.nn.Embedding(100, width)
        self.query, self.key, self.value, self.out = (torch.nn.Conv2d(width, width, 1) for _ in range(4))
        self.gain = torch.nn.Parameter(torch.rand(width) + 0.5)
        self.head = torch.nn.Conv2d(width, 3, 1)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        bias = ((attention_mask.to(torch.float32) - 1.0) * 1e4)[:, :, None, None]
        x = self.words(input_ids).transpose(1, 2)[:, :, None]
        q, v = self.query(x).split(self.size, 1), self.value(x).split(self.size, 1)
        k = self.key(x).transpose(1, 3).split(self.size, 3)
        scores = [torch.einsum("bchq,bkhc->bkhq", a, b) * self.size**-0.5 + bias for a, b in zip(q, k, strict=True)]
        mixed = [torch.einsum("bkhq,bchk->bchq", s.softmax(1), a) for s, a in zip(scores, v, strict=True)]
        x = x + self.out(torch.cat(mixed, 1))
        centred = x - x.mean(1, keepdim=True)
        x = centred * (centred.pow(2).mean(1, keepdim=True) + 1e-5).rsqrt() * self.gain.view(1, -1, 1, 1)
        return self.head(torch.nn.functional.gelu(x))[:, :, 0, 0]


@pytest.mark.parametrize("precision", ["FLOAT32", "FLOAT16"])
def test_the_neural_engine_layout_equals_torch(
    precision: str,
    convert: Callable[..., Path],
    batch: Callable[..., dict[str, np.ndarray]],
    logits_of: Callable[..., np.ndarray],
) -> None:
    torch.manual_seed(0)
    module = AneBlock().eval()
    path = convert(module, "fixed", precision, "iOS16")
    seen: set[str] = set()
    Evaluator(path).run(batch(16), lambda step: seen.add(step.op_type))
    assert {"conv", "einsum", "split", "softmax"} <= seen
    assert gap(path, module, batch(16), logits_of) <= BOUNDS[precision]


class StockMask(torch.nn.Module):
    """The mask as transformers 5 makes it: a select between two numbers, whose rank coremltools takes for the result's."""

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        allowed = attention_mask[:, None, None, :].expand(-1, 1, input_ids.shape[1], -1) > 0
        zero, low = torch.tensor(0.0), torch.tensor(-1e4)
        x = input_ids.to(torch.float32) / 100
        scores = x[:, None, :, None] * x[:, None, None, :] + torch.where(allowed, zero, low)
        return (scores.softmax(-1) * x[:, None, None, :]).sum((2, 3))


def test_the_trap_of_ranged_lengths_is_caught(
    convert: Callable[..., Path], batch: Callable[..., dict[str, np.ndarray]]
) -> None:
    """coremltools declares a rank-0 result for a rank-4 tensor; the arithmetic alone would not tell."""
    evaluator = Evaluator(convert(StockMask().eval(), "ranged"))
    with pytest.raises(InputError, match=r"select .*declares the result fp32\[\], which has shape \[1, 1, 16, 16\]"):
        evaluator.run(batch(16))


def test_the_same_mask_in_fixed_length_is_no_trap(
    convert: Callable[..., Path],
    batch: Callable[..., dict[str, np.ndarray]],
    logits_of: Callable[..., np.ndarray],
) -> None:
    module = StockMask().eval()
    assert gap(convert(module, "fixed"), module, batch(16), logits_of) <= 1e-5
