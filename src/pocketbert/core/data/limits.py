"""How much of a file is read: limits that end a file which is broken or hostile early, with little memory used."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
LINE_MB = 4
"""A longer row is a broken file, unless the user knows better."""
ROWS = 1_000_000
"""Rows that are held in memory together."""
CORPUS_ROWS = 20_000_000
"""Rows that are read one after the other."""
ROW_BYTES = 512
"""Bytes that a file may have in all for each row it may have."""
MOST_COLUMNS = 10_000
_RATIO = 200
"""A compressed file that grows by more is no text; real text grows by 3 to 20."""
_RATIO_FROM = 64 * MIB


@dataclass(frozen=True)
class Limits:
    """What one file may hold.

    Attributes:
        line: Bytes of a line, and of a row of a table or a Parquet file.
        rows: Rows; lines of a file without columns.
    """

    line: int = LINE_MB * MIB
    rows: int = ROWS

    @property
    def total(self) -> int:
        """Bytes of all rows, decompressed. A smaller number of rows does not lower it."""
        return max(self.rows, ROWS) * ROW_BYTES

    def grows_too_much(self, read: int, stored: int) -> bool:
        """Tell whether a compressed file of `stored` bytes has grown to `read` bytes, which no text does."""
        return read > _RATIO_FROM and read > _RATIO * stored
