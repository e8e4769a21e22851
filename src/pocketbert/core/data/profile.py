"""What the columns of a data file hold: the counts that tell texts, label names, numbers and tags apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pocketbert.core.data.numerals import is_visible, number_of

MOST_ROWS = 20_000
"""Rows that are looked at: many files are sorted by label, so the first hundred may hold one label only."""
_MOST_CHARACTERS = 1 << 26
"""Characters after which no further row is looked at."""


@dataclass
class Column:
    """Counts over the cells of one column; empty cells are left out.

    Attributes:
        name: Its name.
        cells: Cells that are not empty.
        texts: Cells that are text and no number.
        numbers: Cells that are a number, written as one or as text.
        fractions: Numbers that are not whole.
        lists: Cells that are lists.
        spans: Lists whose entries are objects.
        words: Words in all texts.
        letters: Letters in all texts.
        characters: Characters in all texts.
        parted: Texts with a semicolon inside.
        values: The different cells, as text.
        parts: The different entries of lists, and the parts of texts between semicolons.
        lengths: Entries of each list, or words of each text, by row.
    """

    name: str
    cells: int = 0
    texts: int = 0
    numbers: int = 0
    fractions: int = 0
    lists: int = 0
    spans: int = 0
    words: int = 0
    letters: int = 0
    characters: int = 0
    parted: int = 0
    values: set[str] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)
    lengths: dict[int, int] = field(default_factory=dict)

    def add(self, row: int, cell: Any) -> None:
        """Count one cell."""
        if cell is None or (isinstance(cell, str) and not is_visible(cell)):
            return
        self.cells += 1
        if isinstance(cell, list | tuple):
            self.lists += 1
            self.spans += bool(cell) and all(isinstance(entry, dict) for entry in cell)
            self.parts.update(str(entry) for entry in cell)
            self.lengths[row] = len(cell)
            return
        self.values.add(str(cell))
        number = number_of(cell)
        if number is not None:
            self.numbers += 1
            self.fractions += isinstance(number, float)
        elif isinstance(cell, str):
            self._add_text(row, cell)

    def _add_text(self, row: int, cell: str) -> None:
        words = cell.split()
        self.texts += 1
        self.words += len(words)
        self.letters += sum(character.isalpha() for character in cell)
        self.characters += len(cell)
        self.parted += ";" in cell
        self.parts.update(part.strip() for part in cell.split(";"))
        self.lengths[row] = len(words)

    @property
    def mean_words(self) -> float:
        """Words of a text."""
        return self.words / max(self.texts, 1)

    @property
    def mean_characters(self) -> float:
        """Characters of a text."""
        return self.characters / max(self.texts, 1)

    @property
    def is_text(self) -> bool:
        """Whether most cells are text."""
        return self.texts * 2 > self.cells

    @property
    def is_words(self) -> bool:
        """Whether every cell is a list of words."""
        return 0 < self.cells == self.lists and not self.spans

    @property
    def is_numbers(self) -> bool:
        """Whether every cell is a number."""
        return 0 < self.cells == self.numbers

    @property
    def is_prose(self) -> bool:
        """Whether it reads like texts: mostly letters, several words or many characters, and mostly different."""
        long = self.mean_words >= 2.5 or self.mean_characters >= 15
        lettered = self.letters * 2 > self.characters
        return self.is_different and long and lettered

    @property
    def is_different(self) -> bool:
        """Whether most cells are text, and mostly different."""
        return self.is_text and len(self.values) * 2 > self.cells

    @property
    def repeats(self) -> bool:
        """Whether its values come back, as label names do: at least two values, each twice on the average."""
        return 2 <= len(self.values) <= self.cells // 2


def profile(rows: Iterable[tuple[int, Mapping[str, Any]]]) -> tuple[dict[str, Column], int]:
    """Count the cells of each column over the first rows of a file.

    Args:
        rows: Rows with their numbers, see `read_rows`.

    Returns:
        The columns by name in the order of the file, and how many rows were looked at.
    """
    columns: dict[str, Column] = {}
    count = 0
    for number, row in rows:
        count += 1
        for name, cell in row.items():
            columns.setdefault(name, Column(name)).add(number, cell)
        if count >= MOST_ROWS or sum(c.characters for c in columns.values()) > _MOST_CHARACTERS:
            break
    return columns, count
