"""A recipe for a data file and nothing else: its columns, task, lengths and passes are found in the rows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import yaml

from pocketbert.core.data.columns import Columns, guess_columns
from pocketbert.core.data.examples import Example, read_examples
from pocketbert.core.data.files import is_data_file, is_table
from pocketbert.core.data.source import DataSource
from pocketbert.core.disk.destination import file_destination
from pocketbert.core.disk.files import write_atomic
from pocketbert.core.errors import InputError, Problem, nearest
from pocketbert.core.host.system import expanded
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.file import recipe_from
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.student import SmallerStudent
from pocketbert.core.tasks import TASKS, LabelKind, TaskName
from pocketbert.pipeline.options import DataFiles
from pocketbert.pipeline.reference import open_teacher, task_text

# --- shipped ---
# Recipes that come with the package.


SCHEMA_FILE = "recipe.schema.json"
_HEADER = "# yaml-language-server: $schema="


def folder() -> Path:
    """Folder of the shipped recipes."""
    return Path(str(resources.files("pocketbert.recipes")))


def _shipped() -> dict[str, Path]:
    """Files of the shipped recipes by name; they lie in a folder for each task."""
    return {p.stem: p for p in folder().glob("*/*.yaml")}


def names() -> list[str]:
    """Names of the shipped recipes."""
    return sorted(_shipped())


def recipe_path(recipe: str | Path) -> Path:
    """File of a recipe given by path or by shipped name.

    Raises:
        InputError: If neither exists.
    """
    path = Path(recipe)
    if is_data_file(path.name):
        fix = f"Without a recipe: pocketbert run --data {recipe}"
        raise InputError(Problem(str(recipe), "is a data file, not a recipe.", fix))
    if path.is_file():
        return path
    shipped = _shipped().get(str(recipe))
    if shipped is not None:
        return shipped
    raise InputError(
        Problem(
            str(recipe),
            f"no recipe file here and no shipped recipe of that name; {nearest(str(recipe), names())}.",
            "List them: pocketbert recipes ls",
        )
    )


def starting_text(task: TaskName) -> str:
    """The shipped recipe that is a start for a task, with comments; its header names the schema where it is installed."""
    return _with_schema((folder() / task.value / f"{task.value}.yaml").read_text(encoding="utf-8"))


def without_schema(text: str) -> str:
    """The text of a recipe without the header that names the schema: its path differs between installations."""
    first, _, rest = text.partition("\n")
    return rest if first.startswith(_HEADER) else text


def _with_schema(text: str) -> str:
    lines = text.splitlines(keepends=True)
    if lines and lines[0].startswith(_HEADER):
        lines[0] = f"{_HEADER}{folder() / SCHEMA_FILE}\n"
    return "".join(lines)


def copy_recipe(name: str, destination: Path, overwrite: bool = False) -> Path:
    """Copy a shipped recipe for editing; its header names the schema so that editors complete keys.

    Returns:
        The file; where `destination` is a link, what it leads to.

    Raises:
        InputError: If `destination` exists and `overwrite` is not set, or cannot be used.
    """
    source = recipe_path(name)
    text = source.read_text(encoding="utf-8")
    destination = file_destination(destination, overwrite, source)
    destination.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(destination, _with_schema(text))
    return destination


RECIPE_FILE = "recipe.yaml"
"""Where the recipe that a run made for a data file is kept, in its run folder."""
_TASKS = {
    LabelKind.NAME: TaskName.TEXT_CLASSIFICATION,
    LabelKind.NAMES: TaskName.MULTI_LABEL,
    LabelKind.SCORE: TaskName.REGRESSION,
    LabelKind.SPANS: TaskName.TOKEN_CLASSIFICATION,
    LabelKind.ANSWERS: TaskName.QUESTION_ANSWERING,
}
_FEWEST_ROWS, _MOST_ROWS = 4_800, 48_000
"""Rows that a training sees in all its passes: with fewer a head of many classes is not learnt, more take long on a CPU."""
_TEXTS = 4_000
"""Texts whose lengths are measured."""
_SHARE_OF_LENGTHS = 0.99
_STEP, _SHORTEST, _LONGEST = 16, 32, 256
_USUAL_PASSES = 4
_STARTING_HEADER = "# A start with your own data"
"""Begins the line of a start that says what it is."""
_EPOCHS = re.compile(r"\bepochs: ([\d.]+)")
_PLAIN = re.compile(r"[A-Za-z][\w-]*")


@dataclass(frozen=True)
class StartingRecipe:
    """A recipe that was made for a data file.

    Attributes:
        recipe: The recipe.
        text: The same as a file with comments, without the overrides of the command line.
        notes: What was found in the rows, a sentence each.
    """

    recipe: Recipe
    text: str
    notes: tuple[str, ...]

    def keep(self, folder: Path, overwrite: bool) -> None:
        """Write the recipe into a run folder.

        Raises:
            InputError: If the folder holds a recipe with other contents, which the user may have edited.
        """
        path = folder / RECIPE_FILE
        before = path.read_text(encoding="utf-8") if path.is_file() else None
        if before is not None and without_schema(before) == without_schema(self.text):
            return
        if before is not None and not overwrite:
            raise InputError(
                Problem(
                    str(path),
                    "differs from the recipe for this data: it was edited, or the data changed.",
                    f"Run the file: pocketbert run {path} -o ANOTHER_FOLDER; or choose another -o/--output, or --overwrite.",
                )
            )
        write_atomic(path, self.text)


AnyRecipe: TypeAlias = Recipe | StartingRecipe


def resolved(recipe: AnyRecipe) -> Recipe:
    """The settings of a recipe, wherever it comes from.

    Args:
        recipe: A recipe, or one that was made for a data file.
    """
    return recipe.recipe if isinstance(recipe, StartingRecipe) else recipe


def starting_recipe(files: DataFiles, folder: Path, overrides: Sequence[str] = ()) -> StartingRecipe:
    """Make a recipe for a data file.

    Args:
        files: The data, and what the user says of it.
        folder: The run folder.
        overrides: ``key.sub=value`` texts, which come last.

    Raises:
        InputError: If the file cannot be read, or its columns or its task are not clear.
        MissingBackendError: If the teacher, or a library that reads the file, is not installed.
    """
    columns = guess_columns(_source(files), _kind(files.task))
    task = TaskName(files.task) if files.task else _task(columns)
    rows = read_examples(columns.source, kind=TASKS[task].labels, labelled=TASKS[task].names_labels)
    path = folder / RECIPE_FILE
    text = _filled(starting_text(task), _values(files, columns, task), _share_of_passes(len(rows)))
    first = recipe_from(text, path, overrides)
    longest = _longest(first, rows)
    if task is not TaskName.QUESTION_ANSWERING:
        text = _filled(text, {"  max_length": str(longest), "export": _export(longest)})
    recipe = recipe_from(text, path, overrides)
    notes = (
        columns.note,
        f"task: {task}, from the labels" if files.task is None else f"task: {task}",
        _split_note(recipe, len(rows)),
    )
    return StartingRecipe(recipe, text, notes)


def _source(files: DataFiles) -> DataSource:
    path = str(expanded(str(files.data), "--data").absolute())
    return DataSource.at(path, files.text, files.text_pair, files.label, files.header)


def _kind(task: str | None) -> LabelKind | None:
    if task is None:
        return None
    allowed = [t.value for t in TASKS if t is not TaskName.FILL_MASK]
    if task not in allowed:
        fix = "For fill-mask write a recipe: pocketbert recipes cp fill-mask my.yaml" if task == "fill-mask" else ""
        raise InputError(Problem("--task", f"'{task}' is not a task of --data; {nearest(task, allowed)}.", fix))
    return TASKS[TaskName(task)].labels


def _task(columns: Columns) -> TaskName:
    if columns.kind is None or columns.kind not in _TASKS:
        what = f"column '{columns.source.label}' could be classes or scores, or texts: {columns.note}."
        fix = "Say what it is: --task text-classification, or --task regression; or name another column with --label."
        raise InputError(Problem(columns.source.title, what, fix))
    return _TASKS[columns.kind]


def _values(files: DataFiles, columns: Columns, task: TaskName) -> Mapping[str, str]:
    """The lines of a start that the data decide, by what stands before the colon."""
    source = columns.source
    cells = {"text": source.text, "text_pair": source.text_pair}
    if TASKS[task].labels not in (LabelKind.NONE, LabelKind.SCORE_OR_NONE) or "label" in source.model_fields_set:
        cells["label"] = source.label
    named = "".join(f", {key}: {_quoted(value)}" for key, value in cells.items() if value is not None)
    header = f", header: {str(source.header).lower()}" if source.header is not None else ""
    made = f"made by `pocketbert run --data {source.title}`. To change it, edit a copy and run the copy."
    values = {
        _STARTING_HEADER: made,
        "name": _name(str(files.data)),
        "  train": f"{{path: {_quoted(source.title)}{named}{header}}}",
    }
    if files.evaluation is not None:
        path = str(expanded(str(files.evaluation), "--eval").absolute())
        header = f", header: {str(files.header).lower()}" if files.header is not None and is_table(path) else ""
        values["  eval"] = f"{{path: {_quoted(path)}{named}{header}}}"
    return values


def _share_of_passes(rows: int) -> float:
    """How often the rows are seen, relative to the start: as often, unless they are few or many."""
    usual = _USUAL_PASSES * rows
    return min(max(usual, _FEWEST_ROWS), _MOST_ROWS) / usual


def _longest(recipe: Recipe, rows: Sequence[Example]) -> int:
    """Tokens that nearly all texts have, as a round number."""
    model = open_teacher(recipe)
    most = min(model.positions, model.tokenizer_length, _LONGEST)
    tokenizer, task = TextTokenizer(model.tokenizer_folder, most), TASKS[recipe.task]
    some = sorted(rows, key=lambda row: row.digest)[:_TEXTS]
    lengths = np.sort([len(e) for e in tokenizer.encode([task_text(task, row.input, tokenizer) for row in some])])
    long = int(lengths[int(_SHARE_OF_LENGTHS * (len(lengths) - 1))])
    return min(most, max(_SHORTEST, -(-long // _STEP) * _STEP))


def _export(longest: int) -> str:
    lengths = sorted({max(_STEP, longest // 4 // 8 * 8), longest // 2 // 8 * 8, longest})
    return f"{{formats: [onnx, tflite, coreml], lengths: {lengths}}}"


def _split_note(recipe: Recipe, rows: int) -> str:
    share = recipe.data.eval.fraction if recipe.data.eval is not None else None
    if share is None:
        return f"{rows:,} rows to train on"
    return (
        f"{rows:,} rows, of which {share:.0%} decide the score and are not trained on (chosen by the hash of the text)"
    )


def _filled(text: str, values: Mapping[str, str], passes: float = 1.0) -> str:
    """A start with other values: of lines that begin with a key, and of `epochs` wherever it is, times `passes`."""

    def scaled(found: re.Match[str]) -> str:
        return f"epochs: {float(found[1]) * passes:.3g}"

    lines = []
    for line in text.splitlines():
        key = line.partition(":")[0]
        kept = line if passes == 1 or line.lstrip().startswith("#") else _EPOCHS.sub(scaled, line)
        lines.append(f"{key}: {values[key]}" if key in values else kept)
    return "".join(f"{line}\n" for line in lines)


def _name(data: str) -> str:
    stem = Path(data).name.split(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:60] or "run"


def default_folder(data: str) -> Path:
    """The run folder for a data file where none is given.

    Args:
        data: The file.
    """
    return Path("runs") / _name(data)


def _quoted(value: str) -> str:
    """A text as YAML has it inside of braces."""
    plain = _PLAIN.fullmatch(value) is not None and yaml.safe_load(value) == value
    return value if plain else json.dumps(value, ensure_ascii=False)


# --- plain_recipe ---
# The plain recipe that makes a smaller student of a run's own, and the lines of it that a user copies.


_LR, _BATCH = 1e-4, 32
"""How a pruned student learns again: as in the tables of docs/results.md."""


def smaller_recipe(recipe: Recipe, wanted: SmallerStudent, steps: int, run: Path, licence: str | None = None) -> Recipe:
    """Return the plain recipe that makes a smaller student of a run's own, and only its exported files.

    Args:
        recipe: The recipe of the own student.
        wanted: The student.
        steps: Steps that it learns.
        run: The run folder, with ``teacher`` and ``student``.
        licence: Licence of the teacher's weights.
    """
    content = recipe.model_dump(mode="json", by_alias=True)
    teacher = {"model": str(run / "teacher"), "family": recipe.teacher.family, "licence": licence}
    content |= {"teacher": teacher, "student": _section(wanted, run), "distill": [_stage(steps)]}
    content["data"] |= {"corpus": None, "augment": None}  # of stages that the plain recipe does not have
    content["quantize"] = {"scheme": "fp32", "calibration": recipe.quantize.calibration}
    return Recipe.model_validate(content)


def student_lines(recipe: Recipe) -> list[str]:
    """The sections of a plain recipe that make its student, a line each, ready to copy.

    Args:
        recipe: What `smaller_recipe` returned.
    """
    assert recipe.student is not None
    student = recipe.student.model_dump(mode="json", exclude_defaults=True)
    (stage,) = (s.model_dump(mode="json", exclude_unset=True) for s in recipe.distill)
    sections = {"teacher": {"model": recipe.teacher.model}, "student": student, "distill": [stage]}
    return [f"{key}: {_flow(value)}" for key, value in sections.items()]


def _section(wanted: SmallerStudent, run: Path) -> dict[str, Any]:
    section: dict[str, Any] = {"model": str(run / "student")}
    if wanted.intermediate is not None:
        section |= {"init": "pruned", "intermediate": wanted.intermediate}
    if wanted.vocabulary is not None:
        section["vocabulary"] = wanted.vocabulary.model_dump(mode="json")
    return section


def _stage(steps: int) -> dict[str, Any]:
    signals = {"logits": 1.0, "hidden": 0.0, "attention": 0.0}
    return {"method": "task", "steps": steps, "batch": _BATCH, "lr": _LR, "dropout": 0.0, "signals": signals}


def _flow(value: object) -> str:
    """A value as YAML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(v)}" for key, v in value.items()) + "}"
    return f"[{', '.join(map(_flow, value))}]" if isinstance(value, list) else f"{value}"
