"""The answers of a teacher in a column of the data, as outputs for the rows of a model.

- `name_labels` and, for several heads, `name_head_labels` list the labels that the answers name, so that the label set has them all.
- `column_outputs` turns the answers into logits, scores, token outputs or vectors for each tokenized row, whatever tokenizer made it.
- `score_answers` scores the answers of labelled rows, as a teacher that runs would be scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.column_names import BadRows
from pocketbert.core.data.labels import Labels
from pocketbert.core.data.source import TeacherColumn
from pocketbert.core.data.teacher_column import (
    LEAST_LOG,
    answer_logits,
    find_answer_kind,
    find_odd_answers,
)
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.heads import Head, Prepared
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.heads.several import take_example_of_head
from pocketbert.core.heads.token_classification import find_words
from pocketbert.core.predict.examples import Example, HeadLabels, TeacherAnswer
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.scores import Score
from pocketbert.core.predict.sentence_settings import Pooling, vector_width
from pocketbert.core.predict.spans import Span, label_of_tag
from pocketbert.core.recipe.column import column_key
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import SENTENCE_EMBEDDING, LabelKind, ScoreFunction, Task
from pocketbert.core.types import AnswerKind
from pocketbert.pipeline.learn.heads import sample_model_row

_Array = NDArray[np.float32]
_CONTEXT = 1
"""Part of a pair that is the context of a question."""

_ODD_FIX = (
    "Correct the row. If a text may have several labels, say --task multi-label; if these are logits, write kind: logits in the "
    "recipe's {key}."
)


@dataclass(frozen=True)
class ColumnSettings:
    """What is needed to turn the answers in a column into outputs of a model.

    Attributes:
        section: The recipe's settings of the column.
        labels: The label set.
        task: The task.
        title: Name of the file in errors.
        training: The training rows. Their answers decide whether numbers are logits or probabilities; None for the rows
            that are read.
        key: The recipe key that names the column.
    """

    section: TeacherColumn
    labels: Labels
    task: Task
    title: str
    training: Sequence[Example] | None = None
    key: str = column_key()

    def kind_of(self, examples: Sequence[Example]) -> AnswerKind:
        """Return what the numbers of the answers are, such as logits or probabilities.

        The recipe decides it. If it does not say, the kind is taken that fits the answers of all rows.

        Args:
            examples: The rows that are read; they decide only if the settings have no training rows.

        Raises:
            InputError: If no row has an answer, or not all rows can be of one kind.
        """
        rows = self.training or examples
        return read_answer_kind(rows, self.section, self.task.labels, self.title, self.key)


def read_answer_kind(
    examples: Sequence[Example], section: TeacherColumn, labels: LabelKind, title: str, key: str = column_key()
) -> AnswerKind:
    """Return what the numbers in the column of a teacher are, such as logits or probabilities.

    The recipe decides it. If it does not say, the kind is taken that fits the answers of all rows.

    Args:
        examples: The training rows.
        section: The recipe's settings of the column.
        labels: Kind of the task's labels.
        title: Name of the file in errors.
        key: The recipe key that names the column.

    Raises:
        InputError: If no row has an answer, not all rows can be of one kind, or the numbers of a few rows are unlike
            those of all others. These rows are named.
    """
    answers = [(e.row, e.answer) for e in examples if e.answer is not None]
    if not answers:
        what = f"no row has an answer in column '{section.column}'."
        fix = f"Name the column of the answers in {key}; `pocketbert data check FILE` lists the columns."
        raise InputError(Problem(title, what, fix))
    bad, choose_among_labels = BadRows(title), (LabelKind.NAME, LabelKind.NAMES, LabelKind.CHOICE)
    if section.kind is None and labels in choose_among_labels and "logit" not in section.column.lower():
        for row, what in find_odd_answers(answers):
            bad.add(row, f"column '{section.column}': {what}", _ODD_FIX.format(key=key))
    if bad.count:
        raise InputError(bad.close())
    kind = section.kind or find_answer_kind(answer for _, answer in answers)
    if kind is None and labels is not LabelKind.SCORE_OR_NONE:
        what = f"column '{section.column}' has labels in some rows and numbers in others."
        raise InputError(Problem(title, what, "Write all answers alike, such as {name: probability}."))
    return kind or AnswerKind.LOGITS


def name_labels(
    rows: Sequence[Example],
    column: TeacherColumn,
    declared: Sequence[str] | None,
    title: str,
    task: Task,
    head: str | None = None,
) -> Sequence[Example]:
    """Return one row for each label that the answers in a column name, so that the label set gets these labels too.

    Args:
        rows: Rows with answers.
        column: The recipe's settings of the column.
        declared: The labels in order, if the recipe or the data set gives them; answers may then be lists in that
            order.
        title: Name of the file in errors.
        task: The task, which decides the form of a row's label.
        head: Name of the head that learns from the column; None for the only one.

    Raises:
        InputError: If the answers cannot be read as answers of one kind, or nothing tells the order of their labels.
    """
    labels_key = "data.labels, or --labels" if head is None else f"tasks.{head}.labels"
    read_answer_kind(rows, column, task.labels, title, column_key(head))
    named = name_rows(rows, bool(declared), title, labels_key) if task.names_labels else []
    if task.labels is not LabelKind.SPANS:
        is_single = task.labels is LabelKind.NAME
        return named if is_single else [replace(row, label=(cast("str", row.label),)) for row in named]
    names = [row.label for row in named if isinstance(row.label, str)]
    tags = [label for name in names if (label := label_of_tag(name)) is not None]
    return [Example("", None, (Span(0, 1, label),), 1) for label in dict.fromkeys(tags)]


def name_head_labels(recipe: Recipe, task: Task, rows: Sequence[Example], trained: Labels | None) -> list[Example]:
    """Return one row for each label that the answers in the columns of several heads name; see `name_labels`.

    Args:
        recipe: The recipe.
        task: The task of all heads.
        rows: The training rows.
        trained: The labels of a teacher with these heads; None if they are trained.

    Raises:
        InputError: Listing what is wrong with the columns of all heads.
    """
    named, problems, title = list[Example](), list[Problem](), recipe.data.train.title if recipe.data.train else ""
    for place, (name, head) in enumerate((recipe.tasks or {}).items()):
        if not head.teacher:
            continue
        own = [take_example_of_head(row, place) for row in rows]
        try:
            if head.teacher.model is not None:
                own = [sample_model_row(recipe, name)]
            declared = trained.names if trained else head.labels
            of_head = name_labels(own, head.teacher, declared, title, task.heads[place].task, name)
        except InputError as error:
            problems += [replace(p, where=f"{p.where}: {column_key(name)}") for p in error.problems]
            continue
        blank: list[Any] = [None] * len(task.heads)
        for row in of_head:
            blank[place] = row.label
            named.append(replace(row, label=HeadLabels(tuple(blank))))
    if problems:
        raise InputError(problems)
    return named


def name_rows(
    examples: Sequence[Example], declared: bool, title: str, key: str = "data.labels, or --labels"
) -> list[Example]:
    """Return one row for each label that the answers of rows name, with the label and without a text.

    The new row has the number of the first row whose answer names the label.

    Args:
        examples: Rows with answers.
        declared: Whether the order of the labels is known, so that answers may be lists in that order.
        title: Name of the file in errors.
        key: Where the labels can be named.

    Raises:
        InputError: If answers are lists, labels are names, and the order of the labels is not known.
    """
    rows: dict[object, Example] = {}
    known: set[object] = set()
    for example in examples:
        answer = example.answer
        if answer is None or answer.names in known:
            continue
        known.add(answer.names)
        for name in answer.names or range(answer.values.shape[1]):
            rows.setdefault(name, Example("", None, name, example.row))
        if not answer.names and not declared and any(_has_names(e) for e in examples):
            what = (
                "the answers are lists of numbers, one for each label, and nothing tells which number is which label."
            )
            fix = f"Give the names in the order of the numbers: {key}; or write {{name: number}}."
            raise InputError(Problem(title, what, fix))
    return list(rows.values())


def _has_names(example: Example) -> bool:
    """Return whether the labels of a row are names or spans, so that they cannot be positions in a list."""
    labels = example.label if isinstance(example.label, tuple) else (example.label,)
    return any(isinstance(label, str | Span) for label in labels)


def column_outputs(rows: Prepared, settings: ColumnSettings) -> Mapping[str, Sequence[_Array]]:
    """Turn the answers in a column into teacher outputs for tokenized rows: by output name, one array per row.

    For tasks with labels, tags or scores, a row without an answer gets the outputs of its own label.

    Args:
        rows: The tokenized rows, with their targets.
        settings: How the answers are read.

    Returns:
        ``logits`` [C], [1] for a score or a choice, or [tokens, C] for tags; ``start_logits`` and ``end_logits``
        [tokens]; ``sentence_embedding`` [W].

    Raises:
        InputError: Naming the rows whose answers do not fit.
    """
    kind, bad = settings.kind_of(rows.examples), BadRows(settings.title)
    ids = _IdsByNames(settings, rows.examples)
    outputs: dict[str, list[_Array]] = {}
    place = dict[int, int]()
    for i, owner in enumerate(rows.owner.tolist()):
        example = rows.examples[owner]
        nth = place[owner] = place.get(owner, -1) + 1
        try:
            made = _row_outputs(rows, i, nth, example, kind, ids)
        except ValueError as error:
            if nth == 0:
                bad.add(example.row, f"column '{settings.section.column}': {error}")
            continue
        for name, value in made.items():
            outputs.setdefault(name, []).append(value)
    if bad.count:
        raise InputError(bad.close())
    if len(widths := {len(vector) for vector in outputs.get(SENTENCE_EMBEDDING, ())}) > 1:
        what = f"the vectors in column '{settings.section.column}' have {min(widths)} to {max(widths)} numbers."
        raise InputError(Problem(settings.title, what, "Give vectors of one width."))
    return outputs


class _IdsByNames:
    """Label ids for each list of names that answers give. The answers of a file share few such lists."""

    def __init__(self, settings: ColumnSettings, examples: Sequence[Example]) -> None:
        self.settings = settings
        self._known: dict[tuple[object, ...], list[int] | None] = {(): None}
        labels, is_tags = settings.labels, settings.task.labels is LabelKind.SPANS
        for example in examples if settings.task.names_labels else ():
            if example.answer is None or example.answer.names in self._known:
                continue
            names = example.answer.names
            if is_tags:
                unknown = [name for name in names if str(name) not in labels.names]
                if unknown:
                    what = f"tag '{unknown[0]}' of column '{settings.section.column}' is not in the label set, in row {example.row}."
                    raise InputError(
                        Problem(settings.title, what, "Write tags as the labels have them, such as B-PER.")
                    )
                self._known[names] = [labels.names.index(str(name)) for name in names]
            else:
                named = [Example("", None, name, example.row) for name in names]
                self._known[names] = labels.ids(named, settings.title).tolist()

    def logits(self, answer: TeacherAnswer, kind: AnswerKind) -> _Array:
        """Return the logits [n, labels] of an answer."""
        settings = self.settings
        is_sigmoid = settings.task.score is ScoreFunction.SIGMOID
        smoothing = settings.section.smoothing
        return answer_logits(answer, self._known[answer.names], len(settings.labels), kind, smoothing, is_sigmoid)


def _row_outputs(
    rows: Prepared, row: int, nth: int, example: Example, kind: AnswerKind, ids: _IdsByNames
) -> Mapping[str, _Array]:
    """Turn the answer of one row into teacher outputs, by output name.

    Args:
        rows: The tokenized rows.
        row: Index of the tokenized row.
        nth: Index of this row among the tokenized rows of the example, such as windows of a context or choices.
        example: The example that the row was made of.
        kind: What the numbers of the answers are.
        ids: The label ids of the names in answers.

    Raises:
        ValueError: If the answer does not fit; the message is for users.
    """
    task, answer = ids.settings.task, example.answer
    match task.labels:
        case LabelKind.NAME | LabelKind.NAMES:
            if answer is None:
                return {"logits": _one_hot(rows.targets["labels"][row], ids)}
            return {"logits": ids.logits(answer, kind)[0]}
        case LabelKind.SCORE:
            value = answer.values[0] if answer is not None else np.array([rows.targets["labels"][row]])
            return {"logits": value.astype(np.float32)}
        case LabelKind.SPANS:
            return {"logits": _token_logits(rows, row, answer, kind, ids)}
    if answer is None:
        raise ValueError("the row has no answer.")
    if task.labels is LabelKind.ANSWERS:
        return _span_logits(rows.encoded[row], answer)
    if task.labels is LabelKind.CHOICE:
        choices = len(example.choices)
        if nth >= choices:  # a row that only fills up the question
            return {"logits": np.zeros(1, np.float32)}
        flat = replace(answer, names=())
        return {"logits": answer_logits(flat, None, choices, kind, ids.settings.section.smoothing)[0, nth : nth + 1]}
    if nth >= len(answer.values):
        raise ValueError("a pair needs a vector for each of its texts.")
    return {SENTENCE_EMBEDDING: answer.values[nth].astype(np.float32, copy=False)}


def _one_hot(target: object, ids: _IdsByNames) -> _Array:
    """Return logits for a row's own label.

    Args:
        target: The label as an id, or as an array with 0 or 1 for each label.
        ids: The label ids, with the settings of the column.
    """
    given = np.asarray(target)
    labels, is_sigmoid = len(ids.settings.labels), ids.settings.task.score is ScoreFunction.SIGMOID
    chosen = np.flatnonzero(given).tolist() if given.ndim else [int(given)]
    answer = TeacherAnswer(tuple(chosen), np.ones((1, len(chosen)), np.float32), frozenset())
    smoothing = ids.settings.section.smoothing
    (logits,) = answer_logits(answer, chosen, labels, AnswerKind.LABELS, smoothing, is_sigmoid)
    return np.asarray(logits, np.float32)


def _token_logits(rows: Prepared, row: int, answer: TeacherAnswer | None, kind: AnswerKind, ids: _IdsByNames) -> _Array:
    """Return the logits [tokens, tags] of one row for tags.

    The first token of a word gets the logits of the answer's unit that holds its first character. If there is no such
    unit, it gets logits for the row's own tag. All other tokens get zeros.

    Args:
        rows: The tokenized rows.
        row: Index of the row.
        answer: The teacher's answer; None to take all tags from the row.
        kind: What the numbers of the answer are.
        ids: The label ids of the names in answers.
    """
    encoded, tags = rows.encoded[row], len(ids.settings.labels)
    logits = np.zeros((len(encoded), tags), np.float32)
    units = ids.logits(answer, kind) if answer is not None else np.zeros((0, tags), np.float32)
    places = answer.places if answer is not None and answer.places is not None else np.zeros((0, 2), np.int64)
    own = np.asarray(rows.targets["labels"][row]) if "labels" in rows.targets else np.full(len(encoded), IGNORED_LABEL)
    for token, (start, _) in zip(*find_words(encoded), strict=True):
        holding = np.flatnonzero((places[:, 0] <= start) & (start < places[:, 1]))
        if len(holding):
            logits[token] = units[holding[0]]
        elif own[token] != IGNORED_LABEL:
            logits[token] = _one_hot(own[token], ids)
    return logits


def _span_logits(window: Encoded, answer: TeacherAnswer) -> dict[str, _Array]:
    """Turn probabilities of characters into the start and end logits [tokens] of one window of a context.

    The first token gets the probability of no answer, and of characters outside the window. What is missing from 1 is
    divided evenly among the tokens without a probability.

    Args:
        window: The tokenized window.
        answer: Characters of the context with their probabilities of being start and end of the answer.
    """
    assert window.places is not None
    assert answer.places is not None
    starts, ends = window.places.offsets.T
    context = window.places.parts == _CONTEXT
    outputs = {}
    for column, name in enumerate(("start_logits", "end_logits")):
        held = np.zeros(len(window), np.float64)
        is_given = np.zeros(len(window), bool)
        for (character, _), value in zip(answer.places.tolist(), answer.values[:, column].tolist(), strict=True):
            tokens = np.flatnonzero(context & (starts <= character) & (character < ends))
            token = int(tokens[0]) if len(tokens) else 0
            held[token] += value
            is_given[token] = is_given[token] or value > 0 or not len(tokens)
        left = max(0.0, 1 - float(held.sum()))
        if not is_given.all():
            held[~is_given] = left / int((~is_given).sum())
        held /= max(float(held.sum()), np.finfo(np.float64).tiny)
        outputs[name] = np.log(np.maximum(held, np.exp(LEAST_LOG))).astype(np.float32)
    return outputs


def fit_vectors(
    vectors: Sequence[_Array], training: Sequence[_Array], pooling: Pooling, hidden: int, seed: int
) -> list[_Array]:
    """Map vectors of a column to the width of a student's vectors, and rotate them if these may be cut to their first numbers.

    Args:
        vectors: The vectors, each [W].
        training: The vectors that decide the map; see `find_vector_map`.
        pooling: How the student's token states become a vector, and the lengths to which it may be cut.
        hidden: Width of the student's token states.
        seed: Seed of the run.
    """
    matrix = find_vector_map(training, vector_width(pooling, hidden), pooling, seed)
    return [(matrix @ vector.astype(np.float64)).astype(np.float32) for vector in vectors]


def find_vector_map(training: Sequence[_Array], width: int, pooling: Pooling, seed: int) -> NDArray[np.float64]:
    """Return the linear map of vectors to another width that changes the cosines between them as little as possible, [width, W].

    Narrower vectors get zeros behind them, which keeps every cosine. Wider ones are projected on the `width` principal directions
    (around 0) of the training rows' vectors. If the results may be cut to their first numbers (`Pooling.dimensions`), the map ends
    with a rotation; see `learn_rotation`.

    Args:
        training: The vectors that decide the directions, each [W].
        width: Width of the results.
        pooling: Which lengths the results may be cut to.
        seed: Seed of the run.
    """
    own, matrix = len(training[0]), np.eye(width, len(training[0]))
    if own > width:
        moment = np.zeros((own, own), np.float64)
        for vector in training:
            unit = vector.astype(np.float64) / max(float(np.linalg.norm(vector)), np.finfo(np.float64).tiny)
            moment += np.outer(unit, unit)
        matrix = np.linalg.eigh(moment)[1][:, ::-1][:, :width].T
    if not pooling.dimensions:
        return matrix
    from pocketbert.distill.students.projection import learn_rotation

    rows = np.stack([matrix @ vector.astype(np.float64) for vector in training])
    return learn_rotation(rows, pooling.dimensions, seed).astype(np.float64) @ matrix


def score_answers(head: Head, rows: Prepared, settings: ColumnSettings) -> Score | None:
    """Score the answers of labelled rows against their labels.

    Args:
        head: The task's head.
        rows: The rows.
        settings: How the answers are read.

    Returns:
        The score; None if a row has no answer or no label of its own, if there are no rows, or if pairs have no scores.
    """
    if not rows.examples or any(e.answer is None or e.answer.gives_label for e in rows.examples):
        return None
    if settings.task.labels is LabelKind.SCORE_OR_NONE and not len(rows.truth):
        return None
    outputs = column_outputs(rows, settings)
    arrays = list(zip(*(outputs[name] for name in outputs), strict=True))
    if settings.task.labels is LabelKind.ANSWERS:
        matrices = [np.stack(parts, -1) for parts in arrays]
    else:
        matrices = [parts[0] if parts[0].ndim > 1 else parts[0][None] for parts in arrays]
    return head.score([head.reduce(i, m, rows) for i, m in enumerate(matrices)], rows)


def describe_columns(recipe: Recipe) -> str:
    """Return the name of a recipe's columns of answers as a teacher, such as ``answers of column 'probs' in rows.jsonl``; empty without any."""
    path, own = recipe.data.train.path if recipe.data.train else None, recipe.column
    of_heads = [
        f"{f'column {c.column!r}' if c.model is None else f'model {Path(c.model).name!r}'} for the head '{name}'"
        for name, c in recipe.head_columns.items()
    ]
    columns = [f"column '{own.column}'"] if own else of_heads
    return f"answers of {' and '.join(columns)}{f' in {Path(path).name}' if path else ''}" if columns else ""
