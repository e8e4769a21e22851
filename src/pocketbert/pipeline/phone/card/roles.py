"""What became of the weights of each role in the smaller files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pocketbert.core.artefacts import RoleRow, in_one_line
from pocketbert.pipeline.phone.card.plain import plain


def render_roles(tables: Mapping[str, Sequence[RoleRow]]) -> str:
    """Write a table of each smaller file, folded where the recipe chose no roles in it.

    Args:
        tables: Rows by path of the file; nothing is written without any.
    """
    if not tables:
        return ""
    parts = ["## Weights by role"]
    for path, rows in tables.items():
        table = _table(rows)
        if any(r.chosen for r in rows):
            parts.append(f"`{path}`:\n\n{table}")
        else:
            parts.append(f"<details><summary>{path}: {in_one_line(rows)}</summary>\n\n{table}\n\n</details>")
    return "\n\n".join(parts)


def _table(rows: Sequence[RoleRow]) -> str:
    head = ["| role | scheme | stored as | weights | bytes | |", "|---|---|---|---:|---:|---|"]
    return "\n".join([*head, *map(_row, rows)])


def _row(row: RoleRow) -> str:
    if not row.weights:
        return f"| {row.role} | – | – | – | – | {plain(row.note)} |"
    title, note = plain(row.title), plain(row.note)
    return f"| {title} | {row.made} | {row.stored} | {row.weights} | {row.bytes:,} | {note} |"
