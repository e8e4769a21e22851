"""Folders that tests compare, and folders that are built once for all test processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes; the empty lock file left out."""
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != ".lock"
    }


def common_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the temporary folder that all test processes have in common."""
    base = factory.getbasetemp()
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


@contextmanager
def once(factory: pytest.TempPathFactory, name: str) -> Iterator[tuple[Path, bool]]:
    """A folder that the first process to come builds for all of them: its path, and whether it is there."""
    root = common_folder(factory)
    with FileLock(root / f"{name}.lock"):
        done = root / f"{name}.done"
        yield root / name, done.is_file()
        done.touch()
