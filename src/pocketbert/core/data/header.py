"""Whether the first row of a CSV or TSV file is a header, and which character separates its cells.

The idea is that of `csv.Sniffer`: the first row is compared with the rows below it. Each feature of a cell (its shape, whether it
occurs below, its capitals) has a probability in a header and one among the cells of its column, and the logarithms of their ratios
are added.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from math import log
from pathlib import Path

from pocketbert.core.data.column_names import is_numbered_column, is_usual_name
from pocketbert.core.data.limits import Limits
from pocketbert.core.data.numerals import is_visible, number_of
from pocketbert.core.data.streams import opened

_BYTES = 1 << 20
_ROWS, _CELLS = 1000, 20_000
"""How much of a file is compared with its first row."""
_LEAST = 2.5
"""Sum from which on a first row is data; below, it is a header, as it always was in earlier versions."""
_UNSURE = 2.0
"""How far the sum is from there where the user is told of the other reading."""
_MOST = 6.0
"""What one feature of one cell adds at most."""


class _Shape(Enum):
    """What a cell looks like."""

    EMPTY = "empty"
    NUMBER = "number"
    SIGNS = "mostly digits and signs, such as a date"
    WORD = "one word"
    PHRASE = "two to four words without punctuation"
    TEXT = "text"


_IN_HEADERS = {
    _Shape.EMPTY: 0.02,
    _Shape.NUMBER: 0.004,
    _Shape.SIGNS: 0.006,
    _Shape.WORD: 0.83,
    _Shape.PHRASE: 0.12,
    _Shape.TEXT: 0.02,
}
"""Share of the cells of headers that look like this."""
_FIRST_EMPTY = 0.15
"""Share of headers whose first cell is empty: pandas writes an index like this."""
_SEEN_IN_HEADER, _OFTEN_IN_HEADER = 0.02, 0.005
"""Shares of the names in headers that also occur as a value of their column, and of those that occur there several times."""
_CASES = {"lower": 0.5, "capital": 0.3, "upper": 0.1, "other": 0.1}
"""Shares of the names in headers by their capitals."""
_UNUSUAL = 1.0
"""What is added where no cell is a usual name of a column."""
_ONE_USUAL, _SEVERAL_USUAL = -2.5, -4.0
"""What each usual name adds: a label may be called "question", and hardly two cells of one row are names by chance."""
_NO_VALUE = frozenset(["na", "n/a", "nan", "null", "none", "?", "-"])
_WIDEST_WORD, _WIDEST_PHRASE, _MOST_WORDS = 40, 40, 4
_PUNCTUATION = re.compile(r"[.!?;,](\s|$)|[\u2026\u3001\u3002\uff01\uff0c\uff1f]|://")


@dataclass(frozen=True)
class TableForm:
    """How a CSV or TSV file is written.

    Attributes:
        separator: What separates its cells.
        header: Whether its first row names the columns.
        sure: Whether that was clear; true where the user decided it.
    """

    separator: str
    header: bool
    sure: bool = True


def find_table_form(
    path: Path, title: str, limits: Limits, header: bool | None = None, named: Collection[str] = ()
) -> TableForm:
    """Find out how a table is written, from its first megabyte.

    Args:
        path: A ``.csv`` or ``.tsv`` file.
        title: What errors name.
        limits: What the file may hold.
        header: Whether it has a header, where the user decided that.
        named: Columns that the user or a recipe names: a first row with one of these is a header.

    Raises:
        InputError: If the file cannot be opened.
    """
    # larger fields end the reading of the sample; the library's limit is global and never lowered
    csv.field_size_limit(max(csv.field_size_limit(), limits.line + 1))
    with opened(path, title, limits) as stream:
        raw = stream.read(_BYTES)
    if len(raw) == _BYTES:
        raw = raw[: raw.rfind(b"\n") + 1] or raw
    text = raw.decode("utf-8-sig", errors="replace")
    separator = "\t" if path.suffix == ".tsv" else _choose_separator(text)
    rows = _read_sample(text, separator, quoted=path.suffix != ".tsv")
    if header is not None or not rows:
        return TableForm(separator, header is not False)
    if set(named) & set(rows[0]):
        return TableForm(separator, True)
    score = _score_as_data(rows[0], rows[1:])
    if any(is_numbered_column(name) for name in named):
        score += _LEAST
    return TableForm(separator, score <= _LEAST, abs(score - _LEAST) >= _UNSURE)


def _read_sample(text: str, separator: str, quoted: bool = True) -> list[list[str]]:
    """Read the first rows of a table; a row that is broken or cut off ends them."""
    lines = io.StringIO(text, newline="")
    reader = csv.reader(
        lines, delimiter=separator, strict=quoted, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    )
    rows, cells = list[list[str]](), 0
    try:
        for row in reader:
            if row:
                rows.append(row)
                cells += len(row)
            if len(rows) > _ROWS or cells > _CELLS:
                break
    except csv.Error:
        pass
    return rows


def _choose_separator(text: str) -> str:
    """Choose comma, semicolon or tab: the one that makes rows of equal length; of equally good ones that with more cells that recur.

    One with a blank behind it is punctuation. The comma is left where no other one splits most rows alike.
    """
    best, separator = (0.5, 0.0), ","
    for sign in (",", ";", "\t"):
        rows = _read_sample(text, sign)
        if not rows or len(rows[0]) < 2:
            continue
        cells = [cell for row in rows for cell in row]
        blank = sum(cell.startswith(" ") for row in rows for cell in row[1:]) / max(len(cells) - len(rows), 1)
        equal = sum(len(row) == len(rows[0]) for row in rows) / len(rows)
        quality = equal * (1 - blank), 1 - len(set(cells)) / len(cells)
        if quality > best:
            best, separator = quality, sign
    return separator


def _score_as_data(first: Sequence[str], rows: Sequence[Sequence[str]]) -> float:
    """Add up how much more likely a first row is data than a header, as a logarithm."""
    alike = [row for row in rows if len(row) == len(first)]
    if _is_counted(first) and alike:
        return -_MOST
    usual = sum(map(is_usual_name, first))
    score = usual * (_SEVERAL_USUAL if usual > 1 or len(first) == 1 else _ONE_USUAL) if usual else _UNUSUAL
    for place, cell in enumerate(first):
        score += _score_cell(cell, [row[place] for row in alike], place == 0)
    names = [cell for cell in first if is_visible(cell)]
    if len(set(names)) < len(names):
        twice = sum(len(set(row)) < len(row) for row in alike)
        score += max(0.0, log((twice + 0.5) / (len(alike) + 1) / 0.01))
    return score


def _is_counted(first: Sequence[str]) -> bool:
    """Tell whether a row is 0, 1, 2, ...: pandas writes this header for columns without names."""
    cells = list(first[1:]) if len(first) > 2 and not first[0] else list(first)
    return len(cells) > 1 and cells == [str(i) for i in range(len(cells))]


def _score_cell(cell: str, column: Sequence[str], is_first: bool) -> float:
    """Add up the features of one cell of the first row, compared with the cells below it."""
    shapes = Counter(map(_shape_of, column))
    numeric = shapes[_Shape.NUMBER] * 2 > len(column) - shapes[_Shape.EMPTY] > 0
    shape = _Shape.EMPTY if numeric and cell.strip().casefold() in _NO_VALUE else _shape_of(cell)
    in_header = _FIRST_EMPTY if is_first and shape is _Shape.EMPTY else _IN_HEADERS[shape]
    score = _bounded(log((shapes[shape] + 0.5) / (len(column) + 0.5 * len(_Shape)) / in_header))
    if shape is _Shape.EMPTY:
        return score
    score += _score_value(cell, column)
    if shape in (_Shape.WORD, _Shape.PHRASE):
        below = Counter(_case_of(c) for c in column if _shape_of(c) in (_Shape.WORD, _Shape.PHRASE))
        share = (below[_case_of(cell)] + 1) / (below.total() + len(_CASES))
        score += min(0.2, log(share / _CASES[_case_of(cell)]))
    return score


def _score_value(cell: str, column: Sequence[str]) -> float:
    """Score whether a cell occurs below: a label does; a new value is as likely as values that occur once are frequent."""
    counts = Counter(_value_of(c) for c in column if is_visible(c))
    new = (sum(count == 1 for count in counts.values()) + 1) / (counts.total() + 2)
    if seen := counts[_value_of(cell)]:
        return _bounded(max(0.0, log((1 - new) / (_SEEN_IN_HEADER if seen == 1 else _OFTEN_IN_HEADER))))
    return _bounded(log(new / (1 - _SEEN_IN_HEADER)))


def _value_of(cell: str) -> object:
    number = number_of(cell)
    return cell.strip() if number is None else number


def _bounded(score: float) -> float:
    return min(max(score, -_MOST), _MOST)


def _shape_of(cell: str) -> _Shape:
    """Tell what a cell looks like."""
    if not is_visible(cell):
        return _Shape.EMPTY
    if number_of(cell) is not None:
        return _Shape.NUMBER
    words = cell.split()
    width = _width(cell)
    if _PUNCTUATION.search(cell):
        return _Shape.TEXT
    if sum(c.isalpha() for c in cell) * 3 < len("".join(words)):
        return _Shape.SIGNS
    if len(words) == 1 and width <= _WIDEST_WORD:
        return _Shape.WORD
    return _Shape.PHRASE if len(words) <= _MOST_WORDS and width <= _WIDEST_PHRASE else _Shape.TEXT


def _width(cell: str) -> float:
    """Measure a cell in letters; a character of Chinese, Japanese or Korean counts as four."""
    return sum(4 if c >= "\u2e80" else 1 for c in cell[: _WIDEST_WORD + 1])


def _case_of(cell: str) -> str:
    """Tell the capitals of a name."""
    if cell.islower():
        return "lower"
    if cell.isupper():
        return "upper" if len(cell) > 1 else "capital"
    return "capital" if cell.strip()[:1].isupper() else "other"
