"""What all teachers of `pocketbert teach` share: rows, kinds of answers, their mean over several teachers, and their cells.

A `Teacher` answers rows; `mean_answer` averages the answers of several teachers for one row, `make_cell` words the mean as the cell
of a column that recipes read (`pocketbert.core.data.teacher_column`), and `best_of` is what a single answer comes to, by which
teachers are compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.cells import find_word_places
from pocketbert.core.errors import InputError, Problem, shorten_list

Array = NDArray[np.float64]
_UNIT = re.compile(r"\w+|[^\w\s]")
_LEAST_SPAN = 1e-4
"""Probability below which a character is left out as the start or end of an answer."""
_DIGITS = 7
_VECTOR_DIGITS = 6


class AnswerForm(StrEnum):
    """What a teacher answers about a row."""

    LABEL = "a probability for each label"
    LABELS = "a probability of each label by itself"
    SCORE = "a number"
    VECTOR = "a vector"
    TAGS = "a probability of each tag for each word"
    SPAN = "probabilities of an answer's start and end"


@dataclass(frozen=True)
class AskedRow:
    """A row that teachers answer.

    Attributes:
        text: The text. Words of a list are joined with blanks.
        pair: The second text; None without one.
    """

    text: str
    pair: str | None

    def units(self) -> list[tuple[int, int]]:
        """Return the start and end of each word and punctuation mark of the text. Teachers of tags answer about these units."""
        return [match.span() for match in _UNIT.finditer(self.text)]


class Teacher(Protocol):
    """Interface of a teacher, which answers rows: a model, a model of inference, or a language model behind an address.

    Attributes:
        title: Name for messages.
        form: Form of the answers.
        names: Labels or tags, in the order of the numbers of an answer; empty for answers without labels.
    """

    title: str
    form: AnswerForm
    names: tuple[str, ...]

    def answer(self, rows: Sequence[AskedRow]) -> list[Array]:
        """Return an answer for each row.

        Returns:
            Probabilities [labels], a number [1] or a vector [W] for a text; probabilities [units, tags] for tags. For spans [characters + 1, 2] of the second text:
            the probabilities that the answer starts, and that it ends, with each character, and in the last row that
            there is none.
        """
        ...


def asked_row(text: Any, pair: Any) -> AskedRow:
    """Build the row that teachers answer from the cells of a data file; the words of a list in `text` are joined with blanks.

    Raises:
        ValueError: If the text is empty, or a cell is neither text nor, for `text`, a list of words.
    """
    text, _ = find_word_places(text, None)
    if not isinstance(text, str) or not text.strip():
        raise ValueError("the text is empty" if isinstance(text, str) else f"the text is {type(text).__name__}")
    if pair is not None and not isinstance(pair, str):
        raise ValueError(f"the second text is {type(pair).__name__}")
    return AskedRow(text, pair)


def align_teachers(teachers: Sequence[Teacher]) -> list[list[int] | None]:
    """Match the labels of teachers with those of the first, and return for each teacher how to reorder its answers.

    Returns:
        For each teacher the indices of the first teacher's labels among its own; None if the order is the same.

    Raises:
        InputError: If teachers give answers of different forms, or have different labels.
    """
    first, problems, orders = teachers[0], list[Problem](), list[list[int] | None]()
    for teacher in teachers:
        if teacher.form is not first.form:
            what = f"answers with {teacher.form}, '{first.title}' with {first.form}."
            problems.append(Problem(teacher.title, what, "Average teachers of one task."))
        elif {*teacher.names} != {*first.names}:
            differing = sorted({*teacher.names} ^ {*first.names})
            what = f"has other labels than '{first.title}': {shorten_list(differing)} belong to one of them only."
            problems.append(Problem(teacher.title, what, "Average teachers of the same labels."))
        else:
            same = teacher.names == first.names
            orders.append(None if same else [teacher.names.index(name) for name in first.names])
    if problems:
        raise InputError(problems)
    return orders


def mean_answer(form: AnswerForm, answers: Sequence[Array], weights: Sequence[float]) -> Array:
    """Average the answers of several teachers for one row.

    Vectors of several teachers are scaled to length 1 and concatenated instead, each times the root of its weight: the cosine
    of two such vectors is the mean of the teachers' cosines.

    Args:
        form: Form of the answers.
        answers: One answer of each teacher.
        weights: Weight of each teacher, 1 in all.
    """
    if form is AnswerForm.VECTOR and len(answers) > 1:
        units = [a / max(float(np.linalg.norm(a)), np.finfo(np.float64).tiny) for a in answers]
        return np.concatenate([unit * weight**0.5 for unit, weight in zip(units, weights, strict=True)])
    return np.asarray(sum(answer * weight for answer, weight in zip(answers, weights, strict=True)))


def make_cell(form: AnswerForm, answer: Array, names: Sequence[str], row: AskedRow, top: int | None) -> Any:
    """Return an answer as the cell of a column: {name: probability}, a number, a list, or answers with their places.

    Args:
        form: Form of the answer.
        answer: The answer, see `Teacher.answer`.
        names: Labels or tags.
        row: The row.
        top: Most labels of a text or word, or most characters of a span's start and end, to write; None for all.
    """
    match form:
        case AnswerForm.LABEL | AnswerForm.LABELS:
            return _by_name(answer, names, top)
        case AnswerForm.SCORE:
            return float(answer[0])
        case AnswerForm.VECTOR:
            return [round(float(value), _VECTOR_DIGITS) for value in answer]
        case AnswerForm.TAGS:
            return [
                {"start": start, "end": end, "probs": _by_name(values, names, top)}
                for (start, end), values in zip(row.units(), answer, strict=True)
            ]
    cell: dict[str, Any] = {}
    for column, key in enumerate(("start", "end")):
        places = np.flatnonzero(answer[:-1, column] >= _LEAST_SPAN)
        places = places[np.argsort(-answer[places, column], kind="stable")][:top]
        cell[key] = [[int(i) + column, round(float(answer[i, column]), _DIGITS)] for i in places]
    return {**cell, "null": [round(float(value), _DIGITS) for value in answer[-1]]}


def _by_name(values: Array, names: Sequence[str], top: int | None) -> dict[str, float]:
    """Return probabilities by name. If only the `top` largest are kept, they are sorted, the largest first."""
    chosen = (
        range(len(names)) if top is None or top >= len(names) else np.argsort(-values, kind="stable")[:top].tolist()
    )
    return {names[i]: float(f"{values[i]:.{_DIGITS}g}") for i in chosen}


def best_of(form: AnswerForm, answer: Array) -> list[float]:
    """Return the predictions that follow from an answer, as numbers by which teachers are compared.

    They are the id of the most likely label, the ids of all labels with a probability of at least 0.5, the id of each
    word's tag, the first and last characters of a span, or the number. Vectors give nothing.
    """
    match form:
        case AnswerForm.LABEL:
            return [float(answer.argmax())]
        case AnswerForm.LABELS:
            return [float(i) for i in np.flatnonzero(answer >= 0.5)]
        case AnswerForm.TAGS:
            return [float(i) for i in answer.argmax(-1)] if len(answer) else []
        case AnswerForm.SPAN:
            return [float(i) for i in answer.argmax(0)]
    return [float(value) for value in answer] if form is AnswerForm.SCORE else []
