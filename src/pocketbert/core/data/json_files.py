"""Files of JSON: one object in each line, or one document with an array of rows, read piece by piece.

- `read_json_lines` yields the objects of a JSON Lines file.
- `read_json_document` yields the rows of a document: the elements of its array, or of the array of rows inside its object.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Generator, Iterator
from typing import Any

from pocketbert.core.data.column_names import LABEL_NAMES, TEXT_NAMES, BadRows, plain_name
from pocketbert.core.data.streams import TextFile, check_encoding, count_bytes
from pocketbert.core.errors import InputError, Problem, shorten_list, shorten_repr

Row = tuple[int, dict[str, Any]]
"""A row with its number: that of its line, or its position from 1."""


class _RepeatedKeyError(ValueError):
    """Raised for a JSON object in which a key occurs twice; the message is the key."""


def _to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build the dictionary of a JSON object; raise _RepeatedKeyError if a key occurs twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RepeatedKeyError(shorten_repr(key))
            seen.add(key)
    return values


# --- JSON Lines ---


def read_json_lines(file: TextFile, bad: BadRows) -> Iterator[Row]:
    """Yield (line number, row) for a JSON Lines file; lines that are no JSON, no row or repeat a key are added to `bad`."""
    for number, line in file.lines():
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=_to_dict)
        except _RepeatedKeyError as error:
            bad.add(number, f"the key {error} occurs twice.", "Keep one of them.")
        except (ValueError, RecursionError) as error:
            bad.add(number, f"not valid JSON: {error}.")
        else:
            yield from _as_row(number, value, bad)


def _as_row(number: int, value: Any, bad: BadRows) -> Iterator[Row]:
    """Yield a JSON value as a row: an object, or a list that begins with a text, whose entries become ``column 1``, ``column 2``, ...

    Values that are neither are added to `bad`.
    """
    if isinstance(value, dict):
        yield number, value
    elif isinstance(value, list) and len(value) > 1 and isinstance(value[0], str):
        yield number, {f"column {i}": cell for i, cell in enumerate(value, 1)}
    else:
        bad.add(number, f"a row is a JSON object, this is {type(value).__name__}.")


# --- documents ---

SPLITS = ("train", "training", "test", "testing", "dev", "val", "valid", "validation", "eval")
_OTHER_ARRAYS = frozenset(
    [name for name in SPLITS if not name.startswith("train")]
    + "regex_features lookup_tables entity_synonyms oos_train oos_val oos_test labels categories classes features".split()
)
"""Names of arrays in a document beside that of its training rows, in lower case."""
_WRAPPERS = frozenset(["rasa_nlu_data", "data", "dataset", "train", "training"])
"""Names of objects that hold the array of rows, or columns."""
_COLUMN_NAMES = frozenset(["columns", "header", "headers", "column_names"])
"""Arrays of the names of columns, whose rows are arrays, as pandas writes them (``orient="split"``)."""
_USUAL_COLUMNS = frozenset(name for tier in (*TEXT_NAMES, *LABEL_NAMES) for name in tier)
_MOST_COLUMNS = 10_000
_LONGEST_ROW = 1 << 16
"""Characters within which an object named as a split may end that is a row."""
_COLUMNS_FIX = 'Write one object for each row: with pandas df.to_json("rows.jsonl", orient="records", lines=True)'


def read_json_document(file: TextFile, bad: BadRows) -> Iterator[Row]:
    """Yield (position from 1, row) for a JSON document, with one row at a time in memory.

    If the document is an array, its elements are the rows. If it is an object, the elements of its arrays are, except
    of arrays named as another split than ``train`` or as a list beside the rows (``labels``, ``classes`` ...); if there is no other,
    a single one of these is read, too. An object of objects is read as one row per key, and an object of columns, as
    pandas writes it, as one row per value.

    Raises:
        InputError: If the document is broken, holds values that are no rows or only other arrays, or is larger than the limits
            of `file`.
    """
    try:
        other_arrays = yield from _read_document(file, bad, None)
        if len(other_arrays) == 1:
            yield from _read_document(file, bad, other_arrays[0])
    except UnicodeDecodeError:  # the stream is decoded in blocks: find the line
        check_encoding(file)
        raise
    if len(other_arrays) > 1:
        what = f"no rows to train on; it has the arrays {shorten_list(other_arrays)}."
        raise InputError(Problem(file.title, what, "Write the rows that you mean to a file of their own."))


def _read_document(file: TextFile, bad: BadRows, array: str | None) -> Generator[Row, None, list[str]]:
    """Yield the rows of a document; if there are none, return the names of the arrays that were skipped.

    Args:
        file: The JSON file.
        bad: Collects the values that are no rows.
        array: Name of an array to read even if the name is not a usual one; None to read the arrays of training rows.
    """
    with file.open() as raw:
        reader = _DocumentReader(io.TextIOWrapper(raw, encoding="utf-8-sig"), file, array)
        number = 0
        for number, value in enumerate(reader.read_rows(), 1):
            if number > file.limits.rows:
                raise file.limits.row_count_error(file.title)
            if isinstance(value, list) and len(value) == len(reader.names):
                value = dict(zip(reader.names, value, strict=True))
            yield from _as_row(number, value, bad)
    if not number and not reader.other_arrays and reader.has_columns:
        yield from _read_by_columns(file)
        return []
    if number and len(reader.other_objects) > 1:
        bad.add(1, f"the objects {shorten_list(reader.other_objects)} have other keys than the rows.")
    return [] if number or reader.has_train else reader.other_arrays


def _read_by_columns(file: TextFile) -> Iterator[Row]:
    """Yield the rows of a document whose arrays are the columns of a table; all of them are held in memory."""
    with file.open() as raw:
        columns = _DocumentReader(io.TextIOWrapper(raw, encoding="utf-8-sig"), file, None).read_columns()
    count = max(map(len, columns.values()), default=0)
    # short arrays beside the columns, such as the names of the classes, are no columns
    usual = {name for name in columns if plain_name(name) in _USUAL_COLUMNS and name.lower() not in _OTHER_ARRAYS}
    cut = [n for n, values in columns.items() if (0 if n in usual else count // 2) < len(values) < count]
    columns = {name: values for name, values in columns.items() if len(values) == count}
    if len(columns) < 2:
        what = "holds values, and neither rows nor columns of equal length."
        raise InputError(Problem(file.title, what, _COLUMNS_FIX))
    if cut:
        what = (
            f"the columns {shorten_list(cut)} have not as many values as '{next(iter(columns))}', which has {count:,}."
        )
        raise InputError(Problem(file.title, what, _COLUMNS_FIX))
    yield from (
        (i, dict(zip(columns, cells, strict=True))) for i, cells in enumerate(zip(*columns.values(), strict=True), 1)
    )


class _DocumentReader:
    """Reads the rows of a JSON document from a stream, decoding one array element or object value at a time.

    Attributes:
        has_columns: Whether arrays or objects of plain values were skipped: a table written by columns.
        has_train: Whether there is an array of training rows, such as ``train``.
        other_arrays: Names of the arrays of rows that were skipped.
        other_objects: Names of the objects before the first row, in an object of objects.
        names: The names of the columns, if an array before the rows lists them.
    """

    _BLOCK = 1 << 18
    _SPACE = re.compile(r"[ \t\r\n]*")

    def __init__(self, stream: io.TextIOWrapper, file: TextFile, array: str | None) -> None:
        self._stream, self._file, self._array = stream, file, array
        self._decoder = json.JSONDecoder(object_pairs_hook=_to_dict)
        self._text, self._at, self._before, self._ended = "", 0, 0, False
        self.has_columns = self.has_train = False
        self.other_arrays, self.other_objects, self.names = list[str](), list[str](), list[str]()
        self._row_keys = list[Any]()

    def read_rows(self) -> Iterator[Any]:
        """Yield the rows of the document."""
        match self._peek():
            case "[":
                yield from self._read_array()
            case "{":
                yield from self._read_object(0)
            case _:
                raise self._error("a document of rows begins with [ or {")
        if self._peek():
            raise self._error("text behind the end of the document")

    def _read_array(self, is_column: bool = False) -> Iterator[Any]:
        """Yield the elements of the array that begins at the current position; an array of plain values is skipped.

        With `is_column` an array of lists is skipped too: words or tags by row.
        """
        self._take("[")
        plain, are_rows = list[Any](), False
        while self._peek() != "]":
            value = self._decode()
            is_cell = is_column and isinstance(value, list) and not any(isinstance(v, dict | list) for v in value)
            if are_rows or (isinstance(value, dict | list) and not is_cell):
                yield from (*plain, value)  # a plain value among rows is one that is missing
                plain, are_rows = [], True
            else:
                plain, self.has_columns = [value], True
            if self._peek() != "]":
                self._take(",")
        self._take("]")

    def _read_object(self, depth: int) -> Iterator[Any]:
        """Yield the rows in the object that begins here: the elements of its arrays, or its values that are objects."""
        self._take("{")
        first, passed_over, are_rows = dict[str, Any](), list[str](), False
        while self._peek() != "}":
            key = self._read_key()
            start = self._peek()
            if start == "[" and key.lower() in _OTHER_ARRAYS and key != self._array:
                has_columns = self.has_columns
                self.other_arrays += [key] if sum(1 for _ in self._read_array()) else []
                self.has_columns = has_columns
            elif start == "[" and key.lower() in _COLUMN_NAMES:
                names = [v.get("name") if isinstance(v, dict) else v for v in self._read_values()]
                self.names = [str(name) for name in names] if len({*map(str, names)}) == len(names) else []
                self.has_columns = True
            elif start == "[":
                self.has_train = self.has_train or key.lower() in SPLITS
                yield from self._read_array(plain_name(key) in _USUAL_COLUMNS)
            elif start == "{" and key.lower() in _WRAPPERS and depth < 2 and not self._is_at_row():
                yield from self._read_object(depth + 1)
            elif start == "{" and key.lower() in SPLITS and self._array is None and not self._is_at_row():
                has_columns = self.has_columns
                self.other_arrays += [key] if sum(1 for _ in self._read_object(depth + 1)) else []
                self.has_columns = has_columns
            else:
                value = self._decode()
                if isinstance(value, dict) and value and all(str(name).isdecimal() for name in value):
                    self.has_columns = True
                elif isinstance(value, dict) and are_rows:
                    yield value
                elif isinstance(value, dict):
                    # two objects with most keys in common are rows; a single one is a note on the file
                    if len(first.keys() & value.keys()) * 2 >= max(len(first), len(value), 1):
                        yield from (first, value)
                        self.other_objects, are_rows = passed_over[:-1], True
                    first = value
                    passed_over.append(key)
            if self._peek() != "}":
                self._take(",")
        self._take("}")

    def _read_key(self) -> str:
        """Return the key of an object that begins here, and go to its value."""
        key = self._decode()
        if not isinstance(key, str):
            raise self._error("a key is a text between double quotes")
        self._take(":")
        return key

    def _is_at_row(self) -> bool:
        """Return whether the object that begins here is a row: short, of plain values, with at least two usual names of columns."""
        if len(self._text) - self._at < _LONGEST_ROW and not self._ended:
            self._read_on()
        try:
            value, _ = self._decoder.raw_decode(self._text[: self._at + _LONGEST_ROW], self._at)
        except (ValueError, RecursionError):
            return False
        is_flat = not any(isinstance(cell, dict | list) for cell in value.values())
        return is_flat and len(_USUAL_COLUMNS & {*map(plain_name, value)}) > 1

    def read_columns(self, depth: int = 0) -> dict[str, list[Any]]:
        """Return the columns in the object that begins here: its arrays, and its objects of values by row, or those inside."""
        columns, inner = dict[str, list[Any]](), dict[str, list[Any]]()
        self._row_keys = []
        if self._peek() != "{":
            return columns
        self._take("{")
        while self._peek() != "}":
            key = self._read_key()
            start = self._peek()
            if start == "{" and key.lower() in (*_WRAPPERS, *SPLITS) and depth < 2:
                found = self.read_columns(depth + 1)
                inner = found if key.lower() in _WRAPPERS else inner
            elif start in ("[", "{"):
                columns[key] = self._read_values()
            else:
                self._decode()
            if len(columns) > _MOST_COLUMNS:
                raise self._error(f"more than {_MOST_COLUMNS:,} columns")
            if self._peek() != "}":
                self._take(",")
        self._take("}")
        return inner or columns

    def _read_values(self) -> list[Any]:
        """Return the elements of the array, or the values of the object, that begins here."""
        start = self._peek()
        end, values, keys = ("]" if start == "[" else "}"), list[Any](), list[Any]()
        self._take(start)
        while self._peek() != end:
            if start == "{":
                keys.append(self._decode())
                self._take(":")
                self._peek()
            values.append(self._decode())
            if len(values) > self._file.limits.rows:
                raise self._file.limits.row_count_error(self._file.title)
            if self._peek() != end:
                self._take(",")
        self._take(end)
        if len(keys) == len(self._row_keys) and keys != self._row_keys:
            raise self._error("the columns are of different rows, by their numbers")
        self._row_keys = keys or self._row_keys
        return values

    def _decode(self) -> Any:
        """Decode the JSON value that begins at the current position, reading further blocks until it is complete.

        Raises:
            InputError: If the value is invalid JSON, or longer than a row may be.
        """
        while True:
            if len(self._text) - self._at > self._file.limits.line + 2 * self._BLOCK:
                raise self._file.limits.length_error(self._file.title, self._line, "value that begins in this line")
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except _RepeatedKeyError as error:
                raise self._error(f"the key {error} occurs twice") from error
            except RecursionError as error:
                raise self._error("too deeply nested") from error
            except json.JSONDecodeError as error:
                # a value that is cut off by the end of the block is read on
                cut = error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - 10
                if self._ended or not cut:
                    self._at = min(error.pos, len(self._text))
                    raise self._error(error.msg) from error
            except ValueError as error:
                raise self._error("a number has too many digits") from error
            else:
                if self._ended or end < len(self._text):
                    if count_bytes(self._text[self._at : end]) > self._file.limits.line:
                        raise self._file.limits.length_error(
                            self._file.title, self._line, "row that begins in this line"
                        )
                    self._at = end
                    return value
            self._read_on()

    def _peek(self) -> str:
        """Return the next character that is not white space, without consuming it; empty at the end of the file."""
        while True:
            space = self._SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text) or self._ended:
                return self._text[self._at : self._at + 1]
            self._read_on()

    def _take(self, sign: str) -> None:
        """Consume the character `sign`; raise InputError if another character is next."""
        if (found := self._peek()) != sign:
            raise self._error(f"'{sign}' is expected" + (f", not {found!r}" if found else ": the file ends too early"))
        self._at += 1

    def _read_on(self) -> None:
        """Read the next block of the file, at least as long as the text not yet decoded, and drop the decoded text."""
        self._before += self._text.count("\n", 0, self._at)
        rest = self._text[self._at :]
        block = self._stream.read(max(self._BLOCK, len(rest)))
        self._text, self._at, self._ended = rest + block, 0, not block
        if "\0" in block:
            raise self._error("a null byte")

    @property
    def _line(self) -> int:
        """Return the number of the line that is being read."""
        return self._before + self._text.count("\n", 0, self._at) + 1

    def _error(self, what: str) -> InputError:
        return InputError(Problem(f"{self._file.title}:{self._line}", f"not valid JSON: {what}."))
