"""Prepared modules with planted outliers: some channels made larger where they are written and smaller where they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pocketbert.export.adapters.outliers import find_places, measure_channels

ROWS: list[dict[str, NDArray[np.int64]]] = []
for _seed, _length in ((0, 24), (1, 11)):
    _ids = np.random.default_rng(_seed).integers(3, 80, (4, _length))
    _mask = np.ones_like(_ids)
    _mask[1, 8:] = 0
    ROWS.append({"input_ids": _ids, "attention_mask": _mask, "token_type_ids": (np.arange(_length) > 6) * _mask})


def plant(module: nn.Module, inputs: Sequence[str], times: float = 40.0, values: bool = False) -> list[str]:
    """Make the two largest channels of every normalization larger, and with `values` those of the attention's values.

    Returns:
        Names of the places, in the order of the module.
    """
    places = [p for p in find_places(module, feed(inputs)) if bool(p.shortcuts) or values or _norms(p)]
    for place, sizes in zip(places, measure_channels(module, places, inputs, ROWS), strict=True):
        place.divide(torch.ones_like(sizes).index_fill(0, sizes.topk(2).indices, 1 / times))
    return [place.name for place in places]


def _norms(place: Any) -> bool:
    return not isinstance(place.writers[-1], nn.Linear | nn.Conv2d)


def feed(inputs: Sequence[str], batch: int = 0) -> list[Tensor]:
    """One batch of `ROWS`."""
    return [torch.from_numpy(ROWS[batch][name]) for name in inputs]


def answers(module: nn.Module, inputs: Sequence[str]) -> list[Tensor]:
    """What a module answers to `ROWS`, one tensor for each batch and output."""
    with torch.inference_mode():
        return [out for i in range(len(ROWS)) for out in module(*feed(inputs, i))]
