"""Records of weights: role and digest of each (`WeightRole`), activation ranges learned in training (`LearnedRanges`).

Weights are identified by digests of their numbers, which a file of any format holds: names of tensors differ from
format to format, and a converter joins or renames them. Static schemes store the learned range of a matrix product
in place of a measured one; it is looked up by the digest of the product's weights.
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

_ROLE_PATTERNS: tuple[tuple[str, Role], ...] = (
    (r"embed|\.(offsets|entry)\.", Role.EMBEDDING),
    (r"\.(pooler|pre_classifier|sequence_summary)\.", Role.POOLER),
    (r"attention|attn|\.(qkv|query|key|value)\.|\.bottleneck\.(input|attention)\.", Role.ATTENTION_PROJECTION),
    (r"\.(up|intermediate|Wi)\.", Role.FFN_UP),
    (r"\.(down|output|Wo)\.", Role.FFN_DOWN),
)
"""Patterns of a weight's path and the role of weights that match; the first match counts, other weights are the
head's."""
_LAYER = re.compile(r"\.\d+\.")
_OUTSIDE_LAYERS = (Role.EMBEDDING, Role.POOLER)
_FILE_NAME = "learned_ranges.json"


# --- roles ------------------------------------------------------------


class WeightRole(BaseModel):
    """The record of one stored weight: its name, its role (place in a layer, such as ffn_down) and its scheme.

    Attributes:
        name: Path of the weight in the torch module that the file was exported from.
        role: Role of the weight in the encoder, such as ffn_down.
        digest: Digest of the weight's numbers in fp32, see `matrix_digest`.
        numbers: How many numbers the weight has; 0 if an earlier version of PocketBERT wrote the list.
        scheme: Scheme in which the weight is stored; None if it is stored as it was exported.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=1 << 10)]
    role: Role
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    numbers: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    scheme: Scheme | None = None

    def matches(self, pattern: str) -> bool:
        """Return whether a pattern of the recipe key `quantize.names` matches the weight's path or a module on it."""
        return any(fnmatchcase(self.name, p) for p in (pattern, f"*.{pattern}", f"{pattern}.*", f"*.{pattern}.*"))


def classify_weight(name: str) -> Role:
    """Return the role of a weight (its place in the model, such as embedding or ffn_down) from its path."""
    for pattern, role in _ROLE_PATTERNS:
        if (role in _OUTSIDE_LAYERS or _LAYER.search(name)) and re.search(pattern, name):
            return role
    return Role.HEAD


def matrix_digest(numbers: NDArray[Any]) -> str | None:
    """Return the sha256 of a matrix as fp32 numbers, equal for its transpose; None if the array is no matrix.

    Axes of length 1 are ignored.
    """
    matrix = np.squeeze(np.asarray(numbers, np.float32))
    if matrix.ndim != 2:
        return None
    if matrix.shape[0] < matrix.shape[1]:
        matrix = matrix.T
    elif matrix.shape[0] == matrix.shape[1]:
        pairs = ((row.tobytes(), column.tobytes()) for row, column in zip(matrix, matrix.T, strict=True))
        row, column = next((pair for pair in pairs if pair[0] != pair[1]), (b"", b""))
        matrix = matrix.T if column < row else matrix
    return hashlib.sha256(np.ascontiguousarray(matrix).data).hexdigest()


# --- learned ranges ------------------------------------------------------------


Range = tuple[float, float]
"""Smallest and largest number."""


class ProductRanges(BaseModel):
    """Ranges (smallest, largest number) of the inputs and outputs of one matrix product.

    Attributes:
        inputs: Smallest and largest number of the input; None if unknown.
        outputs: Smallest and largest number of the output, with the offset (bias) added; None if unknown.
        before_offset: Smallest and largest number of the output before an offset is added; also set if there is no
            offset.
    """

    model_config = ConfigDict(frozen=True)

    inputs: Range | None = None
    outputs: Range | None = None
    before_offset: Range | None = None


class LearnedRanges(BaseModel):
    """The activation ranges that a model learned in quantization-aware training (method `qat`).

    Attributes:
        scheme: The scheme that the model was trained for.
        format: The format whose rounding was simulated.
        runtime: The runtime whose files the model was trained for; None for files that any runtime may run.
        products: Ranges of each matrix product, by `product_fingerprint` of its weights.
    """

    model_config = ConfigDict(frozen=True)

    scheme: Scheme
    format: Format
    runtime: Runtime | None = None
    products: dict[str, ProductRanges]

    def of(self, weight: NDArray[np.generic]) -> ProductRanges:
        """Return the learned activation ranges of the product with this weight matrix; empty ones if there are none."""
        return self.products.get(product_fingerprint(weight), ProductRanges())


def product_fingerprint(weight: NDArray[np.generic]) -> str:
    """Return the sha256 of a weight matrix as fp16 numbers, equal for its transpose.

    Args:
        weight: [out, in], [in, out], or either with further axes of size 1, in fp32 or fp16.
    """
    matrix = weight.reshape([n for n in weight.shape if n != 1] or [1]).astype(np.float16)
    return min(hashlib.sha256(np.ascontiguousarray(m).tobytes()).hexdigest() for m in (matrix, matrix.T))


def write_learned_ranges(folder: Path, ranges: LearnedRanges) -> None:
    """Write the learned activation ranges into the folder of the model's weights."""
    write_json(folder / _FILE_NAME, ranges.model_dump(mode="json"))


def read_learned_ranges(folder: Path, scheme: Scheme, runtime: Runtime | None = None) -> LearnedRanges | None:
    """Read the activation ranges that a model learned for a scheme and runtime; None if it learned none for these.

    Files of one scheme for two runtimes round different values, so the ranges for one do not fit the other.
    """
    path = folder / _FILE_NAME
    if not path.is_file():
        return None
    ranges = LearnedRanges.model_validate(read_json(path))
    return ranges if (ranges.scheme, ranges.runtime) == (scheme, runtime) and ranges.products else None


def copy_learned_ranges(source: Path, destination: Path) -> None:
    """Copy a model's learned activation ranges, if there are any, to another folder with the same weights."""
    if (source / _FILE_NAME).is_file():
        write_learned_ranges(destination, LearnedRanges.model_validate(read_json(source / _FILE_NAME)))
