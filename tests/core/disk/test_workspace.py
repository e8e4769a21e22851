"""Folders built beside their output: whole or not there, found again after a kill, never anybody else's."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pocketbert.core.disk.ownership import LOCK_FILE, MARKER, FolderContents, _is_own_path, claim_folder, write_marker
from pocketbert.core.disk.workspace import build_folder, open_workspace, remove_interrupted
from pocketbert.core.errors import InputError, MachineError

ALL_OURS = FolderContents("old", ())


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()} - {"pocketbert-cache"}


def interrupted(output: Path, of: str = "", old: bool = False) -> Path:
    """What a killed process leaves beside an output."""
    left = output.parent / f".{output.name}.k1ll3d__"
    left.mkdir()
    write_marker(left, "temporary folder", output=output.name, of=of)
    (left / LOCK_FILE).touch()
    (left / "half").write_text("x")
    if old:
        (left / "old").mkdir()
        (left / "old" / "a").write_text("the older one")
    return left


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "out"
    with build_folder(output) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "a").write_text("1")
        assert not output.exists()
        [own] = names(output.parent)
        assert re.fullmatch(r"\.out\.[a-z0-9_]{8}\.pocketbert-tmp", own)
    assert (output / "sub" / "a").read_text() == "1"
    assert names(output.parent) == {"out"}


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no"), build_folder(tmp_path / "out") as folder:
        (folder / "a").write_text("1")
        raise RuntimeError("no")
    assert names(tmp_path) == set()


def test_an_older_folder_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "old").write_text("1")
    with pytest.raises(KeyboardInterrupt), build_folder(output, ALL_OURS):
        raise KeyboardInterrupt
    assert names(output) == {"old"}
    with build_folder(output, ALL_OURS) as folder:
        (folder / "new").write_text("2")
    assert names(output) == {"new"}
    assert names(tmp_path) == {"out"}


def test_a_folder_of_the_users_is_not_replaced(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    for name in ("old", "thesis.txt"):
        (output / name).write_text("1")
    for recognise in ({}, {"find_foreign": ALL_OURS}):
        with (
            pytest.raises(InputError, match="thesis.txt.*nothing was removed"),
            build_folder(output, **recognise),
        ):
            pytest.fail("the block must not begin")
    (output / "thesis.txt").unlink()
    with pytest.raises(InputError, match=r"\(late.txt\)"), build_folder(output, ALL_OURS):
        (output / "late.txt").write_text("put there while the new one was built")
    assert names(output) == {"old", "late.txt"}
    assert names(tmp_path) == {"out"}


@pytest.mark.parametrize(
    "name", [".out.old", ".out.partial", ".out.run", ".out.abcdefgh", ".out.pocketbert-tmp", ".out.lock"]
)
def test_strangers_beside_the_output_stay(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.txt").write_text("precious")
    with build_folder(tmp_path / "out") as folder:
        (folder / "a").write_text("1")
    with open_workspace(tmp_path / "out", resume="test") as own:
        assert not own.resumed
    remove_interrupted(tmp_path / "out", "test")
    assert (tmp_path / name / "thesis.txt").read_text() == "precious"
    assert names(tmp_path) == {name, "out"}


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    left, of_another = interrupted(tmp_path / "out"), interrupted(tmp_path / "other")
    with build_folder(tmp_path / "out") as folder:
        assert names(folder) == set()
        assert not left.exists()
    assert names(tmp_path) == {"out", of_another.name}


def test_a_kill_between_two_renames_loses_nothing(tmp_path: Path) -> None:
    interrupted(tmp_path / "out", old=True)
    with pytest.raises(KeyError), build_folder(tmp_path / "out", FolderContents("a", ())):
        raise KeyError
    assert (tmp_path / "out" / "a").read_text() == "the older one"
    assert names(tmp_path) == {"out"}


def test_interrupted_work_is_taken_up(tmp_path: Path) -> None:
    left = interrupted(tmp_path / "out", "test")
    with pytest.raises(OSError, match="full"), open_workspace(tmp_path / "out", resume="test") as own:
        assert own.resumed
        assert own.path == left
        assert _is_own_path(own.path / "half")
        raise OSError("full")
    assert names(left) == {"half", LOCK_FILE, MARKER}  # for the next try
    with open_workspace(tmp_path / "out", resume="another verb") as own:
        assert not own.resumed
        assert own.path != left
    with open_workspace(tmp_path / "out", resume="test") as own:
        assert (own.path / "half").read_text() == "x"
    assert names(tmp_path) == set()


def test_of_several_interrupted_the_newest_is_taken_up(tmp_path: Path) -> None:
    first = interrupted(tmp_path / "out", "test")
    older = first.rename(tmp_path / ".out.00000000")
    interrupted(tmp_path / "out", "test")
    os.utime(older, (1, 1))
    with open_workspace(tmp_path / "out", resume="test") as own:
        assert own.path == first
        assert not older.exists()


def test_two_processes_do_not_make_the_same_output(tmp_path: Path) -> None:
    with open_workspace(tmp_path / "out", resume="test") as own:
        (own.path / "half").write_text("x")
        with (
            pytest.raises(MachineError, match="another process is working on"),
            open_workspace(tmp_path / "out", resume="test"),
        ):
            pytest.fail("the block must not begin")
        remove_interrupted(tmp_path / "out", "test")
        assert names(tmp_path) == {own.path.name}
        assert (own.path / "half").exists()


@pytest.mark.parametrize("kill", range(5))
def test_a_kill_while_a_workspace_is_removed_leaves_it_recognisable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill: int
) -> None:
    left, calls = interrupted(tmp_path / "out", "test"), [0]
    for name in ("a", "b"):
        (left / name).mkdir()
        (left / name / "half").write_text("x")
    with monkeypatch.context() as patch:
        for owner, verb in ((Path, "unlink"), (shutil, "rmtree")):
            patch.setattr(owner, verb, dying(getattr(owner, verb), calls, kill))
        with contextlib.suppress(KeyboardInterrupt):
            remove_interrupted(tmp_path / "out", "test")
    assert calls[0] == kill + 1
    assert (left / MARKER).is_file()
    remove_interrupted(tmp_path / "out", "test")
    assert names(tmp_path) == set()


def dying(call: Callable[..., None], calls: list[int], kill: int) -> Callable[..., None]:
    """`call`, until it was called so many times."""

    def counted(*args: object, **options: object) -> None:
        calls[0] += 1
        if calls[0] > kill:
            raise KeyboardInterrupt
        call(*args, **options)

    return counted


def test_a_running_build_is_left_alone(tmp_path: Path) -> None:
    running = interrupted(tmp_path / "out")
    with claim_folder(running, "temporary folder"):
        with build_folder(tmp_path / "out") as folder:
            (folder / "a").write_text("1")
        assert (running / "half").exists()


def test_a_link_that_looks_like_a_workspace_is_left_alone(tmp_path: Path) -> None:
    real = interrupted(tmp_path / "elsewhere")
    write_marker(real, "temporary folder", output="out", of="")
    (tmp_path / ".out.12345678").symlink_to(real)
    with build_folder(tmp_path / "out"):
        pass
    assert (tmp_path / ".out.12345678").is_symlink()
    assert (real / "half").exists()


def test_long_names_fit(tmp_path: Path) -> None:
    output = tmp_path / ("x" * 250)
    with build_folder(output):
        pass
    assert output.is_dir()
