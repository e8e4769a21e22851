"""Terms of a loss: a mean, and over how many items it was taken, so that parts of a batch add up to the batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True)
class Term:
    """One term of a loss over some rows.

    Means of parts of unequal size do not average to the mean of the whole: three ranks with 100, 100 and
    10 labelled tokens would weigh the last ten tenfold. With its count, a part's mean is put right.

    Attributes:
        mean: Mean over the items; a differentiable scalar, float.
        count: How many items (rows, tokens) the mean is over, a float scalar without gradient. At 0 the
            mean is ignored, whatever it is.
    """

    mean: Tensor
    count: Tensor

    @classmethod
    def of(cls, mean: Tensor, count: Tensor | float) -> Term:
        """A term with its count as a tensor next to the mean.

        Args:
            mean: Mean over the items, scalar.
            count: Number of items.
        """
        return cls(mean, torch.as_tensor(count, dtype=torch.float32, device=mean.device).detach())


def as_terms(made: Mapping[str, Term | Tensor], rows: int) -> dict[str, Term]:
    """What an objective returned, with counts: a plain tensor is a mean over the rows.

    Args:
        made: Terms by name.
        rows: Rows of the batch they were computed on.
    """
    return {name: t if isinstance(t, Term) else Term.of(t, rows) for name, t in made.items()}


@runtime_checkable
class Counting(Protocol):
    """An objective with terms that are means over something else than rows."""

    def counts(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """The number of items in the mean of each such term, by name, from the batch only: no forward pass."""
        ...


def items(objective: object, names: Iterable[str], batch: dict[str, Tensor]) -> dict[str, float]:
    """How many items each term of an objective is a mean over; rows where the objective does not count.

    Args:
        objective: A `Counting`, or anything else.
        names: Names of its terms.
        batch: Tensors whose first dimension is rows.
    """
    rows = float(rows_of(batch))
    if not isinstance(objective, Counting):
        return dict.fromkeys(names, rows)
    counted = objective.counts(batch)
    return {name: float(counted[name]) if name in counted else rows for name in names}


def rows_of(batch: dict[str, Tensor]) -> int:
    """Rows of a batch.

    Raises:
        ValueError: If its tensors disagree: such a batch cannot be divided by rows.
    """
    sizes = {name: len(value) for name, value in batch.items()}
    if len(set(sizes.values())) != 1:
        raise ValueError(f"tensors of one batch must have rows first, as many in each: {sizes}")
    return next(iter(sizes.values()))


def share(mean: Tensor, part: float, whole: float) -> Tensor:
    """What a part adds to the mean over the whole: ``mean * part / whole``, scalar.

    Shares of all parts sum to the mean of the whole. A part without items adds exactly 0, also to the
    gradient, even where its mean is 0/0; a part that is the whole adds its mean, bit for bit.

    Args:
        mean: Mean over the part's items, scalar.
        part: Items in the part.
        whole: Items in all parts together.
    """
    if part == 0 or whole == 0:
        return mean.new_zeros(())  # not `mean * 0`: a mean over nothing is NaN, and so is NaN * 0
    return mean if part == whole else mean * (part / whole)
