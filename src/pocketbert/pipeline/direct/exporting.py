"""`export`: the steps of a recipe that the options make, in a work folder next to the output."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pocketbert.core.artefacts import FILE_NAME, Artefacts, integrity_problems, read_artefacts, strangers
from pocketbert.core.data.columns import found_columns
from pocketbert.core.disk.destination import folder_destination, leaving_nothing
from pocketbert.core.disk.ownership import refuse_strangers
from pocketbert.core.disk.workspace import (
    beside_workspaces,
    finish_interrupted,
    occupants,
    remove_interrupted,
    workspace,
)
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import check_exported
from pocketbert.core.host.progress import say
from pocketbert.core.host.system import expanded
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.recipe.data import LONGEST
from pocketbert.core.recipe.file import recipe_of
from pocketbert.core.recipe.quantize import files_of
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import Task, TaskName, task_of
from pocketbert.core.types import Attention, Runtime, Scheme
from pocketbert.pipeline.inputs import Inputs
from pocketbert.pipeline.learn.data import check_files, check_threshold
from pocketbert.pipeline.options import FLAGS, KEYS, ExportOptions
from pocketbert.pipeline.phone.recording import write_page
from pocketbert.pipeline.reference import say_row
from pocketbert.pipeline.run import Run
from pocketbert.pipeline.run_folder import Permission

# --- finished ---
# Whether an output was written before from the same inputs, and what may not be replaced.


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


# --- export_recipe ---
# Build the recipe that `export` follows: its rules are the recipe's, its problems name flags.


_TITLE = "command line"
_MODEL = "teacher.model"
_KEY = re.compile(r"(?<![\w.])[a-z_]+(?:\.[a-z_]+)+")
_ASSUMED_TASK = TaskName.TEXT_CLASSIFICATION


def export_recipe(model: str, options: ExportOptions) -> tuple[Recipe, ModelFolder]:
    """Open a model and write the recipe that exports it.

    Args:
        model: Hugging Face folder, or Hub name.
        options: What to write.

    Returns:
        The recipe, and the model that it names.

    Raises:
        InputError: Listing every problem of model and options, by the names of the flags.
        MissingBackendError: If the library that loads models from the Hub is not installed.
    """
    with naming_flags():
        local = expanded(model, _MODEL)
        name = str(local.resolve()) if local.is_dir() else model
        try:
            attention = Attention(options.attention) if options.attention in set(Attention) else None
            folder = open_model_folder(name, options.revision, _MODEL, options.family, attention)
            options = _with_attention(options, folder)
            check_exported(folder.family, _MODEL)
            task = options.task or known_task(folder)
            options = _with_length(_with_form(options, folder), folder)
            if task in set(TaskName):
                options = _with_columns(options, task_of(TaskName(task)))
        except InputError as error:
            raise InputError([*error.problems, *option_problems(name, options)]) from error
        recipe = recipe_of(_content(name, _run_name(folder), options, task), _TITLE)
        licence = recipe.teacher.licence or folder.licence
        return recipe, replace(folder, licence=licence, used_for=TaskName(task))


def _with_attention(options: ExportOptions, folder: ModelFolder) -> ExportOptions:
    """The options with what attention is over in the folder's files, where they name nothing else."""
    found = options.attention is None and folder.family.in_blocks
    return replace(options, attention=Attention.BLOCKS.value) if found else options


def _with_form(options: ExportOptions, folder: ModelFolder) -> ExportOptions:
    """The options with the form that the folder has, where they name none."""
    if options.form is not None:
        folder.family.in_form(options.form, folder.config, "export.form")
        return options
    return options if folder.family.form is None else replace(options, form=folder.family.form.name)


def _with_columns(options: ExportOptions, task: Task) -> ExportOptions:
    """The options with the columns of their files, found where they are not named."""
    return replace(
        options,
        data=options.data and found_columns(options.data, task.labels),
        calibrate=options.calibrate and found_columns(options.calibrate, task.labels),
    )


def _with_length(options: ExportOptions, folder: ModelFolder) -> ExportOptions:
    """The options with the model's own limit, where they name none: with rows, a recipe has another default."""
    if (options.data is None and options.calibrate is None) or options.max_length is not None:
        return options
    return replace(options, max_length=min(folder.positions, folder.tokenizer_length, LONGEST))


def option_problems(model: str, options: ExportOptions) -> list[Problem]:
    """List what is wrong with options whatever the model is, by the names of the flags.

    What depends on the task is left out where no task is given: its problems could be wrong.
    """
    known = options if options.task else replace(options, labels=None, answer={})
    try:
        recipe_of(_content(model, "model", known, options.task or _ASSUMED_TASK), _TITLE)
    except InputError as error:
        return list(dict.fromkeys(_with_flags(p) for p in error.problems))
    return []


def unread_calibration(options: ExportOptions) -> list[Problem]:
    """Tell that nothing reads the calibration rows: most likely a static scheme was forgotten."""
    if options.calibrate is None or any(Scheme(s).static for s in options.schemes if s in set(Scheme)):
        return []
    what = f"{', '.join(options.schemes)} reads no calibration rows."
    return [Problem("--calibrate", what, "Add a static scheme, e.g. --scheme int8,a8w8, or leave --calibrate out.")]


def known_task(folder: ModelFolder) -> str:
    """Return the task that a model says it was trained for.

    Raises:
        InputError: If it does not say.
    """
    if folder.task is not None:
        return folder.task.value
    made = ", ".join(map(str, folder.config.get("architectures") or [])) or "no class"
    family = folder.family
    reasons = [f" {family.title} cannot do {task}: {why}." for task, why in family.invalid_tasks.items()]
    possible = " | ".join(task for task in TaskName if task not in family.invalid_tasks)
    what = f"config.json names {made}, but no task.{''.join(reasons)}"
    raise InputError(Problem("task", what, f"Give one: --task {possible}"))


@contextmanager
def naming_flags() -> Iterator[None]:
    """Raise the `InputError` of this context with flags where its problems name keys of a recipe."""
    try:
        yield
    except InputError as error:
        raise InputError(list(dict.fromkeys(_with_flags(p) for p in error.problems))) from error


def _content(model: str, name: str, options: ExportOptions, task: str) -> dict[str, Any]:
    """Nest the options under the keys of a recipe."""
    content: dict[str, Any] = {"schema": 1, "name": name, "teacher": {"model": model}}
    for option, key in KEYS.items():
        value = getattr(options, option)
        if value in (None, False) or option in ("schemes", "runtimes", "roles"):
            continue
        *sections, last = key.split(".")
        place = content
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = _written(value)
    return {
        **content,
        "quantize": {
            **content.get("quantize", {}),
            **_quantize(options.schemes, options.runtimes),
            **_chosen(options.roles),
        },
        "task": task,
    }


def _written(value: object) -> object:
    """The value of an option as a recipe has it."""
    match value:
        case True:  # a section with its defaults
            return {}
        case Path():
            return str(value)
        case BaseModel():
            return value.model_dump(mode="json", exclude_none=True)
        case str() | dict() | int() | float():
            return value
        case Iterable():
            return list(value)
    raise TypeError(f"{type(value).__name__} cannot be written into a recipe")


def _quantize(schemes: Sequence[str], runtimes: Sequence[str]) -> dict[str, Any]:
    """Write schemes and runtimes as the section `quantize`, which says what is wrong with them."""
    if len(schemes) == 1 and not runtimes:
        return {"scheme": schemes[0]}
    if schemes and set(schemes) <= set(Scheme) and set(runtimes) <= set(Runtime):
        files = files_of([Scheme(s) for s in schemes], [Runtime(r) for r in runtimes])
        return {"files": [f.model_dump(mode="json", exclude_none=True) for f in files]}
    return {"files": [*schemes, *({"scheme": (*schemes, "int8")[0], "runtime": r} for r in runtimes)]}


def _chosen(roles: Mapping[str, str]) -> dict[str, Any]:
    """Write what an option chooses for roles and names as the two keys that a recipe has for them."""
    names = {key: scheme for key, scheme in roles.items() if "." in key or "*" in key}
    given = {"roles": {k: s for k, s in roles.items() if k not in names}, "names": names}
    return {key: value for key, value in given.items() if value}


def _run_name(folder: ModelFolder) -> str:
    # the copy of a model from the Hub lies in a folder that is named after a commit
    local = Path(folder.title)
    title = local.name if local.is_dir() else folder.title.rsplit("/", 1)[-1]
    cleaned = "".join(c if c.isalnum() or c in "._-" else "-" for c in title).lstrip("._-")
    return cleaned[:64] or "model"


def _with_flags(problem: Problem) -> Problem:
    """Write flags for the keys that have one."""
    key = problem.where.removeprefix(_TITLE).strip()
    return Problem(_flag(key) or problem.where, _flags_in(problem.what), _flags_in(problem.fix))


def _flag(key: str) -> str:
    """The flag that sets a key, or those that set the keys of a section; empty where there is none."""
    parts = [part for part in key.split(".") if not part.isdecimal()]
    for end in range(len(parts), 0, -1):
        if flag := FLAGS.get(".".join(parts[:end])):
            return " ".join([flag, *parts[end:]])
    return ", ".join(flag for inner, flag in FLAGS.items() if inner.startswith(f"{key}."))


def _flags_in(text: str) -> str:
    return _KEY.sub(lambda found: FLAGS.get(found[0], found[0]), text)


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
