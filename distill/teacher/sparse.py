"""Sparse logits of a masked-language model, computed before training, also for text that is masked anew at every step.

The rows of a step and the tokens that are masked in them are functions of (seed, purpose, step). The teacher can
therefore predict the masked tokens of every step of a stage beforehand, and its logits are stored by (epoch, row) as
`SparseLogits`. Hidden states are not stored: computing them again is cheaper than reading them.

`sparse_teacher` opens the store of a stage after computing what is missing in it, and returns the `SparseTeacher` that
the training loop asks for the logits of each batch.

A `_SparseStore` is a folder with one folder per epoch: ``store.json`` (`_StoreSettings` and the epoch), ``index.npy``
(where each row's records begin, and how many there are) and ``records.bin`` (one record per masked token).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from pocketbert.core.disk.files import read_json, sha256_json, write_json
from pocketbert.core.disk.ownership import FolderContents, lock_beside
from pocketbert.core.disk.workspace import build_folder
from pocketbert.core.errors import InputError, MachineError, Problem
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.host.processes import current_process, exchange
from pocketbert.core.host.progress import Meter
from pocketbert.core.host.system import installed_versions
from pocketbert.core.recipe.stages import DistilBertStage, SparseCache
from pocketbert.distill.capture.outputs import LmHead, flat_indices
from pocketbert.distill.losses.tokens import SparseLogits, draw_uniform_numbers, sparsify
from pocketbert.distill.teacher.cache import weights_digest
from pocketbert.distill.teacher.signals import on_accelerator
from pocketbert.distill.text.corpus import TokenRows
from pocketbert.distill.text.pairs import GeneralSet
from pocketbert.distill.training.data import ROW_NUMBERS, STEP_NUMBERS, BatchOrder, Lookahead, split_batch, take_rows
from pocketbert.distill.training.sharding import join_remaining_passes

_DESCRIPTION, _INDEX, _RECORDS = "store.json", "index.npy", "records.bin"

_DIGEST_ROWS = 4096
"""Rows that are hashed together."""

_PORTION = 32
"""Rows per forward pass while building."""


class _StoreSettings(BaseModel):
    """Everything that decides the stored logits of a given row and epoch. A store with other settings is stale.

    Bytes per masked token: ``6 + (k + samples) * (i + w)`` with i = 2 up to 65,536 tokens in the vocabulary,
    else 4, and w = 2 for fp16 weights, 4 for fp32. With k + samples = 64, fp16 and BERT's vocabulary that
    is 262, where the fp16 logits themselves take 61,044. Rows may have up to 65,536 tokens.

    Attributes:
        teacher: Digest of the teacher; see `pocketbert.distill.teacher.cache.weights_digest`.
        data: Digest of the rows before masking.
        masks: Digest of what decides a row's masks in an epoch: seed, purpose, share, rows per step, ...
        seed: Seed of the samples.
        rows: Number of rows.
        vocabulary: Number of tokens.
        k: Number of tokens kept exactly for each masked token.
        samples: Number of samples from the other tokens.
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
        """NumPy type of the stored record of one masked token, little-endian and without gaps."""
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
        """Number of bytes on disk for each masked token."""
        return self.record.itemsize


class _Description(BaseModel):
    """Content of an epoch's ``store.json``: the store's settings and the number of the epoch."""

    settings: _StoreSettings
    epoch: int


@dataclass(frozen=True)
class SparseTeacher:
    """Reads a teacher's stored logits for the masked tokens of each training step.

    Attributes:
        store: The store on disk.
        per_epoch: Number of steps of an epoch; see `BatchOrder`.
    """

    store: _SparseStore
    per_epoch: int

    @property
    def temperature(self) -> float:
        """Temperature T with which the stored distributions were softened."""
        return self.store.settings.temperature

    def __call__(self, batch: dict[str, Tensor]) -> SparseLogits:
        """Read the teacher's logits for the masked tokens of a batch, or of part of it.

        Args:
            batch: A batch of `GeneralSet`: ``attention_mask``, ``labels`` [B, S], ``rows`` and ``steps`` [B].

        Returns:
            A sample of the logits at each masked token, row after row, on the batch's device.

        Raises:
            InputError: If the epoch is missing or broken, or was stored with other settings.
            RuntimeError: If other tokens are masked than when the store was built.
        """
        epoch = int(batch[STEP_NUMBERS][0]) // self.per_epoch
        logits = self.store.read(epoch, batch[ROW_NUMBERS].tolist(), _masked_positions(batch))
        return logits.to(batch["labels"].device)


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
    """Open the store of a teacher's sampled logits for all training steps, after computing those that are missing.

    An epoch that was stored with other settings (weights, rows, masks, batches, seed, temperature, versions) is
    replaced.

    Args:
        teacher: Masked-language model in eval mode, not wrapped.
        data: The rows of the stage.
        order: The batches of the stage.
        stage: Settings: steps, temperature, and how many tokens of each distribution are kept and sampled.
        folder: Folder of the store.
        half: Whether to store weights as fp16; see `_StoreSettings`.
        where: Recipe key that error messages name.

    Raises:
        InputError: If more tokens are to be kept than the vocabulary has, or `folder` holds something else.
        MachineError: If the disk has too little room.
    """
    assert stage.cache is not None, "the stage asks for a cache"
    settings = _settings_of(teacher, data, order, stage.cache, stage.temperature, half, where)
    return _build_store(_SparseStore(folder, settings), teacher, data, order, stage.steps)


def _settings_of(
    teacher: Any,
    data: GeneralSet,
    order: BatchOrder,
    cache: SparseCache,
    temperature: float,
    half: bool = True,
    where: str = "cache",
) -> _StoreSettings:
    """Return all settings that decide the stored teacher logits of a stage. A store with other settings is not used.

    `cache` gives how many tokens of each distribution are kept exactly, and how many are sampled.

    Raises:
        InputError: If more tokens are to be kept exactly than the vocabulary has.
    """
    vocabulary = teacher.config.vocab_size
    if cache.top > vocabulary:
        what = f"{cache.top}, the vocabulary has {vocabulary} tokens."
        raise InputError(Problem(f"{where}.top", what, f"Set top: {vocabulary} or less."))
    return _StoreSettings(
        teacher=sha256_json([weights_digest(teacher), installed_versions(("numpy", "torch", "transformers"))]),
        data=_rows_digest(data.corpus),
        masks=sha256_json([*data.key(), order.seed, order.purpose, order.batch]),
        seed=order.seed,
        rows=len(order.lengths),
        vocabulary=vocabulary,
        k=cache.top,
        samples=cache.samples,
        temperature=temperature,
        half=half,
    )


def _rows_digest(rows: TokenRows) -> str:
    """Return the hex digest of the token ids of all rows, in order."""
    digest = hashlib.sha256(np.asarray(rows.lengths, "<i8").tobytes())
    for start in range(0, len(rows.lengths), _DIGEST_ROWS):
        ids = rows.ids(range(start, min(start + _DIGEST_ROWS, len(rows.lengths))))
        digest.update(np.concatenate(ids).astype("<i4").tobytes())
    return digest.hexdigest()


# --- building a store ---


def _build_store(
    store: _SparseStore,
    teacher: Any,
    data: GeneralSet,
    order: BatchOrder,
    steps: int,
    *,
    portion: int = _PORTION,
) -> SparseTeacher:
    """Run the teacher on the batches of all steps, and store a sample of its logits. Epochs that are complete are kept.

    A build that was killed continues with the epoch in which it stopped. The processes of a launch compute consecutive
    parts of an epoch's steps, and process 0 joins them to the bytes that one process would write. The teacher computes in
    fp32, on the accelerator if there is one, `portion` rows at a time, and is then moved back; if nothing is missing it is
    not run.
    """
    epochs = [range(first, min(first + order.per_epoch, steps)) for first in range(0, steps, order.per_epoch)]

    def compute(epoch: int, writer: _SparseWriter) -> None:
        """Compute and write this process's part of an epoch, showing the progress."""
        process = current_process()
        [own] = split_batch(len(epochs[epoch]), process.rank, process.world)
        ahead = Lookahead(lambda step: data.batch(order.rows(step).tolist(), step), epochs[epoch][own].stop)
        label = f"ask the teacher, epoch {epoch + 1} of {len(epochs)}"
        with (
            closing(ahead) as batches,
            on_accelerator(teacher) as device,
            torch.no_grad(),
            torch.autocast(device.type, enabled=False),
            Meter(label, len(epochs[epoch][own])) as meter,
        ):
            head = LmHead(teacher, "teacher")
            for step in epochs[epoch][own]:
                for rows in split_batch(order.batch, 0, 1, portion):
                    _write_logits(teacher, head, take_rows(batches.take(step), rows), epoch, writer)
                meter.advance()
            join_remaining_passes()

    if not current_process().main:
        for epoch in json.loads(exchange()[0]):
            work = Path(exchange()[0])
            with (work / f"{current_process().rank}-{_RECORDS}").open("wb") as stream:
                writer = _SparseWriter(store.settings, stream, work)
                compute(epoch, writer)
            np.save(work / f"{current_process().rank}-{_INDEX}", writer.index)
            exchange()
        exchange()
        return SparseTeacher(store, order.per_epoch)
    store.folder.parent.mkdir(parents=True, exist_ok=True)
    with lock_beside(store.folder):
        missing = {
            epoch: own_steps
            for epoch, own_steps in enumerate(epochs)
            if not store.holds(epoch, np.concatenate([order.rows(step) for step in own_steps]))
        }
        _check_room(store, data, order, missing)
        exchange(json.dumps([*missing]))
        for epoch in missing:
            with store.writing(epoch) as writer:
                exchange(str(writer.folder))
                compute(epoch, writer)
                exchange()  # all processes have written their parts
                writer.add_parts()
        exchange()  # all epochs are there
    return SparseTeacher(store, order.per_epoch)


def _check_room(store: _SparseStore, data: GeneralSet, order: BatchOrder, missing: dict[int, range]) -> None:
    """Check that the missing epochs can be written: raise an error if their folders or the disk do not allow it.

    Raises InputError if a folder of an epoch holds files of something else, MachineError if the disk has too little
    space.
    """
    problems = [
        Problem(str(store.path(e)), "exists and is not a store of sparse logits; it is not replaced.", "Move it away.")
        for e in missing
        if store.path(e).exists() and not store.has(e)
    ]
    if problems:
        raise InputError(problems)
    masked = sum(data.masking.estimate(order.lengths[order.rows(s)]) for steps in missing.values() for s in steps)
    needed = masked * store.settings.bytes_per_position + len(missing) * store.settings.rows * 16
    needed *= 1 if current_process().world == 1 else 2  # what other processes write is copied
    free = shutil.disk_usage(store.folder.parent).free
    if needed > free:
        raise MachineError(
            f"the teacher's answers at {masked:,} hidden tokens take {needed:,} bytes, {store.folder.parent} has {free:,} free. "
            "Fix: make room, lower cache.top and cache.samples, or run the teacher online."
        )


def _write_logits(teacher: Any, head: LmHead, batch: dict[str, Tensor], epoch: int, writer: _SparseWriter) -> None:
    """Compute the teacher's logits for the masked tokens of a batch, and write a sample of them with `writer`.

    The sample holds the most probable tokens and some others, drawn at random.
    """
    settings, device = writer.settings, next(teacher.parameters()).device
    inputs = {name: batch[name].to(device) for name in ("input_ids", "attention_mask")}
    logits = head.run(teacher, inputs, flat_indices(batch["labels"] != IGNORED_LABEL).to(device)).logits
    rows, positions = batch[ROW_NUMBERS].tolist(), _masked_positions(batch)
    draws = torch.cat(
        [
            draw_uniform_numbers(len(row_positions), settings.samples, settings.seed, row, epoch)
            for row, row_positions in zip(rows, positions, strict=True)
        ]
    )
    writer.add(rows, positions, sparsify(logits, settings.k, draws, settings.temperature))


def _masked_positions(batch: dict[str, Tensor]) -> list[list[int]]:
    """Return the positions of each row's masked tokens, counted from the row's first real token."""
    positions, masked = batch["attention_mask"].cpu().cumsum(1) - 1, (batch["labels"] != IGNORED_LABEL).cpu()
    return [row[chosen].tolist() for row, chosen in zip(positions, masked, strict=True)]


# --- the store on disk ---


class _SparseStore:
    """Folder of sampled logits, by epoch and row.

    Args:
        folder: Folder that holds one folder per epoch.
        settings: All settings that decide the stored logits; epochs with other settings are refused.
    """

    def __init__(self, folder: Path, settings: _StoreSettings) -> None:
        self.folder, self.settings = folder, settings
        self._open: tuple[int, NDArray[np.int64], NDArray[np.void]] | None = None

    def path(self, epoch: int) -> Path:
        """Return the folder of an epoch."""
        return self.folder / f"epoch-{epoch:05d}"

    def has(self, epoch: int) -> bool:
        """Return whether an epoch is complete. Its settings are not compared."""
        return (self.path(epoch) / _DESCRIPTION).is_file()

    def holds(self, epoch: int, rows: Sequence[int] | NDArray[np.int64]) -> bool:
        """Return whether an epoch is complete, has these settings, and contains all the given rows."""
        try:
            index, _ = self._open_epoch(epoch)
        except (InputError, OSError, ValueError, EOFError):
            return False
        return bool((index[np.asarray(rows, np.int64), 0] >= 0).all())

    @contextmanager
    def writing(self, epoch: int) -> Iterator[_SparseWriter]:
        """Yield a writer for an epoch (from 0). Its files replace older ones when the block ends without an error."""
        with build_folder(self.path(epoch), FolderContents(_DESCRIPTION, (_RECORDS, _INDEX))) as work:
            with (work / _RECORDS).open("wb") as stream:
                writer = _SparseWriter(self.settings, stream, work.parent)
                yield writer
            np.save(work / _INDEX, writer.index)
            description = _Description(settings=self.settings, epoch=epoch)
            write_json(work / _DESCRIPTION, description.model_dump())
        self._open = None

    def read(self, epoch: int, rows: Sequence[int], positions: Sequence[Sequence[int]]) -> SparseLogits:
        """Return the stored logits of the given rows' masked tokens, row after row, on the CPU.

        Args:
            epoch: Number of the epoch.
            rows: Row numbers.
            positions: Positions of the masked tokens of each row, counted without padding.

        Raises:
            InputError: If the epoch is missing, broken or has other settings.
            RuntimeError: If a row is missing, or other tokens were masked in it when the store was built.
        """
        index, records = self._open_epoch(epoch)
        rows_records = []
        for row, masked in zip(rows, positions, strict=True):
            start, count = index[row].tolist()
            row_records = records[start : start + count] if start >= 0 else records[:0]
            if start < 0 or row_records["position"].tolist() != list(masked):
                raise RuntimeError(
                    f"row {row} of epoch {epoch} is masked at {list(masked)}, in the store at "
                    f"{row_records['position'].tolist() if start >= 0 else 'no time'}: other masks, or another order of rows"
                )
            rows_records.append(row_records)
        batch = np.concatenate(rows_records)
        return SparseLogits(
            torch.from_numpy(batch["ids"].astype(np.int32)),
            torch.from_numpy(batch["weights"].astype(np.float32)),
            torch.from_numpy(batch["negative_entropy"].astype(np.float32)),
            self.settings.vocabulary,
            self.settings.temperature,
        )

    def _open_epoch(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        """Return the index and the records of an epoch's sampled logits, memory-mapped; see `_SparseWriter.index`.

        They stay open until another epoch is opened or written.
        """
        if self._open is None or self._open[0] != epoch:
            path = self.path(epoch)
            self._check_description(path, epoch)
            index, size = np.load(path / _INDEX, allow_pickle=False), (path / _RECORDS).stat().st_size
            if size != int(index[:, 1].clip(0).sum()) * self.settings.bytes_per_position:
                raise InputError(Problem(str(path), f"its records have a wrong size ({size:,} bytes).", "Delete it."))
            empty = np.empty(0, self.settings.record)
            records = np.memmap(path / _RECORDS, self.settings.record, "r") if size else empty
            self._open = (epoch, index, records)
        return self._open[1], self._open[2]

    def _check_description(self, path: Path, epoch: int) -> None:
        """Raise InputError, with every difference, if an epoch was written with other settings than this store's."""
        try:
            description = _Description.model_validate(read_json(path / _DESCRIPTION))
        except ValidationError as error:
            raise InputError(Problem(str(path), "is not a store of sparse logits.")) from error
        stored = {**description.settings.model_dump(), "epoch": description.epoch}
        problems = [
            Problem(f"{path} {name}", f"{stored[name]} instead of {value}.", "Delete it, and write it anew.")
            for name, value in {**self.settings.model_dump(), "epoch": epoch}.items()
            if stored[name] != value
        ]
        if problems:
            raise InputError(problems)


class _SparseWriter:
    """Writes the sampled logits of one epoch's rows, in any order of rows.

    Attributes:
        folder: Temporary folder for the parts that other processes write.
        index: Where each row's records begin and how many there are, [rows, 2]; -1 where a row was not written.
    """

    def __init__(self, settings: _StoreSettings, stream: BinaryIO, folder: Path) -> None:
        self.settings, self.folder, self._stream, self._records_written = settings, folder, stream, 0
        self.index = np.full((settings.rows, 2), -1, np.int64)

    def add(self, rows: Sequence[int], positions: Sequence[Sequence[int]], teacher: SparseLogits) -> None:
        """Write the teacher's sampled logits at the masked tokens of some rows.

        Args:
            rows: Row numbers, none of which has been written in this epoch.
            positions: Indices of the masked tokens of each row, ascending; padding on the left is not counted.
            teacher: Sampled logits at all these tokens, row after row.

        Raises:
            ValueError: If vocabulary, temperature, sample size or number of tokens do not fit, or if a row was written
                before.
        """
        settings, counts = self.settings, [len(p) for p in positions]
        slots = (sum(counts), settings.k + settings.samples)
        kind = (tuple(teacher.ids.shape), teacher.vocabulary, teacher.temperature)
        if kind != (slots, settings.vocabulary, settings.temperature) or len(counts) != len(rows):
            raise ValueError(
                f"sparse logits {kind} for a store of {(slots, settings.vocabulary, settings.temperature)}"
            )
        if (self.index[list(rows), 0] >= 0).any() or len(set(rows)) != len(rows):
            raise ValueError(f"a row of {list(rows)} is in this epoch already")
        records = np.empty(slots[0], settings.record)
        records["position"] = np.concatenate([np.asarray(p, np.int64) for p in positions])
        records["ids"] = teacher.ids.cpu().numpy()
        records["weights"] = teacher.weights.cpu().numpy()
        records["negative_entropy"] = teacher.negative_entropy.cpu().numpy()
        self._stream.write(records.tobytes())
        self.index[list(rows), 0] = self._records_written + np.cumsum([0, *counts[:-1]])
        self.index[list(rows), 1] = counts
        self._records_written += slots[0]

    def add_parts(self) -> None:
        """Append what processes other than 0 have written into `folder`, in the order of the processes."""
        for rank in range(1, current_process().world):
            index = np.load(self.folder / f"{rank}-{_INDEX}", allow_pickle=False)
            own = index[:, 0] >= 0
            self.index[own] = index[own] + [self._records_written, 0]
            with (self.folder / f"{rank}-{_RECORDS}").open("rb") as part:
                shutil.copyfileobj(part, self._stream)
            self._records_written += int(index[own, 1].sum())
