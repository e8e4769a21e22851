"""A teacher's answers in a column of a data file: probabilities, logits, votes, labels, scores, vectors, token and span scores.

- `read_answer` reads the cell of one row as a `TeacherAnswer`, within bounds.
- `find_answer_kind` finds what the numbers of all rows are, `find_answer_form` what kind of answers a cell seems to hold.
- `answer_logits` turns the answer of a row into logits in the order of a label set, which losses compare with a student's.
- `fill_from_teacher` gives a row without a label the label that its answer amounts to.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.cells import (
    are_probabilities,
    find_word_places,
    merge_scored_labels,
    normalize_name,
    number_of,
    parse_list,
    parse_literal,
)
from pocketbert.core.data.column_names import LABEL_NAMES, plain_name
from pocketbert.core.errors import shorten_repr
from pocketbert.core.predict.examples import TeacherAnswer
from pocketbert.core.predict.spans import have_iob_prefixes, normalize_tags, spans_from_tags
from pocketbert.core.tasks import LabelKind
from pocketbert.core.types import AnswerKind

if TYPE_CHECKING:  # the sections are pydantic's, and a model that answers reads none
    from pocketbert.core.data.source import DataSource, TeacherColumn

_SCIENTIFIC = re.compile(r"[+-]?\d+(\.\d+)?[eE][+-]?\d+", re.ASCII)
_MOST_NUMBERS = 1 << 20
"""Numbers in one cell."""
_LARGEST = 1e30
_ROUNDING = 0.05
"""What the sum of rounded probabilities may exceed 1 by, or fall short of it where every label is named."""
_MISSING_VOTES = frozenset(["", "na", "n/a", "nan", "none", "null", "<na>", "#n/a", "-"])
"""What an empty cell among several columns may hold, in lower case."""
MOST_ODD = 0.1
"""Share of rows up to which answers unlike the others are mistakes in the data."""
LEAST_LOG = -60.0
"""Logarithm that stands for a probability of 0: finite, and 0 in float32 at every usual temperature."""
_NUMBER_KEYS = ("probs", "probabilities", "scores", "logits")
_WHOLE = (-1, -1)
"""Place of the score of no answer in the text."""

_Name = int | float | str
_Array = NDArray[np.float32] | NDArray[np.float64]


# --- cells ---


def read_answer(
    section: TeacherColumn,
    row: Mapping[str, Any],
    kind: LabelKind,
    words: Sequence[tuple[int, int]] | None,
    text: str,
    separator: str | None = None,
) -> TeacherAnswer | None:
    """Read the teacher's answer of one row; None if the row has none.

    Args:
        section: The setting that names the column of answers, or several.
        row: The row by column name.
        kind: Kind of the task's labels, which decides the form of an answer.
        words: Start and end of each word of the text, if known, for answers with a row of numbers for each word.
        text: The text in which the positions of tags and answers lie.
        separator: Text that separates several labels in one cell; by default a semicolon.

    Raises:
        ValueError: If the cell holds no answer of this kind; the message is for users.
    """
    cell = _cell_of(section.column, row)
    if cell is None or (isinstance(cell, str) and not cell.strip()) or (isinstance(cell, float) and math.isnan(cell)):
        return None
    if cell == {} or (cell == [] and kind is not LabelKind.NAMES):
        return None
    confidence = row.get(section.confidence) if section.confidence is not None else None
    match kind:
        case LabelKind.NAME | LabelKind.NAMES:
            cell = merge_scored_labels(cell) or cell
            names, values, kinds = _read_entry(cell, kind is LabelKind.NAMES, separator or ";", confidence)
            return TeacherAnswer(names, values[None], kinds)
        case LabelKind.SCORE:
            value = _read_numbers([cell[0]] if isinstance(cell, list | tuple) and len(cell) == 1 else [cell])
            return TeacherAnswer((), value[None], _possible_kinds(value, several=True))
        case LabelKind.CHOICE:
            values = _read_numbers(cell)
            return TeacherAnswer((), values[None], _possible_kinds(values))
        case LabelKind.SCORE_OR_NONE:
            vectors = cell if isinstance(cell, list | tuple) and cell and isinstance(cell[0], list | tuple) else [cell]
            widths = {len(v) for v in vectors if isinstance(v, list | tuple)}
            if len(widths) != 1:
                raise ValueError(f"{shorten_repr(cell)} is not a vector, nor one for each text of a pair.")
            return TeacherAnswer((), np.stack([_read_numbers(v) for v in vectors]).astype(np.float32), frozenset())
        case LabelKind.SPANS:
            return _read_units(cell, words, len(text))
        case LabelKind.ANSWERS:
            return _read_span_scores(cell, len(text))
    raise ValueError("a teacher column has no meaning for a task without labels.")


def teacher_columns(section: TeacherColumn | None) -> list[str]:
    """Return the columns to read for a teacher's answers: `column` whole and parted at its commas, and that of the confidence; empty for None."""
    if section is None:
        return []
    names = [section.column, *section.column.split(",")]
    return [*dict.fromkeys(names), *([section.confidence] if section.confidence else [])]


def fill_from_teacher(
    source: DataSource, row: dict[str, Any], kind: LabelKind, is_empty: bool
) -> tuple[dict[str, Any], TeacherAnswer | None]:
    """Read the teacher's answer of a row; return the row and the answer.

    If the row has no label, or its label column is the teacher's, the returned row has the label that the answer gives, if it gives
    one, and the answer is marked with `gives_label`. Without a `teacher` in the source the answer is None.

    Args:
        source: The source, whose `teacher` names the column.
        row: The row by column name.
        kind: Kind of the task's labels.
        is_empty: Whether the row has no label of its own.

    Raises:
        ValueError: If the cell is no answer; the message is for users.
    """
    if source.teacher is None:
        return row, None
    text, words, is_listed = row.get(source.text), None, False
    if kind is LabelKind.SPANS:
        cell, text = _cell_of(source.teacher.column, row), parse_list(text)
        is_listed = isinstance(text, list | tuple)
        text, words = find_word_places(text, [None] * len(cell) if isinstance(cell, list | tuple) else None)
    context = row.get(source.text_pair) if kind is LabelKind.ANSWERS and source.text_pair else text
    answer = read_answer(
        source.teacher, row, kind, words, context if isinstance(context, str) else "", source.separator
    )
    is_same = source.label == source.teacher.column  # then the label says no more than the answer
    label = None
    if answer is not None and (is_empty or is_same):
        label = _most_likely_cell(answer, kind, str(context), words if is_listed else None)
    if answer is None or label is None:
        return ({**row, source.label: None} if is_same else row), answer
    return {**row, source.label: label}, replace(answer, gives_label=True)


def _cell_of(column: str, row: Mapping[str, Any]) -> Any:
    """Return the cell of a column; a list or object that is written as text is parsed.

    Of several columns it is a dictionary {column: number}, or the list of their labels, which are votes; None if all are empty.

    Raises:
        ValueError: If some of several columns hold labels and others numbers.
    """
    if column not in row and "," in column:
        given = {name: row.get(name) for name in column.split(",")}
        given = {name: None if str(cell).strip().lower() in _MISSING_VOTES else cell for name, cell in given.items()}
        labels = [cell for cell in given.values() if isinstance(cell, str | bool) and _read_number(cell) is None]
        if labels and len(labels) == sum(cell is not None for cell in given.values()):
            return labels
        if labels:
            raise ValueError(f"{shorten_repr(labels[0])} is a label, and other columns of the row hold numbers.")
        cells = {name: _read_number(cell) if isinstance(cell, str) else cell for name, cell in given.items()}
        return None if all(cell is None for cell in cells.values()) else cells
    return parse_literal(row.get(column))


def _read_number(cell: str | bool) -> int | float | None:
    """Return the number that a cell spells, such as 0.5 or 9.8e-05; None for a label."""
    return float(cell) if isinstance(cell, str) and _SCIENTIFIC.fullmatch(cell.strip()) else number_of(cell)


def _read_entry(
    cell: Any, several: bool, separator: str, confidence: Any = None
) -> tuple[tuple[_Name, ...], _Array, frozenset[AnswerKind]]:
    """Convert a teacher's answer about a text or token to label names, numbers, and their possible kinds.

    The names are empty if the cell has numbers only, in the order of the labels. Numbers may fit several kinds, for
    example logits and probabilities.

    Args:
        cell: The answer in one of these forms: {name: number}; a list of numbers, one for each label; one label; a list
            of labels. The labels of a list are votes, or with `several` those that apply, which may also be one text.
        several: Whether a text may have several labels.
        separator: Text between the labels if a cell has several in one text.
        confidence: Probability of a single label, from a column of its own; 1 if there is none.

    Raises:
        ValueError: If the cell has none of these forms, or the confidence is not above 0 and at most 1.
    """
    if isinstance(cell, dict):
        given = {key: value for key, value in cell.items() if value is not None}
        values = _read_numbers([*given.values()])
        return tuple(_as_name(key) for key in given), values, _possible_kinds(values, several)
    if isinstance(cell, list | tuple) and cell and not isinstance(cell[0], str | bool):
        values = _read_numbers(cell)
        return (), values, _possible_kinds(values, several)
    if several:
        parts = [part.strip() for part in cell.split(separator)] if isinstance(cell, str) else cell
        if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
            raise ValueError(f"{shorten_repr(cell)} is no list of labels, and has no number for each label.")
        names = tuple(_as_name(part) for part in parts if part)
        return names, np.ones(len(names)), frozenset([AnswerKind.LABELS])
    if isinstance(cell, list | tuple):
        votes = Counter(map(_as_name, cell))
        return tuple(votes), np.array([*votes.values()], np.float64), frozenset([AnswerKind.VOTES])
    value = 1.0
    if confidence not in (None, ""):
        value = float(_read_numbers([confidence])[0])
        if not 0 < value <= 1:
            raise ValueError(f"the confidence {shorten_repr(confidence)} is not above 0 and at most 1.")
    return (_as_name(cell),), np.array([value]), frozenset([AnswerKind.LABELS])


def _as_name(label: Any) -> _Name:
    """Return a label as labels are compared; raise ValueError for an empty text, a list or an object."""
    if not (isinstance(label, int | float) or (isinstance(label, str) and label.strip())):
        raise ValueError(f"{shorten_repr(label)} is no label.")
    return normalize_name(label)


def _read_numbers(cell: Any) -> _Array:
    """Return a list of numbers, or of texts that are numbers, as float64; raise ValueError for another cell or a number that is not finite."""
    if not isinstance(cell, list | tuple) or not 0 < len(cell) <= _MOST_NUMBERS:
        raise ValueError(f"{shorten_repr(cell)} is no list of numbers.")
    values = np.empty(len(cell), np.float64)
    for i, entry in enumerate(cell):
        try:
            values[i] = math.nan if isinstance(entry, bool | list | tuple | dict) else float(entry)
        except (TypeError, ValueError):
            values[i] = math.nan
        if not abs(values[i]) <= _LARGEST:
            raise ValueError(f"{shorten_repr(entry)} is no finite number.")
    return values


def _possible_kinds(values: _Array, several: bool = False) -> frozenset[AnswerKind]:
    """Return what the numbers of one answer can be by their range and sum: logits always; with `several`, a probability for each label, no votes."""
    kinds = {AnswerKind.LOGITS}
    numbers = values
    total = float(numbers.sum())
    if (numbers >= 0).all() and (numbers <= 1).all() and (several or 0 < total <= 1 + _ROUNDING):
        kinds.add(AnswerKind.PROBABILITIES)
    if not several:
        if (numbers >= 0).all() and (numbers == np.floor(numbers)).all() and total >= 1:
            kinds.add(AnswerKind.VOTES)
        if (numbers <= 0).all() and np.exp(numbers).sum() <= 1 + _ROUNDING:
            kinds.add(AnswerKind.LOG_PROBABILITIES)
    return frozenset(kinds)


def _read_units(cell: Any, words: Sequence[tuple[int, int]] | None, size: int) -> TeacherAnswer:
    """Read the answers about the units of a text: one for each word, or objects {start, end, probs}.

    A unit is a word or a token of the teacher, in whichever way its tokenizer splits the text. Raises ValueError for other cells.
    """
    if not isinstance(cell, list | tuple) or not cell:
        raise ValueError(f"{shorten_repr(cell)} is no list with an answer for each word.")
    entries, places = list[Any](cell), list[tuple[int, int]](words or ())
    if all(isinstance(entry, dict) and {"start", "end"} <= {*entry} for entry in cell):
        entries = [next((entry[key] for key in _NUMBER_KEYS if key in entry), entry.get("label")) for entry in cell]
        places = [_read_place(entry["start"], entry["end"], size) for entry in cell]
    elif words is None:
        raise ValueError("answers about words need a text that is a list of words, or {start, end, probs}.")
    if len(entries) != len(places):
        raise ValueError(f"the numbers of answers ({len(entries)}) and of words ({len(places)}) differ.")
    read = [_read_entry(entry, False, ";") for entry in entries]
    names = tuple(dict.fromkeys(name for own, _, _ in read for name in own))
    if not names and len({len(values) for _, values, _ in read}) > 1:
        raise ValueError("the words have different numbers of values.")
    place_of = {name: i for i, name in enumerate(names)}
    matrix = np.full((len(read), len(names) or len(read[0][1])), np.nan)
    for i, (own, values, _) in enumerate(read):
        if bool(own) is not bool(names):
            raise ValueError("some words have label names, others have none.")
        matrix[i, [place_of[name] for name in own] if own else slice(None)] = values
    kinds = frozenset.intersection(*(kinds for _, _, kinds in read))
    return TeacherAnswer(names, matrix, kinds, np.array(places, np.int64).reshape(-1, 2))


def _read_place(start: Any, end: Any, size: int) -> tuple[int, int]:
    """Return the start and end of a unit; raise ValueError if they lie outside the `size` characters of the text."""
    if type(start) is not int or type(end) is not int or not 0 <= start < end <= size:
        raise ValueError(
            f"[{shorten_repr(start)}, {shorten_repr(end)}] is no place in the {size} characters of the text."
        )
    return start, end


def _read_span_scores(cell: Any, size: int) -> TeacherAnswer:
    """Read the probabilities of an answer's first and last characters: {start: [[character, p], ...], end: [...], null: p}.

    `end` counts characters as spans do: the one behind the last. `null` is the probability that the context has no answer,
    or a list of one for the start and one for the end. Raises ValueError for other cells.
    """
    if not isinstance(cell, dict) or not {"start", "end"} <= {*cell}:
        raise ValueError(
            f"{shorten_repr(cell)} is no object {{start: [[character, p], ...], end: [[character, p], ...]}}."
        )
    rows: dict[tuple[int, int], list[float]] = {}
    for column, key in enumerate(("start", "end")):
        if not isinstance(cell[key], list | tuple):
            raise ValueError(f"{key} is no list of [character, probability].")
        for entry in cell[key]:
            # Parquet stores both numbers as floats
            if not isinstance(entry, list | tuple) or len(entry) != 2 or entry[0] != number_of(entry[0]):
                raise ValueError(f"{shorten_repr(entry)} is no [character, probability].")
            character = number_of(entry[0]) or 0
            place = _read_place(character - column, character - column + 1, size)
            rows.setdefault(place, [0.0, 0.0])[column] += float(_read_numbers(entry[1:])[0])
    if (null := cell.get("null")) is not None:
        both = _read_numbers(null if isinstance(null, list | tuple) else [null, null])
        if len(both) != 2:
            raise ValueError("null is one probability, or one for the start and one for the end.")
        rows[_WHOLE] = [float(value) for value in both]
    values = np.array([*rows.values()], np.float64).reshape(-1, 2)
    if (values < 0).any() or (values.sum(0) > 1 + _ROUNDING).any():
        raise ValueError("start and end are no probabilities: each is at least 0, and all together at most 1.")
    kinds = frozenset([AnswerKind.PROBABILITIES])
    return TeacherAnswer(("start", "end"), values, kinds, np.array([*rows], np.int64).reshape(-1, 2))


# --- columns ---

_KIND_ORDER = (
    AnswerKind.LABELS,
    AnswerKind.PROBABILITIES,
    AnswerKind.VOTES,
    AnswerKind.LOG_PROBABILITIES,
    AnswerKind.LOGITS,
)


def find_answer_kind(answers: Iterable[TeacherAnswer]) -> AnswerKind | None:
    """Return what the numbers of all answers can be: the first of labels, probabilities, votes, log-probabilities and logits; None if nothing fits all."""
    common: frozenset[AnswerKind] | None = None
    for answer in answers:
        common = answer.kinds if common is None else common & answer.kinds
    return next((kind for kind in _KIND_ORDER if common and kind in common), None)


ANSWER_WORDS = {
    AnswerKind.LABELS: "labels",
    AnswerKind.PROBABILITIES: "probabilities (from 0 to 1; of labels that exclude each other about 1 in all)",
    AnswerKind.VOTES: "votes (whole numbers from 0, at least one of them above 0)",
    AnswerKind.LOG_PROBABILITIES: "logarithms of probabilities",
    AnswerKind.LOGITS: "logits (numbers of any size)",
}
"""What the numbers of answers can be, in words."""


def find_odd_answers(answers: Sequence[tuple[int, TeacherAnswer]]) -> list[tuple[int, str]]:
    """Find the rows whose numbers are no probabilities, votes or labels, while those of nearly all other rows are.

    Such a row would make all numbers count as logits, which any numbers can be.

    Args:
        answers: Row number and answer of each row; of tasks that choose among labels.

    Returns:
        Row number and what is wrong, a sentence for users; empty if all numbers can be of one kind other than logits, or
        if less than 90 % of the rows can be labels, probabilities or votes.
    """
    if find_answer_kind(answer for _, answer in answers) not in (None, AnswerKind.LOGITS):
        return []
    for kind in (AnswerKind.LABELS, AnswerKind.PROBABILITIES, AnswerKind.VOTES):
        odd = [(row, answer) for row, answer in answers if kind not in answer.kinds]
        if 0 < len(odd) <= MOST_ODD * len(answers):
            rest = f"are no {ANSWER_WORDS[kind]}, as those of {len(answers) - len(odd):,} other rows are."
            return [(row, f"the numbers {_show_numbers(answer)} {rest}") for row, answer in odd]
    return []


def _show_numbers(answer: TeacherAnswer) -> str:
    """Return the first numbers of an answer and their sum, for an error."""
    row = answer.values[0][~np.isnan(answer.values[0])]
    shown = ", ".join(f"{value:.4g}" for value in row[:4])
    return f"{shown}{', ...' if len(row) > 4 else ''} (sum {float(row.sum()):.4g})"


def _most_likely_cell(
    answer: TeacherAnswer, kind: LabelKind, text: str, listed: Sequence[tuple[int, int]] | None
) -> Any:
    """Return the label that follows from an answer, as a label cell; None if none does.

    It is the most likely label, the labels with a probability of at least 0.5, a score, the position of a choice, spans, answers in
    `text`, or a tag for each of the `listed` words of a text that is a list of words. Labels without names are positions.
    """
    row, names = answer.values[0], answer.names
    match kind:
        case LabelKind.NAME:
            best = int(np.nanargmax(row))
            return names[best] if names else best
        case LabelKind.NAMES:
            least = 0.0 if answer.kinds == {AnswerKind.LOGITS} else 0.5
            return [names[i] if names else i for i in np.flatnonzero(row >= least).tolist()]
        case LabelKind.SCORE:
            return float(row[0])
        case LabelKind.CHOICE:
            return int(row.argmax())
        case LabelKind.SPANS if names and answer.places is not None:
            tags = normalize_tags([str(names[i]) for i in np.nanargmax(answer.values, 1)])
            if listed is not None and answer.places.tolist() == [[*place] for place in listed]:
                return tags
            found = spans_from_tags(tags, [(int(a), int(b)) for a, b in answer.places], not have_iob_prefixes(tags))
            return [asdict(span) for span in found]
        case LabelKind.ANSWERS if answer.places is not None and len(answer.places):
            first, last = (answer.places[i] for i in answer.values.argmax(0))
            start, end = int(first[0]), int(last[1])
            if start < 0 or end <= start:
                return []
            return [{"text": text[start:end], "answer_start": start}]
    return None


def answer_logits(
    answer: TeacherAnswer,
    ids: Sequence[int] | None,
    labels: int,
    kind: AnswerKind,
    smoothing: float,
    sigmoid: bool = False,
) -> NDArray[np.float32]:
    """Return the logits [n, labels] whose softmax, or sigmoid, is the answer.

    What is missing to 1 is spread evenly over the labels that are not named; with `sigmoid` these get 0.

    Args:
        answer: The answer.
        ids: Label id of each of the answer's names; None if the values are in the order of the labels.
        labels: Number of labels.
        kind: What the answer's numbers are, such as probabilities.
        smoothing: Share of the probability that is spread evenly over all labels.
        sigmoid: Whether each label has a probability of its own.

    Raises:
        ValueError: If the numbers are more or fewer than the labels, logits do not name all labels, or probabilities do not
            add up; the message is for users.
    """
    values = answer.values
    if ids is None and values.shape[1] != labels:
        raise ValueError(f"has {values.shape[1]} numbers, there are {labels} labels.")
    full = np.full((len(values), labels), np.nan)
    full[:, slice(None) if ids is None else list(ids)] = values
    given = ~np.isnan(full)
    if kind is AnswerKind.LOGITS:
        if not given.all():
            raise ValueError(f"names {int(given.sum(1).min())} of {labels} labels; logits need all of them.")
        if not smoothing:
            return full.astype(np.float32)
        powers = np.exp(full - full.max(1, keepdims=True))
        full = (
            1 / (1 + np.exp(-np.clip(full, LEAST_LOG, -LEAST_LOG)))
            if sigmoid
            else powers / powers.sum(1, keepdims=True)
        )
    numbers = np.where(given, full, 0.0)
    if sigmoid:
        held = (1 - smoothing) * numbers + smoothing / 2
        return np.clip(_log(held) - _log(1 - held), LEAST_LOG, -LEAST_LOG).astype(np.float32)
    if kind is AnswerKind.LOG_PROBABILITIES:
        numbers = np.where(given, np.exp(numbers), 0.0)
    if kind is AnswerKind.VOTES:
        numbers = numbers / np.maximum(numbers.sum(1, keepdims=True), 1)
    total, left = numbers.sum(1, keepdims=True), (~given).sum(1, keepdims=True)
    if (total > 1 + _ROUNDING).any() or (total <= 0).any() or ((left == 0) & (total < 1 - _ROUNDING)).any():
        raise ValueError(f"the probabilities add up to {float(total.flat[0]):.3g}.")
    numbers = np.where((left == 0) | (total > 1), numbers / total, numbers)
    rest = np.maximum(1 - numbers.sum(1, keepdims=True), 0) / np.maximum(left, 1)
    spread = (1 - smoothing) * np.where(given, numbers, rest) + smoothing / labels
    return np.asarray(_log(spread), np.float32)


def _log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return natural logarithms, at least `LEAST_LOG`."""
    return np.asarray(np.log(np.maximum(values, math.exp(LEAST_LOG))))


_USUAL_NAMES = (
    *("probs", "probabilities", "logits", "teacher", "teacher_probs", "teacher_logits", "soft_labels", "soft_label"),
    *("votes", "logprobs", "distribution", "predictions", "scores"),
)
"""Usual names of a column with a teacher's answers."""
_FEWEST_DIMENSIONS = 16
"""Numbers of the shortest list that is taken for a vector."""


def is_answer_name(column: str) -> bool:
    """Return whether a column has a usual name of answers, or one of the most usual names of labels."""
    return column.lower() in _USUAL_NAMES or any(plain_name(column) in tier for tier in LABEL_NAMES[:2])


def find_answer_form(cell: Any, column: str) -> LabelKind | None:
    """Return the kind of label for which a cell seems to hold a teacher's answer; None if it seems to hold none.

    Numbers by label count as an answer if they are probabilities, or if the column has a usual name for answers.
    `LabelKind.NAMES` is returned for probabilities that add up to more than 1, `LabelKind.SCORE_OR_NONE` for a vector,
    `LabelKind.SPANS` for a list of objects with numbers, `LabelKind.ANSWERS` for an object with lists of starts and ends.
    Whole numbers as scores or in a vector count too, although they may be ratings or ids; the caller has to compare other cells.

    Args:
        cell: The cell.
        column: Name of its column.
    """
    cell = parse_literal(cell)
    if (scored := merge_scored_labels(cell)) is not None:
        return LabelKind.NAME if sum(scored.values()) <= 1 + _ROUNDING else LabelKind.NAMES
    if isinstance(cell, dict) and {"start", "end"} <= {*cell} and isinstance(cell["start"], list | tuple):
        return LabelKind.ANSWERS
    entries = cell if isinstance(cell, list | tuple) else ()
    if entries and all(isinstance(entry, dict) for entry in entries):
        are_units = all(any(key in entry for key in _NUMBER_KEYS) for entry in entries)
        return LabelKind.SPANS if are_units or all(map(are_probabilities, entries)) else None
    is_usual = column.lower() in _USUAL_NAMES and isinstance(cell, dict | list | tuple) and len(cell) > 1
    values = list(cell.values() if isinstance(cell, dict) else cell) if is_usual else []
    if are_probabilities(cell):
        return LabelKind.NAME
    if values and all(isinstance(v, int | float) or v is None for v in values):
        numbers = [v for v in values if v is not None]
        are_single = not all(0 <= v <= 1 for v in numbers) or sum(numbers) <= 1 + _ROUNDING
        return LabelKind.NAME if are_single or all(isinstance(v, int) for v in numbers) else LabelKind.NAMES
    are_numbers = all(isinstance(entry, int | float) and not isinstance(entry, bool) for entry in entries)
    return LabelKind.SCORE_OR_NONE if len(entries) >= _FEWEST_DIMENSIONS and are_numbers else None
