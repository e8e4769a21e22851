"""Many tokenized rows in little memory: augmentation makes millions of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.core.heads.head import Prepared
from pocketbert.core.predict.tokenization import Encoded, TextTokenizer
from pocketbert.distill.training.train_set import ROWS, TrainSet


class PackedSet:
    """Training rows as `pocketbert.distill.training.train_set.TrainSet` gives them, 5 bytes a token instead of some 900 a row.

    Args:
        portions: The rows, some at a time; their targets are arrays with one entry per row.
        tokenizer: Pads batches.
    """

    def __init__(self, portions: Iterable[Prepared], tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        ids, types, lengths = [], [], []
        targets: dict[str, list[NDArray[np.generic]]] = {}
        for portion in portions:
            ids.append(np.concatenate([e.ids for e in portion.encoded]).astype(np.int32))
            types.append(np.concatenate([e.type_ids for e in portion.encoded]).astype(np.int8))
            lengths.append(np.array([len(e) for e in portion.encoded], np.int64))
            for name, values in portion.targets.items():
                targets.setdefault(name, []).append(np.asarray(values))
        self._ids, self._types, self._lengths = (
            np.concatenate(ids),
            np.concatenate(types),
            np.concatenate(lengths),
        )
        self._targets = {name: np.concatenate(values) for name, values in targets.items()}
        self._starts = np.cumsum(self._lengths) - self._lengths

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of each row."""
        numbers: list[int] = self._lengths.tolist()
        return numbers

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """See `pocketbert.distill.training.train_set.TrainSet.batch`."""
        chosen = np.asarray(rows, np.int64)
        targets = {name: values[chosen] for name, values in self._targets.items()}
        some = Prepared([], [self._encoded(i) for i in chosen.tolist()], np.arange(len(chosen)), targets)
        out = TrainSet(some, self._tokenizer).batch(range(len(chosen)), step)
        out[ROWS] = torch.from_numpy(chosen)
        return out

    def _encoded(self, row: int) -> Encoded:
        own = slice(self._starts[row], self._starts[row] + self._lengths[row])
        return Encoded(self._ids[own].astype(np.int64), self._types[own].astype(np.int64), False)
