"""The list of commands in `pocketbert --help`, in groups."""

from __future__ import annotations

from typing import Any

import typer.core

CHAIN = "The whole chain"
STEPS = "Single steps"
RESULTS = "Results"
HELPERS = "Helpers"


class GroupedCommands(typer.core.TyperGroup):
    """List commands under the title that each was registered with (`rich_help_panel`).

    Typer itself does that only in framed help, which takes three times as long to start.
    """

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section for each title, in the order in which the titles first occur."""
        commands = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        limit = formatter.width - 6 - max(len(name) for name, _ in commands)
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in commands:
            title = getattr(command, "rich_help_panel", None) or HELPERS
            sections.setdefault(str(title), []).append((name, command.get_short_help_str(limit)))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)
