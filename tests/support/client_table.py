"""The table of docs/clients.md: how far each client is from PocketBERT."""

from __future__ import annotations

from collections.abc import Sequence

from pocketbert.core.tasks import TaskName

CLIENTS = (
    "transformers, torch",
    "optimum",
    "sentence-transformers",
    "onnxruntime, int8",
    "LiteRT, int8",
    "transformers.js",
    "MediaPipe",
)
"""Columns of the table in docs/clients.md."""


def table(notes: Sequence[tuple[str, str, str, float | None]]) -> list[str]:
    """Lines of Markdown: a row per task, a column per client, in a cell a figure per file in the order of the tests."""
    cells: dict[tuple[str, str], dict[str, float | None]] = {}
    for client, task, file, difference in notes:
        cell = cells.setdefault((task, client), {})
        before = cell.get(file)
        cell[file] = difference if before is None or difference is None else max(before, difference)
    clients = [c for c in CLIENTS if any(c == seen for _, seen in cells)]
    lines = ["| task | " + " | ".join(clients) + " |", "|---" * (len(clients) + 1) + "|"]
    for task in (t.value for t in TaskName):
        if any(task == seen for seen, _ in cells):
            row = [_cell(cells.get((task, client), {})) for client in clients]
            lines.append(f"| {task} | " + " | ".join(row) + " |")
    return lines


def _cell(figures: dict[str, float | None]) -> str:
    if not figures:
        return "–"
    known = [d for d in figures.values() if d is not None]
    return ", ".join(f"{d:.1e}" if d else "0" for d in known) or "same"
