"""Which label is which number: one order for the data, the teacher, the student and the files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.cells import OUTSIDE, Span, label_of, name_problems, number_of, tags_of
from pocketbert.core.data.examples import Example
from pocketbert.core.data.tables import BadRows
from pocketbert.core.errors import InputError, Problem, listed, nearest, shown
from pocketbert.core.tasks import LabelKind

# --- numbering ---
# Which id a label in the data means: names mean themselves, numbers a name that is or has this number, else a position.


_FIX = "Correct the row or the name of the label column, or add the label under data.labels."


class Numbering:
    """Ids of labels in one file.

    If any name of the set is a number ("1", "5.0"), a number in the data means the name that is this number, never a
    position. If none is, a number is what `numbers` says; without these it is a position in the set, provided that somebody
    declared the order.

    Args:
        names: The label set; the index is the id.
        positions: Whether a number may be a position: the order was declared, not found in the data.
        bad: Collects rows whose label is not in the set.
        numbers: The number in the data that each label is, see `match_numbers`; empty for positions.
    """

    def __init__(
        self, names: Sequence[str], positions: bool, bad: BadRows, numbers: Sequence[int | float] = ()
    ) -> None:
        self._names, self._bad = names, bad
        self._by_name = {name: i for i, name in enumerate(names)}
        self._by_number: dict[int | float, int] = {}
        for i, name in enumerate(names):
            number = number_of(name)
            if number is not None:
                self._by_number[number] = i
        self._matched = bool(numbers)
        if numbers:
            self._by_number = {number: i for i, number in enumerate(numbers)}
        self._positions = positions and not self._by_number
        self._first: dict[bool, tuple[int, object]] = {}
        """The first row with a position, and the first one with a name."""
        self._mixed = False

    def id_of(self, label: object, row: int) -> int | None:
        """The id of a label; None, with a note among the bad rows, where there is none."""
        number = number_of(label)
        if number is None:
            found = self._by_name.get(str(label))
        elif self._positions:
            found = int(number) if isinstance(number, int) and 0 <= number < len(self._names) else None
        else:
            found = self._by_number.get(number)
        if found is None:
            self._refuse(label, number, row)
        elif self._positions or self._matched:
            self._check_mixed(number is not None, label, row)
        return found

    def _refuse(self, label: object, number: float | None, row: int) -> None:
        if not self._bad.shows_more:  # the hint takes time
            self._bad.add(row, "")
            return
        hint = nearest(str(label), self._names)
        if number is not None and self._matched:
            hint = f"its numbers are {listed([str(n) for n in self._by_number])}"
        elif number is not None and self._by_number:
            hint = f"some names are numbers, so a number means the name; {hint}"
        elif number is not None and not self._positions:
            hint = f"the order of the names was not declared, so a number means none of them; {hint}"
        self._bad.add(row, f"label {shown(label)} is not in the label set; {hint}.", _FIX)

    def _check_mixed(self, position: bool, label: object, row: int) -> None:
        self._first.setdefault(position, (row, label))
        if len(self._first) == 2 and not self._mixed:  # one example of each is enough
            self._mixed = True
            other_row, other = self._first[not position]
            what = f"label {shown(label)}, and {shown(other)} in row {other_row}: numbers and names in one column."
            self._bad.add(row, what, "Write all labels as names.")


_SHOWN = 8


def match_numbers(found: Sequence[int | float], names: Sequence[str], ordered: bool) -> tuple[int | float, ...]:
    """Find the number in the data that each name of a label set is, where names are no numbers themselves.

    Numbers from 0 are positions in the set. Other numbers are the ones that the names contain, each name one (``1 star``, ``2 stars``);
    else, where `ordered` and there is one for each name, the smallest is the first name.

    Args:
        found: The different numbers in the data, sorted.
        names: The label set.
        ordered: Whether a person declared the order of the names, or the names only count the outputs (``LABEL_0``).

    Returns:
        One number for each name; nothing where numbers are positions, or are names.

    Raises:
        InputError: If the numbers could be matched in several ways, or in none.
    """
    if not found or any(number_of(name) is not None for name in names):
        return ()
    positions, values = range(len(names)), set(found)
    fits, contained = values <= {*positions}, _contained_numbers(names)
    if contained == tuple(positions) or (0 in values and not values <= {*contained}):
        contained = ()
    if fits and contained and values <= {*contained}:
        raise _unclear(found, names, "they are positions from 0, and are in the names too")
    if contained and values <= {*contained}:
        return contained
    if fits and len(names) > 2 and values == {*positions[1:]}:
        raise _unclear(found, names, "0 does not occur, so that 1 could be the first name or the second")
    if fits or (0 in values and len(values) != len(names)):  # the rows with other numbers are named one by one
        return ()
    if ordered and len(values) == len(names):
        return tuple(found)
    raise _unclear(found, names, f"{len(found)} numbers for {len(names)} names" if ordered else "which is which?")


def _contained_numbers(names: Sequence[str]) -> tuple[int, ...]:
    """The whole number in each name, where each has just one and all differ."""
    numbers = [re.findall(r"\d{1,9}", name) for name in names]
    if any(len(one) != 1 for one in numbers):
        return ()
    out = tuple(int(one[0]) for one in numbers)
    return out if len(set(out)) == len(out) else ()


def describe_numbers(numbers: Sequence[int | float], names: Sequence[str]) -> str:
    """Write which number in the data is which label, for a note: ``1 = bad, 2 = good``."""
    parts = [f"{number} = {name}" for number, name in zip(numbers, names, strict=True)]
    return ", ".join(parts[:_SHOWN]) + (f", ... ({len(parts)} in all)" if len(parts) > _SHOWN else "")


def _unclear(found: Sequence[int | float], names: Sequence[str], why: str) -> InputError:
    return InputError(
        Problem(
            "data.labels",
            f"the data has the label numbers {listed([str(n) for n in found], _SHOWN)}, the label set has the names "
            f"{listed(names, _SHOWN)}: {why}.",
            "Write the names in the data, or number the rows from 0 in the order of the names; or give data.labels (--labels) one name "
            "for each number, in numeric order.",
        )
    )


MAX_LABELS = 1 << 16
"""A larger label number is an id or a score, not a class."""


@dataclass(frozen=True)
class Labels:
    """An ordered label set.

    Attributes:
        names: Label names; the index is the id.
        note: Where they came from, if that needs saying.
        declared: Whether the order was declared by a person or a model, so that a number in the data may be a position.
        numbers: The number in the data that each label is; empty where numbers are positions, or the names themselves.
    """

    names: tuple[str, ...]
    note: str = ""
    declared: bool = True
    numbers: tuple[int | float, ...] = ()

    def __len__(self) -> int:
        """Number of labels."""
        return len(self.names)

    @property
    def id2label(self) -> dict[int, str]:
        """As config.json wants it."""
        return dict(enumerate(self.names))

    def ids(self, examples: Sequence[Example], title: str) -> NDArray[np.int64]:
        """Label ids of rows.

        Args:
            examples: Labelled rows.
            title: The file, for errors.

        Returns:
            Ids, shape [N].

        Raises:
            InputError: Naming the rows whose label is not in the set.
        """
        bad = BadRows(title)
        numbering = Numbering(self.names, self.declared, bad, self.numbers)
        found = [numbering.id_of(example.label, example.row) for example in examples]
        if bad.count:
            raise InputError(bad.close())
        return np.array(found, np.int64).reshape(-1)

    def sets(self, examples: Sequence[Example], title: str) -> NDArray[np.bool_]:
        """Which labels each row has, [N, labels].

        Raises:
            InputError: Naming the rows with a label that is not in the set.
        """
        bad = BadRows(title)
        numbering = Numbering(self.names, self.declared, bad, self.numbers)
        out = np.zeros((len(examples), len(self.names)), bool)
        for i, example in enumerate(examples):
            for label in example.label if isinstance(example.label, tuple) else ():
                found = numbering.id_of(label, example.row)
                if found is not None:
                    out[i, found] = True
        if bad.count:
            raise InputError(bad.close())
        return out

    def spans(self, examples: Sequence[Example], title: str) -> list[list[Span]]:
        """The spans of each row, for a label set of tags.

        Raises:
            InputError: Naming the rows with a span whose label no tag has.
        """
        known = {label for tag in self.names if (label := label_of(tag)) is not None}
        bad = BadRows(title)
        out = []
        for example in examples:
            spans = [s for s in example.label if isinstance(s, Span)] if isinstance(example.label, tuple) else []
            for span in spans:
                if span.label not in known:
                    bad.add(
                        example.row,
                        f"span label '{span.label}' is not in the label set; {nearest(span.label, sorted(known))}.",
                        "Correct the row or the name of the label column, or add the label under data.labels.",
                    )
            out.append([s for s in spans if s.label in known])
        if bad.count:
            raise InputError(bad.close())
        return out

    def permutation_from(self, other: Labels, where: str) -> list[int] | None:
        """How to reorder the outputs of a model with labels `other` into this order.

        Args:
            other: The model's labels.
            where: What to blame in the error.

        Returns:
            Positions in `other` for each of these labels, or None when the order is equal already.

        Raises:
            InputError: If the two sets differ.
        """
        if self.names == other.names:
            return None
        if set(self.names) != set(other.names):
            ours, theirs = set(self.names) - set(other.names), set(other.names) - set(self.names)
            raise InputError(
                Problem(
                    where,
                    f"the model's labels differ from the data's: only in the data [{listed(sorted(ours))}], "
                    f"only in the model [{listed(sorted(theirs))}].",
                    "Use data.labels with the model's names, or fine-tune the teacher on these labels.",
                )
            )
        position = {name: i for i, name in enumerate(other.names)}
        return [position[name] for name in self.names]


def placeholder_names(names: Sequence[str]) -> bool:
    """Whether these are transformers' own LABEL_0, LABEL_1, ..., which say nothing."""
    return all(name == f"LABEL_{i}" for i, name in enumerate(names))


def resolve_labels(
    declared: Sequence[str] | None,
    teacher: Sequence[str] | None,
    examples: Sequence[Example],
    kind: LabelKind = LabelKind.NAME,
) -> Labels:
    """The label order of a run.

    Args:
        declared: `data.labels` of the recipe.
        teacher: Labels of a teacher that already has a head.
        examples: Training rows.
        kind: What their labels are. Of spans the labels become tags: ``O``, ``B-x``, ``I-x``; those of a teacher are tags
            already, also where none is ``O``.

    Returns:
        The declared order; else the teacher's; else the names in the data, sorted; else the numbers in the data, in numeric order,
        called LABEL_i where they are 0, 1, 2, ... None of tasks without.

    Raises:
        InputError: If fewer labels result than the task needs, two of them look the same, some are numbers and some names, or it is
            not clear which number is which name.
    """
    if kind not in _FEWEST:
        return Labels(())
    if declared:
        labels = with_numbers(Labels(tuple(declared)), examples, kind, ordered=True)
    elif teacher and not placeholder_names(teacher):
        labels = with_numbers(Labels(tuple(teacher), "label names taken from the teacher"), examples, kind)
    else:
        labels = _from_data(examples, kind, teacher or ())
    if problems := [Problem("data.labels", f"{what}.", _TWIN_FIX) for what in name_problems(labels.names)]:
        raise InputError(problems)
    if kind is LabelKind.SPANS and set(labels.names) != set(teacher or ()):
        labels = Labels(tags_of(labels.names), labels.note)
        if OUTSIDE not in labels.names:
            raise InputError(
                Problem("data.labels", f"tags need '{OUTSIDE}' for words of no label; found {listed(labels.names)}.")
            )
    if len(labels) < _FEWEST[kind]:
        raise InputError(
            Problem("data.labels", f"the task needs at least {_FEWEST[kind]} labels, found [{listed(labels.names)}].")
        )
    return labels


_TWIN_FIX = "Write the label in one way, in the data and in data.labels."
_FEWEST = {LabelKind.NAME: 2, LabelKind.NAMES: 1, LabelKind.SPANS: 2}


def with_numbers(labels: Labels, examples: Sequence[Example], kind: LabelKind, ordered: bool = False) -> Labels:
    """Add to a label set which number in the data is which label, see `match_numbers`; with a note where these are no positions.

    Args:
        labels: Names that a person, a model or a data set declared.
        examples: Rows whose labels may be numbers.
        kind: What their labels are.
        ordered: Whether the order of the names is the numeric order of such numbers, whatever they are.

    Raises:
        InputError: If it is not clear which number is which name.
    """
    if kind not in (LabelKind.NAME, LabelKind.NAMES):
        return labels
    found = {number for value in _first_rows(examples) if (number := number_of(value)) is not None}
    numbers = match_numbers(sorted(found), labels.names, ordered)
    if not numbers:
        return labels
    note = f"numbers in the data: {describe_numbers(numbers, labels.names)}"
    return replace(labels, numbers=numbers, note=f"{labels.note}; {note}" if labels.note else note)


def _first_rows(examples: Sequence[Example]) -> dict[object, int]:
    """The first row of every label that occurs; of a row with several, or with spans, each of them."""
    rows: dict[object, int] = {}
    for example in examples:
        for value in example.label if isinstance(example.label, tuple) else (example.label,):
            rows.setdefault(value.label if isinstance(value, Span) else value, example.row)
    return rows


def _from_data(examples: Sequence[Example], kind: LabelKind, outputs: Sequence[str]) -> Labels:
    """Name the labels after the data; `outputs` are the names LABEL_i of a teacher whose outputs have no other ones."""
    rows = _first_rows(examples)
    numbers = {value: number for value in rows if (number := number_of(value)) is not None}
    if not numbers or kind is LabelKind.SPANS:  # tags are always names
        return Labels(tuple(sorted(map(str, rows))), "label names taken from the training data, sorted", declared=False)
    if len(numbers) < len(rows):
        one, name = next(iter(numbers)), next(value for value in rows if value not in numbers)
        raise InputError(
            Problem(
                "data.labels",
                f"the labels are numbers in some rows (row {rows[one]}: {shown(one)}) and names in others "
                f"(row {rows[name]}: {shown(name)}).",
                "Write all of them as names, or list them in data.labels: a number then means the name that is this number.",
            )
        )
    found = sorted(set(numbers.values()))
    if any(isinstance(n, int) and n >= MAX_LABELS for n in found):
        raise InputError(
            Problem(
                "data.labels",
                f"the data has the label number {found[-1]}; that is not a label id.",
                "Check which column holds the labels, or give data.labels.",
            )
        )
    return _named_by_numbers(found, outputs)


def _named_by_numbers(found: Sequence[int | float], outputs: Sequence[str]) -> Labels:
    """Name labels after the numbers in the data: LABEL_i for 0, 1, 2, ..., which says what a model without names says."""
    matched = match_numbers(found, outputs, ordered=True) if outputs else ()
    if outputs and not matched:
        return Labels(
            tuple(outputs), "the data has numbers only and data.labels is not given: labels are called LABEL_i"
        )
    if not outputs and [*found] == [*range(len(found))]:
        names = tuple(f"LABEL_{i}" for i in range(len(found)))
        return Labels(names, "the data has numbers only and data.labels is not given: labels are called LABEL_i")
    note = "label names are the numbers in the training data, in numeric order"
    if matched:
        note += (
            f"; the teacher's outputs have no names and are taken in this order: {describe_numbers(matched, outputs)}"
        )
    return Labels(tuple(map(str, found)), note, declared=False, numbers=matched)
