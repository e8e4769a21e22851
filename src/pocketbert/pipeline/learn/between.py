"""The student between two stages as a folder: a model that transformers opens, and what stages hand on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pocketbert.core.data.labels import Labels
from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.host.processes import here
from pocketbert.core.models.checkpoints import load_model, save_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.pipeline.learn.finishing import Curve
from pocketbert.pipeline.learn.general import head_wanted
from pocketbert.pipeline.learn.stages import Learning, StudentState

FILE_NAME = "stage.json"
TENSORS = "carried.safetensors"


class StageFile(BaseModel):
    """What a stage leaves next to the student's weights; ``stage.json``.

    Attributes:
        general: Whether the student is as general stages train it.
        captured: Whether its attention is the one that is captured.
        curves: Losses of each stage so far.
        notes: What a reader of the student's figures must know.
        carried: Facts that methods hand on, by name; their tensors are in ``carried.safetensors``.
    """

    general: bool
    captured: bool
    curves: list[Curve]
    notes: list[str]
    carried: dict[str, dict[str, Any]]


def write_state(learning: Learning, state: StudentState, destination: Path) -> None:
    """Write the student between two stages, in process 0.

    Args:
        learning: What all stages share.
        state: The student.
        destination: An existing folder.
    """
    from safetensors.torch import save_file

    if not here().main:
        return
    source = learning.model if state.general else learning.source
    save_model(
        state.student, source, Labels(()) if state.general else learning.data.labels, learning.length, destination
    )
    tensors = {
        f"{name}/{key}": value.detach().cpu().contiguous()
        for name, part in state.carried.items()
        for key, value in part.tensors.items()
    }
    save_file(tensors, destination / TENSORS)
    file = StageFile(
        general=state.general,
        captured=state.captured,
        curves=[*state.curves],
        notes=[*state.notes],
        carried={name: dict(part.facts) for name, part in state.carried.items()},
    )
    write_json(destination / FILE_NAME, file.model_dump(mode="json"))


def read_state(learning: Learning, folder: Path) -> StudentState:
    """Read the student that a stage left.

    Args:
        learning: What all stages share.
        folder: What `write_state` wrote.
    """
    from safetensors.torch import load_file

    from pocketbert.distill.methods.method import CarriedPart
    from pocketbert.distill.training.lending import mark_trained

    file = StageFile.model_validate(read_json(folder / FILE_NAME))
    source = open_model_folder(str(folder))
    if file.general:
        student = load_model(source, head_wanted(learning.recipe))
    else:
        student = load_model(source, learning.task, learning.data.labels)
    mark_trained(student)
    tensors = load_file(folder / TENSORS)
    carried = {
        name: CarriedPart(
            {key.removeprefix(f"{name}/"): value for key, value in tensors.items() if key.startswith(f"{name}/")},
            facts,
        )
        for name, facts in file.carried.items()
    }
    return StudentState(student.train(), file.general, carried, file.captured, tuple(file.curves), tuple(file.notes))
