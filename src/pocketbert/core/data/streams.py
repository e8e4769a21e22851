"""Bounded reading of text files: data files are opened here, so that a broken or hostile file ends early.

- `Limits` is how much one file may hold; its methods make the errors for files that hold more.
- `find_encoding` finds the encoding of a text file by its first bytes that are not ASCII; `TextFile` is a file with its encoding.
- `open_bounded` opens a file, plain or gzip, as a stream of UTF-8 that ends with an error at its limits; `read_lines` decodes its lines.
- `read_texts`, `iterate_texts` and `read_texts_of_stream` read one text per line; `check_encoding` finds the line that is not UTF-8.

This module imports neither numpy nor pydantic, and `gzip` and `core.disk.files` only when a file is opened, because the
command line imports it for every command.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
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
UTF8 = "utf-8"
WINDOWS = "cp1252"
"""The usual encoding of Windows in Western Europe and America, of which Latin-1 is a part."""
ENCODING_FIX = (
    "Give the file's encoding with --encoding (in a recipe: encoding), or convert the file to UTF-8, "
    "for example: iconv -f WINDOWS-1252 -t UTF-8 rows.csv > rows-utf8.csv"
)
_BYTES_PER_ROW = 512
"""A file may have this many bytes in all for each row that it may have."""
_RATIO = 200
"""Text grows by 3 to 20 when it is decompressed; a file that grows by more than this is refused."""
_RATIO_FROM = 64 * MIB
_BUFFER = 1 << 16
_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Limits:
    """Limits on the size of one data file.

    Attributes:
        line: Largest number of bytes of a line, or of a row of a table or a Parquet file.
        rows: Largest number of rows, or of lines of a text file.
    """

    line: int = DEFAULT_LINE_MB * MIB
    rows: int = DEFAULT_MAX_ROWS

    @property
    def total(self) -> int:
        """Largest number of bytes of all rows together, decompressed; lowering `rows` does not lower it."""
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
    """Raw stream that counts the bytes read from another stream, and raises InputError above its limits.

    Decompressed bytes are also too many if they are more than 200 times the compressed ones, from 64 MB on.

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


class _Transcoded(io.RawIOBase):
    """Raw stream of UTF-8 that decodes another stream from a given encoding.

    Args:
        stream: The encoded bytes.
        title: Name of the file in errors.
        encoding: Name of its encoding.
    """

    def __init__(self, stream: io.RawIOBase, title: str, encoding: str) -> None:
        super().__init__()
        self._stream, self._title, self._encoding = stream, title, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._rest, self._ended = b"", False

    def readable(self) -> bool:
        """Return True, since the stream can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the stream's text as UTF-8; raise InputError for bytes that are invalid in the file's encoding."""
        while not self._rest and not self._ended:
            raw = self._stream.read(_BUFFER) or b""
            self._ended = not raw
            try:
                self._rest = self._decoder.decode(raw, self._ended).encode(errors="surrogatepass")
            except UnicodeError as error:
                what = f"not {self._encoding}: {error}."
                raise InputError(
                    Problem(self._title, what, "Give another --encoding (in a recipe: encoding).")
                ) from error
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


@contextlib.contextmanager
def open_bounded(path: Path, title: str, limits: Limits, encoding: str = UTF8) -> Iterator[io.BufferedReader]:
    """Open a regular file, plain or packed by gzip, as a stream of UTF-8 that raises InputError after too many bytes.

    A file is packed if its name ends in .gz or it begins with the bytes of gzip.

    Args:
        path: The file to open.
        title: Name of the file in errors.
        limits: Largest sizes that are allowed.
        encoding: Encoding of the file, from which it is converted to UTF-8.

    Raises:
        InputError: If the path is no regular file or its gzip data is broken; while the stream is read, if the file is
            larger than `limits` allow, unpacks to far too much, or is not in `encoding` (UTF-8 is not checked here).
    """
    import gzip

    from pocketbert.core.disk.files import open_regular

    with open_regular(path, title) as raw:
        size = os.fstat(raw.fileno()).st_size
        try:
            is_packed = path.suffix == ".gz" or raw.read(len(_GZIP)) == _GZIP
            raw.seek(0)
            if is_packed:
                _check_padding(raw, size)
                with gzip.GzipFile(fileobj=raw) as unpacked:
                    bounded = _BoundedStream(cast("IO[bytes]", unpacked), title, limits, size)
                    yield _as_utf8(bounded, title, encoding)
            else:
                yield _as_utf8(_BoundedStream(raw, title, limits), title, encoding)
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise InputError(Problem(title, f"broken gzip file: {error}.")) from error


def _as_utf8(stream: io.RawIOBase, title: str, encoding: str) -> io.BufferedReader:
    """Return a buffered stream of UTF-8 over a stream of the given encoding."""
    return io.BufferedReader(stream if encoding == UTF8 else _Transcoded(stream, title, encoding), _BUFFER)


def _check_padding(raw: io.RawIOBase, size: int) -> None:
    """Raise BadGzipFile if a gzip file ends in 64 KiB of zeros, because Python would read them one by one."""
    if size > _BUFFER:
        raw.seek(size - _BUFFER)
        if not any(raw.read(_BUFFER) or b""):
            import gzip

            raise gzip.BadGzipFile("zeros after the end of the data")
        raw.seek(0)


# --- encodings ---

_BYTE_ORDER_MARKS = ((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
"""The first bytes of files in these encodings; UTF-32's begins with that of UTF-16."""
_WINDOW = 1 << 18
"""Bytes from the first one that is not ASCII on, by which the encoding is told."""
_MOST_ACCENTS = 0.35
"""Share of the letters that may be above ASCII in Western European text; in Greek or Russian nearly all are."""
_SIGNS_IN_WORDS = re.compile(r"(?<=[^\W\d_])[³¹¿£¥](?=[^\W\d_])")
_MOST_SIGNS = 0.25
"""Letters of Polish and its neighbours (cp1250) look like these signs inside words; as many as this share of the accents are slips."""


@dataclass(frozen=True)
class TextFile:
    """A text file that can be opened: its path, name in errors, limits and encoding (empty for a folder whose texts may differ)."""

    path: Path
    title: str
    limits: Limits
    encoding: str = UTF8

    def open(self) -> contextlib.AbstractContextManager[io.BufferedReader]:
        """Open the file as a bounded stream of UTF-8."""
        return open_bounded(self.path, self.title, self.limits, self.encoding)

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield (number from 1, line without its line end) for each line."""
        with self.open() as stream:
            for number, line in read_lines(stream, self.title, self.limits):
                yield number, line.rstrip("\r\n")

    def sample(self, size: int) -> str:
        """Return the beginning of the file, at most `size` bytes of it and whole lines if possible."""
        with self.open() as stream:
            raw = stream.read(size)
        if len(raw) == size:
            raw = raw[: raw.rfind(b"\n") + 1] or raw
        return raw.decode("utf-8-sig", errors="replace")


def find_encoding(path: Path, title: str, limits: Limits) -> str:
    """Find the encoding of a text file: UTF-8, UTF-16, UTF-32, or Windows' cp1252 for Western European text.

    The file is read up to its first byte that is not ASCII; what follows decides. A null byte in the first block decides too.

    Returns:
        The encoding; UTF-8 also if the text is in none of these, so that the reader's error names the line, and for a path
        that does not exist, so that opening it raises the error.

    Raises:
        InputError: If an existing file cannot be opened, or has more bytes than `limits` allow.
    """
    try:
        status = path.stat()
    except (OSError, ValueError):
        return UTF8  # opening it raises the error
    return _find_encoding(path, title, limits, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=256)
def _find_encoding(path: Path, title: str, limits: Limits, size: int, changed: int) -> str:
    """Detect the encoding of a file; cached by its size and the time of its last change, which are `size` and `changed`."""
    with open_bounded(path, title, limits) as stream:
        block = stream.read(_BUFFER)
        if b"\0" in block:
            return guess_encoding(block)
        while block.isascii():
            if not block or b"\0" in block:
                return UTF8
            block = stream.read(_BUFFER)
        return guess_encoding(block + stream.read(_WINDOW))


def _guess_utf16(block: bytes) -> str:
    """Return the byte order of UTF-16 without a mark, by the positions of its null bytes; UTF-8 for anything else."""
    even, odd = block[::2].count(0), block[1::2].count(0)
    if len(block) % 2 == 0 and max(even, odd) * 3 > len(block) // 2 and min(even, odd) * 50 < max(even, odd):
        return "utf-16-le" if odd > even else "utf-16-be"
    return UTF8


def guess_encoding(raw: bytes) -> str:
    """Guess the encoding of bytes: UTF-32 by its byte order mark, UTF-16 by its mark or null bytes, cp1252 for Western European text, else UTF-8."""
    for mark, encoding in _BYTE_ORDER_MARKS:
        if raw.startswith(mark):
            return encoding
    if b"\0" in raw:
        return _guess_utf16(raw)
    text = raw.decode(errors="replace")
    if len(raw) >= _WINDOW:
        text = text[:-1]  # its last character may be cut off
    broken = text.count("\ufffd")
    if broken == 0 or broken <= sum(character > "\x7f" for character in text) - broken:
        return UTF8  # a damaged file of UTF-8 keeps its encoding
    try:
        text = raw.decode(WINDOWS)
    except UnicodeDecodeError:
        return UTF8
    letters = [character for character in text if character.isalpha()]
    above = sum(character > "\x7f" for character in letters)
    is_other = len(_SIGNS_IN_WORDS.findall(text)) > _MOST_SIGNS * above
    return UTF8 if is_other or above > _MOST_ACCENTS * len(letters) else WINDOWS


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


def count_bytes(text: str) -> int:
    """Return how many bytes a text has in UTF-8, by which the limits of `Limits` count."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def null_byte_error(title: str, number: int) -> InputError:
    """Build the error for a line with a null byte, which UTF-16 and binary files contain and text does not."""
    what = "contains a null byte: not UTF-8 text, but UTF-16 or a binary file."
    return InputError(Problem(f"{title}:{number}", what, ENCODING_FIX))


def check_encoding(file: TextFile) -> None:
    """Read a file line by line, so that the first line that is not UTF-8 raises an error with its number.

    Raises:
        InputError: For that line, a null byte, a line that is too long, or a file that is larger than its limits allow.
    """
    for _ in file.lines():
        pass


def read_texts(path: Path, limits: Limits | None = None, encoding: str | None = None) -> list[str]:
    """Read a file with one text per line, as a list; see `iterate_texts`."""
    return list(iterate_texts(path, limits, encoding))


def iterate_texts(path: Path, limits: Limits | None = None, encoding: str | None = None) -> Iterator[str]:
    """Yield the texts of a file with one text per line, without line ends; only line feeds separate lines, so that outputs match input lines.

    Args:
        path: The file.
        limits: Largest sizes that are allowed.
        encoding: Encoding of the file; by default it is detected from the bytes.

    Raises:
        InputError: If the file is no regular file, not in this encoding, has a null byte, or is larger than `limits` allow.
    """
    limits = limits or Limits()
    with open_bounded(path, str(path), limits, encoding or find_encoding(path, str(path), limits)) as stream:
        yield from _iterate_texts(stream, str(path), limits)


def read_texts_of_stream(stream: IO[bytes], title: str, limits: Limits, encoding: str = UTF8) -> list[str]:
    """Read one text per line from a stream, such as standard input, in a given encoding; see `read_texts`.

    Raises:
        InputError: See `read_lines`.
    """
    return list(_iterate_texts(_as_utf8(_BoundedStream(stream, title, limits), title, encoding), title, limits))


def _iterate_texts(stream: io.BufferedReader, title: str, limits: Limits) -> Iterator[str]:
    return (line.removesuffix("\n").removesuffix("\r") for _, line in read_lines(stream, title, limits))
