"""A teacher whose answers are in a column of the data: a source of signals that runs no model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.distill.teacher.signals import Taught, TeacherSignals, Wanted
from pocketbert.distill.training.data import ROW_NUMBERS


class ColumnTeacher:
    """Reads a teacher's task outputs for the rows of a batch from arrays in memory.

    A batch must hold ``rows`` (row numbers, int64 [B]), ``input_ids`` and, for outputs per token, ``attention_mask``
    [B, S].

    Args:
        outputs: Outputs by name, one array for each training row: [C] for a text, [tokens] or [tokens, C] for its
            tokens.
        by_token: Names of the outputs in which the first axis of the arrays is that of a row's tokens.
        beside: A source of further signals: the model that teaches the heads without a column. None without one.
    """

    def __init__(
        self,
        outputs: Mapping[str, Sequence[NDArray[np.float32]]],
        by_token: Collection[str],
        beside: TeacherSignals | None = None,
    ) -> None:
        self._outputs, self._by_token, self._beside = outputs, by_token, beside
        self.wanted = beside.wanted if beside is not None else Wanted(outputs=True)

    def with_model(self, signals: TeacherSignals) -> ColumnTeacher:
        """Return a source that has the outputs of the columns beside the signals of a model."""
        return ColumnTeacher(self._outputs, self._by_token, signals)

    def __call__(self, batch: Mapping[str, Tensor]) -> Taught:
        """Return the outputs for the rows of a batch, on the batch's device, beside the further signals.

        Outputs per token are padded with 0 at the same positions as the batch.

        Raises:
            RuntimeError: If a row of the batch has another number of tokens than its answer.
        """
        rows = batch[ROW_NUMBERS].tolist()
        device = batch["input_ids"].device
        outputs = {}
        for name, arrays in self._outputs.items():
            values = [arrays[row] for row in rows]
            padded = self._pad(values, batch["attention_mask"]) if name in self._by_token else np.stack(values)
            outputs[name] = torch.from_numpy(np.ascontiguousarray(padded)).to(device)
        taught = self._beside(batch) if self._beside is not None else Taught()
        return replace(taught, outputs={**taught.outputs, **outputs})

    def _pad(self, values: Sequence[NDArray[np.float32]], attention_mask: Tensor) -> NDArray[np.float32]:
        """Return values of tokens [B, S, ...] at the places of the real tokens, 0 elsewhere."""
        mask = attention_mask.cpu().numpy() != 0
        padded = np.zeros((*mask.shape, *values[0].shape[1:]), np.float32)
        for i, value in enumerate(values):
            if len(value) != int(mask[i].sum()):
                raise RuntimeError(f"a row has {int(mask[i].sum())} tokens, and answers for {len(value)}")
            padded[i, mask[i]] = value
        return padded
