"""What is wrong with the rows of one file: the first few, and the count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pocketbert.core.data.column_names import is_numbered_column
from pocketbert.core.data.limits import MOST_COLUMNS
from pocketbert.core.errors import Problem, nearest

SHOWN_PROBLEMS = 20
_ALIKE = 0.75
"""Columns are named freely: ``intent`` is no slip of ``text``, ``texts`` is."""
_COLUMN_FIX = "Name the columns with --text, --text-pair and --label, or in the recipe's data section."

_HEADER_FIX = (
    "The first row was read as a header: give --no-header, or header: false in the recipe, if it is a row of data."
)
_NO_HEADER_FIX = "The file was read without a header: name columns by their number, such as 'column 1', or give --header, or header: true in the recipe."


class BadRows:
    """Collects what is wrong with the rows of one file: the first few and the count."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.count = 0
        self.problems: list[Problem] = []
        self._missing: set[tuple[str, tuple[str, ...]]] = set()

    def add(self, row: int, what: str, fix: str = "") -> None:
        """Note one bad row."""
        self.count += 1
        if len(self.problems) < SHOWN_PROBLEMS:
            self.problems.append(Problem(f"{self.title}:{row}", what, fix))

    @property
    def shows_more(self) -> bool:
        """Whether the next bad row is shown; the others are only counted."""
        return len(self.problems) < SHOWN_PROBLEMS

    def missing(self, row: int, column: str, cells: Mapping[str, Any]) -> None:
        """Note a row without a column; of rows that have the same columns, as those of a table do, only the first is shown."""
        if not self.shows_more:  # the hint takes time
            self.add(row, "")
            return
        have = [str(k) for k in cells]
        alike = (column, tuple(have[:MOST_COLUMNS]))
        if alike in self._missing:
            self.count += 1
            return
        self._missing.add(alike)
        what = f"no column '{column}'; {nearest(column, have, _ALIKE) if have else 'the row is empty'}."
        if have and is_numbered_column(column) != all(map(is_numbered_column, have)):
            self.add(row, what, _HEADER_FIX if is_numbered_column(column) else _NO_HEADER_FIX)
        else:
            self.add(row, what, _COLUMN_FIX)

    def close(self) -> list[Problem]:
        """The problems, with a last line that tells how many more there are."""
        if self.count > len(self.problems):
            more = self.count - len(self.problems)
            return [
                *self.problems,
                Problem(self.title, f"and {more:,} more bad rows ({self.count:,} in all)."),
            ]
        return self.problems
