"""The training loop, on Hugging Face Accelerate. Finetuning and every distillation method pass through it.

`train` trains a model to the last step of a stage: it resumes a `TrainingLoop` from its checkpoint, advances it step by step,
writes checkpoints and metrics, keeps the best weights by a `Validation`, and stops cleanly at a signal. `frozen` prepares a
teacher for it.

The loop works in one process or in many: the rows of a step are chosen as a whole and then divided, each process makes its own,
and every term of the loss is a mean over all, so that the number of processes changes the speed and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.hardware import default_threads, usable_memory
from pocketbert.core.host.processes import postpone_stops
from pocketbert.core.host.progress import Meter, print_note
from pocketbert.core.recipe.sections import Optimisation, Updates
from pocketbert.core.seeds import derive_seed
from pocketbert.distill.losses.common import Counting, Term, count_items, count_rows, scale_partial_mean, to_terms
from pocketbert.distill.training.checkpoints import (
    load_best,
    load_checkpoint,
    save_best,
    save_checkpoint,
    saved_tensors,
)
from pocketbert.distill.training.data import (
    BatchOrder,
    Lookahead,
    TrainData,
    make_part,
    row_shares,
    rows_together,
    split_batch,
    take_rows,
)
from pocketbert.distill.training.finite import NonFiniteErrors, StepResult, first_not_finite
from pocketbert.distill.training.machine import AttentionInFp32, keep_freed_memory, make_accelerator, training_dtype
from pocketbert.distill.training.monitor import Monitor, open_records
from pocketbert.distill.training.optimizer import AdamWCourse, Course
from pocketbert.distill.training.progress import Progress, StepRecord, write_metrics
from pocketbert.distill.training.sharding import join_remaining_passes

_LOG_EVERY = 20
"""Steps between two records of the losses."""
_MEASURED_TOKENS = 4096
"""Tokens of a process's part of a batch from which it is measured whether the part fits into memory."""
_SHARE_OF_MEMORY = 0.6
"""Share of the memory for a step; the rest is for the teacher, what operators need for a moment, and other programs."""


class Objective(Protocol):
    """A loss function for training: runs the model on a batch and returns the named terms of its loss.

    If some of its terms are means over tokens, an objective must be a `pocketbert.distill.losses.common.Counting` as
    well: without that, the loss of a part of a batch could not be weighted against the rest. An objective that needs
    another optimizer or other learning rates has an attribute ``course``, see
    `pocketbert.distill.training.optimizer.Course`; the others are trained by AdamW with the settings' schedule.

    Attributes:
        weights: Weight of each term by name.
    """

    weights: dict[str, float]

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> Mapping[str, Term | Tensor]:
        """Run the model on a batch, and return the loss terms by name. Training minimises their weighted sum.

        Args:
            model: The trained model itself, without any wrapper.
            batch: Tensors with rows first: a step's batch, or part of it. Never without rows.

        Returns:
            Loss terms by name; a plain scalar counts as a mean over rows.
        """


@dataclass(frozen=True)
class Outcome:
    """The result of a training run: recorded losses and scores, number type, and number of threads.

    Attributes:
        history: Losses every 20 steps, at the last step, and at each step whose weights were scored.
        dtype: Number type of the matrix products.
        threads: Threads used.
        best_step: Step of the weights that the model has at the end; 0 for the last one.
        metric: Name of the scores.
    """

    history: list[StepRecord]
    dtype: str
    threads: int
    best_step: int = 0
    metric: str = ""


def train(
    model: nn.Module,
    objective: Objective,
    data: TrainData,
    settings: Updates,
    seed: int,
    purpose: str,
    work: Path,
    monitor: Monitor | None = None,
) -> Outcome:
    """Train a model in place, from its last checkpoint to the stage's last step, writing checkpoints and metrics.

    It ends earlier if the scores no longer improve. At Ctrl-C or another request to stop, it writes a checkpoint after
    the step in progress and raises the error of the request.

    Args:
        model: The model to train; in eval mode at the end.
        objective: Loss function that computes the named terms.
        data: Training rows.
        settings: Number of steps, batch size, learning rates.
        seed: Seed of the run.
        purpose: Name of the stage (``finetune``, ``distill.0``); random choices depend on it.
        work: Folder of the checkpoints.
        monitor: Where the losses are written, by process 0 alone, and how the model is scored. If it is scored, the
            model has the weights with the best score at the end.

    Returns:
        The recorded losses, the number type, and the number of threads.

    Raises:
        NotFiniteError: If a loss, a gradient or a weight is NaN or infinite; the last two checkpoints stay.
        InputError: If no checkpoint can be read although there are some, the processes find different ones, or this
            machine or model cannot train in the number type that the settings ask for.
        MissingBackendError: If the package of a tracker is not installed.
    """
    monitor = monitor or Monitor()
    with postpone_stops() as hold, _restore_afterwards(model):
        loop = TrainingLoop(model, objective, data, settings, seed, purpose, work, monitor)
        watched = monitor if loop.main else Monitor()
        label = f"train {purpose}" if loop.main else ""
        if loop.main:
            step = loop.progress.step
            resumed = f"; resumed at step {step:,} of {settings.steps:,}" if step else ""
            print_note(f"  {label}: {settings.passes(len(data.lengths))}{resumed}")
        write_metrics(watched.metrics, purpose, seed, loop.progress)  # without steps after the checkpoint
        with (
            closing(loop.batches),
            Meter(label, settings.steps, loop.progress.step) as meter,
            open_records(watched, purpose, seed, settings) as write,
        ):
            while not loop.finished:
                recorded = len(loop.progress.history)
                loss = loop.step()
                for record in loop.progress.history[recorded:]:
                    write(record)
                asked = hold.asked  # once: a signal during the checkpoint waits for the next step
                if loop.progress.step % settings.checkpoint == 0 or loop.finished or asked is not None:
                    loop.save()
                if hold.asked is not None:
                    print_note(
                        f"  {label}: stopped after step {loop.progress.step:,} of {settings.steps:,}, checkpoint written"
                    )
                    raise hold.asked
                meter.advance(note=f"loss {loss:.3f}{monitor.describe_best(loop.progress)}")
        loop.take_best()
    model.eval()
    dtype, metric = str(loop.dtype).removeprefix("torch."), monitor.validation.metric if monitor.validation else ""
    return Outcome(loop.progress.history, dtype, torch.get_num_threads(), loop.progress.best_step, metric)


@contextmanager
def _restore_afterwards(model: nn.Module) -> Iterator[None]:
    """Restore a model's dropout rates, trainable parameters and forward pass when the `with` block ends.

    Otherwise the next stage would inherit the settings of this one. A model that was trained in bf16 would also be
    scored in bf16, because Accelerate replaces the model's forward pass by one under autocast, and its scores would be
    compared with those of its files, which compute in fp32.
    """
    accelerate_attributes = ("forward", "_original_forward")
    rates = [(m, m.p) for m in model.modules() if isinstance(m, nn.Dropout)]
    trainable = [(p, p.requires_grad) for p in model.parameters()]
    attributes = {name: vars(model)[name] for name in accelerate_attributes if name in vars(model)}
    try:
        yield
    finally:
        for module, rate in rates:
            module.p = rate
        for parameter, flag in trainable:
            parameter.requires_grad_(flag)
        for name in accelerate_attributes:
            vars(model).pop(name, None)
        vars(model).update(attributes)


class TrainingLoop:
    """A training run, advanced one optimizer step at a time. It resumes from the checkpoint in its work folder.

    A run that was killed at any moment and is started again with the same arguments, machine, threads and number of
    processes ends with bit-identical weights: order and dropout are functions of (seed, purpose, step), and moments and
    weights are saved exactly. With another number of processes it has the same batches, and other dropout.

    If `torchrun` or `accelerate launch` started several processes, each of them creates a loop with the same arguments;
    process 0 alone writes.

    Attributes:
        progress: State of the run.
        dtype: Number type of the matrix products.

    Args:
        model: The model to train, in place; arguments that are not listed here are those of `train`.
        work: Folder of the checkpoints, the same for all processes.
        monitor: How the model is scored; files and trackers are written by `train`.

    Raises:
        InputError: If the processes do not find the same checkpoint, and as for `train`.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        data: TrainData,
        settings: Updates,
        seed: int,
        purpose: str,
        work: Path,
        monitor: Monitor | None = None,
    ) -> None:
        torch.set_num_threads(default_threads())
        keep_freed_memory()
        self.dtype = training_dtype(model, settings.precision, f"{purpose}.precision")
        self.objective, self.data, self.settings, self.seed = objective, data, settings, seed
        self.purpose, self.work = purpose, work
        self._validation = monitor.validation if monitor is not None else None
        self._accelerator = make_accelerator(self.dtype)
        for module in model.modules():
            if settings.dropout is not None and isinstance(module, nn.Dropout):
                module.p = settings.dropout
            if settings.freeze_embeddings and isinstance(module, nn.Embedding):
                module.requires_grad_(False)
        self._course = _course_of(settings, objective)
        self._optimizer = self._course.optimizer(model)
        self.progress = load_checkpoint(work, model, self._optimizer) or Progress(step=0, history=[], pending={})
        self._saved_step = self.progress.step
        self._errors = NonFiniteErrors(purpose, settings, self.dtype, work)
        self._check_same_checkpoint()
        self._model = self._accelerator.prepare_model(model, evaluation_mode=True)
        self._forward = self._accelerator.prepare_model(_WeightedLoss(self._model, objective, self.dtype))
        self._prepared_optimizer = self._accelerator.prepare_optimizer(self._optimizer)
        self._together = rows_together(data)
        self._order = BatchOrder(data.lengths, settings.batch, seed, purpose, self._together, row_shares(data))
        shares = self._accelerator.process_index, self._accelerator.num_processes, None, self._together
        self.batches = Lookahead(partial(_make_own_rows, data, self._order, shares), settings.steps)
        self._counts_checked = False
        self._model.train()
        self._room = self._measure_room()

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes checkpoints and messages."""
        return bool(self._accelerator.is_main_process)

    @property
    def finished(self) -> bool:
        """Whether all training steps are done, or the scores on validation rows no longer improve."""
        stopped = self._validation is not None and self._validation.has_stopped(self.progress)
        return stopped or self.progress.step >= self.settings.steps

    def step(self) -> float:
        """Make one optimizer step, score the model if it is due after this step, and return the step's loss.

        Returns:
            The weighted loss over all rows.

        Raises:
            NotFiniteError: In all processes, if the loss, a term or the gradient is NaN or infinite. Weights and
                moments are those before the step.
        """
        rate = self._course.prepare(self._optimizer, self.progress.step)
        loss, terms = self._backward(self.progress.step)
        # of gradients that were averaged over the processes, so all have the same norm
        norm = self._accelerator.clip_grad_norm_(self._model.parameters(), self.settings.clip)
        result = StepResult(loss, terms, float(norm), rate)
        if not result.finite:
            self._prepared_optimizer.zero_grad()
            raise self._errors.for_step(result, self.progress, self._saved_step, self._model)
        self._prepared_optimizer.step()
        self._prepared_optimizer.zero_grad()
        self._add_step(loss, terms, rate)
        return loss

    def save(self) -> None:
        """Check that all numbers are finite, and write a checkpoint of weights, moments and progress, in process 0.

        Raises:
            NotFiniteError: In all processes, if a weight or a moment is NaN or infinite. The checkpoints before stay.
        """
        not_finite = first_not_finite(saved_tensors(self._model, self._optimizer).items())
        if not_finite is not None:
            raise self._errors.for_weights(not_finite, self.progress, self._saved_step)
        if self.main:
            save_checkpoint(self.work, self.progress, self._model, self._optimizer)
        self._saved_step = self.progress.step

    def take_best(self) -> None:
        """Load the weights with the best score on validation rows. Without any scores, the last weights are kept."""
        best = self.progress.best_step
        if best not in (0, self.progress.step):
            self._accelerator.wait_for_everyone()  # process 0 may still be writing them
            load_best(self.work, best, self._model)
            if self.main:
                print_note(f"  {self.purpose}: kept the weights of step {best:,} of {self.progress.step:,}")

    def _add_step(self, loss: float, terms: Mapping[str, float], rate: float) -> None:
        """Add a finished step to the progress, and score the model if it is due after this step.

        If the score is the best so far, the weights are saved.
        """
        progress, validation, step, last = self.progress, self._validation, self.progress.step + 1, self.settings.steps
        due = validation is not None and validation.is_due(step, last)
        progress.add_step(loss, terms, rate, step % _LOG_EVERY == 0 or step == last or due)
        if validation is None or not due:
            return
        self._model.eval()
        score = float(validation.score(self._model)) if self.main else 0.0
        self._model.train()
        if self._accelerator.num_processes > 1:
            shared = torch.tensor([score], dtype=torch.float32, device=self._accelerator.device)
            score = float(self._accelerator.reduce(shared, "sum"))
        if validation.add_score(progress, score) and self.main:
            save_best(self.work, step, self._model)

    def _backward(self, step: int) -> tuple[float, dict[str, float]]:
        """Compute gradients of a step's loss over the rows of all processes; return the loss and its terms by name."""
        accelerator, world = self._accelerator, self._accelerator.num_processes
        rank = accelerator.process_index
        chosen, batch = self.batches.take(step)
        names = list(self.objective.weights)
        batch_counts = self._add_counts(count_items(self.objective, names, batch))
        portions = split_batch(count_rows(batch), 0, 1, self._rows_at_once(chosen), self._together)
        portion_terms: list[dict[str, float]] = []
        for number, rows in enumerate(portions):
            portion = take_rows(batch, rows)
            counts = count_items(self.objective, names, portion)
            key = (step, rank, number) if rank or number else (step,)
            torch.manual_seed(derive_seed(self.seed, f"dropout/{self.purpose}", *key))
            last = number == len(portions) - 1
            inputs = {name: value.to(accelerator.device) for name, value in portion.items()}
            with nullcontext() if last else accelerator.no_sync(self._forward), accelerator.autocast():
                loss, terms = self._forward(inputs, counts, batch_counts)
                if last:
                    join_remaining_passes()  # before gradients are summed: other processes may have more portions
                # gradients are averaged over the processes, and their sum is needed
                accelerator.backward(loss if world == 1 else loss * world)
            self._check_counts(terms, counts, len(portions) * world > 1)
            portion_terms.append({"": float(loss.detach()), **{k: float(t.mean) for k, t in terms.items()}})
        total = {name: sum(terms[name] for terms in portion_terms) for name in portion_terms[0]}
        if world > 1:
            sums = torch.tensor([total.get(k, 0.0) for k in ("", *names)], device=accelerator.device)
            summed = accelerator.reduce(sums, "sum").tolist()
            # a NaN of another process counts, even where this one has no rows for the term
            total = {k: v for k, v in zip(("", *names), summed, strict=True) if k in total or not isfinite(v)}
        return total.pop(""), total

    def _add_counts(self, counts: dict[str, float]) -> dict[str, float]:
        """Return the sums over all processes of how many items of each loss term their rows have: those of the batch."""
        if self._accelerator.num_processes == 1:
            return counts
        # whole numbers, which are exact in float64 however many there are
        own = torch.tensor([*counts.values()], dtype=torch.float64, device=self._accelerator.device)
        return dict(zip(counts, self._accelerator.reduce(own, "sum").tolist(), strict=True))

    def _measure_room(self) -> tuple[float, float] | None:
        """Measure the memory that a batch needs, to decide whether it must be computed in portions.

        The longest row is run for this. The machine's whole memory counts, not what is free now, so that a resumed run
        computes the same portions. Nothing is measured if the recipe sets ``micro_batch`` or batches are small.

        Returns:
            Bytes that one token keeps for the backward pass, and bytes that are available for all; None if a batch of
            the longest rows fits or nothing was measured.
        """
        device, lengths, together = self._accelerator.device, self._order.lengths, self._together
        rows, tokens = self._share(min(self.settings.batch, len(lengths))), int(lengths.max())
        if self.settings.micro_batch or rows * tokens < _MEASURED_TOKENS or self.finished:
            return None
        first = int(lengths.argmax()) // together * together
        group = [*range(first, first + together)]
        loss, kept = _WeightedLoss(self._model, self.objective, self.dtype).to(device), list[int]()
        for times in (1, 2):  # what does not grow with the rows is no part of the difference: weights cast to bf16
            batch = self.data.batch(group * times, 0)
            inputs = {name: value.to(device) for name, value in batch.items()}
            counts = count_items(self.objective, list(self.objective.weights), batch)
            with self._accelerator.autocast():
                kept.append(measure_saved_bytes(partial(loss, inputs, counts, counts)))
        per_token = max(kept[1] - kept[0], 1) / together / tokens
        # weights, gradients and two moments
        fixed = 4 * sum(p.nbytes for p in self._model.parameters())
        room = max(_SHARE_OF_MEMORY * _memory_of_process(device, self._accelerator.num_processes) - fixed, 0.0)
        if rows * tokens * per_token <= room:
            return None
        if self.main:
            print_note(
                f"  {self.purpose}: {rows} rows of {tokens} tokens would take {rows * tokens * per_token / 1e9:.1f} GB, and "
                f"about {room / 1e9:.1f} GB are there for them: batches of more than {int(room / per_token / rows)} tokens a "
                "row are computed in portions (micro_batch)"
            )
        return per_token, room

    def _rows_at_once(self, rows: Sequence[int]) -> int | None:
        """Return how many rows of a batch a process computes at once; None for all. `rows` are its row numbers."""
        if self._room is None:
            return self.settings.micro_batch
        per_token, room = self._room
        fitting = int(room / (per_token * int(self._order.lengths[rows].max())))
        return None if fitting >= self._share(len(rows)) else 1 << max(fitting, 1).bit_length() - 1

    def _share(self, rows: int) -> int:
        """Return the most rows of a batch that one process computes."""
        return -(-rows // int(self._accelerator.num_processes))

    def _check_counts(self, terms: dict[str, Term], counts: dict[str, float], split: bool) -> None:
        """Raise RuntimeError if the number of items of a loss term is not the one that `objective.counts` gives for it.

        This is checked once, and only if the numbers are used: if the batch is split (`split`), or the objective
        counts.
        """
        if self._counts_checked or not (split or isinstance(self.objective, Counting)):
            return
        self._counts_checked = True
        for name, term in terms.items():
            if float(term.count) != counts[name]:
                raise RuntimeError(
                    f"{type(self.objective).__name__}: term '{name}' is a mean over {float(term.count):g} items, but "
                    f"counts() says {counts[name]:g} (rows, where it says nothing)"
                )

    def _check_same_checkpoint(self) -> None:
        """Raise InputError if the processes of this run resumed from checkpoints of different steps."""
        accelerator = self._accelerator
        if accelerator.num_processes == 1:
            return
        own_step = torch.tensor([self.progress.step], device=accelerator.device)
        steps: list[int] = accelerator.gather(own_step).tolist()
        if len(set(steps)) > 1:
            raise InputError(
                Problem(
                    str(self.work),
                    f"processes 0 to {len(steps) - 1} find checkpoints of steps {steps} in it.",
                    "Put the run folder on a file system that all nodes share.",
                )
            )


def _make_own_rows(
    data: TrainData, order: BatchOrder, shares: tuple[int, int, None, int], step: int
) -> tuple[list[int], dict[str, Tensor]]:
    """Return the row numbers of a step's whole batch, and the tensors of the rows that this process computes.

    `shares` are the arguments of `split_batch` after the number of rows.
    """
    rows = order.rows(step).tolist()
    [own] = split_batch(len(rows), *shares)
    return rows, make_part(data, rows, step, own)


class _WeightedLoss(nn.Module):
    """Module that computes what a portion of a batch adds to the loss of the whole batch.

    DDP wraps this module and not the model, so that it finds which parameters the loss depends on, even through tensors
    that are no output of the model (captured attention scores), and which it does not, although they compute an output
    (logits that no term uses).
    """

    def __init__(self, model: nn.Module, objective: Objective, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self._dtype = model, dtype
        self._objective = (objective,)  # not a submodule, even where it is a module: it holds the teacher
        # The loss of an empty portion depends on this: without a backward pass the other processes would wait for ever.
        self.anchor = nn.Parameter(torch.zeros(()))

    def forward(
        self, portion: dict[str, Tensor], counts: dict[str, float], batch_counts: dict[str, float]
    ) -> tuple[Tensor, dict[str, Term]]:
        """Return what a portion adds to the batch's weighted loss, and what it adds to each term, without gradients.

        Args:
            portion: Tensors with rows first; there may be no rows.
            counts: Number of items in the portion over which each loss term is a mean, by the term's name.
            batch_counts: The same numbers for the step's whole batch.
        """
        objective, rows = self._objective[0], count_rows(portion)
        in_bf16_on_cpu = self._dtype is torch.bfloat16 and self.anchor.device.type == "cpu"
        with AttentionInFp32() if in_bf16_on_cpu else nullcontext():
            terms = to_terms(objective(self.model, portion), rows) if rows else {}
        shares = {name: scale_partial_mean(term.mean, counts[name], batch_counts[name]) for name, term in terms.items()}
        loss = 0.0 * self.anchor
        if any(value.requires_grad for value in shares.values()):
            loss = torch.stack([value * objective.weights[name] for name, value in shares.items()]).sum()
        return loss, {name: Term(value.detach(), terms[name].count) for name, value in shares.items()}


def measure_saved_bytes(forward: Callable[[], object]) -> int:
    """Run a forward pass, and return the bytes of memory that it keeps for the backward pass.

    Memory that tensors share is counted once.
    """
    sizes = dict[int, int]()

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        kept = forward()  # until the end of the block: a freed tensor's address would come again
        del kept
    return sum(sizes.values())


def _memory_of_process(device: torch.device, world: int) -> float:
    """Return the bytes of memory of a process's GPU, or its share of those of the machine."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return usable_memory() / int(os.environ.get("LOCAL_WORLD_SIZE") or world)


def _course_of(settings: Updates, objective: object) -> Course:
    """Return the optimizer and schedule of a run: those of the objective's ``course`` if it has one, else AdamW's.

    Raises:
        ValueError: If the objective has no ``course`` and the settings have no schedule.
    """
    if hasattr(objective, "course"):
        course: Course = objective.course
        return course
    if not isinstance(settings, Optimisation):
        raise ValueError(f"{type(settings).__name__} has no schedule of one learning rate: give the objective a course")
    return AdamWCourse(settings)


@contextmanager
def frozen(model: nn.Module) -> Iterator[Any]:
    """Put a teacher into eval mode and turn off the gradients of its weights, until the `with` block ends.

    At the end each weight gets back the `requires_grad` that it had before; the model stays in eval mode.

    Args:
        model: The teacher, changed in place.

    Yields:
        The teacher.
    """
    trainable = [(p, p.requires_grad) for p in model.parameters()]
    try:
        yield model.eval().requires_grad_(False)
    finally:
        for parameter, flag in trainable:
            parameter.requires_grad_(flag)


def mark_as_prepared(model: nn.Module) -> None:
    """Mark a model that was read from disk as prepared by Accelerate, like one that an earlier stage has trained.

    Accelerate does not prepare a marked model again. In bf16 training this changes how numbers are rounded, so that
    without the mark a resumed run would differ.
    """
    vars(model)["_is_accelerate_prepared"] = True
