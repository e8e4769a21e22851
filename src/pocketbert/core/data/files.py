"""Rows out of files and data sets: .jsonl[.gz], .csv, .tsv, .parquet, or what `datasets` loads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pocketbert.core.data.bad_rows import BadRows
from pocketbert.core.data.header import TableForm, find_table_form
from pocketbert.core.data.json_lines import json_rows
from pocketbert.core.data.parquet import open_parquet, parquet_rows
from pocketbert.core.data.source import DataSource
from pocketbert.core.data.streams import too_long, too_many
from pocketbert.core.data.tables import table_rows
from pocketbert.core.disk.regular import check_regular
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.host.network import check_hub
from pocketbert.core.host.versions import version_of

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
