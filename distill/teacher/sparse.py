"""A masked-language model's guesses, made before training: text that is masked anew at every step can be cached too.

Which rows a step has, and what is hidden in them, are functions of (seed, purpose, step): the teacher can be asked
about every step of a stage beforehand, and its answers kept by (epoch, row) as `SparseLogits`. Hidden states are
not kept: there, asking the teacher again is cheaper than reading what it said.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from pocketbert.core.disk.files import read_json, sha256_json, write_json
from pocketbert.core.disk.ownership import Contents, lock_beside
from pocketbert.core.disk.workspace import building
from pocketbert.core.errors import InputError, MachineError, Problem
from pocketbert.core.heads.head import IGNORED
from pocketbert.core.host.processes import here
from pocketbert.core.host.progress import Meter
from pocketbert.core.host.system import installed
from pocketbert.core.recipe.stages import DistilBertStage, SparseCache
from pocketbert.distill.capture.outputs import LmHead, places
from pocketbert.distill.losses.tokens import SparseLogits, sparsify, uniform_draws
from pocketbert.distill.teacher.cache import weights_digest
from pocketbert.distill.text.corpus import TokenRows
from pocketbert.distill.text.pairs import GeneralSet
from pocketbert.distill.training.data import ROWS, STEPS, BatchOrder, divide, parts

# --- settings ---
# What a store of sparse logits is of, and how one position is written.


class StoreSettings(BaseModel):
    """What the numbers in a store depend on, in addition to row and epoch.

    Bytes a position: ``6 + (k + samples) * (i + w)`` with i = 2 up to 65,536 tokens in the vocabulary,
    else 4, and w = 2 for fp16 weights, 4 for fp32. With k + samples = 64, fp16 and BERT's vocabulary that
    is 262, where the fp16 logits themselves take 61,044. Rows may have up to 65,536 tokens.

    Attributes:
        teacher: Digest of the teacher; see `pocketbert.distill.teacher.cache.weights_digest`.
        data: Digest of the rows before masking.
        masks: Digest of what decides a row's masks in an epoch: seed, purpose, share, rows per step, ...
        seed: Seed of the samples.
        rows: Number of rows.
        vocabulary: Number of tokens.
        k: Tokens kept exactly.
        samples: Draws from the others.
        temperature: T of the distributions.
        half: Whether weights are fp16: off by up to 2^-11 of themselves, below 6e-5 by up to 3e-8.
    """

    model_config = ConfigDict(frozen=True)

    teacher: str
    data: str
    masks: str
    seed: int
    rows: int
    vocabulary: int
    k: int
    samples: int
    temperature: float = 1.0
    half: bool = True

    @property
    def record(self) -> np.dtype[np.void]:
        """Type of one position's record, without gaps, little-endian."""
        slots = (self.k + self.samples,)
        ids, weights = ("<u2" if self.vocabulary <= 1 << 16 else "<i4"), ("<f2" if self.half else "<f4")
        return np.dtype(
            [
                ("position", "<u2"),
                ("negative_entropy", "<f4"),
                ("ids", ids, slots),
                ("weights", weights, slots),
            ]
        )

    @property
    def bytes_per_position(self) -> int:
        """Bytes on disk for each distilled position."""
        return self.record.itemsize


# --- key ---
# What a store of a teacher's guesses depends on, as `StoreSettings`: an epoch of other settings is stale.


_AT_ONCE = 4096


def settings_of(
    teacher: Any,
    data: GeneralSet,
    order: BatchOrder,
    cache: SparseCache,
    temperature: float,
    half: bool = True,
    where: str = "cache",
) -> StoreSettings:
    """What the guesses of a teacher in a stage depend on.

    Args:
        teacher: Weights and configuration count.
        data: Its rows, and how they are masked.
        order: Which rows are masked together.
        cache: How much is kept of each distribution.
        temperature: T of the stage.
        half: Whether weights are kept as fp16.
        where: Recipe key, for errors.

    Raises:
        InputError: If more tokens are to be kept exactly than the vocabulary has.
    """
    words = teacher.config.vocab_size
    if cache.top > words:
        raise InputError(
            Problem(f"{where}.top", f"{cache.top}, the vocabulary has {words} tokens.", f"Set top: {words} or less.")
        )
    masks = [*data.key(), order.seed, order.purpose, order.batch]
    return StoreSettings(
        teacher=sha256_json([weights_digest(teacher), installed(("numpy", "torch", "transformers"))]),
        data=tokens_digest(data.corpus),
        masks=sha256_json(masks),
        seed=order.seed,
        rows=len(order.lengths),
        vocabulary=words,
        k=cache.top,
        samples=cache.samples,
        temperature=temperature,
        half=half,
    )


def tokens_digest(rows: TokenRows) -> str:
    """Hex digest of the tokens of all rows, in order."""
    digest = hashlib.sha256(np.asarray(rows.lengths, "<i8").tobytes())
    for start in range(0, len(rows.lengths), _AT_ONCE):
        found = rows.ids(range(start, min(start + _AT_ONCE, len(rows.lengths))))
        digest.update(np.concatenate(found).astype("<i4").tobytes())
    return digest.hexdigest()


# --- store ---
# Sparse teacher logits on disk, one folder an epoch: dynamic masking chooses other positions each time.


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


PORTION = 32
"""Rows per forward pass while building."""

_POLL_S = 0.2


@dataclass(frozen=True)
class SparseTeacher:
    """What a teacher said of the hidden tokens of every step.

    Attributes:
        store: Holds its answers.
        per_epoch: Steps of an epoch; see `BatchOrder`.
    """

    store: SparseStore
    per_epoch: int

    @property
    def temperature(self) -> float:
        """T that the distributions were softened with."""
        return self.store.settings.temperature

    def __call__(self, batch: dict[str, Tensor]) -> SparseLogits:
        """The teacher's guesses at the hidden tokens of a step's batch, or of part of it, on the batch's device.

        Args:
            batch: What `GeneralSet.batch` gives: ``attention_mask``, ``labels`` [B, S], ``rows`` and ``steps`` [B].

        Raises:
            InputError: If the epoch is missing, broken or of something else.
            RuntimeError: If other tokens are hidden than when the teacher was asked.
        """
        epoch = int(batch[STEPS][0]) // self.per_epoch
        found = self.store.read(epoch, batch[ROWS].tolist(), _hidden(batch))
        return found.to(batch["labels"].device)


def sparse_teacher(
    teacher: Any,
    data: GeneralSet,
    order: BatchOrder,
    stage: DistilBertStage,
    folder: Path,
    *,
    half: bool = True,
    where: str = "cache",
) -> SparseTeacher:
    """Open the store of a teacher's guesses, after asking it whatever is not in there yet.

    A store of anything else (weights, rows, masks, batches, seed, temperature, versions) is replaced.

    Args:
        teacher: Masked-language model in eval mode, not wrapped.
        data: The rows of the stage.
        order: The batches of the stage.
        stage: Its steps, its temperature, and how much is kept of each distribution.
        folder: The store.
        half: Keep fp16 weights; see `StoreSettings`.
        where: Recipe key, for errors.

    Raises:
        InputError: If more tokens are to be kept than there are, or `folder` holds something else.
        MachineError: If the disk has too little room.
    """
    assert stage.cache is not None, "the stage asks for a cache"
    settings = settings_of(teacher, data, order, stage.cache, stage.temperature, half, where)
    return build(SparseStore(folder, settings), teacher, data, order, stage.steps)


def build(
    store: SparseStore,
    teacher: Any,
    data: GeneralSet,
    order: BatchOrder,
    steps: int,
    *,
    portion: int = PORTION,
) -> SparseTeacher:
    """Ask a teacher about every step, epoch by epoch; epochs that are there already are kept.

    A build that was killed goes on with the epoch it was in. Under a launcher process 0 alone asks and writes, the
    others wait for it. The teacher computes in fp32, on the accelerator where there is one, and is then put back.

    Args:
        store: Where the answers go; `settings_of` says what of.
        teacher: Masked-language model in eval mode; not needed where nothing is missing.
        data: The rows of the stage.
        order: The batches of the stage.
        steps: Steps of the stage.
        portion: Rows per forward pass.

    Raises:
        InputError: If something else lies where an epoch belongs.
        MachineError: If the disk has too little room.
    """
    epochs = [range(first, min(first + order.per_epoch, steps)) for first in range(0, steps, order.per_epoch)]
    found = SparseTeacher(store, order.per_epoch)
    if not here().main:
        for epoch, its in enumerate(epochs):
            while not store.holds(epoch, _rows(order, its)):
                time.sleep(_POLL_S)  # should process 0 fail, the launcher's watch ends this one
        return found
    store.folder.parent.mkdir(parents=True, exist_ok=True)
    with lock_beside(store.folder):
        missing = {e: its for e, its in enumerate(epochs) if not store.holds(e, _rows(order, its))}
        _check_room(store, data, order, missing)
        done = steps - sum(len(its) for its in missing.values())
        with Meter("ask the teacher", steps, done) as meter:
            for epoch, its in missing.items():
                with store.writing(epoch) as writer, _computing(teacher) as head:
                    for step in its:
                        batch = data.batch(order.rows(step).tolist(), step)
                        for rows in parts(order.batch, 0, 1, portion):
                            _ask(teacher, head, divide(batch, rows), epoch, writer)
                        meter.advance()
    return found


@contextmanager
def _computing(teacher: Any) -> Iterator[LmHead]:
    home = next(teacher.parameters()).device
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else home
    try:
        teacher.to(device)
        with torch.no_grad(), torch.autocast(device.type if device else home.type, enabled=False):
            yield LmHead(teacher, "teacher")
    finally:
        teacher.to(home)


def _ask(teacher: Any, head: LmHead, batch: dict[str, Tensor], epoch: int, writer: SparseWriter) -> None:
    settings, device = writer.settings, next(teacher.parameters()).device
    inputs = {name: batch[name].to(device) for name in ("input_ids", "attention_mask")}
    said = head.run(teacher, inputs, places(batch["labels"] != IGNORED).to(device)).logits
    rows, hidden = batch[ROWS].tolist(), _hidden(batch)
    draws = torch.cat(
        [
            uniform_draws(len(its), settings.samples, settings.seed, row, epoch)
            for row, its in zip(rows, hidden, strict=True)
        ]
    )
    writer.add(rows, hidden, sparsify(said, settings.k, draws, settings.temperature))


def _hidden(batch: dict[str, Tensor]) -> list[list[int]]:
    """Places of the hidden tokens of each row, counted over its own tokens: padding may stand before them."""
    own, hidden = batch["attention_mask"].cpu().cumsum(1) - 1, (batch["labels"] != IGNORED).cpu()
    return [row[chosen].tolist() for row, chosen in zip(own, hidden, strict=True)]


def _rows(order: BatchOrder, steps: range) -> NDArray[np.int64]:
    return np.concatenate([order.rows(step) for step in steps])


def _check_room(store: SparseStore, data: GeneralSet, order: BatchOrder, missing: dict[int, range]) -> None:
    """Refuse what the disk cannot hold, and to replace what is no epoch of a store."""
    problems = [
        Problem(str(store.path(e)), "exists and is not a store of sparse logits; it is not replaced.", "Move it away.")
        for e in missing
        if store.path(e).exists() and not store.has(e)
    ]
    if problems:
        raise InputError(problems)
    hidden = sum(data.masking.estimate(order.lengths[order.rows(s)]) for its in missing.values() for s in its)
    index = len(missing) * store.settings.rows * 16
    needed, free = (
        hidden * store.settings.bytes_per_position + index,
        shutil.disk_usage(store.folder.parent).free,
    )
    if needed > free:
        raise MachineError(
            f"the teacher's answers at {hidden:,} hidden tokens take {needed:,} bytes, {store.folder.parent} has {free:,} free. "
            "Fix: make room, lower cache.top and cache.samples, or run the teacher online."
        )
