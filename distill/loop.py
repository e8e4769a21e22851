"""The one training loop, on Hugging Face Accelerate. Finetuning and every method pass through it."""

from __future__ import annotations

import ctypes
import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.hardware import default_threads
from pocketbert.core.progress import Meter
from pocketbert.core.recipe import Optimisation
from pocketbert.core.seeds import derive_seed
from pocketbert.distill.batches import BatchOrder
from pocketbert.distill.precision import training_dtype
from pocketbert.distill.state import Progress, StepRecord, load_checkpoint, save_checkpoint
from pocketbert.distill.train_set import TrainData

LOG_EVERY = 20
"""Steps between two records of the losses."""


class Objective(Protocol):
    """What a step computes.

    Attributes:
        weights: Weight of each term by name.
    """

    weights: dict[str, float]

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Terms of the loss by name, scalars; their weighted sum is minimised."""
        ...


@dataclass(frozen=True)
class Outcome:
    """What training left behind.

    Attributes:
        history: Losses every `LOG_EVERY` steps.
        dtype: Number type of the matrix products.
        threads: Threads used.
    """

    history: list[StepRecord]
    dtype: str
    threads: int


def learning_rate(step: int, settings: Optimisation) -> float:
    """Linear warm-up, then linear decay to 0.

    Args:
        step: The step about to be made, from 0.
        settings: Peak rate, steps and warm-up share.
    """
    warm = max(1, round(settings.warmup * settings.steps))
    if step < warm:
        return settings.lr * (step + 1) / warm
    return settings.lr * max(0.0, (settings.steps - step) / max(1, settings.steps - warm))


class TrainingLoop:
    """A training run that is advanced step by step, from its checkpoint if the work folder has one.

    A run that was killed at any moment and is started again with the same arguments, machine and threads
    ends with bit-identical weights: order and dropout are functions of (seed, purpose, step), and moments
    and weights are saved exactly.

    Args:
        model: What is trained, in place.
        objective: Computes the terms of the loss.
        data: Training rows.
        settings: Steps, batch, rates.
        seed: Seed of the run.
        purpose: What is trained (``finetune``, ``distill.0``); keys the random choices.
        work: Where checkpoints go.
    """

    def __init__(
        self, model: nn.Module, objective: Objective, data: TrainData, settings: Optimisation, seed: int, purpose: str,
        work: Path,
    ) -> None:  # fmt: skip
        from accelerate import Accelerator

        torch.set_num_threads(default_threads())
        keep_freed_memory()
        self.dtype = training_dtype()
        self.objective, self.data, self.settings, self.seed = objective, data, settings, seed
        self.purpose, self.work = purpose, work
        self._accelerator = Accelerator(mixed_precision="bf16" if self.dtype is torch.bfloat16 else "no")
        if self._accelerator.num_processes > 1:
            raise InputError(
                Problem("accelerate launch", f"{self._accelerator.num_processes} processes; this version trains in one.",
                        "Start pocketbert without accelerate launch or torchrun.")
            )  # fmt: skip
        _prepare_parameters(model, settings)
        self._optimizer = _optimizer(model, settings)
        self.progress = load_checkpoint(work, model, self._optimizer) or Progress(
            step=0, history=[], pending={}
        )
        self._model, self._prepared = self._accelerator.prepare(model, self._optimizer)
        self._order = BatchOrder(data.lengths, settings.batch, seed, purpose)
        self._model.train()

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.progress.step >= self.settings.steps

    def step(self) -> float:
        """Make one optimiser step.

        Returns:
            The weighted loss.
        """
        accelerator, step = self._accelerator, self.progress.step
        rate = learning_rate(step, self.settings)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        rows = self._order.rows(step)
        batch = {k: v.to(accelerator.device) for k, v in self.data.batch(rows.tolist(), step).items()}
        torch.manual_seed(derive_seed(self.seed, f"dropout/{self.purpose}", step))
        with accelerator.autocast():
            terms = self.objective(self._model, batch)
        loss = torch.stack([terms[name] * self.objective.weights[name] for name in terms]).sum()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(self._model.parameters(), self.settings.clip)
        self._prepared.step()
        self._prepared.zero_grad()
        value = float(loss.detach())
        _record(
            self.progress, value, {k: float(v.detach()) for k, v in terms.items()}, rate, self.settings.steps
        )
        return value

    def save(self) -> None:
        """Write a checkpoint."""
        save_checkpoint(
            self.work, self.progress, self._accelerator.unwrap_model(self._model), self._optimizer
        )


def train(
    model: nn.Module,
    objective: Objective,
    data: TrainData,
    settings: Optimisation,
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

    Returns:
        The losses, and what they were computed with.
    """
    with _own_settings(model):
        loop = TrainingLoop(model, objective, data, settings, seed, purpose, work)
        with Meter(f"train {purpose}", settings.steps, loop.progress.step) as meter:
            while not loop.finished:
                loss = loop.step()
                if loop.progress.step % settings.checkpoint == 0 or loop.finished:
                    loop.save()
                    _write_metrics(metrics, purpose, loop.progress)
                meter.advance(note=f"loss {loss:.3f}")
    _write_metrics(
        metrics, purpose, loop.progress
    )  # again: a kill may have come between the last checkpoint and this
    model.eval()
    return Outcome(loop.progress.history, str(loop.dtype).removeprefix("torch."), torch.get_num_threads())


@contextmanager
def _own_settings(model: nn.Module) -> Iterator[None]:
    """Give a model its own dropout and trainable weights back, so that the next stage does not inherit a stage's."""
    rates = [(m, m.p) for m in model.modules() if isinstance(m, nn.Dropout)]
    wanted = [(p, p.requires_grad) for p in model.parameters()]
    try:
        yield
    finally:
        for module, rate in rates:
            module.p = rate
        for parameter, flag in wanted:
            parameter.requires_grad_(flag)


def _prepare_parameters(model: nn.Module, settings: Optimisation) -> None:
    for module in model.modules():
        if settings.dropout is not None and isinstance(module, nn.Dropout):
            module.p = settings.dropout
        if settings.freeze_embeddings and isinstance(module, nn.Embedding):
            module.requires_grad_(False)


def _optimizer(model: nn.Module, settings: Optimisation) -> torch.optim.AdamW:
    """AdamW without decay on biases and norms, which have one dimension."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.lr, fused=True)


def _record(progress: Progress, loss: float, terms: dict[str, float], rate: float, steps: int) -> None:
    progress.step += 1
    pending = progress.pending
    for name, value in {"_count": 1.0, "_loss": loss, **terms}.items():
        pending[name] = pending.get(name, 0.0) + value
    if progress.step % LOG_EVERY == 0 or progress.step == steps:
        count = pending.pop("_count")
        mean = {k: v / count for k, v in pending.items()}
        progress.history.append(StepRecord(step=progress.step, loss=mean.pop("_loss"), terms=mean, lr=rate))
        progress.pending = {}


def _write_metrics(path: Path | None, purpose: str, progress: Progress) -> None:
    """Rewrite this purpose's lines; lines of other purposes stay."""
    if path is None:
        return
    lines = path.read_text().splitlines() if path.is_file() else []
    kept = [line for line in lines if line.strip() and json.loads(line)["stage"] != purpose]
    new = [json.dumps({"stage": purpose, **r.model_dump()}) for r in progress.history]
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text("".join(f"{line}\n" for line in [*kept, *new]))
    temporary.replace(path)


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


@contextmanager
def frozen(model: nn.Module) -> Iterator[Any]:
    """A teacher during training: eval mode, no gradients, back to normal afterwards."""
    wanted = [(p, p.requires_grad) for p in model.parameters()]
    try:
        yield model.eval().requires_grad_(False)
    finally:
        for parameter, flag in wanted:
            parameter.requires_grad_(flag)
