"""Rows out of files and data sets: .jsonl[.gz], .csv, .tsv, .parquet, or what `datasets` loads."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError, MissingBackendError, Problem, nearest
from pocketbert.core.host.versions import version_of

MAX_LINE = 1 << 22
"""Longest line in bytes; a longer one is a broken file, not a row."""
SHOWN_PROBLEMS = 20

_SUFFIXES = (".jsonl", ".jsonl.gz", ".csv", ".tsv", ".parquet")
_PARQUET_ROWS = 1024
"""Rows of a Parquet file that become Python objects together."""
_PARQUET_BUFFER = 1 << 20
"""Bytes of a column read at once: without a buffer, a whole row group (often the whole file) is."""


class BadRows:
    """Collects what is wrong with the rows of one file: the first few and the count."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.count = 0
        self.problems: list[Problem] = []

    def add(self, row: int, what: str, fix: str = "") -> None:
        """Note one bad row."""
        self.count += 1
        if len(self.problems) < SHOWN_PROBLEMS:
            self.problems.append(Problem(f"{self.title}:{row}", what, fix))

    def missing(self, row: int, column: str, cells: Mapping[str, Any]) -> None:
        """Note a row without a column."""
        have = [str(k) for k in cells]
        self.add(row, f"no column '{column}'; {nearest(column, have) if have else 'the row is empty'}.")

    def close(self) -> list[Problem]:
        """The problems, with a last line that tells how many more there are."""
        if self.count > len(self.problems):
            more = self.count - len(self.problems)
            return [
                *self.problems,
                Problem(self.title, f"and {more:,} more bad rows ({self.count:,} in all)."),
            ]
        return self.problems


def read_lines(path: Path) -> list[str]:
    """Texts of a plain file, one per line; only line feeds separate, so that answers stay in line with inputs.

    Raises:
        InputError: If the file is missing or not UTF-8.
    """
    if not path.is_file():
        raise InputError(Problem(str(path), "file not found."))
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(Problem(str(path), f"not UTF-8: {error}.", "Convert the file to UTF-8.")) from error
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def read_rows(source: DataSource, bad: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a source with their numbers, from 1; what cannot be read is added to `bad`.

    Raises:
        InputError: If the source as a whole cannot be read.
        MissingBackendError: If the library for it is not installed.
    """
    if source.dataset is not None:
        yield from _hub_rows(source)
        return
    assert source.path is not None
    path = Path(source.path)
    if not path.is_file():
        raise InputError(Problem(source.title, "file not found."))
    if not path.name.endswith(_SUFFIXES):
        raise InputError(Problem(source.title, f"unknown kind of file; allowed: {', '.join(_SUFFIXES)}."))
    try:
        if path.name.endswith((".jsonl", ".jsonl.gz")):
            yield from _jsonl_rows(path, bad)
        elif path.suffix == ".parquet":
            yield from _parquet_rows(path)
        else:
            yield from _table_rows(path, "\t" if path.suffix == ".tsv" else ",", bad)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputError(Problem(source.title, f"broken gzip file: {error}.")) from error
    except UnicodeDecodeError as error:
        raise InputError(Problem(source.title, f"not UTF-8: {error}.", "Convert the file to UTF-8.")) from error


def _jsonl_rows(path: Path, bad: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
        for number in range(1, 1 << 62):
            line = stream.readline(MAX_LINE + 1)
            if not line:
                return
            if len(line) > MAX_LINE:
                raise InputError(Problem(f"{path}:{number}", f"line longer than {MAX_LINE} bytes; no row is."))
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                bad.add(number, f"not valid JSON: {error}.")
                continue
            if isinstance(row, dict):
                yield number, row
            else:
                bad.add(number, f"a row is a JSON object, this is {type(row).__name__}.")


def _table_rows(path: Path, separator: str, bad: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as stream:
        if separator == "\t":
            reader = csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
        else:
            reader = csv.reader(stream, strict=True)
        try:
            header = next(reader, None)
            if not header:
                return
            twice = sorted({name for name in header if header.count(name) > 1})
            if twice:
                raise InputError(
                    Problem(
                        f"{path}:1",
                        f"the header names {', '.join(map(repr, twice))} twice.",
                        "Give each column another name.",
                    )
                )
            for number, cells in enumerate(reader, 2):
                if not cells:
                    continue  # a blank line
                if len(cells) != len(header):
                    bad.add(number, f"{len(cells)} columns, the header has {len(header)}.")
                else:
                    yield number, dict(zip(header, cells, strict=True))
        except csv.Error as error:
            raise InputError(Problem(f"{path}:{reader.line_num}", f"not valid CSV: {error}.")) from error


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with _open_parquet(path) as file:
        import pyarrow

        number = 0
        try:
            for batch in file.iter_batches(_PARQUET_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
        except UnicodeDecodeError:
            raise
        except (pyarrow.ArrowException, OSError, OverflowError, ValueError, LookupError) as error:
            # the last three come from dates that Python has no type for
            raise _broken_parquet(path, error) from error


def _open_parquet(path: Path) -> Any:
    if version_of("pyarrow") is None:
        raise MissingBackendError("the library 'pyarrow'", "pip install 'pocketbert[train]'")
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path, buffer_size=_PARQUET_BUFFER)
    except (pyarrow.ArrowException, OSError) as error:
        raise _broken_parquet(path, error) from error


def _broken_parquet(path: Path, error: Exception) -> InputError:
    reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    return InputError(Problem(str(path), f"cannot be read as a Parquet file: {reason}."))


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
        path = Path(source.path)
        if not path.is_file():
            raise InputError(Problem(source.title, "file not found."))
        with _open_parquet(path) as file:
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
    for number, row in enumerate(_load_dataset(source), 1):
        yield number, dict(row)


def _load_dataset(source: DataSource) -> Any:
    if version_of("datasets") is None:
        raise MissingBackendError("the library 'datasets'", "pip install 'pocketbert[train]'")
    import datasets

    assert source.dataset is not None
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
