"""Sparse teacher logits on disk, one folder an epoch: dynamic masking chooses other positions each time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from torch import Tensor

from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.disk.ownership import Contents
from pocketbert.core.disk.workspace import building
from pocketbert.core.errors import InputError, Problem
from pocketbert.distill.losses.sparse_logits import SparseLogits
from pocketbert.distill.teacher.sparse.settings import StoreSettings

DESCRIPTION, INDEX, RECORDS = "store.json", "index.npy", "records.bin"


class _Description(BaseModel):
    settings: StoreSettings
    epoch: int


class SparseWriter:
    """Takes the rows of one epoch in any order; made by `SparseStore.writing`."""

    def __init__(self, settings: StoreSettings, stream: BinaryIO) -> None:
        self.settings, self._stream, self._done = settings, stream, 0
        self.index = np.full((settings.rows, 2), -1, np.int64)
        """Where each row's records begin and how many there are; -1 where it was not written."""

    def add(self, rows: Sequence[int], positions: Sequence[Sequence[int]], teacher: SparseLogits) -> None:
        """Write some rows.

        Args:
            rows: Row numbers.
            positions: Distilled positions of each, ascending, counted over its own tokens without padding.
            teacher: At all these positions, row after row.

        Raises:
            ValueError: If the logits are not of this store's kind, or a row comes twice.
        """
        s, counts = self.settings, [len(p) for p in positions]
        slots = (sum(counts), s.k + s.samples)
        kind = (tuple(teacher.ids.shape), teacher.vocabulary, teacher.temperature)
        if kind != (slots, s.vocabulary, s.temperature) or len(counts) != len(rows):
            raise ValueError(f"sparse logits {kind} for a store of {(slots, s.vocabulary, s.temperature)}")
        if (self.index[list(rows), 0] >= 0).any() or len(set(rows)) != len(rows):
            raise ValueError(f"a row of {list(rows)} is in this epoch already")
        records = np.empty(slots[0], s.record)
        records["position"] = np.concatenate([np.asarray(p, np.int64) for p in positions])
        records["ids"] = teacher.ids.cpu().numpy()
        records["weights"] = teacher.weights.cpu().numpy()
        records["negative_entropy"] = teacher.negative_entropy.cpu().numpy()
        self._stream.write(records.tobytes())
        self.index[list(rows), 0] = self._done + np.cumsum([0, *counts[:-1]])
        self.index[list(rows), 1] = counts
        self._done += slots[0]


class SparseStore:
    """Sparse logits by (epoch, row).

    Args:
        folder: Holds one folder an epoch.
        settings: What the store is of; epochs of anything else are refused.
    """

    def __init__(self, folder: Path, settings: StoreSettings) -> None:
        self.folder, self.settings = folder, settings
        self._open: tuple[int, NDArray[np.int64], NDArray[np.void]] | None = None

    def path(self, epoch: int) -> Path:
        """Folder of an epoch."""
        return self.folder / f"epoch-{epoch:05d}"

    def has(self, epoch: int) -> bool:
        """Whether an epoch is there, whole; it may still be of something else."""
        return (self.path(epoch) / DESCRIPTION).is_file()

    def holds(self, epoch: int, rows: Sequence[int] | NDArray[np.int64]) -> bool:
        """Whether an epoch of these very settings is there, whole, with all of some rows."""
        try:
            index, _ = self._epoch(epoch)
        except (InputError, OSError, ValueError, EOFError):
            return False
        return bool((index[np.asarray(rows, np.int64), 0] >= 0).all())

    @contextmanager
    def writing(self, epoch: int) -> Iterator[SparseWriter]:
        """Write an epoch, replacing an older one when the block ends without an error.

        Args:
            epoch: Number of the epoch, from 0: with it and the row, the masks are drawn.
        """
        with building(self.path(epoch), Contents(DESCRIPTION, (RECORDS, INDEX))) as work:
            with (work / RECORDS).open("wb") as stream:
                writer = SparseWriter(self.settings, stream)
                yield writer
            np.save(work / INDEX, writer.index)
            described = _Description(settings=self.settings, epoch=epoch)
            write_json(work / DESCRIPTION, described.model_dump())
        self._open = None

    def read(self, epoch: int, rows: Sequence[int], positions: Sequence[Sequence[int]]) -> SparseLogits:
        """Sparse logits of some rows, row after row, on the CPU.

        Args:
            epoch: Number of the epoch.
            rows: Row numbers.
            positions: What is masked in each now; counted as in `SparseWriter.add`.

        Raises:
            InputError: If the epoch is missing, broken or of something else.
            RuntimeError: If a row was masked otherwise when the teacher saw it, or is missing.
        """
        index, records = self._epoch(epoch)
        found = []
        for row, masked in zip(rows, positions, strict=True):
            start, count = index[row].tolist()
            own = records[start : start + count] if start >= 0 else records[:0]
            if start < 0 or own["position"].tolist() != list(masked):
                raise RuntimeError(
                    f"row {row} of epoch {epoch} is masked at {list(masked)}, in the store at "
                    f"{own['position'].tolist() if start >= 0 else 'no time'}: other masks, or another order of rows"
                )
            found.append(own)
        got, s = np.concatenate(found), self.settings
        return SparseLogits(
            torch.from_numpy(got["ids"].astype(np.int32)),
            _fp32(got["weights"]),
            _fp32(got["negative_entropy"]),
            s.vocabulary,
            s.temperature,
        )

    def _epoch(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        if self._open is None or self._open[0] != epoch:
            path = self.path(epoch)
            self._check(path, epoch)
            index, size = np.load(path / INDEX, allow_pickle=False), (path / RECORDS).stat().st_size
            if size != int(index[:, 1].clip(0).sum()) * self.settings.bytes_per_position:
                raise InputError(Problem(str(path), f"its records have a wrong size ({size:,} bytes).", "Delete it."))
            empty = np.empty(0, self.settings.record)
            records = np.memmap(path / RECORDS, self.settings.record, "r") if size else empty
            self._open = (epoch, index, records)
        return self._open[1], self._open[2]

    def _check(self, path: Path, epoch: int) -> None:
        try:
            found = _Description.model_validate(read_json(path / DESCRIPTION))
        except ValidationError as error:
            raise InputError(Problem(str(path), "is not a store of sparse logits.")) from error
        ours = _Description(settings=self.settings, epoch=epoch)
        pairs = {**ours.settings.model_dump(), "epoch": epoch}
        theirs = {**found.settings.model_dump(), "epoch": found.epoch}
        problems = [
            Problem(f"{path} {name}", f"{theirs[name]} instead of {value}.", "Delete it, and write it anew.")
            for name, value in pairs.items()
            if theirs[name] != value
        ]
        if problems:
            raise InputError(problems)


def _fp32(values: NDArray[np.floating]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))
