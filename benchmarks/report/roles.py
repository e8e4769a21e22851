"""The report's part on roles: what each smaller file makes of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pocketbert.benchmarks.report.data import ModelRow
from pocketbert.core.artefacts.role_table import RoleRow, in_one_line


@dataclass(frozen=True)
class FileRoles:
    """The table of one file.

    Attributes:
        name: The file.
        line: The table in one line.
        rows: The table.
        chosen: Whether the recipe chose some of it; the other tables are folded.
    """

    name: str
    line: str
    rows: Sequence[RoleRow]
    chosen: bool


def file_roles(rows: Sequence[ModelRow]) -> list[FileRoles]:
    """The tables of the files that have one, those with choices first."""
    tables = [
        FileRoles(row.name, in_one_line(row.roles), row.roles, any(r.chosen for r in row.roles))
        for row in rows
        if row.roles
    ]
    return sorted(tables, key=lambda t: not t.chosen)
