"""What a search measured, kept in a file after each figure, so that an interrupted search measures nothing twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from pocketbert.core.disk.files import read_json, sha256_json, write_json
from pocketbert.core.errors import InputError


class Figure(BaseModel):
    """Anything that is measured once; its class is part of its key."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")


Kept = TypeVar("Kept", bound=Figure)


class Ledger:
    """Figures by what decides them.

    Args:
        path: The file; read where it is there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._figures: dict[str, object] = {}
        if path.is_file():
            try:
                content = read_json(path)
            except InputError:
                content = None  # a process was killed by the machine; everything is measured again
            self._figures = dict(content) if isinstance(content, dict) else {}

    def recall(self, kind: type[Kept], decides: object, measure: Callable[[], Kept]) -> Kept:
        """Return a figure, measured where the ledger does not have it.

        Args:
            kind: Its class.
            decides: Everything that decides it, such as digests of files and rows; plain values.
            measure: Measures it.
        """
        key = sha256_json([kind.__name__, decides])
        if key in self._figures:
            try:
                return kind.model_validate(self._figures[key])
            except ValidationError:
                del self._figures[key]  # another version wrote it
        found = measure()
        self._figures[key] = json.loads(found.model_dump_json())  # NaN as text, which reads back
        write_json(self.path, self._figures)
        return found
