"""The map from an ordinary teacher's states to the width between a MobileBERT's blocks: its principal components."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pocketbert.core.families import Family, family_of
from pocketbert.core.host.hardware import default_threads
from pocketbert.distill.losses.common import wide
from pocketbert.distill.training.data import TrainData

_ROWS, _BATCH = 256, 32
"""Rows that the components are found on, and at a time."""


@dataclass(frozen=True)
class StateAdapter:
    """``(h - c) B`` with orthonormal columns: the directions in which the teacher's states differ most.

    MobileBERT's own teacher has blocks of the student's width, so that nothing lies between the two. This stands in for it
    where there is none: a deviation from the paper (Sun et al. 2020, arXiv 2004.02984). One map for all layers, as the
    blocks of a student add to one stream; found beforehand and then fixed, since a map that is trained on the teacher's side
    would shrink what is to be learnt.

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
        """d, the student's."""
        return self.basis.shape[1]

    def __call__(self, states: Tensor) -> Tensor:
        """States [..., D] in the student's width, [..., d]."""
        if self.basis.device != states.device:
            object.__setattr__(self, "centre", self.centre.to(states.device))
            object.__setattr__(self, "basis", self.basis.to(states.device))
        # a target rounded to bf16's eight bits would be most of a small loss
        with torch.autocast(states.device.type, enabled=False):
            own = wide(states)
            return (own - self.centre.to(own.dtype)) @ self.basis.to(own.dtype)


@torch.no_grad()
def fit_adapter(teacher: Any, family: Family, rows: TrainData, width: int) -> StateAdapter:
    """Compute the principal components of a teacher's states from all layers and real tokens of the first rows.

    On the CPU, with the loop's threads, so that a run that resumes finds the same ones wherever its teacher was.

    Args:
        teacher: Frozen model; put into eval mode.
        family: Its row of the family table.
        rows: Text as the student will see it.
        width: d, at most the teacher's D.
    """
    torch.set_num_threads(default_threads())
    home = next(teacher.parameters()).device
    encoder = teacher.eval().to("cpu").base_model
    size, count = teacher.config.hidden_size, 0
    total, products = torch.zeros(size, dtype=torch.float64), torch.zeros(size, size, dtype=torch.float64)
    chosen = range(min(_ROWS, len(rows.lengths)))
    for start in range(0, len(chosen), _BATCH):
        batch = rows.batch(list(chosen[start : start + _BATCH]), 0)
        made = encoder(**{name: batch[name] for name in family.inputs}, output_hidden_states=True)
        real = batch["attention_mask"].bool()
        for state in made.hidden_states:
            # in double: the covariance is a difference of large sums
            own = state[real].double()
            total += own.sum(0)
            products += own.T @ own
            count += len(own)
    teacher.to(home)
    centre = total / count
    values, vectors = torch.linalg.eigh(products / count - torch.outer(centre, centre))
    basis = vectors.flip(-1)[:, :width]
    # the sign of a component is the library's choice: made positive where it is largest, so that machines agree
    largest = basis.gather(0, basis.abs().argmax(0, keepdim=True))
    basis = basis * largest.sign()
    kept = float(values.flip(-1)[:width].sum() / values.sum())
    return StateAdapter(centre.float(), basis.float().contiguous(), kept)


@torch.no_grad()
def reduce_embeddings(teacher: Any, student: Any, adapter: StateAdapter) -> None:
    """Initialise a student's embeddings from a wider teacher's, reduced to the student's width.

    Words: principal components of the teacher's table, and, from the token itself, back to where the adapter puts them; from
    its two neighbours nothing. Positions and segments: through the adapter. The norm's scale makes up for the teacher's
    layer normalization, by the size of the words alone. Training does the rest.

    Args:
        teacher: With tables for words, positions and segments, as BERT has them.
        student: A MobileBERT with trigram input, of the adapter's width; changed in place.
        adapter: From the teacher's states to the student's width.
    """
    theirs, ours = teacher.base_model.embeddings, student.base_model.embeddings
    words = theirs.word_embeddings.weight.double()
    middle, narrow = words.mean(0), ours.word_embeddings.weight.shape[1]
    _, vectors = torch.linalg.eigh((words - middle).T @ (words - middle))
    axes, basis = vectors.flip(-1)[:, :narrow], adapter.basis.double()
    ours.word_embeddings.weight.copy_((words - middle) @ axes)
    dense = ours.embedding_transformation
    dense.weight.zero_()
    dense.weight[:, narrow : 2 * narrow].copy_((axes.T @ basis).T)
    dense.bias.zero_()
    for name in ("position_embeddings", "token_type_embeddings"):
        found, own = getattr(theirs, name, None), getattr(ours, name)
        own.weight.zero_()
        if found is not None:
            unused = family_of(teacher.config.model_type).position_offset if name.startswith("position") else 0
            table = found.weight[unused:].double()
            rows = min(len(table), len(own.weight))
            own.weight[:rows].copy_((table[:rows] - table.mean(0)) @ basis)
    normed = theirs.LayerNorm(theirs.word_embeddings.weight).double()
    scale = (normed - normed.mean(0)).norm() / (words - middle).norm()
    ours.LayerNorm.weight.fill_(float(scale))
