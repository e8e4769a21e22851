"""Export: the files of a model as an artefact folder, without a recipe.

`export_model` runs the same steps as a recipe, in a work folder next to the output, and `plan_export` lists them. Both

1. open the model and write the recipe that follows from the options (`export_recipe`); its problems name command-line
   flags,
2. skip the work if the output was finished before from the same inputs (`is_finished`, `skip_finished`),
3. say what it takes, and refuse what this machine cannot do (`forecast_export`),
4. execute the steps in a workspace that a killed process leaves for the next one.

`options_of_folder` returns the options with which the files of an existing artefact folder were exported.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic import BaseModel

from pocketbert.core.artefacts import (
    ARTEFACTS_FILE,
    Artefacts,
    ModelRecord,
    list_foreign_files,
    list_integrity_problems,
    read_artefacts,
)
from pocketbert.core.data.columns import guess_and_report_columns
from pocketbert.core.disk.destination import remove_new_folders_on_error, resolve_output_folder
from pocketbert.core.disk.ownership import refuse_foreign_files
from pocketbert.core.disk.workspace import (
    finish_interrupted,
    has_interrupted,
    ignore_workspaces,
    list_occupants,
    open_workspace,
    remove_interrupted,
)
from pocketbert.core.errors import InputError, MachineError, Problem
from pocketbert.core.families import check_exportable
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.hardware import usable_memory
from pocketbert.core.host.progress import describe_seconds, print_note
from pocketbert.core.host.system import expand_home
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.recipe.data import MAX_LENGTH
from pocketbert.core.recipe.file import load_recipe, recipe_from_values
from pocketbert.core.recipe.quantize import list_quantized_files
from pocketbert.core.recipe.recipe import CoremlSection, Recipe
from pocketbert.core.tasks import TASKS, TaskName, several_task, task_of
from pocketbert.core.types import Attention, Format, Runtime, Scheme
from pocketbert.pipeline.doctor import require_for
from pocketbert.pipeline.formats.base import check_file_sizes, quantized_schemes, quantized_step
from pocketbert.pipeline.inputs import Inputs
from pocketbert.pipeline.learn.data import check_files, check_threshold
from pocketbert.pipeline.make.measuring import guess_head_columns
from pocketbert.pipeline.options import OPTION_RECIPE_KEYS, RECIPE_KEY_FLAGS, AnswerOptions, ExportOptions
from pocketbert.pipeline.phone.recording import write_page
from pocketbert.pipeline.reference import print_family_choice
from pocketbert.pipeline.run import RECIPE_FILE, Run
from pocketbert.pipeline.run_folder import Permission

_WORK = "export"
"""Name of the workspace's content, by which a later export finds an interrupted one."""
_TITLE = "command line"
_MODEL = "teacher.model"
_SETFIT_HEAD = "model_head.pkl"
_ASSUMED_TASK = TaskName.TEXT_CLASSIFICATION


def export_model(
    model: str,
    output: Path,
    options: ExportOptions,
    *,
    overwrite: bool,
    ready: Mapping[str, Path] | None = None,
) -> Path:
    """Export a model to an artefact folder; see `pocketbert.api.export`.

    Args:
        model: Hugging Face folder, or Hub name.
        output: The new artefact folder.
        options: Options of the export, such as formats and schemes.
        overwrite: Whether an existing artefact folder may be replaced.
        ready: Files that were exported from the same model before, by path in the artefact folder; they are used
            instead of exporting again.

    Returns:
        The folder. If it was finished before from the same inputs, nothing is done.

    Raises:
        InputError: Listing every problem of the model and the options, or if `output` holds files that may not be replaced.
        MachineError: If the machine has far too little memory or disk space.
        GateError: If a file fails a gate; no folder is written then.
    """
    if ready is None and (problems := unread_calibration(options)):
        raise InputError(problems)
    recipe, folder = export_recipe(model, options)
    print_family_choice(folder)
    output = resolve_output_folder(output, folder.path)
    inputs = Inputs(recipe, ready or {}, folder)  # of both runs, so that each file is hashed once
    finish_interrupted(output)
    with naming_flags():
        check_threshold(recipe, None)
        if is_finished(output, Run(recipe, output, inputs=inputs), overwrite):
            remove_interrupted(output, _WORK)  # a process killed after its last rename leaves it
            return output
        check_file_sizes(recipe, folder.fp32_bytes)
    require_for(recipe)
    forecast = forecast_export(recipe.export.formats, folder)
    if ready is None and not has_interrupted(output, _WORK):
        _check_room(forecast, output, options)
    with remove_new_folders_on_error(output), open_workspace(output, resume=_WORK) as work:
        if work.resumed:
            print_note(f"continuing the interrupted work in {work.path}")
        with naming_flags():
            run = Run(recipe, work.path / "run", Permission(overwrite=True), inputs)
            run.folder.expected_s = _forecast_steps(run, forecast) if ready is None else {}
            run.execute()
        if options.data is not None or options.benchmark:
            write_page(work.path / "run" / "phone")
        work.install(work.path / "run" / "phone", list_foreign_files, ARTEFACTS_FILE)
    return output


def plan_export(model: str, output: Path, options: ExportOptions, *, overwrite: bool) -> list[tuple[str, str]]:
    """Return title and state of each step of an export, without running any; see `pocketbert.api.plan_export`.

    All steps have the same state: ``finished`` if the output was written from the same inputs before, else ``to do``.

    Raises:
        InputError: As `export_model`.
    """
    if problems := unread_calibration(options):
        raise InputError(problems)
    recipe, folder = export_recipe(model, options)
    output = resolve_output_folder(output, folder.path)
    run = Run(recipe, output, inputs=Inputs(recipe, {}, folder))
    with naming_flags():
        check_files(recipe.data)
        check_threshold(recipe, None)
        state = "finished" if is_finished(output, run, overwrite) else "to do"
        return [(step.title, state) for step in run.steps()]


# --- outputs that exist -----------------------------------------------------------------------------------------------


def is_finished(output: Path, run: Run, overwrite: bool) -> bool:
    """Return whether `output` was written from the recipe, model and versions of `run`, and is undamaged.

    Raises:
        InputError: If the folder holds something else, which may not be replaced.
    """
    is_same = False
    if (output / ARTEFACTS_FILE).is_file():
        with suppress(InputError):
            is_same = read_artefacts(output).made_from == run.origin.everything
    return skip_finished(output, is_same, overwrite)


def skip_finished(output: Path, is_same: bool, overwrite: bool) -> bool:
    """Return whether the folder `output` is finished already; if it is not, check that it may be written.

    Args:
        output: The folder that would be written.
        is_same: Whether the folder's ``artifacts.json`` names the same inputs. Its files may still be damaged.
        overwrite: Whether an artefact folder made from other inputs may be replaced.

    Raises:
        InputError: If the folder holds something that may not be replaced.
    """
    damage = list_integrity_problems(output, read_artefacts(output)) if is_same else []
    if is_same and not damage:
        print_note(f"{output}: finished before with the same model and settings, skipped")
        return True
    if output.is_dir() and list_occupants(output):
        if not overwrite:
            fix = "Choose another -o/--output, or --overwrite to replace it."
            what = "exists and holds something else; nothing was written."
            if (output / ARTEFACTS_FILE).is_file():
                what = "holds files of another model, of other options or of another version; nothing was written."
            raise InputError(
                [Problem(f"{output}/{name}", "nothing was written.", fix) for name in damage]
                or Problem(str(output), what, fix)
            )
        if not (output / ARTEFACTS_FILE).is_file():
            what = "exists and is not an artefact folder: --overwrite does not replace it; nothing was written."
            raise InputError(Problem(str(output), what, "Choose another -o/--output."))
    if output.is_dir():
        refuse_foreign_files(output, ignore_workspaces(list_foreign_files))
    return False


# --- what an export takes ---------------------------------------------------------------------------------------------

_START_S, _LEAST_MEMORY = 7.0, 1_900_000_000
"""Seconds and bytes of memory of every export: libraries, data, opening the model."""


class Forecast(NamedTuple):
    """What an export takes.

    Attributes:
        seconds: Wall time on two quiet cores of the fastest CPU that was measured.
        memory: Most bytes of memory.
        disk: Most bytes on the disk of the output.
    """

    seconds: float
    memory: float
    disk: float


def forecast_export(formats: Sequence[Format], model: ModelFolder) -> Forecast:
    """Estimate the time, memory and disk space of an export from the formats, the size of the weights and the number of layers."""
    costs = [FORMATS[format].cost for format in formats]
    layers, size = model.family.read_size(model.config, "num_hidden_layers"), model.fp32_bytes
    layers = 12 if layers is None else layers
    seconds = sum(cost.fixed_s + cost.layer_s * layers + cost.gb_s * size / 1e9 for cost in costs)
    copies = 2 + 2 * sum(cost.disk for cost in costs)  # of the model, in the run and in the folder, and of all files
    return Forecast(_START_S + seconds, _LEAST_MEMORY + size * max(c.memory for c in costs), size * copies)


_SHARES = {"golden": 0.18, "verify": 0.18, "pack": 0.12}
"""Shares of an export's time that its last steps take (`lab/export_cost.py`); the formats take the rest."""
_QUANTIZING = 0.1
"""Share of a format's own time that making the smaller files takes."""


def _forecast_steps(run: Run, forecast: Forecast) -> dict[str, float]:
    """Divide the seconds of an export among its steps that take long; return them by the name of the step."""
    costs = {format: forecast_export([format], run.model).seconds - _START_S for format in run.recipe.export.formats}
    seconds = {name: share * forecast.seconds for name, share in _SHARES.items()}
    # with rows to score the teacher on, these two steps take a time that is not forecast
    seconds |= {} if run.recipe.data.eval else {"data": 0.0, "teacher": 0.0}
    for format, cost in costs.items():
        own = (1 - sum(_SHARES.values())) * forecast.seconds * cost / sum(costs.values())
        steps = [quantized_step(format, scheme) for scheme in quantized_schemes(run.recipe, format)]
        seconds[format.value] = own * (1 - _QUANTIZING) if steps else own
        seconds |= {step: own * _QUANTIZING / len(steps) for step in steps}
    return seconds


_SURELY = 0.7
"""Share of the forecast below which the machine is refused: options such as fewer schemes take less."""


_SLOWER_CPU = 2.0
"""Times as long as the forecast that the slowest CPU took that was measured (`lab/export_cost.py`)."""


def _check_room(forecast: Forecast, output: Path, options: ExportOptions) -> None:
    """Print what an export will take, and check that the machine does not have far too little memory or disk space.

    Raises:
        MachineError: If it has less than 70 % of what is expected.
    """
    folder = next(p for p in (output, *output.absolute().parents) if p.is_dir())
    memory, disk = usable_memory(), shutil.disk_usage(folder).free
    needs = f"{forecast.memory / 1e9:.1f} GB of memory and {forecast.disk / 1e9:.1f} GB of disk"
    also = ", and the benchmark its own time" if options.benchmark else ""
    shortest, longest = describe_seconds(forecast.seconds), describe_seconds(_SLOWER_CPU * forecast.seconds)
    print_note(
        f"this will take {shortest} to {longest} on two quiet cores, which depends on the CPU{also}, up to {needs}"
    )
    lacking = [f"this machine has {memory / 1e9:.1f} GB of memory"] if memory < _SURELY * forecast.memory else []
    lacking += [f"{folder} has {disk / 1e9:.1f} GB of room"] if disk < _SURELY * forecast.disk else []
    if lacking:
        fewer = "export one format at a time (--format onnx), " if len(options.formats) != 1 else ""
        fix = f"Fix: {fewer}choose another -o/--output, or distil a smaller student first."
        raise MachineError(f"the export would take up to {needs}; {' and '.join(lacking)}. Nothing was written. {fix}")


# --- the recipe of the options ----------------------------------------------------------------------------------------


def export_recipe(model: str, options: ExportOptions) -> tuple[Recipe, ModelFolder]:
    """Open a model, and make the recipe that exports it from command-line options.

    Settings without an option are taken from the model: task, attention in blocks, export form, longest input. Columns
    of the rows that are not named are guessed.

    Args:
        model: Hugging Face folder, or Hub name.
        options: Options of the export, such as formats and schemes.

    Returns:
        The recipe, and the opened model.

    Raises:
        InputError: Listing every problem of the model and the options; problems name the command-line flags.
        MissingBackendError: If the library that loads models from the Hub is not installed.
    """
    with naming_flags():
        name = _resolve_model(model, _MODEL)
        options = replace(options, adapters=tuple(_resolve_model(a, "teacher.adapters") for a in options.adapters))
        try:
            attention = Attention(options.attention) if options.attention in set(Attention) else None
            folder = open_model_folder(name, options.revision, _MODEL, options.family, attention, options.adapters)
            if options.attention is None and folder.family.in_blocks:
                options = replace(options, attention=Attention.BLOCKS.value)
            check_exportable(folder.family, _MODEL)
            task = options.task or _task_of_model(folder)
            if options.form is not None:
                folder.family.in_form(options.form, folder.config, "export.form")
            elif folder.family.form is not None:
                options = replace(options, form=folder.family.form.name)
            if options.max_length is None and (options.data is not None or options.calibrate is not None):
                # with rows, a recipe has another default than the model's own limit
                options = replace(options, max_length=min(folder.positions, folder.tokenizer_length, MAX_LENGTH))
            if task in TASKS:
                labels = task_of(task).labels
                options = replace(
                    options,
                    data=options.data and guess_and_report_columns(options.data, labels),
                    calibrate=options.calibrate and guess_and_report_columns(options.calibrate, labels),
                )
            columns = dict[str, str]()
            if task == TaskName.SEVERAL:
                if folder.heads is None:
                    raise InputError(Problem("task", "the model has one head, not several.", "Leave it out."))
                row, rows = several_task(folder.heads), (options.data, options.calibrate)
                (data, calibrate), columns = guess_head_columns(rows, row)
                options = replace(options, data=data, calibrate=calibrate)
        except InputError as error:
            raise InputError([*error.problems, *option_problems(name, options)]) from error
        content = _recipe_content(name, _recipe_name(folder), options, task)
        if folder.heads is not None and task == TaskName.SEVERAL:
            content["tasks"] = {head: {"task": own, "label": columns[head]} for head, own in folder.heads.items()}
        recipe = recipe_from_values(content, _TITLE)
        licence = recipe.teacher.licence or folder.licence
        return recipe, replace(folder, licence=licence, used_for=TaskName(task))


def _resolve_model(name: str, where: str) -> str:
    """Return the absolute path of a local model folder; other names are returned unchanged."""
    local = expand_home(name, where)
    return str(local.resolve()) if local.is_dir() else name


def option_problems(model: str, options: ExportOptions) -> list[Problem]:
    """Return what is wrong with command-line options whatever the model is, by flag; empty if nothing is.

    If the user names no task, or several heads, label names and answer settings are not checked, because they depend on the task.
    """
    task = options.task if options.task != TaskName.SEVERAL else None
    checked = options if task else replace(options, labels=None, answer={})
    try:
        recipe_from_values(_recipe_content(model, "model", checked, task or _ASSUMED_TASK), _TITLE)
    except InputError as error:
        return list(dict.fromkeys(_with_flags(p) for p in error.problems))
    return []


def unread_calibration(options: ExportOptions) -> list[Problem]:
    """Return a problem if calibration rows are given but no scheme reads them, else an empty list.

    Most likely the user has forgotten to name a static scheme.
    """
    if options.calibrate is None or any(Scheme(s).static for s in options.schemes if s in set(Scheme)):
        return []
    what = f"no scheme of {', '.join(options.schemes)} reads calibration rows."
    return [Problem("--calibrate", what, "Add a static scheme, e.g. --scheme int8,a8w8, or leave --calibrate out.")]


def _task_of_model(folder: ModelFolder) -> str:
    """Return the task that a model's ``config.json`` names.

    Raises:
        InputError: If config.json names no task, or the head lies in a pickle of scikit-learn.
    """
    if (folder.path / _SETFIT_HEAD).is_file():
        what = f"the folder is a classifier of SetFit, whose head {_SETFIT_HEAD} is a pickle: it may run code and is not read."
        fix = "Let SetFit write its probabilities into a column and distil from it (run --teacher COLUMN), or export the encoder alone: --task feature-extraction."
        raise InputError(Problem("task", what, fix))
    if folder.task is not None:
        return folder.task.value
    classes = ", ".join(map(str, folder.config.get("architectures") or [])) or "no class"
    family = folder.family
    reasons = [
        f" {family.title} cannot do {task}: {why}." for task, why in family.invalid_tasks.items() if task in TASKS
    ]
    possible = " | ".join(task for task in TASKS if task not in family.invalid_tasks)
    what = f"config.json names {classes}, but no task.{''.join(reasons)}"
    raise InputError(Problem("task", what, f"Give one: --task {possible}"))


def _recipe_name(folder: ModelFolder) -> str:
    """Return a name for the recipe, made from the model's: at most 64 letters, digits, dots, dashes, underscores."""
    local = Path(folder.title)  # the copy of a model from the Hub lies in a folder that is named after a commit
    title = local.name if local.is_dir() else folder.title.rsplit("/", 1)[-1]
    cleaned = "".join(c if (c.isascii() and c.isalnum()) or c in "._-" else "-" for c in title).lstrip("._-")
    return cleaned[:64] or "model"


def _recipe_content(model: str, name: str, options: ExportOptions, task: str) -> dict[str, Any]:
    """Return the content of a recipe, as nested dictionaries, with the values of the command-line options."""
    content: dict[str, Any] = {"schema": 1, "name": name, "teacher": {"model": model}}
    for option, key in OPTION_RECIPE_KEYS.items():
        value = getattr(options, option)
        if value in (None, False, ()) or option in ("schemes", "runtimes", "roles"):
            continue
        *sections, last = key.split(".")
        place = content
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = _recipe_value(value)
    names = {key: scheme for key, scheme in options.roles.items() if "." in key or "*" in key}
    roles = {key: scheme for key, scheme in options.roles.items() if key not in names}
    chosen = {key: value for key, value in (("roles", roles), ("names", names)) if value}
    quantize = {**content.get("quantize", {}), **_quantize_files(options.schemes, options.runtimes), **chosen}
    return {**content, "quantize": quantize, "task": task}


def _recipe_value(value: object) -> object:
    """Convert an option's value to plain strings, numbers, lists and dictionaries, as YAML has them.

    True becomes an empty section, which has its defaults.
    """
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


def _quantize_files(schemes: Sequence[str], runtimes: Sequence[str]) -> dict[str, Any]:
    """Return the ``quantize`` section of a recipe for schemes and runtimes.

    Unknown names are kept in it, and are refused when the recipe is read.
    """
    if len(schemes) == 1 and not runtimes:
        return {"scheme": schemes[0]}
    if schemes and set(schemes) <= set(Scheme) and set(runtimes) <= set(Runtime):
        files = list_quantized_files([Scheme(s) for s in schemes], [Runtime(r) for r in runtimes])
        return {"files": [f.model_dump(mode="json", exclude_none=True) for f in files]}
    return {"files": [*schemes, *({"scheme": (*schemes, "int8")[0], "runtime": r} for r in runtimes)]}


def options_of_folder(
    model: Path,
    artefacts: Artefacts,
    exported: Sequence[ModelRecord],
    schemes: Sequence[str],
    runtimes: Sequence[str],
) -> ExportOptions:
    """Return the options that export an artefact folder's exported files again, with the given schemes for quantized files.

    Args:
        model: The folder.
        artefacts: Content of the folder's ``artifacts.json``.
        exported: The records of the folder's exported files.
        schemes: Schemes of the quantized files to make.
        runtimes: Runtimes that get a further file.
    """
    resolved = model / RECIPE_FILE
    packages = load_recipe(resolved).export.coreml if resolved.is_file() else CoremlSection()
    defaults = ExportOptions()
    default_format = artefacts.default_model().format if exported else None
    # the format of the default file comes first, wherever the list of files has it
    formats = [str(r.format) for r in sorted(exported, key=lambda r: r.format is not default_format)]
    # a temperature that a user set for all files; fitted ones belong to single files
    set_temperatures = {r.temperature for r in exported if r.confidence is None or not r.confidence.fitted_rows}
    answer = artefacts.processing.settings().model_dump(mode="json")
    if len(set_temperatures) == 1 and set_temperatures != {1.0}:
        answer["temperature"] = set_temperatures.pop()
    return ExportOptions(
        task=artefacts.task,
        form=artefacts.form,
        formats=list(dict.fromkeys(formats)) or defaults.formats,
        schemes=schemes,
        runtimes=runtimes,
        lengths=sorted({n for r in exported if r.signature for n in r.signature.lengths}) or defaults.lengths,
        max_length=artefacts.processing.max_length,
        ios=packages.ios,
        shapes=packages.shapes,
        precision=packages.precision,
        layout=packages.layout,
        answer=cast(AnswerOptions, answer),
    )


# --- flags instead of keys --------------------------------------------------------------------------------------------

_KEY = re.compile(r"(?<![\w.])[a-z_]+(?:\.[a-z_]+)+")


@contextmanager
def naming_flags() -> Iterator[None]:
    """Replace recipe keys by command-line flags in the problems of an `InputError` that the `with` block raises."""
    try:
        yield
    except InputError as error:
        raise InputError(list(dict.fromkeys(_with_flags(p) for p in error.problems))) from error


def _with_flags(problem: Problem) -> Problem:
    """Return a copy of a problem that names command-line flags instead of the recipe keys that they set."""

    def replace_keys(text: str) -> str:
        """Return a text with each recipe key in it replaced by the flag that sets it."""
        return _KEY.sub(lambda match: RECIPE_KEY_FLAGS.get(match[0], match[0]), text)

    key = problem.where.removeprefix(_TITLE).strip()
    return Problem(_flag_of(key) or problem.where, replace_keys(problem.what), replace_keys(problem.fix))


def _flag_of(key: str) -> str:
    """Return the flag that sets a recipe key, or all flags that set keys of a section; empty if there is none."""
    parts = [part for part in key.split(".") if not part.isdecimal()]
    for end in range(len(parts), 0, -1):
        if flag := RECIPE_KEY_FLAGS.get(".".join(parts[:end])):
            return " ".join([flag, *parts[end:]])
    return ", ".join(flag for inner, flag in RECIPE_KEY_FLAGS.items() if inner.startswith(f"{key}."))
