"""Checkpoints: complete folders plus a pointer file, so that a killed run resumes exactly or starts anew.

`save_checkpoint` writes the trainable weights, the optimizer's moments and the `Progress` of a run into a folder
``step-0000100`` of its work folder, names it in the pointer file, and removes older checkpoints but one.
`load_checkpoint` resumes from the newest checkpoint that is complete and undamaged. `save_best` writes the weights with
the best score on validation rows next to them, ``best-0000100.safetensors``, which stay as long as a checkpoint refers
to them. All other files in a work folder were written by somebody else and are never deleted.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from pocketbert.core.disk.files import check_size, open_atomic, write_atomic, write_json
from pocketbert.core.disk.ownership import move_aside, remove, remove_named_files
from pocketbert.core.disk.workspace import build_folder
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.processes import current_process
from pocketbert.core.host.progress import print_note
from pocketbert.distill.training.finite import first_not_finite
from pocketbert.distill.training.progress import POINTER, Progress, parse_checkpoint_name

_WEIGHTS, _MOMENTS, _PROGRESS = "model.safetensors", "optimizer.safetensors", "progress.json"
_BEST_NAME = re.compile(r"best-(\d{7,})\.safetensors")
_PROGRESS_LIMIT_MIB = 64
_MOMENT_FIELDS = ("step", "exp_avg", "exp_avg_sq")
_FIX = "Put back the files of a checkpoint, or move the folder away to train this stage from its first step."


class _BrokenError(Exception):
    """Raised with the reason why a checkpoint cannot be used."""


def save_checkpoint(folder: Path, progress: Progress, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint folder, name it in the pointer file as the newest, and delete all older ones but one.

    It holds the model's trainable weights (frozen ones are the same at every start) and the optimizer's moments. Only
    what this module wrote is deleted: older checkpoints, and best weights that no checkpoint refers to any more.
    Anything else that has the new folder's name is moved aside.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = _checkpoint_name(progress.step)
    if aside := move_aside(folder / name, _foreign_entries):
        print_note(f"  {folder / name} is not a complete checkpoint: it was renamed {aside.name}")
    with build_folder(folder / name, _foreign_entries) as work:
        save_file(_trainable_weights(model), work / _WEIGHTS)
        save_file(_moments(model, optimizer), work / _MOMENTS)
        write_json(work / _PROGRESS, progress.model_dump())
    write_atomic(folder / POINTER, name)
    earlier = [step for step in _complete_checkpoints(folder) if step < progress.step]
    for step in earlier[1:]:
        remove(folder / _checkpoint_name(step), _foreign_entries)
    used = {_read_progress(folder / _checkpoint_name(step)).best_step for step in earlier[:1]} | {progress.best_step}
    best = {path: match for path in folder.iterdir() if (match := _BEST_NAME.fullmatch(path.name))}
    remove_named_files([path for path, match in best.items() if int(match[1]) not in used], _BEST_NAME)


def save_best(folder: Path, step: int, model: torch.nn.Module) -> None:
    """Write the trainable weights of a step with the best score so far. Older files stay until the next checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_atomic(folder / _best_name(step)) as file:
        file.write(save(_trainable_weights(model)))


def load_best(folder: Path, step: int, model: torch.nn.Module) -> None:
    """Load the weights that `save_best` wrote at a step into the model."""
    model.load_state_dict(load_file(folder / _best_name(step)), strict=False)


def saved_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the tensors that a checkpoint stores: trainable weights by name, optimizer moments by ``field/name``."""
    return {**_trainable_weights(model), **_moments(model, optimizer)}


def load_checkpoint(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Progress | None:
    """Load the newest undamaged checkpoint into model and optimizer, and return its progress.

    Returns:
        The progress of the run, or None if there is no checkpoint.

    Raises:
        InputError: If there are checkpoints but none can be read: training from the start would in time delete them.
    """
    problems: list[Problem] = []
    for checkpoint in _checkpoints_to_try(folder):
        try:
            progress, weights, moments = _read_checkpoint(checkpoint, model, optimizer)
        except _BrokenError as error:
            problems.append(Problem(str(checkpoint), f"no usable checkpoint: {error}."))
            continue
        if problems and current_process().main:
            for problem in problems:
                print_note(f"  {problem}")
            print_note(f"  resumed from the checkpoint before, {checkpoint.name}")
        model.load_state_dict(weights, strict=False)
        for name, parameter in _optimized_parameters(model, optimizer).items():
            if f"step/{name}" in moments:  # absent where no gradient has reached the weight so far
                optimizer.state[parameter] = {field: moments[f"{field}/{name}"] for field in _MOMENT_FIELDS}
        return progress
    if problems:
        raise InputError([*problems, Problem(str(folder), "has no checkpoint to resume from.", _FIX)])
    return None


def _checkpoints_to_try(work: Path) -> list[Path]:
    """Return the folders of the checkpoints to resume from, newest first.

    These are the one that the pointer file names and the complete ones before it; without a readable pointer, all
    complete ones.

    Raises:
        InputError: If the pointer file does not name a checkpoint, and there is no checkpoint either.
    """
    complete, pointer = _complete_checkpoints(work), work / POINTER
    try:
        newest = parse_checkpoint_name(pointer.read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        newest = None
    if newest is not None:
        return [work / _checkpoint_name(step) for step in (newest, *(s for s in complete if s < newest))]
    if pointer.exists() and not complete:
        raise InputError(Problem(str(pointer), "names no checkpoint, and there is none next to it.", _FIX))
    # killed before the first pointer was written, or the pointer is damaged: folders appear whole
    return [work / _checkpoint_name(step) for step in complete]


def _read_checkpoint(
    checkpoint: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[Progress, dict[str, Tensor], dict[str, Tensor]]:
    """Read a checkpoint, and check that its tensors fit model and optimizer, which are not changed.

    Returns:
        The progress, the weights by name, and the moments by ``field/name``.

    Raises:
        _BrokenError: If a file is missing or broken, or belongs to another model or optimizer.
    """
    progress = _read_progress(checkpoint)
    weights, moments = (_read_tensors(checkpoint / name) for name in (_WEIGHTS, _MOMENTS))
    if progress.best_step:
        _read_tensors(checkpoint.parent / _best_name(progress.best_step))
    parameters = dict(model.named_parameters())
    for name, value in weights.items():
        if name not in parameters or parameters[name].shape != value.shape:
            raise _BrokenError(f"{_WEIGHTS} is of another model ('{name}' {list(value.shape)})")
    for name, parameter in _optimized_parameters(model, optimizer).items():
        shapes = [moments[key].shape for field in _MOMENT_FIELDS if (key := f"{field}/{name}") in moments]
        if shapes and shapes != [torch.Size([]), parameter.shape, parameter.shape]:
            raise _BrokenError(f"{_MOMENTS} is of another model or optimiser ('{name}')")
    return progress, weights, moments


def _read_progress(checkpoint: Path) -> Progress:
    """Read progress.json of a checkpoint, and check that its step is that of the folder's name.

    Raises _BrokenError if the file is missing or broken, or has another step.
    """
    path = checkpoint / _PROGRESS
    if not path.is_file():
        raise _BrokenError(f"{_PROGRESS} is missing")
    try:
        check_size(path, _PROGRESS_LIMIT_MIB)
        progress = Progress.model_validate_json(path.read_bytes())
    except (InputError, ValidationError, OSError) as error:
        raise _BrokenError(f"{_PROGRESS} cannot be read") from error
    if _checkpoint_name(progress.step) != checkpoint.name:
        raise _BrokenError(f"{_PROGRESS} is that of step {progress.step}")
    return progress


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file by name; raise _BrokenError if it is broken, or a number is not finite."""
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except FileNotFoundError:
        raise _BrokenError(f"{path.name} is missing") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise _BrokenError(f"{path.name}: {error}") from error
    not_finite = first_not_finite(tensors.items())
    if not_finite is not None:
        raise _BrokenError(f"{path.name}: '{not_finite}' holds a NaN or an infinity")
    return tensors


def _complete_checkpoints(work: Path) -> list[int]:
    """Return the steps of the complete checkpoints in a work folder, the largest first."""
    steps = {path: parse_checkpoint_name(path.name) for path in work.glob("step-*")}
    return sorted((step for path, step in steps.items() if step is not None and _is_complete(path)), reverse=True)


def _is_complete(checkpoint: Path) -> bool:
    """Return whether a folder is a complete checkpoint: not a link, and with a readable progress file."""
    if checkpoint.is_symlink():
        return False
    try:
        _read_progress(checkpoint)
    except _BrokenError:
        return False
    return True


def _foreign_entries(checkpoint: Path) -> list[str]:
    """List the files in a folder that do not belong to a checkpoint, or all files if the checkpoint is not complete."""
    entries = sorted(p.name for p in checkpoint.iterdir())
    return [n for n in entries if n not in (_WEIGHTS, _MOMENTS, _PROGRESS)] if _is_complete(checkpoint) else entries


def _checkpoint_name(step: int) -> str:
    """Return the folder name of the checkpoint of a step."""
    return f"step-{step:07d}"


def _best_name(step: int) -> str:
    """Return the file name of the best weights, those of a step."""
    return f"best-{step:07d}.safetensors"


def _trainable_weights(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return the trainable weights of a model by name."""
    return {k: p.detach() for k, p in model.named_parameters() if p.requires_grad}


def _moments(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state tensors by ``field/name``, such as ``exp_avg/`` and the parameter's name."""
    names = {id(p): k for k, p in model.named_parameters()}
    return {
        f"{field}/{names[id(parameter)]}": value.detach().contiguous()
        for parameter, state in optimizer.state.items()
        for field, value in state.items()
    }


def _optimized_parameters(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that the optimizer updates, by their names in the model."""
    names = {id(p): k for k, p in model.named_parameters()}
    return {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}
