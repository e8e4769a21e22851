"""A teacher whose outputs for task data lie in one memory-mapped file: every signal of every row.

Task data is seen for many epochs and its rows never change, so the teacher need run only once. Where rows
do change (dynamic masking) or are many (a corpus), a cache of hidden states or attention is the wrong tool.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from torch import Tensor

from pocketbert.core.disk.files import read_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.types import Signal
from pocketbert.distill.capture.interface import MASKED
from pocketbert.distill.teacher.cache.layout import Layout, Part
from pocketbert.distill.teacher.signals import Taught, Wanted
from pocketbert.distill.training.train_set import as_teacher_reads

DESCRIPTION, LENGTHS, RECORDS = "cache.json", "lengths.npy", "records.bin"

Array = NDArray[np.float32]


class Description(BaseModel):
    """What is in a cache; ``cache.json``.

    Attributes:
        key: Digest of what it was made from.
        layout: Arrays of a record.
    """

    key: str
    layout: Layout


class CachedTeacher:
    """Reads a cache; `pocketbert.distill.teacher.cache.build` writes it. The teacher itself is not needed any more.

    A batch must hold ``rows`` (row numbers, int64 [B]) and ``attention_mask`` [B, S], padded on either side.
    At padded positions outputs and hidden states are 0, and scores -1e4 at padded keys.

    Args:
        folder: Where the cache is.
        key: What it must have been made from; see `pocketbert.distill.teacher.cache.key.cache_key`.
        wanted: The signals in it.

    Raises:
        InputError: If there is no whole cache, or it was made from something else.
    """

    def __init__(self, folder: Path, key: str, wanted: Wanted) -> None:
        self._wanted = wanted
        try:
            description = Description.model_validate(read_json(folder / DESCRIPTION))
        except ValidationError as error:
            raise InputError(Problem(str(folder), "is not a cache of teacher outputs.")) from error
        if description.key != key:
            raise InputError(
                Problem(
                    str(folder),
                    f"was made from other weights, rows, signals or versions "
                    f"(key {description.key[:12]}, wanted {key[:12]}).",
                    "Delete it, or build it anew.",
                )
            )
        self._layout = description.layout
        self._lengths = np.load(folder / LENGTHS, allow_pickle=False)
        self._starts = self._layout.starts(self._lengths)
        wanted_bytes = int(self._starts[-1]) * self._layout.dtype.itemsize
        found = (folder / RECORDS).stat().st_size
        if found != wanted_bytes:
            raise InputError(
                Problem(
                    str(folder / RECORDS),
                    f"has {found:,} bytes instead of {wanted_bytes:,}.",
                    "Delete the cache, or build it anew.",
                )
            )
        self._records = np.memmap(folder / RECORDS, self._layout.dtype, "r") if found else np.empty(0)

    @property
    def wanted(self) -> Wanted:
        """The signals that every call returns."""
        return self._wanted

    def __call__(self, batch: Mapping[str, Tensor]) -> Taught:
        """Signals of one batch, fp32, padded as the batch is, on its device.

        Raises:
            RuntimeError: If a row of the batch has not the tokens that the cached row had.
        """
        batch = as_teacher_reads(batch)
        device = batch["attention_mask"].device
        mask = batch["attention_mask"].cpu().numpy() != 0
        rows, lengths, first = batch["rows"].tolist(), mask.sum(1), mask.argmax(1)
        arrays = [_empty(part, mask) for part in self._layout.parts]
        for i, row in enumerate(rows):
            n, at, start = int(lengths[i]), int(self._starts[row]), int(first[i])
            if n != self._lengths[row] or not mask[i, start : start + n].all():
                raise RuntimeError(
                    f"row {row} has {n} tokens in the batch and {self._lengths[row]} in the teacher cache, "
                    "or a gap between them: these are not the rows that the cache was made from"
                )
            for part, array in zip(self._layout.parts, arrays, strict=True):
                value = array[i][part.place(start, n)]
                value[...] = self._records[at : at + value.size].reshape(value.shape)
                at += value.size
        found = [(p, torch.from_numpy(a).to(device)) for p, a in zip(self._layout.parts, arrays, strict=True)]
        return Taught(
            {p.name: value for p, value in found if p.signal is Signal.LOGITS},
            {int(p.name): value for p, value in found if p.signal is Signal.HIDDEN},
            {int(p.name): value for p, value in found if p.signal is Signal.ATTENTION},
        )


def _empty(part: Part, mask: NDArray[np.bool_]) -> Array:
    array = np.zeros((len(mask), *part.shape_of(mask.shape[1])), np.float32)
    if part.signal is Signal.ATTENTION:
        array += np.where(mask, 0, MASKED).astype(np.float32)[:, None, None, :]
    return array
