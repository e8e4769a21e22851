"""Which label is which number: one order for the data, the teacher, the student and the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.bad_rows import BadRows
from pocketbert.core.data.examples import Example
from pocketbert.core.data.numbering import Numbering, describe_numbers, match_numbers
from pocketbert.core.data.numerals import name_problems, number_of
from pocketbert.core.data.spans import OUTSIDE, Span, label_of, tags_of
from pocketbert.core.errors import InputError, Problem, listed, nearest, shown
from pocketbert.core.tasks import LabelKind

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
