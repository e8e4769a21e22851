"""Which number type to train in: bf16 only where the hardware really computes in it."""

from __future__ import annotations

import torch
from torch import nn

from pocketbert.core.families import all_families


def bf16_is_fast() -> bool:
    """Whether bf16 products run on hardware made for them.

    On a CPU without avx512_bf16 or AMX, bf16 autocast was measured 3 times slower than fp32.
    """
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def training_dtype(model: nn.Module | None = None) -> torch.dtype:
    """The dtype that matrix products of a training run use here.

    Args:
        model: What is trained: some families cannot be trained in bf16. Without it, the dtype of the others.
    """
    if not bf16_is_fast():
        return torch.float32
    kind = getattr(getattr(model, "config", None), "model_type", None)
    # without a model no row is looked at: `doctor` works where a plug-in's rows cannot be read
    barred = kind is not None and any(kind in f.model_types and not f.trains_in_bf16 for f in all_families())
    return torch.float32 if barred else torch.bfloat16
