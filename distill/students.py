"""Students: smaller models of the teacher's class, started from chosen teacher layers or at random."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family
from pocketbert.core.recipe import StudentSection
from pocketbert.core.seeds import derive_seed
from pocketbert.distill.layer_map import layer_map


def build_student(teacher: Any, family: Family, wanted: StudentSection, seed: int) -> Any:
    """A student for a teacher.

    Args:
        teacher: A transformers model with a head.
        family: Its row of the family table.
        wanted: Layers, start, and sizes where they differ from the teacher's.
        seed: Seed of random weights.

    Returns:
        A model of the teacher's class, fp32, in training mode.

    Raises:
        InputError: If the sizes do not fit.
    """
    config = copy.deepcopy(teacher.config)
    config.num_hidden_layers = wanted.layers
    for ours, theirs in (
        ("hidden", "hidden_size"),
        ("heads", "num_attention_heads"),
        ("intermediate", "intermediate_size"),
    ):
        if (value := getattr(wanted, ours)) is not None:
            setattr(config, family.config_names.get(theirs, theirs), value)
    if config.hidden_size % config.num_attention_heads:
        raise InputError(
            Problem(
                "student",
                f"hidden {config.hidden_size} is no multiple of heads {config.num_attention_heads}.",
            )
        )
    config._attn_implementation = "sdpa"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "student"))
        student = type(teacher)(config)
    if wanted.init == "teacher-layers":
        chosen = layer_map(
            wanted.layers, teacher.config.num_hidden_layers, wanted.teacher_layers, "student.teacher_layers"
        )
        student.load_state_dict(inherited_weights(teacher.state_dict(), family.layer_path, chosen))
    return student.train()


def inherited_weights(state: dict[str, Tensor], layer_path: str, chosen: list[int]) -> dict[str, Tensor]:
    """Teacher weights under the student's names.

    Args:
        state: Teacher state dict.
        layer_path: Path of the encoder layers in it.
        chosen: Teacher layer (from 1) for each student layer.

    Returns:
        A state dict that fills the student completely.
    """
    prefix = f"{layer_path}."
    out = {k: v.clone() for k, v in state.items() if not k.startswith(prefix)}
    for index, layer in enumerate(chosen):
        source = f"{prefix}{layer - 1}."
        for key, value in state.items():
            if key.startswith(source):
                out[f"{prefix}{index}.{key.removeprefix(source)}"] = value.clone()
    return out


def parameter_count(model: torch.nn.Module) -> int:
    """Parameters, tied ones counted once."""
    return sum(p.numel() for p in model.parameters())
