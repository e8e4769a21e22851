"""What torch measured when smaller files were made: how far a right one is off, and the ranges that a static one must hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families.ranges import ProductRanges

FILE_NAME = "simulated.json"
_MAX_MIB = 1
Error = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""An RMS error, relative to the spread of the logits."""


class Simulated(BaseModel):
    """The content of ``simulated.json``.

    Attributes:
        texts: How many texts the errors were measured on.
        errors: RMS error of a file's scheme, simulated in torch, relative to the spread of the logits; by path in the
            artefact folder. Files whose bound depends on none are not in it.
        ranges: Of each static file, the ranges of what weights are multiplied with and of the results on the calibration
            texts, by the paths of the weights in the torch module; several where the file may hold any of them.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    texts: Annotated[int, Field(ge=0)] = 0
    errors: dict[str, Error] = {}
    ranges: dict[str, dict[str, list[ProductRanges]]] = {}


def write_simulated(folder: Path, simulated: Simulated) -> None:
    """Write errors and ranges into the folder of the golden rows."""
    write_json(folder / FILE_NAME, simulated.model_dump(mode="json"))


def read_simulated(folder: Path) -> Simulated:
    """Read errors and ranges; nothing where the folder was made before they were recorded.

    Raises:
        InputError: If the file is too long or no JSON, or a number in it is not what it must be.
    """
    path = folder / FILE_NAME
    if not path.exists():
        return Simulated()
    try:
        return Simulated.model_validate(read_json(path, _MAX_MIB))
    except ValidationError as error:
        found = error.errors()[0]
        place = ".".join(map(str, found["loc"]))
        raise InputError(Problem(f"{path} {place}".rstrip(), f"{found['msg']}.", "Copy the folder again.")) from error
