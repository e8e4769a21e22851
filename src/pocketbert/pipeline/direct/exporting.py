"""`export`: the steps of a recipe that the options make, in a work folder next to the output."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pocketbert.core.artefacts import FILE_NAME, strangers
from pocketbert.core.disk.destination import folder_destination, leaving_nothing
from pocketbert.core.disk.workspace import finish_interrupted, remove_interrupted, workspace
from pocketbert.core.errors import InputError
from pocketbert.core.host.progress import say
from pocketbert.pipeline.direct.finished import is_finished
from pocketbert.pipeline.export_recipe import export_recipe, naming_flags, unread_calibration
from pocketbert.pipeline.inputs import Inputs
from pocketbert.pipeline.learn.data import check_files, check_threshold
from pocketbert.pipeline.options import ExportOptions
from pocketbert.pipeline.phone.recording import write_page
from pocketbert.pipeline.run import Run
from pocketbert.pipeline.run_folder import Permission
from pocketbert.pipeline.teacher import say_row

_WORK = "export"
"""What the workspace of an export remembers, so that a later one finds it."""


def export_model(
    model: str,
    output: Path,
    options: ExportOptions,
    *,
    overwrite: bool,
    ready: Mapping[str, Path] | None = None,
) -> Path:
    """See `pocketbert.api.export`; `ready` are fp32 files of the same model to use instead of exporting anew."""
    if ready is None and (problems := unread_calibration(options)):
        raise InputError(problems)
    recipe, folder = export_recipe(model, options)
    say_row(folder)
    output = folder_destination(output, folder.path)
    inputs = Inputs(recipe, ready or {}, folder)  # of both runs, so that each file is hashed once
    finish_interrupted(output)
    with naming_flags():
        check_threshold(recipe, None)
        if is_finished(output, Run(recipe, output, inputs=inputs), overwrite):
            remove_interrupted(output, _WORK)  # a process killed after its last rename leaves it
            return output
    with leaving_nothing(output), workspace(output, resume=_WORK) as own:
        if own.resumed:
            say(f"continuing the interrupted work in {own.path}")
        with naming_flags():
            Run(recipe, own.path / "run", Permission(overwrite=True), inputs).execute()
        if options.data is not None or options.benchmark:
            write_page(own.path / "run" / "phone")
        own.install(own.path / "run" / "phone", strangers, FILE_NAME)
    return output


def plan_export(model: str, output: Path, options: ExportOptions, *, overwrite: bool) -> list[tuple[str, str]]:
    """See `pocketbert.api.plan_export`: each step and its state."""
    if problems := unread_calibration(options):
        raise InputError(problems)
    recipe, folder = export_recipe(model, options)
    output = folder_destination(output, folder.path)
    run = Run(recipe, output, inputs=Inputs(recipe, {}, folder))
    with naming_flags():
        check_files(recipe.data)
        check_threshold(recipe, None)
        state = "finished" if is_finished(output, run, overwrite) else "to do"
        return [(step.title, state) for step in run.steps()]
