"""Rows out of files and data sets: .jsonl[.gz], .csv, .tsv, or what `datasets` loads."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pocketbert.core.data_source import DataSource
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.versions import version_of

MAX_LINE = 1 << 22
"""Longest line in bytes; a longer one is a broken file, not a row."""
SHOWN_PROBLEMS = 20

_SUFFIXES = (".jsonl", ".jsonl.gz", ".csv", ".tsv")


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
        else:
            yield from _table_rows(path, "\t" if path.suffix == ".tsv" else ",", bad)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputError(Problem(source.title, f"broken gzip file: {error}.")) from error
    except UnicodeDecodeError as error:
        raise InputError(
            Problem(source.title, f"not UTF-8: {error}.", "Convert the file to UTF-8.")
        ) from error


def _jsonl_rows(path: Path, bad: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
        for number in range(1, 1 << 62):
            line = stream.readline(MAX_LINE + 1)
            if not line:
                return
            if len(line) > MAX_LINE:
                raise InputError(
                    Problem(f"{path}:{number}", f"line longer than {MAX_LINE} bytes; no row is.")
                )
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
            for number, cells in enumerate(reader, 2):
                if not cells:
                    continue  # a blank line
                if len(cells) != len(header):
                    bad.add(number, f"{len(cells)} columns, the header has {len(header)}.")
                else:
                    yield number, dict(zip(header, cells, strict=True))
        except csv.Error as error:
            raise InputError(Problem(f"{path}:{reader.line_num}", f"not valid CSV: {error}.")) from error


def _hub_rows(source: DataSource) -> Iterator[tuple[int, dict[str, Any]]]:
    if version_of("datasets") is None:
        raise MissingBackendError("the library 'datasets'", "pip install 'pocketbert[train]'")
    import datasets

    assert source.dataset is not None
    try:
        rows = datasets.load_dataset(
            source.dataset, source.config, split=source.split, revision=source.revision
        )
    except Exception as error:  # the library raises many kinds, network ones included
        raise InputError(
            Problem(source.title, f"could not be loaded: {type(error).__name__}: {str(error).splitlines()[0]}",
                    "Check name, config, split and network, or give a local file with 'path'.")
        ) from error  # fmt: skip
    for number, row in enumerate(rows, 1):
        yield number, dict(row)
