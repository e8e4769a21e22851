"""Rows out of CSV and TSV files."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from math import log
from pathlib import Path
from typing import Any

from pocketbert.core.data.cells import is_visible, number_of
from pocketbert.core.data.streams import MOST_COLUMNS, Limits, check_encoding, no_text, opened, too_long, too_many
from pocketbert.core.errors import InputError, Problem, listed, nearest

# --- column_names ---
# Usual names of columns: which of them are texts, pairs of texts and labels, and which only tell that a row is a header.


TEXTS = (
    ("text", "sentence", "utterance", "tokens"),
    ("query", "content", "review", "comment", "message", "body", "document", "tweet", "post", "words", "text1"),
    ("question", "input", "prompt", "description", "title", "subject", "summary", "headline", "phrase", "request"),
)
"""Usual names of the text, the surest ones first; written without capitals, blanks, ``-`` and ``_``."""
QUESTION_PAIRS = (("question", "context"), ("query", "context"))
PAIRS = (
    ("text", "textpair"),
    ("sentence1", "sentence2"),
    ("sentencea", "sentenceb"),
    ("text1", "text2"),
    ("texta", "textb"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("question", "passage"),
    ("question", "context"),
    ("query", "passage"),
    ("query", "document"),
)
_CLASSES = ("intent", "class", "category", "target", "sentiment", "topic", "emotion", "polarity", "gold")
_OTHERS = ("tags", "nertags", "score", "similarity", "similarityscore", "rating", "stars", "spans", "entities")
ANSWERS = ("answer", "answers")
LABELS = (
    ("label", "labels"),
    (*_CLASSES, *_OTHERS, *ANSWERS),
    ("labelname", "labeltext", "intentname", "categoryname", "type", "tag", "y", "output", "genre", "language", "lang"),
)
_NEITHER = (
    *(
        "id",
        "ids",
        "idx",
        "index",
        "uid",
        "guid",
        "row",
        "key",
        "number",
        "name",
        "user",
        "username",
        "author",
        "source",
    ),
    *("date", "time", "timestamp", "created", "createdat", "url", "link", "split", "fold", "domain", "note", "notes"),
    *(
        "goldlabel",
        "reviewtext",
        "commenttext",
        "context",
        "answerstart",
        "star",
        "acceptability",
        "annotator",
        "probs",
    ),
    *("isduplicate", "qid1", "qid2", "pairid", "captionid", "value", "weight", "confidence", "toxic", "s1", "s2"),
)
_HEADERS = frozenset(
    [*(n for tier in (*TEXTS, *LABELS) for n in tier), *(n for pair in PAIRS for n in pair), *_NEITHER]
)
_UNNAMED = re.compile(r"column (\d+)")


def plain_name(name: str) -> str:
    """Write the name of a column without capitals, blanks, ``-``, ``_`` and dots."""
    return "".join(character for character in name.casefold() if character not in " _-.")


def is_usual_name(cell: str) -> bool:
    """Tell whether a cell is a usual name of a column, such as ``gold_label`` or ``Sentence 1``."""
    return plain_name(cell.strip()) in _HEADERS


def numbered_column(number: int) -> str:
    """Name a column of a file without a header by its number, from 1."""
    return f"column {number}"


def is_numbered_column(name: str) -> bool:
    """Tell whether a name is one that `numbered_column` gives."""
    return _UNNAMED.fullmatch(name) is not None


# --- bad_rows ---
# What is wrong with the rows of one file: the first few, and the count.


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


# --- header ---
# Whether the first row of a CSV or TSV file is a header, and which character separates its cells.
#
# The idea is that of `csv.Sniffer`: the first row is compared with the rows below it. Each feature of a cell (its shape, whether it
# occurs below, its capitals) has a probability in a header and one among the cells of its column, and the logarithms of their ratios
# are added.


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
