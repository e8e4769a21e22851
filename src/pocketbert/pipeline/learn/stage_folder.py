"""The student between two stages of `distill`, as a folder: ``distill/N`` of a run.

It is a model that transformers opens, with ``stage.json`` and, in ``carried.safetensors``, the tensors that methods hand
on. `write_state` writes it, and `read_state` reads it for the next stage. After the general stages it is the general
student, which other recipes name in `student.model`; `read_general_parts` reads what they go on with besides the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from pocketbert.core.data.labels import Labels
from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.models.checkpoints import load_model, save_model
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.tasks import Task
from pocketbert.pipeline.learn.finishing import Curve

if TYPE_CHECKING:
    from pocketbert.distill.methods.method import CarriedPart, CarriedParts

_STAGE_FILE = "stage.json"
CARRIED_FILE = "carried.safetensors"


@dataclass(frozen=True)
class StudentState:
    """The student between two stages, with its losses, notes and the tensors that methods pass on.

    Attributes:
        student: The torch model.
        general: Whether the model has the heads of general stages (on plain text) and not that of the task.
        carried: Tensors and facts that methods hand to later stages.
        captured: Whether the model computes attention in the way that can record it, which rounds differently.
        curves: Losses of each stage so far.
        notes: Remarks for readers of the student's scores.
    """

    student: Any
    general: bool
    carried: CarriedParts = field(default_factory=dict)
    captured: bool = False
    curves: tuple[Curve, ...] = ()
    notes: tuple[str, ...] = ()


class _StageFile(BaseModel):
    """Content of ``stage.json``, next to the student's weights; the fields are those of `StudentState`.

    Attributes:
        general: Whether the student has the heads of general stages (on plain text).
        captured: Whether it computes attention in the way that can record it.
        curves: Losses of each stage so far.
        notes: Remarks for readers of the student's scores.
        carried: Facts that methods hand on, by name; their tensors are in ``carried.safetensors``.
    """

    general: bool
    captured: bool
    curves: list[Curve]
    notes: list[str]
    carried: dict[str, dict[str, Any]]


def write_state(state: StudentState, source: ModelFolder, labels: Labels, length: int, destination: Path) -> None:
    """Write the student after a stage to a folder: model, ``stage.json`` and tensors for later stages.

    Args:
        state: The student and what belongs to it.
        source: Folder of its teacher, for the tokenizer.
        labels: Labels of its head; empty for the heads of general stages.
        length: Longest input in tokens.
        destination: The folder, which exists.
    """
    from safetensors.torch import save_file

    save_model(state.student, source, labels, length, destination)
    tensors = {
        f"{name}/{key}": value.detach().cpu().contiguous()
        for name, part in state.carried.items()
        for key, value in part.tensors.items()
    }
    save_file(tensors, destination / CARRIED_FILE)
    file = _StageFile(
        general=state.general,
        captured=state.captured,
        curves=[*state.curves],
        notes=[*state.notes],
        carried={name: dict(part.facts) for name, part in state.carried.items()},
    )
    write_json(destination / _STAGE_FILE, file.model_dump(mode="json"))


def read_state(folder: Path, general_head: Task | None, task: Task, labels: Labels) -> StudentState:
    """Read the student that a stage wrote to a folder, with its losses, notes and the tensors for later stages.

    Args:
        folder: The stage's folder.
        general_head: Task whose heads the student has after a general stage; None if the recipe has no such stage.
        task: Task of its head after another stage.
        labels: Labels of that head.
    """
    from pocketbert.distill.training.loop import mark_as_prepared

    file = _read_stage_file(folder)
    source = open_model_folder(str(folder))
    student = load_model(source, general_head) if file.general and general_head else load_model(source, task, labels)
    mark_as_prepared(student)
    carried = _read_carried(folder, file.carried)
    return StudentState(student.train(), file.general, carried, file.captured, tuple(file.curves), tuple(file.notes))


def read_general_parts(folder: Path) -> CarriedParts:
    """Read what a general stage left for later stages beside the student in a folder; empty for any other model folder."""
    if not ((folder / _STAGE_FILE).is_file() and (folder / CARRIED_FILE).is_file()):
        return {}
    file = _read_stage_file(folder)
    return _read_carried(folder, file.carried) if file.general else {}


def _read_stage_file(folder: Path) -> _StageFile:
    """Read ``stage.json`` of a stage's folder."""
    return _StageFile.model_validate(read_json(folder / _STAGE_FILE))


def _read_carried(folder: Path, facts_by_name: Mapping[str, dict[str, Any]]) -> dict[str, CarriedPart]:
    """Read the parts that a stage's folder holds for later stages, by name."""
    from safetensors.torch import load_file

    from pocketbert.distill.methods.method import CarriedPart

    tensors = load_file(folder / CARRIED_FILE)
    return {
        name: CarriedPart(
            {key.removeprefix(f"{name}/"): value for key, value in tensors.items() if key.startswith(f"{name}/")},
            facts,
        )
        for name, facts in facts_by_name.items()
    }
