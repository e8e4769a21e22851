"""Guesses which column of a data file is the text and which one the label, for users who did not name them.

`guess_columns` profiles the first rows (`pocketbert.core.data.profile`), chooses the columns by their usual names, else by what
they hold (`ColumnChoice`), and guesses what kind of label it is. If a column holds a teacher's answers, `_Pairing` decides whether they
are about the labels of the file. `guess_and_report_columns` also prints what it chose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any

from pocketbert.core.data.cells import normalize_name, number_of
from pocketbert.core.data.choices import find_choice_columns, marks_a_choice
from pocketbert.core.data.column_choice import ColumnChoice, has_label_name
from pocketbert.core.data.column_names import (
    ANSWER_NAMES,
    LABEL_NAMES,
    QUESTION_NAMES,
    BadRows,
    is_numbered_column,
    plain_name,
)
from pocketbert.core.data.conll import choose_word_and_tags
from pocketbert.core.data.files import find_shape, guess_table_form, read_class_names, read_rows
from pocketbert.core.data.forms import CLASS_FOLDER, CONLL, FASTTEXT, JSON_LINES, PARQUET, TABLE, FileForm, find_form
from pocketbert.core.data.profile import FEWEST_SCORES, PROFILED_ROWS, Column, profile_columns, split_cell
from pocketbert.core.data.records import RecordShape
from pocketbert.core.data.source import DataSource, TeacherColumn
from pocketbert.core.data.tables import TableForm
from pocketbert.core.data.teacher_column import MOST_ODD, is_answer_name, teacher_columns
from pocketbert.core.errors import InputError, Problem, shorten_list, shorten_repr
from pocketbert.core.host.progress import print_note
from pocketbert.core.tasks import LabelKind

_CHOICE_ROWS = 20
"""Rows that show whether a file has questions with choices."""
_SHOWN = 8
_MOST_CLASSES = 50
"""Whole numbers with more values are classes only if they count on from 0."""


@dataclass(frozen=True)
class Columns:
    """The text and label columns that were chosen for a data file, and the reason in words.

    Attributes:
        source: A copy of the data source in which the columns are named.
        kind: What the label column holds (names, scores, spans ...); None if that is ambiguous.
        note: One sentence for users, such as ``text: column 'sentence', label: column 'intent' (77 names)``.
    """

    source: DataSource
    kind: LabelKind | None
    note: str


def guess_and_report_columns(source: DataSource, kind: LabelKind) -> DataSource:
    """Guess the columns that a file's source does not name, print them, and return a copy of the source that names them.

    A data set of the Hub is returned as it is. Raises what `guess_columns` does.

    Args:
        source: The data file; columns that it names are kept.
        kind: Kind of label that the task needs (names, scores, spans ...).
    """
    guessed = guess_columns(source, kind, answers=False)
    if guessed.note:
        print_note(f"{Path(source.title).name}: {guessed.note}")
    return guessed.source


def guess_columns(source: DataSource, kind: LabelKind | None = None, fix: str = "", answers: bool = True) -> Columns:
    """Guess which columns of a data file hold the text, the second text and the label, by name or by content.

    A column that `source` names itself is kept, whatever it holds. A second text is taken only if two columns have
    names that are usual for a pair or differ in a number or a side, if the form of the file has one, or if a file
    without a header has just two columns of texts. Data sets of the Hub are returned as they are.

    Args:
        source: The file; its fields `text`, `text_pair` and `label` count as given if they were set.
        kind: Kind of label that the task needs; None if the task is not known yet.
        fix: Advice in the error that is raised if several columns could be meant; by default it names the command
            line's options.
        answers: Whether a column may be taken as one of a teacher's answers; if not, such a column is read as labels,
            the most likely label of each cell.

    Raises:
        InputError: If the file cannot be read, lacks a column that `source` names, or has numbers without names as tags.
            If several columns could be meant, or none, the message names the columns.
        MissingBackendError: If the library for its kind of file is not installed.
    """
    if source.path is None:
        return Columns(source, kind, "")
    table, form, shape = guess_table_form(source), find_form(source), find_shape(source)
    if table is not None and not table.header:
        source = source.model_copy(update={"header": False})
    may_choose = kind is LabelKind.CHOICE or (kind is None and (shape is None or shape.kind is LabelKind.CHOICE))
    if may_choose and (choices := _guess_choices(source, kind)) is not None:
        return choices
    bad = BadRows(source.title)
    stream = read_rows(source, bad)
    columns, rows = profile_columns(stream)
    if not columns:
        raise InputError(bad.close() or Problem(source.title, "no rows."))
    if rows < PROFILED_ROWS:
        _check_named(source, columns)
    usual = shape.columns if shape is not None and shape.columns else _sentence_columns(columns)
    taught = None
    if source.teacher is not None:
        taught = (source.teacher.column, kind or _kind_of_named_answers(source.teacher, columns))
    elif answers:
        taught = _find_answers(source, columns, kind)
    if taught is not None:
        return _choose_beside_answers(source, columns, kind, taught, table, fix)
    choice = ColumnChoice(source, columns, kind, fix, usual)
    text, pair = choice.choose_texts()
    label = choice.choose_label(text, pair)
    chosen = source.model_copy(update={"text": text, "text_pair": pair, **({"label": label} if label else {})})
    column = columns.get(label or "")
    if kind is None and form in (FASTTEXT, CLASS_FOLDER) and column is not None and not column.lists:
        kind = LabelKind.NAME  # whatever the names are, and however often each occurs
    kind = kind or _find_kind(chosen, columns, shape, label)
    _check_tags(chosen, column, kind)
    if column is not None and kind is LabelKind.NAMES and source.separator is None:
        chosen = chosen.model_copy(update={"separator": column.separator})
    note = _note(table, text, pair, label, _describe_label(chosen, columns, kind, rows) if label else None)
    if form is CONLL or (usual and shape is None):
        note = _note_sentences(form, text, label, rows + sum(1 for _ in stream), kind)
    elif (title := _form_title(form, shape)) is not None:
        note = f"{title}, {rows + sum(1 for _ in stream):,} rows: {note}"
    return Columns(chosen, kind, note)


def _find_answers(
    source: DataSource, columns: Mapping[str, Column], kind: LabelKind | None
) -> tuple[str, LabelKind] | None:
    """Find the only column whose cells are answers of a teacher to the task, and their kind.

    All its cells must be answers; of probabilities 90 % are enough. None if there is no such column, or several.
    """
    named = {getattr(source, key) for key in ("text", "text_pair", "label") if key in source.model_fields_set}
    if kind in (None, LabelKind.NAME):  # a few rows that do not add up to 1 are mistakes, which reading reports
        whole = [column for column in columns.values() if _has_probabilities(column) and column.name not in named]
        if len(whole) == 1:
            return whole[0].name, LabelKind.NAME
    found = [
        (column.name, form)
        for column in columns.values()
        for form in column.answers
        # a text may have several labels of which none is likely: such rows look like those of one label
        if sum(column.answers[k] for k in (form, *_ALIKE.get(form, ()))) == column.cells and column.name not in named
        if LabelKind.NAMES not in column.answers or form is LabelKind.NAMES
    ]
    fitting = [(name, form) for name, form in found if kind in (None, form, *_ALIKE.get(form, ()))]
    return fitting[0] if len(fitting) == 1 else None


def _has_probabilities(column: Column) -> bool:
    """Return whether nearly all cells are probabilities of labels that exclude each other, which are not only 0 and 1."""
    return column.soft >= (1 - MOST_ODD) * column.cells > 0


def _kind_of_named_answers(section: TeacherColumn, columns: Mapping[str, Column]) -> LabelKind:
    """Return the kind of label that a teacher's answers seem to be about, by the cells of the named column; `NAME` for several columns."""
    column = columns.get(section.column)
    if column is None or _has_probabilities(column):  # several columns hold a number, or a vote, for one label
        return LabelKind.NAME
    if LabelKind.NAMES in column.answers:
        return LabelKind.NAMES
    usual = LabelKind.SCORE if column.is_numbers and column.fractions else LabelKind.NAME
    return next((form for form, _ in column.answers.most_common(1)), usual)


_ALIKE = {LabelKind.NAME: (LabelKind.NAMES,), LabelKind.NAMES: (LabelKind.NAME,)}
"""Kinds of labels whose answers look like those of another kind."""


def _choose_beside_answers(
    source: DataSource,
    columns: Mapping[str, Column],
    kind: LabelKind | None,
    taught: tuple[str, LabelKind],
    table: TableForm | None,
    fix: str,
) -> Columns:
    """Choose the text and label columns of a file whose column `taught` holds a teacher's answers.

    If no other column holds labels, the labels are derived from the answers. Otherwise `_Pairing` decides: answers that name
    none of the labels are left out, unless the user named their column.

    Raises:
        InputError: If the answers name none of the labels, and either of the two columns could be meant; `fix` is its
            advice unless it is empty.
    """
    name, form = taught
    section = source.teacher or TeacherColumn(column=name)
    others = {key: column for key, column in columns.items() if key not in teacher_columns(section)}
    choice = ColumnChoice(source, others, kind if kind is not None or form in _ALIKE else form, "", {})
    text, pair = choice.choose_texts()
    chosen = source.model_copy(update={"text": text, "text_pair": pair, "teacher": section})
    found = choice.find_labels(text, pair)
    if not found and kind is None and form in (LabelKind.SPANS, LabelKind.SCORE_OR_NONE) and source.teacher is None:
        found = ColumnChoice(source, others, None, "", {}).find_labels(text, pair)
    pairings = [_Pairing(chosen.model_copy(update={"label": label}), columns, kind, taught) for label in found]
    if len(pairings) > 1:  # the answers show which of the columns holds the labels that they name
        sharing = [pairing for pairing in pairings if pairing.shared]
        if source.teacher is None and form in _ALIKE and not sharing and not is_answer_name(name):
            raise _unclear_labels(source, found, name, fix)
        pairings = sharing if len(sharing) == 1 else []
    use = pairings[0].choose_use("label" in source.model_fields_set, source.teacher is not None) if pairings else None
    if use is _Use.UNCLEAR:
        raise _unclear_labels(source, found, name, fix)
    if not pairings or use is _Use.ANSWERS:
        note = _note(table, text, pair, None, None)
        if name in columns and _holds_other_kind(chosen, others, kind or form):
            chosen = chosen.model_copy(update={"label": name})
        note += f"; teacher: the answers in column '{name}', which give the labels too"
        return Columns(chosen, kind or form, note)
    labelled, kind = pairings[0].source, pairings[0].kind
    note = _note(table, text, pair, labelled.label, _describe_label(labelled, others, kind, 0))
    if use is _Use.LABELS:
        other = "labels" if form in _ALIKE else "things"
        note += f"; the answers in column '{name}' are of other {other} and are left out"
        return Columns(labelled.model_copy(update={"teacher": source.teacher}), kind, note)
    return Columns(labelled, kind, f"{note}; teacher: the answers in column '{name}'")


def _unclear_labels(source: DataSource, labels: Sequence[str], answers: str, fix: str) -> InputError:
    """Build the error for a file in which a column holds labels, and another one a teacher's answers that are of none of them."""
    columns = f"{shorten_list(labels, _SHOWN)} could be the labels"
    what = f"{columns}; the answers in column '{answers}' are of other labels, or name them in another way."
    usual = (
        f"Name one: --label {shorten_repr(labels[0])} leaves the answers out, --teacher {shorten_repr(answers)} learns them; "
        "or write the labels in one way in both columns."
    )
    return InputError(Problem(source.title, what, fix or usual))


def _holds_other_kind(source: DataSource, columns: Mapping[str, Column], kind: LabelKind) -> bool:
    """Return whether the column `label`, which is read unless another one is named, holds labels of another kind than `kind`."""
    column = columns.get(source.label)
    if column is None or "label" in source.model_fields_set or (kind is LabelKind.SCORE_OR_NONE and column.is_numbers):
        return False
    return _find_kind(source, columns, None, source.label) not in (None, kind, *_ALIKE.get(kind, ()))


class _Use(Enum):
    """What is taken of a file with a column of labels and one of a teacher's answers."""

    BOTH = "both"
    LABELS = "labels"
    ANSWERS = "answers"
    UNCLEAR = "unclear"


class _Pairing:
    """A column of labels and a column of a teacher's answers in one file, which may be about other things.

    Args:
        source: The file; its `label` names the column of labels, its `teacher` that of the answers.
        columns: Profiles of the columns by name.
        kind: Kind of label that the task needs; None if the task is not known yet.
        taught: Column of the answers, and the kind of label that these answer.
    """

    def __init__(
        self,
        source: DataSource,
        columns: Mapping[str, Column],
        kind: LabelKind | None,
        taught: tuple[str, LabelKind],
    ) -> None:
        self.source = source
        self._column, self._form = taught
        others = {key: column for key, column in columns.items() if key not in teacher_columns(source.teacher)}
        self._own = _find_kind(source, others, None, source.label)
        self._names = _label_names(source, others) if self._form in _ALIKE else set[int | float | str]()
        self._answered = _answer_names(self._column, columns) if self._names else set[int | float | str]()
        self.shared = self._names & self._answered
        """Names that are in both columns, as labels are compared."""
        several = self._form is LabelKind.NAMES and kind is None
        kinds = (self._form, *_ALIKE.get(self._form, ()))
        self._fits = self._own in (kinds if self.shared or not several else (self._form,))
        self.kind = kind or (self._form if self.shared and (several or self._own is None) else self._own)
        """Kind of the labels, if the column of labels is taken."""
        column = others.get(source.label)
        self._scores_pairs = source.text_pair is not None and column is not None and column.is_numbers
        self._is_open = kind is None or self._form in _ALIKE  # else the task decides between the columns

    def choose_use(self, is_label_given: bool, is_teacher_given: bool) -> _Use:
        """Decide which of the two columns are taken; a column that the user named always is.

        Both are taken if the kinds of labels agree and the answers name one of the labels, or no labels at all. Otherwise the
        labels or the answers are taken alone, by the names of the columns (a column `label` of answers is the labels) and their
        contents; the result is `UNCLEAR` if these do not show which is meant.
        """
        has_answer_name, is_named = is_answer_name(self._column), has_label_name(self.source.label)
        are_others = bool(self._names and self._answered) and not self.shared
        is_score, is_fitting = self._own is LabelKind.SCORE, self._fits or (self._own is None and bool(self.shared))
        if is_teacher_given:
            is_unlike = are_others and not is_named and not self._are_numbers_beside_names
            return _Use.BOTH if is_label_given or (is_fitting and not is_unlike) else _Use.ANSWERS
        if is_fitting and not are_others:
            return _Use.BOTH
        if is_label_given:
            return _Use.LABELS if self._own is not None and self._is_open else _Use.BOTH
        if self._form not in _ALIKE:  # only the kind of label shows that the column is about other things
            are_names = self._own in _ALIKE and not self._scores_pairs and self._form is not LabelKind.ANSWERS
            return _Use.UNCLEAR if are_names and self._is_open else _Use.ANSWERS
        is_label = plain_name(self._column) in LABEL_NAMES[0] and plain_name(self.source.label) not in LABEL_NAMES[0]
        if self._own is None or is_label or (is_score and has_answer_name and not is_named):
            return _Use.ANSWERS  # a number beside probabilities is their confidence
        if is_score:
            return _Use.LABELS if is_named and not has_answer_name else _Use.UNCLEAR
        is_unclear = has_answer_name and (not is_named or self._are_numbers_beside_names)
        return _Use.UNCLEAR if is_unclear else _Use.LABELS

    @property
    def _are_numbers_beside_names(self) -> bool:
        """Whether one of the columns has numbers for labels and the other names, which may be of the same labels."""
        have_names = [any(isinstance(name, str) for name in names) for names in (self._names, self._answered)]
        return bool(self._names and self._answered) and have_names[0] != have_names[1]


def _answer_names(column: str, columns: Mapping[str, Column]) -> set[int | float | str]:
    """Return the labels that a teacher's answers in a column, or in several, name, as labels are compared; empty if they name none."""
    parts = {name: columns[name] for name in ([column] if column in columns else column.split(",")) if name in columns}
    if len(parts) > 1 and all(part.is_numbers for part in parts.values()):  # a number for the label that each is called
        return {normalize_name(name) for name in parts}
    names = [part.answer_names or (set[str]() if part.is_numbers else part.values) for part in parts.values()]
    return {normalize_name(name) for name in set[str]().union(*names)}


def _label_names(source: DataSource, columns: Mapping[str, Column]) -> set[int | float | str]:
    """Return the labels in the label column, or in several, as labels are compared, and the class names that the file stores for it."""
    names = set(read_class_names(source) or ())
    if (column := columns.get(source.label)) is None:
        names.update(source.label.split(","))
    else:
        parts = (split_cell(value, column.separator or ";") for value in column.values)
        names.update(column.values, column.parts, *parts)
    return {normalize_name(name) for name in names}


def _check_named(source: DataSource, columns: Mapping[str, Column]) -> None:
    """Raise InputError if the source names a column that is not among the profiled `columns`."""
    bad = BadRows(source.title)
    names = [getattr(source, key) for key in ("text", "text_pair", "label") if key in source.model_fields_set]
    if source.teacher is not None:
        taught = source.teacher.column
        names += [taught] if taught in columns else taught.split(",")
    for name in names:
        if name and name not in columns and not {*name.split(",")} <= {*columns}:
            bad.missing(1, name, dict.fromkeys(columns))
    if bad.count:
        raise InputError(bad.close())


def _guess_choices(source: DataSource, kind: LabelKind | None) -> Columns | None:
    """Guess the columns of multiple-choice rows; None if the rows are of another kind.

    Unless the task is known to be multiple choice, a column must mark the right choice in all of the first rows. Columns
    with names of one letter are then no choices if their labels are numbers.

    Raises:
        InputError: If the task is multiple choice and the columns are not found.
    """
    bad = BadRows(source.title)
    rows = [row for _, row in islice(read_rows(source, bad), _CHOICE_ROWS)]
    keys = ("text", "text_pair", "choices", "label")
    given: dict[str, Any] = {k: getattr(source, k) for k in keys if k in source.model_fields_set}
    found = find_choice_columns(rows, given) if rows else None
    if found is None and kind is None:
        return None
    if found is None:
        names = shorten_list(list(dict.fromkeys(name for row in rows for name in row)))
        what = f"no question with choices was found; it has the columns {names}."
        fix = (
            "Call them question and choices (a list), or choice0, choice1 and so on; a recipe may name others: text, choices "
            "and label of data.train."
        )
        raise InputError(bad.close() or Problem(source.title, what, fix))
    named = {"text": found.text, "text_pair": found.text_pair, "choices": found.choices}
    chosen = source.model_copy(update={**named, **({"label": found.label} if found.label else {})})
    if kind is None:
        labels = [row.get(found.label or "") for row in rows]
        # columns that are called a and b may be anything, unless a row's label names one of them
        are_letters = isinstance(found.choices, list) and all(len(name) == 1 for name in found.choices)
        if are_letters and all(number_of(label) is not None for label in labels):
            return None
        if not all(marks_a_choice(row, found) for row in rows):
            return None
    return Columns(chosen, LabelKind.CHOICE, found.note)


def _find_kind(
    source: DataSource, columns: Mapping[str, Column], shape: RecordShape | None, label: str | None
) -> LabelKind | None:
    """Guess what kind of label the chosen columns hold; None if that is unclear.

    It follows from the program that wrote the records, from the columns' names, or from the cells. `shape` describes
    the records of another program, such as SQuAD's, if the rows came from one; `label` is the label column.
    """
    if shape is not None and shape.kind is not None and label == shape.columns.get("label"):
        return shape.kind
    plain_names = plain_name(source.text), plain_name(source.text_pair or "")
    if plain_names in QUESTION_NAMES and plain_name(label or "") in ANSWER_NAMES:
        return LabelKind.ANSWERS
    if label is not None and label not in columns and "," in label:
        return LabelKind.NAMES
    is_named = bool(label and read_class_names(source)) and not columns.get(label or "", Column("")).lists
    return LabelKind.NAME if is_named else _kind_of(columns.get(label or ""), columns.get(source.text))


def _check_tags(source: DataSource, label: Column | None, kind: LabelKind | None) -> None:
    """Raise InputError if the tags of words are numbers and the file does not store the tags' names."""
    if kind is not LabelKind.SPANS or label is None or label.spans or not label.parts or read_class_names(source):
        return
    if all(part.isdecimal() for part in label.parts):
        what = f"column '{label.name}' holds a number for each word, and the file does not name them."
        fix = "Write the names of the tags in place of their numbers, or save the data set with its names: Dataset.to_parquet."
        raise InputError(Problem(source.title, what, fix))


def _sentence_columns(columns: Mapping[str, Column]) -> Mapping[str, str]:
    """Choose the columns of words and of tags if all columns of a file hold lists of words; empty for other files."""
    if len(columns) < 2 or not all(column.is_words for column in columns.values()):
        return {}
    words, tags = choose_word_and_tags({name: column.parts for name, column in columns.items()})
    return {"text": words, "label": tags} if words is not None and tags is not None else {}


def _form_title(form: FileForm, shape: RecordShape | None) -> str | None:
    """Return the name of a file's form for the note on columns; None for tables, JSON Lines and Parquet files with plain columns."""
    if shape is not None:
        return shape.title
    return None if form in (TABLE, JSON_LINES, PARQUET) else form.title


def _note_sentences(form: FileForm, text: str, label: str | None, rows: int, kind: LabelKind | None) -> str:
    """Write the note on a file of tagged words, such as ``spans from CoNLL columns 1 and 4, 14,041 sentences``."""
    names = [name for name in (text, label) if name is not None]
    are_numbered = all(map(is_numbered_column, names))
    shown = " and ".join(name.removeprefix("column ") if are_numbered else f"'{name}'" for name in names)
    what = "spans" if kind is LabelKind.SPANS else "texts"
    return f"{what} from {'CoNLL ' if form is CONLL else ''}columns {shown}, {rows:,} sentences"


# --- describing ---


def _kind_of(label: Column | None, text: Column | None) -> LabelKind | None:
    """Guess what kind of label a column holds; None if several kinds are possible.

    Numbers are scores if some are fractions and at least ten differ. Whole numbers are classes if they repeat, and at most
    fifty differ or they are 0, 1, 2, ... without a gap.
    """
    if label is None:
        return None
    if label.cells in (label.probabilities, label.answers[LabelKind.NAME]):
        return LabelKind.NAME
    if label.spans or (label.lists == label.cells and label.is_parallel_to(text)):
        return LabelKind.SPANS
    if label.is_tags and label.is_parallel_to(text):
        return LabelKind.SPANS
    if label.lists:
        return LabelKind.NAMES
    if label.is_scores:
        return LabelKind.SCORE
    if label.is_numbers and label.fractions:
        return LabelKind.SCORE if len(label.values) >= FEWEST_SCORES else None
    if label.is_numbers:
        numbers = sorted({int(float(value)) for value in label.values})
        is_classes = numbers == list(range(len(numbers))) or len(numbers) <= _MOST_CLASSES
        return LabelKind.NAME if is_classes and label.repeats else None
    if label.separator is not None:
        return LabelKind.NAMES
    return LabelKind.NAME if label.repeats or len(label.values) == 1 else None


def _describe_label(source: DataSource, columns: Mapping[str, Column], kind: LabelKind | None, rows: int) -> str:
    """Describe the content of the label column in words, such as ``77 names in the first 20,000 rows``."""
    if class_names := read_class_names(source):
        return f"{len(class_names)} names"
    label = columns.get(source.label)
    if label is None:
        count = source.label.count(",") + 1
        return f"{count} columns of 0 and 1, each a label" if count > 1 else "not in the first rows"
    more = f" in the first {rows:,} rows" if rows >= PROFILED_ROWS else ""
    match kind:
        case LabelKind.SCORE | LabelKind.SCORE_OR_NONE:
            return "scores"
        case LabelKind.SPANS:
            if label.spans or not label.parts:
                return "spans" if label.spans else "a tag for each word"
            return f"tags: {len(label.parts)} names{more}"
        case LabelKind.NAMES:
            names = label.parts.union(*(split_cell(value, label.separator or ";") for value in label.values))
            return f"lists of {len(names)} names{more}"
        case LabelKind.ANSWERS:
            return "answers"
    if label.cells in (label.probabilities, label.answers[LabelKind.NAME]):
        return "the most likely of the probabilities"
    return f"{len(label.values or label.parts)} {'numbers' if label.is_numbers else 'names'}{more}"


def _note(form: TableForm | None, text: str, pair: str | None, label: str | None, content: str | None) -> str:
    """Write the sentence that tells the user which columns were chosen."""
    if form is None or form.header:
        parts = [f"text: column '{text}'", *([f"second text: column '{pair}'"] if pair else [])]
        parts += [f"label: column '{label}' ({content})"] if label else []
        doubt = "" if form is None or form.sure else "; --no-header, if these names are a row of data"
        return ", ".join(parts) + doubt
    parts = [f"{text} is the text", *([f"{pair} the second text"] if pair else [])]
    parts += [f"{label} the label ({content})"] if label else []
    return f"no header: {', '.join(parts)}" + ("" if form.sure else "; --header, if the first row names the columns")
