"""CSV and TSV files: the form of a table is guessed from its first megabyte, then its rows are read.

- `find_table_form` guesses the separator, and whether the first row is a header.
- `read_table` yields the rows as dictionaries; what is wrong with single rows is collected in a `BadRows`.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain
from math import inf, log
from typing import Any

from pocketbert.core.data.cells import is_visible, number_of
from pocketbert.core.data.column_names import MAX_COLUMNS, USUAL_COLUMN_NAMES, BadRows, is_numbered_column, plain_name
from pocketbert.core.data.streams import Limits, TextFile, check_encoding, count_bytes, null_byte_error
from pocketbert.core.errors import InputError, Problem, shorten_list

# --- guessing the separator and the header ---

_SAMPLE_BYTES = 1 << 20
_SAMPLE_ROWS, _SAMPLE_CELLS = 1000, 20_000
_LEAST = 2.5
"""The first row is data if its score is above this; otherwise it is a header, as it always was in earlier versions."""
_UNSURE = 2.0
"""Distance of the score from `_LEAST` below which the guess is called unsure: its margin."""
_RAREST = 0.02
"""Least probability of a value that does not occur below: labels of one row are not rare in files of many labels."""
_MOST = 6.0
"""Largest contribution of one feature of one cell to the score."""


class _Shape(Enum):
    """What a cell looks like."""

    EMPTY = "empty"
    NUMBER = "number"
    SIGNS = "mostly digits and signs, such as a date"
    WORD = "one word"
    PHRASE = "two to four words without punctuation"
    TEXT = "text"


_HEADER_SHAPES = {
    _Shape.EMPTY: 0.02,
    _Shape.NUMBER: 0.004,
    _Shape.SIGNS: 0.006,
    _Shape.WORD: 0.83,
    _Shape.PHRASE: 0.12,
    _Shape.TEXT: 0.004,
}
"""Frequency of each shape among the cells of headers."""
_FIRST_EMPTY = 0.15
"""Share of headers whose first cell is empty: pandas writes an index like this."""
_PADDING = 0.9
"""Share of empty cells above which a column is padding."""
_SEEN_IN_HEADER, _OFTEN_IN_HEADER = 0.02, 0.005
"""Shares of the names in headers that also occur once, and several times, as a value of their column."""
_HEADER_CASES = {"lower": 0.5, "capital": 0.3, "upper": 0.1, "other": 0.1}
"""Frequency of each use of capitals among the names in headers."""
_UNUSUAL = 1.0
"""Contribution of a row without a usual name of a column."""
_ONE_USUAL, _SEVERAL_USUAL = -2.5, -4.0
"""Contribution of each usual name: one label may be called "question", two cells of a row hardly are by chance."""
_NO_VALUE = frozenset(["na", "n/a", "nan", "null", "none", "?", "-"])
_WIDEST_WORD, _WIDEST_PHRASE, _MOST_WORDS = 40, 40, 4
_PUNCTUATION = re.compile(r"[.!?;,](\s|$)|[\u2026\u3001\u3002\uff01\uff0c\uff1f]|://")


@dataclass(frozen=True)
class TableForm:
    """The layout of a CSV or TSV file: separator, quotes and header.

    Attributes:
        separator: The character between cells.
        header: Whether the first row names the columns.
        margin: How clearly the guess whether there is a header was decided, as a difference of scores; infinite if the
            user or a column's name decided.
        quote: The sign between which separators and line ends belong to the cell; empty if quotes have no such meaning.
        escape: The sign before a quote inside such a cell; empty if the quote is doubled.
        skipped: Lines before the table: comments, or Excel's ``sep=;``.
    """

    separator: str
    header: bool
    margin: float = inf
    quote: str = '"'
    escape: str = ""
    skipped: int = 0

    def read_cells(self, lines: Iterable[str]) -> Iterator[list[str]]:
        """Return a `csv.reader` of the cells of each row, which raises csv.Error for quotes that are not closed or that text follows."""
        if not self.quote:
            return csv.reader(lines, delimiter=self.separator, quoting=csv.QUOTE_NONE)
        escape = {"escapechar": self.escape, "doublequote": False} if self.escape else {}
        return csv.reader(lines, delimiter=self.separator, quotechar=self.quote, strict=True, **escape)  # type: ignore[arg-type]

    @property
    def sure(self) -> bool:
        """Whether it is certain that the table has a header, or that it has none."""
        return self.margin >= _UNSURE


def find_table_form(file: TextFile, header: bool | None = None, named: Collection[str] = ()) -> TableForm:
    """Guess the separator and the header row of a table from its first megabyte.

    The header is found with the idea of `csv.Sniffer`: the first row is compared with the rows below it. Each feature
    of a cell (its shape, whether it occurs below, its capitals) has a probability in a header and one among the cells
    of its column; the logarithms of their ratios are added.

    Args:
        file: The .csv or .tsv file.
        header: Whether the file has a header row, if the user said so; None to guess.
        named: Columns that the user or a recipe names: a first row with one of these is a header; a name such as
            ``column 2`` makes a header less likely.

    Raises:
        InputError: If the file cannot be opened.
    """
    # larger fields end the reading of the sample; the library's limit is global and never lowered
    csv.field_size_limit(max(csv.field_size_limit(), file.limits.line + 1))
    text = file.sample(_SAMPLE_BYTES)
    name = file.path.name.removesuffix(".gz")
    skipped, named_separator = _find_start(text)
    text = "".join(io.StringIO(text, newline="").readlines()[skipped:]) if skipped else text
    separator = named_separator or ("\t" if name.endswith(".tsv") else choose_separator(text))
    is_quoted = name.endswith(".csv") or separator != "\t"
    form = TableForm(separator, header is not False, quote='"' if is_quoted else "", skipped=skipped)
    form = _find_quotes(text, form)
    rows = _read_sample(text, form)
    if header is not None or not rows or set(named) & set(rows[0]):
        return form
    score = _score_as_data(rows[0], rows[1:])
    if any(is_numbered_column(name) for name in named):
        score += _LEAST
    return replace(form, header=score <= _LEAST, margin=abs(score - _LEAST))


_START = re.compile(r"\ufeff?\"?sep=(.)\"?\r?\n")
"""The first line by which Excel is told the separator."""
_COMMENT = re.compile(r"#+(\s|$)")
"""What a comment begins with; behind the sign of a hashtag is no blank."""
_MOST_SKIPPED = 50
_MOST_PADDING = 20
"""Empty cells behind the last column of the header that are left out."""
_CLEAN, _DAMAGED = 0.99, 0.9
"""Shares of the lines in whole rows: above the first quotes are read rightly, below the second something else is tried."""


def _find_start(text: str) -> tuple[int, str]:
    """Return how many lines stand before a table, and the separator that Excel's first line names; empty for none.

    Lines that begin with # and a blank are comments, with the blank lines between them. If the first row below them is data and
    not a header, the table begins with the first comment that has as many cells as that row.
    """
    if match := _START.match(text):
        return 1, match[1]
    lines = text.split("\n", _MOST_SKIPPED + 1)[: _MOST_SKIPPED + 1]
    count = next((i for i, line in enumerate(lines) if line.strip() and not _COMMENT.match(line)), 0)
    form = TableForm(choose_separator("\n".join(lines[count:])), True)
    rows = _read_sample("\n".join(lines[count:]), form) if count else []
    if not rows or _score_as_data(rows[0], rows[1:]) <= _LEAST:
        return count, ""
    widths = [next(map(len, _read_sample(line, form)), 0) for line in lines[:count]]
    return (widths.index(len(rows[0])) if len(rows[0]) in widths else count), ""


def _find_quotes(text: str, form: TableForm) -> TableForm:
    """Return `form` with the quotes by which the lines of `text` make rows of equal length: double ones, single ones or none.

    Double quotes are tried first. Between tabs and bars a quote may be part of the text: there cells are quoted if some of them hold
    a line end, if quotes inside are doubled, or if a whole column is quoted.
    """
    quoted, bare = replace(form, quote='"'), replace(form, quote="")
    if '"' in text and form.separator in "\t|" and (share := _share_of_rows(text, bare)) > _CLEAN:
        sample = _read_sample(text, bare)
        is_doubled = any('""' in cell[1:-1] and cell[0] == cell[-1] == '"' for row in sample for cell in row)
        is_quoted = form.quote or is_doubled or _has_quoted_column(sample)
        # a quote that one cell opens and another closes would join rows that are whole without it
        is_closed = all(cell[-1] == '"' for row in sample for cell in row if cell[:1] == '"')
        share_quoted = _share_of_rows(text, quoted)
        return quoted if is_quoted and share_quoted > (_CLEAN if is_closed else share) else bare
    single = replace(form, quote="'")
    if _share_of_rows(text, quoted) >= _DAMAGED:
        is_single = '"' not in text and _has_quoted_column(_read_sample(text, bare), "'")
        return single if is_single and _share_of_rows(text, single) > _CLEAN else quoted if '"' in text else form
    others = [replace(quoted, escape="\\")] if '\\"' in text else []
    others += [single] if _share_of_rows(text, bare) < _DAMAGED else []
    return next((other for other in others if _share_of_rows(text, other) > _CLEAN), form)


def _has_quoted_column(rows: Sequence[Sequence[str]], quote: str = '"') -> bool:
    """Return whether all cells of a column stand between quotes, as a program writes them."""
    width = len(rows[0]) if rows else 0
    whole = [[len(cell) > 1 and cell[0] == cell[-1] == quote for cell in row] for row in rows if len(row) == width]
    return len(whole) > 1 and any(map(all, zip(*whole, strict=True)))


def _share_of_rows(text: str, form: TableForm) -> float:
    """Return the share of a sample's lines that are in rows of as many cells as the first row has, at least two."""
    lines = io.StringIO(text, newline="").readlines()
    reader = form.read_cells(lines)
    whole = line = width = 0
    with contextlib.suppress(csv.Error):
        for row in reader:
            used, line = reader.line_num - line, reader.line_num  # type: ignore[attr-defined]
            width = width or len(row)
            whole += used if not row or (len(row) == width and width > 1) else 0
            if whole > _SAMPLE_ROWS:
                return float(whole / line)
    return whole / max(len(lines), 1)


def _read_sample(text: str, form: TableForm) -> list[list[str]]:
    """Parse the first rows of a table, about 1,000 rows or 20,000 cells at most, up to a row whose quotes are broken."""
    rows, cells = list[list[str]](), 0
    with contextlib.suppress(csv.Error):
        for row in form.read_cells(io.StringIO(text, newline="")):
            if row:
                rows.append(row)
                cells += len(row)
            if len(rows) > _SAMPLE_ROWS or cells > _SAMPLE_CELLS:
                break
    return rows


def choose_separator(text: str, usual: str = ",") -> str:
    """Choose the separator of a table (comma, semicolon, tab or bar): the one that splits most rows into equally many cells.

    A separator that blanks follow is taken for punctuation. `usual` is returned if no separator splits more than half
    of the rows alike.
    """
    best, separator = (0.5, 0.0), usual
    for sign, quote in ((",", '"'), (";", '"'), ("\t", '"'), ("\t", ""), ("|", '"'), ("|", "")):
        rows = _read_sample(text, TableForm(sign, True, quote=quote))
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
    """Return how likely a table's first row is data and not a header, as the logarithm of a ratio."""
    rows = [row for row in rows if len(row) == len(first)]
    numbers = list(first[1:]) if len(first) > 2 and not first[0] else list(first)
    if rows and len(numbers) > 1 and numbers == [str(i) for i in range(len(numbers))]:
        return -_MOST  # pandas writes 0, 1, 2, ... as the header of columns without names
    usual = sum(plain_name(cell.strip()) in USUAL_COLUMN_NAMES for cell in first)
    score = usual * (_SEVERAL_USUAL if usual > 1 or len(first) == 1 else _ONE_USUAL) if usual else _UNUSUAL
    for place, cell in enumerate(first):
        score += _score_cell(cell, [row[place] for row in rows], place == 0)
    names = [cell for cell in first if is_visible(cell)]
    if len(set(names)) < len(names):
        repeating = sum(len(set(row)) < len(row) for row in rows)
        score += max(0.0, log((repeating + 0.5) / (len(rows) + 1) / 0.01))
    return score


def _score_cell(cell: str, column: Sequence[str], is_first: bool) -> float:
    """Score one cell of the first row against the cells below it: positive for data, negative for a header.

    `column` are the cells below it; `is_first` states whether the cell is in the first column.
    """
    shapes = Counter(map(_shape_of, column))
    numeric = shapes[_Shape.NUMBER] * 2 > len(column) - shapes[_Shape.EMPTY] > 0
    shape = _Shape.EMPTY if numeric and cell.strip().casefold() in _NO_VALUE else _shape_of(cell)
    if shape is _Shape.EMPTY and shapes[shape] > _PADDING * len(column):
        return 0.0  # a column that spreadsheets add: it says nothing about the others
    in_header = _FIRST_EMPTY if is_first and shape is _Shape.EMPTY else _HEADER_SHAPES[shape]
    score = _bounded(log((shapes[shape] + 0.5) / (len(column) + 0.5 * len(_Shape)) / in_header))
    if shape is _Shape.EMPTY:
        return score
    score += _score_value(cell, column)
    if shape in (_Shape.WORD, _Shape.PHRASE):
        cases = Counter(_case_of(c) for c in column if _shape_of(c) in (_Shape.WORD, _Shape.PHRASE))
        share = (cases[_case_of(cell)] + 1) / (cases.total() + len(_HEADER_CASES))
        score += min(0.2, log(share / _HEADER_CASES[_case_of(cell)]))
    return score


def _score_value(cell: str, column: Sequence[str]) -> float:
    """Score a cell of the first row by whether its value occurs in the cells below: positive for data.

    Among data, a new value is as probable as values that occur only once are frequent.
    """
    counts = Counter(_value_of(c) for c in column if is_visible(c))
    new = max(_RAREST, (sum(count == 1 for count in counts.values()) + 1) / (counts.total() + 2))
    if seen := counts[_value_of(cell)]:
        return _bounded(max(0.0, log((1 - new) / (_SEEN_IN_HEADER if seen == 1 else _OFTEN_IN_HEADER))))
    return _bounded(log(new / (1 - _SEEN_IN_HEADER)))


def _value_of(cell: str) -> object:
    number = number_of(cell)
    return cell.strip() if number is None else number


def _bounded(score: float) -> float:
    return min(max(score, -_MOST), _MOST)


def _shape_of(cell: str) -> _Shape:
    """Classify a cell as empty, number, signs, word, phrase or text."""
    if not is_visible(cell):
        return _Shape.EMPTY
    if number_of(cell) is not None:
        return _Shape.NUMBER
    if _PUNCTUATION.search(cell):
        return _Shape.TEXT
    words = cell.split()
    if sum(c.isalpha() for c in cell) * 3 < len("".join(words)):
        return _Shape.SIGNS
    width = sum(4 if c >= "\u2e80" else 1 for c in cell[: _WIDEST_WORD + 1])
    if len(words) == 1 and width <= _WIDEST_WORD:
        return _Shape.WORD
    return _Shape.PHRASE if len(words) <= _MOST_WORDS and width <= _WIDEST_PHRASE else _Shape.TEXT


def _case_of(cell: str) -> str:
    """Classify the letters of a name as ``lower``, ``upper``, ``capital`` (the first one) or ``other``."""
    if cell.islower():
        return "lower"
    if cell.isupper():
        return "upper" if len(cell) > 1 else "capital"
    return "capital" if cell.strip()[:1].isupper() else "other"


# --- reading rows ---


_REPEATED_FIX = "Remove this line."
_MORE_FIX = 'Write a text that has commas between quotes: "good, really",1'


def read_table(file: TextFile, form: TableForm, bad: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number, row by column name) for a CSV or TSV file; rows that cannot be read are added to `bad`.

    Columns of a table without a header are called ``column 1``, ``column 2``, and so on.

    Raises:
        InputError: If the file cannot be read, or is larger than `limits` allow.
    """
    try:
        yield from _read_table(file, form, bad)
    except UnicodeDecodeError:  # the stream is decoded in blocks: find the line
        check_encoding(file)
        raise


def _read_table(file: TextFile, form: TableForm, bad: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number, row) as `read_table` does, but raise UnicodeDecodeError, which has no line number, for invalid bytes."""
    # `_Records` bounds the length of a row; the library's limit is global
    title, limits = file.title, file.limits
    csv.field_size_limit(max(csv.field_size_limit(), limits.line + 1))
    with file.open() as raw:
        records = _Records(io.TextIOWrapper(raw, encoding="utf-8-sig", newline=""), title, limits, form.header)
        for _ in range(form.skipped):
            next(records)
        reader = form.read_cells(records)
        try:
            first = next(reader, None)
            if not first:
                return
            names = _name_columns(first, form.header)
            check_columns(names, f"{title}:1")
            rows = enumerate(reader if form.header else chain([first], reader), 1 + form.header + form.skipped)
            what = "header" if form.header else "first row"
            for number, cells in rows:
                records.end_record(number)
                if not cells:
                    continue  # a blank line
                if 0 < len(cells) - len(names) <= _MOST_PADDING and not any(cells[len(names) :]):
                    cells = cells[: len(names)]  # separators at the end of the line
                if len(cells) != len(names):
                    fix = _MORE_FIX if len(cells) > len(names) and form.separator == "," else ""
                    bad.add(number, f"{len(cells):,} columns, the {what} has {len(names):,}.", fix)
                elif _is_json_object(cells, form.separator):
                    # two files were joined: the label of a line of JSON Lines would become a class
                    bad.add(number, "this line is a line of JSON Lines; the file is read as a table.")
                elif form.header and cells == first and len(names) > 1:
                    # two tables were joined: the name of the label's column would become a class
                    bad.add(
                        number, "repeats the header: the end of one table and the beginning of another?", _REPEATED_FIX
                    )
                else:
                    yield number, dict(zip(names, cells, strict=True))
        except csv.Error as error:
            line = form.skipped + reader.line_num  # type: ignore[attr-defined]
            raise InputError(Problem(f"{title}:{line}", f"not valid CSV: {error}.")) from error


def _is_json_object(cells: Sequence[str], separator: str) -> bool:
    """Return whether the cells of a row together are one JSON object."""
    if not (cells[0].lstrip().startswith('{"') and cells[-1].rstrip().endswith("}")):
        return False
    try:
        return isinstance(json.loads(separator.join(cells)), dict)
    except (ValueError, RecursionError):
        return False


def _name_columns(first: Sequence[str], header: bool) -> list[str]:
    """Return the names of a table's columns; those of a table without a header, and several empty ones, are numbered."""
    numbered = [f"column {i}" for i, _ in enumerate(first, 1)]
    if not header:
        return numbered
    # spreadsheets write separators for columns that are empty throughout
    is_padded = sum(not name.strip() for name in first) > 1
    return [number if is_padded and not name.strip() else name for name, number in zip(first, numbered, strict=True)]


def check_columns(names: Sequence[str], where: str) -> None:
    """Raise InputError if a file has too many columns, or two of the same name.

    Raises:
        InputError: If there are too many columns, or two have one name.
    """
    if len(names) > MAX_COLUMNS:
        raise InputError(Problem(where, f"{len(names):,} columns; allowed: at most {MAX_COLUMNS:,}."))
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        what = f"two columns are called {shorten_list(sorted(repeated))}."
        raise InputError(Problem(where, what, "Give each column another name."))


class _Records(Iterator[str]):
    """Lines of a table for the `csv` module; a record (a row over several lines) that is too long raises InputError."""

    def __init__(self, stream: io.TextIOWrapper, title: str, limits: Limits, header: bool) -> None:
        self._stream, self._title, self._limits, self._header = stream, title, limits, header
        self._record, self._room = 1, limits.line

    def end_record(self, number: int) -> None:
        """Start to count the length of the record after record `number`; raise InputError if there are too many records."""
        self._record, self._room = number, self._limits.line
        if number > self._limits.rows + self._header:  # the header is the first record
            raise self._limits.row_count_error(self._title)

    def __next__(self) -> str:
        """Return the next line with its line end; raise InputError for a null byte or a row that is too long."""
        line = self._stream.readline(self._room + 1)
        if not line:
            raise StopIteration
        if "\0" in line:
            raise null_byte_error(self._title, self._record + 1)
        self._room -= count_bytes(line)
        if self._room < 0:
            raise self._limits.length_error(self._title, self._record + 1, "row")
        return line
