"""The map from an ordinary teacher's states to the width between a MobileBERT's blocks: its principal components.

`fit_adapter` computes a `StateAdapter` from a teacher and some rows; the method maps the teacher's hidden states with it.
`reduce_embeddings` initialises the student's embeddings through the same map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pocketbert.core.families import Family, family_of
from pocketbert.core.host.hardware import default_threads
from pocketbert.distill.losses.common import at_least_float32
from pocketbert.distill.students.projection import find_principal_axes
from pocketbert.distill.training.data import TrainData

_ROWS, _BATCH = 256, 32
"""Rows that the components are computed from, and rows per forward pass."""


@dataclass(frozen=True)
class StateAdapter:
    """Linear map ``(h - c) B`` from a teacher's states to their principal components. B has orthonormal columns.

    MobileBERT's own teacher has blocks of the student's width, so that no map is needed. For other teachers this map is
    used, which deviates from the paper (Sun et al. 2020, arXiv 2004.02984). There is one map for all layers, because
    all blocks of a student add to the same residual states. It is computed before training and then fixed: a map that
    is trained could make the loss smaller by shrinking the teacher's states.

    Attributes:
        centre: c, mean of the states, [D].
        basis: B, [D, d].
        kept: Share of the states' variance that is left, 0 to 1.
    """

    centre: Tensor
    basis: Tensor
    kept: float

    @property
    def width(self) -> int:
        """The student's width d, to which states are mapped."""
        return self.basis.shape[1]

    def __call__(self, states: Tensor) -> Tensor:
        """Map teacher states [..., D] to the student's width, [..., d]."""
        if self.basis.device != states.device:
            object.__setattr__(self, "centre", self.centre.to(states.device))
            object.__setattr__(self, "basis", self.basis.to(states.device))
        # a target rounded to bf16's eight bits would be most of a small loss
        with torch.autocast(states.device.type, enabled=False):
            states = at_least_float32(states)
            return (states - self.centre.to(states.dtype)) @ self.basis.to(states.dtype)


@torch.no_grad()
def fit_adapter(teacher: Any, family: Family, rows: TrainData, width: int) -> StateAdapter:
    """Fit an adapter that maps a teacher's states to their d principal components, on the first 256 rows' real tokens.

    The states of all layers and the embeddings are used. It is computed on the CPU with the training loop's number of
    threads, whatever the teacher's device is, so that a resumed run computes the same components.

    Args:
        teacher: Frozen model; put into eval mode.
        family: Names and inputs of the teacher's model family.
        rows: Training rows, as the student will read them.
        width: Width d of the student's states, at most the teacher's.
    """
    torch.set_num_threads(default_threads())
    device = next(teacher.parameters()).device
    encoder = teacher.eval().to("cpu").base_model
    size, count = teacher.config.hidden_size, 0
    total, products = torch.zeros(size, dtype=torch.float64), torch.zeros(size, size, dtype=torch.float64)
    row_numbers = range(min(_ROWS, len(rows.lengths)))
    for start in range(0, len(row_numbers), _BATCH):
        batch = rows.batch(list(row_numbers[start : start + _BATCH]), 0)
        result = encoder(**{name: batch[name] for name in family.inputs}, output_hidden_states=True)
        real = batch["attention_mask"].bool()
        for state in result.hidden_states:
            # in double: the covariance is a difference of large sums
            tokens = state[real].double()
            total += tokens.sum(0)
            products += tokens.T @ tokens
            count += len(tokens)
    teacher.to(device)
    centre = total / count
    covariance = products / count - torch.outer(centre, centre)
    basis = find_principal_axes(covariance, width)
    kept = float((basis.T @ covariance @ basis).trace() / covariance.trace())
    return StateAdapter(centre.float(), basis.float().contiguous(), kept)


@torch.no_grad()
def reduce_embeddings(teacher: Any, student: Any, adapter: StateAdapter) -> None:
    """Initialise a student's embeddings from those of a wider teacher, reduced to the student's width.

    The student's word table gets the principal components of the teacher's table. The embedding transformation reads a
    token and its two neighbours: it gets zeros for the neighbours, and maps the token's components to the vector that
    the adapter would compute from the teacher's embedding of the word. Position and segment embeddings, less their
    mean, are mapped by the adapter's matrix; they are zeros where the teacher has none. The layer normalization gets
    one scale for all channels, which brings the words to the size that they
    have after the teacher's normalization. Training does the rest.

    Args:
        teacher: A model with BERT's table of word embeddings and their normalization.
        student: A MobileBERT with trigram input, of the adapter's width; changed in place.
        adapter: Map from the teacher's states to the student's width.
    """
    source, target = teacher.base_model.embeddings, student.base_model.embeddings
    words = source.word_embeddings.weight.double()
    centre, narrow = words.mean(0), target.word_embeddings.weight.shape[1]
    axes, basis = find_principal_axes((words - centre).T @ (words - centre), narrow), adapter.basis.double()
    target.word_embeddings.weight.copy_((words - centre) @ axes)
    dense = target.embedding_transformation
    dense.weight.zero_()
    dense.weight[:, narrow : 2 * narrow].copy_((axes.T @ basis).T)
    dense.bias.zero_()
    for name in ("position_embeddings", "token_type_embeddings"):
        source_table, target_table = getattr(source, name, None), getattr(target, name)
        target_table.weight.zero_()
        if source_table is not None:
            unused = family_of(teacher.config.model_type).position_offset if name.startswith("position") else 0
            table = source_table.weight[unused:].double()
            rows = min(len(table), len(target_table.weight))
            target_table.weight[:rows].copy_((table[:rows] - table.mean(0)) @ basis)
    normed = source.LayerNorm(source.word_embeddings.weight).double()
    scale = (normed - normed.mean(0)).norm() / (words - centre).norm()
    target.LayerNorm.weight.fill_(float(scale))
