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
from pocketbert.core.data.column_names import numbered_column
from pocketbert.core.data.header import TableForm
from pocketbert.core.data.limits import MOST_COLUMNS, Limits
from pocketbert.core.data.streams import check_encoding, no_text, opened, too_long, too_many
from pocketbert.core.errors import InputError, Problem, listed


def table_rows(
    path: Path, form: TableForm, title: str, limits: Limits, bad: BadRows
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a table, with their record numbers; what is no row is added to `bad`.

    Columns of a table without a header are called ``column 1``, ``column 2``, and so on.

    Raises:
        InputError: If the file cannot be read, or is larger than `limits` allow.
    """
    try:
        yield from _table_rows(path, form, title, limits, bad)
    except UnicodeDecodeError:  # the stream is decoded in blocks: find the line
        check_encoding(path, title, limits)
        raise


def _table_rows(
    path: Path, form: TableForm, title: str, limits: Limits, bad: BadRows
) -> Iterator[tuple[int, dict[str, Any]]]:
    # `_Records` counts; the library's limit is global
    csv.field_size_limit(max(csv.field_size_limit(), limits.line + 1))
    with opened(path, title, limits) as raw:
        records = _Records(io.TextIOWrapper(raw, encoding="utf-8-sig", newline=""), title, limits, form.header)
        if path.suffix == ".tsv":
            reader = csv.reader(records, delimiter=form.separator, quoting=csv.QUOTE_NONE)
        else:
            reader = csv.reader(records, delimiter=form.separator, strict=True)
        try:
            first = next(reader, None)
            if not first:
                return
            names = first if form.header else [numbered_column(i) for i, _ in enumerate(first, 1)]
            check_columns(names, f"{title}:1")
            rows = enumerate(reader, 2) if form.header else enumerate(chain([first], reader), 1)
            what = "header" if form.header else "first row"
            for number, cells in rows:
                records.next_record(number)
                if not cells:
                    continue  # a blank line
                if len(cells) != len(names):
                    bad.add(number, f"{len(cells):,} columns, the {what} has {len(names):,}.")
                elif _is_json(cells):
                    bad.add(number, "is a JSON object; cells that a separator parts are expected.")
                else:
                    yield number, dict(zip(names, cells, strict=True))
        except csv.Error as error:
            raise InputError(Problem(f"{title}:{reader.line_num}", f"not valid CSV: {error}.")) from error


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

    def __init__(self, stream: io.TextIOWrapper, title: str, limits: Limits, header: bool) -> None:
        self._stream, self._title, self._limits, self._header = stream, title, limits, header
        self._record, self._room = 1, limits.line

    def next_record(self, number: int) -> None:
        """Begin to count anew: the record with this number is complete."""
        self._record, self._room = number, self._limits.line
        if number > self._limits.rows + self._header:  # the header is the first record
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
