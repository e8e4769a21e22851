"""Store what was checked of an artefact folder on this machine, so that the next process reads less of it.

`CheckedFiles` contains, for one folder, the digests of its files with their sizes, time stamps and inodes, and the
checks that passed for these digests. A file that was changed, replaced or touched is read again. The digest of a file
that is younger than two seconds is not stored, since a change within the same tick of the clock would leave its time
stamp as it is. What another user wrote into a shared cache is ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any

from pocketbert.core.artefacts import ARTEFACTS_FILE, FolderListing
from pocketbert.core.disk.files import sha256_bytes, sha256_json, sha256_path, write_json
from pocketbert.runtime.selftest import result_cache_file

_KIND = "checked"
"""Folder in the user's cache."""
_MOST_FOLDERS = 200
"""Number of files that are kept in that folder; beyond it, the oldest are deleted."""
_FILE_NAME = re.compile(r"[0-9a-f]{64}\.json")
_MOST_CHECKS = 32
_YOUNG_NS = 2_000_000_000
_MOST_BYTES = 16 << 20
"""Largest artifacts.json that `CheckedFiles.read_listing` reads itself; `read_artefacts` refuses larger ones."""
_CODE = Path(__file__)


class CheckedFiles:
    """Digests of one artefact folder's files, and the checks that they passed, on this machine.

    They are read from the user's cache, completed in this process, and written back by `save`.

    Args:
        folder: The artefact folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: Path | None = None
        if _CODE.is_file():  # not in a frozen program, which remembers nothing: another version of it may check more
            self._file = result_cache_file(_KIND, sha256_json([str(folder.absolute()), str(_CODE), _stamp(_CODE)]))
        known = _read(self._file)
        self._digests: dict[str, Any] = known.get("digests", {})
        self._checks: list[str] = known.get("checks", [])
        self._listing: dict[str, Any] = known.get("listing", {})
        self._changed = False

    def digest(self, path: Path) -> str:
        """Return the sha256 of a file: the stored one if the file is unchanged since, else computed. A folder's is always computed."""
        if not path.is_file():  # a package is a folder, whose files have time stamps of their own
            return sha256_path(path)
        name, stamp, now = str(path.relative_to(self._folder)), _stamp(path), time.time_ns()
        known = self._digests.get(name)
        if isinstance(known, list) and known[:-1] == stamp and isinstance(known[-1], str):
            return known[-1]
        digest = sha256_path(path)
        if _stamp(path) == stamp and max(stamp[1:3]) < now - _YOUNG_NS:
            self._digests[name], self._changed = [*stamp, digest], True
        return digest

    def passed(self, check: str) -> bool:
        """Return whether a check passed before. `check` names it with the digests of all files that it reads."""
        return check in self._checks

    def remember(self, check: str) -> None:
        """Note that a check passed. `save` stores it."""
        self._checks, self._changed = [*self._checks, check][-_MOST_CHECKS:], True

    def read_listing(self) -> FolderListing:
        """Read artifacts.json; if its content was validated before, return the listing that was stored then.

        Raises:
            InputError: If artifacts.json is missing or invalid.
        """
        path = self._folder / ARTEFACTS_FILE
        content = path.read_bytes() if path.is_file() and path.stat().st_size <= _MOST_BYTES else b""
        digest = sha256_bytes(content)
        if content and self._listing.get("of") == digest:
            with contextlib.suppress(ValueError, KeyError, TypeError):  # another version wrote it, or it is damaged
                return FolderListing.from_dict(self._listing["listing"])
        from pocketbert.core.artefacts import read_artefacts

        listing = FolderListing.of(read_artefacts(self._folder))
        if content and path.read_bytes() == content:
            self._listing, self._changed = {"of": digest, "listing": listing.to_dict()}, True
        return listing

    def save(self) -> None:
        """Write what is new into the user's cache, if it can be written, and keep only the newest folders there."""
        if self._file is None or not self._changed:
            return
        with contextlib.suppress(OSError):  # a read-only home only means that the files are read again
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._file, {"digests": self._digests, "checks": self._checks, "listing": self._listing})
            own = [file for file in self._file.parent.iterdir() if _FILE_NAME.fullmatch(file.name)]
            files = sorted(own, key=lambda file: file.lstat().st_mtime_ns)
            if len(files) > _MOST_FOLDERS:
                from pocketbert.core.disk.ownership import remove_named_files

                remove_named_files(files[:-_MOST_FOLDERS], _FILE_NAME)


def _stamp(path: Path) -> list[int]:
    """Return the numbers that show whether a file changed: size, two times of change, inode and device.

    The times are those at which the content and the directory entry changed.
    """
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


def _read(file: Path | None) -> dict[str, Any]:
    """Read the stored checks.

    Returns an empty result if there are none, if they are damaged, or if another user than this one and root wrote
    them.
    """
    if file is None:
        return {}
    try:
        with file.open("rb") as stream:
            if os.fstat(stream.fileno()).st_uid not in (os.getuid(), 0):
                return {}
            content = json.load(stream)
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict):
        return {}
    kinds = {"digests": dict, "checks": list, "listing": dict}
    return content if all(isinstance(content.get(name), kind) for name, kind in kinds.items()) else {}
