"""What a quantizer is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.families.roles import WeightRole
from pocketbert.core.models.learned_ranges import LearnedRanges
from pocketbert.core.types import Calibration, Format, Runtime, Scheme
from pocketbert.quantize.calibration import STEPS

Rows = Iterable[Mapping[str, NDArray[np.int64]]]
"""Inputs by name, each row [1, L] without padding; names that the graph does not take are ignored."""


def filled(rows: Rows, length: int) -> Rows:
    """Repeat the tokens of rows up to a length; longer rows stay as they are.

    Which axes of a whole graph with one length have tokens is not to be seen in it, so padding could not be left out of its ranges.

    Args:
        rows: The rows.
        length: Tokens of the graph's inputs.
    """
    for row in rows:
        fits = row["input_ids"].shape[1] <= length
        yield {name: np.resize(value, (1, length)) if fits else value for name, value in row.items()}


@dataclass(frozen=True)
class Plan:
    """Settings of one quantized file.

    Attributes:
        format: Format of both files.
        scheme: How the weights and activations of the new file are compressed.
        runtime: The runtime it is made for; None for a file that any client of the format may open.
        rows: Returns the calibration rows, on which static schemes measure ranges; called once, when they are needed.
            None for all other schemes.
        calibration: How static schemes choose ranges from these rows.
        learned: Ranges that the model was trained with; static schemes store them where they have them.
        pads_left: Whether shorter rows are padded in front, as XLNet's; padding is in no range.
        weights: What to make of each weight, where some stay as they were exported or have a second scheme; empty where all
            have the scheme.
    """

    format: Format
    scheme: Scheme
    runtime: Runtime | None = None
    rows: Callable[[], Rows] | None = None
    calibration: Calibration = Calibration.MINMAX
    learned: LearnedRanges | None = None
    pads_left: bool = False
    weights: Sequence[WeightRole] = ()

    @property
    def padding_side(self) -> str:
        """Where shorter rows are padded, as `pocketbert.runtime.padding.Padding` takes it."""
        return "left" if self.pads_left else "right"

    @property
    def steps(self) -> int:
        """Steps that a range is divided into, for `Calibration.MSE`; in a8w8 of whole graphs also where 16 bits are stored."""
        return 65535 if self.scheme is Scheme.A16W8 else STEPS

    @property
    def left(self) -> frozenset[str]:
        """Digests of the weights that stay as they were exported."""
        return frozenset(w.digest for w in self.weights if w.scheme is None)

    @property
    def seconds(self) -> dict[Scheme, frozenset[str]]:
        """Digests of the weights that have another scheme than the file, by scheme."""
        others = dict.fromkeys(w.scheme for w in self.weights if w.scheme not in (None, self.scheme))
        return {s: frozenset(w.digest for w in self.weights if w.scheme is s) for s in others if s is not None}

    @property
    def title(self) -> str:
        """What errors call it, e.g. ``onnx a8w8 for openvino``."""
        return f"{self.format} {self.scheme}{f' for {self.runtime}' if self.runtime else ''}"
