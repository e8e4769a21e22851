"""The one way in: quantize a file, and read what is stored in one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# the back ends register their rows and readers when they are imported
import pocketbert.quantize.coreml
import pocketbert.quantize.onnx
import pocketbert.quantize.tflite  # noqa: F401
from pocketbert.core.errors import GateError
from pocketbert.core.types import Format
from pocketbert.quantize.left import file_problems
from pocketbert.quantize.plan import Plan
from pocketbert.quantize.table import reader_of, row_for
from pocketbert.quantize.weights import WeightTypes


def quantize(source: Path, destination: Path, plan: Plan) -> WeightTypes:
    """Write a smaller copy of an exported file, and check the weight types in it.

    Args:
        source: A file with the weights that the exporter wrote.
        destination: Where to write. A file that fails the check stays there.
        plan: What to make.

    Returns:
        The types found in the written file.

    Raises:
        InputError: If no row of the table writes what the plan asks for, or calibration rows are missing or wrong.
        MissingBackendError: If a library that writes the format is not installed.
        GateError: If the weights in the written file are not those of the scheme, or a range could not be measured.
    """
    row = row_for(plan)
    assert row.write is not None
    row.write(source, destination, plan)
    types = weight_types(destination, plan.format)
    problems = file_problems(destination, row, types, destination.name, plan.weights)
    if problems:
        raise GateError(problems)
    return types


def weight_types(path: Path, format: Format) -> WeightTypes:
    """Read the types of all weights in a file."""
    return reader_of(format).weight_types(path)


def stored_numbers(path: Path, format: Format) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Read name and value of everything stored in a file."""
    yield from reader_of(format).stored_numbers(path)
