"""Recipes that PocketBERT writes or ships.

`recipe_path`, `shipped_names` and `copy_recipe` find the recipes that come with the package. `starting_recipe` makes a recipe for a data file
and nothing else: it finds columns, task, lengths and passes in the rows, and fills the shipped start of the task. `smaller_recipe`
makes the recipe of a smaller student of a finished run, and `student_lines` the lines of it that a user copies. Readers of rows and
recipes are imported in functions, so that shipped recipes are listed quickly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pocketbert.core.data.files import is_data_file, is_table_file
from pocketbert.core.data.source import DataSource
from pocketbert.core.disk.destination import resolve_output_file
from pocketbert.core.disk.files import write_atomic
from pocketbert.core.errors import InputError, Problem, suggest_allowed
from pocketbert.core.host.system import expand_home
from pocketbert.core.tasks import TASKS, LabelKind, TaskName
from pocketbert.pipeline.options import DataFiles

if TYPE_CHECKING:
    from pocketbert.core.data.columns import Columns
    from pocketbert.core.data.examples import Example
    from pocketbert.core.recipe.recipe import Recipe
    from pocketbert.core.recipe.student import SmallerStudent

SCHEMA_FILE = "recipe.schema.json"
_SCHEMA_HEADER = "# yaml-language-server: $schema="


# --- shipped recipes ---


def shipped_folder() -> Path:
    """Return the folder of the shipped recipes; each task has a folder in it."""
    return Path(str(resources.files("pocketbert.recipes")))


def _find_shipped() -> dict[str, Path]:
    return {path.stem: path for path in shipped_folder().glob("*/*.yaml")}


def shipped_names() -> list[str]:
    """List the names of the shipped recipes."""
    return sorted(_find_shipped())


def recipe_path(recipe: str | Path) -> Path:
    """Return the file of a recipe that is given by path or by shipped name.

    Raises:
        InputError: If neither exists.
    """
    path = Path(recipe)
    if is_data_file(path.name):
        fix = f"Without a recipe: pocketbert run --data {recipe}"
        raise InputError(Problem(str(recipe), "is a data file, not a recipe.", fix))
    if path.is_file():
        return path
    shipped = _find_shipped().get(str(recipe))
    if shipped is not None:
        return shipped
    what = f"no recipe file here and no shipped recipe of that name; {suggest_allowed(str(recipe), shipped_names())}."
    raise InputError(Problem(str(recipe), what, "List them: pocketbert recipes ls"))


def copy_recipe(name: str, destination: Path, overwrite: bool = False) -> Path:
    """Copy a shipped recipe to a file for editing, with the installed JSON Schema's path in its header line.

    Returns:
        The file; if `destination` is a link, the file that it leads to.

    Raises:
        InputError: If `destination` exists and `overwrite` is not set, or cannot be used.
    """
    source = recipe_path(name)
    text = source.read_text(encoding="utf-8")
    destination = resolve_output_file(destination, overwrite, source)
    destination.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(destination, _set_schema(text))
    return destination


def _set_schema(text: str) -> str:
    """Return a recipe's text with the installed path of the JSON Schema in its header line."""
    lines = text.splitlines(keepends=True)
    if lines and lines[0].startswith(_SCHEMA_HEADER):
        lines[0] = f"{_SCHEMA_HEADER}{shipped_folder() / SCHEMA_FILE}\n"
    return "".join(lines)


def _remove_schema(text: str) -> str:
    """Return a recipe's text without the header line that names the JSON Schema's installed path."""
    first, _, rest = text.partition("\n")
    return rest if first.startswith(_SCHEMA_HEADER) else text


# --- a recipe for a data file ---

_RECIPE_FILE = "recipe.yaml"
"""Name in the run folder of the recipe that a run made for a data file."""
_TASKS = {
    LabelKind.NAME: TaskName.TEXT_CLASSIFICATION,
    LabelKind.NAMES: TaskName.MULTI_LABEL,
    LabelKind.SCORE: TaskName.REGRESSION,
    LabelKind.SPANS: TaskName.TOKEN_CLASSIFICATION,
    LabelKind.ANSWERS: TaskName.QUESTION_ANSWERING,
}
_FEWEST_ROWS, _MOST_ROWS = 4_800, 48_000
"""Rows that a training sees in all its passes: with fewer a head of many classes is not learnt, more take long on a CPU."""
_USUAL_PASSES = 4
_MEASURED_TEXTS = 4_000
"""Texts whose lengths are measured."""
_SHARE_OF_TEXTS = 0.99
"""Share of these texts that the longest input holds without a cut."""
_LENGTH_STEP, _SHORTEST, _LONGEST = 16, 32, 256
_RECIPE_HEADER = "# A start with your own data"
"""Begin of the comment line that introduces a shipped start."""
_EPOCHS = re.compile(r"\bepochs: ([\d.]+)")
_PLAIN_WORD = re.compile(r"[A-Za-z][\w-]*")


@dataclass(frozen=True)
class StartingRecipe:
    """A recipe that was made for a data file, with its text as a file and notes on the rows.

    Attributes:
        recipe: The recipe.
        text: The same as a file with comments, without the overrides of the command line.
        notes: What was found in the rows, a sentence each.
    """

    recipe: Recipe
    text: str
    notes: tuple[str, ...]

    def keep(self, folder: Path, overwrite: bool) -> None:
        """Write the recipe as ``recipe.yaml`` into a run folder, unless the same text is there.

        Raises:
            InputError: If the folder holds a recipe with other contents, which the user may have edited.
        """
        path = folder / _RECIPE_FILE
        before = path.read_text(encoding="utf-8") if path.is_file() else None
        if before is not None and _remove_schema(before) == _remove_schema(self.text):
            return
        if before is not None and not overwrite:
            what = "differs from the recipe for this data: it was edited, or the data changed."
            fix = (
                f"Run the file: pocketbert run {path} -o ANOTHER_FOLDER; or choose another -o/--output, or --overwrite."
            )
            raise InputError(Problem(str(path), what, fix))
        write_atomic(path, self.text)


AnyRecipe: TypeAlias = "Recipe | StartingRecipe"


def recipe_settings(recipe: AnyRecipe) -> Recipe:
    """Return the settings of a recipe: itself, or the recipe inside a `StartingRecipe`."""
    return recipe.recipe if isinstance(recipe, StartingRecipe) else recipe


def starting_recipe(files: DataFiles, folder: Path, overrides: Sequence[str] = ()) -> StartingRecipe:
    """Make a recipe for a data file: guess columns, task, input length and epochs from its rows.

    Args:
        files: The data file, and the columns and the task if the user named them.
        folder: The run folder.
        overrides: ``key.sub=value`` texts, which come last.

    Raises:
        InputError: If the file cannot be read, or its columns or its task are not clear.
        MissingBackendError: If the teacher, or a library that reads the file, is not installed.
    """
    from pocketbert.core.data.columns import guess_columns
    from pocketbert.core.data.examples import read_examples
    from pocketbert.core.recipe.file import parse_recipe

    path = str(expand_home(str(files.data), "--data").absolute())
    source = DataSource.at(path, files.text, files.text_pair, files.label, files.header)
    columns = guess_columns(source, _find_label_kind(files.task))
    task = TaskName(files.task) if files.task else _choose_task(columns)
    rows = read_examples(columns.source, kind=TASKS[task].labels, labelled=TASKS[task].names_labels)
    recipe_file = folder / _RECIPE_FILE
    # as many passes as the start has, unless the rows are few or many
    usual = _USUAL_PASSES * len(rows)
    passes = min(max(usual, _FEWEST_ROWS), _MOST_ROWS) / usual
    start = _set_schema(_find_shipped()[task.value].read_text(encoding="utf-8"))
    text = _fill_start(start, _format_data_lines(files, columns, task), passes)
    first = parse_recipe(text, recipe_file, overrides)
    longest = _measure_longest_input(first, rows)
    if task is not TaskName.QUESTION_ANSWERING:
        lengths = sorted({max(_LENGTH_STEP, longest // 4 // 8 * 8), longest // 2 // 8 * 8, longest})
        export = f"{{formats: [onnx, tflite, coreml], lengths: {lengths}}}"
        text = _fill_start(text, {"  max_length": str(longest), "export": export})
    recipe = parse_recipe(text, recipe_file, overrides)
    split = f"{len(rows):,} rows to train on"
    if recipe.data.eval is not None and (share := recipe.data.eval.fraction) is not None:
        split = f"{len(rows):,} rows, of which {share:.0%} decide the score and are not trained on (chosen by the hash of the text)"
    notes = (columns.note, f"task: {task}, from the labels" if files.task is None else f"task: {task}", split)
    return StartingRecipe(recipe, text, notes)


def _find_label_kind(task: str | None) -> LabelKind | None:
    """Return the kind of labels of the task named by --task; None if none is named.

    Raises:
        InputError: If it is no task, or one that a data file cannot start.
    """
    if task is None:
        return None
    allowed = [t.value for t in TASKS if t is not TaskName.FILL_MASK]
    if task not in allowed:
        fix = "For fill-mask write a recipe: pocketbert recipes cp fill-mask my.yaml" if task == "fill-mask" else ""
        raise InputError(Problem("--task", f"'{task}' is not a task of --data; {suggest_allowed(task, allowed)}.", fix))
    return TASKS[TaskName(task)].labels


def _choose_task(columns: Columns) -> TaskName:
    """Return the task that fits the kind of labels found in the data file.

    Raises:
        InputError: If they fit several tasks or none.
    """
    if columns.kind is None or columns.kind not in _TASKS:
        what = f"column '{columns.source.label}' could be classes or scores, or texts: {columns.note}."
        fix = "Say what it is: --task text-classification, or --task regression; or name another column with --label."
        raise InputError(Problem(columns.source.title, what, fix))
    return _TASKS[columns.kind]


def _format_data_lines(files: DataFiles, columns: Columns, task: TaskName) -> Mapping[str, str]:
    """Return the lines of a starting recipe that depend on the data: their value by the text before the colon."""
    source = columns.source
    cells = {"text": source.text, "text_pair": source.text_pair}
    if TASKS[task].labels not in (LabelKind.NONE, LabelKind.SCORE_OR_NONE) or "label" in source.model_fields_set:
        cells["label"] = source.label
    named = "".join(f", {key}: {_quote(value)}" for key, value in cells.items() if value is not None)
    header = f", header: {str(source.header).lower()}" if source.header is not None else ""
    made = f"made by `pocketbert run --data {source.title}`. To change it, edit a copy and run the copy."
    lines = {
        _RECIPE_HEADER: made,
        "name": _make_run_name(str(files.data)),
        "  train": f"{{path: {_quote(source.title)}{named}{header}}}",
    }
    if files.evaluation is not None:
        path = str(expand_home(str(files.evaluation), "--eval").absolute())
        header = f", header: {str(files.header).lower()}" if files.header is not None and is_table_file(path) else ""
        lines["  eval"] = f"{{path: {_quote(path)}{named}{header}}}"
    return lines


def _measure_longest_input(recipe: Recipe, rows: Sequence[Example]) -> int:
    """Return the number of tokens that 99 % of the rows do not exceed, rounded up to a multiple of 16."""
    import numpy as np

    from pocketbert.core.predict.tokenization import TextTokenizer
    from pocketbert.pipeline.reference import open_teacher, task_text

    model = open_teacher(recipe)
    most = min(model.positions, model.tokenizer_length, _LONGEST)
    tokenizer, task = TextTokenizer(model.tokenizer_folder, most), TASKS[recipe.task]
    some = sorted(rows, key=lambda row: row.digest)[:_MEASURED_TEXTS]
    lengths = np.sort([len(e) for e in tokenizer.encode([task_text(task, row.input, tokenizer) for row in some])])
    long = int(lengths[int(_SHARE_OF_TEXTS * (len(lengths) - 1))])
    return min(most, max(_SHORTEST, -(-long // _LENGTH_STEP) * _LENGTH_STEP))


def _fill_start(text: str, values: Mapping[str, str], passes: float = 1.0) -> str:
    """Return a recipe's text with the lines of the given keys replaced, and each `epochs` multiplied by `passes`."""
    lines = []
    for line in text.splitlines():
        key = line.partition(":")[0]
        if key in values:
            line = f"{key}: {values[key]}"
        elif passes != 1 and not line.lstrip().startswith("#"):
            line = _EPOCHS.sub(lambda epochs: f"epochs: {float(epochs[1]) * passes:.3g}", line)
        lines.append(f"{line}\n")
    return "".join(lines)


def default_folder(data: str) -> Path:
    """Return the default run folder for a data file, ``runs/NAME``."""
    return Path("runs") / _make_run_name(data)


def _make_run_name(data: str) -> str:
    """Return a run name for a data file: its stem, with characters other than letters, digits, - and _ replaced."""
    stem = Path(data).name.split(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:60] or "run"


def _quote(value: str) -> str:
    """Return a text as a YAML value inside braces, quoted unless it is a plain word."""
    import yaml

    plain = _PLAIN_WORD.fullmatch(value) is not None and yaml.safe_load(value) == value
    return value if plain else json.dumps(value, ensure_ascii=False)


# --- the recipe of a smaller student ---

_LR, _BATCH = 1e-4, 32
"""Learning rate and batch of a pruned student, as in the tables of docs/results.md."""


def smaller_recipe(recipe: Recipe, wanted: SmallerStudent, steps: int, run: Path, licence: str | None = None) -> Recipe:
    """Return a recipe that prunes and retrains the student of a finished run, and exports it without quantizing.

    Args:
        recipe: The recipe of the run.
        wanted: What is pruned of the run's student.
        steps: Training steps of the smaller student.
        run: The run folder, with ``teacher`` and ``student``.
        licence: Licence of the teacher's weights.
    """
    from pocketbert.core.recipe.recipe import Recipe

    student: dict[str, Any] = {"model": str(run / "student")}
    if wanted.intermediate is not None:
        student |= {"init": "pruned", "intermediate": wanted.intermediate}
    if wanted.vocabulary is not None:
        student["vocabulary"] = wanted.vocabulary.model_dump(mode="json")
    signals = {"logits": 1.0, "hidden": 0.0, "attention": 0.0}
    stage = {"method": "task", "steps": steps, "batch": _BATCH, "lr": _LR, "dropout": 0.0, "signals": signals}
    teacher = {"model": str(run / "teacher"), "family": recipe.teacher.family, "licence": licence}
    content = recipe.model_dump(mode="json", by_alias=True)
    content |= {"teacher": teacher, "student": student, "distill": [stage]}
    content["data"] |= {"corpus": None, "augment": None}  # read by stages that this recipe does not have
    content["quantize"] = {"scheme": "fp32", "calibration": recipe.quantize.calibration}
    return Recipe.model_validate(content)


def student_lines(recipe: Recipe) -> list[str]:
    """Return a smaller student's recipe sections `teacher`, `student` and `distill`, as YAML lines to copy."""
    assert recipe.student is not None
    student = recipe.student.model_dump(mode="json", exclude_defaults=True)
    (stage,) = (s.model_dump(mode="json", exclude_unset=True) for s in recipe.distill)
    sections = {"teacher": {"model": recipe.teacher.model}, "student": student, "distill": [stage]}
    return [f"{key}: {_format_flow(value)}" for key, value in sections.items()]


def _format_flow(value: object) -> str:
    """Return a nested value as YAML in flow style, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_format_flow(v)}" for key, v in value.items()) + "}"
    return f"[{', '.join(map(_format_flow, value))}]" if isinstance(value, list) else f"{value}"
