"""Checkpoints: atomic folders plus a pointer file, so that a killed run resumes exactly or starts anew."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pocketbert.core.disk.files import write_atomic, write_json
from pocketbert.core.disk.ownership import move_aside, remove
from pocketbert.core.disk.workspace import building
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.processes import here
from pocketbert.core.host.progress import say
from pocketbert.distill.training.checkpoint_folder import (
    MOMENTS,
    POINTER,
    PROGRESS,
    TO_FIX,
    WEIGHTS,
    BrokenError,
    candidates,
    checkpoint_name,
    foreign_in,
    own_steps,
    progress_of,
)
from pocketbert.distill.training.finite import first_not_finite
from pocketbert.distill.training.records import Progress

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
