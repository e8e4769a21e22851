"""Rows out of files and data sets: .jsonl[.gz], .csv, .tsv, .parquet, or what `datasets` loads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.source import DataSource
from pocketbert.core.data.streams import ENCODING_FIX, Limits, lines, opened, too_long, too_many, too_much
from pocketbert.core.data.tables import BadRows, TableForm, check_columns, find_table_form, table_rows
from pocketbert.core.disk.files import check_regular, open_regular
from pocketbert.core.errors import InputError, MissingBackendError, Problem, shown
from pocketbert.core.host.system import check_hub, version_of

# --- json_lines ---
# Rows out of JSON lines.


class _TwiceError(ValueError):
    """An object that gives one key two values."""


def json_rows(path: Path, title: str, limits: Limits, bad: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a ``.jsonl`` or ``.jsonl.gz`` file with their line numbers; what is no row is added to `bad`.

    Raises:
        InputError: If the file cannot be read, or is larger than `limits` allow.
    """
    with opened(path, title, limits) as stream:
        for number, line in lines(stream, title, limits):
            if not line.strip():
                continue
            try:
                row = json.loads(line, object_pairs_hook=_object)
            except _TwiceError as error:
                bad.add(number, f"the key {error} occurs twice.", "Keep one of them.")
            except (ValueError, RecursionError) as error:
                bad.add(number, f"not valid JSON: {error}.")
            else:
                if isinstance(row, dict):
                    yield number, row
                else:
                    bad.add(number, f"a row is a JSON object, this is {type(row).__name__}.")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _TwiceError(shown(key))
            seen.add(key)
    return out


# --- parquet ---
# Read rows out of Parquet files, in which a few bytes can mean a very large cell.


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


_SUFFIXES = (".jsonl", ".jsonl.gz", ".csv", ".tsv", ".parquet")
_TABLES = (".csv", ".tsv")

_OTHER_KINDS = {
    ".json": "Write one object in each line: jq -c '.[]' rows.json > rows.jsonl",
    ".txt": "Write a .csv or a .jsonl file.",
    ".xlsx": "Save the sheet as CSV (UTF-8).",
    ".xls": "Save the sheet as CSV (UTF-8).",
    ".ods": "Save the sheet as CSV (UTF-8).",
    ".csv.gz": "Unpack it: gunzip -k rows.csv.gz",
    ".tsv.gz": "Unpack it: gunzip -k rows.tsv.gz",
}
"""What to do with files of other kinds that hold rows as well."""


def is_data_file(name: str) -> bool:
    """Whether a file's name ends like that of a file of rows, and not like that of a recipe."""
    return name.endswith(_SUFFIXES)


def check_source(source: DataSource) -> None:
    """Refuse a data file that is no regular file or of an unknown kind, without reading it; data sets are not checked.

    Raises:
        InputError: Naming the file.
    """
    if source.path is None:
        return
    check_regular(Path(source.path), source.title)
    if not source.path.endswith(_SUFFIXES):
        fix = next((fix for suffix, fix in _OTHER_KINDS.items() if source.path.endswith(suffix)), "")
        raise InputError(Problem(source.title, f"unknown kind of file; allowed: {', '.join(_SUFFIXES)}.", fix))
    if source.header is not None and not is_table(source.path):
        what = f"has no header row to decide on (header: {str(source.header).lower()}); only .csv and .tsv files have."
        raise InputError(Problem(source.title, what, "Leave out --header, --no-header and the recipe key header."))


def is_table(name: str) -> bool:
    """Tell whether a file's name ends like that of a table, which may have a header or none."""
    return name.endswith(_TABLES)


def table_form(source: DataSource) -> TableForm | None:
    """Find the separator of a CSV or TSV file, and whether its first row is a header; None for other sources.

    Raises:
        InputError: If the file cannot be opened, or is no regular file.
    """
    check_source(source)
    if source.path is None or not is_table(source.path):
        return None
    named = [str(getattr(source, k)) for k in ("text", "text_pair", "label") if k in source.model_fields_set]
    return find_table_form(Path(source.path), source.title, source.limits, source.header, named)


def read_rows(
    source: DataSource, bad: BadRows, columns: Sequence[str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a source with their numbers, from 1; what cannot be read is added to `bad`.

    Args:
        source: Where from, with its limits.
        bad: Collects rows that are none.
        columns: Columns that the caller needs; others may be missing in the rows. Default all.

    Raises:
        InputError: If the source as a whole cannot be read, or is larger than its limits.
        MissingBackendError: If the library for it is not installed.
    """
    if source.path is None:
        yield from _hub_rows(source)
        return
    form = table_form(source)
    path, title, limits = Path(source.path), source.title, source.limits
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        yield from json_rows(path, title, limits, bad)
    elif path.suffix == ".parquet":
        yield from parquet_rows(path, title, limits, columns)
    elif form is not None:
        yield from table_rows(path, form, title, limits, bad)


def class_names(source: DataSource) -> list[str] | None:
    """Names that the data set itself gives the numbers of its label column, in the order of the numbers.

    They come from `datasets`' type ``ClassLabel``, which a Parquet file written by that library carries too.
    A column of lists (a tag for every word) has the names of its elements.

    Args:
        source: The data set; its `label` names the column.

    Returns:
        The names; None where the source has no such column, or its labels are not of that type.

    Raises:
        InputError: If the source cannot be read.
        MissingBackendError: If the library for it is not installed.
    """
    features: Any = {}
    if source.dataset is not None:
        features = _load_dataset(source).features.to_dict()
    elif source.path is not None and source.path.endswith(".parquet"):
        with open_parquet(Path(source.path), source.title) as file:
            features = _stored_features(file.schema_arrow.metadata or {})
    feature = features.get(source.label) if isinstance(features, dict) else None
    while isinstance(feature, dict) and "feature" in feature:
        feature = feature["feature"]
    if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names"):
        return [str(name) for name in feature["names"]]
    return None


def _stored_features(metadata: dict[bytes, bytes]) -> Any:
    try:
        return json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}  # a note of another program under the same key


def _hub_rows(source: DataSource) -> Iterator[tuple[int, dict[str, Any]]]:
    limits = source.limits
    for number, row in enumerate(_load_dataset(source), 1):
        if number > limits.rows:
            raise too_many(source.title, limits)
        if any(isinstance(cell, str) and len(cell) > limits.line for cell in row.values()):
            raise too_long(source.title, number, limits, "row")
        yield number, dict(row)


def _load_dataset(source: DataSource) -> Any:
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
        raise InputError(
            Problem(
                source.title,
                f"could not be loaded: {type(error).__name__}: {str(error).splitlines()[0].rstrip('.')}.",
                "Check name, config, split and network, or give a local file with 'path'.",
            )
        ) from error
