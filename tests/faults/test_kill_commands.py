"""pack and verify, killed at random moments and at renames and fsyncs: the same bytes, nothing foreign touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support import kills


def campaign(*arguments: object) -> str:
    """Run a campaign in a process of its own, which forks; what it printed."""
    ended = subprocess.run(
        [sys.executable, kills.__file__, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert ended.stdout.endswith("\n0 problems\n")
    return ended.stdout


def test_pack_and_verify_killed_nine_times(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "k").mkdir()
    said = campaign("--kills", 9, "--finished", finished, "-o", tmp_path / "k")
    assert "'pack call'" in said
    assert "'pack-in-place call'" in said


@pytest.mark.slow
def test_every_command_killed_a_hundred_times(tmp_path: Path) -> None:
    (tmp_path / "k").mkdir()
    print(campaign("--kills", 108, "-o", tmp_path / "k"))
