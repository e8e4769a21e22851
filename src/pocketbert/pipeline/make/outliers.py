"""Which outlier channels of a model were divided, as an export records it and as card and report tell it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, TypeAdapter

from pocketbert.core.disk.files import read_json, write_json

if TYPE_CHECKING:
    from torch import nn

FILE_NAME = "outliers.json"
SHOWN = 6
"""Tensors that a note names."""


class Outliers(BaseModel):
    """Outlier channels of one tensor, see `pocketbert.export.adapters.outliers.scaling`.

    Attributes:
        name: Path of the module that writes the tensor.
        channels: How many of its channels were divided.
        of: How many it has.
        ratio: The largest magnitude of its largest channel over that of its median channel, before.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    channels: int
    of: int
    ratio: float


_LIST = TypeAdapter(list[Outliers])


def write_outliers(folder: Path, module: nn.Module) -> list[Outliers]:
    """Record what was done to a prepared module in the folder of its files.

    Args:
        folder: Where the files of a format are.
        module: The module that they are exported from.

    Returns:
        What was recorded, in the order in which the module computes it.
    """
    from pocketbert.export.prepare import outliers_of

    found = [Outliers(name=o.name, channels=o.channels, of=o.of, ratio=o.ratio) for o in outliers_of(module)]
    write_json(folder / FILE_NAME, _LIST.dump_python(found, mode="json"))
    return found


def read_outliers(folder: Path) -> list[Outliers]:
    """Read what an export step recorded; nothing where an earlier version wrote the folder."""
    path = folder / FILE_NAME
    return _LIST.validate_python(read_json(path)) if path.is_file() else []


def outlier_notes(folders: Sequence[Path]) -> list[str]:
    """Tell what was done to the model of some folders, in one sentence where it is the same for all; nothing without outliers."""
    return list(dict.fromkeys(note for folder in folders if (note := outlier_note(read_outliers(folder)))))


def outlier_line(found: Sequence[Outliers]) -> str:
    """The note of an export on the terminal, without names; empty where there are no outliers."""
    if not found:
        return ""
    tensors = "1 tensor" if len(found) == 1 else f"{len(found)} tensors"
    return (
        f"outlier channels of {tensors}, up to {max(o.ratio for o in found):.0f} times the median channel, divided for "
        "int8; fp32 answers stay the same"
    )


def outlier_note(found: Sequence[Outliers]) -> str:
    """One sentence on the divided channels of a model; empty where there are none."""
    shown = [f"{o.name} ({o.channels} of {o.of}, up to {o.ratio:.0f} times the median channel)" for o in found[:SHOWN]]
    more = f" and {len(found) - SHOWN} more tensors" if len(found) > SHOWN else ""
    return (
        f"Outlier channels were divided by powers of two, so that int8 ranges fit the other channels; fp32 answers stay "
        f"the same: {', '.join(shown)}{more}."
        if found
        else ""
    )
