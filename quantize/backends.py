"""Which quantizer serves which format. All have the same verbs: quantize, weight_types, stored_numbers."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.quantize.weights import WeightTypes


class Quantizer(Protocol):
    """The functions of `pocketbert.quantize.onnx` and `pocketbert.quantize.tflite`."""

    def quantize(self, source: Path, destination: Path, scheme: Scheme, runtime: Runtime | None) -> WeightTypes:
        """Write a smaller copy of an fp32 file; GateError if its types are not those of the scheme."""
        ...

    def weight_types(self, path: Path) -> WeightTypes:
        """Read the types of all weights in a file."""
        ...

    def stored_numbers(self, path: Path) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """Name and value of everything stored in a file."""
        ...


def quantizer_of(format: Format) -> Quantizer:
    """The module that quantizes files of a format and reads what is stored in them."""
    return cast(Quantizer, importlib.import_module(f"pocketbert.quantize.{format.value}"))
