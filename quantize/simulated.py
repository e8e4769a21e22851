"""A torch module that computes with rounded numbers; see `pocketbert.quantize.rounding`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pocketbert.core.families.weight_records import LearnedRanges, ProductRanges, Range
from pocketbert.core.predict.predictor import Arrays
from pocketbert.core.types import Calibration
from pocketbert.quantize import rounding
from pocketbert.quantize.calibration import STEPS, Histogram
from pocketbert.quantize.rounding import ModulePredictor, Rounding, Simulation

_MASKED = 8.0
"""How far the range of masked scores reaches below the lowest score."""
_FAR = -1e3
"""Scores below are masked: keys outside of a window are in rows without padding, too."""
_PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm)
_ACTIVATIONS = (F.gelu, F.relu, F.silu, torch.relu, torch.sigmoid, torch.tanh, Tensor.tanh, Tensor.relu, *_PRODUCTS)
_SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)
_SHARE, _TURNED = (0.0, 255 / 256), (-1.0, 127 / 128)
_FIXED = dict.fromkeys((*_SOFTMAX, torch.sigmoid), _SHARE) | dict.fromkeys((torch.tanh, Tensor.tanh), _TURNED)
"""Ranges that TFLite prescribes for results in 8 bits, whatever was measured."""


class SimulatedPredictor:
    """A module that answers as a right file of a scheme does: products and lookups of stored weights are rounded.

    Dynamic ranges are those of what is run at once, as in the engines: run one unpadded row at a time.

    Args:
        exact: The module.
        simulation: How the scheme rounds.
        rows: Calibration rows, [1, L] each; read where the scheme is static.
        learned: Ranges that the module was trained with, in place of measured ones.
        method: How ranges are chosen from what the rows had.
    """

    engine = "torch-simulated"

    def __init__(
        self,
        exact: ModulePredictor,
        simulation: Simulation,
        rows: Iterable[Mapping[str, NDArray[np.int64]]] = (),
        learned: LearnedRanges | None = None,
        method: Calibration = Calibration.MINMAX,
    ) -> None:
        self.engine_version, self.lengths = exact.engine_version, exact.lengths
        self.inputs, self.outputs, self._exact = exact.inputs, exact.outputs, exact
        self._mode: _Rounded = _Rounded(simulation, exact.module)
        if simulation.static:
            self._mode = static = _Static(simulation, exact.module, learned, method)
            for row in rows:
                self.run(row)
            static.choose()

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run one batch; see `pocketbert.core.predict.predictor.Predictor`."""
        self._mode.start()
        with self._mode:
            return self._exact.run(inputs)


class _Rounded(TorchFunctionMode):
    """Replaces the functions of torch that read stored weights, while it is entered."""

    def __init__(self, simulation: Simulation, module: nn.Module) -> None:
        super().__init__()
        self.how = simulation
        products = [m.weight for m in module.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
        self._matrices = {w.data_ptr() for w in products}
        self._left = {w.data_ptr() for n, w in module.named_parameters() if n in simulation.left}
        self._seconds = {
            w.data_ptr(): second
            for n, w in module.named_parameters()
            for names, second in simulation.seconds
            if n in names
        }
        self._most = max((m.weight.numel() for m in module.modules() if isinstance(m, nn.Embedding)), default=0)
        self._constants = {_storage(b) for b in module.buffers()}
        self._stored: dict[tuple[int, str], Tensor] = {}
        self._own: dict[Any, Callable[..., Tensor]] = {
            F.linear: self._linear,
            F.conv2d: self._convolution,
            F.embedding: self._lookup,
        }

    def start(self) -> None:
        """Begin another batch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch, or what takes its place."""
        return self._own.get(func, func)(*args, **(kwargs or {}))

    def _linear(self, values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if weight.data_ptr() in self._left:
            return F.linear(values, weight, bias)
        how = self._of_weight(weight)
        return F.linear(self._read(values, how), self._rounded(weight, how.weights), bias)

    def _convolution(self, values: Tensor, weight: Tensor, *more: Any, **named: Any) -> Tensor:
        if weight.data_ptr() in self._left:
            return F.conv2d(values, weight, *more, **named)
        how = self._of_weight(weight)
        return F.conv2d(self._read(values, how), self._rounded(weight, how.weights), *more, **named)

    def _lookup(self, indices: Tensor, table: Tensor, *more: Any, **named: Any) -> Tensor:
        if table.data_ptr() in self._left:
            return F.embedding(indices, table, *more, **named)
        if self.how.fixed_positions and _storage(indices) in self._constants:
            return F.embedding(indices, table, *more, **named)
        how = self._of_weight(table)
        other = how.other_tables if table.numel() < self._most else None
        kind = how.weights if table.data_ptr() in self._matrices else other or how.tables
        return F.embedding(indices, self._rounded(table, kind), *more, **named)

    def _of_weight(self, weight: Tensor) -> Simulation:
        """The scheme that rounds a weight."""
        return self._seconds.get(weight.data_ptr(), self.how)

    def _read(self, values: Tensor, how: Simulation) -> Tensor:
        """What a product of some scheme is computed with."""
        return values if how.inputs is None else how.inputs(values)

    def _rounded(self, weight: Tensor, kind: Rounding) -> Tensor:
        """A stored weight, rounded once for all batches."""
        if weight.numel() <= self.how.small:
            return weight
        key = (weight.data_ptr(), kind.__name__)
        if key not in self._stored:
            self._stored[key] = kind(weight)
        return self._stored[key]


class _Static(_Rounded):
    """Products in ranges that calibration rows had; where the scheme wants it, of two activations too, but of probabilities.

    A range belongs to a place in the order of a module's products, which is the same for every row.

    Attributes:
        measuring: Whether ranges are measured, and nothing is rounded.
    """

    def __init__(
        self, simulation: Simulation, module: nn.Module, learned: LearnedRanges | None, method: Calibration
    ) -> None:
        super().__init__(simulation, module)
        self.measuring = True
        self._method = method
        self._measured: dict[int, Histogram] = {}
        self._ranges: dict[int, Range] = {}
        self._learned = learned
        self._known: dict[int, ProductRanges] = {}
        self._here: Range | None = None
        """The learned or prescribed range of what is rounded next."""
        self._at = 0
        if simulation.products:
            self._own |= dict.fromkeys(_PRODUCTS, self._product)
        if simulation.results:
            self._own |= {func: partial(self._result, func) for func in _ACTIVATIONS}
            self._own |= dict.fromkeys(_SOFTMAX, self._softmax)

    def start(self) -> None:
        self._at = 0

    def choose(self) -> None:
        """End the measuring: choose the range of every place."""
        self._ranges = {at: histogram.range(self._method) for at, histogram in self._measured.items()}
        self.measuring = False

    def _rounded(self, weight: Tensor, kind: Rounding) -> Tensor:
        return weight if self.measuring else super()._rounded(weight, kind)

    def _read(self, values: Tensor, how: Simulation) -> Tensor:
        if how.static:
            return self._input(values)
        return values if self.measuring else super()._read(values, how)

    def _linear(self, values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if weight.data_ptr() in self._left or not self._of_weight(weight).static:
            return super()._linear(values, weight, bias)
        if not self.how.narrowing and weight.shape[0] < weight.shape[1]:
            return F.linear(values, self._rounded(weight, self.how.weights), bias)
        own = self._of(weight)
        self._here = own.inputs
        return self._output(super()._linear(values, weight, bias), own)

    def _convolution(self, values: Tensor, weight: Tensor, *more: Any, **named: Any) -> Tensor:
        if weight.data_ptr() in self._left or not self._of_weight(weight).static:
            return super()._convolution(values, weight, *more, **named)
        own = self._of(weight)
        self._here = own.inputs
        return self._output(super()._convolution(values, weight, *more, **named), own)

    def _of(self, weight: Tensor) -> ProductRanges:
        """What was learned about a product."""
        if self._learned is None or self.measuring:
            return ProductRanges()
        if weight.data_ptr() not in self._known:
            self._known[weight.data_ptr()] = self._learned.of(weight.detach().numpy())
        return self._known[weight.data_ptr()]

    def _output(self, values: Tensor, own: ProductRanges) -> Tensor:
        self._here = own.outputs
        return self._input(values) if self.how.outputs else values

    def _input(self, values: Tensor) -> Tensor:
        low, high = self._range(values)
        if self._here is not None:
            self._ranges[self._at] = low, high = self._here
        return values if self.measuring else rounding.unsigned(values, low, high)

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        if not any(_is_probability(v) for v in (left, right)):
            left, right = self._signed(left), self._signed(right)
        return torch.matmul(left, right)

    def _result(self, func: Callable[..., Tensor], *more: Any, **named: Any) -> Tensor:
        self._here = _FIXED.get(func)
        return self._input(func(*more, **named))

    def _softmax(self, values: Tensor, *more: Any, **named: Any) -> Tensor:
        low, high = self._range(values[values > _FAR])
        scores = values if self.measuring else rounding.unsigned(values, low - _MASKED, high)
        return self._result(F.softmax, scores, *more, **named)

    def _signed(self, values: Tensor) -> Tensor:
        low, high = self._range(values)
        return values if self.measuring else rounding.signed(values, max(-low, high))

    def _range(self, values: Tensor) -> tuple[float, float]:
        """The range of this place, which holds zero; widened by `values` while ranges are measured."""
        self._at += 1
        if self.measuring:
            histogram = self._measured.setdefault(self._at, Histogram())
            histogram.add(values.detach().numpy(), self._method is not Calibration.MINMAX)
            return histogram.low, histogram.high
        return self._ranges.get(self._at, (0.0, 0.0))


def _is_probability(values: Tensor) -> bool:
    """Whether rows are those that softmax makes."""
    return bool((values >= 0).all()) and bool(((values.sum(-1) - 1).abs() < 1e-3).all())


def _storage(values: Tensor) -> int:
    return values.untyped_storage().data_ptr()


# --- measured ---
# The ranges of what a torch module multiplies its weights with, and of the results: what static files should hold.
#
# A static file is written from ranges that its own engine measured. These are measured a second time, without exporter,
# quantizer and engine, and belong to paths of weights in the module.


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
