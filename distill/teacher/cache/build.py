"""Running a teacher once over task data, and keeping what it says."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pocketbert.core.disk.files import write_json
from pocketbert.core.disk.ownership import Contents, lock_beside
from pocketbert.core.disk.workspace import building
from pocketbert.core.errors import InputError, MachineError, Problem
from pocketbert.core.families import Family
from pocketbert.core.host.progress import Meter
from pocketbert.core.types import Signal
from pocketbert.distill.teacher.cache.key import cache_key
from pocketbert.distill.teacher.cache.layout import Layout, Part, check_size, estimate_bytes, layout_of
from pocketbert.distill.teacher.cache.teacher import (
    DESCRIPTION,
    LENGTHS,
    RECORDS,
    Array,
    CachedTeacher,
    Description,
)
from pocketbert.distill.teacher.signals import OnlineTeacher, Taught, Wanted
from pocketbert.distill.training.train_set import TeacherRows, TrainData

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
