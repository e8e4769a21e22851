"""What a finished run leaves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pocketbert.core.host.notebook import html_table


@dataclass(frozen=True, repr=False)
class RunResult:
    """The files and figures that a run made.

    Attributes:
        folder: The run folder.
        phone: The artefact folder, if it was packed.
        report: The HTML page, if it was written.
        header: Column titles of the closing table.
        table: Its rows.
    """

    folder: Path
    phone: Path | None
    report: Path | None
    header: list[str]
    table: list[list[str]]

    def __repr__(self) -> str:
        return f"<RunResult of {len(self.table)} models, folder={str(self.folder)!r}, phone={str(self.phone)!r}>"

    def _repr_html_(self) -> str:
        return html_table(self.header, self.table, str(self.phone or self.folder), self.report)

    def to_dict(self) -> dict[str, Any]:
        """Folders as texts, and the closing table as one mapping for each model."""
        places = {name: str(p) if (p := getattr(self, name)) else None for name in ("folder", "phone", "report")}
        return {**places, "table": [dict(zip(self.header, row, strict=True)) for row in self.table]}
