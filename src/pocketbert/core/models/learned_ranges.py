"""Ranges of activations that training found, next to a model's weights: static schemes store them in place of measured ones.

A range belongs to a matrix product and is found by the product's weights, which a file of any format holds: names of tensors
differ from format to format, and a converter joins or renames them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.families.ranges import ProductRanges
from pocketbert.core.types import Format, Runtime, Scheme

FILE_NAME = "learned_ranges.json"


class LearnedRanges(BaseModel):
    """What a stage of method `qat` learned.

    Attributes:
        scheme: The scheme that was trained for.
        format: The format whose rounding was simulated.
        runtime: The runtime whose file was trained for; None for files for any.
        products: Ranges by `fingerprint` of the product's weights.
    """

    model_config = ConfigDict(frozen=True)

    scheme: Scheme
    format: Format
    runtime: Runtime | None = None
    products: dict[str, ProductRanges]

    def of(self, weight: NDArray[np.generic]) -> ProductRanges:
        """Look up the ranges of the product with these weights; without any where it was not trained."""
        return self.products.get(fingerprint(weight), ProductRanges())


def fingerprint(weight: NDArray[np.generic]) -> str:
    """Identify the weights of a product, whatever their orientation, in fp32 or fp16.

    Args:
        weight: [out, in], [in, out], or either with further axes of size 1.
    """
    matrix = weight.reshape([n for n in weight.shape if n != 1] or [1]).astype(np.float16)
    turned = (np.ascontiguousarray(m).tobytes() for m in (matrix, matrix.T))
    return min(hashlib.sha256(content).hexdigest() for content in turned)


def write_learned(folder: Path, ranges: LearnedRanges) -> None:
    """Write the ranges next to the weights of a model."""
    write_json(folder / FILE_NAME, ranges.model_dump(mode="json"))


def read_learned(folder: Path, scheme: Scheme, runtime: Runtime | None = None) -> LearnedRanges | None:
    """Read the ranges that a model was trained with; None where it has none for files of a scheme and runtime.

    Files of one scheme for different runtimes round other numbers in other places, so the ranges of one do not fit another.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    found = LearnedRanges.model_validate(read_json(path))
    return found if (found.scheme, found.runtime) == (scheme, runtime) and found.products else None


def copy_learned(source: Path, destination: Path) -> None:
    """Copy the ranges that a model was trained with to a folder with the same weights; nothing without any."""
    if (source / FILE_NAME).is_file():
        write_learned(destination, LearnedRanges.model_validate(read_json(source / FILE_NAME)))
