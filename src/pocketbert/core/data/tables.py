"""Rows out of CSV and TSV files."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from pocketbert.core.data.bad_rows import BadRows
from pocketbert.core.data.limits import MOST_COLUMNS, Limits
from pocketbert.core.data.streams import check_encoding, no_text, opened, too_long, too_many
from pocketbert.core.errors import InputError, Problem, listed


def table_rows(
    path: Path, separator: str, title: str, limits: Limits, bad: BadRows
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a table with a header, with their record numbers; what is no row is added to `bad`.

    Raises:
        InputError: If the file cannot be read, or is larger than `limits` allow.
    """
    try:
        yield from _table_rows(path, separator, title, limits, bad)
    except UnicodeDecodeError:  # the stream is decoded in blocks: find the line
        check_encoding(path, title, limits)
        raise


def _table_rows(
    path: Path, separator: str, title: str, limits: Limits, bad: BadRows
) -> Iterator[tuple[int, dict[str, Any]]]:
    # `_Records` counts; the library's limit is global
    csv.field_size_limit(max(csv.field_size_limit(), limits.line + 1))
    with opened(path, title, limits) as raw:
        records = _Records(io.TextIOWrapper(raw, encoding="utf-8-sig", newline=""), title, limits)
        first = next(records, "")
        lines = chain([first] if first else [], records)
        if separator == "\t":
            reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        else:
            reader = csv.reader(lines, delimiter=_delimiter(first), strict=True)
        try:
            header = next(reader, None)
            if not header:
                return
            check_columns(header, f"{title}:1")
            for number, cells in enumerate(reader, 2):
                records.next_record(number)
                if not cells:
                    continue  # a blank line
                if len(cells) != len(header):
                    bad.add(number, f"{len(cells):,} columns, the header has {len(header):,}.")
                elif _is_json(cells):
                    bad.add(number, "is a JSON object; cells that a separator parts are expected.")
                else:
                    yield number, dict(zip(header, cells, strict=True))
        except csv.Error as error:
            raise InputError(Problem(f"{title}:{reader.line_num}", f"not valid CSV: {error}.")) from error


def _delimiter(header: str) -> str:
    """What parts the cells of a CSV file: a comma, or where the header has none, the semicolon or tab that it has."""
    return next((sign for sign in (",", ";", "\t") if sign in header), ",")


def _is_json(cells: Sequence[str]) -> bool:
    """Whether a row looks like a line of JSON Lines: two files were joined, and its label would become a class."""
    return cells[0].lstrip().startswith('{"') and cells[-1].rstrip().endswith("}")


def check_columns(names: Sequence[str], where: str) -> None:
    """Refuse columns that are too many, or of which two have one name.

    Raises:
        InputError: If they are.
    """
    if len(names) > MOST_COLUMNS:
        raise InputError(Problem(where, f"{len(names):,} columns; allowed: at most {MOST_COLUMNS:,}."))
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        what = f"two columns are called {listed(sorted(twice))}."
        raise InputError(Problem(where, what, "Give each column another name."))


class _Records(Iterator[str]):
    """Lines of a table for the `csv` module, which joins the lines of a record; the length of the record is bounded."""

    def __init__(self, stream: io.TextIOWrapper, title: str, limits: Limits) -> None:
        self._stream, self._title, self._limits = stream, title, limits
        self._record, self._room = 1, limits.line

    def next_record(self, number: int) -> None:
        """Begin to count anew: the record with this number is complete."""
        self._record, self._room = number, self._limits.line
        if number > self._limits.rows + 1:  # the header is the first record
            raise too_many(self._title, self._limits)

    def __next__(self) -> str:
        """The next line, with its end."""
        line = self._stream.readline(self._room + 1)
        if not line:
            raise StopIteration
        if "\0" in line:
            raise no_text(self._title, self._record + 1)
        self._room -= len(line)
        if self._room < 0:
            raise too_long(self._title, self._record + 1, self._limits, "row")
        return line
