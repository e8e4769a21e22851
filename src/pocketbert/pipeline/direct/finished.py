"""Whether an output was written before from the same inputs, and what may not be replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pocketbert.core.artefacts import FILE_NAME, Artefacts, integrity_problems, read_artefacts, strangers
from pocketbert.core.disk.ownership import refuse_strangers
from pocketbert.core.disk.workspace import beside_workspaces, occupants
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.progress import say
from pocketbert.pipeline.run import Run


def is_finished(output: Path, run: Run, overwrite: bool) -> bool:
    """Whether `output` was written from the same recipe, model and versions as `run`, and is whole.

    Raises:
        InputError: If it holds something else, which may not be replaced.
    """
    return is_made(output, lambda made: made.made_from == run.origin.everything, overwrite)


def is_made(output: Path, same: Callable[[Artefacts], bool], overwrite: bool) -> bool:
    """Whether `output` is a whole artefact folder that has been made before.

    Args:
        output: The folder that would be written.
        same: Whether a folder with such a list is the one that would be written.
        overwrite: Whether another artefact folder may be replaced.

    Raises:
        InputError: If it holds something else, which may not be replaced.
    """
    damage: list[str] = []
    if _made_before(output, same):
        damage = integrity_problems(output, read_artefacts(output))
        if not damage:
            say(f"{output}: finished before with the same model and settings, skipped")
            return True
    _refuse_existing(output, overwrite, damage)
    return False


def _made_before(output: Path, same: Callable[[Artefacts], bool]) -> bool:
    """Whether `output` is the folder that would be written; it may be damaged."""
    if not (output / FILE_NAME).is_file():
        return False
    try:
        return same(read_artefacts(output))
    except InputError:
        return False


def _refuse_existing(output: Path, overwrite: bool, damage: Sequence[str]) -> None:
    """Refuse to replace anything but an artefact folder."""
    if output.is_dir() and occupants(output):
        if not overwrite:
            fix = "Choose another -o/--output, or --overwrite to replace it."
            raise InputError(
                [Problem(f"{output}/{what}", "nothing was written.", fix) for what in damage]
                or Problem(str(output), "exists and holds something else; nothing was written.", fix)
            )
        if not (output / FILE_NAME).is_file():
            what = "exists and is not an artefact folder: --overwrite does not replace it; nothing was written."
            raise InputError(Problem(str(output), what, "Choose another -o/--output."))
    if output.is_dir():
        refuse_strangers(output, beside_workspaces(strangers))
