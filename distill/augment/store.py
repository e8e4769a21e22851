"""Copies of rows on disk, in parts: what a killed run has made is not made again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pocketbert.core.disk.files import read_json, write_atomic, write_json
from pocketbert.core.disk.ownership import Contents, lock_beside, remove
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.progress import Meter, say
from pocketbert.distill.augment.augmenter import Augmenter, Row, Texts

DESCRIPTION = "augment.json"
CONTENTS = Contents(DESCRIPTION, ("part-*.jsonl",))
"""Files of a store: a folder that holds anything else is not replaced."""
ROWS = 1000
"""Rows of a part."""


class CopyStore:
    """Copies of rows by their place, in files of some rows each.

    Args:
        folder: Where they are.
        key: Digest of what decides the copies: rows, settings, seed, models.
        rows: How many rows there are.
        at_once: Rows of a part.
    """

    def __init__(self, folder: Path, key: str, rows: int, at_once: int = ROWS) -> None:
        self.folder, self.rows, self.at_once = folder, rows, at_once
        self._about = {"key": key, "rows": rows, "at_once": at_once}

    @property
    def parts(self) -> int:
        """How many files there are in the end."""
        return -(-self.rows // self.at_once)

    def part(self, number: int) -> Path:
        """The file of a part: a line per row, a list of its copies, each a list of one text or two."""
        return self.folder / f"part-{number:06d}.jsonl"

    def fill(self, rows: Sequence[Row], make: Callable[[], Augmenter]) -> None:
        """Make the parts that are missing. A second process that wants the same waits for the first.

        Args:
            rows: All rows.
            make: Called where a part is missing: it loads models.

        Raises:
            InputError: If the folder holds something else.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with lock_beside(self.folder):
            self._open()
            missing = [i for i in range(self.parts) if not self.part(i).is_file()]
            if not missing:
                return
            augmenter = make()
            done = min(self.rows, (self.parts - len(missing)) * self.at_once)
            with Meter("augment", self.rows, done) as meter:
                for number in missing:
                    own = rows[number * self.at_once : (number + 1) * self.at_once]
                    lines = [json.dumps(c, ensure_ascii=False) + "\n" for c in augmenter.copies(own)]
                    write_atomic(self.part(number), "".join(lines))
                    meter.advance(len(own))

    def read(self) -> Iterator[list[Texts]]:
        """Copies of each row, in order."""
        for number in range(self.parts):
            with self.part(number).open(encoding="utf-8", newline="\n") as stream:
                for line in stream:
                    yield [tuple(texts) for texts in json.loads(line)]

    def _open(self) -> None:
        about = self.folder / DESCRIPTION
        if about.is_file() and read_json(about) == self._about:
            return
        if self.folder.exists() and not about.is_file() and any(self.folder.iterdir()):
            raise InputError(
                Problem(
                    str(self.folder), "is there and holds no augmented rows; not replaced.", "Choose another place."
                )
            )
        if about.is_file():
            say(f"  removed copies that were made of other rows or with other settings: {self.folder}")
        remove(self.folder, CONTENTS)
        self.folder.mkdir()
        write_json(about, self._about)
