"""Checkpoints: atomic folders plus a pointer file, so that a killed run resumes exactly or starts anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pocketbert.core.disk.files import write_atomic, write_json
from pocketbert.core.disk.ownership import move_aside, remove
from pocketbert.core.disk.workspace import building
from pocketbert.core.errors import GateError, InputError, Problem
from pocketbert.core.host.processes import here
from pocketbert.core.host.progress import say
from pocketbert.distill.training.progress import (
    MOMENTS,
    POINTER,
    PROGRESS,
    TO_FIX,
    WEIGHTS,
    BrokenError,
    Progress,
    candidates,
    checkpoint_name,
    foreign_in,
    own_steps,
    progress_of,
)

# --- finite ---
# Training stops at a loss, a gradient or a weight that is NaN or infinite, before weights or checkpoints hold it.


ATTEMPTS = 30
"""How often a step is tried with ever smaller loss scales: 30 halvings of the usual first scale, 65,536, lead to 2^-14, the
smallest normal number of fp16. Gradients that do not fit then never will."""


class NotFiniteError(GateError):
    """A training step met a NaN or an infinity; exit code 3.

    The optimiser did not use what was not finite, and no checkpoint holds it.

    Args:
        purpose: What was trained (``finetune``, ``distill.0``).
        step: The step, from 1, as in ``metrics.jsonl``.
        message: Values, what is kept, and the fix.
    """

    def __init__(self, purpose: str, step: int, message: str) -> None:
        self.purpose, self.step = purpose, step
        super().__init__([f"{purpose}: {message}"])


@dataclass(frozen=True)
class Attempt:
    """What a step computed, before the optimiser uses it. All processes hold the same values, so they decide alike.

    Attributes:
        loss: Weighted loss over the rows of all processes.
        terms: The terms that it is the weighted sum of, by name.
        norm: Global norm of the gradients, before they are clipped.
        rate: Learning rate; the largest where there are several.
    """

    loss: float
    terms: Mapping[str, float]
    norm: float
    rate: float

    @property
    def loss_is_finite(self) -> bool:
        """Whether the loss and each of its terms are numbers."""
        return all(map(isfinite, (self.loss, *self.terms.values())))

    @property
    def finite(self) -> bool:
        """Whether the optimiser may use the gradients."""
        return self.loss_is_finite and isfinite(self.norm)

    def __str__(self) -> str:
        """What is not finite, with the terms that are not before the others."""
        ordered = sorted(self.terms.items(), key=lambda term: isfinite(term[1]))
        terms = f"terms: {', '.join(f'{name} {value:.4g}' for name, value in ordered) or 'none'}"
        if self.loss_is_finite:
            return f"the gradient norm is {self.norm:.4g} although the loss is {self.loss:.4g} ({terms})"
        return f"the loss is {self.loss:.4g} ({terms})"


def first_not_finite(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of the first tensor that holds a NaN or an infinity; None if there is none.

    Args:
        named: Tensors of any shape with their names.
    """
    for name, value in named:
        # a sum shows every NaN and infinity at a third of the cost; what is finite can overflow in it
        if not (isfinite(float(value.detach().sum())) or bool(torch.isfinite(value).all())):
            return name
    return None


_FIELDS = ("step", "exp_avg", "exp_avg_sq")


def save_checkpoint(folder: Path, progress: Progress, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write one checkpoint, point to it, keep the one before, and drop older ones.

    Only folders that this function wrote are dropped. What else has the new one's name is moved aside.

    Args:
        folder: The run's work folder.
        progress: Where the run is.
        model: Its trainable weights are saved; frozen ones are the same at every start.
        optimizer: Its moments are saved.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = checkpoint_name(progress.step)
    if aside := move_aside(folder / name, foreign_in):
        say(f"  {folder / name} is not a complete checkpoint: it was renamed {aside.name}")
    with building(folder / name, foreign_in) as work:
        save_file(_trained(model), work / WEIGHTS)
        save_file(_moments(model, optimizer), work / MOMENTS)
        write_json(work / PROGRESS, progress.model_dump())
    write_atomic(folder / POINTER, name)
    before = [step for step in own_steps(folder) if step < progress.step]
    for old in before[1:]:
        remove(folder / checkpoint_name(old), foreign_in)


def saved_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What a checkpoint holds: trainable weights by name, and moments by ``field/name``.

    Args:
        model: What is trained.
        optimizer: Moves it.
    """
    return {**_trained(model), **_moments(model, optimizer)}


def load_checkpoint(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Progress | None:
    """Continue from the newest checkpoint, or, with a note, from the one before where the newest is damaged.

    Returns:
        Where the run was, or None at the start.

    Raises:
        InputError: If there are checkpoints and none can be used: starting anew would in time delete them.
    """
    problems: list[Problem] = []
    for source in candidates(folder):
        try:
            saved = _read(source, model, optimizer)
        except BrokenError as error:
            problems.append(Problem(str(source), f"no usable checkpoint: {error}."))
            continue
        if problems and here().main:
            for problem in problems:
                say(f"  {problem}")
            say(f"  resumed from the checkpoint before, {source.name}")
        saved.apply(model, optimizer)
        return saved.progress
    if problems:
        raise InputError([*problems, Problem(str(folder), "has no checkpoint to resume from.", TO_FIX)])
    return None


@dataclass(frozen=True)
class _Saved:
    """A checkpoint that was read whole: nothing is put in place before all of it is known to be good."""

    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    progress: Progress

    def apply(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model.load_state_dict(self.weights, strict=False)
        for name, parameter in _optimised(model, optimizer).items():
            if f"step/{name}" in self.moments:  # else no gradient reached it so far: a head that no term asks
                optimizer.state[parameter] = {field: self.moments[f"{field}/{name}"] for field in _FIELDS}


def _read(source: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> _Saved:
    progress = progress_of(source)
    weights, moments = (_tensors(source / name) for name in (WEIGHTS, MOMENTS))
    known = dict(model.named_parameters())
    for name, value in weights.items():
        if name not in known or known[name].shape != value.shape:
            raise BrokenError(f"{WEIGHTS} is of another model ('{name}' {list(value.shape)})")
    for name, parameter in _optimised(model, optimizer).items():
        shapes = [moments[key].shape for field in _FIELDS if (key := f"{field}/{name}") in moments]
        if shapes and shapes != [torch.Size([]), parameter.shape, parameter.shape]:
            raise BrokenError(f"{MOMENTS} is of another model or optimiser ('{name}')")
    return _Saved(weights, moments, progress)


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except FileNotFoundError:
        raise BrokenError(f"{path.name} is missing") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise BrokenError(f"{path.name}: {error}") from error
    bad = first_not_finite(tensors.items())
    if bad is not None:
        raise BrokenError(f"{path.name}: '{bad}' holds a NaN or an infinity")
    return tensors


def _optimised(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.nn.Parameter]:
    """What an optimiser moves, by name."""
    names = {id(p): k for k, p in model.named_parameters()}
    return {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}


def _trained(model: torch.nn.Module) -> dict[str, Tensor]:
    return {k: p.detach() for k, p in model.named_parameters() if p.requires_grad}


def _moments(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    names = {id(p): k for k, p in model.named_parameters()}
    return {
        f"{field}/{names[id(parameter)]}": value.detach().contiguous()
        for parameter, state in optimizer.state.items()
        for field, value in state.items()
    }
