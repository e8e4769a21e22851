"""What a data file holds and what looks wrong in it, without a recipe: `pocketbert data check FILE`.

`check_data_file` finds the form, the columns and the task as a run does, reads the rows, and returns a `FileReport`;
`is_data_argument` tells a data file from a recipe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel

from pocketbert.core.data.column_names import BadRows
from pocketbert.core.data.columns import Columns, guess_columns
from pocketbert.core.data.files import guess_table_form, read_rows
from pocketbert.core.data.forms import RASA, find_form, is_data_file
from pocketbert.core.data.profile import Column, profile_columns
from pocketbert.core.data.reading import read_labelled_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.data.tables import TableForm
from pocketbert.core.data.teacher_column import ANSWER_WORDS
from pocketbert.core.errors import InputError, Problem, shorten_list, shorten_repr
from pocketbert.core.predict.examples import Example
from pocketbert.core.predict.spans import Span
from pocketbert.core.tasks import TASKS, LabelKind, TaskName
from pocketbert.pipeline.learn.answers import read_answer_kind
from pocketbert.pipeline.options import DataFiles
from pocketbert.pipeline.recipes import choose_task, find_label_kind, shipped_names, source_of

_EXAMPLES = 3
_SHOWN = 8
_WIDTH = 80
_MAJORITY = 0.8
_LEAST_MARGIN = 5.5
"""Margin of the guess below which a header is questioned: headers of unusual names are mostly above it, rows of data below."""
_FEW_ROWS = 50
_ALIKE = 0.75
_MAY_BE_MISSING = ("None", "NA", "N/A", "n/a", "#NA", "NULL", "null")
"""Labels that are names of classes in some files, and written for an empty cell in others."""
_RECIPE_ENDINGS = (".yaml", ".yml")


class _ColumnReport(BaseModel):
    """One column of a data file.

    Attributes:
        name: Name of the column.
        filled: Number of rows in which it is not empty.
        values: Number of distinct values.
        example: The first value, cut to 80 characters.
    """

    name: str
    filled: int
    values: int
    example: str


class FileReport(BaseModel):
    """What a data file holds, and what looks wrong in it.

    Attributes:
        file: Name of the file.
        form: Form in which the file is read, such as table or CoNLL.
        columns: The columns of the first rows.
        answers: What the numbers in the column of a teacher's answers are taken for; empty if there is none.
        chosen: A sentence on the columns that are taken as text and label; empty if they or the task are not clear.
        task: Hub name of the task; empty if it or the columns are not clear.
        rows: Number of rows with a label; 0 if there are problems.
        unlabelled: Number of rows without a label, from which no gold label is learnt; a run's teacher may label them.
        labels: Number of rows (for spans, of spans) by label.
        examples: The first rows as they are read, a line each.
        warnings: What looks wrong, a sentence each.
        problems: Mistakes because of which a run would refuse the file. Checks after the first mistake were not made.
    """

    file: str
    form: str
    columns: list[_ColumnReport]
    chosen: str = ""
    answers: str = ""
    task: str = ""
    rows: int = 0
    unlabelled: int = 0
    labels: dict[str, int] = {}
    examples: list[str] = []
    warnings: list[str] = []
    problems: list[Problem] = []

    def lines(self) -> list[str]:
        """Return the report as lines for a terminal, without its `columns` and `problems`."""
        lines = [f"{self.file}: {self.chosen or self.form}"]
        if self.task:
            lines.append(f"task: {self.task}")
        if self.answers:
            lines.append(f"the teacher's answers are taken for {self.answers}")
        if self.rows:
            more = f", {self.unlabelled:,} more without a label" if self.unlabelled else ""
            lines.append(f"rows: {self.rows:,}{more}")
        if self.labels:
            counts = [f"{name} {count:,}" for name, count in Counter(self.labels).most_common(_SHOWN)]
            more = f" and {len(self.labels) - _SHOWN:,} more" if len(self.labels) > _SHOWN else ""
            lines.append(f"labels: {', '.join(counts)}{more}")
        lines += [f"read as: {example}" for example in self.examples]
        lines += [f"warning: {warning}" for warning in self.warnings]
        if self.task and not self.warnings and not self.problems:
            lines.append("nothing looks wrong")
        return lines


def is_data_argument(argument: str) -> bool:
    """Return whether an argument of `data check` names data, and not a recipe.

    Data are any file or folder that exists, and any name with the ending of a data file. A YAML file counts only if it
    has the form of Rasa's training data, and the name of a shipped recipe only if it is a file here.
    """
    path = Path(argument)
    if path.name.lower().endswith(_RECIPE_ENDINGS):
        return path.is_file() and find_form(DataSource(path=argument)) is RASA
    if argument in shipped_names():
        return path.is_file()
    return path.exists() or is_data_file(path.name)


def check_data_file(files: DataFiles) -> FileReport:
    """Read a data file as `pocketbert run --data` does, and report what it holds and what looks wrong.

    Args:
        files: The data file, with the columns and the task that the user named.

    Returns:
        The report; its `problems` are those that would end a run. If there are any, rows are not counted.

    Raises:
        InputError: If the file cannot be read at all, or there is no task of the given name.
        MissingBackendError: If the library for this kind of file is not installed.
    """
    source = source_of(files)
    kind = find_label_kind(files.task)
    bad = BadRows(source.title)
    profile, _ = profile_columns(read_rows(source, bad))
    table = guess_table_form(source)
    report = FileReport(
        file=Path(source.title).name,
        form=find_form(source).title,
        columns=[_report_column(column) for column in profile.values()],
        warnings=_check_header(profile, table) if table is not None else [],
    )
    try:
        columns = guess_columns(source, kind, fix="")
        task = TaskName(files.task) if files.task else choose_task(columns)
        report = report.model_copy(update={"chosen": columns.note, "task": task.value})
        examples, unlabelled = read_labelled_examples(
            columns.source, kind=TASKS[task].labels, labelled=TASKS[task].names_labels
        )
    except InputError as error:
        return report.model_copy(update={"problems": error.problems})
    labels = Counter(name for example in examples for name in _label_names(example))
    warnings = [
        *report.warnings,
        *_check_count(len(examples), task),
        *_check_labels(labels, columns, len(unlabelled), len(examples)),
        *_check_texts(examples),
        *_check_votes(examples, task),
    ]
    if (section := columns.source.teacher) is not None:
        labels_of = TASKS[task].labels
        try:
            found = read_answer_kind(examples, section, labels_of, columns.source.title)
        except InputError as error:
            return report.model_copy(update={"problems": error.problems})
        words = "vectors" if labels_of is LabelKind.SCORE_OR_NONE else ANSWER_WORDS[found]
        report = report.model_copy(update={"answers": words})
    return report.model_copy(
        update={
            "rows": len(examples),
            "unlabelled": len(unlabelled),
            "labels": dict(labels),
            "examples": [_show_example(example) for example in examples[:_EXAMPLES]],
            "warnings": warnings,
        }
    )


def _report_column(column: Column) -> _ColumnReport:
    """Return the name, number of filled rows, number of distinct values and first value of a column."""
    values = len(column.values | column.parts | column.answer_names)
    return _ColumnReport(name=column.name, filled=column.cells, values=values, example=column.example[:_WIDTH])


def _check_header(columns: dict[str, Column], table: TableForm) -> list[str]:
    """Return a warning in a list if the first row of a table may be data or the names of its columns; else no warning."""
    if table.header and table.margin < _LEAST_MARGIN:
        names = shorten_list(list(columns), _SHOWN)
        return [f"the first row ({names}) is taken as the names of the columns; if it is data, give --no-header"]
    if not table.header and not table.sure:
        row = shorten_list([column.example for column in columns.values()], _SHOWN)
        return [f"the first row ({row}) is taken as data; if it names the columns, give --header"]
    return []


def _check_count(rows: int, task: TaskName) -> list[str]:
    """Return a warning in a list if a file has fewer than 50 rows with a label; else no warning.

    Files without such rows, and rows for sentence vectors, get none.
    """
    if not 0 < rows < _FEW_ROWS or task is TaskName.FEATURE_EXTRACTION:
        return []
    return [f"{rows:,} rows are few to train on, and a score measured on a part of them says little"]


def _label_names(example: Example) -> Iterator[str]:
    """Yield the labels of a row as text: names, numbers of classes, or the number of the right choice.

    A row with a score or with answers to a question yields nothing.
    """
    label = example.label
    for value in label if isinstance(label, tuple) else (label,):
        if isinstance(value, Span):
            yield value.label
        elif isinstance(value, str | int):
            yield str(value)


def _check_labels(labels: Counter[str], columns: Columns, unlabelled: int, rows: int) -> list[str]:
    """Return warnings on the labels of a data file, a sentence each; an empty list if nothing looks wrong.

    The warnings are on rows without a label, labels that occur once, labels that differ only in case or blanks, and
    labels such as ``None`` or ``NA`` that may stand for an empty cell. For classification with one label there is
    another if one label is on more than 80 % of the rows.

    Args:
        labels: Number of rows (for spans, of spans) by label.
        columns: Columns of the file, with the kind of its labels.
        unlabelled: Number of rows without a label.
        rows: Number of rows with a label.
    """
    warnings = []
    if unlabelled:
        fate = "the teacher of a run may label them" if columns.source.teacher is None else "they are left out"
        warnings.append(f"{unlabelled:,} of {unlabelled + rows:,} rows have an empty label: {fate}")
    unit = "span" if columns.kind is LabelKind.SPANS else "row"
    single = [name for name, count in labels.items() if count == 1]
    if single:
        what = "label has" if len(single) == 1 else "labels have"
        warnings.append(
            f"{len(single):,} {what} one {unit} only: {shorten_list(single, _SHOWN)}{_spelt_alike(single, labels)}"
        )
    alike: dict[str, list[str]] = {}
    for name in labels:
        alike.setdefault(" ".join(name.casefold().split()), []).append(name)
    twins = [names for names in alike.values() if len(names) > 1]
    warnings += [
        f"labels that differ only in case or blanks: {shorten_list(names, _SHOWN)}" for names in twins[:_SHOWN]
    ]
    warnings += [
        f"the label {name!r} of {count:,} rows may stand for a missing one: leave these cells empty, if it does"
        for name, count in labels.items()
        if name in _MAY_BE_MISSING
    ]
    name, count = max(labels.items(), key=lambda item: item[1], default=("", 0))
    if columns.kind is LabelKind.NAME and len(labels) > 1 and count > _MAJORITY * rows:
        warnings.append(f"one label, {shorten_repr(name)}, holds {count / rows:.0%} of the rows")
    if columns.kind is LabelKind.NAME and len(labels) == 1:
        warnings.append(f"all rows have the same label, {shorten_repr(name)}")
    return warnings


def _spelt_alike(single: Sequence[str], labels: Counter[str]) -> str:
    """Return a clause that names labels which occur once and are spelt like a label of several rows: they may be misspelt.

    Only the first 8 labels of `single` are compared. Those that differ in case only have a warning of their own. The
    clause is empty if no label is alike.
    """
    from difflib import get_close_matches

    often = {other.casefold(): other for other, count in labels.items() if count > 1}
    named = [name for name in single[:_SHOWN] if name.casefold() not in often]  # these are a warning of their own
    near = {name: get_close_matches(name.casefold(), often, n=1, cutoff=_ALIKE) for name in named}
    pairs = [f"{name!r:.60} for {often[found[0]]!r:.60}" for name, found in near.items() if found]
    return f"; misspelt? {', '.join(pairs)}" if pairs else ""


def _check_votes(examples: Sequence[Example], task: TaskName) -> list[str]:
    """Return a warning in a list if rows of a multi-label file name a label twice, as the votes of several people do."""
    if task is not TaskName.MULTI_LABEL:
        return []
    twice = sum(isinstance(e.label, tuple) and len(set(e.label)) < len(e.label) for e in examples)
    if not twice:
        return []
    return [f"{twice:,} rows name a label twice; if these are votes of several people, name the column with --teacher"]


def _check_texts(examples: Sequence[Example]) -> list[str]:
    """Return warnings on rows that repeat the text of an earlier row: one on other labels, one on the same label."""
    first: dict[str, tuple[Hashable, int]] = {}
    repeated, contradicting, shown = 0, 0, ""
    for example in examples:
        label, row = first.setdefault(example.digest, (example.label, example.row))
        if row == example.row:
            continue
        repeated += 1
        if label != example.label:
            contradicting += 1
            shown = shown or (
                f"{shorten_repr(example.text, _WIDTH)} is {shorten_repr(label, 40)} in row {row} and "
                f"{shorten_repr(example.label, 40)} in row {example.row}"
            )
    warnings = []
    if contradicting:
        warnings.append(f"{contradicting:,} rows repeat a text with another label: {shown}")
    if repeated > contradicting:
        warnings.append(f"{repeated - contradicting:,} rows repeat a text with the same label")
    return warnings


def _show_example(example: Example) -> str:
    """Return one row as the reader understood it, on one line: its texts, an arrow and its label.

    Spans are shown with the words that they mark. Long texts and labels are cut, and of several labels 8 are shown.
    """
    texts = [shorten_repr(text, _WIDTH) for text in (example.text, example.pair) if text is not None]
    label = example.label
    if isinstance(label, tuple) and label and isinstance(label[0], Span):
        spans = [span for span in label if isinstance(span, Span)]
        shown = ", ".join(f"{example.text[s.start : s.end][:40]!r} {s.label}" for s in spans[:_SHOWN])
    elif isinstance(label, tuple):
        shown = ", ".join(str(getattr(value, "text", value))[:40] for value in label[:_SHOWN]) or "none"
    else:
        shown = "none" if label is None else str(label)[:_WIDTH]
    return f"{' | '.join(texts)} -> {shown}"
