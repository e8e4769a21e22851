"""Read the rows of a data source as labelled examples, and list what is wrong with them.

`read_examples` returns the rows that have a label, `read_labelled_examples` also those without one; `to_example` converts a single row.
Each `LabelKind` has its own reader of label cells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, cast

from pocketbert.core.data.cells import (
    MISSING_TEXTS,
    are_probabilities,
    find_word_places,
    have_marks,
    is_visible,
    merge_scored_labels,
    normalize_name,
    number_of,
    parse_list,
    parse_literal,
    read_truth,
    read_written_number,
    unwrap_label,
)
from pocketbert.core.data.choices import choice_columns, count_from_zero, parse_choice_row, parse_question
from pocketbert.core.data.column_names import BadRows
from pocketbert.core.data.files import read_class_names, read_rows
from pocketbert.core.data.span_cells import read_spans
from pocketbert.core.data.teacher_column import fill_from_teacher, teacher_columns
from pocketbert.core.disk.files import is_unicode
from pocketbert.core.errors import InputError, Problem, shorten_repr
from pocketbert.core.host.progress import print_note
from pocketbert.core.predict.examples import Example, GoldAnswer, Label
from pocketbert.core.predict.spans import Span, join_equal_spans
from pocketbert.core.tasks import LabelKind

if TYPE_CHECKING:
    from pocketbert.core.data.source import DataSource

_ANSWER_STARTS = "answer_start"


def read_examples(
    source: DataSource, labelled: bool = True, kind: LabelKind = LabelKind.NAME, columns: Sequence[str] = ()
) -> list[Example]:
    """Read the rows of a file or data set as examples; print how many are left out because they have no label.

    Args:
        source: File or data set; names the columns to read.
        labelled: Whether labels are needed: then rows without a label are left out, and a file in which most rows have
            none is refused.
        kind: Kind of label in the label column (names, scores, spans ...).
        columns: Further columns to read, if a row has them.

    Returns:
        The rows in file order.

    Raises:
        InputError: Listing the first 20 bad rows and the number of all, or what is wrong with the file.
    """
    examples, unlabelled = read_labelled_examples(source, labelled, kind, columns)
    if unlabelled:
        print_note(f"{note_unlabelled(source.title, len(unlabelled), len(examples))} and are left out")
    return examples


def note_unlabelled(title: str, unlabelled: int, labelled: int) -> str:
    """Return the note for users that counts the rows without a label."""
    rows = f"{unlabelled:,} of {unlabelled + labelled:,} rows"
    return f"{PurePath(title).name}: {rows} have no label"


def read_labelled_examples(
    source: DataSource,
    labelled: bool = True,
    kind: LabelKind = LabelKind.NAME,
    columns: Sequence[str] = (),
    without_labels: bool = False,
    sparse: bool = False,
) -> tuple[list[Example], list[Example]]:
    """Read a file or data set as examples; return those with a label and those without. See `read_examples`.

    A file in which no row has a label is an error, unless `without_labels` is set: then all its rows are returned as
    unlabelled. One in which most rows have none is an error unless `sparse` is set. If the task needs no labels, or
    `labelled` is not set, the first list has all rows.

    Returns:
        The labelled rows in file order, and the unlabelled rows whose text can be read.
    """
    bad, empty = BadRows(source.title), BadRows(source.title)
    needs_label = labelled and kind not in (LabelKind.NONE, LabelKind.SCORE_OR_NONE)
    read = [source.text, source.text_pair, source.label, *source.label.split(","), _ANSWER_STARTS, *columns]
    read += [*choice_columns(source.choices), *teacher_columns(source.teacher)]
    tag_names = read_class_names(source) if kind is LabelKind.SPANS else None
    examples, unlabelled, has_column, marks = list[Example](), list[Example](), False, list[bool | None]()
    for number, row in read_rows(source, bad, [name for name in read if name is not None]):
        try:
            is_empty = source.teacher is not None and _has_no_label(source, row, kind)
            row, answer = fill_from_teacher(source, row, kind, is_empty)
        except ValueError as error:
            bad.add(number, f"column '{source.teacher.column if source.teacher else ''}': {error}")
            continue
        has_column = has_column or source.label in row or "," in source.label
        if needs_label and row.get(source.text) is not None and _has_no_label(source, row, kind):
            lacks = source.teacher and not {*teacher_columns(source.teacher), source.label} & {*row}
            empty.missing(number, source.label, row, source.teacher.column if source.teacher and lacks else "")
            rest = {k: v for k, v in row.items() if k != source.label}
            if (example := to_example(source, number, rest, False, kind, BadRows(source.title))) is not None:
                unlabelled.append(replace(example, label=None))
            continue
        if tag_names and isinstance(row.get(source.label), list):
            row = {**row, source.label: _name_tags(row[source.label], tag_names)}
        example = to_example(source, number, row, needs_label, kind, bad)
        if example is not None:
            example = example if answer is None else replace(example, answer=answer)
            examples.append(replace(example, columns={c: row.get(c) for c in columns}) if columns else example)
            marks.append(have_marks(row.get(source.label)) if kind is LabelKind.SPANS else None)
    for i in [i for i, has_marks in enumerate(marks) if has_marks is False] if True in marks else []:
        # a sentence of one name, in a file in which the words without a name have O
        examples[i] = replace(examples[i], label=join_equal_spans(cast("tuple[Span, ...]", examples[i].label)))
    if kind is LabelKind.CHOICE:
        places = count_from_zero([(e.row, e.label, len(e.choices)) for e in examples], bad, source.label)
        examples = [replace(e, label=place) for e, place in zip(examples, places, strict=True)]
    if kind in (LabelKind.SCORE, LabelKind.SCORE_OR_NONE):
        examples = _settle_commas(examples, bad, source.label)
    problems = bad.close()
    if without_labels and unlabelled and not examples and not bad.count:
        return [], unlabelled
    # where most rows have none, another column holds the labels
    if empty.count > len(examples) + bad.count and not (sparse and examples):
        what = f"{empty.count:,} of {empty.count + len(examples) + bad.count:,} rows have no label in column '{source.label}'."
        problems += [Problem(source.title, what, _NO_LABEL_FIX)] if has_column else empty.close()
    if not problems and not examples:
        problems = [Problem(source.title, "no rows.")]
    if problems:
        raise InputError(problems)
    return examples, unlabelled


_NO_LABEL_FIX = "Name the column of the labels with --label (in a recipe: label), or leave out the rows without one."


def _is_empty(cell: Any, kind: LabelKind) -> bool:
    """Return whether a cell holds no label: None or NaN, or for kinds with a single label an empty list, a blank text or a text such as ``NaN``."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return True
    is_single = kind in (LabelKind.NAME, LabelKind.SCORE, LabelKind.SCORE_OR_NONE)
    return is_single and (
        cell == [] or (isinstance(cell, str) and (not is_visible(cell) or cell.strip() in MISSING_TEXTS))
    )


def _name_tags(tags: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Return tags with the names that a data set has for their numbers; tags that are no such numbers stay."""
    return [names[tag] if type(tag) is int and 0 <= tag < len(names) else tag for tag in tags]


def _has_no_label(source: DataSource, row: Mapping[str, Any], kind: LabelKind) -> bool:
    """Return whether a row has no label: its label cell, or each cell of its several label columns, is empty; ``-`` in `gold_label` counts as empty."""
    if source.label in row or "," not in source.label:
        cell = row.get(source.label)
        # SNLI and MultiNLI write - where the annotators do not agree
        return _is_empty(cell, kind) or (cell == "-" and source.label == "gold_label")
    return all(_is_empty(row.get(name), LabelKind.NAME) for name in source.label.split(","))


def _label_cell(source: DataSource, row: Mapping[str, Any]) -> Any:
    """Return a row's label: the content of its label cell, or the names of the label columns that hold 1.

    `source.label` names the label column, or several with commas between them, one for each label. None is
    returned if one of these columns is missing in the row.

    Raises:
        _LabelError: If one of several label columns holds anything but 0, 1, false, true, no or yes.
    """
    if source.label in row or "," not in source.label:
        return row.get(source.label)
    names = source.label.split(",")
    if any(name not in row for name in names):
        return None
    given = []
    for name in names:
        truth = read_truth(row[name])
        if truth is None:
            raise _LabelError(f"column '{name}' holds {shorten_repr(row[name])}, not 0 or 1.")
        given += [name] if truth else []
    return given


def to_example(
    source: DataSource, number: int, row: dict[str, Any], needs_label: bool, kind: LabelKind, bad: BadRows
) -> Example | None:
    """Convert a row to an example; if a column is missing or invalid, record the row in `bad` and return None."""
    columns = [
        source.text,
        source.text_pair or None,
        *(choice_columns(source.choices) if kind is LabelKind.CHOICE else ()),
    ]
    missing = [c for c in columns if c is not None and row.get(c) is None]
    if missing:
        bad.missing(number, missing[0], row)
        return None
    text, pair = row[source.text], row[source.text_pair] if source.text_pair else None
    try:
        cell, words = _label_cell(source, row) if kind is not LabelKind.NONE else None, None
        if kind is LabelKind.CHOICE:
            text = parse_question(text)
        if kind is LabelKind.SPANS:
            text, cell = parse_list(text), parse_literal(cell)
        elif isinstance(words_of := parse_list(text), list) and len(words_of) > 1:
            text = words_of if all(isinstance(word, str) for word in words_of) else text
        is_listed = isinstance(text, list | tuple)
        if kind is LabelKind.SPANS or isinstance(text, list | tuple):  # words, which other tasks read as one text
            text, words = find_word_places(text, cell)
        for column, value in ((source.text, text), (source.text_pair, pair)):
            if why := _find_text_problem(value):
                bad.add(number, f"column '{column}' {why}.")
                return None
        if not is_visible(text):
            why = "holds no character that can be seen" if text.strip() else "is empty"
            bad.add(number, f"column '{source.text}' {why}.")
            return None
        if kind is LabelKind.CHOICE:
            choices, right = parse_choice_row(row, choice_columns(source.choices), pair, cell)
            return Example(text, None, right, number, choices=choices)
        if kind is LabelKind.SPANS and cell is not None:
            return Example(text, pair, read_spans(cell, text, words, is_listed), number)
        label = _read_label(kind, cell, pair, row.get(_ANSWER_STARTS), source.separator or ";")
    except ValueError as error:
        bad.add(number, f"column '{source.label}': {error}" if needs_label else str(error))
        return None
    return Example(text, pair, label, number)


def _find_text_problem(value: Any) -> str:
    """Return what is wrong with the cell of a text; an empty text if nothing is."""
    if value is not None and not isinstance(value, str):
        return f"holds {type(value).__name__}, not text"
    if value is not None and not is_unicode(value):
        return "is not Unicode text: it holds half of a surrogate pair"
    return ""


# --- label cells ---

_LARGEST = 10**40
_MOST_ANSWERS = 1000


class _LabelError(ValueError):
    """Raised for a cell that is not a label of the needed kind; the message is for users."""


def _read_label(kind: LabelKind, cell: Any, pair: str | None, starts: Any, separator: str) -> Label | None:
    """Convert a cell of the label column to a label of the needed kind; None for an empty cell.

    Args:
        kind: Kind of label that the task needs.
        cell: The cell; None if the row has none.
        pair: The row's second text, in which answers to a question lie.
        starts: Start characters of the answers, if the file has them in a column of their own.
        separator: Text that separates several names in one cell.

    Raises:
        _LabelError: If the cell holds no label of this kind.
    """
    if _is_empty(cell, kind):
        return None
    match kind:
        case LabelKind.NAME:
            return _read_name(cell)
        case LabelKind.NAMES:
            return _read_names(unwrap_label(parse_literal(cell)), separator)
        case LabelKind.SCORE | LabelKind.SCORE_OR_NONE:
            return _read_score(cell)
        case LabelKind.ANSWERS:
            return _read_answers(cell, pair or "", starts)
    return None


def _settle_commas(examples: list[Example], bad: BadRows, column: str) -> list[Example]:
    """Convert scores with a percent sign or commas to numbers, read in one way in all rows; add a row to `bad` if that way is unclear."""
    written = {i: read_written_number(e.label) for i, e in enumerate(examples) if isinstance(e.label, str)}
    if not written:
        return examples
    first = examples[next(iter(written))]
    fitting = [place for place in (0, 1) if all(numbers[place] is not None for numbers in written.values())]
    shares = {isinstance(e.label, str) and "%" in e.label: e for e in reversed(examples) if e.label is not None}
    if len(shares) > 1:
        what = f"score {shorten_repr(shares[False].label)} has no percent sign, and others have one."
        bad.add(
            shares[False].row, f"column '{column}': {what}", "Write all scores with a percent sign, or all without one."
        )
        return examples
    if len(fitting) != 1 and (not fitting or any(thousands != decimal for thousands, decimal in written.values())):
        what = f"column '{column}': the comma in {shorten_repr(first.label)} may part thousands or be the decimal sign."
        bad.add(first.row, what, "Write the scores with a decimal point and without other signs.")
        return examples
    return [replace(e, label=written[i][fitting[0]]) if i in written else e for i, e in enumerate(examples)]


def _read_name(cell: Any) -> int | float | str:
    """Read a cell as a name or number: true becomes "true", "2" and 2.0 the number 2, probabilities the most likely label."""
    cell = _most_likely(unwrap_label(cell))
    if isinstance(cell, list | tuple) and len(cell) == 1:
        cell = cell[0]
    if not isinstance(cell, int | float | str):
        raise _LabelError(f"label is {type(cell).__name__}, not a number or a name.")
    if isinstance(cell, str) and not (is_unicode(cell) and is_visible(cell)):
        raise _LabelError(
            "the label is empty." if is_unicode(cell) else f"label {shorten_repr(cell)} is not Unicode text."
        )
    name = normalize_name(cell)
    if not isinstance(name, str) and not (math.isfinite(name) and abs(name) < _LARGEST):
        raise _LabelError(f"label {shorten_repr(cell)} is not a number that a label can be.")
    return name


def _most_likely(cell: Any) -> Any:
    """Return the most likely label in a cell of probabilities (name, or position in a list); other cells unchanged."""
    parsed = parse_literal(cell)
    scored = merge_scored_labels(parsed)
    if scored is not None or are_probabilities(parsed):
        cell = scored or parsed
        entries = cell.items() if isinstance(cell, dict) else enumerate(cell)
        return max(entries, key=lambda entry: entry[1])[0]
    return cell


def _read_names(cell: Any, separator: str) -> tuple[int | float | str, ...]:
    """Read a cell as a list of names or numbers; a text is split at the separator."""
    if isinstance(cell, str):
        cell = [part.strip() for part in cell.split(separator) if part.strip()]
    if not isinstance(cell, list | tuple) or not all(
        isinstance(number_of(v), int) or isinstance(v, bool | str) for v in cell
    ):
        raise _LabelError(f"labels are {_describe(cell)}, not a list of names or numbers (in csv: separated by ';').")
    names = tuple(_read_name(v) for v in cell)
    if len(names) > len({*names}) and {*names} <= {0, 1}:
        raise _LabelError("labels are 0 or 1 for each label, not the labels that hold: write their names or numbers.")
    return names


def _read_score(cell: Any) -> float | str:
    """Read a cell as a finite number; a number with a percent sign or commas stays a text until all rows show what these mean."""
    if isinstance(cell, str) and ("," in cell or "%" in cell):
        written = read_written_number(cell)
        if written != (None, None):
            return cell
    try:
        value = float(cell) if not isinstance(cell, bool | list | dict) else math.nan
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise _LabelError(f"score {shorten_repr(cell)} is not a finite number.")
    return value


def _read_answers(cell: Any, context: str, starts: Any) -> tuple[GoldAnswer, ...]:
    """Read a cell as answers to a question: one text, a list of texts or of objects {text, answer_start}, or SQuAD's object of two lists."""
    value = cell if isinstance(cell, str) and cell in context else parse_literal(cell)
    if isinstance(value, dict) or (isinstance(value, list) and all(isinstance(v, str | dict) for v in value)):
        cell = value  # as pandas wrote it to a table
    if isinstance(cell, dict):  # SQuAD as published on the Hub
        cell, starts = cell.get("text"), cell.get("answer_start")
    if isinstance(cell, str):
        starts = starts if isinstance(starts, list | tuple) else [None if starts == "" else starts]
        cell, starts = ([cell], starts) if cell else ([], None)
    if not isinstance(cell, list | tuple):
        raise _LabelError(f"answers are {_describe(cell)}, not a list of texts or {{text, answer_start}}.")
    if starts is None:
        starts = [None] * len(cell)
    if not isinstance(starts, list | tuple) or len(starts) != len(cell):
        count = len(starts) if isinstance(starts, list | tuple) else 1
        raise _LabelError(f"{count} places for {len(cell)} answers.")
    if len(cell) > _MOST_ANSWERS:  # each is looked for in the whole context
        raise _LabelError(f"{len(cell):,} answers; allowed: at most {_MOST_ANSWERS:,}.")
    return tuple(dict.fromkeys(_read_answer(a, s, context) for a, s in zip(cell, starts, strict=True)))


def _read_answer(answer: Any, start: Any, context: str) -> GoldAnswer:
    """Read one answer, and find it in the context unless its start is given."""
    if isinstance(answer, dict):
        answer, start = answer.get("text"), answer.get("start", answer.get("answer_start"))
    if not isinstance(answer, str) or not answer:
        raise _LabelError(f"answer {shorten_repr(answer)} is not text.")
    if start is None:
        start = context.find(answer)
        if start < 0:
            raise _LabelError(f"answer {answer[:40]!r} is not in the context.")
    elif isinstance(start, str) and start.isdecimal():  # csv and tsv write numbers as text
        start = int(start)
    if type(start) is not int or start < 0 or context[start : start + len(answer)] != answer:
        raise _LabelError(f"answer {answer[:40]!r} is not in the context at character {start}.")
    return GoldAnswer(start, answer)


def _describe(cell: Any) -> str:
    return f"{type(cell).__name__} {str(cell)[:40]!r}"
