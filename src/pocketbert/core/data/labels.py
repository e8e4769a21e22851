"""Label sets: one order of the labels for the data, the teacher, the student and the files.

- `resolve_labels` decides on the label set of a run: from the recipe, else from the teacher, else from the data.
- `match_label_numbers` finds out which number in the data is which name, if the data has numbers.
- `Labels` is the result; its methods turn the labels of examples into ids, sets of ids, or spans.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.cells import find_name_problems, number_of
from pocketbert.core.data.column_names import BadRows
from pocketbert.core.errors import InputError, Problem, shorten_list, shorten_repr, suggest_allowed
from pocketbert.core.predict.examples import Example
from pocketbert.core.predict.spans import OUTSIDE, Span, iob2_tags, label_of_tag
from pocketbert.core.tasks import REGRESSION_COLUMN, LabelKind, Task

_MAX_LABELS = 1 << 16
"""A larger label number is an id or a score, not a class."""
_FEWEST_LABELS = {LabelKind.NAME: 2, LabelKind.NAMES: 1, LabelKind.SPANS: 2}
_SHOWN = 8
_ALIKE = 0.75
"""How alike a label must be to be suggested for another one."""
_ROW_FIX = "Correct the row or the name of the label column; a recipe that trains may add the label under data.labels."
_NAMES_FIX = "Write the label in one way, in the data and in data.labels."


@dataclass(frozen=True)
class Labels:
    """The ordered label set of a task.

    Attributes:
        names: Label names; the index is the id.
        note: A note for users on where the names came from; empty for no note.
        declared: Whether a person or a model gave the order of the names, so that a number in the data may be a
            position.
        numbers: The number in the data that stands for each label. Empty if numbers in the data are positions, or are
            the names themselves.
        heads: The labels of each of several heads, whose names then have the head's name in front; empty for one head.
    """

    names: tuple[str, ...]
    note: str = ""
    declared: bool = True
    numbers: tuple[int | float, ...] = ()
    heads: tuple[Labels, ...] = ()

    def __len__(self) -> int:
        """Return the number of labels."""
        return len(self.names)

    @property
    def id2label(self) -> dict[int, str]:
        """The label names by id, as config.json has them."""
        return dict(enumerate(self.names))

    def ids(self, examples: Sequence[Example], title: str) -> NDArray[np.int64]:
        """Return the label id of each of N examples that have one label each.

        Args:
            examples: N labelled rows.
            title: Name of the file in errors.

        Returns:
            Ids, shape [N].

        Raises:
            InputError: Naming the rows whose label is not in the set.
        """
        bad = BadRows(title)
        lookup = _IdLookup(self, bad)
        ids = [lookup.id_of(example.label, example.row) for example in examples]
        if bad.count:
            raise InputError(bad.close())
        return np.array(ids, np.int64).reshape(-1)

    def sets(self, examples: Sequence[Example], title: str) -> NDArray[np.bool_]:
        """Return which labels each of N examples has, as a bool matrix [N, labels].

        Raises:
            InputError: Naming the rows with a label that is not in the set.
        """
        bad = BadRows(title)
        lookup = _IdLookup(self, bad)
        is_given = np.zeros((len(examples), len(self.names)), bool)
        for i, example in enumerate(examples):
            for label in example.label if isinstance(example.label, tuple) else ():
                label_id = lookup.id_of(label, example.row)
                if label_id is not None:
                    is_given[i, label_id] = True
        if bad.count:
            raise InputError(bad.close())
        return is_given

    def spans(self, examples: Sequence[Example], title: str) -> list[list[Span]]:
        """Return the labelled spans of each example, after checking that the tag set has their labels.

        Raises:
            InputError: Naming the rows with a span whose label no tag has.
        """
        known = {label for tag in self.names if (label := label_of_tag(tag)) is not None}
        bad, refused = BadRows(title), set[str]()
        spans_by_row = []
        for example in examples:
            spans = [s for s in example.label if isinstance(s, Span)] if isinstance(example.label, tuple) else []
            for label in [s.label for s in spans if s.label not in known]:
                if label in refused or not bad.shows_more:  # each label is shown once
                    bad.count += 1
                    continue
                refused.add(label)
                hint = suggest_allowed(label, sorted(known), _ALIKE, _SHOWN)
                bad.add(example.row, f"span label '{label}' is not in the label set; {hint}.", _ROW_FIX)
            spans_by_row.append(spans)
        if bad.count:
            raise InputError(bad.close())
        return spans_by_row

    def split(self, task: Task) -> list[Labels]:
        """Return the labels of each of several heads, without the head's name; empty for a head without label names, such as regression."""
        if self.heads:
            return [*self.heads]
        return [
            Labels(tuple(n.removeprefix(h.label_prefix) for n in self.names[h.columns]) if h.task.names_labels else ())
            for h in task.heads
        ]

    def permutation_from(self, other: Labels, where: str) -> list[int] | None:
        """Return the permutation that brings the outputs of a model with the labels `other` into the order of this label set.

        Args:
            other: The model's labels.
            where: Name of the setting in error messages.

        Returns:
            For each label of this set, its position in `other`; None if the order is the same.

        Raises:
            InputError: If the two sets differ.
        """
        if self.names == other.names:
            return None
        if set(self.names) != set(other.names):
            only_here, only_there = set(self.names) - set(other.names), set(other.names) - set(self.names)
            raise InputError(
                Problem(
                    where,
                    f"the model's labels differ from the data's: only in the data [{shorten_list(sorted(only_here), _SHOWN)}], "
                    f"only in the model [{shorten_list(sorted(only_there), _SHOWN)}].",
                    "If the names are others for the same labels, list those of the data in the order of the model's outputs (export: --labels "
                    "a,b,c; in a recipe: data.labels); otherwise fine-tune the model on these labels.",
                )
            )
        position = {name: i for i, name in enumerate(other.names)}
        return [position[name] for name in self.names]


def join_head_labels(task: Task, labels: Sequence[Labels]) -> Labels:
    """Join the labels of several heads, in order of the heads, each with its head's name in front.

    A head of regression has one column, which is named too.
    """
    names = [
        f"{head.label_prefix}{name}"
        for head, own in zip(task.heads, labels, strict=True)
        for name in own.names or (REGRESSION_COLUMN,)
    ]
    notes = [f"{head.name}: {own.note}" for head, own in zip(task.heads, labels, strict=True) if own.note]
    return Labels(tuple(names), "; ".join(notes), heads=tuple(labels))


def are_placeholder_names(names: Sequence[str]) -> bool:
    """Return whether the names are transformers' default ones: LABEL_0, LABEL_1, ..."""
    return all(name == f"LABEL_{i}" for i, name in enumerate(names))


def resolve_labels(
    declared: Sequence[str] | None,
    teacher: Sequence[str] | None,
    examples: Sequence[Example],
    kind: LabelKind = LabelKind.NAME,
) -> Labels:
    """Determine the label set of a run and its order, from the recipe, the teacher or the training rows.

    Args:
        declared: The labels that the recipe lists in `data.labels`; None if it lists none.
        teacher: The labels of a teacher that already has a head; None without one.
        examples: The training rows, whose labels are used if neither of the two names them.
        kind: Kind of the rows' labels. Labels of spans become the tags ``O``, ``B-x`` and ``I-x``; the teacher's labels
            are taken as tags already, even if none of them is ``O``.

    Returns:
        The declared labels, else the teacher's unless they are placeholders (LABEL_0 ...), else those in the data as
        `_labels_from_data` builds them. Empty for kinds without names of labels, such as scores, answers and choices.

    Raises:
        InputError: If fewer labels result than the task needs, one is empty, two of them look the same, some are numbers
            and some names, it is not clear which number is which name, or no row has a span.
    """
    if kind not in _FEWEST_LABELS:
        return Labels(())
    if declared:
        labels = match_label_numbers(Labels(tuple(declared)), examples, kind, ordered=True)
    elif teacher and not are_placeholder_names(teacher):
        labels = match_label_numbers(Labels(tuple(teacher), "label names taken from the teacher"), examples, kind)
    else:
        labels = _labels_from_data(examples, kind, teacher or ())
    if problems := [Problem("data.labels", f"{what}.", _NAMES_FIX) for what in find_name_problems(labels.names)]:
        raise InputError(problems)
    if kind is LabelKind.SPANS and set(labels.names) != set(teacher or ()):
        labels = Labels(iob2_tags(labels.names), labels.note)
        if OUTSIDE not in labels.names:
            what = f"tags need '{OUTSIDE}' for words of no label; found {shorten_list(labels.names)}."
            raise InputError(Problem("data.labels", what))
    if kind is LabelKind.SPANS and labels.names == (OUTSIDE,):
        what = "no row has a span: every word has the tag O."
        fix = "Name the column of the tags with --label (in a recipe: label), or give rows with spans."
        raise InputError(Problem("data.labels", what, fix))
    if len(labels) < _FEWEST_LABELS[kind]:
        what = f"the task needs at least {_FEWEST_LABELS[kind]} labels, found [{shorten_list(labels.names)}]."
        raise InputError(Problem("data.labels", what))
    return labels


def match_label_numbers(labels: Labels, examples: Sequence[Example], kind: LabelKind, ordered: bool = False) -> Labels:
    """Find out which number in the data stands for which label name; return the labels with their numbers and a note.

    Labels are returned unchanged if the data has no numbers, or if these are positions or the names themselves.

    Args:
        labels: Names that a person, a model or a data set declared.
        examples: Rows whose labels may be numbers.
        kind: Kind of the rows' labels; only names, one or several per row, are matched.
        ordered: Whether the names are listed in the order of the numbers, so that the smallest number may be the first
            name.

    Raises:
        InputError: If it is not clear which number is which name.
    """
    if kind not in (LabelKind.NAME, LabelKind.NAMES):
        return labels
    found = {number for value in _first_rows(examples) if (number := number_of(value)) is not None}
    numbers = _match_numbers(sorted(found), labels.names, ordered)
    if not numbers:
        return labels
    note = f"numbers in the data: {_describe_numbers(numbers, labels.names)}"
    return replace(labels, numbers=numbers, note=f"{labels.note}; {note}" if labels.note else note)


def _first_rows(examples: Sequence[Example]) -> dict[object, int]:
    """Return the number of the first row in which each label occurs; of spans, the span's label counts."""
    rows: dict[object, int] = {}
    for example in examples:
        for value in example.label if isinstance(example.label, tuple) else (example.label,):
            rows.setdefault(value.label if isinstance(value, Span) else value, example.row)
    return rows


def _labels_from_data(examples: Sequence[Example], kind: LabelKind, outputs: Sequence[str]) -> Labels:
    """Build a label set from the labels in the training rows, if neither recipe nor teacher names the labels.

    Names become the labels, sorted. If all labels are numbers, the labels are

    - with a teacher: the names of its outputs, if the numbers are positions among them (from 0); else, if there are as
      many different numbers as outputs (such as 1 to 5), the numbers themselves, the smallest one for the first output,
    - without a teacher: LABEL_0, LABEL_1, ... if the numbers are 0, 1, 2, ..., else the numbers in numeric order.

    Labels of spans are always names, even if they look like numbers.

    Args:
        examples: Training rows.
        kind: Kind of their labels.
        outputs: Placeholder names of the teacher's outputs (LABEL_0, LABEL_1, ...); empty if the teacher has no head.

    Raises:
        InputError: If some labels are numbers and others names, a number is too large for a label id, or the numbers
            cannot be matched with the teacher's outputs.
    """
    rows = _first_rows(examples)
    numbers = {value: number for value in rows if (number := number_of(value)) is not None}
    if not numbers or kind is LabelKind.SPANS:  # tags are always names
        return Labels(tuple(sorted(map(str, rows))), "label names taken from the training data, sorted", declared=False)
    if len(numbers) < len(rows):
        one, name = next(iter(numbers)), next(value for value in rows if value not in numbers)
        what = (
            f"the labels are numbers in some rows (row {rows[one]}: {shorten_repr(one)}) and names in others "
            f"(row {rows[name]}: {shorten_repr(name)})."
        )
        fix = (
            "Write all of them as names, or list them in data.labels: a number then means the name that is this number."
        )
        raise InputError(Problem("data.labels", what, fix))
    found = sorted(set(numbers.values()))
    if any(isinstance(n, int) and n >= _MAX_LABELS for n in found):
        what = f"the data has the label number {found[-1]}; that is not a label id."
        raise InputError(Problem("data.labels", what, "Check which column holds the labels, or give data.labels."))

    matched = _match_numbers(found, outputs, ordered=True) if outputs else ()
    note = "the data has numbers only and data.labels is not given: labels are called LABEL_i"
    if outputs and not matched:
        return Labels(tuple(outputs), note)
    if not outputs and found == [*range(len(found))]:
        return Labels(tuple(f"LABEL_{i}" for i in range(len(found))), note)
    note = "label names are the numbers in the training data, in numeric order"
    if matched:
        order = _describe_numbers(matched, outputs)
        note += f"; the teacher's outputs have no names and are taken in this order: {order}"
    return Labels(tuple(map(str, found)), note, declared=False, numbers=matched)


# --- numbers in the data ---


def _match_numbers(found: Sequence[int | float], names: Sequence[str], ordered: bool) -> tuple[int | float, ...]:
    """Find the number in the data that stands for each name of a label set, unless the names are numbers themselves.

    Numbers from 0 on are positions in the label set. Other numbers are matched with the numbers in the names (``1
    star``, ``2 stars``), if each occurs in one name. Else, if `ordered` is set and there are as many numbers as names,
    the smallest number stands for the first name, and so on.

    Args:
        found: The distinct numbers in the data, sorted.
        names: The names of the label set, in order.
        ordered: Whether numbers that are neither positions nor in the names may be matched in numeric order: a person
            declared the order of the names, or the names only count the outputs (``LABEL_0``).

    Returns:
        One number for each name; empty if the numbers are positions, or the names are numbers themselves.

    Raises:
        InputError: If the numbers could be matched in several ways, or cannot be matched.
    """
    if not found or any(number_of(name) is not None for name in names):
        return ()
    positions, values = range(len(names)), set(found)
    are_positions, contained = values <= {*positions}, _contained_numbers(names)
    if contained == tuple(positions) or (0 in values and not values <= {*contained}):
        contained = ()
    if are_positions and contained and values <= {*contained}:
        raise _ambiguity_error(found, names, "they are positions from 0, and are in the names too")
    if contained and values <= {*contained}:
        return contained
    if are_positions and len(names) > 2 and values == {*positions[1:]}:
        raise _ambiguity_error(found, names, "0 does not occur, so that 1 could be the first name or the second")
    if are_positions or (0 in values and len(values) != len(names)):  # other numbers are refused row by row
        return ()
    if ordered and len(values) == len(names):
        return tuple(found)
    why = f"{len(found)} numbers for {len(names)} names" if ordered else "which is which?"
    raise _ambiguity_error(found, names, why)


def _contained_numbers(names: Sequence[str]) -> tuple[int, ...]:
    """Return the whole number that each name contains; empty if a name has none or several, or two have the same."""
    numbers_by_name = [re.findall(r"\d{1,9}", name) for name in names]
    if any(len(numbers) != 1 for numbers in numbers_by_name):
        return ()
    contained = tuple(int(numbers[0]) for numbers in numbers_by_name)
    return contained if len(set(contained)) == len(contained) else ()


def _describe_numbers(numbers: Sequence[int | float], names: Sequence[str]) -> str:
    """Describe which number in the data is which label, for a note: ``1 = bad, 2 = good``."""
    parts = [f"{number} = {name}" for number, name in zip(numbers, names, strict=True)]
    return ", ".join(parts[:_SHOWN]) + (f", ... ({len(parts)} in all)" if len(parts) > _SHOWN else "")


def _ambiguity_error(found: Sequence[int | float], names: Sequence[str], why: str) -> InputError:
    """Build the error for numbers in the data that cannot be matched with the label names."""
    return InputError(
        Problem(
            "data.labels",
            f"the data has the label numbers {shorten_list([str(n) for n in found], _SHOWN)}, the label set has the names "
            f"{shorten_list(names, _SHOWN)}: {why}.",
            "Write the names in the data, or number the rows from 0 in the order of the names; or give data.labels (--labels) one name "
            "for each number, in numeric order.",
        )
    )


class _IdLookup:
    """Looks up label ids for the rows of one file, and collects the rows whose label is unknown.

    If a name of the set is a number ("1", "5.0"), a number in the data means the name that is this number, never a
    position. If no name is a number, a number in the data is looked up in `Labels.numbers`; if that is empty, it is a
    position in the set, provided that the order was declared.

    Args:
        labels: The label set.
        bad: Collects rows whose label is not in the set.
    """

    def __init__(self, labels: Labels, bad: BadRows) -> None:
        self._names, self._bad, self._refused = labels.names, bad, set[str]()
        self._by_name = {name.strip(): i for i, name in enumerate(labels.names)}
        self._matched = bool(labels.numbers)
        numbers = labels.numbers or [number_of(name) for name in labels.names]
        self._by_number = {number: i for i, number in enumerate(numbers) if number is not None}
        self._positions = labels.declared and not self._by_number
        self._first: dict[bool, tuple[int, object]] = {}
        """First row with a number as its label (True) and with a name (False)."""
        self._mixed = False

    def id_of(self, label: object, row: int) -> int | None:
        """Return the id of a label; for an unknown label, record the row as bad and return None."""
        number = number_of(label)
        if number is None:
            label_id = self._by_name.get(str(label))
        elif self._positions:
            label_id = int(number) if isinstance(number, int) and 0 <= number < len(self._names) else None
        else:
            label_id = self._by_number.get(number)
        if label_id is None:
            self._refuse(label, number, row)
        elif self._positions or self._matched:
            self._check_mixed(number is not None, label, row)
        return label_id

    def _refuse(self, label: object, number: float | None, row: int) -> None:
        """Record a row whose label is not in the set, with a suggestion of the label that may be meant."""
        if not self._bad.shows_more or str(label) in self._refused:  # each label is shown once
            self._bad.count += 1
            return
        self._refused.add(str(label))
        hint = suggest_allowed(str(label), self._names, _ALIKE, _SHOWN)
        if number is not None and self._matched:
            hint = f"its numbers are {shorten_list([str(n) for n in self._by_number])}"
        elif number is not None and self._by_number:
            hint = f"some names are numbers, so a number means the name; {hint}"
        elif number is not None and not self._positions:
            hint = f"the order of the names was not declared, so a number means none of them; {hint}"
        self._bad.add(row, f"label {shorten_repr(label)} is not in the label set; {hint}.", _ROW_FIX)

    def _check_mixed(self, is_number: bool, label: object, row: int) -> None:
        """Record a label as bad if the file has numbers and names mixed as labels; only the first such label is recorded."""
        self._first.setdefault(is_number, (row, label))
        if len(self._first) == 2 and not self._mixed:  # one example of each is enough
            self._mixed = True
            other_row, other = self._first[not is_number]
            what = f"label {shorten_repr(label)}, and {shorten_repr(other)} in row {other_row}: numbers and names in one column."
            self._bad.add(row, what, "Write all labels as names.")
