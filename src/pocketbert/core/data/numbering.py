"""Which id a label in the data means: names mean themselves, numbers a name that is a number, else a position."""

from __future__ import annotations

from collections.abc import Sequence

from pocketbert.core.data.bad_rows import BadRows
from pocketbert.core.data.numerals import number_of
from pocketbert.core.errors import nearest, shown

_FIX = "Correct the row or the name of the label column, or add the label under data.labels."


class Numbering:
    """Ids of labels in one file.

    If any name of the set is a number ("1", "5.0"), a number in the data means the name that is this number, never a
    position. If none is, a number is a position in the set, provided that somebody declared the order.

    Args:
        names: The label set; the index is the id.
        positions: Whether a number may be a position: the order was declared, not found in the data.
        bad: Collects rows whose label is not in the set.
    """

    def __init__(self, names: Sequence[str], positions: bool, bad: BadRows) -> None:
        self._names, self._bad = names, bad
        self._by_name = {name: i for i, name in enumerate(names)}
        self._by_number: dict[int | float, int] = {}
        for i, name in enumerate(names):
            number = number_of(name)
            if number is not None:
                self._by_number[number] = i
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
        elif self._positions:
            self._check_mixed(number is not None, label, row)
        return found

    def _refuse(self, label: object, number: float | None, row: int) -> None:
        if not self._bad.shows_more:  # the hint takes time
            self._bad.add(row, "")
            return
        hint = nearest(str(label), self._names)
        if number is not None and self._by_number:
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
