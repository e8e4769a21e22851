"""A process that is killed between making a temporary folder and marking it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketbert.core.disk.ownership import MARKER
from pocketbert.core.disk.workspace import (
    _list_unmarked,
    _lock_unmarked,
    _locked_new_folder,
    list_occupants,
    open_workspace,
    remove_interrupted,
)

PREFIX = ".out."
LEFT = ".out.abcd_123.pocketbert-tmp"


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def left(folder: Path, marker: str | None) -> Path:
    path = folder / LEFT
    path.mkdir()
    if marker is not None:
        (path / MARKER).write_text(marker)
    return path


@pytest.mark.parametrize("marker", [None, ""])
@pytest.mark.parametrize("resume", ["", "test"])
def test_it_is_removed_by_the_next_command(tmp_path: Path, marker: str | None, resume: str) -> None:
    path = left(tmp_path, marker)
    with open_workspace(tmp_path / "out", resume=resume) as own:
        assert not own.resumed
        assert not path.exists()
    assert names(tmp_path) == set()


def test_it_is_removed_with_what_was_interrupted(tmp_path: Path) -> None:
    left(tmp_path, None)
    remove_interrupted(tmp_path / "out", "test")
    assert names(tmp_path) == set()


def test_inside_an_output_it_is_no_stranger(tmp_path: Path) -> None:
    (tmp_path / "out" / ".pocketbert.abcd_123.pocketbert-tmp").mkdir(parents=True)
    (tmp_path / "out" / ".pocketbert.mine").mkdir()
    assert list_occupants(tmp_path / "out") == [".pocketbert.mine"]
    with open_workspace(tmp_path / "out"):
        pass
    assert names(tmp_path / "out") == {".pocketbert.mine"}


@pytest.mark.parametrize("name", [".out.abcdefgh", ".out.short.pocketbert-tmp", ".other.abcdefgh.pocketbert-tmp"])
def test_an_empty_folder_of_another_name_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with open_workspace(tmp_path / "out"):
        pass
    assert names(tmp_path) == {name}


@pytest.mark.parametrize(("name", "text"), [("thesis.txt", ""), (MARKER, "not by PocketBERT")])
def test_a_folder_that_holds_anything_stays(tmp_path: Path, name: str, text: str) -> None:
    path = left(tmp_path, None)
    (path / name).write_text(text)
    assert _list_unmarked(tmp_path, PREFIX) == []
    with open_workspace(tmp_path / "out"):
        pass
    assert (path / name).read_text() == text


def test_that_of_a_running_process_stays(tmp_path: Path) -> None:
    with _locked_new_folder(tmp_path, PREFIX) as path:
        assert _list_unmarked(tmp_path, PREFIX) == [path]
        with pytest.raises(BlockingIOError, match="running process"), _lock_unmarked(path):
            pytest.fail("the block must not begin")
        with open_workspace(tmp_path / "out"):
            assert path.is_dir()
    with _lock_unmarked(path):
        assert path.is_dir()


def test_an_error_in_the_block_is_not_swallowed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="mine"), _locked_new_folder(tmp_path, PREFIX):
        raise FileNotFoundError("mine")
