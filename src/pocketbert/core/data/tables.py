"""CSV and TSV files: the form of a table is guessed from its first megabyte, then its rows are read.

- `find_table_form` guesses the separator, and whether the first row is a header.
- `read_table` yields the rows as dictionaries; what is wrong with single rows is collected in a `BadRows`.
- `TEXT_NAMES`, `PAIR_NAMES` and `LABEL_NAMES` list usual names of columns, for `pocketbert.core.data.columns`.
"""

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
from pocketbert.core.data.streams import Limits, check_encoding, null_byte_error, open_bounded
from pocketbert.core.errors import InputError, Problem, shorten_list, suggest_allowed

# --- names of columns, written as `plain_name` writes them ---

TEXT_NAMES = (
    ("text", "sentence", "utterance", "tokens"),
    ("query", "content", "review", "comment", "message", "body", "document", "tweet", "post", "words", "text1"),
    ("question", "input", "prompt", "description", "title", "subject", "summary", "headline", "phrase", "request"),
)
"""Usual names of the text column, in tiers: a name of an earlier tier is the surer one."""
QUESTION_NAMES = (("question", "context"), ("query", "context"))
"""Usual names of the two columns of question answering."""
PAIR_NAMES = (
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
"""Usual names of the two columns of a pair of texts."""
ANSWER_NAMES = ("answer", "answers")
_CLASSES = ("intent", "class", "category", "target", "sentiment", "topic", "emotion", "polarity", "gold")
_OTHERS = ("tags", "nertags", "score", "similarity", "similarityscore", "rating", "stars", "spans", "entities")
LABEL_NAMES = (
    ("label", "labels"),
    (*_CLASSES, *_OTHERS, *ANSWER_NAMES),
    ("labelname", "labeltext", "intentname", "categoryname", "type", "tag", "y", "output", "genre", "language", "lang"),
)
"""Usual names of the label column, in tiers as `TEXT_NAMES`."""
_NAMES_OF_OTHER_COLUMNS = (
    *("id", "ids", "idx", "index", "uid", "guid", "row", "key", "number", "name", "user", "username", "author"),
    *("source", "date", "time", "timestamp", "created", "createdat", "url", "link", "split", "fold", "domain"),
    *("note", "notes", "goldlabel", "reviewtext", "commenttext", "context", "answerstart", "star", "acceptability"),
    *("annotator", "probs", "isduplicate", "qid1", "qid2", "pairid", "captionid", "value", "weight", "confidence"),
    *("toxic", "s1", "s2"),
)
_USUAL_NAMES = frozenset(
    [name for group in (*TEXT_NAMES, *PAIR_NAMES, *LABEL_NAMES) for name in group] + [*_NAMES_OF_OTHER_COLUMNS]
)
_NUMBERED_NAME = re.compile(r"column (\d+)")


def plain_name(name: str) -> str:
    """Return a column's name in lower case and without blanks, ``-``, ``_`` and dots, to compare it."""
    return "".join(character for character in name.casefold() if character not in " _-.")


def is_numbered_column(name: str) -> bool:
    """Return whether a column has a generated name, ``column 1``, ``column 2``, ..., because the file has no header."""
    return _NUMBERED_NAME.fullmatch(name) is not None


# --- problems with rows ---

_SHOWN_PROBLEMS = 20
_MAX_COLUMNS = 10_000
_ALIKE = 0.75
"""How alike a column's name must be to be suggested: ``texts`` is a slip of ``text``, ``intent`` is not."""
_COLUMN_FIX = "Name the columns with --text, --text-pair and --label, or in the recipe's data section."
_HEADER_FIX = (
    "The first row was read as a header: give --no-header, or header: false in the recipe, if it is a row of data."
)
_NO_HEADER_FIX = "The file was read without a header: name columns by their number, such as 'column 1', or give --header, or header: true in the recipe."


class BadRows:
    """Collects the invalid rows of one file: the first 20 with their problems, and the number of all.

    Attributes:
        title: Name of the file in the problems.
        count: Number of bad rows.
        problems: The first problems.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.count = 0
        self.problems: list[Problem] = []
        self._missing: set[tuple[str, tuple[str, ...]]] = set()

    def add(self, row: int, what: str, fix: str = "") -> None:
        """Record one bad row with its number, what is wrong and how to fix it."""
        self.count += 1
        if self.shows_more:
            self.problems.append(Problem(f"{self.title}:{row}", what, fix))

    @property
    def shows_more(self) -> bool:
        """Whether the next bad row is recorded with its problem; later ones are only counted."""
        return len(self.problems) < _SHOWN_PROBLEMS

    def missing(self, row: int, column: str, cells: Mapping[str, Any]) -> None:
        """Record a row that lacks a column; of rows with the same columns only the first is shown."""
        if not self.shows_more:  # finding the nearest name takes time
            self.add(row, "")
            return
        names = [str(key) for key in cells]
        key = (column, tuple(names[:_MAX_COLUMNS]))
        if key in self._missing:
            self.count += 1
            return
        self._missing.add(key)
        what = f"no column '{column}'; {suggest_allowed(column, names, _ALIKE) if names else 'the row is empty'}."
        fix = _COLUMN_FIX
        if names and is_numbered_column(column) != all(map(is_numbered_column, names)):
            fix = _HEADER_FIX if is_numbered_column(column) else _NO_HEADER_FIX
        self.add(row, what, fix)

    def close(self) -> list[Problem]:
        """Return the recorded problems, and one more that counts the bad rows that are not shown."""
        more = self.count - len(self.problems)
        if more <= 0:
            return self.problems
        return [*self.problems, Problem(self.title, f"and {more:,} more bad rows ({self.count:,} in all).")]


# --- guessing the separator and the header ---

_SAMPLE_BYTES = 1 << 20
_SAMPLE_ROWS, _SAMPLE_CELLS = 1000, 20_000
_LEAST = 2.5
"""The first row is data if its score is above this; otherwise it is a header, as it always was in earlier versions."""
_UNSURE = 2.0
"""Distance of the score from `_LEAST` below which the guess is called unsure."""
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
    _Shape.TEXT: 0.02,
}
"""Frequency of each shape among the cells of headers."""
_FIRST_EMPTY = 0.15
"""Share of headers whose first cell is empty: pandas writes an index like this."""
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
    """The layout of a CSV or TSV file: separator and header.

    Attributes:
        separator: The character between cells.
        header: Whether the first row names the columns.
        sure: Whether the header was recognized with certainty, or set by the user.
    """

    separator: str
    header: bool
    sure: bool = True


def find_table_form(
    path: Path, title: str, limits: Limits, header: bool | None = None, named: Collection[str] = ()
) -> TableForm:
    """Guess the separator and the header row of a table from its first megabyte.

    The header is found with the idea of `csv.Sniffer`: the first row is compared with the rows below it. Each feature
    of a cell (its shape, whether it occurs below, its capitals) has a probability in a header and one among the cells
    of its column; the logarithms of their ratios are added.

    Args:
        path: A ``.csv`` or ``.tsv`` file.
        title: Name of the file in errors.
        limits: Largest sizes that are allowed.
        header: Whether it has a header, if the user decided that.
        named: Columns that the user or a recipe names: a first row with one of these is a header.

    Raises:
        InputError: If the file cannot be opened.
    """
    # larger fields end the reading of the sample; the library's limit is global and never lowered
    csv.field_size_limit(max(csv.field_size_limit(), limits.line + 1))
    with open_bounded(path, title, limits) as stream:
        raw = stream.read(_SAMPLE_BYTES)
    if len(raw) == _SAMPLE_BYTES:
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
    """Parse the first rows of a table, up to a row that is broken or cut off."""
    lines = io.StringIO(text, newline="")
    if quoted:
        reader = csv.reader(lines, delimiter=separator, strict=True)
    else:
        reader = csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_NONE)
    rows, cells = list[list[str]](), 0
    try:
        for row in reader:
            if row:
                rows.append(row)
                cells += len(row)
            if len(rows) > _SAMPLE_ROWS or cells > _SAMPLE_CELLS:
                break
    except csv.Error:
        pass
    return rows


def _choose_separator(text: str) -> str:
    """Choose the separator (comma, semicolon or tab) that splits most rows into equally many cells.

    A separator followed by a blank is taken for punctuation. The comma is kept unless another one splits most rows
    alike.
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
    """Return how likely a table's first row is data and not a header, as the logarithm of a ratio."""
    rows = [row for row in rows if len(row) == len(first)]
    numbers = list(first[1:]) if len(first) > 2 and not first[0] else list(first)
    if rows and len(numbers) > 1 and numbers == [str(i) for i in range(len(numbers))]:
        return -_MOST  # pandas writes 0, 1, 2, ... as the header of columns without names
    usual = sum(plain_name(cell.strip()) in _USUAL_NAMES for cell in first)
    score = usual * (_SEVERAL_USUAL if usual > 1 or len(first) == 1 else _ONE_USUAL) if usual else _UNUSUAL
    for place, cell in enumerate(first):
        score += _score_cell(cell, [row[place] for row in rows], place == 0)
    names = [cell for cell in first if is_visible(cell)]
    if len(set(names)) < len(names):
        repeating = sum(len(set(row)) < len(row) for row in rows)
        score += max(0.0, log((repeating + 0.5) / (len(rows) + 1) / 0.01))
    return score


def _score_cell(cell: str, column: Sequence[str], is_first: bool) -> float:
    """Score one cell of the first row against the cells below it: positive for data, negative for a header."""
    shapes = Counter(map(_shape_of, column))
    numeric = shapes[_Shape.NUMBER] * 2 > len(column) - shapes[_Shape.EMPTY] > 0
    shape = _Shape.EMPTY if numeric and cell.strip().casefold() in _NO_VALUE else _shape_of(cell)
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

    A new value is as likely among data as values that occur once are frequent.
    """
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


def read_table(
    path: Path, form: TableForm, title: str, limits: Limits, bad: BadRows
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number, row by column name) for a CSV or TSV file; rows that cannot be read are added to `bad`.

    Columns of a table without a header are called ``column 1``, ``column 2``, and so on.

    Raises:
        InputError: If the file cannot be read, or is larger than `limits` allow.
    """
    try:
        yield from _read_table(path, form, title, limits, bad)
    except UnicodeDecodeError:  # the stream is decoded in blocks: find the line
        check_encoding(path, title, limits)
        raise


def _read_table(
    path: Path, form: TableForm, title: str, limits: Limits, bad: BadRows
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows as `read_table` does, but raise UnicodeDecodeError, without a line number, for other encodings."""
    # `_Records` bounds the length of a row; the library's limit is global
    csv.field_size_limit(max(csv.field_size_limit(), limits.line + 1))
    with open_bounded(path, title, limits) as raw:
        records = _Records(io.TextIOWrapper(raw, encoding="utf-8-sig", newline=""), title, limits, form.header)
        if path.suffix == ".tsv":
            reader = csv.reader(records, delimiter=form.separator, quoting=csv.QUOTE_NONE)
        else:
            reader = csv.reader(records, delimiter=form.separator, strict=True)
        try:
            first = next(reader, None)
            if not first:
                return
            names = first if form.header else [f"column {i}" for i, _ in enumerate(first, 1)]
            check_columns(names, f"{title}:1")
            rows = enumerate(reader, 2) if form.header else enumerate(chain([first], reader), 1)
            what = "header" if form.header else "first row"
            for number, cells in rows:
                records.end_record(number)
                if not cells:
                    continue  # a blank line
                if len(cells) != len(names):
                    bad.add(number, f"{len(cells):,} columns, the {what} has {len(names):,}.")
                elif cells[0].lstrip().startswith('{"') and cells[-1].rstrip().endswith("}"):
                    # two files were joined: the label of a line of JSON Lines would become a class
                    bad.add(number, "is a JSON object; cells that a separator parts are expected.")
                else:
                    yield number, dict(zip(names, cells, strict=True))
        except csv.Error as error:
            raise InputError(Problem(f"{title}:{reader.line_num}", f"not valid CSV: {error}.")) from error


def check_columns(names: Sequence[str], where: str) -> None:
    """Raise InputError if a file has too many columns, or two of the same name.

    Raises:
        InputError: If there are too many columns, or two have one name.
    """
    if len(names) > _MAX_COLUMNS:
        raise InputError(Problem(where, f"{len(names):,} columns; allowed: at most {_MAX_COLUMNS:,}."))
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
        """Note that a record is complete, and start to count the length of the next one."""
        self._record, self._room = number, self._limits.line
        if number > self._limits.rows + self._header:  # the header is the first record
            raise self._limits.row_count_error(self._title)

    def __next__(self) -> str:
        """Return the next line with its line end."""
        line = self._stream.readline(self._room + 1)
        if not line:
            raise StopIteration
        if "\0" in line:
            raise null_byte_error(self._title, self._record + 1)
        self._room -= len(line)
        if self._room < 0:
            raise self._limits.length_error(self._title, self._record + 1, "row")
        return line
