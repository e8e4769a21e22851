"""Writing what was chosen for a platform: a folder that verifies without the one it was made from."""

from __future__ import annotations

from pathlib import Path

from pocketbert.core.artefacts import (
    FILE_NAME,
    Artefacts,
    FileRecord,
    Kind,
    ModelRecord,
    changed_files,
    read_artefacts,
    write_artefacts,
)
from pocketbert.core.compare.golden import FILE_NAME as GOLDEN_FILE
from pocketbert.core.compare.golden import read_golden, write_golden
from pocketbert.core.compare.simulated import FILE_NAME as SIMULATED_FILE
from pocketbert.core.compare.simulated import read_simulated, write_simulated
from pocketbert.core.disk.files import copy_path
from pocketbert.core.errors import InputError, Problem
from pocketbert.pipeline.gates.selftest import FILE_NAME as SELFTEST_FILE
from pocketbert.pipeline.gates.selftest import write_selftest
from pocketbert.pipeline.phone.platforms.platform import AppPlatform, Choice

_REWRITTEN = (GOLDEN_FILE, SIMULATED_FILE)
"""Files that name model files: only what is packed is left in them."""


def earlier_pack(platform: AppPlatform, output: Path) -> Artefacts | None:
    """What an earlier command packed into a folder; None where it holds no list.

    Raises:
        InputError: If the folder's list is not one of files packed for this platform.
    """
    path = output / FILE_NAME
    if not path.exists() and not path.is_symlink():
        return None
    try:
        found = read_artefacts(output)
    except InputError:
        found = None
    if found is None or found.packed_for != platform.name:
        what = f"holds a {FILE_NAME} that 'pocketbert pack --for {platform.name}' did not write; nothing was written."
        raise InputError(Problem(str(output), what, "Choose a new folder with -o/--output."))
    return found


def is_packed(platform: AppPlatform, output: Path, earlier: Artefacts, artefacts: Artefacts, choice: Choice) -> bool:
    """Whether an earlier command packed the same files, and all are still as they were."""
    same = earlier.made_from == artefacts.made_from and earlier.absent == choice.absent
    packed = [(r.path, r.sha256) for r in earlier.models()]
    if not same or sorted(packed) != sorted((platform.path(artefacts, r), r.sha256) for r in choice.models):
        return False
    return all((output / r.path).exists() for r in earlier.files) and not changed_files(output, earlier)


def write_pack(platform: AppPlatform, folder: Path, artefacts: Artefacts, choice: Choice, destination: Path) -> None:
    """Write the chosen files, golden rows of these only, what the platform adds, and ``artifacts.json``.

    Args:
        platform: Whose app carries the files.
        folder: The artefact folder.
        artefacts: Its list.
        choice: What is packed.
        destination: Empty folder to write into.
    """
    names = {r.path: platform.path(artefacts, r) for r in choice.models}
    for record in choice.files:
        if record.path not in _REWRITTEN:
            _copy(folder / record.path, destination / names.get(record.path, record.path))
    _write_golden(folder, names, destination)
    kinds = {GOLDEN_FILE: Kind.GOLDEN}
    if any(r.path == SIMULATED_FILE for r in choice.others):
        _write_simulated(folder, names, destination)
        kinds[SIMULATED_FILE] = Kind.FIGURES
    models = _models(choice, names)
    if platform.has_selftest:
        write_selftest(destination, artefacts.model_copy(update={"files": models}))
        kinds[SELFTEST_FILE] = Kind.GOLDEN
    kinds |= platform.add([destination / r.path for r in models], destination)
    others = [r for r in choice.others if r.path not in _REWRITTEN]
    written = [FileRecord.of(destination, name, kind) for name, kind in kinds.items()]
    files = sorted([*models, *others, *written], key=lambda r: r.path)
    update = {"files": files, "absent": choice.absent, "packed_for": platform.name}
    write_artefacts(destination, artefacts.model_copy(update=update))


def _copy(source: Path, destination: Path) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    copy_path(source, destination)


def _models(choice: Choice, names: dict[str, str]) -> list[ModelRecord]:
    """The records of the model files, with their names in the packed folder; one of them is the default."""
    default = next((r for r in choice.models if r.default), choice.models[0])
    return [r.model_copy(update={"path": names[r.path], "default": r is default}) for r in choice.models]


def _write_golden(folder: Path, names: dict[str, str], destination: Path) -> None:
    rows = [
        row.model_copy(
            update={
                "outputs": {names[p]: v for p, v in row.outputs.items() if p in names},
                "tolerance": {names[p]: v for p, v in row.tolerance.items() if p in names},
            }
        )
        for row in read_golden(folder / GOLDEN_FILE)
    ]
    write_golden(destination / GOLDEN_FILE, rows)


def _write_simulated(folder: Path, names: dict[str, str], destination: Path) -> None:
    found = read_simulated(folder)
    errors = {names[p]: e for p, e in found.errors.items() if p in names}
    ranges = {names[p]: r for p, r in found.ranges.items() if p in names}
    write_simulated(destination, found.model_copy(update={"errors": errors, "ranges": ranges}))
