"""Training rows as tensors: which rows a step has, and how they become a batch.

- `TrainData` is the interface that the training loop reads rows through. `TrainSet` implements it for tokenized rows in
  memory, `PackedSet` for millions of them, and `MixedSet` joins labelled and unlabelled rows. `FixedLengthSet` pads the
  batches of any of them to one length.
- `BatchOrder` decides which rows make up the batch of a step, from the seed and the step alone, and in which shares.
- `split_batch` and `take_rows` divide a batch among processes, and a process's share into portions that fit into
  memory. `make_part` makes the rows of one process, and `Lookahead` the next step's while this one is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.core.heads.head import IGNORED_LABEL, LABELLED_ROWS, Prepared
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.seeds import generator

_T = TypeVar("_T")

ROW_NUMBERS = "rows"
"""Name of the row numbers in a batch; a cached teacher finds its signals by them."""

STEP_NUMBERS = "steps"
"""Name of the optimizer step in a batch, once per row; where tokens are masked anew at every step, it identifies the masks."""

_WINDOW = 64
"""Batches whose rows are sorted by length together: random enough to learn, even enough to waste little padding."""


class TrainData(Protocol):
    """Interface of training rows: their lengths, and the batch of any rows as tensors.

    If the loss compares rows with each other, such as the choices of a question, the rows also have the attribute
    ``together``: how many neighbouring rows are always in one portion of a batch. If some rows of a batch can be made
    without the others, they have a method ``part``, see `make_part`.
    """

    @property
    def lengths(self) -> Sequence[int]:
        """Number of tokens of each row."""
        ...

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Return a batch of the given rows as tensors by name, padded to the longest row.

        Random choices depend only on (seed, step, row). It is called in another thread than the model.
        """
        ...


@dataclass(frozen=True)
class TrainSet:
    """Tokenized training rows with their targets, in memory; implements `TrainData`.

    Attributes:
        rows: N rows with their targets.
        tokenizer: Tokenizer that pads batches.
        together: Number of neighbouring rows that are always in one batch.
    """

    rows: Prepared
    tokenizer: TextTokenizer
    together: int = 1

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each row."""
        return [len(e) for e in self.rows.encoded]

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Return a batch of the given rows: model inputs [B, L], targets by name, and row numbers ``rows`` [B].

        Targets with one value per token are padded with `IGNORED_LABEL`.

        Args:
            rows: Row numbers, B of them.
            step: Number of the optimizer step; not used.
        """
        return self.part(rows, step, slice(None))

    def part(self, rows: Sequence[int], step: int, own: slice) -> dict[str, Tensor]:
        """Return the rows `own` of the batch of `rows`, padded as in the whole batch; `step` is not used."""
        width, numbers = max(len(self.rows.encoded[i]) for i in rows), rows[own]
        tensors = _stack(self.take(numbers), self.tokenizer, width)
        tensors[ROW_NUMBERS] = torch.tensor(list(numbers))
        return tensors

    def take(self, rows: Sequence[int]) -> Prepared:
        """Return the given rows with their targets, without their examples."""
        targets = {
            name: values[np.asarray(rows, np.int64)] if isinstance(values, np.ndarray) else [values[i] for i in rows]
            for name, values in self.rows.targets.items()
        }
        return Prepared([], [self.rows.encoded[i] for i in rows], np.arange(len(rows)), targets)


class PackedSet:
    """Training rows in compact arrays, which return the same batches as `TrainSet`.

    They take 5 bytes a token instead of some 900 a row, for the millions of rows that augmentation makes.

    Args:
        portions: The tokenized rows, some at a time; their targets are arrays with one entry per row, or one array per
            row with one entry per token.
        tokenizer: Tokenizer that pads batches.
    """

    def __init__(self, portions: Iterable[Prepared], tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer
        ids, types, lengths = [], [], []
        targets: dict[str, list[NDArray[np.generic]]] = {}
        self._per_token = set[str]()
        for portion in portions:
            ids.append(np.concatenate([e.ids for e in portion.encoded]).astype(np.int32))
            types.append(np.concatenate([e.type_ids for e in portion.encoded]).astype(np.int8))
            lengths.append(np.array([len(e) for e in portion.encoded], np.int64))
            for name, values in portion.targets.items():
                if not isinstance(values, np.ndarray):
                    self._per_token.add(name)
                packed = values if isinstance(values, np.ndarray) else np.concatenate(values).astype(np.int32)
                targets.setdefault(name, []).append(packed)
        self._ids, self._types, self._lengths = np.concatenate(ids), np.concatenate(types), np.concatenate(lengths)
        self._targets = {name: np.concatenate(values) for name, values in targets.items()}
        self._starts = np.cumsum(self._lengths) - self._lengths

    @property
    def lengths(self) -> Sequence[int]:
        """Number of tokens of each row."""
        lengths: list[int] = self._lengths.tolist()
        return lengths

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Return a batch of the given rows: model inputs [B, L], targets and row numbers, by name; see `TrainSet.batch`.

        `step` is not used.
        """
        return self.part(rows, step, slice(None))

    def part(self, rows: Sequence[int], step: int, own: slice) -> dict[str, Tensor]:
        """Return the rows `own` of the batch of `rows`, padded as in the whole batch; `step` is not used."""
        width, numbers = int(self._lengths[np.asarray(rows)].max()), rows[own]
        tensors = _stack(self.take(numbers), self.tokenizer, width)
        tensors[ROW_NUMBERS] = torch.from_numpy(np.asarray(numbers, np.int64))
        return tensors

    def take(self, rows: Sequence[int]) -> Prepared:
        """Return the given rows with their targets, unpacked; see `TrainSet.take`."""
        numbers = np.asarray(rows, np.int64)
        places = [slice(s, s + n) for s, n in zip(self._starts[numbers], self._lengths[numbers], strict=True)]
        encoded = [Encoded(self._ids[p].astype(np.int64), self._types[p].astype(np.int64), False) for p in places]
        targets = {
            name: [values[p].astype(np.int64) for p in places] if name in self._per_token else values[numbers]
            for name, values in self._targets.items()
        }
        return Prepared([], encoded, np.arange(len(numbers)), targets)


def _stack(rows: Prepared, tokenizer: TextTokenizer, width: int) -> dict[str, Tensor]:
    """Return rows with their targets as tensors by name, padded to `width` tokens."""
    padded = tokenizer.pad(rows.encoded, width)
    tensors = {name: torch.from_numpy(value) for name, value in padded.items()}
    for name, values in rows.targets.items():
        target: NDArray[np.generic]
        if isinstance(values, np.ndarray):
            target = values
        else:
            target = np.full((len(values), width), IGNORED_LABEL, np.int64)
            for i, value in enumerate(values):
                target[i, tokenizer.span(len(value), width)] = value
        tensors[name] = torch.from_numpy(np.ascontiguousarray(target))
    return tensors


@dataclass(frozen=True)
class MixedPart:
    """One kind of rows in a `MixedSet`.

    Attributes:
        rows: The rows; if another part has targets per token, this part must have them too.
        weight: Number of a step's rows that come from this part, relative to the weights of the other parts.
        labelled: Whether the rows have gold labels.
    """

    rows: TrainSet | PackedSet
    weight: float
    labelled: bool = True


class MixedSet:
    """Rows of several kinds with a share of every step for each; implements `TrainData`.

    Row numbers run through the parts in order. Targets that a part lacks are 0 in a batch. If a part has no labels, the
    batch has the entry `LABELLED_ROWS`.

    Attributes:
        parts: The parts; a pass over the data is a pass over the first one.
    """

    def __init__(self, parts: Sequence[MixedPart]) -> None:
        self.parts = list(parts)
        part_lengths = [np.asarray(part.rows.lengths, np.int64) for part in self.parts]
        self._lengths, sizes = np.concatenate(part_lengths), [len(lengths) for lengths in part_lengths]
        self._starts = np.cumsum([0, *sizes])
        self.shares = [(size, part.weight) for size, part in zip(sizes, self.parts, strict=True)]
        self._like = {name: values for part in self.parts for name, values in part.rows.take([0]).targets.items()}

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each row."""
        lengths: list[int] = self._lengths.tolist()
        return lengths

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Return a batch of the given rows as tensors by name, in their order; see `TrainSet.batch`."""
        return self.part(rows, step, slice(None))

    def part(self, rows: Sequence[int], step: int, own: slice) -> dict[str, Tensor]:
        """Return the rows `own` of the batch of `rows`, padded as in the whole batch; `step` is not used."""
        width, numbers = int(self._lengths[np.asarray(rows)].max()), np.asarray(rows[own], np.int64)
        part_of = np.searchsorted(self._starts, numbers, "right") - 1
        order = np.argsort(part_of, kind="stable")
        encoded, targets = list[Encoded](), {name: list[NDArray[np.generic]]() for name in self._like}
        for number, part in enumerate(self.parts):
            chosen = numbers[part_of == number] - self._starts[number]
            taken = part.rows.take(chosen.tolist())
            encoded += taken.encoded
            for name, like in self._like.items():
                zeros = np.zeros((len(chosen), *np.shape(like)[1:]), np.asarray(like).dtype)
                targets[name] += list(taken.targets.get(name, zeros))
        place = np.argsort(order)
        sorted_targets = {
            name: np.stack([values[i] for i in place])
            if isinstance(self._like[name], np.ndarray)
            else [values[i] for i in place]
            for name, values in targets.items()
        }
        prepared = Prepared([], [encoded[i] for i in place], np.arange(len(numbers)), sorted_targets)
        tensors = _stack(prepared, self.parts[0].rows.tokenizer, width)
        tensors[ROW_NUMBERS] = torch.from_numpy(numbers)
        if not all(part.labelled for part in self.parts):
            tensors[LABELLED_ROWS] = torch.tensor([self.parts[i].labelled for i in part_of])
        return tensors


class FixedLengthSet:
    """Training rows whose batches are all padded to the longest input that they may have; implements `TrainData`.

    Released training code pads in this way. A loss whose means are over padding too has the value that it has there.

    Args:
        rows: Rows that are padded to the longest one of a batch: any of the classes of this package.
    """

    def __init__(self, rows: TrainData) -> None:
        source: Any = rows.parts[0].rows if isinstance(rows, MixedSet) else rows
        self._rows, self._tokenizer = rows, cast("TextTokenizer", source.tokenizer)
        self.together, self.shares = rows_together(rows), row_shares(rows)

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each row with its padding: the tokenizer's `max_length`."""
        return [self._tokenizer.max_length] * len(self._rows.lengths)

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Return a batch of the given rows; entries that are as wide as the token ids have padding up to `max_length`."""
        return self.part(rows, step, slice(None))

    def part(self, rows: Sequence[int], step: int, own: slice) -> dict[str, Tensor]:
        """Return the rows `own` of the batch of `rows`, padded up to `max_length`; see `make_part`."""
        batch = make_part(self._rows, rows, step, own)
        reader, length = self._tokenizer.reader, self._tokenizer.max_length
        width = batch["input_ids"].shape[1]
        extra = {e.name: e.padding for e in reader.form.extra} if reader is not None else {}
        fills = {"input_ids": self._tokenizer.pad_id, "attention_mask": 0, "token_type_ids": 0, **extra}
        labels = batch.get("labels", batch["rows"])  # those of multi-label rows are floats
        if labels.shape == batch["input_ids"].shape and not labels.is_floating_point():
            fills["labels"] = IGNORED_LABEL
        for name in fills.keys() & batch.keys():
            value = batch[name]
            padded = value.new_full((len(value), length, *value.shape[2:]), fills[name])
            padded[:, self._tokenizer.span(width, length)] = value
            batch[name] = padded
        return batch


def rows_together(data: TrainData) -> int:
    """Return how many neighbouring rows of a training set are always in one portion of a batch, usually 1."""
    return int(getattr(data, "together", 1))


def row_shares(data: TrainData) -> Sequence[tuple[int, float]]:
    """Return the number of rows and the weight of each part of mixed training rows; empty for rows of one kind."""
    shares: Sequence[tuple[int, float]] = getattr(data, "shares", ())
    return shares


def rows_per_pass(data: TrainData) -> int:
    """Return the number of rows on which one pass trains: all rows.

    In mixed rows, a pass takes the rows of the first part once, and of the other parts as many as their weights ask
    for.
    """
    shares = row_shares(data)
    if not shares:
        return len(data.lengths)
    rows, weight = shares[0]
    return round(rows * sum(w for _, w in shares) / weight)


class BatchOrder:
    """Order of the training rows: which rows make up the batch of each step, decided by (seed, purpose, step) alone.

    Each epoch is a new permutation, cut into windows whose rows are sorted by length and batched; the batches are then
    shuffled. Rows that do not fill a last batch are left out of the epoch.

    With `shares`, each window takes rows from each part in proportion to its weight; what rounding leaves over goes
    into the next windows. All rows of a part are trained on before one is repeated.

    Attributes:
        batch: Number of rows per step: that of the argument `batch`, or fewer if there are not as many rows, or to hold
            only whole groups of `together` rows.
        per_epoch: Number of steps of an epoch; with `shares`, of a window.

    Args:
        lengths: Number of tokens of each of the N rows.
        batch: Rows per step, over all processes.
        seed: Seed of the run.
        purpose: Name of the stage, so that two stages have different orders.
        together: Number of neighbouring rows that are always in one batch. A batch holds whole groups of them, and at
            least one.
        shares: Number of rows and weight of each part, see `row_shares`; with it `together` is 1.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch: int,
        seed: int,
        purpose: str,
        together: int = 1,
        shares: Sequence[tuple[int, float]] = (),
    ) -> None:
        self.lengths, self._together = np.asarray(lengths, np.int64), together
        # the order is that of groups, each as long as its longest row
        self._longest = self.lengths.reshape(-1, together).max(-1)
        self._groups = min(max(1, batch // together), len(self._longest))
        self.batch = self._groups * together
        self.seed, self.purpose = seed, purpose
        self.per_epoch = _WINDOW if shares else len(self._longest) // self._groups
        self._shares = shares
        self._epoch = -1
        self._batches: NDArray[np.int64] = np.empty((0, self.batch), np.int64)

    def rows(self, step: int) -> NDArray[np.int64]:
        """Return the row numbers that make up the batch of a training step, [batch] int64."""
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            shuffle = self._mix if self._shares else self._shuffle
            self._batches, self._epoch = shuffle(epoch), epoch
        rows: NDArray[np.int64] = self._batches[place]
        return rows

    def _shuffle(self, epoch: int) -> NDArray[np.int64]:
        """Return the row numbers of all batches of an epoch in their random order, [per_epoch, batch]."""
        random = generator(self.seed, f"order/{self.purpose}", epoch)
        groups = random.permutation(len(self._longest))[: self.per_epoch * self._groups]
        window = _WINDOW * self._groups
        for start in range(0, len(groups), window):
            part = groups[start : start + window]
            groups[start : start + window] = part[np.argsort(self._longest[part], kind="stable")]
        rows = groups[:, None] * self._together + np.arange(self._together)
        batches = rows.reshape(self.per_epoch, self.batch)
        return batches[random.permutation(self.per_epoch)]

    def _mix(self, window: int) -> NDArray[np.int64]:
        """Return the row numbers of all batches of a window of mixed rows, [_WINDOW, batch], in random order.

        The parts have as many rows in it as their weights ask for, after rounding in this and all windows before.
        """
        weights = np.array([weight for _, weight in self._shares], np.float64)
        wanted = weights / weights.sum() * self.batch * _WINDOW
        taken, first, chosen = np.zeros(len(weights), np.int64), 0, list[NDArray[np.int64]]()
        for number in range(window + 1):  # each window rounds what the ones before left over
            before = taken.copy()
            due = wanted * (number + 1) - taken
            taken += np.floor(due).astype(np.int64)
            missing = self.batch * _WINDOW * (number + 1) - int(taken.sum())
            taken[np.argsort(-(due - np.floor(due)), kind="stable")[:missing]] += 1
        for part, (rows, _) in enumerate(self._shares):
            passes = range(int(before[part]) // rows, -(-int(taken[part]) // rows))
            orders = [generator(self.seed, f"order/{self.purpose}/{part}", n).permutation(rows) for n in passes]
            skipped = int(before[part]) - passes.start * rows
            own = np.concatenate(orders)[skipped : skipped + int(taken[part] - before[part])] if orders else np.empty(0)
            chosen.append(first + own.astype(np.int64))
            first += rows
        numbers = np.concatenate(chosen)
        batches = numbers[np.argsort(self.lengths[numbers], kind="stable")].reshape(_WINDOW, self.batch)
        return batches[generator(self.seed, f"order/{self.purpose}", window).permutation(_WINDOW)]


def split_batch(rows: int, rank: int, world: int, most: int | None = None, together: int = 1) -> list[slice]:
    """Return the row ranges of a batch that process `rank` computes, cut into portions of at most `most` rows.

    Each process takes neighbouring rows, as many as the other processes or one more. If there are more processes than
    rows, the last ones take no rows and still get one empty portion: every process must take part in the exchange of
    gradients.

    Args:
        rows: Number of rows of the whole batch.
        rank: Number of the process, from 0.
        world: Number of processes.
        most: Number of rows per portion at most; by default all rows of the process are one portion.
        together: Number of neighbouring rows that must be in one portion, such as the choices of a question.
    """
    share, larger = divmod(rows // together, world)
    start = rank * share + min(rank, larger)
    end = start + share + (rank < larger)
    most = max(1, (most or rows) // together)
    portions = [(i, min(i + most, end)) for i in range(start, end, most)] or [(start, end)]
    return [slice(first * together, last * together) for first, last in portions]


def take_rows(batch: dict[str, Tensor], rows: slice) -> dict[str, Tensor]:
    """Return a slice of the rows of a batch. Padding stays as wide as in the whole batch."""
    return {name: value[rows] for name, value in batch.items()}


def make_part(data: TrainData, rows: Sequence[int], step: int, own: slice) -> dict[str, Tensor]:
    """Return some rows of a step's batch as tensors by name, padded as in the whole batch.

    Training rows with a method ``part``, which has the other three arguments, make these rows alone. Of other training
    rows the whole batch is made, and these rows are taken from it.

    Args:
        data: Training rows.
        rows: Row numbers of the whole batch.
        step: Number of the optimizer step.
        own: Which of `rows` are returned; there may be none.
    """
    make = getattr(data, "part", None)
    if make is None or len(rows[own]) == len(rows):
        return take_rows(data.batch(rows, step), own)
    if not rows[own]:  # tensors without rows have the names, number types and widths of others
        return take_rows(make(rows, step, slice(0, 1)), slice(0, 0))
    part: dict[str, Tensor] = make(rows, step, own)
    return part


class Lookahead(Generic[_T]):
    """Prepares what the next step needs in a thread, while the present step is computed.

    Args:
        prepare: Prepares a step. It is called in one thread, for one step after the other.
        steps: Number of steps; nothing is prepared beyond the last one.
    """

    def __init__(self, prepare: Callable[[int], _T], steps: int) -> None:
        self._prepare, self._steps = prepare, steps
        self._thread = ThreadPoolExecutor(1, "pocketbert-batches")
        self._prepared = dict[int, Future[_T]]()

    def take(self, step: int) -> _T:
        """Return what was prepared for a step, also if asked again, and begin to prepare the step after it."""
        self._prepared = {number: future for number, future in self._prepared.items() if number >= step}
        for number in range(step, min(step + 2, self._steps)):
            if number not in self._prepared:
                self._prepared[number] = self._thread.submit(self._prepare, number)
        return self._prepared[step].result()

    def close(self) -> None:
        """Prepare nothing more, so that a training that was interrupted does not wait for batches that nobody takes."""
        self._thread.shutdown(wait=False, cancel_futures=True)
