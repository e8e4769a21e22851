"""The signals of a teacher for a batch, and the teacher that computes them next to the student during training.

An objective declares with `Wanted` which signals it compares. `choose_signals` returns their source: an `OnlineTeacher`, which
runs the model on every batch, or a replacement such as `pocketbert.distill.teacher.cache.CachedTeacher`. Both return `Taught`.

Where the teacher reads other tokens than the student, `TwoTokenizerSet` holds the rows of both, and `select_teacher_inputs` selects
the teacher's part of a batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from pocketbert.core.families import Family
from pocketbert.core.heads.head import TEACHER_PREFIX
from pocketbert.distill.capture import QueryKeyValue, record_attention
from pocketbert.distill.training.data import TrainData, make_part, row_shares, rows_together
from pocketbert.distill.training.sharding import is_sharded

_OUTPUTS = ("logits", "start_logits", "end_logits", "last_hidden_state", "prediction_logits", "seq_relationship_logits")
"""Fields of transformers' results that are outputs of a task, pre-training included."""


@dataclass(frozen=True)
class Wanted:
    """Selection of the teacher's outputs, hidden states, attention scores and relations that an objective compares.

    Attributes:
        outputs: Whether the task outputs are compared.
        hidden: Numbers of the hidden states; 0 is the embeddings, n the output of layer n.
        attention: Layers whose attention scores are compared, counted from 0.
        relations: Layers whose queries, keys and values are compared, counted from 0.
    """

    outputs: bool = True
    hidden: tuple[int, ...] = ()
    attention: tuple[int, ...] = ()
    relations: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        # a map may name a teacher layer twice; two orders of the same numbers are the same signals, and one cache
        for name in ("hidden", "attention", "relations"):
            object.__setattr__(self, name, tuple(sorted(set(getattr(self, name)))))

    def __bool__(self) -> bool:
        """Return whether anything is selected."""
        return bool(self.outputs or self.hidden or self.attention or self.relations)

    def covers(self, other: Wanted) -> bool:
        """Return whether everything that `other` selects is selected here too."""
        return (
            self.outputs >= other.outputs
            and set(self.hidden) >= set(other.hidden)
            and set(self.attention) >= set(other.attention)
            and set(self.relations) >= set(other.relations)
        )


@dataclass(frozen=True)
class Taught:
    """A teacher's outputs, hidden states, attention scores and relations for a batch of B rows, padded to S tokens.

    They have no gradients. Values at padded positions mean nothing and differ between an online and a cached teacher;
    losses leave them out.

    Attributes:
        outputs: Task outputs by name: ``logits`` [B, C] or [B, S, C], ``start_logits`` and ``end_logits`` [B, S],
            ``last_hidden_state`` [B, S, d]; of both pre-training heads ``prediction_logits`` [B, S, V] and
            ``seq_relationship_logits`` [B, 2].
        hidden: Hidden states by number, 0 being the embeddings, each [B, S, d].
        scores: Attention scores before the softmax by layer from 0, each [B, H, S, S], with the mask applied: about
            -1e4 at padded keys.
        relations: Queries, keys and values by layer from 0.
    """

    outputs: Mapping[str, Tensor] = field(default_factory=dict)
    hidden: Mapping[int, Tensor] = field(default_factory=dict)
    scores: Mapping[int, Tensor] = field(default_factory=dict)
    relations: Mapping[int, QueryKeyValue] = field(default_factory=dict)


class TeacherSignals(Protocol):
    """Interface of a source of the teacher's signals: a model that is run, a cache, or a column of the data."""

    @property
    def wanted(self) -> Wanted:
        """The signals that every call returns."""
        ...

    def __call__(self, batch: Mapping[str, Tensor]) -> Taught:
        """Return the teacher's signals for a batch, on the batch's device."""
        ...


def choose_signals(teacher: Any, family: Family, wanted: Wanted, given: TeacherSignals | None = None) -> TeacherSignals:
    """Check that the source `given` has all wanted signals, and return it; without it, return a new `OnlineTeacher`.

    Args:
        teacher: A transformers model, which the `OnlineTeacher` runs.
        family: Names, layer paths and inputs of the model's family.
        wanted: Signals that the objective compares.
        given: Another source, such as a cache.

    Raises:
        ValueError: If `given` lacks a wanted signal.
    """
    signals = given or OnlineTeacher(teacher, family, wanted)
    if not signals.wanted.covers(wanted):
        raise ValueError(f"the signals given have {signals.wanted}, the stage wants {wanted}")
    return signals


class OnlineTeacher:
    """A source of signals that runs the teacher on every batch.

    It needs no disk, and takes any text at any step. It is the right source for general distillation on hidden states,
    attention and relations, because reading them from a cache would take longer than running the teacher. For task
    data, whose rows recur many times, see `pocketbert.distill.teacher.cache`. If only attention and relations are
    wanted, the teacher runs no further than the last layer of these, unless it is sharded.

    Args:
        teacher: A transformers model. Its attention is replaced by one that records. When it runs, it is put into eval
            mode and, unless it is sharded, moved to the device of the batches.
        family: Names, layer paths and inputs of the model's family.
        wanted: Signals that every call returns.

    Raises:
        ValueError: If the teacher has no such hidden state or layer.
    """

    def __init__(self, teacher: Any, family: Family, wanted: Wanted) -> None:
        depth = teacher.config.num_hidden_layers
        bad_hidden = [n for n in wanted.hidden if not 0 <= n <= depth]
        bad_layers = [n for n in sorted({*wanted.attention, *wanted.relations}) if not 0 <= n < depth]
        if bad_hidden or bad_layers:
            raise ValueError(
                f"no hidden states {bad_hidden} or attention layers {bad_layers} in a teacher of {depth} "
                f"layers: hidden states are 0 to {depth}, attention layers 0 to {depth - 1}"
            )
        self.teacher, self.family, self.wanted, self._depth = teacher, family, wanted, depth
        runs_to_end = wanted.outputs or bool(wanted.hidden) or is_sharded(teacher)
        self._recorder = record_attention(teacher, family, wanted.attention, wanted.relations, stop=not runs_to_end)

    def __call__(self, batch: Mapping[str, Tensor]) -> Taught:
        """Run the teacher on a batch, and return its signals. If no signals are wanted, it is not run.

        Args:
            batch: The family's inputs by name, each [B, S]; other entries are ignored.

        Raises:
            RuntimeError: If the model returned another number of hidden states or attention layers than it has: a loss
                over missing ones would silently be 0.
        """
        if not self.wanted:
            return Taught()
        move_teacher(self.teacher, batch["input_ids"].device)
        teacher_batch = select_teacher_inputs(batch)
        inputs = {name: teacher_batch[name] for name in self.family.inputs}
        result = None
        with torch.no_grad(), self._recorder:
            result = self.teacher(**inputs, output_hidden_states=bool(self.wanted.hidden))
        states = checked_hidden_states(result, self._depth) if self.wanted.hidden else ()
        return Taught(
            {n: result[n] for n in _OUTPUTS if n in result} if result is not None and self.wanted.outputs else {},
            {n: states[n] for n in self.wanted.hidden},
            {n: self._recorder.scores[n] for n in self.wanted.attention},
            {n: self._recorder.relations[n] for n in self.wanted.relations},
        )


def move_teacher(teacher: Any, device: torch.device) -> None:
    """Put a teacher into eval mode, and move it to a batch's device unless it is sharded. The training loop moves only the student."""
    if not is_sharded(teacher) and next(teacher.parameters()).device != device:
        teacher.to(device)
    if teacher.training:
        teacher.eval()


@contextmanager
def on_accelerator(teacher: Any) -> Iterator[torch.device]:
    """Move a teacher to this process's accelerator, and back when the block ends. Without one it stays where it is.

    Of several GPUs, a process uses the one that Accelerate gives it for training. The parts of a sharded teacher are there already.

    Yields:
        The device of the teacher in the block.
    """
    original = device = next(teacher.parameters()).device
    if is_sharded(teacher):
        yield device
        return
    if (accelerator := torch.accelerator.current_accelerator(check_available=True)) is not None:
        device = torch.device(
            accelerator.type, int(os.environ.get("LOCAL_RANK", "0")) % torch.accelerator.device_count()
        )
    try:
        teacher.to(device)
        yield device
    finally:
        teacher.to(original)


def checked_hidden_states(result: Any, depth: int) -> tuple[Tensor, ...]:
    """Return the hidden states of a transformers output, after checking that there is one per layer and one more.

    Args:
        result: The output of a model with ``output_hidden_states``.
        depth: Number of layers of the model.

    Returns:
        The embeddings and the output of each layer, each [B, S, d].

    Raises:
        RuntimeError: If there is another number of them: a loss over missing ones would silently be 0.
    """
    states: tuple[Tensor, ...] = result.hidden_states
    if len(states) != depth + 1:
        raise RuntimeError(f"{len(states)} hidden states from {depth} layers; expected one more than layers")
    return states


# --- a teacher that reads other tokens than the student ---


class TwoTokenizerSet:
    """Training rows of whole texts that student and teacher read with tokenizers of their own; implements `TrainData`.

    The student's rows decide which of them make up a step.

    Attributes:
        teacher: The rows as the teacher reads them.

    Args:
        student: The rows as the student reads them, with their targets.
        teacher: The same rows in the same order.
        inputs: Names of the teacher's inputs.

    Raises:
        ValueError: If there are not as many rows of the one as of the other.
    """

    def __init__(self, student: TrainData, teacher: TrainData, inputs: Sequence[str]) -> None:
        if len(student.lengths) != len(teacher.lengths):
            raise ValueError(f"the student has {len(student.lengths)} rows, the teacher {len(teacher.lengths)}")
        self._student, self.teacher, self._inputs = student, teacher, inputs
        self.lengths, self.together, self.shares = student.lengths, rows_together(student), row_shares(student)

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Return a batch of the given rows as the student reads them, and the teacher's inputs under `TEACHER_PREFIX`."""
        return self.part(rows, step, slice(None))

    def part(self, rows: Sequence[int], step: int, own: slice) -> dict[str, Tensor]:
        """Return the rows `own` of the batch of `rows`; both models' inputs are padded as in the whole batch."""
        taught = make_part(self.teacher, rows, step, own)
        teacher_inputs = {TEACHER_PREFIX + name: taught[name] for name in self._inputs}
        return {**make_part(self._student, rows, step, own), **teacher_inputs}


def select_teacher_inputs(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of a batch with the teacher's inputs (names under `TEACHER_PREFIX`) in place of the student's."""
    teacher = {
        name.removeprefix(TEACHER_PREFIX): value for name, value in batch.items() if name.startswith(TEACHER_PREFIX)
    }
    return {**{name: value for name, value in batch.items() if not name.startswith(TEACHER_PREFIX)}, **teacher}
