"""Compares artifacts.json with config.json: a folder that contradicts itself is refused when it is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pocketbert.core.artefacts.records import Artefacts
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import FORM_KEY, all_families
from pocketbert.core.families.config import FILE_NAME, label_names, read_config
from pocketbert.core.tasks import TASKS

_AGAIN = "Copy the folder again."


def checked_config(folder: Path, artefacts: Artefacts) -> dict[str, Any] | None:
    """Read config.json of an artefact folder and compare it with the folder's list, labels left out.

    Args:
        folder: The folder.
        artefacts: Its list.

    Returns:
        The content; None where the folder has no such file.

    Raises:
        InputError: If it is no configuration, or of another model than the list says.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    family = next((f for f in all_families() if f.name == artefacts.family), None)
    config = read_config(path, family.bounds) if family else read_config(path)
    task, length, problems = TASKS[artefacts.task], artefacts.processing.max_length, []
    if family and config.get("model_type") not in (None, *family.model_types):
        problems.append(f"model_type is {config.get('model_type')!r:.40}, the folder's list says {family.name}.")
    rows = config.get("max_position_embeddings")
    if family and rows is not None and rows - family.position_offset < length:
        problems.append(f"its position table has {rows} rows, too few for the folder's max_length ({length}).")
    if config.get("problem_type") not in (None, task.problem_type):
        problems.append(f"problem_type is {config['problem_type']!r:.60}, the folder's task is {task.name}.")
    named = config.get("architectures") or []
    head = family.head_suffixes.get(task.head, task.head) if family else task.head
    if named and not any(n.endswith(head) for n in named):
        problems.append(f"architectures is {named[0]!r:.60}, the folder's task is {task.name}.")
    if config.get(FORM_KEY) != artefacts.form:
        problems.append(f"{FORM_KEY} is {config.get(FORM_KEY)!r:.40}, the folder's list says {artefacts.form!r:.40}.")
    if problems:
        raise InputError([Problem(str(path), what, _AGAIN) for what in problems])
    return config


def check_label_names(folder: Path, artefacts: Artefacts, config: dict[str, Any] | None) -> None:
    """Refuse labels of artifacts.json that are not those of config.json.

    Args:
        folder: The folder.
        artefacts: Its list.
        config: What `checked_config` returned.

    Raises:
        InputError: Naming the first difference.
    """
    names = label_names(config) if config and TASKS[artefacts.task].names_labels else None
    if names is None or names == artefacts.labels:
        return
    pairs = enumerate(zip(names, artefacts.labels, strict=False))
    first = next((f"output {i} is {b!r:.40} instead of {a!r:.40}" for i, (a, b) in pairs if a != b), None)
    what = first or f"{len(artefacts.labels)} labels instead of {len(names)}"
    raise InputError(Problem(f"{folder}/artifacts.json labels", f"differ from those of config.json: {what}.", _AGAIN))
