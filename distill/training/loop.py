"""The one training loop, on Hugging Face Accelerate. Finetuning and every method pass through it.

In one process or in many: the batch of a step is formed as a whole and then divided, and every term of the loss
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
from pocketbert.core.host.processes import here, holding
from pocketbert.core.host.progress import Meter, say
from pocketbert.core.recipe.sections import Updates
from pocketbert.core.seeds import derive_seed
from pocketbert.distill.losses.common import Counting, Term, as_terms, items, rows_of, share
from pocketbert.distill.training.checkpoints import (
    ATTEMPTS,
    Attempt,
    NotFiniteError,
    first_not_finite,
    load_checkpoint,
    save_checkpoint,
    saved_tensors,
)
from pocketbert.distill.training.data import BatchOrder, TrainData, divide, parts
from pocketbert.distill.training.optimizer import course_of
from pocketbert.distill.training.progress import Progress, StepRecord, mean_so_far, record, write_metrics

# --- refusals ---
# The message when training stops at a NaN or an infinity: what it was, what is kept, and what to do.


@dataclass(frozen=True)
class Refusals:
    """Makes the errors of one training run.

    Attributes:
        purpose: What is trained; begins the message.
        settings: Steps and rates.
        dtype: Number type of the matrix products.
        work: Where checkpoints are.
    """

    purpose: str
    settings: Updates
    dtype: torch.dtype
    work: Path

    def of_step(
        self, found: Attempt, progress: Progress, saved: int, model: nn.Module, scale: float | None = None
    ) -> NotFiniteError:
        """The error for a step that the optimiser must not make.

        Args:
            found: What the step computed.
            progress: The steps before it.
            saved: Step of the newest checkpoint; 0 without one.
            model: Its weights, before the step.
            scale: The smallest loss scale that was tried, where only the gradients were not finite.
        """
        type_name = str(self.dtype).removeprefix("torch.")
        tried = "" if scale is None else f", at each of {ATTEMPTS} loss scales down to {scale:.3g}"
        facts = [
            f"step {progress.step + 1} of {self.settings.steps} was not made: {found}{tried}; "
            f"learning rate {found.rate:.3g}, {type_name}."
        ]
        before = mean_so_far(progress)
        if before is not None:
            facts.append(f"The mean loss of steps {before.first} to {before.last} was {before.loss:.4g}.")
        broken = first_not_finite(model.named_parameters())
        if broken is not None:
            facts.append(f"The weights were not finite even before this step ('{broken}').")
            return self._error(progress.step + 1, facts, saved, self._about_weights())
        facts.append("Weights and optimiser are as they were before this step.")
        warmer = " or raise warmup" if hasattr(self.settings, "warmup") else ""
        advice = (
            f"If the loss grew before this step, lower lr (its peak is {self.settings.lr:.3g}){warmer}; "
            "if it did not, look at the training rows and at the teacher."
        )
        return self._error(progress.step + 1, facts, saved, advice)

    def of_weights(self, weight: str, progress: Progress, saved: int) -> NotFiniteError:
        """The error for weights that no checkpoint may hold, though every loss and gradient was finite.

        Args:
            weight: Name of one that is not finite.
            progress: The steps done.
            saved: Step of the newest checkpoint; 0 without one.
        """
        what = f"after step {progress.step} of {self.settings.steps}, '{weight}' holds a NaN or an infinity; nothing was saved."
        return self._error(progress.step, [what], saved, self._about_weights())

    def _about_weights(self) -> str:
        # the losses and gradients before were finite: the optimiser's own arithmetic did it
        return f"Raise eps ({self.settings.eps:.3g}), or lower lr (its peak is {self.settings.lr:.3g})."

    def _error(self, step: int, facts: list[str], saved: int, advice: str) -> NotFiniteError:
        kept = "No checkpoint was written before: the same command begins this stage again."
        if saved:
            kept = f"The checkpoint of step {saved} in {self.work} is kept: the same command resumes from it and computes the same again."
        fix = f"Fix: {advice} A changed recipe needs another -o/--output, or --overwrite."
        return NotFiniteError(self.purpose, step, " ".join([*facts, kept, fix]))


# --- lending ---
# What training changes on a model in addition to its weights, and takes back at its end.


_PREPARED = ("forward", "_original_forward")
"""What Accelerate puts on a prepared model: with bf16, a forward pass under autocast that stays for good."""


@contextmanager
def lent(model: nn.Module) -> Iterator[None]:
    """Give a model its own dropout, trainable weights and forward pass back when the block ends.

    Without that, the next stage would inherit a stage's settings, and a model that was trained in bf16 would be scored in
    bf16: the scores of its files, which compute in fp32, would be compared with those of another model.
    """
    rates = [(m, m.p) for m in model.modules() if isinstance(m, nn.Dropout)]
    wanted = [(p, p.requires_grad) for p in model.parameters()]
    before = {name: vars(model)[name] for name in _PREPARED if name in vars(model)}
    try:
        yield
    finally:
        for module, rate in rates:
            module.p = rate
        for parameter, flag in wanted:
            parameter.requires_grad_(flag)
        for name in _PREPARED:
            vars(model).pop(name, None)
        vars(model).update(before)


def mark_trained(model: nn.Module) -> None:
    """Make a model that was read from disk train on as if the stage before had trained the same object.

    Accelerate leaves a mark on a model that it prepared, and prepares it no second time: in bf16 that decides about
    rounding.

    Args:
        model: The model, as an earlier stage left it.
    """
    vars(model)["_is_accelerate_prepared"] = True


# --- memory ---
# What the C library does with freed memory during training.


def keep_freed_memory() -> None:
    """Tell glibc to keep freed blocks instead of giving them back to the system after every step.

    Gradients of an embedding table are tens of megabytes; giving them back and faulting them in again
    each step costs a fifth of the CPU time. Does nothing where the C library is another one.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    trim_threshold, mmap_threshold = -1, -3
    libc = ctypes.CDLL(None)
    libc.mallopt(mmap_threshold, 1 << 30)
    libc.mallopt(trim_threshold, (1 << 31) - 1)


# --- precision ---
# Which number type to train in: bf16 only where the hardware really computes in it.


def bf16_is_fast() -> bool:
    """Whether bf16 products run on hardware made for them.

    On a CPU without avx512_bf16 or AMX, bf16 autocast was measured 3 times slower than fp32.
    """
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def training_dtype(model: nn.Module | None = None) -> torch.dtype:
    """The dtype that matrix products of a training run use here.

    Args:
        model: What is trained: some families cannot be trained in bf16. Without it, the dtype of the others.
    """
    if not bf16_is_fast():
        return torch.float32
    kind = getattr(getattr(model, "config", None), "model_type", None)
    # without a model no row is looked at: `doctor` works where a plug-in's rows cannot be read
    barred = kind is not None and any(kind in f.model_types and not f.trains_in_bf16 for f in all_families())
    return torch.float32 if barred else torch.bfloat16


LOG_EVERY = 20
"""Steps between two records of the losses."""

PATIENCE = timedelta(hours=1)
"""How long a process waits for the others in a step, or to begin: process 0 may be writing to a slow disk, another one
reading from it. One that fails is noticed within seconds, whatever this is."""


class Objective(Protocol):
    """What one training step computes: a loss as named terms.

    An objective some of whose terms are means over tokens is a `pocketbert.distill.losses.common.Counting` as well: without
    that, what it computes on part of a batch could not be weighed against the rest. One that decides about optimiser and
    learning rates has an attribute ``course``, see `pocketbert.distill.training.optimizer.WithCourse`; else AdamW moves the
    weights, with the settings' schedule.

    Attributes:
        weights: Weight of each term by name.
    """

    weights: dict[str, float]

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> Mapping[str, Term | Tensor]:
        """Terms of the loss by name, means over the batch; their weighted sum is minimised.

        Args:
            model: What is trained, itself: no wrapper stands around it, whatever it is trained on.
            batch: Tensors with rows first: a step's batch, or part of it. Never without rows.

        Returns:
            A plain scalar counts as a mean over rows.
        """
        ...


@dataclass(frozen=True)
class Outcome:
    """The result of a training.

    Attributes:
        history: Losses every `LOG_EVERY` steps.
        dtype: Number type of the matrix products.
        threads: Threads used.
    """

    history: list[StepRecord]
    dtype: str
    threads: int


class TrainingLoop:
    """A training run that is advanced step by step, from its checkpoint if the work folder has one.

    A run that was killed at any moment and is started again with the same arguments, machine, threads and
    number of processes ends with bit-identical weights: order and dropout are functions of (seed, purpose,
    step), and moments and weights are saved exactly. With another number of processes it sees the same
    batches, and other dropout.

    Where `torchrun` or `accelerate launch` started several processes, each makes this object with the same
    arguments; process 0 alone writes.

    Args:
        model: What is trained, in place.
        objective: Computes the terms of the loss.
        data: Training rows.
        settings: Steps, batch, rates.
        seed: Seed of the run.
        purpose: What is trained (``finetune``, ``distill.0``); keys the random choices.
        work: Where checkpoints go; all processes read the same folder.

    Raises:
        InputError: If the processes do not see the same checkpoint.
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
        from accelerate import Accelerator
        from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs

        torch.set_num_threads(default_threads())
        keep_freed_memory()
        self.dtype = training_dtype(model)
        self.objective, self.data, self.settings, self.seed = objective, data, settings, seed
        self.purpose, self.work = purpose, work
        # A term may leave a head without gradient, and an empty part leaves all parameters without.
        handlers = [
            DistributedDataParallelKwargs(find_unused_parameters=True),
            InitProcessGroupKwargs(timeout=PATIENCE),
        ]
        # without a GPU, Accelerate ignores torchrun unless it is told that the CPU is wanted
        self._accelerator = Accelerator(
            cpu=here().world > 1 and not torch.accelerator.is_available(),
            mixed_precision="bf16" if self.dtype is torch.bfloat16 else "no",
            kwargs_handlers=handlers,
        )
        if self._accelerator.num_processes != here().world:
            raise InputError(
                Problem(
                    "launcher",
                    f"WORLD_SIZE says {here().world} processes, Accelerate finds {self._accelerator.num_processes}.",
                    "Start with torchrun or accelerate launch, on CPUs or on GPUs that torch can use.",
                )
            )
        _prepare_parameters(model, settings)
        self._course = course_of(settings, objective)
        self._optimizer = self._course.optimizer(model)
        self.progress = load_checkpoint(work, model, self._optimizer) or Progress(step=0, history=[], pending={})
        if self._accelerator.scaler is not None and self.progress.scaler:
            self._accelerator.scaler.load_state_dict(self.progress.scaler)
        self._saved = self.progress.step
        self._refusals = Refusals(purpose, settings, self.dtype, work)
        self._refuse_different_checkpoints()
        self._model = self._accelerator.prepare_model(model, evaluation_mode=True)
        self._forward = self._accelerator.prepare_model(_Forward(self._model, objective))
        self._prepared = self._accelerator.prepare_optimizer(self._optimizer)
        self._order = BatchOrder(data.lengths, settings.batch, seed, purpose)
        self._checked = False
        self._model.train()

    @property
    def main(self) -> bool:
        """Whether this process writes."""
        return bool(self._accelerator.is_main_process)

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.progress.step >= self.settings.steps

    def step(self) -> float:
        """Make one optimiser step.

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
            # of gradients that were averaged over the processes, so all see the same norm
            norm = accelerator.clip_grad_norm_(self._model.parameters(), self.settings.clip)
            found = Attempt(loss, terms, float(norm), rate)
            if found.finite:
                self._prepared.step()
                self._prepared.zero_grad()
                record(self.progress, loss, terms, rate, LOG_EVERY, self.settings.steps)
                return loss
            self._prepared.zero_grad()
            if scaler is None or not found.loss_is_finite:
                raise self._refusals.of_step(found, self.progress, self._saved, self._model)
            # not left to the scaler's own step: Accelerate does not notice that a fused optimiser skipped it
            scale = scaler.get_scale()
            scaler.update()
        raise self._refusals.of_step(found, self.progress, self._saved, self._model, scale)

    def _backward(self, step: int) -> tuple[float, dict[str, float]]:
        """Gradients of the global loss in every process; the loss and its terms."""
        accelerator, world = self._accelerator, self._accelerator.num_processes
        batch = self.data.batch(self._order.rows(step).tolist(), step)
        names = list(self.objective.weights)
        whole = items(self.objective, names, batch)
        mine = parts(rows_of(batch), accelerator.process_index, world, self.settings.micro_batch)
        made: list[dict[str, float]] = []
        for number, rows in enumerate(mine):
            part = divide(batch, rows)
            counts = items(self.objective, names, part)
            self._seed_dropout(step, number)
            last = number == len(mine) - 1
            moved = {name: value.to(accelerator.device) for name, value in part.items()}
            with nullcontext() if last else accelerator.no_sync(self._forward), accelerator.autocast():
                loss, terms = self._forward(moved, counts, whole)
                # the mean over processes is what is exchanged, the sum what is wanted
                accelerator.backward(loss if world == 1 else loss * world)
            self._check_counts(terms, counts, len(mine) * world > 1)
            made.append({"": float(loss.detach()), **{k: float(t.mean) for k, t in terms.items()}})
        total = {name: sum(part[name] for part in made) for name in made[0]}
        if world > 1:
            sums = torch.tensor([total.get(k, 0.0) for k in ("", *names)], device=accelerator.device)
            summed = accelerator.reduce(sums, "sum").tolist()
            # a NaN of another process counts, even where this one has no rows for the term
            total = {k: v for k, v in zip(("", *names), summed, strict=True) if k in total or not isfinite(v)}
        return total.pop(""), total

    def _seed_dropout(self, step: int, number: int) -> None:
        rank = self._accelerator.process_index
        where = (step, rank, number) if rank or number else (step,)
        torch.manual_seed(derive_seed(self.seed, f"dropout/{self.purpose}", *where))

    def _check_counts(self, terms: dict[str, Term], counts: dict[str, float], split: bool) -> None:
        """Compare, once, what the objective announced with what it did: a wrong count is a wrong loss."""
        if self._checked or not (split or isinstance(self.objective, Counting)):
            return
        self._checked = True
        for name, term in terms.items():
            if float(term.count) != counts[name]:
                raise RuntimeError(
                    f"{type(self.objective).__name__}: term '{name}' is a mean over {float(term.count):g} items, but "
                    f"counts() says {counts[name]:g} (rows, where it says nothing)"
                )

    def _refuse_different_checkpoints(self) -> None:
        accelerator = self._accelerator
        if accelerator.num_processes == 1:
            return
        own = torch.tensor([self.progress.step], device=accelerator.device)
        steps: list[int] = accelerator.gather(own).tolist()
        if len(set(steps)) > 1:
            raise InputError(
                Problem(
                    str(self.work),
                    f"processes 0 to {len(steps) - 1} find checkpoints of steps {steps} in it.",
                    "Put the run folder on a file system that all nodes share.",
                )
            )

    def save(self) -> None:
        """Write a checkpoint, in process 0.

        Raises:
            NotFiniteError: In all processes, if a weight or a moment is NaN or infinite. The checkpoints before stay.
        """
        bad = first_not_finite(saved_tensors(self._model, self._optimizer).items())
        if bad is not None:
            raise self._refusals.of_weights(bad, self.progress, self._saved)
        if self._accelerator.scaler is not None:
            self.progress.scaler = self._accelerator.scaler.state_dict()
        if self.main:
            save_checkpoint(self.work, self.progress, self._model, self._optimizer)
        self._saved = self.progress.step


class _Forward(nn.Module):
    """A part's share of the global loss, as one module.

    What DDP wraps is the loss and not the model, so that it sees which parameters the loss reaches, by whatever
    way: captured attention scores are no output of the model, and a classifier's logits are one without being used.
    """

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self._objective = (objective,)  # not a submodule, even where it is a module: it holds the teacher
        # What the loss of an empty part hangs on: without a backward pass the other processes would wait for ever.
        self.anchor = nn.Parameter(torch.zeros(()))

    def forward(
        self, part: dict[str, Tensor], counts: dict[str, float], whole: dict[str, float]
    ) -> tuple[Tensor, dict[str, Term]]:
        """The weighted loss, and the shares of the terms without gradients.

        Args:
            part: Tensors with rows first; there may be no rows.
            counts: Items of each term in the part.
            whole: Items of each term in the step's batch.
        """
        objective, rows = self._objective[0], rows_of(part)
        made = as_terms(objective(self.model, part), rows) if rows else {}
        shares = {name: share(term.mean, counts[name], whole[name]) for name, term in made.items()}
        loss = 0.0 * self.anchor
        if any(value.requires_grad for value in shares.values()):
            loss = torch.stack([value * objective.weights[name] for name, value in shares.items()]).sum()
        return loss, {name: Term(value.detach(), made[name].count) for name, value in shares.items()}


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
    """Train a model in place to the last step; see `TrainingLoop`.

    Args:
        model: What is trained.
        objective: Computes the terms of the loss.
        data: Training rows.
        settings: Steps, batch, rates.
        seed: Seed of the run.
        purpose: What is trained; keys the random choices.
        work: Where checkpoints go.
        metrics: A .jsonl file that gets one line per record; replaced on resume so that no step is twice.
            Process 0 alone writes it.

    Returns:
        The losses, and what they were computed with.

    Raises:
        NotFiniteError: If a loss, a gradient or a weight is NaN or infinite; the last two checkpoints stay.
    """
    with holding() as hold, lent(model):
        loop = TrainingLoop(model, objective, data, settings, seed, purpose, work)
        metrics = metrics if loop.main else None
        label = f"train {purpose}" if loop.main else ""
        if loop.main:
            say(f"  {label}: {settings.passes(len(data.lengths))}{loop.progress.resumed_of(settings.steps)}")
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
                    say(
                        f"  {label}: stopped after step {loop.progress.step:,} of {settings.steps:,}, checkpoint written"
                    )
                    raise hold.asked
                meter.advance(note=f"loss {loss:.3f}")
    write_metrics(metrics, purpose, loop.progress)  # again: a kill may have come between the last checkpoint and this
    model.eval()
    return Outcome(loop.progress.history, str(loop.dtype).removeprefix("torch."), torch.get_num_threads())


def _prepare_parameters(model: nn.Module, settings: Updates) -> None:
    for module in model.modules():
        if settings.dropout is not None and isinstance(module, nn.Dropout):
            module.p = settings.dropout
        if settings.freeze_embeddings and isinstance(module, nn.Embedding):
            module.requires_grad_(False)


@contextmanager
def frozen(model: nn.Module) -> Iterator[Any]:
    """A teacher during training: eval mode, no gradients, back to normal afterwards."""
    wanted = [(p, p.requires_grad) for p in model.parameters()]
    try:
        yield model.eval().requires_grad_(False)
    finally:
        for parameter, flag in wanted:
            parameter.requires_grad_(flag)
