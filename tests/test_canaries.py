"""The guard around commands that write sees what it is there for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pocketbert import api
from pocketbert.pipeline import run as demo
from support.canaries import BESIDE, canaries, is_ours, outputs_of


def left(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.name != "pocketbert-cache"]


def test_a_command_that_removes_a_sibling_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(output: Path) -> None:
        shutil.rmtree(output.parent / f".{output.name}.old", ignore_errors=True)

    monkeypatch.setattr(demo, "write_corpus", careless)
    with pytest.raises(pytest.fail.Exception, match=r"\.out\.old/canary"):
        api.data_demo(tmp_path / "out")
    assert left(tmp_path) == []


def test_a_process_that_changes_a_file_of_its_parent_is_seen(tmp_path: Path) -> None:
    code = "import pathlib; [p.write_text('') for p in pathlib.Path('.').glob('canary-*')]"
    with pytest.raises(pytest.fail.Exception, match=r"removed or changed what is not its own: \S+/canary-\S+$"):
        subprocess.run([sys.executable, "-c", code, "pocketbert", "-o", "out"], check=True, cwd=tmp_path)
    assert left(tmp_path) == []


@pytest.mark.parametrize("name", BESIDE)
def test_every_canary_is_counted(tmp_path: Path, name: str) -> None:
    with pytest.raises(pytest.fail.Exception), canaries([tmp_path / "out"]):
        [canary] = (tmp_path / name.format("out")).iterdir()
        canary.unlink()
    assert left(tmp_path) == []


def test_commands_that_keep_to_their_output_pass(tmp_path: Path) -> None:
    files = api.data_demo(tmp_path / "deep" / "out")
    assert all(f.is_file() for f in files.values())
    assert left(tmp_path / "deep") == ["out"]


def test_outputs_are_found_in_command_lines() -> None:
    assert outputs_of(["run", "r.yaml", "-o", "a", "--output", "b", "--output=c"]) == [Path("a"), Path("b"), Path("c")]
    assert outputs_of(["doctor", "-o"]) == []


def test_a_checkout_in_a_folder_of_that_name_runs_other_programs_without_canaries() -> None:
    assert is_ours(["/home/me/pocketbert/.venv/bin/pocketbert", "run", "r.yaml"])
    assert is_ours(["/home/me/pocketbert/.venv/bin/python", "-m", "pocketbert", "run"])
    assert is_ours(["python", "-c", "from pocketbert import api"])
    assert not is_ours(
        ["/home/me/pocketbert/.venv/bin/python", "/tmp/phone/coreml/benchmark_on_mac.py", "-o", "x.json"]
    )
    assert not is_ours([])
