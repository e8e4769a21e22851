"""Ranges of activations that training found, next to a model's weights: static schemes store them in place of measured ones.

A range belongs to a matrix product and is found by the product's weights, which a file of any format holds: names of tensors
differ from format to format, and a converter joins or renames them.
"""

from __future__ import annotations

import hashlib
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.types import Format, Role, Runtime, Scheme

# --- roles ---
# Which role a stored weight of an encoder has, told from the path of its module; what a file records of each weight.


_RULES: tuple[tuple[str, Role], ...] = (
    (r"embed|\.(offsets|entry)\.", Role.EMBEDDING),
    (r"\.(pooler|pre_classifier|sequence_summary)\.", Role.POOLER),
    (r"attention|attn|\.(qkv|query|key|value)\.|\.bottleneck\.(input|attention)\.", Role.ATTENTION_PROJECTION),
    (r"\.(up|intermediate|Wi)\.", Role.FFN_UP),
    (r"\.(down|output|Wo)\.", Role.FFN_DOWN),
)
"""The first pattern that the path of an encoder's weight has; weights outside the layers are the head's."""
_LAYER = re.compile(r"\.\d+\.")
_OUTSIDE = (Role.EMBEDDING, Role.POOLER)


class WeightRole(BaseModel):
    """One stored weight of a model, and what a file makes of it.

    Attributes:
        name: Path of the weight in the torch module that the file was exported from.
        role: What it does.
        digest: Digest of its fp32 numbers, see `pocketbert.core.families.weight_records.digest_of`.
        numbers: How many numbers it has; 0 where an earlier version wrote the list.
        scheme: How it is stored; None where it was left as it was exported.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=1 << 10)]
    role: Role
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    numbers: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    scheme: Scheme | None = None

    def matches(self, pattern: str) -> bool:
        """Whether a pattern of `quantize.names` means it: its path, or the end of its path from a module on."""
        return any(fnmatchcase(self.name, p) for p in (pattern, f"*.{pattern}", f"{pattern}.*", f"*.{pattern}.*"))


def role_of(name: str) -> Role:
    """Tell the role of a weight from its path in an encoder with a head."""
    for pattern, role in _RULES:
        if (role in _OUTSIDE or _LAYER.search(name)) and re.search(pattern, name):
            return role
    return Role.HEAD


# --- digests ---
# Digests by which weights are known in every file, whatever their names and whichever way they are turned there.


def digest_of(numbers: NDArray[Any]) -> str | None:
    """Return the digest of a matrix as fp32 numbers, the same for its transpose; None where it is no matrix.

    Args:
        numbers: The matrix, with or without axes of length 1.
    """
    matrix = np.squeeze(np.asarray(numbers, np.float32))
    if matrix.ndim != 2:
        return None
    return min(hashlib.sha256(np.ascontiguousarray(m).tobytes()).hexdigest() for m in (matrix, matrix.T))


# --- ranges ---
# Ranges of the activations around a product with a stored weight.


Range = tuple[float, float]
"""Smallest and largest number."""


class ProductRanges(BaseModel):
    """The ranges of one matrix product.

    Attributes:
        inputs: Smallest and largest number of its input; None where none is known.
        outputs: The same of its result.
    """

    model_config = ConfigDict(frozen=True)

    inputs: Range | None = None
    outputs: Range | None = None


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
