"""The guard around commands that write sees what it is there for, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pocketbert import api
from pocketbert.pipeline import run as demo
from support.canaries import is_ours


def left(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.name != "pocketbert-cache"]


def test_a_command_that_removes_a_sibling_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(output: Path) -> None:
        shutil.rmtree(output.parent / ".other.old", ignore_errors=True)

    (tmp_path / "deep").mkdir()
    monkeypatch.setattr(demo, "write_corpus", careless)
    with pytest.raises(pytest.fail.Exception, match=r"\.other\.old/canary"):
        api.data_demo(tmp_path / "deep" / "other")
    assert left(tmp_path / "deep") == []


def test_a_process_that_changes_a_file_of_its_parent_is_seen(tmp_path: Path) -> None:
    code = "import pathlib; [p.write_text('') for p in pathlib.Path('.').glob('canary-*')]"
    with pytest.raises(pytest.fail.Exception, match=r"removed or changed what is not its own: \S+/canary-\S+$"):
        subprocess.run([sys.executable, "-c", code, "pocketbert", "-o", "out"], check=True, cwd=tmp_path)
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("/home/me/pocketbert/.venv/bin/pocketbert run r.yaml", True),
        ("/home/me/pocketbert/.venv/bin/python -m pocketbert run", True),
        ("/home/me/pocketbert/.venv/bin/python /tmp/phone/coreml/benchmark_on_mac.py -o x.json", False),
        ("", False),
    ],
)
def test_a_checkout_in_a_folder_of_that_name_runs_other_programs_without_canaries(line: str, ours: bool) -> None:
    assert is_ours(line.split()) is ours
