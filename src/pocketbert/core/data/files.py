"""Rows of a data source: files of all forms, and data sets that `datasets` loads.

- `check_source` refuses a file whose form is not read before its rows are; `guess_table_form` guesses how a table is written.
- `read_rows` yields the rows of any source as dictionaries, within its limits.
- `read_class_names` returns the names that a data set itself gives to the numbers of its label column.

Parquet files and data sets of the Hub are read here; the forms of text files are in `pocketbert.core.data.forms`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.column_names import BadRows
from pocketbert.core.data.conll import find_sentence_column, group_words
from pocketbert.core.data.forms import PARQUET, TABLE, FileForm, find_form, open_noted_text, open_text
from pocketbert.core.data.records import RecordShape, expand_records, find_record_shape, take_sample
from pocketbert.core.data.source import DataSource
from pocketbert.core.data.streams import ENCODING_FIX, Limits, count_bytes
from pocketbert.core.data.tables import TableForm, check_columns, find_table_form, read_table
from pocketbert.core.disk.files import check_regular, open_regular
from pocketbert.core.errors import InputError, MissingBackendError, Problem, first_line
from pocketbert.core.host.system import check_hub, version_of


def check_source(source: DataSource) -> FileForm | None:
    """Find the form of a data file (CSV, JSON Lines, ...) from its name and first bytes; return None for a data set of the Hub.

    Raises:
        InputError: If the file cannot be opened or has a form that is not read, or if `source.header` is set and it is no table.
    """
    if source.path is None:
        return None
    form = find_form(source)
    if source.header is not None and form is not TABLE:
        what = (
            f"has no header row to decide on (header: {str(source.header).lower()}); it is read as {form.title}, "
            "and only tables have one."
        )
        raise InputError(Problem(source.title, what, "Leave out --header, --no-header and the recipe key header."))
    return form


def guess_table_form(source: DataSource) -> TableForm | None:
    """Guess a table's separator and whether it has a header row; return None for any other file or data set.

    Raises:
        InputError: If the file cannot be opened, or its form is not read.
    """
    if check_source(source) is not TABLE:
        return None
    return find_table_form(open_text(source), source.header, _named_columns(source))


def _named_columns(source: DataSource, with_text: bool = False) -> list[str]:
    """Return the columns that a source names; a name that contains commas counts whole and as each of its parts.

    Args:
        source: The file.
        with_text: Whether to count the default name of the text column too, for callers that read it without guessing.
    """
    given = source.model_fields_set | ({"text"} if with_text else set())
    names = [getattr(source, k) for k in ("text", "text_pair", "label") if k in given]
    return [part for name in names if name is not None for part in {name, *name.split(",")}]


def read_rows(
    source: DataSource, bad: BadRows, columns: Sequence[str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number from 1, row by column name) for a file or data set; rows that cannot be read are added to `bad`.

    Records of other programs (`pocketbert.core.data.records`) are converted to rows with plain columns, and tables of
    single words to a row for each sentence.

    Args:
        source: The file or data set, with its limits.
        bad: Collects the rows that cannot be read.
        columns: Columns that the caller needs; others may be missing in the rows. If given, the source's text column
            counts as named by the user. By default all columns are read.

    Raises:
        InputError: If the source as a whole cannot be read, or is larger than its limits.
        MissingBackendError: If the library for it is not installed.
    """
    named = _named_columns(source, columns is not None)
    if columns is not None and source.path is not None and find_form(source) is PARQUET and _makes_rows(source, named):
        columns = None  # rows are made of columns that the caller does not name
    rows = group_words(_read_plain_rows(source, bad, columns), source.title, source.limits, named)
    for count, row in enumerate(expand_records(rows, bad, named), 1):
        if count > source.limits.rows:
            raise source.limits.row_count_error(source.title)
        yield row


def _makes_rows(source: DataSource, named: Sequence[str]) -> bool:
    """Return whether a file's first rows are single words or another program's records, so that rows are converted."""
    try:
        rows = _sample_rows(source)
    except InputError:  # another column is larger than the limits allow: the columns that are needed may be read
        return False
    is_word = bool(rows) and find_sentence_column(rows[0], named) is not None
    return is_word or find_record_shape(rows, named) is not None


def find_shape(source: DataSource) -> RecordShape | None:
    """Return the shape of another program's records in a file's first rows; None for plain columns or an empty file."""
    return find_record_shape(_sample_rows(source), _named_columns(source))


def _sample_rows(source: DataSource) -> list[dict[str, Any]]:
    """Return the first rows of a source, with cells as they stand in the file."""
    return [row for _, row in take_sample(_read_plain_rows(source, BadRows(source.title), None))]


def _read_plain_rows(
    source: DataSource, bad: BadRows, columns: Sequence[str] | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number from 1, row by column name) of a source, with cells as they stand in the file; see `read_rows`."""
    if source.path is None:
        yield from _read_hub_rows(source)
        return
    table, form = guess_table_form(source), find_form(source)
    file = open_noted_text(source)
    if table is not None:
        yield from read_table(file, table, bad)
    elif form is PARQUET:
        yield from _read_parquet_rows(Path(source.path), source.title, source.limits, columns)
    elif form.read is not None:
        yield from form.read(file, bad)


def read_class_names(source: DataSource) -> list[str] | None:
    """Return the class names that a data set stores for the numbers in its label column.

    The names are those of the type ``ClassLabel`` of `datasets`, which Parquet files written by that library contain
    too. If the cells are lists (a tag for every word), they are the names of the list's elements.

    Args:
        source: The data set; its `label` names the column.

    Returns:
        The names; None if the source has no such column, or its labels are not of that type.

    Raises:
        InputError: If the source cannot be read.
        MissingBackendError: If the library for it is not installed.
    """
    features: Any = {}
    if source.dataset is not None:
        features = _load_dataset(source).features.to_dict()
    elif source.path is not None and source.path.endswith(".parquet"):
        with _open_parquet(Path(source.path), source.title) as file:
            metadata = file.schema_arrow.metadata or {}
        try:
            features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        except (ValueError, KeyError, TypeError, RecursionError):
            features = {}  # a note of another program under the same key
    feature = features.get(source.label) if isinstance(features, dict) else None
    while isinstance(feature, dict) and "feature" in feature:
        feature = feature["feature"]
    if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names"):
        return [str(name) for name in feature["names"]]
    return None


# --- Parquet, in which a few bytes can stand for a very large cell ---

_BATCH_ROWS = 1024
"""Rows that become Python objects together."""
_BATCH_BYTES = 1 << 27
_READ_BUFFER = 1 << 20
"""Bytes of a column that are read at once; without a buffer a whole row group is, which often is the whole file."""
_VALUE_BYTES = 8
"""Size that a number, a date or an entry of a list is counted with."""
_DICTIONARY_PAGE = 2


def _read_parquet_rows(
    path: Path, title: str, limits: Limits, columns: Sequence[str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number from 1, row) for a Parquet file, reading only `columns`; all columns if the first of these is missing.

    Raises:
        InputError: If the file cannot be read, or is larger than `limits` allow.
        MissingBackendError: If pyarrow is not installed.
    """
    with _open_parquet(path, title) as file:
        import pyarrow

        names = file.schema_arrow.names
        # without the first column no row is usable: then all columns are read, so that errors can name them
        select = columns is not None and columns[0] in names
        selected = [name for name in names if not select or name in (columns or ())]
        number = read = 0
        try:
            batch_rows = _check_metadata(file, path, title, limits, selected)
            for batch in file.iter_batches(batch_rows, columns=selected):
                sizes = sum((_cell_bytes(c) for c in batch.columns), np.zeros(batch.num_rows, np.int64))
                if sizes.size and int(sizes.max()) > limits.line:
                    raise limits.length_error(title, number + 1 + int((sizes > limits.line).argmax()), "row")
                read += int(sizes.sum())
                if read > limits.total:
                    raise limits.size_error(title)
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
        except UnicodeDecodeError as error:
            raise InputError(Problem(title, f"not UTF-8: {error}.", ENCODING_FIX)) from error
        except (pyarrow.ArrowException, OSError, OverflowError, ValueError, LookupError) as error:
            # the last three come from dates that Python has no type for
            raise _parquet_error(title, error) from error


def _open_parquet(path: Path, title: str) -> Any:
    """Open a Parquet file with pyarrow, which keeps repeated texts in lists as a dictionary to save memory."""
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
        return pyarrow.parquet.ParquetFile(path, metadata=metadata, buffer_size=_READ_BUFFER, read_dictionary=nested)
    except (pyarrow.ArrowException, OSError) as error:
        raise _parquet_error(title, error) from error


def _parquet_error(title: str, error: Exception) -> InputError:
    reason = first_line(error).rstrip(".")
    return InputError(Problem(title, f"cannot be read as a Parquet file: {reason:.300}."))


def _check_metadata(file: Any, path: Path, title: str, limits: Limits, columns: Sequence[str]) -> int:
    """Check the sizes in a Parquet file's metadata against `limits`, and return how many rows to read at once.

    Returns:
        The number of rows; it is smaller if rows can be long. Only the sizes of `columns` count.

    Raises:
        InputError: If the file is larger than `limits` allow, or its columns are too many or have one name.
    """
    metadata = file.metadata
    check_columns(file.schema_arrow.names, title)
    if metadata.num_rows > limits.rows:
        raise limits.row_count_error(title)
    total, longest = 0, 1
    with open_regular(path, title) as raw:
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            for chunk in map(group.column, range(group.num_columns)):
                if chunk.path_in_schema.partition(".")[0] not in columns:
                    continue
                size = max(chunk.total_uncompressed_size, 0)
                if size > (group.num_rows + 1) * limits.line:
                    raise limits.length_error(title, 1, "row")
                nested = chunk.num_values > group.num_rows
                total += max(size, chunk.num_values * _VALUE_BYTES) if nested else size
                mean = size // max(group.num_rows, 1)
                # every row may hold the longest text of the dictionary, in a few bytes of the file
                longest = max(longest, mean, 0 if nested else _dictionary_bytes(raw, chunk))
    if total > limits.total:
        raise limits.size_error(title)
    return int(min(_BATCH_ROWS, max(1, _BATCH_BYTES // longest)))


def _dictionary_bytes(raw: FileIO, chunk: Any) -> int:
    """Return the decompressed size of a Parquet column's dictionary page (its distinct values); 0 if it has none.

    The page's header is in Thrift's compact protocol: two fields of zigzag varints, the kind of the page and its size.
    """
    offsets = (chunk.dictionary_page_offset, chunk.data_page_offset)
    raw.seek(min(max(offset, 0) for offset in offsets if offset is not None))
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
    """Estimate how many bytes each cell of an Arrow column has as text; return int64 [rows].

    Texts count with their bytes and missing texts with 0. Any other single value counts 8 bytes, a list 1 more for each entry, a
    struct 8 more than its fields.
    """
    import pyarrow
    import pyarrow.compute

    kind = column.type
    if pyarrow.types.is_dictionary(kind):
        lengths = np.append(_cell_bytes(column.dictionary), 0)
        sizes: NDArray[np.int64] = lengths[column.indices.fill_null(len(lengths) - 1).to_numpy(zero_copy_only=False)]
        return sizes
    if pyarrow.types.is_struct(kind):
        return sum((_cell_bytes(c) for c in column.flatten()), np.full(len(column), _VALUE_BYTES, np.int64))
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
    return np.full(len(column), _VALUE_BYTES, np.int64)


# --- data sets of the Hub ---


def _read_hub_rows(source: DataSource) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number from 1, row) for a data set loaded with `datasets`; raise InputError above the source's limits."""
    limits = source.limits
    for number, row in enumerate(_load_dataset(source), 1):
        if number > limits.rows:
            raise limits.row_count_error(source.title)
        if any(isinstance(cell, str) and count_bytes(cell) > limits.line for cell in row.values()):
            raise limits.length_error(source.title, number, "row")
        yield number, dict(row)


def _load_dataset(source: DataSource) -> Any:
    """Load a data set with the `datasets` library; raise InputError with the reason if that fails, MissingBackendError without it."""
    if version_of("datasets") is None:
        raise MissingBackendError("the library 'datasets'", "pip install 'pocketbert[train]'")
    assert source.dataset is not None
    if not Path(source.dataset).is_dir() and (why := check_hub("datasets", source.dataset)):
        columns = "".join(
            f", {k}: {v}" for k in ("text", "text_pair", "label") if (v := getattr(source, k)) is not None
        )
        fix = f"Check the network, or give a local file with 'path' instead of 'dataset': {{path: rows.csv{columns}}}"
        raise InputError(Problem(source.title, f"could not be loaded: {why}.", fix))
    import datasets

    try:
        return datasets.load_dataset(source.dataset, source.config, split=source.split, revision=source.revision)
    except Exception as error:  # the library raises many kinds, network ones included
        reason = f"{type(error).__name__}: {first_line(error).rstrip('.')}"
        fix = "Check name, config, split and network, or give a local file with 'path'."
        raise InputError(Problem(source.title, f"could not be loaded: {reason}.", fix)) from error
