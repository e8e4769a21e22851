"""Answers on stdout: tables for people, JSON for programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

from pocketbert.core.disk.encoding import is_unicode
from pocketbert.core.host.terminal import one_field, visible

_FIGURE = re.compile(r"[-+–]?\d|[-–]?$")
"""How a cell with a number begins, or one that has none."""


def print_json(value: Any) -> None:
    """One JSON value on one line, the last thing on stdout."""
    print(json_text(value))


def json_text(value: Any) -> str:
    """Write a value as JSON, readable as it is; where it holds half a surrogate pair, which no encoding has, in ASCII."""
    text = json.dumps(value, ensure_ascii=False)
    return text if is_unicode(text) else json.dumps(value)


def print_answer(line: str) -> None:
    """Print fields separated by tabs; on a terminal without the characters that it would obey."""
    print("\t".join(visible(part) for part in line.split("\t")) if sys.stdout.isatty() else line)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """A table on a terminal, tab-separated lines elsewhere."""
    if not sys.stdout.isatty():
        for row in (header, *rows):
            print("\t".join(one_field(cell) for cell in row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left")
    for i, name in enumerate(header):
        figures = i > 0 and all(_FIGURE.match(row[i]) for row in rows)
        table.add_column(name, justify="right" if figures else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))  # not as markup
    Console().print(table)
