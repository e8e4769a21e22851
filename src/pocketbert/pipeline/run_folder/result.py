"""What a finished run leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbert.core.host.notebook import html_table

if TYPE_CHECKING:
    from pocketbert.benchmarks.report import ModelFigures


@dataclass(frozen=True, repr=False)
class RunResult:
    """The files and figures that a run made.

    Attributes:
        folder: The run folder.
        phone: The artefact folder, if it was packed.
        report: The HTML page, if it was written.
        header: Column titles of the closing table.
        table: Its rows.
        models: The figures of the same models as numbers.
    """

    folder: Path
    phone: Path | None
    report: Path | None
    header: list[str]
    table: list[list[str]]
    models: Sequence[ModelFigures] = ()

    def __repr__(self) -> str:
        return f"<RunResult of {len(self.table)} models, folder={str(self.folder)!r}, phone={str(self.phone)!r}>"

    def _repr_html_(self) -> str:
        return html_table(self.header, self.table, str(self.phone or self.folder), self.report)

    def to_dict(self) -> dict[str, Any]:
        """Folders as texts, and the figures of each model as numbers, None where there is none."""
        places = {name: str(p) if (p := getattr(self, name)) else None for name in ("folder", "phone", "report")}
        return {**places, "models": [asdict(m) for m in self.models]}
