"""Folders built beside their output, or in it: whole or not there, found again after a kill, never anybody else's."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.disk import workspace
from pocketbert.core.disk.ownership import LOCK_FILE, MARKER, FolderContents, claim_folder, try_lock, write_marker
from pocketbert.core.disk.workspace import (
    build_folder,
    finish_interrupted,
    list_occupants,
    open_workspace,
    remove_interrupted,
)
from pocketbert.core.errors import InputError, MachineError

SIGN = "sign.json"
OURS = FolderContents(SIGN, ("*",))
NEW = {SIGN: "new", "a": "new", "sub/deep/b": "new"}
OLD = {SIGN: "old", "a": "old", "gone/d": "old", "sub": "old"}


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills of processes, which these tests are about, lose nothing that was written; thousands of fsyncs take a minute."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()} - {"pocketbert-cache"}


def files(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}


def write(folder: Path, content: dict[str, str]) -> None:
    for name, text in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def build(output: Path, content: dict[str, str], recognise: FolderContents = OURS) -> None:
    with build_folder(output, recognise, SIGN) as folder:
        write(folder, content)


def leave_interrupted(output: Path, of: str = "", old: bool = False) -> Path:
    """Leave beside an output what a killed process leaves."""
    left = output.parent / f".{output.name}.k1ll3d__"
    left.mkdir()
    write_marker(left, "temporary folder", output=output.name, of=of)
    (left / LOCK_FILE).touch()
    write(left, {"half": "x"} | ({"old/a": "the older one"} if old else {}))
    return left


def dying(call: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    """`call`, as long as the count is not used up; then the process ends."""

    def counted(*args: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return call(*args, **options)

    return counted


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    output = tmp_path / "deep" / ("x" * 250)
    with build_folder(output) as folder:
        write(folder, {"sub/a": "1"})
        assert not output.exists()
        [own] = names(output.parent)
        assert re.fullmatch(r"\.x{100}\.[a-z0-9_]{8}\.pocketbert-tmp", own)
    assert files(output) == {"sub/a": "1"}
    assert names(output.parent) == {output.name}


def test_an_older_folder_stays_until_the_new_one_is_whole_and_an_error_leaves_nothing(tmp_path: Path) -> None:
    output = tmp_path / "out"
    write(output, OLD)
    with pytest.raises(KeyboardInterrupt), build_folder(output, OURS):
        raise KeyboardInterrupt
    assert files(output) == OLD
    with build_folder(output, OURS) as folder:
        write(folder, NEW)
    assert files(output) == NEW
    assert names(tmp_path) == {"out"}
    with pytest.raises(RuntimeError, match="no"), build_folder(tmp_path / "new") as folder:
        write(folder, NEW)
        raise RuntimeError("no")
    assert names(tmp_path) == {"out"}


def test_a_folder_of_the_users_is_not_replaced(tmp_path: Path) -> None:
    output, known = tmp_path / "out", FolderContents("old", ())
    write(output, {"old": "1", "thesis.txt": "1"})
    for recognise in ({}, {"find_foreign": known}):
        with pytest.raises(InputError, match="thesis.txt.*nothing was removed"), build_folder(output, **recognise):
            pytest.fail("the block must not begin")
    (output / "thesis.txt").unlink()
    with pytest.raises(InputError, match=r"\(late.txt\)"), build_folder(output, known):
        (output / "late.txt").write_text("put there while the new one was built")
    assert names(output) == {"old", "late.txt"}
    assert names(tmp_path) == {"out"}


@pytest.mark.parametrize(
    "name", [".out.old", ".out.partial", ".out.run", ".out.abcdefgh", ".out.pocketbert-tmp", ".out.lock"]
)
def test_strangers_beside_the_output_stay(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, {"thesis.txt": "precious"})
    with build_folder(tmp_path / "out") as folder:
        write(folder, NEW)
    with open_workspace(tmp_path / "out", resume="test") as own:
        assert not own.resumed
    remove_interrupted(tmp_path / "out", "test")
    assert files(tmp_path / name) == {"thesis.txt": "precious"}
    assert names(tmp_path) == {name, "out"}


# What killed processes leave


def test_what_a_killed_process_left_is_removed_and_an_older_folder_put_back(tmp_path: Path) -> None:
    left, of_another = leave_interrupted(tmp_path / "out"), leave_interrupted(tmp_path / "other")
    with build_folder(tmp_path / "out") as folder:
        assert names(folder) == set()
        assert not left.exists()
    assert names(tmp_path) == {"out", of_another.name}
    leave_interrupted(tmp_path / "two", old=True)  # between two renames
    with pytest.raises(KeyError), build_folder(tmp_path / "two", FolderContents("a", ())):
        raise KeyError
    assert files(tmp_path / "two") == {"a": "the older one"}
    assert names(tmp_path) == {"out", "two", of_another.name}


def test_interrupted_work_is_taken_up(tmp_path: Path) -> None:
    left = leave_interrupted(tmp_path / "out", "test")
    with pytest.raises(OSError, match="full"), open_workspace(tmp_path / "out", resume="test") as own:
        assert own.resumed
        assert own.path == left
        raise OSError("full")
    assert names(left) == {"half", LOCK_FILE, MARKER}  # for the next try
    with open_workspace(tmp_path / "out", resume="another verb") as own:
        assert not own.resumed
        assert own.path != left
    with open_workspace(tmp_path / "out", resume="test") as own:
        assert (own.path / "half").read_text() == "x"
    assert names(tmp_path) == set()


def test_of_several_interrupted_the_newest_is_taken_up(tmp_path: Path) -> None:
    first = leave_interrupted(tmp_path / "out", "test")
    older = first.rename(tmp_path / ".out.00000000")
    leave_interrupted(tmp_path / "out", "test")
    os.utime(older, (1, 1))
    with open_workspace(tmp_path / "out", resume="test") as own:
        assert own.path == first
        assert not older.exists()


def test_two_processes_do_not_make_the_same_output(tmp_path: Path) -> None:
    with open_workspace(tmp_path / "out", resume="test") as own:
        write(own.path, {"half": "x"})
        with (
            pytest.raises(MachineError, match="another process is working on"),
            open_workspace(tmp_path / "out", resume="test"),
        ):
            pytest.fail("the block must not begin")
        remove_interrupted(tmp_path / "out", "test")
        assert names(tmp_path) == {own.path.name}
        assert (own.path / "half").exists()


def test_a_running_build_and_a_link_that_looks_like_one_are_left_alone(tmp_path: Path) -> None:
    running, real = leave_interrupted(tmp_path / "out"), leave_interrupted(tmp_path / "elsewhere")
    write_marker(real, "temporary folder", output="out", of="")
    (tmp_path / ".out.12345678").symlink_to(real)
    with claim_folder(running, "temporary folder"):
        build(tmp_path / "out", NEW)
        assert (running / "half").exists()
    assert (tmp_path / ".out.12345678").is_symlink()
    assert (real / "half").exists()


@pytest.mark.parametrize("kill", range(5))
def test_a_kill_while_a_workspace_is_removed_leaves_it_recognisable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill: int
) -> None:
    left, calls = leave_interrupted(tmp_path / "out", "test"), [kill]
    write(left, {"a/half": "x", "b/half": "x"})
    with monkeypatch.context() as patch:
        for owner, verb in ((Path, "unlink"), (shutil, "rmtree")):
            patch.setattr(owner, verb, dying(getattr(owner, verb), calls))
        with contextlib.suppress(KeyboardInterrupt):
            remove_interrupted(tmp_path / "out", "test")
    assert calls == [-1]
    assert (left / MARKER).is_file()
    remove_interrupted(tmp_path / "out", "test")
    assert names(tmp_path) == set()


# A process that is killed between making a temporary folder and marking it

UNMARKED = ".out.abcd_123.pocketbert-tmp"


@pytest.mark.parametrize("marker", [None, ""])
@pytest.mark.parametrize("resume", ["", "test"])
def test_an_unmarked_folder_is_removed_by_the_next_command(tmp_path: Path, marker: str | None, resume: str) -> None:
    write(tmp_path / UNMARKED, {} if marker is None else {MARKER: marker})
    with open_workspace(tmp_path / "out", resume=resume) as own:
        assert not own.resumed
        assert names(tmp_path) == {own.path.name}
    (tmp_path / UNMARKED).mkdir()
    remove_interrupted(tmp_path / "out", "test")
    assert names(tmp_path) == set()


def test_an_unmarked_folder_inside_an_output_is_no_stranger(tmp_path: Path) -> None:
    (tmp_path / "out" / ".pocketbert.abcd_123.pocketbert-tmp").mkdir(parents=True)
    (tmp_path / "out" / ".pocketbert.mine").mkdir()
    assert list_occupants(tmp_path / "out") == [".pocketbert.mine"]
    with open_workspace(tmp_path / "out"):
        pass
    assert names(tmp_path / "out") == {".pocketbert.mine"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (".out.abcdefgh", {}),
        (".out.short.pocketbert-tmp", {}),
        (".other.abcdefgh.pocketbert-tmp", {}),
        (UNMARKED, {"thesis.txt": ""}),
        (UNMARKED, {MARKER: "not by PocketBERT"}),
    ],
)
def test_folders_of_another_name_or_with_content_stay(tmp_path: Path, name: str, content: dict[str, str]) -> None:
    (tmp_path / name).mkdir()
    write(tmp_path / name, content)
    with open_workspace(tmp_path / "out"):
        pass
    assert names(tmp_path) == {name}
    assert files(tmp_path / name) == content


def test_an_unmarked_folder_of_a_running_process_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = []

    def claim(folder: Path, *args: Any, **options: Any) -> contextlib.AbstractContextManager[None]:
        handle = os.open(folder, os.O_RDONLY)
        locked.append(try_lock(handle) is False)
        os.close(handle)
        return claim_folder(folder, *args, **options)

    (tmp_path / UNMARKED).mkdir()
    running = os.open(tmp_path / UNMARKED, os.O_RDONLY)
    assert try_lock(running)
    monkeypatch.setattr(workspace, "claim_folder", claim)
    with open_workspace(tmp_path / "out") as own:
        assert names(tmp_path) == {UNMARKED, own.path.name}
    assert locked == [True], "its own folder was not locked until it was marked"
    os.close(running)
    remove_interrupted(tmp_path / "out")
    assert names(tmp_path) == set()


# Outputs that keep their place: filled file by file, their sign last


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that keeps its place."""
    folder = tmp_path / "in" / "place"
    folder.mkdir(parents=True)
    monkeypatch.setattr(workspace, "keeps_place", lambda path: path == folder)
    return folder


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
    assert names(place) == {"a", SIGN, "sub", "lost+found"}


def test_a_strangers_file_stops_it_before_anything_is_touched(place: Path) -> None:
    known = FolderContents(SIGN, ("a", "gone/*", "sub"))
    write(place, OLD)
    with pytest.raises(InputError, match="late.txt.*nothing was removed"), build_folder(place, known, SIGN) as folder:
        write(folder, NEW)
        (place / "late.txt").write_text("precious")
    assert files(place) == {**OLD, "late.txt": "precious"}


def visible(folder: Path) -> dict[str, str]:
    """Files of an output, without those of a workspace in it."""
    return {name: text for name, text in files(folder).items() if not name.startswith(".pocketbert.")}


@pytest.mark.parametrize("older", [False, True])
def test_a_kill_at_any_call_loses_nothing(place: Path, monkeypatch: pytest.MonkeyPatch, older: bool) -> None:
    deaths = 0
    for count in range(200):
        write(place, OLD if older else {})
        with monkeypatch.context() as patch:
            left = [count]
            for name in ("rename", "replace", "unlink", "rmdir", "fsync", "mkdir"):
                patch.setattr(os, name, dying(getattr(os, name), left))
            patch.setattr(workspace.Workspace, "discard", lambda own: own.path.exists() and os.fsync(0))
            try:
                build(place, NEW)
            except (KeyboardInterrupt, OSError):
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
    output.mkdir()
    write(output, OLD if older else {})

    def busy(source: Any, destination: Any, **options: Any) -> None:
        if output in (Path(source), Path(destination)):
            raise OSError(number, os.strerror(number), str(source))
        rename(source, destination, **options)

    monkeypatch.setattr(os, "rename", busy)
    build(output, NEW)
    assert files(output) == NEW
    assert names(tmp_path) == {"out"}


def test_interrupted_work_in_a_mount_point_is_found_under_another_name(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="full") as full, open_workspace(place, resume="test") as own:
        (own.path / "half").touch()
        raise OSError("full")
    assert f"Unfinished work is kept in {own.path}; the same command continues there." in full.value.__notes__
    other = place.rename(place.with_name("result"))
    monkeypatch.setattr(workspace, "keeps_place", lambda path: path == other)
    with open_workspace(other, resume="test") as own:
        assert own.resumed
        assert (own.path / "half").exists()
    assert list(other.iterdir()) == []
