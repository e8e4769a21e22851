"""The training loop, on Hugging Face Accelerate. Finetuning and every distillation method pass through it.

`train` trains a model to the last step of a stage: it resumes a `TrainingLoop` from its checkpoint, advances it step by step,
writes checkpoints and metrics, and stops cleanly at a signal. `frozen` prepares a teacher for it, `training_dtype` chooses the
number type.

The loop works in one process or in many: the batch of a step is formed as a whole and then divided, and every term of the loss
is a mean over the whole, so that the number of processes changes the speed and nothing else.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import all_families
from pocketbert.core.host.hardware import default_threads
from pocketbert.core.host.processes import current_process, postpone_stops
from pocketbert.core.host.progress import Meter, print_note
from pocketbert.core.recipe.sections import Optimisation, Updates
from pocketbert.core.seeds import derive_seed
from pocketbert.distill.losses.common import Counting, Term, count_items, count_rows, scale_partial_mean, to_terms
from pocketbert.distill.training.checkpoints import load_checkpoint, save_checkpoint, saved_tensors
from pocketbert.distill.training.data import BatchOrder, TrainData, split_batch, take_rows
from pocketbert.distill.training.finite import ATTEMPTS, NonFiniteErrors, NotFiniteError, StepResult, first_not_finite
from pocketbert.distill.training.optimizer import AdamWCourse, Course
from pocketbert.distill.training.progress import Progress, StepRecord, write_metrics

_LOG_EVERY = 20
"""Steps between two records of the losses."""

_PATIENCE = timedelta(hours=1)
"""How long a process waits for the others in a step, or to begin: process 0 may be writing to a slow disk, another one
reading from it. One that fails is noticed within seconds, whatever this is."""


class Objective(Protocol):
    """A loss function for training: runs the model on a batch and returns the named terms of its loss.

    An objective some of whose terms are means over tokens is a `pocketbert.distill.losses.common.Counting` as well: without
    that, what it computes on part of a batch could not be weighed against the rest. One that decides about optimiser and
    learning rates has an attribute ``course``, see `pocketbert.distill.training.optimizer.Course`; else AdamW moves the
    weights, with the settings' schedule.

    Attributes:
        weights: Weight of each term by name.
    """

    weights: dict[str, float]

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> Mapping[str, Term | Tensor]:
        """Run the model on a batch, and return the loss terms by name; training minimises their weighted sum.

        Args:
            model: The trained model itself, without any wrapper.
            batch: Tensors with rows first: a step's batch, or part of it. Never without rows.

        Returns:
            Loss terms by name; a plain scalar counts as a mean over rows.
        """
        ...


@dataclass(frozen=True)
class Outcome:
    """The result of a training run: recorded losses, number type, and number of threads.

    Attributes:
        history: Losses every 20 steps.
        dtype: Number type of the matrix products.
        threads: Threads used.
    """

    history: list[StepRecord]
    dtype: str
    threads: int


def train(
    model: nn.Module,
    objective: Objective,
    data: TrainData,
    settings: Updates,
    seed: int,
    purpose: str,
    work: Path,
    metrics: Path | None = None,
) -> Outcome:
    """Train a model in place, from its last checkpoint to the stage's last step, writing checkpoints and metrics.

    Args:
        model: The model to train.
        objective: Loss function that computes the named terms.
        data: Training rows.
        settings: Number of steps, batch size, learning rates.
        seed: Seed of the run.
        purpose: Name of the stage (``finetune``, ``distill.0``); random choices depend on it.
        work: Folder of the checkpoints.
        metrics: A .jsonl file that gets one line per record; replaced on resume so that no step is twice.
            Process 0 alone writes it.

    Returns:
        The recorded losses, the number type, and the number of threads.

    Raises:
        NotFiniteError: If a loss, a gradient or a weight is NaN or infinite; the last two checkpoints stay.
    """
    with postpone_stops() as hold, _restore_afterwards(model):
        loop = TrainingLoop(model, objective, data, settings, seed, purpose, work)
        metrics = metrics if loop.main else None
        label = f"train {purpose}" if loop.main else ""
        if loop.main:
            step = loop.progress.step
            resumed = f"; resumed at step {step:,} of {settings.steps:,}" if step else ""
            print_note(f"  {label}: {settings.passes(len(data.lengths))}{resumed}")
        with Meter(label, settings.steps, loop.progress.step) as meter:
            while not loop.finished:
                try:
                    loss = loop.step()
                except NotFiniteError:
                    # the first question is whether the loss grew
                    write_metrics(metrics, purpose, loop.progress)
                    raise
                asked = hold.asked  # once: a signal during the checkpoint waits for the next step
                if loop.progress.step % settings.checkpoint == 0 or loop.finished or asked is not None:
                    loop.save()
                    write_metrics(metrics, purpose, loop.progress)
                if hold.asked is not None:
                    print_note(
                        f"  {label}: stopped after step {loop.progress.step:,} of {settings.steps:,}, checkpoint written"
                    )
                    raise hold.asked
                meter.advance(note=f"loss {loss:.3f}")
    write_metrics(metrics, purpose, loop.progress)  # again: a kill may have come between the last checkpoint and this
    model.eval()
    return Outcome(loop.progress.history, str(loop.dtype).removeprefix("torch."), torch.get_num_threads())


@contextmanager
def _restore_afterwards(model: nn.Module) -> Iterator[None]:
    """Restore a model's dropout rates, trainable parameters and forward pass when the `with` block ends.

    Otherwise the next stage would inherit the settings of this one, and a model that was trained in bf16 would be scored in
    bf16, because Accelerate puts a forward pass under autocast on the model: the scores of its files, which compute in fp32,
    would be compared with those of another model.
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
    """A training run, advanced one optimizer step at a time; it resumes from the checkpoint in its work folder.

    A run that was killed at any moment and is started again with the same arguments, machine, threads and number of processes
    ends with bit-identical weights: order and dropout are functions of (seed, purpose, step), and moments and weights are
    saved exactly. With another number of processes it has the same batches, and other dropout.

    Where `torchrun` or `accelerate launch` started several processes, each creates this object with the same arguments;
    process 0 alone writes.

    Attributes:
        progress: State of the run.
        dtype: Number type of the matrix products.

    Args:
        model: The model to train, in place; the other arguments are those of `train`, too.
        work: Folder of the checkpoints, the same for all processes.

    Raises:
        InputError: If the processes do not find the same checkpoint.
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
    ) -> None:
        torch.set_num_threads(default_threads())
        _keep_freed_memory()
        self.dtype = training_dtype(model)
        self.objective, self.data, self.settings, self.seed = objective, data, settings, seed
        self.purpose, self.work = purpose, work
        self._accelerator = _make_accelerator(self.dtype)
        for module in model.modules():
            if settings.dropout is not None and isinstance(module, nn.Dropout):
                module.p = settings.dropout
            if settings.freeze_embeddings and isinstance(module, nn.Embedding):
                module.requires_grad_(False)
        self._course = _course_of(settings, objective)
        self._optimizer = self._course.optimizer(model)
        self.progress = load_checkpoint(work, model, self._optimizer) or Progress(step=0, history=[], pending={})
        if self._accelerator.scaler is not None and self.progress.scaler:
            self._accelerator.scaler.load_state_dict(self.progress.scaler)
        self._saved_step = self.progress.step
        self._errors = NonFiniteErrors(purpose, settings, self.dtype, work)
        self._check_same_checkpoint()
        self._model = self._accelerator.prepare_model(model, evaluation_mode=True)
        self._forward = self._accelerator.prepare_model(_WeightedLoss(self._model, objective))
        self._prepared_optimizer = self._accelerator.prepare_optimizer(self._optimizer)
        self._order = BatchOrder(data.lengths, settings.batch, seed, purpose)
        self._counts_checked = False
        self._model.train()

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes checkpoints and messages."""
        return bool(self._accelerator.is_main_process)

    @property
    def finished(self) -> bool:
        """Whether all training steps are done."""
        return self.progress.step >= self.settings.steps

    def step(self) -> float:
        """Make one optimizer step, and return its loss.

        Where gradients are scaled for fp16 and do not fit it, the same step is tried again with half the scale: same rows, same
        dropout. Only the attempt that moves the weights counts.

        Returns:
            The weighted loss over the rows of all processes.

        Raises:
            NotFiniteError: In all processes, if the loss, a term or the gradient is NaN or infinite. Weights and moments are
                those before the step.
        """
        accelerator, scaler = self._accelerator, self._accelerator.scaler
        for _ in range(ATTEMPTS):
            rate = self._course.prepare(self._optimizer, self.progress.step)
            loss, terms = self._backward(self.progress.step)
            # of gradients that were averaged over the processes, so all have the same norm
            norm = accelerator.clip_grad_norm_(self._model.parameters(), self.settings.clip)
            result = StepResult(loss, terms, float(norm), rate)
            if result.finite:
                self._prepared_optimizer.step()
                self._prepared_optimizer.zero_grad()
                self.progress.add_step(loss, terms, rate, _LOG_EVERY, self.settings.steps)
                return loss
            self._prepared_optimizer.zero_grad()
            if scaler is None or not result.loss_is_finite:
                raise self._errors.for_step(result, self.progress, self._saved_step, self._model)
            # not left to the scaler's own step: Accelerate does not notice that a fused optimizer skipped it
            scale = scaler.get_scale()
            scaler.update()
        raise self._errors.for_step(result, self.progress, self._saved_step, self._model, scale)

    def save(self) -> None:
        """Write a checkpoint of weights, moments and progress, in process 0; check first that all numbers are finite.

        Raises:
            NotFiniteError: In all processes, if a weight or a moment is NaN or infinite. The checkpoints before stay.
        """
        not_finite = first_not_finite(saved_tensors(self._model, self._optimizer).items())
        if not_finite is not None:
            raise self._errors.for_weights(not_finite, self.progress, self._saved_step)
        if self._accelerator.scaler is not None:
            self.progress.scaler = self._accelerator.scaler.state_dict()
        if self.main:
            save_checkpoint(self.work, self.progress, self._model, self._optimizer)
        self._saved_step = self.progress.step

    def _backward(self, step: int) -> tuple[float, dict[str, float]]:
        """Compute the gradients of a step's loss over the rows of all processes; return the loss and its terms."""
        accelerator, world = self._accelerator, self._accelerator.num_processes
        rank = accelerator.process_index
        batch = self.data.batch(self._order.rows(step).tolist(), step)
        names = list(self.objective.weights)
        batch_counts = count_items(self.objective, names, batch)
        portions = split_batch(count_rows(batch), rank, world, self.settings.micro_batch)
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

    def _check_counts(self, terms: dict[str, Term], counts: dict[str, float], split: bool) -> None:
        """Raise RuntimeError if the objective's count of a term's items differs from the term's own; checked once."""
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


class _WeightedLoss(nn.Module):
    """Module that computes what a portion of a batch adds to the loss of the whole batch.

    DDP wraps the loss and not the model, so that it finds which parameters the loss reaches, by whatever way: captured
    attention scores are no output of the model, and a classifier's logits are one without being used.
    """

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self._objective = (objective,)  # not a submodule, even where it is a module: it holds the teacher
        # The loss of an empty portion depends on this: without a backward pass the other processes would wait for ever.
        self.anchor = nn.Parameter(torch.zeros(()))

    def forward(
        self, portion: dict[str, Tensor], counts: dict[str, float], batch_counts: dict[str, float]
    ) -> tuple[Tensor, dict[str, Term]]:
        """Return what a portion adds to the batch's weighted loss, and the terms' shares by name, without gradients.

        Args:
            portion: Tensors with rows first; there may be no rows.
            counts: Items of each term in the portion.
            batch_counts: Items of each term in the step's batch.
        """
        objective, rows = self._objective[0], count_rows(portion)
        terms = to_terms(objective(self.model, portion), rows) if rows else {}
        shares = {name: scale_partial_mean(term.mean, counts[name], batch_counts[name]) for name, term in terms.items()}
        loss = 0.0 * self.anchor
        if any(value.requires_grad for value in shares.values()):
            loss = torch.stack([value * objective.weights[name] for name, value in shares.items()]).sum()
        return loss, {name: Term(value.detach(), terms[name].count) for name, value in shares.items()}


def _course_of(settings: Updates, objective: object) -> Course:
    """Return a run's optimizer and schedule: the objective's ``course`` if it has one, else AdamW.

    Raises:
        ValueError: If the objective has none, and the settings have no schedule.
    """
    if hasattr(objective, "course"):
        course: Course = objective.course
        return course
    if not isinstance(settings, Optimisation):
        raise ValueError(f"{type(settings).__name__} has no schedule of one learning rate: give the objective a course")
    return AdamWCourse(settings)


def _make_accelerator(dtype: torch.dtype) -> Any:
    """Create the Hugging Face Accelerator of this process for bf16 or fp32 training.

    Raises:
        InputError: If it finds another number of processes than the launcher started.
    """
    from accelerate import Accelerator
    from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs

    accelerator = Accelerator(
        # without a GPU, Accelerate ignores torchrun unless it is told that the CPU is wanted
        cpu=current_process().world > 1 and not torch.accelerator.is_available(),
        mixed_precision="bf16" if dtype is torch.bfloat16 else "no",
        kwargs_handlers=[
            # a term may leave a head without gradient, and an empty portion leaves all parameters without
            DistributedDataParallelKwargs(find_unused_parameters=True),
            InitProcessGroupKwargs(timeout=_PATIENCE),
        ],
    )
    if accelerator.num_processes != current_process().world:
        raise InputError(
            Problem(
                "launcher",
                f"WORLD_SIZE says {current_process().world} processes, Accelerate finds {accelerator.num_processes}.",
                "Start with torchrun or accelerate launch, on CPUs or on GPUs that torch can use.",
            )
        )
    return accelerator


def _keep_freed_memory() -> None:
    """Configure glibc to keep freed blocks instead of giving them back to the system after every step.

    Gradients of an embedding table are tens of megabytes; giving them back and faulting them in again each step costs a fifth
    of the CPU time. Does nothing where the C library is another one.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    trim_threshold, mmap_threshold = -1, -3
    libc = ctypes.CDLL(None)
    libc.mallopt(mmap_threshold, 1 << 30)
    libc.mallopt(trim_threshold, (1 << 31) - 1)


def training_dtype(model: nn.Module | None = None) -> torch.dtype:
    """Return the dtype of matrix products in training on this machine: bf16 if the hardware computes it, else fp32.

    Args:
        model: The model to train: some families cannot be trained in bf16. Without it, the dtype of the others.
    """
    if not _bf16_is_fast():
        return torch.float32
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    # without a model the family table is not read: `doctor` works where the rows of a plug-in cannot be read
    only_fp32 = model_type is not None and any(
        model_type in f.model_types and not f.trains_in_bf16 for f in all_families()
    )
    return torch.float32 if only_fp32 else torch.bfloat16


def _bf16_is_fast() -> bool:
    """Return whether this machine's GPU or CPU has hardware for bf16 matrix products.

    On a CPU without avx512_bf16 or AMX, bf16 autocast was measured 3 times slower than fp32.
    """
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


@contextmanager
def frozen(model: nn.Module) -> Iterator[Any]:
    """Put a teacher into eval mode without gradients; its weights are trainable again when the `with` block ends."""
    trainable = [(p, p.requires_grad) for p in model.parameters()]
    try:
        yield model.eval().requires_grad_(False)
    finally:
        for parameter, flag in trainable:
            parameter.requires_grad_(flag)


def mark_as_prepared(model: nn.Module) -> None:
    """Mark a model read from disk as already prepared by Accelerate, as a model that the stage before trained would be.

    Accelerate prepares a marked model no second time: in bf16 that decides about rounding.
    """
    vars(model)["_is_accelerate_prepared"] = True
