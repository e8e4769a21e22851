"""Which id a label in the data means: names mean themselves, numbers a name that is or has this number, else a position."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pocketbert.core.data.bad_rows import BadRows
from pocketbert.core.data.numerals import number_of
from pocketbert.core.errors import InputError, Problem, listed, nearest, shown

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
