"""Which number type to train in: bf16 only where the hardware really computes in it."""

from __future__ import annotations

import torch


def bf16_is_fast() -> bool:
    """Whether bf16 products run on hardware made for them.

    On a CPU without avx512_bf16 or AMX, bf16 autocast was measured 3 times slower than fp32.
    """
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def training_dtype() -> torch.dtype:
    """The dtype that matrix products of a training run use here."""
    return torch.bfloat16 if bf16_is_fast() else torch.float32
