"""Divide the outlier channels of a model, and multiply what reads them: the same answers, and ranges that int8 can hold.

An int8 range ends at the largest number of a tensor, so that one channel fifty times larger than the rest leaves the rest a few
steps. Source: Xiao et al. 2023, SmoothQuant, equation 4 with alpha = 0.5: a channel c is divided by
sqrt(max|x_c| / max|w_c|). Here the factor is taken relative to its median, rounded to a power of two, and used for outliers only.
In post-norm layers a shortcut adds the same tensor, which a multiplication brings back. A power of two changes exponents only:
in fp32 every answer stays the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pocketbert.export.adapters.outliers.places import Place, places_of

RATIO = 10.0
"""How many times larger than the median channel's a channel's largest number must be."""
MOST = 8
"""The exponent of the largest factor, 256: weights that are multiplied by it must stay in fp16's range."""
Inputs = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Outliers:
    """What was done to one tensor of a model.

    Attributes:
        name: Path of the module that writes it.
        channels: How many of its channels were divided.
        of: How many it has.
        ratio: The largest magnitude of its largest channel over that of its median channel, before.
    """

    name: str
    channels: int
    of: int
    ratio: float


def divide_outliers(module: nn.Module, inputs: Sequence[str], rows: Sequence[Inputs]) -> tuple[Outliers, ...]:
    """Find the outlier channels of a prepared module and divide them.

    Args:
        module: A prepared module in eval mode. **It is changed in place**; in fp32 its answers stay the same.
        inputs: Names of its inputs, in their order.
        rows: Inputs [B, L] by name to measure on; without any, nothing is done.

    Returns:
        What was done; nothing for modules without outliers, and for those whose layers are not known.
    """
    if not rows:
        return ()
    places = places_of(module, _feed(rows[0], inputs))
    largest = largest_channels(module, places, inputs, rows)
    found = []
    for place, sizes in zip(places, largest, strict=True):
        factors = _factors(sizes, place)
        if factors is not None:
            place.divide(factors)
            ratio = float(sizes.max() / sizes.median())
            found.append(
                Outliers(place.name.removeprefix("model."), int((factors != 1).sum()), len(factors), round(ratio, 1))
            )
    return tuple(found)


def largest_channels(
    module: nn.Module, places: Sequence[Place], inputs: Sequence[str], rows: Sequence[Inputs]
) -> list[Tensor]:
    """Measure the largest magnitude of every channel [C] of each place, padding left out.

    Args:
        module: A prepared module in eval mode.
        places: Its places.
        inputs: Names of its inputs, in their order.
        rows: Inputs [B, L] by name.
    """
    out = [place.columns * 0 for place in places]
    mask: list[Tensor] = []

    def take(number: int, states: Tensor) -> None:
        if states.ndim == 4:
            states = states[:, :, 0].transpose(1, 2)
        if states.shape[:-1] == mask[0].shape:
            states = states * mask[0][..., None]
        out[number] = torch.maximum(out[number], states.abs().flatten(0, -2).amax(0))

    hooks: list[Any] = []
    for i, place in enumerate(places):
        if place.shortcuts:
            hooks += [w.register_forward_hook(lambda _, __, x, i=i: take(i, x)) for w in place.writers]
        else:  # what a head reads, and what attention makes of values
            hooks += [r.register_forward_pre_hook(lambda _, args, i=i: take(i, args[0])) for r, _ in place.readers]
    try:
        with torch.inference_mode():
            for row in rows:
                mask[:] = _feed(row, ("attention_mask",))
                module(*_feed(row, inputs))
    finally:
        for hook in hooks:
            hook.remove()
    return out


def _factors(sizes: Tensor, place: Place) -> Tensor | None:
    """Powers of two [C] to divide channels by, 1 except for outliers; None where there is none."""
    middle = sizes.median()
    if not torch.isfinite(sizes).all() or not 0 < middle < RATIO**-1 * sizes.max():
        return None  # NaN and infinity are what parity speaks of
    columns = place.columns.clamp(min=torch.finfo(sizes.dtype).tiny)  # a new head may be all zeros
    wanted = torch.sqrt(sizes / middle / (columns / columns.median()))
    powers = 2.0 ** torch.round(torch.log2(wanted)).clamp(0, MOST)
    factors = torch.where(sizes > RATIO * middle, powers, torch.ones_like(powers))
    return factors if bool((factors != 1).any()) else None


def _feed(row: Inputs, inputs: Sequence[str]) -> list[Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(row[name])) for name in inputs]
