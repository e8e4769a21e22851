"""What a store of a teacher's guesses depends on, as `StoreSettings`: an epoch of other settings is stale."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from pocketbert.core.disk.files import sha256_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.versions import installed
from pocketbert.core.recipe.stages import SparseCache
from pocketbert.distill.teacher.cache.key import weights_digest
from pocketbert.distill.teacher.sparse.settings import StoreSettings
from pocketbert.distill.text.corpora.corpus import TokenRows
from pocketbert.distill.text.general_set import GeneralSet
from pocketbert.distill.training.batches import BatchOrder

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
