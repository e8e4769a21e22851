"""Numbers of weights."""

from __future__ import annotations

import torch


def parameter_count(model: torch.nn.Module) -> int:
    """Parameters, tied ones counted once."""
    return sum(p.numel() for p in model.parameters())
