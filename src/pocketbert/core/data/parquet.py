"""Read rows out of Parquet files, in which a few bytes can mean a very large cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.limits import Limits
from pocketbert.core.data.streams import ENCODING_FIX, too_long, too_many, too_much
from pocketbert.core.data.tables import check_columns
from pocketbert.core.disk.regular import check_regular, open_regular
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.host.versions import version_of

BATCH = 1024
"""Rows that become Python objects together."""
_BUFFER = 1 << 20
"""Bytes of a column read at once: without a buffer, a whole row group (often the whole file) is."""
_BATCH_BYTES = 1 << 27
_OTHER_BYTES = 8
"""What a number, a date or an entry of a list counts."""
_DICTIONARY_PAGE = 2


def parquet_rows(
    path: Path, title: str, limits: Limits, columns: Sequence[str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a Parquet file with their numbers, from 1.

    Args:
        path: The file.
        title: What errors name.
        limits: What it may hold.
        columns: The columns to read, as far as they are there; default all.

    Raises:
        InputError: If the file cannot be read, or is larger than `limits` allow.
        MissingBackendError: If pyarrow is not installed.
    """
    with open_parquet(path, title) as file:
        import pyarrow

        names = file.schema_arrow.names
        # without the first one no row is right: then all are named
        some = columns is not None and columns[0] in names
        wanted = [name for name in names if not some or name in (columns or ())]
        number = read = 0
        try:
            size = _check_declared(file, path, title, limits, wanted)
            for batch in file.iter_batches(size, columns=wanted):
                sizes = sum((_cell_bytes(c) for c in batch.columns), np.zeros(batch.num_rows, np.int64))
                if sizes.size and int(sizes.max()) > limits.line:
                    raise too_long(title, number + 1 + int((sizes > limits.line).argmax()), limits, "row")
                read += int(sizes.sum())
                if read > limits.total:
                    raise too_much(title, limits)
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
        except UnicodeDecodeError as error:
            raise InputError(Problem(title, f"not UTF-8: {error}.", ENCODING_FIX)) from error
        except (pyarrow.ArrowException, OSError, OverflowError, ValueError, LookupError) as error:
            # the last three come from dates that Python has no type for
            raise _broken(title, error) from error


def open_parquet(path: Path, title: str) -> Any:
    """A `pyarrow.parquet.ParquetFile`; texts that entries of a list share are stored once when it is read.

    Raises:
        InputError: If it is no Parquet file.
        MissingBackendError: If pyarrow is not installed.
    """
    check_regular(path, title)
    if version_of("pyarrow") is None:
        raise MissingBackendError("the library 'pyarrow'", "pip install 'pocketbert[train]'")
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            metadata = file.metadata
            leaves = [metadata.schema.column(i) for i in range(metadata.num_columns)]
            nested = [c.path for c in leaves if c.physical_type == "BYTE_ARRAY" and c.max_repetition_level]
        return pyarrow.parquet.ParquetFile(path, metadata=metadata, buffer_size=_BUFFER, read_dictionary=nested)
    except (pyarrow.ArrowException, OSError) as error:
        raise _broken(title, error) from error


def _broken(title: str, error: Exception) -> InputError:
    reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    return InputError(Problem(title, f"cannot be read as a Parquet file: {reason:.300}."))


def _check_declared(file: Any, path: Path, title: str, limits: Limits, columns: Sequence[str]) -> int:
    """Refuse a file whose metadata say that it is too large, before any row is read.

    Returns:
        How many rows to read at once: fewer where rows can be long.
    """
    metadata = file.metadata
    check_columns(file.schema_arrow.names, title)
    if metadata.num_rows > limits.rows:
        raise too_many(title, limits)
    total, longest = 0, 1
    with open_regular(path, title) as raw:
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            for chunk in map(group.column, range(group.num_columns)):
                if chunk.path_in_schema.partition(".")[0] not in columns:
                    continue
                size = max(chunk.total_uncompressed_size, 0)
                if size > (group.num_rows + 1) * limits.line:
                    raise too_long(title, 1, limits, "row")
                nested = chunk.num_values > group.num_rows
                total += max(size, chunk.num_values * _OTHER_BYTES) if nested else size
                mean = size // max(group.num_rows, 1)
                # a text of the dictionary may be that of every row, in a few bytes
                longest = max(longest, mean, 0 if nested else _dictionary_bytes(raw, chunk))
    if total > limits.total:
        raise too_much(title, limits)
    return int(min(BATCH, max(1, _BATCH_BYTES // longest)))


def _dictionary_bytes(raw: FileIO, chunk: Any) -> int:
    """Decompressed size of the page that holds a column's different values; 0 where there is none.

    Its header is Thrift's compact protocol: two fields of zigzag varints, the kind of the page and its size.
    """
    places = (chunk.dictionary_page_offset, chunk.data_page_offset)
    raw.seek(min(max(p, 0) for p in places if p is not None))
    header = iter(raw.read(16))
    fields: list[int] = []
    for byte in header:
        if byte != 0x15 or len(fields) == 2:
            break
        value = shift = 0
        for digit in header:
            value, shift = value | (digit & 0x7F) << shift, shift + 7
            if digit < 0x80:
                break
        fields.append(value >> 1)
    return fields[1] if len(fields) == 2 and fields[0] == _DICTIONARY_PAGE else 0


def _cell_bytes(column: Any) -> NDArray[np.int64]:
    """Size of every cell of a column as text, without making Python objects of them."""
    import pyarrow
    import pyarrow.compute

    kind = column.type
    if pyarrow.types.is_dictionary(kind):
        lengths = np.append(_cell_bytes(column.dictionary), 0)
        sizes: NDArray[np.int64] = lengths[column.indices.fill_null(len(lengths) - 1).to_numpy(zero_copy_only=False)]
        return sizes
    if pyarrow.types.is_struct(kind):
        return sum((_cell_bytes(c) for c in column.flatten()), np.full(len(column), _OTHER_BYTES, np.int64))
    if pyarrow.types.is_nested(kind):
        if pyarrow.types.is_map(kind):
            column = column.cast(pyarrow.list_(pyarrow.struct({"key": kind.key_type, "value": kind.item_type})))
        lengths = pyarrow.compute.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        inside = np.append(0, np.cumsum(_cell_bytes(column.flatten()) + 1))
        ends = np.cumsum(lengths.astype(np.int64))
        return np.asarray(inside[ends] - inside[ends - lengths], np.int64)
    binary = (pyarrow.types.is_string, pyarrow.types.is_binary, pyarrow.types.is_large_string)
    if any(check(kind) for check in (*binary, pyarrow.types.is_large_binary)):
        return np.asarray(pyarrow.compute.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False), np.int64)
    return np.full(len(column), _OTHER_BYTES, np.int64)
