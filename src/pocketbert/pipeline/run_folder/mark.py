"""What a run folder remembers of a step that has ended."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.disk.ownership import remove
from pocketbert.core.types import Status
from pocketbert.pipeline.run_folder.made_from import MadeFrom


class Mark(BaseModel):
    """What is remembered of a step that has ended.

    Attributes:
        name: Name of the step.
        made_from: What its result was made from.
        status: Passed or failed.
        files: sha256 of each file of its output by its path in it; see `pocketbert.core.disk.files.digests`.
        failures: Gates that failed.
        wall_s: Seconds it took, in the process that finished it.
        cpu_s: CPU seconds of that process and its children.
    """

    name: str
    made_from: MadeFrom
    status: Status
    files: dict[str, str] = {}
    failures: list[str] = []
    wall_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def hash(self) -> str:
        """Identity of the result."""
        return self.made_from.hash


class Marks:
    """The marks of a run folder, one file per step.

    Args:
        folder: Where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> Mark | None:
        """What is remembered of a step."""
        path = self.folder / f"{name}.json"
        return Mark.model_validate(read_json(path)) if path.is_file() else None

    def write(self, mark: Mark) -> None:
        """Remember a step."""
        write_json(self.folder / f"{mark.name}.json", mark.model_dump(mode="json"))

    def remove(self, name: str) -> None:
        """Forget a step."""
        remove(self.folder / f"{name}.json")

    def all(self) -> list[Mark]:
        """All marks, in order of their steps' completion."""
        paths = sorted(self.folder.glob("*.json"), key=lambda p: p.stat().st_mtime)
        return [Mark.model_validate(read_json(p)) for p in paths]
