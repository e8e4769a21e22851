"""Print results on stdout: tables for people, JSON for programs."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbert.core.host.terminal import escape_control_characters, escape_separators

if TYPE_CHECKING:
    from pocketbert.core.artefacts import Artefacts

NO_VALUE = "-"
"""A table's cell without a figure."""
_FIGURE = re.compile(r"[-+–]?\d|[-–]?$")
"""Matches the start of a cell that holds a number, or a cell without one."""


def print_json(value: Any) -> None:
    """Print a value as one line of JSON on stdout."""
    print(json_text(value))


def json_text(value: Any) -> str:
    """Return a value as JSON text; non-ASCII characters are escaped only if one is half a surrogate pair."""
    from pocketbert.core.disk.files import is_unicode

    text = json.dumps(value, ensure_ascii=False)
    return text if is_unicode(text) else json.dumps(value)


def print_answer(line: str) -> None:
    """Print a line of tab-separated fields; on a terminal, control characters in them are escaped."""
    print("\t".join(escape_control_characters(part) for part in line.split("\t")) if sys.stdout.isatty() else line)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print header and rows as a table on a terminal, else as tab-separated lines."""
    if not sys.stdout.isatty():
        for row in (header, *rows):
            print("\t".join(escape_separators(cell) for cell in row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left")
    for i, name in enumerate(header):
        figures = i > 0 and all(_FIGURE.match(row[i]) for row in rows)
        table.add_column(name, justify="right" if figures else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(escape_control_characters(cell)) for cell in row))  # not as markup
    Console().print(table)


def print_folder(folder: Path, json: bool) -> None:
    """Print the files of a new artefact folder with size and scores, and suggest commands to run next.

    For a folder that was packed for an app, its total size and where its golden rows are follow instead.

    Args:
        folder: The artefact folder.
        json: Whether to print one line of JSON instead, with the paths only.
    """
    from pocketbert.core.artefacts import read_artefacts
    from pocketbert.core.host.progress import print_note
    from pocketbert.core.metrics import METRICS

    artefacts = read_artefacts(folder)
    if json:
        print_json({"folder": str(folder), "files": [f.path for f in artefacts.models()]})
        return
    for record in artefacts.models():
        scores = [f"  {s.metric} {METRICS[s.metric].format(s.value)} on {n}" for n, s in record.scores.items()]
        size = f"{record.bytes / 1e6:,.1f} MB"
        print(f"{folder}/{record.path}  {size}  {record.scheme}{''.join(scores)}{'  (default)' * record.default}")
    for path, reason in artefacts.absent.items():
        print(f"not written: {path}: {reason}")
    if artefacts.packed_for is None:
        print(f"model card: {folder}/README.md (its first table says which file to take)")
        if (folder / "report.html").is_file():
            print(f"report:     {folder}/report.html")
        for line in _next_commands(folder, artefacts):
            print_note(line)
        return
    print(
        f"for {artefacts.packed_for}: {sum(r.bytes for r in artefacts.files):,} bytes in {len(artefacts.files) + 1} files"
    )
    print(f"golden rows hold texts of your data and are part of the app: {folder}/golden.jsonl")


def example_texts(artefacts: Artefacts) -> str:
    """Return the arguments of `predict` for one example input of a model: a text, a pair, or a question with choices."""
    from pocketbert.core.tasks import TaskName

    if artefacts.task is TaskName.MULTIPLE_CHOICE:
        return '"A QUESTION" "ONE CHOICE" "ANOTHER CHOICE"'
    return '--text-pair second "FIRST TEXT" "SECOND TEXT"' if artefacts.pair else '"A TEXT"'


def _next_commands(folder: Path, artefacts: Artefacts) -> list[str]:
    """Return lines that suggest commands to run next with a new artefact folder."""
    from pocketbert.core.types import Format

    place = shlex.quote(str(folder))
    scored = any(r.scores for r in artefacts.models())
    lines = [] if scored else [f"Score it: pocketbert verify -m {place} --data ROWS.csv --record"]
    if artefacts.form is not None:  # predict needs a file with further columns, and apps take text only
        return lines
    made_for = [
        f"{r.path} ({r.runtime})" for r in artefacts.models() if r.runtime is not None and r.runtime.accelerator
    ]
    platform = "android" if any(r.format is not Format.COREML for r in artefacts.models()) else "ios"
    also = f", and copy {', '.join(made_for)} beside its files: pack leaves these out" if made_for else ""
    return [
        f"Try it: pocketbert predict -m {place} {example_texts(artefacts)}",
        *lines,
        f"Carry it in an app: pocketbert pack -m {place} -o ASSETS --for {platform}{also}",
    ]
