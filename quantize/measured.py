"""The ranges of what a torch module multiplies its weights with, and of the results: what static files should hold.

A static file is written from ranges that its own engine measured. These are measured a second time, without exporter,
quantizer and engine, and belong to paths of weights in the module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pocketbert.core.families.ranges import ProductRanges
from pocketbert.core.models.learned_ranges import LearnedRanges
from pocketbert.core.types import Calibration
from pocketbert.quantize.calibration import STEPS, Histogram
from pocketbert.quantize.simulation import ModulePredictor


def product_ranges(
    exact: ModulePredictor,
    rows: Iterable[Mapping[str, NDArray[np.int64]]],
    learned: LearnedRanges | None = None,
    method: Calibration = Calibration.MINMAX,
    steps: int = STEPS,
) -> dict[str, list[ProductRanges]]:
    """Measure the ranges of a module's products with stored weights; all of them hold zero.

    Args:
        exact: The module.
        rows: Calibration rows, [1, L] each, without padding.
        learned: Ranges that the module was trained with, which take the place of measured ones.
        method: How ranges are chosen, as the file's were.
        steps: Steps that these are divided into.

    Returns:
        The ranges that a file may hold, by the path of the weight, of all weights that a product read. There are several where
        products share a weight, where a part of a product's result is never used, and where its input is a part of a tensor,
        such as the first token: operators that only move numbers may have the range of all of it.
    """
    mode = _Measured(exact.module, count=method is not Calibration.MINMAX)
    for row in rows:
        mode.calls.clear()
        with mode:
            exact.run(row)
    return {n: [_learned(mode.weights[n], own, learned) for own in mode.of(n, method, steps)] for n in mode.names}


def _learned(weight: Tensor, measured: ProductRanges, learned: LearnedRanges | None) -> ProductRanges:
    if learned is None:
        return measured
    own = learned.of(weight.detach().numpy())
    return ProductRanges(inputs=own.inputs or measured.inputs, outputs=own.outputs or measured.outputs)


class _Measured(TorchFunctionMode):
    """Watches the functions of torch that multiply with a stored weight, while it is entered.

    Args:
        module: The module.
        count: Whether numbers are counted, which all methods but `Calibration.MINMAX` need.

    Attributes:
        weights: The module's parameters by their paths.
        names: Paths of those that products read.
        calls: How many products read a weight in this run; empty before a run.
    """

    def __init__(self, module: nn.Module, count: bool) -> None:
        super().__init__()
        self.weights = dict(module.named_parameters())
        self.names: dict[str, None] = {}
        self.calls = Counter[str]()
        self._count = count
        self._found: dict[tuple[str, int], list[Histogram]] = {}
        """Of what a product read, of the whole tensor that this is a part of, and of the result where it has an offset."""
        self._paths = {w.data_ptr(): name for name, w in self.weights.items()}

    def of(self, name: str, method: Calibration, steps: int) -> list[ProductRanges]:
        """Return the ranges that a method chooses for the products with a weight."""
        chosen = list[ProductRanges]()
        for histograms in (found for (n, _), found in self._found.items() if n == name):
            part, whole, *made = (histogram.range(method, steps) for histogram in histograms)
            chosen += [ProductRanges(inputs=read, outputs=made[0] if made else None) for read in (part, whole)]
        return list(dict.fromkeys(chosen))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch, and measure what it read and made."""
        out = func(*args, **(kwargs or {}))
        if func in (F.linear, F.conv2d) and len(args) > 1 and args[1].data_ptr() in self._paths:
            name = self._paths[args[1].data_ptr()]
            self.names[name] = None
            self.calls[name] += 1
            key = name, self.calls[name]
            if key not in self._found:
                # without an offset of the product, an exporter may join one that is added later, as XLNet's to its queries
                offset = len(args) > 2 and args[2] is not None
                self._found[key] = [Histogram() for _ in range(3 if offset else 2)]
            for histogram, numbers in zip(self._found[key], (args[0], _stored(args[0]), out), strict=False):
                histogram.add(numbers.detach().numpy(), self._count)
        return out


def _stored(values: Tensor) -> Tensor:
    """All numbers of the tensor that values are a view of."""
    return torch.empty(0, dtype=values.dtype).set_(values.untyped_storage())
