"""A cache of a teacher's outputs for task data: one memory-mapped file with the wanted signals of every row.

Task data is read for many epochs and its rows never change, so the teacher need run only once. If rows change (dynamic
masking) or are many (a corpus), a cache of hidden states or attention is the wrong tool; see
`pocketbert.distill.teacher.sparse`.

`cached_teacher` opens the cache of a teacher, or builds it if there is none with the right key. The key is a digest of
the teacher's weights, the rows, the signals and the library versions. `CachedTeacher` reads the cache during training.

A cache is a folder: ``cache.json`` (key and layout of a record), ``lengths.npy`` (tokens of each row) and
``records.bin``, the records of all rows in row order. A record holds all signals of a row together, so that reading a
row at random is one read.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from pocketbert.core.disk.files import read_json, sha256_json, write_json
from pocketbert.core.disk.ownership import FolderContents, lock_beside, replace_file
from pocketbert.core.disk.workspace import build_folder, open_workspace
from pocketbert.core.errors import InputError, MachineError, Problem
from pocketbert.core.families import Family
from pocketbert.core.host.processes import current_process, exchange, is_lost_connection
from pocketbert.core.host.progress import Meter
from pocketbert.core.host.system import installed_versions
from pocketbert.core.types import Signal
from pocketbert.distill.capture.recorder import MASKED_SCORE
from pocketbert.distill.teacher.signals import OnlineTeacher, Taught, Wanted, on_accelerator, select_teacher_inputs
from pocketbert.distill.training.data import TrainData
from pocketbert.distill.training.sharding import join_remaining_passes, whole_tensor

_FORMAT = 1
"""Version of the files of a cache; counts up when their meaning changes."""

_LIMIT_BYTES = 20 << 30
"""Largest size of a cache."""

_DESCRIPTION, _LENGTHS, _RECORDS, _PROGRESS = "cache.json", "lengths.npy", "records.bin", "progress.json"

_SAVED_BATCHES = 32
"""Batches after which an unfinished cache records how far it is."""

_TOKENS = -1
"""Stands in a shape for the number of tokens of a row."""

_DIGEST_ROWS = 256
"""Rows that are hashed together."""

_Array = NDArray[np.float32]


class _Part(BaseModel):
    """Name and shape of one array in a row's record.

    Attributes:
        signal: Kind of signal; ``logits`` stands for all task outputs.
        name: Name of the output, or number of the hidden state or layer.
        shape: Shape for one row, in which `_TOKENS` stands for the row's number of tokens: (C,), (`_TOKENS`, d) or (H,
            `_TOKENS`, `_TOKENS`).
    """

    model_config = ConfigDict(frozen=True)

    signal: Signal
    name: str
    shape: tuple[int, ...]

    def token_slices(self, first: int, tokens: int) -> tuple[slice, ...]:
        """Return the slices that select a row's real tokens in an array padded to the batch's length.

        The real tokens are the `tokens` ones from index `first` on.
        """
        return tuple(slice(first, first + tokens) if n == _TOKENS else slice(None) for n in self.shape)

    def sizes(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many numbers this array has for each row. `lengths` are the rows' numbers of tokens."""
        per_token = math.prod(n for n in self.shape if n != _TOKENS)
        sizes: NDArray[np.int64] = per_token * lengths ** self.shape.count(_TOKENS)
        return sizes


class _Layout(BaseModel):
    """Names and shapes of all arrays in a row's record, and their number type.

    Attributes:
        parts: The arrays, in order.
        half: Whether numbers are stored as fp16.
    """

    model_config = ConfigDict(frozen=True)

    parts: tuple[_Part, ...]
    half: bool

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Number type of the records on disk, little-endian."""
        return np.dtype("<f2" if self.half else "<f4")

    def starts(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the offset of each of N records in the file, in numbers, and the end of the last one, [N + 1]."""
        sizes = sum((part.sizes(lengths) for part in self.parts), np.zeros(len(lengths), np.int64))
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


class _Description(BaseModel):
    """Content of ``cache.json``: the cache's key and its layout."""

    key: str
    layout: _Layout


class CachedTeacher:
    """Reads a teacher's signals from the files of `cached_teacher`. The teacher model is not needed any more.

    A batch must hold ``rows`` (row numbers, int64 [B]) and ``attention_mask`` [B, S], padded on either side. At padded
    positions outputs and hidden states are 0, and attention scores are -1e4 at padded keys.

    Args:
        folder: Folder of the cache.
        key: Digest of the weights, rows, signals and versions that the cache must have been made from.
        wanted: The signals in the cache, which every call returns.

    Raises:
        InputError: If there is no complete cache, or its key is another one.
    """

    def __init__(self, folder: Path, key: str, wanted: Wanted) -> None:
        self.wanted = wanted
        try:
            description = _Description.model_validate(read_json(folder / _DESCRIPTION))
        except ValidationError as error:
            raise InputError(Problem(str(folder), "is not a cache of teacher outputs.")) from error
        if description.key != key:
            reason = (
                f"was made from other weights, rows, signals or versions "
                f"(key {description.key[:12]}, wanted {key[:12]})."
            )
            raise InputError(Problem(str(folder), reason, "Delete it, or build it anew."))
        self._layout = description.layout
        self._lengths = np.load(folder / _LENGTHS, allow_pickle=False)
        self._starts = self._layout.starts(self._lengths)
        expected_bytes = int(self._starts[-1]) * self._layout.dtype.itemsize
        actual_bytes = (folder / _RECORDS).stat().st_size
        if actual_bytes != expected_bytes:
            reason = f"has {actual_bytes:,} bytes instead of {expected_bytes:,}."
            raise InputError(Problem(str(folder / _RECORDS), reason, "Delete the cache, or build it anew."))
        self._records = np.memmap(folder / _RECORDS, self._layout.dtype, "r") if actual_bytes else np.empty(0)

    def __call__(self, batch: Mapping[str, Tensor]) -> Taught:
        """Read the teacher's signals for the rows of a batch, fp32, padded as the batch is, on the batch's device.

        Raises:
            RuntimeError: If a row of the batch has not as many tokens as when it was cached, or padding between them.
        """
        batch = select_teacher_inputs(batch)
        device = batch["attention_mask"].device
        mask = batch["attention_mask"].cpu().numpy() != 0
        rows, lengths, first = batch["rows"].tolist(), mask.sum(1), mask.argmax(1)
        arrays = [_empty_array(part, mask) for part in self._layout.parts]
        for i, row in enumerate(rows):
            n, offset, start = int(lengths[i]), int(self._starts[row]), int(first[i])
            if n != self._lengths[row] or not mask[i, start : start + n].all():
                raise RuntimeError(
                    f"row {row} has {n} tokens in the batch and {self._lengths[row]} in the teacher cache, "
                    "or a gap between them: these are not the rows that the cache was made from"
                )
            for part, array in zip(self._layout.parts, arrays, strict=True):
                value = array[i][part.token_slices(start, n)]
                value[...] = self._records[offset : offset + value.size].reshape(value.shape)
                offset += value.size
        tensors = [(p, torch.from_numpy(a).to(device)) for p, a in zip(self._layout.parts, arrays, strict=True)]
        return Taught(
            {p.name: value for p, value in tensors if p.signal is Signal.LOGITS},
            {int(p.name): value for p, value in tensors if p.signal is Signal.HIDDEN},
            {int(p.name): value for p, value in tensors if p.signal is Signal.ATTENTION},
        )


def _empty_array(part: _Part, mask: NDArray[np.bool_]) -> _Array:
    """Return a padded array for one signal of a batch, filled with zeros.

    In attention scores, padded keys are filled with -1e4 instead.
    """
    width = mask.shape[1]
    array = np.zeros((len(mask), *(width if n == _TOKENS else n for n in part.shape)), np.float32)
    if part.signal is Signal.ATTENTION:
        array += np.where(mask, 0, MASKED_SCORE).astype(np.float32)[:, None, None, :]
    return array


def cached_teacher(
    teacher: Any,
    family: Family,
    data: TrainData,
    wanted: Wanted,
    folder: Path,
    *,
    batch: int = 32,
    half: bool = False,
    where: str = "cache",
) -> CachedTeacher:
    """Open the cache of a teacher's outputs for all training rows, which is built first if none has the right key.

    A cache with another key (other weights, rows, order, signals or versions) is replaced. A build that was killed
    continues where it stopped. An incomplete cache is never read, and a second process waits for the first. The processes
    of a launch build it together, each a part of the batches of rows, into the bytes that one process would write.

    With fp32 the cache returns the teacher's numbers: exactly for the batch in which they were computed, and within
    rounding (1e-5) for other batches, as far as the teacher itself ignores padding. (The embeddings of MobileBERT read
    the next token, even if it is padding, and absolute positions move with padding on the left.) `half` halves the
    bytes and rounds each number by up to 2^-11 of itself (5e-4); signals beyond 65504 are refused. The teacher runs in
    fp32, even if training uses bf16.

    Args:
        teacher: Model with a head; moved to the accelerator, if there is one, while the cache is built.
        family: Names, layer paths and inputs of the model's family.
        data: Training rows, which must have the same text at every step.
        wanted: Signals to store.
        folder: Folder of the cache.
        batch: Rows per forward pass while building.
        half: Whether to store fp16 instead of fp32.
        where: Recipe key that error messages name.

    Raises:
        InputError: If relations are wanted, the cache would be too large, the rows change with the step, a signal does
            not fit the number type, or `folder` holds something else.
        MachineError: If the disk has too little room.
    """
    if wanted.relations:
        reason = f"holds no queries, keys and values (layers {list(wanted.relations)}): computing them is cheaper."
        raise InputError(Problem(where, reason, "Run the teacher during training instead."))
    folder.parent.mkdir(parents=True, exist_ok=True)
    digests = [weights_digest(teacher), _rows_digest(data, family)]
    key = sha256_json([_FORMAT, *digests, asdict(wanted), half, installed_versions(("torch", "transformers"))])
    if not current_process().main:
        join_remaining_passes()  # with process 0, which asks the teacher for one row if there is no cache
        if (plan := json.loads(exchange()[0])) is not None:
            online = OnlineTeacher(teacher, family, wanted)
            _write_records(online, data, _Rows.of(online, data, batch, half), plan[1], Path(plan[0]), where)
            exchange()
            exchange()
        return CachedTeacher(folder, key, wanted)
    with lock_beside(folder):
        try:
            cache = CachedTeacher(folder, key, wanted)
        except (InputError, OSError, ValueError):
            if folder.exists() and not (folder / _DESCRIPTION).is_file():
                what = "exists and is not a cache of teacher outputs; it is not replaced."
                raise InputError(Problem(str(folder), what, "Choose another folder.")) from None
        else:
            join_remaining_passes()
            exchange(json.dumps(None))  # nothing is to be done
            return cache
        online = OnlineTeacher(teacher, family, wanted)
        rows = _Rows.of(online, data, batch, half)
        join_remaining_passes()
        _check_size(rows.layout, data.lengths, _LIMIT_BYTES, where)
        _check_room(rows.layout, data.lengths, folder.parent)
        _build_cache(online, data, rows, folder, key, where)
        exchange()  # the cache is there
        return CachedTeacher(folder, key, wanted)


# --- the key ---


def weights_digest(model: Any) -> str:
    """Return the hex digest of a model's class, public configuration, and weights (names, types, shapes and bytes)."""
    config = {k: v for k, v in model.config.to_dict().items() if not k.startswith("_")}
    digest = hashlib.sha256(sha256_json([type(model).__name__, _to_json_types(config)]).encode())
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(_bytes(whole_tensor(value)))
    return digest.hexdigest()


def _rows_digest(data: TrainData, family: Family) -> str:
    """Return a digest of the model inputs of all rows, in order. Labels are not part of it.

    Raises:
        InputError: If the first rows differ between two steps, as with random masking: a cache holds one output per
            row.
    """
    digest = hashlib.sha256()
    for start in range(0, len(data.lengths), _DIGEST_ROWS):
        rows = range(start, min(start + _DIGEST_ROWS, len(data.lengths)))
        batch = select_teacher_inputs(data.batch(rows, 0))
        if start == 0:
            next_step = select_teacher_inputs(data.batch(rows, 1))
            if any(not torch.equal(batch[name], next_step[name]) for name in family.inputs):
                raise InputError(
                    Problem(
                        "cache",
                        "the rows change from step to step (random masking or the like).",
                        "Run the teacher online, or store sparse logits for each epoch's masks.",
                    )
                )
        for name in family.inputs:
            digest.update(f"{name} {tuple(batch[name].shape)}".encode())
            digest.update(_bytes(batch[name]))
    return digest.hexdigest()


def _bytes(value: Tensor) -> bytes:
    """Return the raw bytes of a tensor."""
    return value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def _to_json_types(value: Any) -> Any:
    """Convert a configuration to JSON types, with string keys, so that it is the same before and after saving."""
    if isinstance(value, dict):
        return {str(k): _to_json_types(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_types(v) for v in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


# --- the layout ---


def _layout_of(taught: Taught, half: bool) -> _Layout:
    """Return the names and shapes of the arrays in a cached record, derived from the teacher's outputs for any batch.

    With `half` the numbers are stored as fp16.
    """
    parts = []
    for (signal, name), value in _signals(taught).items():
        if signal is Signal.ATTENTION:
            shape: tuple[int, ...] = (value.shape[1], _TOKENS, _TOKENS)
        elif signal is Signal.HIDDEN:
            shape = (_TOKENS, value.shape[-1])
        elif name == "logits" and value.ndim == 2:
            shape = tuple(
                value.shape[1:]
            )  # logits [B, C] belong to the row; all other outputs have the tokens behind the batch
        else:
            shape = (_TOKENS, *value.shape[2:])
        parts.append(_Part(signal=signal, name=name, shape=shape))
    return _Layout(parts=tuple(parts), half=half)


def _signals(taught: Taught) -> dict[tuple[Signal, str], Tensor]:
    """Return a teacher's outputs for a batch as one mapping by (signal, name), in the order of a record."""
    return {
        **{(Signal.LOGITS, name): value for name, value in taught.outputs.items()},
        **{(Signal.HIDDEN, str(n)): value for n, value in taught.hidden.items()},
        **{(Signal.ATTENTION, str(n)): value for n, value in taught.scores.items()},
    }


def _estimate_bytes(layout: _Layout, lengths: Sequence[int], signal: Signal | None = None) -> int:
    """Return the disk size of a cache for rows with these numbers of tokens, or the share of one signal in it."""
    tokens = np.asarray(lengths, np.int64)
    parts = [p for p in layout.parts if signal in (None, p.signal)]
    return sum(int(p.sizes(tokens).sum()) for p in parts) * layout.dtype.itemsize


def _check_size(layout: _Layout, lengths: Sequence[int], limit: int, where: str) -> None:
    """Raise InputError if a cache needs more than `limit` bytes. The message names the largest signals and advice."""
    total = _estimate_bytes(layout, lengths)
    if total <= limit:
        return
    costs = {s: _estimate_bytes(layout, lengths, s) for s in Signal}
    ranked = sorted((s for s in costs if costs[s]), key=lambda s: -costs[s])
    shares = ", ".join(f"{s.value} {_gib(costs[s])} ({costs[s] / total:.0%})" for s in ranked)
    fixes = [
        f"give {s.value} weight 0 ({_gib(total - costs[s])} remain)"
        for s in ranked[:1]
        if total - costs[s] <= limit and len(ranked) > 1
    ]
    if not layout.half and total // 2 <= limit:
        fixes.append(f"store fp16 (cache_teacher: fp16; {_gib(total // 2)})")
    fixes.append("run the teacher online (leave cache_teacher out)")
    raise InputError(
        Problem(
            where,
            f"teacher outputs of {len(lengths):,} rows would take {total:,} bytes ({_gib(total)}), "
            f"more than the allowed {_gib(limit)}: {shares}.",
            f"One of: {'; '.join(fixes)}.",
        )
    )


def _check_room(layout: _Layout, lengths: Sequence[int], folder: Path) -> None:
    """Raise MachineError if the disk of a folder has too little room for a cache, with several processes for two."""
    copies = 1 if current_process().world == 1 else 2  # records of other processes are copied
    needed, free = copies * _estimate_bytes(layout, lengths), shutil.disk_usage(folder).free
    if needed > free:
        raise MachineError(
            f"teacher outputs take {needed:,} bytes, {folder} has {free:,} free. "
            "Fix: make room, choose another folder, or run the teacher online."
        )


def _gib(count: int) -> str:
    """Format a number of bytes as GiB."""
    return f"{count / (1 << 30):.3g} GiB"


# --- writing ---


@dataclass(frozen=True)
class _Rows:
    """The rows of a cache that is being built: their records, and the batches in which the teacher answers them.

    The longest rows come first, so that what does not fit in memory fails at once. Every process forms the same
    batches, so that an answer does not depend on the process that computes it.

    Attributes:
        layout: Layout of a record.
        lengths: Number of tokens of each row, [N] int64.
        batch: Rows per forward pass.
    """

    layout: _Layout
    lengths: NDArray[np.int64]
    batch: int

    @classmethod
    def of(cls, online: OnlineTeacher, data: TrainData, batch: int, half: bool) -> _Rows:
        """Return the rows of `data`, whose records have the layout of the teacher's outputs for the shortest of them."""
        shortest = int(np.argmin(data.lengths))
        taught = online(_inputs(data, [shortest], next(online.teacher.parameters()).device))
        return cls(_layout_of(taught, half), np.asarray(data.lengths, np.int64), batch)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The row numbers in the order in which the teacher answers them, [N]."""
        return np.argsort(-self.lengths, kind="stable")

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """First byte of each row's record in the file of all records, and the end of the last one, [N + 1]."""
        return self.layout.starts(self.lengths) * self.layout.dtype.itemsize

    def of_batch(self, number: int) -> list[int]:
        """Return the row numbers of a batch."""
        rows: list[int] = self.order[number * self.batch : (number + 1) * self.batch].tolist()
        return rows

    def count_bytes(self, numbers: Sequence[int]) -> int:
        """Return how many bytes the records of some batches have."""
        return sum(int(self.places[row + 1] - self.places[row]) for number in numbers for row in self.of_batch(number))

    def list_missing(self, work: Path) -> list[int]:
        """Return the numbers of the batches that no process has written into the folder `work`."""
        written = {number for path in work.glob(f"*-{_PROGRESS}") for number in read_json(path)}
        return [number for number in range(-(-len(self.lengths) // self.batch)) if number not in written]


def _build_cache(online: OnlineTeacher, data: TrainData, rows: _Rows, folder: Path, key: str, where: str) -> None:
    """Build the folder of a cache in process 0, together with the other processes; see `cached_teacher`."""
    with open_workspace(folder.with_name(f"{folder.name}-{_RECORDS}"), resume=f"{key}/{rows.batch}") as started:
        try:
            missing = rows.list_missing(started.path)
            exchange(json.dumps([str(started.path), missing]))  # what is to be done, and where
            _write_records(online, data, rows, missing, started.path, where)
            exchange()  # all processes have written their records
            _add_shares(rows, started.path)
        except MachineError:  # another process failed: what is written is kept
            raise
        except Exception as error:  # as of a full disk, leaves nothing; the end of another process does, as a kill here
            if not is_lost_connection(error):
                started.discard()
            raise
        with build_folder(folder, FolderContents(_DESCRIPTION, (_LENGTHS, _RECORDS))) as work:
            replace_file(started.path / _RECORDS, work / _RECORDS)
            np.save(work / _LENGTHS, rows.lengths)
            write_json(work / _DESCRIPTION, _Description(key=key, layout=rows.layout).model_dump(mode="json"))


def _write_records(
    online: OnlineTeacher, data: TrainData, rows: _Rows, missing: Sequence[int], work: Path, where: str
) -> None:
    """Run the teacher over this process's share of the missing batches, and write its outputs as one record per row.

    Process 0 writes each record to its place in the file of all records. The others append theirs to files of their own,
    which `_add_shares` copies: on some network file systems two machines must not write into one file. What an earlier,
    killed call has written in `work` stays.
    """
    process, layout = current_process(), rows.layout
    path, progress = _share_of(work, process.rank)
    written: list[int] = read_json(progress) if path.is_file() and progress.is_file() else []
    own = missing[process.rank :: process.world]
    # written, not mapped: a full disk is an OSError here, and would be a killed process there
    with (
        path.open("r+b" if written else "wb") as stream,
        on_accelerator(online.teacher) as device,
        Meter("cache teacher outputs", len(own)) as meter,
    ):
        if not process.main:
            stream.truncate(rows.count_bytes(written))
            stream.seek(0, os.SEEK_END)
        for count, number in enumerate(own, 1):
            numbers = rows.of_batch(number)
            inputs = _inputs(data, numbers, device)
            with torch.autocast(device.type, enabled=False):
                signals = _signals(online(inputs))
            arrays = [signals[part.signal, part.name].float().cpu().numpy() for part in layout.parts]
            mask = inputs["attention_mask"].cpu().numpy() != 0
            for i, (row, first) in enumerate(zip(numbers, mask.argmax(1).tolist(), strict=True)):
                if process.main:
                    stream.seek(int(rows.places[row]))
                for part, array in zip(layout.parts, arrays, strict=True):
                    values = array[i][part.token_slices(first, int(rows.lengths[row]))]
                    stream.write(_stored_bytes(values, layout, part, where))
            meter.advance()
            written.append(number)
            if count % _SAVED_BATCHES == 0 or count == len(own):
                stream.flush()
                os.fsync(stream.fileno())
                write_json(progress, written)
        join_remaining_passes()


def _add_shares(rows: _Rows, work: Path) -> None:
    """Copy the records that processes other than 0 have written to their places in the file of all records."""
    with _share_of(work, 0)[0].open("r+b") as stream:
        for progress in work.glob(f"*-{_PROGRESS}"):
            rank = int(progress.name.partition("-")[0])
            if rank:
                with _share_of(work, rank)[0].open("rb") as share:
                    for row in (row for number in read_json(progress) for row in rows.of_batch(number)):
                        stream.seek(int(rows.places[row]))
                        stream.write(share.read(int(rows.places[row + 1] - rows.places[row])))


def _share_of(work: Path, rank: int) -> tuple[Path, Path]:
    """Return a process's file of records, and the file with the numbers of the batches in it, in their order."""
    return work / (f"{rank}-{_RECORDS}" if rank else _RECORDS), work / f"{rank}-{_PROGRESS}"


def _inputs(data: TrainData, rows: Sequence[int], device: torch.device) -> dict[str, Tensor]:
    """Return the teacher's inputs for the given rows, on a device."""
    return {name: value.to(device) for name, value in select_teacher_inputs(data.batch(rows, 0)).items()}


def _stored_bytes(values: _Array, layout: _Layout, part: _Part, where: str) -> bytes:
    """Convert values to the cache's number type and return their bytes; raise InputError if they exceed its range."""
    with np.errstate(over="ignore"):
        stored = values.astype(layout.dtype)
    if not np.isfinite(stored).all():
        what = f"{part.signal.value} {part.name} of the teacher reach {np.abs(values).max():.3g}"
        raise InputError(
            Problem(
                where,
                f"{what}, which {'fp16' if layout.half else 'fp32'} cannot hold.",
                "Store fp32." if layout.half else "The teacher's weights are broken; train it again.",
            )
        )
    return stored.tobytes()
