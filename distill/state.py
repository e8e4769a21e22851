"""Checkpoints: atomic folders plus a pointer file, so that a killed run resumes exactly or starts anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from pocketbert.core.files import building, read_json, remove_tree, write_atomic, write_json
from pocketbert.distill.records import Progress

POINTER = "latest"


def save_checkpoint(
    folder: Path, progress: Progress, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Write one checkpoint, point to it, and drop older ones.

    Args:
        folder: The run's work folder.
        progress: Where the run is.
        model: Its trainable weights are saved; frozen ones are the same at every start.
        optimizer: Its moments are saved.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"step-{progress.step:07d}"
    with building(folder / name) as work:
        trained = {k: p.detach() for k, p in model.named_parameters() if p.requires_grad}
        save_file(trained, work / "model.safetensors")
        save_file(_moments(model, optimizer), work / "optimizer.safetensors")
        write_json(work / "progress.json", progress.model_dump())
    write_atomic(folder / POINTER, name)
    for old in folder.glob("step-*"):
        if old.name != name:
            remove_tree(old)


def load_checkpoint(
    folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> Progress | None:
    """Continue from the newest checkpoint, if there is one.

    Returns:
        Where the run was, or None at the start.
    """
    pointer = folder / POINTER
    if not pointer.is_file():
        return None
    source = folder / pointer.read_text().strip()
    model.load_state_dict(load_file(source / "model.safetensors"), strict=False)
    saved = load_file(source / "optimizer.safetensors")
    names = {id(p): k for k, p in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            if f"step/{name}" not in saved:
                continue  # no gradient reached it so far: a head where hidden states alone are learnt
            state: dict[str, Any] = {
                field: saved[f"{field}/{name}"] for field in ("step", "exp_avg", "exp_avg_sq")
            }
            optimizer.state[parameter] = state
    return Progress.model_validate(read_json(source / "progress.json"))


def _moments(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    names = {id(p): k for k, p in model.named_parameters()}
    return {
        f"{field}/{names[id(parameter)]}": value.detach().contiguous()
        for parameter, state in optimizer.state.items()
        for field, value in state.items()
    }
