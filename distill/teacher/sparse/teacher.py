"""A masked-language model's guesses, made before training: text that is masked anew at every step can be cached too.

Which rows a step has, and what is hidden in them, are functions of (seed, purpose, step): the teacher can be asked
about every step of a stage beforehand, and its answers kept by (epoch, row) as `SparseLogits`. Hidden states are
not kept: there, asking the teacher again is cheaper than reading what it said.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.core.disk.ownership import lock_beside
from pocketbert.core.errors import InputError, MachineError, Problem
from pocketbert.core.heads.head import IGNORED
from pocketbert.core.host.processes import here
from pocketbert.core.host.progress import Meter
from pocketbert.core.recipe.stages import DistilBertStage
from pocketbert.distill.capture.lm_heads import LmHead, places
from pocketbert.distill.losses.sparse_logits import SparseLogits, sparsify, uniform_draws
from pocketbert.distill.teacher.sparse.key import settings_of
from pocketbert.distill.teacher.sparse.store import SparseStore, SparseWriter
from pocketbert.distill.text.general_set import GeneralSet
from pocketbert.distill.training.batches import BatchOrder, divide, parts
from pocketbert.distill.training.train_set import ROWS, STEPS

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
