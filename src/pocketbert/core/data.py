"""Labelled text from .jsonl[.gz], .csv, .tsv, or a Hub data set, into typed examples."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pocketbert.core.errors import InputError, MissingBackendError, Problem, nearest
from pocketbert.core.tokenization import Text, is_unicode
from pocketbert.core.versions import version_of

MAX_LINE = 1 << 22
"""Longest line in bytes; a longer one is a broken file, not a row."""
SHOWN_PROBLEMS = 20

Label = int | float | str
_SUFFIXES = (".jsonl", ".jsonl.gz", ".csv", ".tsv")


class DataSource(BaseModel):
    """Where one split comes from: a file, or a data set.

    The fields say what they mean in their descriptions, which recipes' JSON Schema shares.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str | None = Field(None, description="Local .jsonl[.gz], .csv or .tsv file with named columns.")
    dataset: str | None = Field(
        None, description="Hub data set, or a folder that `datasets` loads, instead of path."
    )
    config: str | None = Field(None, description="Configuration of the data set.")
    split: str | None = Field(None, description="Split of the data set.")
    revision: str | None = Field(None, description="Revision of the data set; pin it for repeatable runs.")
    text: str = Field("text", description="Column of the text.")
    text_pair: str | None = Field(None, description="Column of the second text, for pairs.")
    label: str = Field("label", description="Column of the label.")

    @model_validator(mode="after")
    def _one_origin(self) -> DataSource:
        if (self.path is None) == (self.dataset is None):
            raise ValueError(
                "give exactly one of 'path' and 'dataset'; on the command line replace the whole source, "
                "e.g. 'data.train={path: rows.csv, text: text, label: label}'"
            )
        if self.dataset is not None and self.split is None:
            raise ValueError("'dataset' needs a 'split'")
        if self.path is not None:
            alone = [k for k in ("config", "split", "revision") if getattr(self, k) is not None]
            if alone:
                raise ValueError(f"{', '.join(alone)} belong to 'dataset', not to 'path'")
        return self

    @property
    def title(self) -> str:
        """A short name for messages."""
        if self.path is not None:
            return self.path
        return "/".join(p for p in (self.dataset, self.config, self.split) if p)


@dataclass(frozen=True)
class Example:
    """One labelled row.

    Attributes:
        text: The text.
        pair: The second text, or None.
        label: As the file has it; None where the source has no labels.
        row: Line (jsonl) or record number, from 1.
    """

    text: str
    pair: str | None
    label: Label | None
    row: int

    @property
    def input(self) -> Text:
        """What the tokenizer takes."""
        return self.text if self.pair is None else (self.text, self.pair)

    @property
    def digest(self) -> str:
        """Hash of the texts, case and surrounding blanks ignored; equal rows are duplicates."""
        joined = self.text.strip().lower() + "\x1f" + (self.pair or "").strip().lower()
        return hashlib.sha256(joined.encode(errors="replace")).hexdigest()


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


def read_examples(source: DataSource, labelled: bool = True) -> list[Example]:
    """Read one split.

    Args:
        source: Where from.
        labelled: Whether a missing label makes a row bad.

    Returns:
        The rows in file order.

    Raises:
        InputError: Listing the first 20 bad rows and their count, or what is wrong with the file.
    """
    bad = BadRows(source.title)
    out = []
    for number, row in _rows(source, bad):
        example = _example(source, number, row, labelled, bad)
        if example is not None:
            out.append(example)
    problems = bad.close()
    if not problems and not out:
        problems = [Problem(source.title, "no rows.")]
    if problems:
        raise InputError(problems)
    return out


def _example(
    source: DataSource, number: int, row: dict[str, Any], labelled: bool, bad: BadRows
) -> Example | None:
    wanted = [
        source.text,
        *([source.text_pair] if source.text_pair else []),
        *([source.label] if labelled else []),
    ]
    missing = [c for c in wanted if row.get(c) is None]
    if missing:
        have = [str(k) for k in row]
        bad.add(
            number, f"no column '{missing[0]}'; {nearest(missing[0], have) if have else 'the row is empty'}."
        )
        return None
    text, pair = row[source.text], row[source.text_pair] if source.text_pair else None
    for column, value in ((source.text, text), (source.text_pair, pair)):
        if value is not None and not isinstance(value, str):
            bad.add(number, f"column '{column}' holds {type(value).__name__}, not text.")
            return None
        if value is not None and not is_unicode(value):
            bad.add(number, f"column '{column}' is not Unicode text: it holds half of a surrogate pair.")
            return None
    if not text.strip():
        bad.add(number, f"column '{source.text}' is empty.")
        return None
    label = row.get(source.label)
    if isinstance(label, bool):
        label = int(label)
    if label is not None and not isinstance(label, int | float | str):
        bad.add(number, f"label is {type(label).__name__}, not a number or a name.")
        return None
    if labelled and isinstance(label, str) and not label.strip():
        bad.add(number, f"column '{source.label}' is empty.")
        return None
    return Example(text, pair, label, number)


def _rows(source: DataSource, bad: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
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
