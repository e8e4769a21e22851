"""Lines out of files and streams, one after the other, within limits: every reader of text uses these."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any, cast

from pocketbert.core.disk.files import open_regular
from pocketbert.core.errors import InputError, Problem

# --- limits ---
# How much of a file is read: limits that end a file which is broken or hostile early, with little memory used.


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


_BUFFER = 1 << 16
_MARK = b"\xef\xbb\xbf"
ENCODING_FIX = "Convert the file to UTF-8, for example: iconv -f WINDOWS-1252 -t UTF-8 rows.csv > rows-utf8.csv"


class Metered(io.RawIOBase):
    """Counts the bytes that are read from a stream, and refuses a stream with too many.

    Args:
        stream: Where the bytes come from, decompressed.
        title: What errors name.
        limits: What the stream may hold.
        stored: Bytes of the compressed file; None where nothing is compressed.
    """

    def __init__(self, stream: IO[bytes], title: str, limits: Limits, stored: int | None = None) -> None:
        super().__init__()
        self._stream: Any = stream
        self._title, self._limits, self._stored, self._read = title, limits, stored, 0

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See `io.RawIOBase.readinto`."""
        data = self._stream.read1(len(buffer)) if hasattr(self._stream, "read1") else self._stream.read(len(buffer))
        data = data or b""
        buffer[: len(data)] = data
        self._read += len(data)
        if self._read > self._limits.total:
            raise too_much(self._title, self._limits)
        if self._stored is not None and self._limits.grows_too_much(self._read, self._stored):
            raise InputError(
                Problem(
                    self._title,
                    f"its {self._stored:,} bytes grow to more than {self._read // MIB:,} MB; no text does.",
                    "Unpack the file, if it is right.",
                )
            )
        return len(data)


def too_much(title: str, limits: Limits) -> InputError:
    """The error for a file with more bytes than its rows may have."""
    what = f"more than {limits.total // 1_000_000:,} MB of rows."
    return InputError(Problem(title, what, "Use fewer rows, or raise max_rows of the source."))


def too_many(title: str, limits: Limits, what: str = "rows") -> InputError:
    """The error for a file with too many rows."""
    fix = "Use fewer rows, or raise max_rows of the source."
    return InputError(Problem(title, f"more than {limits.rows:,} {what}.", fix))


def too_long(title: str, number: int, limits: Limits, what: str = "line") -> InputError:
    """The error for a line that is too long."""
    return InputError(
        Problem(
            f"{title}:{number}",
            f"{what} longer than {limits.line:,} bytes.",
            "Cut the text, or raise max_line_mb of the source.",
        )
    )


@contextlib.contextmanager
def opened(path: Path, title: str, limits: Limits) -> Iterator[io.BufferedReader]:
    """Open a regular file, plain or ``.gz``, as a buffered stream of bounded length.

    Args:
        path: The file.
        title: What errors name.
        limits: What it may hold.

    Raises:
        InputError: If it is no regular file, is larger than `limits` allow, or is a broken gzip file.
    """
    with open_regular(path, title) as raw:
        stored = os.fstat(raw.fileno()).st_size
        try:
            if path.suffix == ".gz":
                _check_padding(raw, stored)
                with gzip.GzipFile(fileobj=raw) as unpacked:
                    yield io.BufferedReader(Metered(cast("IO[bytes]", unpacked), title, limits, stored), _BUFFER)
            else:
                yield io.BufferedReader(Metered(raw, title, limits), _BUFFER)
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise InputError(Problem(title, f"broken gzip file: {error}.")) from error


def _check_padding(raw: io.RawIOBase, stored: int) -> None:
    """Refuse an archive that ends in many zeros: Python's reader takes them for padding, and reads them one by one."""
    if stored > _BUFFER:
        raw.seek(stored - _BUFFER)
        if not any(raw.read(_BUFFER) or b""):
            raise gzip.BadGzipFile("zeros after the end of the data")
        raw.seek(0)


def lines(stream: io.BufferedReader, title: str, limits: Limits) -> Iterator[tuple[int, str]]:
    """Lines of UTF-8 text with their numbers, from 1, with their line ends; only line feeds separate.

    A byte order mark in front is removed.

    Raises:
        InputError: For a line that is too long, is not UTF-8 or contains a null byte, and for too many lines.
    """
    for number in count(1):
        line = stream.readline(limits.line + 1)
        if not line:
            return
        if number > limits.rows:
            raise too_many(title, limits, "lines")
        if b"\0" in line[:_BUFFER]:
            raise no_text(title, number)
        if len(line) > limits.line:
            raise too_long(title, number, limits)
        if number == 1:
            line = line.removeprefix(_MARK)
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise InputError(Problem(f"{title}:{number}", f"not UTF-8: {error}.", ENCODING_FIX)) from error
        if "\0" in text:
            raise no_text(title, number)
        yield number, text


def check_encoding(path: Path, title: str, limits: Limits) -> None:
    """Refuse a file that is not UTF-8, naming the line.

    Raises:
        InputError: If it is not, or is larger than `limits` allow.
    """
    with opened(path, title, limits) as stream:
        for _ in lines(stream, title, limits):
            pass


def no_text(title: str, number: int) -> InputError:
    """The error for a null byte, which UTF-16 and binary files contain and text does not."""
    what = "contains a null byte: not UTF-8 text, but UTF-16 or a binary file."
    return InputError(Problem(f"{title}:{number}", what, ENCODING_FIX))


def texts_of_stream(stream: IO[bytes], title: str, limits: Limits) -> list[str]:
    """Texts of a stream, one per line; see `read_texts`.

    Raises:
        InputError: See `lines`.
    """
    return _texts(io.BufferedReader(Metered(stream, title, limits), _BUFFER), title, limits)


def read_texts(path: Path, limits: Limits | None = None) -> list[str]:
    """Texts of a plain file, one per line; only line feeds separate, so that answers stay in line with inputs.

    Raises:
        InputError: If it is no regular file, not UTF-8, or larger than `limits` allow.
    """
    limits = limits or Limits()
    with opened(path, str(path), limits) as stream:
        return _texts(stream, str(path), limits)


def _texts(stream: io.BufferedReader, title: str, limits: Limits) -> list[str]:
    return [line.removesuffix("\n").removesuffix("\r") for _, line in lines(stream, title, limits)]
