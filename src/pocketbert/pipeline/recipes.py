"""Recipes that PocketBERT writes or ships.

`recipe_path`, `shipped_names` and `copy_recipe` find the recipes that come with the package. `starting_recipe` makes a recipe for a data file
and nothing else: it finds columns, task, lengths and passes in the rows, and fills the shipped start of the task; `task_recipe` returns
that start, and `replace_student` the text of either with another student. `smaller_recipe`
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

from pocketbert.core.data.forms import is_data_file
from pocketbert.core.data.source import DataSource, TeacherColumn
from pocketbert.core.disk.destination import resolve_output_file
from pocketbert.core.disk.files import write_atomic
from pocketbert.core.errors import InputError, Problem, suggest_allowed
from pocketbert.core.host.processes import current_process
from pocketbert.core.host.system import expand_home
from pocketbert.core.tasks import TASKS, LabelKind, TaskName
from pocketbert.core.types import Format
from pocketbert.pipeline.options import DataFiles

if TYPE_CHECKING:
    from pocketbert.core.data.columns import Columns
    from pocketbert.core.predict.examples import Example
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
    """Return the path of a recipe's file.

    Args:
        recipe: Path of a recipe file, or the name of a shipped recipe.

    Raises:
        InputError: If there is neither a file nor a shipped recipe of that name, or it is a data file.
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
    """Copy a recipe to a file to edit. A header line with a path of the JSON Schema gets the installed one.

    Args:
        name: Name of a shipped recipe, or path of a recipe file.
        destination: The file to write; missing folders are made.
        overwrite: Whether an existing file is replaced.

    Returns:
        The file; if `destination` is a link, the file that it leads to.

    Raises:
        InputError: If there is no such recipe, if `destination` exists and `overwrite` is not set, or if something is
            there that is never replaced, such as a folder or the recipe itself.
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
    """Return a recipe's text without its header line, which holds the path of the installed JSON Schema."""
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
    LabelKind.SCORE_OR_NONE: TaskName.FEATURE_EXTRACTION,
    LabelKind.CHOICE: TaskName.MULTIPLE_CHOICE,
}
_FEWEST_ROWS, _MOST_ROWS = 4_800, 48_000
"""Rows that a training sees in all its passes: with fewer a head of many classes is not learnt, more take long on a CPU."""
_USUAL_PASSES = 4
_FEWEST_COMPARED = 2_000
"""Labelled rows from which on students are compared by default, on a tenth of them: fewer are certain of little."""
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
        text: Content of a recipe file with comments. The overrides of the command line are not in it.
        notes: What was found in the rows, a sentence each.
    """

    recipe: Recipe
    text: str
    notes: tuple[str, ...]

    def keep(self, folder: Path, overwrite: bool) -> None:
        """Write the recipe to ``recipe.yaml`` in a run folder, unless the same text is there already.

        Another path of the JSON Schema in the header line counts as the same text.

        Raises:
            InputError: If the folder holds another recipe, which the user may have edited, and `overwrite` is not set.
        """
        path = folder / _RECIPE_FILE
        before = path.read_text(encoding="utf-8") if path.is_file() else None
        if before is not None and _remove_schema(before) == _remove_schema(self.text):
            return
        if before is not None and not overwrite:
            what = (
                "differs from the recipe for this data: it was edited, or the data, the options or the version changed."
            )
            fix = (
                f"Run the file: pocketbert run {path} -o ANOTHER_FOLDER; or choose another -o/--output, or --overwrite."
            )
            raise InputError(Problem(str(path), what, fix))
        write_atomic(path, self.text)


AnyRecipe: TypeAlias = "Recipe | StartingRecipe"


def recipe_settings(recipe: AnyRecipe) -> Recipe:
    """Return the settings of a recipe: itself, or the recipe inside a `StartingRecipe`."""
    return recipe.recipe if isinstance(recipe, StartingRecipe) else recipe


def starting_recipe(
    files: DataFiles, folder: Path, overrides: Sequence[str] = (), compare_students: bool = True
) -> StartingRecipe:
    """Make a recipe for a data file: guess columns, task, input length and epochs from its rows.

    The input length of question answering is that of the shipped recipe. From 2,000 rows on, the run compares students and
    takes the smallest that keeps enough of the teacher, if `compare_students` and the other settings allow it. Otherwise
    the student has 3 layers, as in the shipped recipe.

    Args:
        files: The data file, with the columns and the task that the user named.
        folder: The run folder, in which the recipe will be kept; nothing is written yet.
        overrides: ``key.sub=value`` texts, which override everything else.
        compare_students: Whether the recipe may let the run compare students. A column of a teacher's answers excludes
            it, and so does what `overrides` say of the student.

    Raises:
        InputError: If the file cannot be read, or its columns or its task are not clear.
        MissingBackendError: If a library that reads the file is not installed or, for tasks other than question answering, the teacher.
    """
    from pocketbert.core.data.columns import guess_columns
    from pocketbert.core.data.reading import note_unlabelled, read_labelled_examples
    from pocketbert.core.recipe.file import parse_recipe

    source = source_of(files)
    columns = guess_columns(source, find_label_kind(files.task))
    task = TaskName(files.task) if files.task else choose_task(columns)
    read = read_labelled_examples(columns.source, kind=TASKS[task].labels, labelled=TASKS[task].names_labels)
    rows, unlabelled = read
    recipe_file = folder / _RECIPE_FILE
    # as many passes as the start has, unless the rows are few or many
    usual = _USUAL_PASSES * len(rows)
    passes = min(max(usual, _FEWEST_ROWS), _MOST_ROWS) / usual
    start = _set_schema(_find_shipped()[task.value].read_text(encoding="utf-8"))
    if columns.source.teacher is not None:
        start = _start_without_teacher(start, columns.source.teacher.column)
    lines = _format_data_lines(files, columns, task)
    text = _fill_start(start, {**lines, **_format_signals(rows, task, files)}, passes)
    may_compare = compare_students and columns.source.teacher is None
    if may_compare and len(rows) >= _FEWEST_COMPARED:
        text = _compare_students(text, recipe_file, overrides)
    if task is not TaskName.QUESTION_ANSWERING:
        longest = _measure_longest_input(parse_recipe(text, recipe_file, overrides), rows)
        lengths = sorted({max(_LENGTH_STEP, longest // 4 // 8 * 8), longest // 2 // 8 * 8, longest})
        export = f"{{formats: [onnx, tflite, coreml], lengths: {lengths}}}"
        text = _fill_start(text, {"  max_length": str(longest), "export": export})
    recipe = parse_recipe(text, recipe_file, overrides)
    split = f"{len(rows):,} rows to train on"
    if recipe.data.eval is not None and (share := recipe.data.eval.share_of(len(rows))):
        taken = f"{share:.0%}" if share >= 0.01 else f"about {share * len(rows):,.0f}"
        split = f"{len(rows):,} rows, of which {taken} decide the score and are not trained on (chosen by the hash of the text)"
    notes = [columns.note, f"task: {task}, from the labels" if files.task is None else f"task: {task}", split]
    if may_compare and not any(override.startswith("student") for override in overrides):
        several = "the smallest that keeps 97 % of the teacher; student.layers=3 with another -o trains one only"
        alone = f"3 layers; --student auto compares students, as from {_FEWEST_COMPARED:,} rows on where other settings allow it"
        notes.append(f"student: {several if recipe.student is not None and recipe.student.auto is not None else alone}")
    if unlabelled:
        what = "the teacher labels them for the student" if recipe.learns_without_labels else "they are left out"
        notes.append(f"{note_unlabelled(source.title, len(unlabelled), len(rows))}: {what}")
    return StartingRecipe(recipe, text, tuple(notes))


def task_recipe(task: str, folder: Path, overrides: Sequence[str] = ()) -> StartingRecipe:
    """Return the shipped recipe with which users start on a task. Its section `data` names files that they have to add.

    Args:
        task: Hub task name.
        folder: Folder of the recipe.
        overrides: ``key.sub=value`` texts, which override everything else.

    Raises:
        InputError: If there is no task of that name, or it is fill-mask.
    """
    from pocketbert.core.recipe.file import parse_recipe

    find_label_kind(task)
    text = _set_schema(_find_shipped()[task].read_text(encoding="utf-8"))
    return StartingRecipe(parse_recipe(text, folder / _RECIPE_FILE, overrides), text, ())


def replace_student(text: str, student: Mapping[str, object], scheme: str, stage: Mapping[str, object] | None) -> str:
    """Return a starting recipe's text with another student, scheme and, if one is given, `distill` stage, for `plan`.

    In the header, ``pocketbert run --data`` is replaced by ``pocketbert plan --data``.
    """
    text = _fill_start(text, {"student": _format_flow(student), "quantize": f"{{scheme: {scheme}}}"})
    if stage is not None:
        text = re.sub(r"(?m)^distill:\n(?:[ \t].*\n)+", lambda _: f"distill:\n  - {_format_flow(stage)}\n", text)
    return text.replace(
        f"{_RECIPE_HEADER}: made by `pocketbert run --data", f"{_RECIPE_HEADER}: made by `pocketbert plan --data"
    )


def source_of(files: DataFiles) -> DataSource:
    """Return the source of the training rows of data files, with the columns that the user named."""
    path = str(expand_home(str(files.data), "--data").absolute())
    source = DataSource.at(path, files.text, files.text_pair, files.label, files.header, files.encoding)
    if files.teacher is None:
        return source
    return source.model_copy(update={"teacher": TeacherColumn(column=files.teacher)})


def find_label_kind(task: str | None) -> LabelKind | None:
    """Return the kind of labels of the task that the user named with --task; None if it is not given.

    Args:
        task: Name of the task as the user wrote it; None if --task is not given.

    Raises:
        InputError: If there is no task of that name, or `run --data` cannot make a recipe for it.
    """
    if task is None:
        return None
    allowed = [t.value for t in TASKS if t is not TaskName.FILL_MASK]
    if task not in allowed:
        fix = "For fill-mask write a recipe: pocketbert recipes cp fill-mask my.yaml" if task == "fill-mask" else ""
        raise InputError(Problem("--task", f"'{task}' is not a task of --data; {suggest_allowed(task, allowed)}.", fix))
    return TASKS[TaskName(task)].labels


def choose_task(columns: Columns) -> TaskName:
    """Return the task that fits the kind of labels found in the data file.

    Raises:
        InputError: If the kind of labels is not clear, so that several tasks fit, or if no task has it.
    """
    if columns.kind is None or columns.kind not in _TASKS:
        what = f"column '{columns.source.label}' could be classes or scores, or texts: {columns.note}."
        fix = "Say what it is: --task text-classification, or --task regression; or name another column with --label."
        if " names)" in columns.note and columns.source.text_pair is None:
            fix += f" Pairs of similar texts need none: --text-pair '{columns.source.label}' --task feature-extraction."
        raise InputError(Problem(columns.source.title, what, fix))
    return _TASKS[columns.kind]


def _format_data_lines(files: DataFiles, columns: Columns, task: TaskName) -> Mapping[str, str]:
    """Return the lines of a starting recipe that depend on the data: the text after the colon by the text before it.

    Args:
        files: The data files and what the user said of them.
        columns: The columns found in the training file. The evaluation file is read with the same ones.
        task: The task. Some tasks have no label column.
    """
    from pocketbert.core.data.files import guess_table_form

    source = columns.source
    cells: dict[str, str | None] = {"text": source.text, "text_pair": source.text_pair}
    has_labels = TASKS[task].labels not in (LabelKind.NONE, LabelKind.SCORE_OR_NONE) and source.teacher is None
    if has_labels or "label" in source.model_fields_set:
        cells["label"] = source.label
    if source.teacher is not None:
        cells["teacher"] = source.teacher.column
    if source.separator != ";":
        cells["separator"] = source.separator
    named = "".join(f", {key}: {_quote(value)}" for key, value in cells.items() if value is not None)
    if isinstance(source.choices, str):
        named += f", choices: {_quote(source.choices)}"
    elif source.choices:
        named += f", choices: [{', '.join(map(_quote, source.choices))}]"
    header = f", header: {str(source.header).lower()}" if source.header is not None else ""
    encoding = f", encoding: {_quote(source.encoding)}" if source.encoding is not None else ""
    made = f"made by `pocketbert run --data {source.title}`. To change it, edit a copy and run the copy."
    lines = {
        _RECIPE_HEADER: made,
        "name": _make_run_name(str(files.data)),
        "  train": f"{{path: {_quote(source.title)}{named}{header}{encoding}}}",
    }
    if files.evaluation is not None:
        path = str(expand_home(str(files.evaluation), "--eval").absolute())
        is_table = files.header is not None and guess_table_form(DataSource(path=path)) is not None
        header = f", header: {str(files.header).lower()}" if is_table else ""
        lines["  eval"] = f"{{path: {_quote(path)}{named}{header}{encoding}}}"
    if files.unlabelled:
        texts = [_find_text_columns(file, source) for file in files.unlabelled]
        lines["  train"] += f"\n  transfer: {{sources: [{', '.join(map(_format_texts, texts))}]}}"
    return lines


def _format_signals(rows: Sequence[Example], task: TaskName, files: DataFiles) -> Mapping[str, str]:
    """Return the line with the weights of the loss terms for rows of queries with scored passages; else no line.

    With this line the student also learns how far the scores of a query's passages are apart. There is none for tasks
    other than feature extraction, for scores of 0 and 1 only, with files of texts without labels, or with a column of a
    teacher's answers.
    """
    from pocketbert.core.heads.feature_extraction import find_rankings

    if task is not TaskName.FEATURE_EXTRACTION or files.unlabelled or files.teacher is not None:
        return {}
    if {row.label for row in rows} <= {None, 0.0, 1.0} or not find_rankings(rows):
        return {}
    return {"    signals": "{logits: 10, hidden: 1, attention: 1, margins: 10}"}


def _find_text_columns(file: str | Path, labelled: DataSource) -> DataSource:
    """Find the text columns of a file without labels, and return the file as a data source.

    If its first row has the labelled file's text column, that column is taken, and the column of the second text if the
    row has it too. Otherwise the columns are guessed, a second one only if the labelled file has one.

    Args:
        file: The file of texts without labels.
        labelled: The labelled file.
    """
    from pocketbert.core.data.column_names import BadRows
    from pocketbert.core.data.columns import guess_columns
    from pocketbert.core.data.files import read_rows

    source = DataSource.at(str(expand_home(str(file), "--unlabelled").absolute()))
    _, first = next(read_rows(source, BadRows(source.title)), (0, dict[str, Any]()))
    if labelled.text in first:
        pair = labelled.text_pair if labelled.text_pair in first else None
        return source.model_copy(update={"text": labelled.text, "text_pair": pair})
    fix = f"Call the column of the texts '{labelled.text}', as in the labelled file."
    guessed = guess_columns(source, LabelKind.SCORE_OR_NONE, fix).source
    return guessed if labelled.text_pair is not None else guessed.model_copy(update={"text_pair": None})


def _format_texts(source: DataSource) -> str:
    """Return a source of texts without labels as a YAML mapping on one line."""
    cells = {"path": source.title, "text": source.text, "text_pair": source.text_pair}
    named = ", ".join(f"{key}: {_quote(value)}" for key, value in cells.items() if value is not None)
    return f"{{{named}{', header: false' if source.header is False else ''}}}"


def _measure_longest_input(recipe: Recipe, rows: Sequence[Example]) -> int:
    """Return the input length in tokens that 99 % of the rows do not exceed, rounded up to a multiple of 16.

    The length is at least 32 and at most 256, or what the recipe's model takes if that is less. Up to 4,000 rows are
    measured.
    """
    import numpy as np

    from pocketbert.core.predict.tokenization import TextTokenizer
    from pocketbert.pipeline.reference import open_teacher, task_text

    model = open_teacher(recipe)
    most = min(model.positions, model.tokenizer_length, _LONGEST)
    tokenizer, task = TextTokenizer(model.tokenizer_folder, most), recipe.task_row
    some = sorted(rows, key=lambda row: row.digest)[:_MEASURED_TEXTS]
    lengths = np.sort([len(e) for e in tokenizer.encode([task_text(task, row.input, tokenizer) for row in some])])
    long = int(lengths[int(_SHARE_OF_TEXTS * (len(lengths) - 1))])
    return min(most, max(_SHORTEST, -(-long // _LENGTH_STEP) * _LENGTH_STEP))


def _fill_start(text: str, values: Mapping[str, str], passes: float = 1.0) -> str:
    """Return a recipe's text with some lines replaced and the epochs of all others multiplied.

    Args:
        text: Text of a recipe file.
        values: New texts after the first colon of a line, by the text before it, indentation included.
        passes: Factor for each `epochs` in the other lines, except comments.
    """
    lines = []
    for line in text.splitlines():
        key = line.partition(":")[0]
        if key in values:
            line = f"{key}: {values[key]}"
        elif passes != 1 and not line.lstrip().startswith("#"):
            line = _EPOCHS.sub(lambda epochs: f"epochs: {float(epochs[1]) * passes:.3g}", line)
        lines.append(f"{line}\n")
    return "".join(lines)


def _start_without_teacher(text: str, column: str) -> str:
    """Change a starting recipe's text so that the student learns the answers in a column and no teacher is run.

    No model is fine-tuned, and only outputs are learnt. The student's epochs are doubled, since no fine-tuned teacher
    has learnt before it.

    Args:
        text: Text of the recipe.
        column: Name of the column.
    """
    comment = f"# The answers in column {column} teach, and no teacher is run. The student starts from this model: the\n# folder of another encoder serves too.\n"
    text = re.sub(r"(?m)^teacher:\n(?:[ \t].*\n)+", lambda _: f"{comment}teacher: {{model: minilm-l6}}\n", text)
    text = re.sub(r"(?m)^# The student is the teacher with", "# The student is this model with", text)
    text = re.sub(r"(?m)^# The student learns .*(?:\n#.*)*", "# The student learns the answers in the column.", text)
    text = re.sub(r"(?m)^(    signals:).*", r"\1 {logits: 1, hidden: 0, attention: 0}", text)
    # what the fine-tuned teacher would have learnt before, the student learns itself
    return re.sub(r"(?m)^    epochs: ([\d.]+)", lambda match: f"    epochs: {2 * float(match[1]):g}", text)


def _compare_students(text: str, path: Path, overrides: Sequence[str]) -> str:
    """Return a starting recipe's text with which the run takes the smallest student that keeps enough of the teacher.

    The text stays as it is if the recipe would be wrong with the change, as with overrides that name a student. It also
    stays if a launcher started several processes, or if the recipe writes no ONNX file, in which students are measured.
    """
    from pocketbert.core.recipe.file import parse_recipe

    comment = (
        "# The smallest student that keeps 97 % of the teacher's score on rows held out for this, else the best.\n"
    )
    changed = re.sub(r"(?m)^# The student is the teacher with .*\n", comment, text)
    to_smallest = r"\1 the smallest int8 student that keeps enough"
    changed = re.sub(r"(?m)^(description:.*) a 3-layer int8 student", to_smallest, changed)
    changed = _fill_start(changed, {"student": "{auto: {if_none_keeps: best}}"})
    try:
        recipe = parse_recipe(changed, path, overrides)
    except InputError:  # the text as it was tells what is wrong, if that is not the choice of a student
        return text
    return changed if Format.ONNX in recipe.export.formats and current_process().world == 1 else text


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
"""Learning rate and batch of a pruned student, as in the tables of docs/lab/results.md."""


def smaller_recipe(recipe: Recipe, wanted: SmallerStudent, steps: int, run: Path, licence: str | None = None) -> Recipe:
    """Return a recipe that prunes and retrains the student of a finished run, and exports it without quantizing.

    Args:
        recipe: The recipe of the run.
        wanted: How many feed-forward neurons, which word pieces, or both, stay of the run's student.
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
    content["training"]["seeds"] = 1
    content["data"] |= {"corpus": None, "augment": None}  # read by stages that this recipe does not have
    if wanted.vocabulary is not None and wanted.vocabulary.reads_otherwise:
        content["data"]["transfer"] = None  # such a student learns on labelled rows only
    if content["data"]["transfer"] is None:
        content["data"]["mix"] = None
    content["quantize"] = {"scheme": "fp32", "calibration": recipe.quantize.calibration}
    return Recipe.model_validate(content)


def student_lines(recipe: Recipe) -> list[str]:
    """Return the sections `teacher`, `student` and `distill` of a smaller student's recipe, as YAML lines to copy."""
    assert recipe.student is not None
    student = recipe.student.model_dump(mode="json", exclude_defaults=True)
    (stage,) = (s.model_dump(mode="json", exclude_unset=True) for s in recipe.distill)
    sections = {"teacher": {"model": recipe.teacher.model}, "student": student, "distill": [stage]}
    return [f"{key}: {_format_flow(value)}" for key, value in sections.items()]


def _format_flow(value: object) -> str:
    """Return a mapping or a list as YAML in flow style, on one line."""
    import yaml

    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=float("inf"))
    return str(text).rstrip("\n")
