"""Which of several files of a folder to take: the one that corresponds to the folder's default file."""

from __future__ import annotations

from collections.abc import Sequence

from pocketbert.core.artefacts.records import ModelRecord
from pocketbert.core.formats import FORMATS
from pocketbert.core.types import Scheme


def wanted_scheme(default: ModelRecord) -> Scheme:
    """The scheme that a recipe asks for where the folder's default file has its own, such as int8 where Core ML has w8."""
    info = FORMATS[default.format]
    if default.scheme is info.base:
        return Scheme.FP32
    return next((wish for wish, given in info.instead.items() if given is default.scheme), default.scheme)


def best_of(files: Sequence[ModelRecord], wanted: Scheme) -> ModelRecord:
    """The file of the scheme that is wanted, or of what its format has instead; else int8, else the last one.

    Args:
        files: Files of one or several formats; at least one.
        wanted: A scheme, as `wanted_scheme` returns it.
    """

    def fits(record: ModelRecord, wish: Scheme) -> bool:
        info = FORMATS[record.format]
        return record.scheme is (info.base if wish is Scheme.FP32 else info.instead.get(wish, wish))

    return next((r for wish in (wanted, Scheme.INT8) for r in files if fits(r, wish)), files[-1])
