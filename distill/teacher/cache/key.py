"""What a cache of teacher outputs depends on, as one digest: a cache under another digest is stale."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from pocketbert.core.disk.files import sha256_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family
from pocketbert.core.host.versions import installed
from pocketbert.distill.teacher.signals import Wanted
from pocketbert.distill.training.train_set import TrainData

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
