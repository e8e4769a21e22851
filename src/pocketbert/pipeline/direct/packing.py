"""`pack`: the files of a run, or what an app needs of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pocketbert.core.artefacts import FILE_NAME, read_artefacts, strangers
from pocketbert.core.disk.destination import folder_destination, leaving_nothing
from pocketbert.core.disk.marker import is_marked
from pocketbert.core.disk.ownership import temporary_folder
from pocketbert.core.disk.workspace import adding, building, finish_interrupted, remove_interrupted
from pocketbert.core.errors import GateError, InputError, Problem
from pocketbert.core.host.progress import say
from pocketbert.core.types import Status
from pocketbert.pipeline.direct.finished import is_finished
from pocketbert.pipeline.direct.judging import open_run
from pocketbert.pipeline.phone.pack import check_packable, make_pack
from pocketbert.pipeline.phone.platforms.table import platform_named
from pocketbert.pipeline.phone.platforms.writing import earlier_pack, is_packed, write_pack
from pocketbert.pipeline.run import Run
from pocketbert.pipeline.run_folder import KIND


def pack_run(run_folder: Path, output: Path, overwrite: bool, platform: str | None = None) -> Path:
    """See `pocketbert.api.pack`."""
    if platform is not None:
        return _pack_assets(run_folder, output, platform, overwrite)
    run = open_run(run_folder)
    output = folder_destination(output, run_folder)
    finish_interrupted(output)
    with run.folder.locked(), leaving_nothing(output):
        _check_steps(run)
        if is_finished(output, run, overwrite):
            remove_interrupted(output)  # a process killed after its last rename leaves it
        else:
            with building(output, strangers, FILE_NAME) as target:
                _make_checked(run, target)
    return output


def _make_checked(run: Run, destination: Path) -> None:
    """Write the artefact folder of a run.

    Raises:
        GateError: If the packed folder answers otherwise than the library of the checkpoint.
    """
    failures = make_pack(run.exported, run.data.pair, run.origin, destination, run.confusions)
    if failures:
        raise GateError(failures)


def _pack_assets(model: Path, output: Path, name: str, overwrite: bool) -> Path:
    platform = platform_named(name)
    output = folder_destination(output, model)
    finish_interrupted(output)
    with leaving_nothing(output), _artefact_folder(model) as folder:
        artefacts, earlier = read_artefacts(folder), earlier_pack(platform, output)
        choice = platform.choose(folder, artefacts)
        if earlier is not None and is_packed(platform, output, earlier, artefacts, choice):
            remove_interrupted(output)
            say(f"{output}: finished before with the same files, skipped")
            return output
        if earlier is not None and not overwrite:
            what = "holds files that were packed before; nothing was written."
            raise InputError(Problem(str(output), what, "Choose another -o/--output, or --overwrite to replace them."))
        names = [r.path for r in earlier.files] if earlier is not None else []
        with adding(output, [FILE_NAME, *names] if earlier is not None else [], FILE_NAME) as target:
            write_pack(platform, folder, artefacts, choice, target)
    return output


@contextlib.contextmanager
def _artefact_folder(model: Path) -> Iterator[Path]:
    """An artefact folder; of a run folder the one that `pack_run` would write, for as long as the block lasts."""
    if not is_marked(model, KIND):
        yield model
        return
    run = open_run(model)
    with run.folder.locked(), temporary_folder(model) as place:
        _check_steps(run)
        (place / "phone").mkdir()
        _make_checked(run, place / "phone")
        yield place / "phone"


def _check_steps(run: Run) -> None:
    """Refuse a run with a failed step.

    Raises:
        GateError: If a step failed, or a file did not pass or changed since.
    """
    steps = {s.name for s in run.steps()}  # an earlier recipe may have left others
    for mark in run.folder.marks.all():
        if mark.name in steps and mark.status is Status.FAILED:
            raise GateError([*mark.failures, f"Step {mark.name} failed; nothing was packed."])
    check_packable(run.exported)
