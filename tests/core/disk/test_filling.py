"""Outputs that keep their place: filled file by file, their sign last, finished by the next command after a kill."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.disk import workspace as module
from pocketbert.core.disk.ownership import FolderContents, claim_folder, remove_listed_files, replace_file
from pocketbert.core.disk.workspace import build_folder, finish_interrupted, list_occupants, open_workspace
from pocketbert.core.errors import InputError

SIGN = "sign.json"
OURS = FolderContents(SIGN, ("*",))
NEW = {SIGN: "new", "a": "new", "sub/b": "new", "sub/deep/c": "new"}
OLD = {SIGN: "old", "a": "old", "gone/d": "old", "sub": "old"}


def files(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}


def write(folder: Path, content: dict[str, str]) -> None:
    for name, text in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that keeps its place."""
    folder = tmp_path / "in" / "place"
    folder.mkdir(parents=True)
    monkeypatch.setattr(module, "keeps_place", lambda path: path == folder)
    return folder


def build(output: Path, content: dict[str, str], recognise: FolderContents = OURS) -> None:
    with build_folder(output, recognise, SIGN) as folder:
        write(folder, content)


def test_an_empty_folder_is_filled(place: Path) -> None:
    number = place.stat().st_ino
    (place / "lost+found").mkdir()
    with build_folder(place, OURS, SIGN) as folder:
        assert folder.is_relative_to(place)
        assert list(place.parent.iterdir()) == [place]
        assert list_occupants(place) == []
        write(folder, NEW)
    assert files(place) == NEW
    assert place.stat().st_ino == number
    assert list_occupants(place) == ["a", SIGN, "sub"]
    assert {p.name for p in place.iterdir()} == {"a", SIGN, "sub", "lost+found"}


def test_an_older_folder_is_replaced_file_by_file(place: Path) -> None:
    write(place, OLD)
    build(place, NEW)
    assert files(place) == NEW
    assert {p.name for p in place.iterdir()} == {"a", SIGN, "sub"}


def test_a_strangers_file_stops_it_before_anything_is_touched(place: Path) -> None:
    known = FolderContents(SIGN, ("a", "gone/*", "sub"))
    write(place, OLD)
    with pytest.raises(InputError, match="late.txt.*nothing was removed"), build_folder(place, known, SIGN) as folder:
        write(folder, NEW)
        (place / "late.txt").write_text("precious")
    assert files(place) == {**OLD, "late.txt": "precious"}


def test_an_error_leaves_the_older_folder(place: Path) -> None:
    write(place, OLD)
    with pytest.raises(KeyError), build_folder(place, OURS, SIGN) as folder:
        write(folder, NEW)
        raise KeyError
    assert files(place) == OLD


def visible(folder: Path) -> dict[str, str]:
    """Files of an output, without those of a workspace in it."""
    return {name: text for name, text in files(folder).items() if not name.startswith(".pocketbert.")}


class Killed(BaseException):
    """The process ends here."""


def dying(call: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    def counted(*args: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return call(*args, **options)

    return counted


@pytest.mark.parametrize("older", [False, True])
def test_a_kill_at_any_call_loses_nothing(place: Path, monkeypatch: pytest.MonkeyPatch, older: bool) -> None:
    deaths = 0
    for count in range(200):
        write(place, OLD if older else {})
        with monkeypatch.context() as patch:
            left = [count]
            for name in ("rename", "replace", "unlink", "rmdir", "fsync", "mkdir"):
                patch.setattr(os, name, dying(getattr(os, name), left))
            patch.setattr(module.Workspace, "discard", lambda own: own.path.exists() and os.fsync(0))
            try:
                build(place, NEW)
            except (Killed, OSError):
                deaths += 1
            else:
                break
        for lock in place.rglob(".lock"):
            assert lock.parent.parent == place
        if (seen := visible(place)).get(SIGN) is not None:  # whenever the sign is there, everything is
            assert seen == (NEW if seen[SIGN] == "new" else OLD)
        finish_interrupted(place)
        assert visible(place) in (NEW, OLD if older else {})
        build(place, NEW)
        assert files(place) == NEW
        for path in sorted(place.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    assert deaths > 10


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EXDEV, errno.EACCES])
@pytest.mark.parametrize("older", [False, True])
def test_a_rename_that_fails_becomes_moving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, older: bool
) -> None:
    output, rename = tmp_path / "out", os.rename
    write(output, OLD if older else {})
    output.mkdir(exist_ok=True)

    def busy(source: Any, destination: Any, **options: Any) -> None:
        if output in (Path(source), Path(destination)):
            raise OSError(number, os.strerror(number), str(source))
        rename(source, destination, **options)

    monkeypatch.setattr(os, "rename", busy)
    build(output, NEW)
    assert files(output) == NEW
    assert {p.name for p in tmp_path.iterdir()} - {"pocketbert-cache"} == {"out"}


def test_files_cross_to_another_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def apart(source: Any, destination: Any, **options: Any) -> None:
        if Path(source).parent != Path(destination).parent:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(source))
        replace(source, destination, **options)

    monkeypatch.setattr(os, "replace", apart)
    with claim_folder(tmp_path / "work", "test folder"):
        (tmp_path / "work" / "a").write_text("1")
        replace_file(tmp_path / "work" / "a", tmp_path / "a")
        assert not (tmp_path / "work" / "a").exists()
    assert files(tmp_path)["a"] == "1"
    assert not list(tmp_path.glob(".a.*"))


def test_only_an_output_that_is_being_filled_loses_files(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="nothing was removed"):
        remove_listed_files(tmp_path / "out", ["thesis.txt"])
    assert (tmp_path / "out" / "thesis.txt").exists()


def test_interrupted_work_in_a_mount_point_is_found_under_another_name(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="full") as full, open_workspace(place, resume="test") as own:
        (own.path / "half").touch()
        raise OSError("full")
    assert f"Unfinished work is kept in {own.path}; the same command continues there." in full.value.__notes__
    other = place.rename(place.with_name("result"))
    monkeypatch.setattr(module, "keeps_place", lambda path: path == other)
    with open_workspace(other, resume="test") as own:
        assert own.resumed
        assert (own.path / "half").exists()
    assert list(other.iterdir()) == []
