"""Bounded reading of text files: data files are opened here, so that a broken or hostile file ends early.

- `Limits` is how much one file may hold; its methods make the errors for files that hold more.
- `open_bounded` opens a file, plain or gzip, as a stream that refuses to be longer; `read_lines` decodes its lines.
- `read_texts` and `read_texts_of_stream` read one text per line; `check_encoding` finds the line that is not UTF-8.

This module imports neither numpy nor pydantic, and files and archives only when one is opened, because the command line
imports it for every command.
"""

from __future__ import annotations

import contextlib
import io
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any, cast

from pocketbert.core.errors import InputError, Problem

MIB = 1 << 20
DEFAULT_LINE_MB = 4
"""Default of the longest line or row; a longer one is taken for a broken file."""
DEFAULT_MAX_ROWS = 1_000_000
"""Default of the most rows of a file whose rows are held in memory together."""
DEFAULT_CORPUS_ROWS = 20_000_000
"""Default of the most rows of a corpus, which is read row by row."""
ENCODING_FIX = "Convert the file to UTF-8, for example: iconv -f WINDOWS-1252 -t UTF-8 rows.csv > rows-utf8.csv"
_BYTES_PER_ROW = 512
"""A file may have this many bytes in all for each row that it may have."""
_RATIO = 200
"""Text grows by 3 to 20 when it is decompressed; a file that grows by more than this is refused."""
_RATIO_FROM = 64 * MIB
_BUFFER = 1 << 16
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Limits:
    """Limits on the size of one data file.

    Attributes:
        line: Most bytes of a line, or of a row of a table or a Parquet file.
        rows: Most rows, or lines of a text file.
    """

    line: int = DEFAULT_LINE_MB * MIB
    rows: int = DEFAULT_MAX_ROWS

    @property
    def total(self) -> int:
        """Most bytes of all rows together, decompressed; a smaller number of rows does not lower it."""
        return max(self.rows, DEFAULT_MAX_ROWS) * _BYTES_PER_ROW

    def size_error(self, title: str) -> InputError:
        """Build the error for a file with more than `total` bytes."""
        what = f"more than {self.total // 1_000_000:,} MB of rows."
        return InputError(Problem(title, what, "Use fewer rows, or raise max_rows of the source."))

    def row_count_error(self, title: str, what: str = "rows") -> InputError:
        """Build the error for a file with more than `rows` rows."""
        fix = "Use fewer rows, or raise max_rows of the source."
        return InputError(Problem(title, f"more than {self.rows:,} {what}.", fix))

    def length_error(self, title: str, number: int, what: str = "line") -> InputError:
        """Build the error for line or row `number`, which has more than `line` bytes."""
        fix = "Cut the text, or raise max_line_mb of the source."
        return InputError(Problem(f"{title}:{number}", f"{what} longer than {self.line:,} bytes.", fix))


class _BoundedStream(io.RawIOBase):
    """Raw stream that counts the bytes read from another stream, and raises InputError if they are too many.

    Args:
        stream: Source of the decompressed bytes.
        title: Name of the file in errors.
        limits: Largest sizes that are allowed.
        compressed_size: Bytes of the compressed file; None if nothing is compressed.
    """

    def __init__(self, stream: IO[bytes], title: str, limits: Limits, compressed_size: int | None = None) -> None:
        super().__init__()
        self._stream: Any = stream
        self._title, self._limits, self._compressed_size, self._read = title, limits, compressed_size, 0

    def readable(self) -> bool:
        """Return True, since the stream can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; raise InputError if too many bytes were read in all."""
        data = self._stream.read1(len(buffer)) if hasattr(self._stream, "read1") else self._stream.read(len(buffer))
        data = data or b""
        buffer[: len(data)] = data
        self._read += len(data)
        if self._read > self._limits.total:
            raise self._limits.size_error(self._title)
        size = self._compressed_size
        if size is not None and self._read > _RATIO_FROM and self._read > _RATIO * size:
            what = f"its {size:,} bytes grow to more than {self._read // MIB:,} MB; no text does."
            raise InputError(Problem(self._title, what, "Unpack the file, if it is right."))
        return len(data)


@contextlib.contextmanager
def open_bounded(path: Path, title: str, limits: Limits) -> Iterator[io.BufferedReader]:
    """Open a regular file, plain or ``.gz``, as a stream that raises InputError for too many bytes.

    Args:
        path: The file.
        title: Name of the file in errors.
        limits: Largest sizes that are allowed.

    Raises:
        InputError: If it is no regular file, is larger than `limits` allow, or is a broken gzip file.
    """
    import gzip

    from pocketbert.core.disk.files import open_regular

    with open_regular(path, title) as raw:
        size = os.fstat(raw.fileno()).st_size
        try:
            if path.suffix == ".gz":
                _check_padding(raw, size)
                with gzip.GzipFile(fileobj=raw) as unpacked:
                    yield io.BufferedReader(_BoundedStream(cast("IO[bytes]", unpacked), title, limits, size), _BUFFER)
            else:
                yield io.BufferedReader(_BoundedStream(raw, title, limits), _BUFFER)
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise InputError(Problem(title, f"broken gzip file: {error}.")) from error


def _check_padding(raw: io.RawIOBase, size: int) -> None:
    """Raise BadGzipFile if an archive ends in many zeros, which Python would read byte by byte as padding."""
    if size > _BUFFER:
        raw.seek(size - _BUFFER)
        if not any(raw.read(_BUFFER) or b""):
            import gzip

            raise gzip.BadGzipFile("zeros after the end of the data")
        raw.seek(0)


def read_lines(stream: io.BufferedReader, title: str, limits: Limits) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line with its line end) for UTF-8 text; only line feeds separate lines.

    A byte order mark at the beginning is removed.

    Raises:
        InputError: For a line that is too long, is not UTF-8 or contains a null byte, and for too many lines.
    """
    for number in count(1):
        line = stream.readline(limits.line + 1)
        if not line:
            return
        if number > limits.rows:
            raise limits.row_count_error(title, "lines")
        if b"\0" in line[:_BUFFER]:
            raise null_byte_error(title, number)
        if len(line) > limits.line:
            raise limits.length_error(title, number)
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise InputError(Problem(f"{title}:{number}", f"not UTF-8: {error}.", ENCODING_FIX)) from error
        if "\0" in text:
            raise null_byte_error(title, number)
        yield number, text


def null_byte_error(title: str, number: int) -> InputError:
    """Build the error for a line with a null byte, which UTF-16 and binary files contain and text does not."""
    what = "contains a null byte: not UTF-8 text, but UTF-16 or a binary file."
    return InputError(Problem(f"{title}:{number}", what, ENCODING_FIX))


def check_encoding(path: Path, title: str, limits: Limits) -> None:
    """Read a whole file to find the first line that is not UTF-8.

    Raises:
        InputError: Naming the first line that is not, or if the file is larger than `limits` allow.
    """
    with open_bounded(path, title, limits) as stream:
        for _ in read_lines(stream, title, limits):
            pass


def read_texts(path: Path, limits: Limits | None = None) -> list[str]:
    """Read a file with one text per line; only line feeds separate lines, so that outputs match input lines.

    Raises:
        InputError: If it is no regular file, not UTF-8, or larger than `limits` allow.
    """
    limits = limits or Limits()
    with open_bounded(path, str(path), limits) as stream:
        return _read_texts(stream, str(path), limits)


def read_texts_of_stream(stream: IO[bytes], title: str, limits: Limits) -> list[str]:
    """Read one text per line from a stream, such as standard input; see `read_texts`.

    Raises:
        InputError: See `read_lines`.
    """
    return _read_texts(io.BufferedReader(_BoundedStream(stream, title, limits), _BUFFER), title, limits)


def _read_texts(stream: io.BufferedReader, title: str, limits: Limits) -> list[str]:
    return [line.removesuffix("\n").removesuffix("\r") for _, line in read_lines(stream, title, limits)]
