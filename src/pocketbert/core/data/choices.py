"""Rows of multiple choice: the choices of a question, and which of them is right, as data files write them.

`find_choice_columns` finds the columns of a file by their names: one column with a list of choices, or one for each choice, as in
SWAG. `parse_choices` reads the choices of a row, and `parse_right_choice` the number, letter, key or text that marks the right
one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pocketbert.core.data.cells import is_visible, number_of, parse_literal
from pocketbert.core.data.column_names import BadRows, is_numbered_column, plain_name
from pocketbert.core.disk.files import is_unicode
from pocketbert.core.errors import shorten_repr

_FEWEST = 2
_FEWEST_UNNAMED = 5
"""Columns of a file without a header that hold a question, at least three choices and the letter of the right one."""
_QUESTION_WORDS = 3
_LISTS = (
    *("choices", "options", "endings", "candidates", "alternatives", "answerchoices", "answeroptions", "answers"),
    "question",  # an object with the stem and the choices, as the Allen Institute publishes them
)
"""Usual names of a column with all choices of a row."""
_STEMS = (
    *("ending", "choice", "option", "opt", "answer", "ans", "solution", "sol", "candidate", "alternative"),
    *("hypothesis", "hyp", ""),
)
"""Usual names of the column of one choice, before its number or letter; the letter may be all of the name."""
_NUMBERED = re.compile(r"([a-z]*?)(\d+|[a-h])")
_PAIRS = (
    *(
        ("sent1", "sent2"),
        ("ctxa", "ctxb"),
        ("article", "question"),
        ("passage", "question"),
        ("paragraph", "question"),
    ),
    *(("context", "question"), ("story", "question"), ("premise", "question"), ("text", "question")),
)
"""Usual names of the column that is read first, and of the text before each choice."""
_TEXTS = (
    *("question", "questionstem", "stem", "ctx", "goal", "startphrase", "premise", "sentence", "sent1", "prompt"),
    *("query", "text", "context", "input", "problem"),
)
_LABELS = (
    *("label", "answer", "answerkey", "answeridx", "answerindex", "correct", "correctanswer", "correctchoice"),
    *("correctoption", "correctindex", "correctidx", "gold", "target", "cop"),
)
_LETTER = re.compile(r"[(\[]?([A-Ha-h])[)\].:]?")
_FIRST_LETTER = ord("a")


@dataclass(frozen=True)
class ChoiceColumns:
    """The columns of a file with multiple-choice rows.

    Attributes:
        text: Column of the question, or of the context that a question is about.
        text_pair: Column of a text that stands before each choice; None if there is none.
        choices: One column whose cells hold all choices of a row, or the columns of the first, second, ... choice.
        label: Column of the right choice; None if the file has none.
    """

    text: str
    text_pair: str | None
    choices: str | list[str]
    label: str | None

    @property
    def note(self) -> str:
        """A phrase for users that names the chosen columns."""
        parts = [f"question: column '{self.text}'"]
        parts += [f"before each choice: column '{self.text_pair}'"] if self.text_pair else []
        if isinstance(self.choices, str):
            parts.append(f"choices: column '{self.choices}'")
        else:
            parts.append(f"choices: columns '{self.choices[0]}' to '{self.choices[-1]}'")
        parts += [f"label: column '{self.label}' (the right choice)"] if self.label else []
        return ", ".join(parts)


# --- columns ---


def find_choice_columns(rows: Sequence[Mapping[str, Any]], given: Mapping[str, Any]) -> ChoiceColumns | None:
    """Find the columns of multiple-choice rows by their usual names and by the first rows of a file.

    Args:
        rows: Some rows by column name, at least one.
        given: Columns that the user named, by the keys ``text``, ``text_pair``, ``choices`` and ``label``.

    Returns:
        The columns; None if the file has no choices with such names, or no text that belongs to them. In a file without a
        header, where the user named nothing, the contents decide.
    """
    if not given and (unnamed := _find_unnamed(rows)) is not None:
        return unnamed
    name_of = {plain_name(name): name for row in reversed(rows) for name in row}
    choices = given.get("choices") or _find_choices(rows, name_of)
    if choices is None:
        return None
    taken = {choices} if isinstance(choices, str) and plain_name(choices) != "question" else set(choices)
    left = {plain: name for plain, name in name_of.items() if name not in taken}
    text, pair = given.get("text"), given.get("text_pair")
    if text is None:
        first, second = next(((a, b) for a, b in _PAIRS if a in left and b in left), ("", ""))
        if first and not isinstance(rows[0].get(left[second]), Mapping):
            text, pair = left[first], pair or left[second]
        else:
            text = next((left[plain] for plain in _TEXTS if plain in left), None)
    label = given.get("label") or next((left[plain] for plain in _LABELS if plain in left), None)
    return None if text is None else ChoiceColumns(text, pair, choices, label)


def _find_unnamed(rows: Sequence[Mapping[str, Any]]) -> ChoiceColumns | None:
    """Return the columns of a file without a header that has a question, its choices and the letter of the right one, as MMLU has; else None."""
    names = [*rows[0]]
    if len(names) < _FEWEST_UNNAMED or not all(map(is_numbered_column, names)):
        return None
    question, *choices, right = names
    letters = {chr(ord("A") + i) for i in range(len(choices))}
    marks = {row.get(right) for row in rows}
    is_question = sum(len(str(row.get(question)).split()) for row in rows) >= _QUESTION_WORDS * len(rows)
    differ = all(len({row.get(name) for name in choices}) == len(choices) for row in rows)
    is_marked = marks <= letters and len(marks) > 1
    return ChoiceColumns(question, None, choices, right) if is_question and differ and is_marked else None


def _find_choices(rows: Sequence[Mapping[str, Any]], name_of: Mapping[str, str]) -> str | list[str] | None:
    """Return the column that lists the choices, or the columns of single choices in order; None if none is found."""
    for name in (name_of[plain] for plain in _LISTS if plain in name_of):
        try:
            if all(len(parse_choices(row.get(name))[0]) >= _FEWEST for row in rows):
                return name
        except ValueError:
            continue
    stems: dict[str, dict[str, str]] = {}
    for plain, name in name_of.items():
        match = _NUMBERED.fullmatch(plain)
        if match and match[1] in _STEMS and not (match[1] == "" and match[2].isdecimal()):
            stems.setdefault(match[1], {})[match[2]] = name
    for stem in (stem for stem in _STEMS if len(stems.get(stem, {})) >= _FEWEST):
        numbers = sorted(stems[stem], key=lambda n: (len(n), n))
        first = int(numbers[0]) if numbers[0].isdecimal() else None
        wanted = (
            [chr(_FIRST_LETTER + i) for i in range(len(numbers))]
            if first is None
            else [str(first + i) for i in range(len(numbers))]
        )
        if numbers == wanted and first in (None, 0, 1):
            return [stems[stem][number] for number in numbers]
    return None


def marks_a_choice(row: Mapping[str, Any], columns: ChoiceColumns) -> bool:
    """Return whether a row has a question and a label that marks one of its choices, so that it surely is a row of multiple choice."""
    label = row.get(columns.label) if columns.label else None
    try:
        if isinstance(columns.choices, str):
            texts, keys = parse_choices(row.get(columns.choices))
        else:
            texts, keys = tuple(str(row.get(name)) for name in columns.choices), tuple(columns.choices)
        right = parse_right_choice(label, texts, keys)
    except ValueError:
        return False
    return isinstance(parse_question(row.get(columns.text)), str) and 0 <= int(right) <= len(texts)


# --- cells ---


def parse_question(cell: Any) -> Any:
    """Return the text of a question's cell: the stem of an object {stem, choices}, any other cell unchanged."""
    return cell.get("stem") if isinstance(cell, Mapping) else cell


def parse_choices(cell: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Read a cell that holds all choices of a row; return their texts and keys.

    The cell may be a list of texts, a list of {text, label}, an object of two lists {text, label}, an object that maps
    keys to texts, or an object that has one of these as ``choices``. Cells of .csv and .tsv files hold these as JSON, or as
    Python prints it.

    Args:
        cell: The cell of the choices column.

    Returns:
        The texts of the choices, and their keys, such as A, B, C; no keys if the texts have none.

    Raises:
        ValueError: If the cell has none of these forms, or fewer than two choices; the message is for users.
    """
    cell = parse_literal(cell)
    if isinstance(cell, Mapping) and "choices" in cell:
        cell = cell["choices"]
    texts: Sequence[Any] = ()
    keys: Sequence[Any] = ()
    if isinstance(cell, Mapping) and isinstance(cell.get("text"), list | tuple):
        texts, keys = cell["text"], cell.get("label") or ()
    elif isinstance(cell, Mapping):
        texts, keys = [*cell.values()], [*cell]
    elif isinstance(cell, list | tuple) and cell and all(isinstance(entry, Mapping) for entry in cell):
        texts = [entry.get("text") for entry in cell]
        keys = [entry["label"] for entry in cell if "label" in entry]
    elif isinstance(cell, list | tuple):
        texts = cell
    if len(texts) < _FEWEST or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"choices {shorten_repr(cell)} are not a list of at least {_FEWEST} texts.")
    return tuple(texts), tuple(map(str, keys)) if len(keys) == len(texts) else ()


def parse_right_choice(cell: Any, texts: Sequence[str], keys: Sequence[str]) -> int | str:
    """Read which choice is right: a number, a letter, a key, or the text of the choice itself.

    Args:
        cell: The cell of the label.
        texts: The choices.
        keys: Keys of the choices, such as A, B, C, or the names of their columns; may be empty.

    Returns:
        The index of the right choice, from 0. A whole number that is no key is returned as text, whatever it is, since only all
        rows together show whether the file counts from 0 or from 1.

    Raises:
        ValueError: If the cell marks no choice; the message is for users.
    """
    written = str(cell).strip() if isinstance(cell, str | int | float) and not isinstance(cell, bool) else ""
    if written in keys:
        return list(keys).index(written)
    number = number_of(cell) if written else None
    if isinstance(number, int):
        return str(number)
    if written in texts:
        return list(texts).index(written)
    match = _LETTER.fullmatch(written)
    place = ord(match[1].lower()) - _FIRST_LETTER if match else len(texts)
    if place < len(texts):
        return place
    shown = shorten_repr(cell)
    raise ValueError(
        f"{shown} marks none of the {len(texts)} choices; give its number, its letter, its key or its text."
    )


def choice_columns(choices: str | Sequence[str] | None) -> list[str]:
    """Return the columns that the setting `choices` of a data source names, as a list; empty for None."""
    return [choices] if isinstance(choices, str) else list(choices or ())


def parse_choice_row(
    row: Mapping[str, Any], columns: Sequence[str], before: str | None, cell: Any
) -> tuple[tuple[str, ...], int | str | None]:
    """Read the choices of a multiple-choice row, with `before` put in front of each, and which one is right.

    Args:
        row: The cells of the row by column name.
        columns: One column with all choices, or the column of each choice.
        before: Text that is put before each choice; None for none.
        cell: The cell of the label, which marks the right choice.

    Returns:
        The choices, and the right one as `parse_right_choice` returns it; None in its place if the row has no label.

    Raises:
        ValueError: If a choice is empty or no text, or the label marks none of them; the message is for users.
    """
    if len(columns) == 1:
        texts, keys = parse_choices(row[columns[0]])
    else:
        texts, keys = tuple(str(row[name]) for name in columns), tuple(columns)
    if empty := [i for i, choice in enumerate(texts, 1) if not (is_unicode(choice) and is_visible(choice))]:
        raise ValueError(f"choice {empty[0]} is empty, or no Unicode text.")
    right = parse_right_choice(cell, texts, keys) if cell not in (None, "") else None
    return tuple(f"{before} {text}" if before else text for text in texts), right


def count_from_zero(rows: Sequence[tuple[int, Any, int]], bad: BadRows, column: str) -> list[int | None]:
    """Convert the right choices of all rows to indices from 0; None for a row without a label.

    A right choice that is text is the number in the file. The file counts from 0 if a number is 0, and from 1 if none is and at
    least one is the number of choices of its row. If neither is so, the first of these rows is bad. Rows in `bad` have an index, too.

    Args:
        rows: For each row its number in the file, the right choice as `parse_right_choice` returns it, and the number
            of choices.
        bad: Collects the rows whose number is not that of a choice.
        column: Column of the label, for the messages about bad rows.
    """
    numbers = [(int(right), count) for _, right, count in rows if isinstance(right, str)]
    first = int(all(number for number, _ in numbers) and any(number == count for number, count in numbers))
    places: list[int | None] = []
    if numbers and not first and all(0 < number < count for number, count in numbers):
        row, right, _ = next(row for row in rows if isinstance(row[1], str))
        what = f"column '{column}': {right} may count the choices from 0 or from 1: no row of the file has 0, and none has the number of its choices."
        bad.add(
            row,
            what,
            "Write letters (A, B, ...), or add a row that has 0 (if they count from 0) or the number of its choices (if from 1).",
        )
    for row, right, count in rows:
        place = int(right) - first if isinstance(right, str) else right
        if place is not None and not 0 <= place < count:
            bad.add(row, f"column '{column}': {right} is no number of its {count} choices, which count from {first}.")
        places.append(place)
    return places
