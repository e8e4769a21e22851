"""Names of the released checkpoints of ERNIE (Tsinghua), and ours; they are the same but for what is listed here."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

_LEFTOVER = re.compile(r"(^|\.)intermediate\.dense_1(_ent)?\.")
"""Layers that the authors took out of the model; their training code still lists them, so that a file may hold them."""
_TYPING, _HEAD = "typing.weight", "classifier"


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A released checkpoint under the names of the classes in `pocketbert.distill.students.ernie_thu.heads`.

    Args:
        state: Weights by name. The authors' entity-typing head has no bias: it becomes a classifier whose bias is zero,
            which gives the same logits.

    Returns:
        The weights, without copies.
    """
    out = {name: value for name, value in state.items() if not _LEFTOVER.search(name)}
    if _TYPING in out and f"{_HEAD}.weight" not in out:
        weight = out.pop(_TYPING)
        out |= {f"{_HEAD}.weight": weight, f"{_HEAD}.bias": torch.zeros(len(weight), dtype=weight.dtype)}
    return out
