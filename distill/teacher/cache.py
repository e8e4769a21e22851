"""Running a teacher once over task data, and keeping what it says."""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from pocketbert.core.disk.files import read_json, sha256_json, write_json
from pocketbert.core.disk.ownership import Contents, lock_beside
from pocketbert.core.disk.workspace import building
from pocketbert.core.errors import InputError, MachineError, Problem
from pocketbert.core.families import Family
from pocketbert.core.host.progress import Meter
from pocketbert.core.host.system import installed
from pocketbert.core.types import Signal
from pocketbert.distill.capture.recorder import MASKED
from pocketbert.distill.teacher.signals import OnlineTeacher, Taught, Wanted
from pocketbert.distill.training.data import TeacherRows, TrainData, as_teacher_reads

# --- key ---
# What a cache of teacher outputs depends on, as one digest: a cache under another digest is stale.


FORMAT = 1
"""Counts up when the files of a cache change their meaning."""

_AT_ONCE = 256


def cache_key(teacher: Any, family: Family, data: TrainData, wanted: Wanted, half: bool) -> str:
    """Hex digest of all that decides what is in a cache.

    Args:
        teacher: Weights and configuration count.
        family: Its row of the family table.
        data: The inputs of every row count, and their order.
        wanted: Signals in the cache.
        half: Whether they are stored as fp16.

    Raises:
        InputError: If rows change with the step.
    """
    return sha256_json(
        [
            FORMAT,
            weights_digest(teacher),
            rows_digest(data, family),
            asdict(wanted),
            half,
            installed(("torch", "transformers")),
        ]
    )


def weights_digest(model: Any) -> str:
    """Hex digest of a transformers model: names, shapes and bytes of its weights, and its configuration."""
    config = {k: v for k, v in model.config.to_dict().items() if not k.startswith("_")}
    digest = hashlib.sha256(sha256_json([type(model).__name__, _plain(config)]).encode())
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(_bytes(value))
    return digest.hexdigest()


def rows_digest(data: TrainData, family: Family) -> str:
    """Hex digest of the inputs of all rows, in order; labels do not count.

    Raises:
        InputError: If the first rows differ between two steps: what a teacher says of a row once cannot
            be replayed for another masking of it.
    """
    digest = hashlib.sha256()
    for start in range(0, len(data.lengths), _AT_ONCE):
        rows = range(start, min(start + _AT_ONCE, len(data.lengths)))
        batch = data.batch(rows, 0)
        if start == 0:
            again = data.batch(rows, 1)
            if any(not torch.equal(batch[name], again[name]) for name in family.inputs):
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
    return value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def _plain(value: Any) -> Any:
    """JSON keys are strings: id2label has numbers before a model is saved, and text afterwards."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


# --- layout ---
# How a teacher's signals for one row lie in a cache: which arrays, in what order, of what size.


TOKENS = -1
"""Stands in a shape for the number of tokens of the row."""

_GIB = 1 << 30


class Part(BaseModel):
    """One array of a row's record.

    Attributes:
        signal: What kind it is; ``logits`` stands for all task outputs.
        name: Name of the output, or number of the hidden state or layer.
        shape: Shape for one row, `TOKENS` where its tokens stand: (C,), (`TOKENS`, d), (H, `TOKENS`, `TOKENS`).
    """

    model_config = ConfigDict(frozen=True)

    signal: Signal
    name: str
    shape: tuple[int, ...]

    def shape_of(self, tokens: int) -> tuple[int, ...]:
        """Shape for a row of that many tokens."""
        return tuple(tokens if n == TOKENS else n for n in self.shape)

    def place(self, first: int, tokens: int) -> tuple[slice, ...]:
        """The positions of a row's own values in its padded array."""
        return tuple(slice(first, first + tokens) if n == TOKENS else slice(None) for n in self.shape)

    def values(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers to store for rows of these many tokens, same shape."""
        per_token = math.prod(n for n in self.shape if n != TOKENS)
        out: NDArray[np.int64] = per_token * lengths ** self.shape.count(TOKENS)
        return out


class Layout(BaseModel):
    """Records of all rows, one behind the other in row order.

    A row's signals stand together, so that reading a row at random is one read.

    Attributes:
        parts: Arrays of a record, in order.
        half: Whether numbers are stored as fp16.
    """

    model_config = ConfigDict(frozen=True)

    parts: tuple[Part, ...]
    half: bool

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Little-endian number type on disk."""
        return np.dtype("<f2" if self.half else "<f4")

    def starts(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each of N records begins, in numbers, and where the last one ends: [N + 1]."""
        sizes = sum((part.values(lengths) for part in self.parts), np.zeros(len(lengths), np.int64))
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def layout_of(taught: Taught, half: bool) -> Layout:
    """The layout that holds what a teacher returned for any batch.

    Args:
        taught: Signals of a batch of whatever size.
        half: Whether to store fp16.
    """
    parts = [
        Part(signal=Signal.LOGITS, name=name, shape=_output_shape(name, value))
        for name, value in taught.outputs.items()
    ]
    parts += [
        Part(signal=Signal.HIDDEN, name=str(n), shape=(TOKENS, value.shape[-1])) for n, value in taught.hidden.items()
    ]
    parts += [
        Part(signal=Signal.ATTENTION, name=str(n), shape=(value.shape[1], TOKENS, TOKENS))
        for n, value in taught.scores.items()
    ]
    return Layout(parts=tuple(parts), half=half)


def _output_shape(name: str, value: Tensor) -> tuple[int, ...]:
    """Logits [B, C] belong to the row; every other output has the tokens behind the batch."""
    if name == "logits" and value.ndim == 2:
        return tuple(value.shape[1:])
    return (TOKENS, *value.shape[2:])


def estimate_bytes(layout: Layout, lengths: Sequence[int], signal: Signal | None = None) -> int:
    """What a cache will take on disk, exactly but for some kilobytes of description.

    Args:
        layout: Which arrays.
        lengths: Tokens of each row.
        signal: Count this one alone.
    """
    tokens = np.asarray(lengths, np.int64)
    chosen = [p for p in layout.parts if signal in (None, p.signal)]
    return sum(int(p.values(tokens).sum()) for p in chosen) * layout.dtype.itemsize


def check_size(layout: Layout, lengths: Sequence[int], limit: int, where: str) -> None:
    """Refuse a cache that would be larger than wanted.

    Args:
        layout: Which arrays.
        lengths: Tokens of each row.
        limit: Most bytes.
        where: Recipe key, for errors.

    Raises:
        InputError: Naming the bytes, what costs most, and every single change that would do.
    """
    total = estimate_bytes(layout, lengths)
    if total <= limit:
        return
    costs = {s: estimate_bytes(layout, lengths, s) for s in Signal}
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


def _gib(count: int) -> str:
    return f"{count / _GIB:.3g} GiB"


# --- teacher ---
# A teacher whose outputs for task data lie in one memory-mapped file: every signal of every row.
#
# Task data is seen for many epochs and its rows never change, so the teacher need run only once. Where rows
# do change (dynamic masking) or are many (a corpus), a cache of hidden states or attention is the wrong tool.


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
    """Reads a cache; `pocketbert.distill.teacher.cache` writes it. The teacher itself is not needed any more.

    A batch must hold ``rows`` (row numbers, int64 [B]) and ``attention_mask`` [B, S], padded on either side.
    At padded positions outputs and hidden states are 0, and scores -1e4 at padded keys.

    Args:
        folder: Where the cache is.
        key: What it must have been made from; see `pocketbert.distill.teacher.cache.cache_key`.
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


LIMIT_BYTES = 20 << 30
"""Most bytes of a cache."""


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
    """Open the cache of a teacher's outputs, or build it where there is none that fits.

    A cache made from anything else (other weights, rows, order, signals, versions) is replaced. Building
    starts anew after a kill; nobody ever sees half a cache, and a second process waits for the first.

    fp32 gives back what the teacher said, to the bit where the batch is the one it was computed in, and
    within rounding (1e-5) elsewhere, as far as the teacher itself ignores padding: the embeddings of
    MobileBERT look at the next token, be it a pad, and absolute positions move with padding on the left.
    `half` halves the bytes and rounds each number by up to 2^-11 of itself (5e-4); signals beyond 65504
    are refused. The teacher runs in fp32, also where training uses bf16.

    Args:
        teacher: Model with a head, on the device to compute on.
        family: Its row of the family table.
        data: Rows of the same text at every step.
        wanted: Signals to store.
        folder: The cache.
        batch: Rows per forward pass while building.
        half: Store fp16 instead of fp32.
        where: Recipe key, for errors.

    Raises:
        InputError: If relations are wanted, the cache would be too large, the rows change with the step, a signal does not fit
            the number type, or `folder` holds something else.
        MachineError: If the disk has too little room.
    """
    if wanted.relations:
        raise InputError(
            Problem(
                where,
                f"a cache holds no queries, keys and values (layers {list(wanted.relations)}): computing them again is "
                "cheaper than storing them.",
                "Run the teacher during training instead.",
            )
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    data = TeacherRows(data)
    key = cache_key(teacher, family, data, wanted, half)
    with lock_beside(folder):
        try:
            return CachedTeacher(folder, key, wanted)
        except (InputError, OSError, ValueError):
            _check_replaceable(folder)
        online = OnlineTeacher(teacher, family, wanted)
        device = next(teacher.parameters()).device
        shortest = int(np.argmin(data.lengths))
        layout = layout_of(online(_on(device, data, [shortest])), half)
        check_size(layout, data.lengths, LIMIT_BYTES, where)
        _check_room(folder, estimate_bytes(layout, data.lengths))
        with building(folder, Contents(DESCRIPTION, (LENGTHS, RECORDS))) as work:
            _write_records(online, data, layout, work / RECORDS, batch, where)
            np.save(work / LENGTHS, np.asarray(data.lengths, np.int64))
            write_json(work / DESCRIPTION, Description(key=key, layout=layout).model_dump(mode="json"))
        return CachedTeacher(folder, key, wanted)


def _on(device: torch.device, data: TrainData, rows: Sequence[int]) -> dict[str, Tensor]:
    return {name: value.to(device) for name, value in data.batch(rows, 0).items()}


def _check_replaceable(folder: Path) -> None:
    if folder.exists() and not (folder / DESCRIPTION).is_file():
        raise InputError(
            Problem(
                str(folder),
                "exists and is not a cache of teacher outputs; it is not replaced.",
                "Choose another folder.",
            )
        )


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder.parent).free
    if needed > free:
        raise MachineError(
            f"teacher outputs take {needed:,} bytes, {folder.parent} has {free:,} free. "
            "Fix: make room, choose another folder, or run the teacher online."
        )


def _write_records(online: OnlineTeacher, data: TrainData, layout: Layout, path: Path, batch: int, where: str) -> None:
    lengths = np.asarray(data.lengths, np.int64)
    starts, size = layout.starts(lengths), layout.dtype.itemsize
    device = next(online.teacher.parameters()).device
    order = np.argsort(-lengths, kind="stable")  # the longest first: what does not fit in memory fails at once
    # written, not mapped: a full disk is an OSError here, and would be a killed process there
    with path.open("wb") as stream, Meter("cache teacher outputs", len(order)) as meter:
        for begin in range(0, len(order), batch):
            rows = order[begin : begin + batch].tolist()
            inputs = _on(device, data, rows)
            with torch.autocast(device.type, enabled=False):
                arrays = _arrays(online(inputs), layout)
            mask = inputs["attention_mask"].cpu().numpy() != 0
            for i, (row, first) in enumerate(zip(rows, mask.argmax(1).tolist(), strict=True)):
                stream.seek(int(starts[row]) * size)
                for part, array in zip(layout.parts, arrays, strict=True):
                    stream.write(_stored(array[i][part.place(first, int(lengths[row]))], layout, part, where))
            meter.advance(len(rows))


def _arrays(taught: Taught, layout: Layout) -> list[Array]:
    of: dict[Signal, Mapping[Any, Tensor]] = {
        Signal.LOGITS: taught.outputs,
        Signal.HIDDEN: taught.hidden,
        Signal.ATTENTION: taught.scores,
    }
    keys = [p.name if p.signal is Signal.LOGITS else int(p.name) for p in layout.parts]
    return [of[p.signal][k].float().cpu().numpy() for p, k in zip(layout.parts, keys, strict=True)]


def _stored(value: Array, layout: Layout, part: Part, where: str) -> bytes:
    with np.errstate(over="ignore"):
        stored = value.astype(layout.dtype)
    if not np.isfinite(stored).all():
        what = f"{part.signal.value} {part.name} of the teacher reach {np.abs(value).max():.3g}"
        raise InputError(
            Problem(
                where,
                f"{what}, which {'fp16' if layout.half else 'fp32'} cannot hold.",
                "Store fp32." if layout.half else "The teacher's weights are broken; train it again.",
            )
        )
    return stored.tobytes()
