"""Answers on stdout or in a file, each with the row that its text came from."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbert.cli.output import json_text, print_answer, print_json
from pocketbert.core.disk.destination import file_destination
from pocketbert.core.disk.files import writing
from pocketbert.core.errors import InputError, Problem, nearest
from pocketbert.core.host.terminal import one_field

if TYPE_CHECKING:
    from pocketbert.core.predict.answers import Answer
    from pocketbert.core.predict.tokenization import Text

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_LINES = ".jsonl"
KINDS = (*_SEPARATORS, _LINES)
PREFIX = "predicted_"
"""How the columns of an answer begin in a table, so that a label to compare with keeps its own name."""


def check_answer_file(path: Path, overwrite: bool, *read: Path) -> Path:
    """Refuse a file for answers that could not be written, before the first text is read.

    Args:
        path: What the user named.
        overwrite: Whether an existing file may be replaced.
        read: Files and folders that are read.

    Returns:
        The file; where `path` is a link, what it leads to.

    Raises:
        InputError: If its kind is unknown, or it exists.
    """
    if path.suffix not in KINDS:
        what = f"'{path.suffix}' is no kind of file for answers; {nearest(path.suffix, KINDS)}."
        raise InputError(Problem("-o/--output", what, f"Name it for example {path.stem or 'answers'}.csv."))
    return file_destination(path, overwrite, *read)


def print_row(text: Text, answer: Answer, other: Mapping[str, Any], top: int, json: bool) -> None:
    """Print the answer to one text.

    Args:
        text: The text, or both texts of a pair.
        answer: What the model answers.
        other: The other columns of the text's row; printed as JSON only.
        top: How many alternatives are shown.
        json: Whether to print JSON.
    """
    shown = text if isinstance(text, str) else list(text)
    if json:
        fields = {"text": shown, **answer.fields(top), "truncated": answer.truncated}
        print_json({**fields, "row": dict(other)} if other else fields)
        return
    text_shown = shown if isinstance(shown, str) else " | ".join(shown)
    print_answer(f"{answer.line(top)}\t{one_field(text_shown)}{'  [truncated]' if answer.truncated else ''}")


def write_answers(path: Path, rows: Sequence[Mapping[str, Any]], answers: Iterable[Answer], top: int) -> None:
    """Write rows with their answers: a table with columns ``predicted_...``, or JSON lines with the field ``answer``.

    Args:
        path: The file, .csv, .tsv or .jsonl; it appears when it is complete.
        rows: The rows, with all their columns.
        answers: One for each row.
        top: How many alternatives are written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path) as file:
        # another column may hold half of a surrogate pair
        text = codecs.getwriter("utf-8")(file, "backslashreplace")
        if path.suffix == _LINES:
            for row, answer in zip(rows, answers, strict=True):
                text.write(json_text({**row, "answer": _fields(answer, top)}) + "\n")
            return
        columns = list(dict.fromkeys(name for row in rows for name in row))
        table = csv.writer(text, delimiter=_SEPARATORS[path.suffix])
        added: list[str] = []
        for row, answer in zip(rows, answers, strict=True):
            fields = {f"{PREFIX}{name}": value for name, value in _fields(answer, top).items()}
            if not added:
                added = list(fields)
                table.writerow([*columns, *added])
            table.writerow([_cell(row.get(c)) for c in columns] + [_cell(fields.get(c)) for c in added])


def _fields(answer: Answer, top: int) -> dict[str, Any]:
    return {**answer.fields(top), "truncated": answer.truncated}


def _cell(value: object) -> object:
    return json_text(value) if isinstance(value, list | dict | bool) else value
