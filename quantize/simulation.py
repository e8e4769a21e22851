"""What a right file of a scheme answers, computed by the torch module that it was exported from.

A file in 8 bits is off by more or less, depending on the model. Its own answers cannot tell whether it is off by too much,
so the same scheme is computed a second time, without exporter, quantizer and engine: torch runs the module with every stored
weight, and every number that it is multiplied with, rounded as the scheme rounds them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from pocketbert.core.predict.predictor import Predictor
from pocketbert.core.types import Scheme
from pocketbert.quantize.rounding import Rounding

if TYPE_CHECKING:
    from torch import nn


class ModulePredictor(Predictor, Protocol):
    """A torch module behind the predictor protocol.

    Attributes:
        module: The module.
    """

    module: nn.Module


@dataclass(frozen=True)
class Simulation:
    """How a scheme rounds; `pocketbert.quantize.simulated.SimulatedPredictor` computes so.

    Attributes:
        weights: Rounds the weight of a linear layer or a convolution, output channels first.
        tables: Rounds an embedding table that no product reads; one that a product reads is rounded as its weight.
        other_tables: Rounds the tables other than the largest, where they are rounded in another way.
        inputs: Rounds what weights are multiplied with; None where it stays float.
        small: Weights of at most this many numbers stay float.
        static: Whether products have ranges that were measured on calibration rows; `inputs` is None then.
        products: Whether static ranges are those of products of two activations too, but for probabilities.
        fixed_positions: Whether a lookup of constant indices is a constant of the file, which stays float.
        one_graph: Whether one graph serves all lengths of a file: indices of positions are constant in it only where there
            is one length.
        fills: Whether a file that is made from one with one length is calibrated on rows that are repeated up to it.
        outputs: Whether results of products with stored weights are rounded in static ranges, too.
        narrowing: Whether static ranges are those of products with fewer results than terms too; otherwise these read and
            make numbers as they are.
        shared_inputs: Whether what a product reads has one range for all that reads it, so that training has none to give it.
        results: Whether results of activation functions, of softmax and of products of two activations are rounded in static
            ranges, and what softmax reads with room for a mask.
        halves: Rounds weights and tables of a file that is made from one with fp16 numbers; None where they are rounded
            alike.
        left: Paths of weights in the module that stay float, and what they are multiplied with.
        seconds: Paths of weights that are rounded as another scheme rounds them, each group with that scheme's simulation.
    """

    weights: Rounding
    tables: Rounding
    inputs: Rounding | None = None
    small: int = 0
    static: bool = False
    products: bool = False
    other_tables: Rounding | None = None
    fixed_positions: bool = False
    one_graph: bool = False
    fills: bool = False
    outputs: bool = False
    narrowing: bool = True
    shared_inputs: bool = False
    results: bool = False
    halves: Rounding | None = None
    left: frozenset[str] = frozenset()
    seconds: tuple[tuple[frozenset[str], Simulation], ...] = ()

    def made_from(self, base: Scheme) -> Simulation:
        """Return the simulation of files that are quantized from a file with numbers of `base`."""
        if base is not Scheme.FP16 or self.halves is None:
            return self
        return replace(self, weights=self.halves, tables=self.halves)

    def of_lengths(self, count: int) -> Simulation:
        """Return the simulation of files that take `count` lengths."""
        return replace(self, fixed_positions=False) if self.one_graph and count > 1 else self
