"""The fixtures of the tiny task, small full disks, and locks that another process holds."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.fixtures import (
    cli,
    finished,
    finished_tflite,
    pb,
    phone,
    run_copy,
    task,
)


class Disk:
    """A file system of its own, small enough to be filled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def leave_free(self, kib: int) -> None:
        """Fill the disk but for so many KiB."""
        import os

        (self.path / "ballast").unlink(missing_ok=True)
        have = os.statvfs(self.path)
        with (self.path / "ballast").open("wb") as stream:
            stream.write(b"\0" * max(0, have.f_bavail * have.f_frsize - kib * 1024))

    def make_room(self) -> None:
        """Empty it again."""
        (self.path / "ballast").unlink()

    def lock_up(self) -> None:
        """Make it read-only."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.path)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A tmpfs of 8 MiB; skips where mounting is not allowed."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a full or read-only disk needs the right to mount a tmpfs: {mounted.stderr.strip()}")
    yield Disk(path)
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def held() -> Iterator[Callable[[Path], None]]:
    """`held(path)`: another process holds this lock file until the test ends."""
    import sys

    holders = []
    code = "import sys; from filelock import FileLock; lock = FileLock(sys.argv[1]); lock.acquire(); print('held', flush=True); sys.stdin.read()"

    def hold(path: Path) -> None:
        holder = subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        holders.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"

    yield hold
    for holder in holders:
        holder.communicate("")
