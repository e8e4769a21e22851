"""Rows of drawn tokens for tiny models, and how far a prepared module's answers are from the model's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pocketbert.core.families import find_family
from support.tiny import ENTRIES

DRAWN = (5, 90)
"""Ids that are drawn: from the first behind the special tokens up to one that every tiny vocabulary has."""


def draw_inputs(name: str, length: int, padding: Sequence[int] = (0,), side: str = "") -> dict[str, Tensor]:
    """Inputs of a family: a row for each number of padded tokens, with the separators of a pair where it looks for them.

    Args:
        name: The family.
        length: Tokens of every row, padded ones included.
        padding: How many of them are padding, by row.
        side: Where they are; default the family's own side.
    """
    row, separator = find_family(name), ENTRIES[name].separator
    ids = torch.randint(*DRAWN, (len(padding), length), generator=torch.Generator().manual_seed(length))
    mask, types = torch.ones_like(ids), torch.zeros_like(ids)
    types[:, length // 2 :] = 1
    for i, count in enumerate(padding):
        padded = slice(0, count) if (side or row.padding_side) == "left" else slice(length - count, length)
        ids[i, padded], mask[i, padded], types[i, padded] = row.tiny["pad_token_id"], 0, 0
        if separator is not None:
            ids[i, ids[i] == separator] = DRAWN[0]
            ids[i, [0, 1, length - count - 1]] = separator
    made = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {n: made[n] for n in row.inputs}


@torch.inference_mode()
def difference(model: Any, module: Any, inputs: dict[str, Tensor], outputs: Sequence[str] = ("logits",)) -> float:
    """Largest difference of an output at real tokens, relative to its largest number there."""
    expected, found = model(**inputs), module(*inputs.values())
    off = []
    for name, made in zip(outputs, found, strict=False):
        wanted, mask = expected[name], inputs["attention_mask"].bool()
        assert made.shape == wanted.shape
        real = mask if wanted.shape[:2] == mask.shape else slice(None)
        off.append(float((made - wanted)[real].abs().max() / wanted[real].abs().max()))
    return max(off)
