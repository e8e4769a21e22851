"""What a process may remove: what it created, and what it has locked and recognises."""

from __future__ import annotations

import ast
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from pocketbert.core.disk import ownership
from pocketbert.core.disk.ownership import (
    LOCK_FILE,
    MARKER,
    FolderContents,
    claim_folder,
    install_folder,
    is_marked,
    lock_beside,
    remove,
    remove_abandoned,
    remove_listed_files,
    replace_file,
    temporary_file,
    write_marker,
)
from pocketbert.core.errors import InputError, MachineError

REPOSITORY = Path(__file__).parents[3]
LIBRARY = ("src", "distill", "export", "quantize", "runtime", "benchmarks", "scripts", "lab", "examples")
ALONE = ("benchmarks/devices/on_target/on_mac.py", "benchmarks/devices/on_target/agent.py")
"""Programs that run on other machines without PocketBERT."""
DELETING = {"rmtree", "unlink", "rmdir", "removedirs", "rename", "renames", "move"}


def tree(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if "pocketbert-cache" not in p.parts)


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    """A folder of the user's."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("precious")
    return folder


def test_what_is_the_users_is_not_removed(tmp_path: Path, thesis: Path) -> None:
    (tmp_path / "link").symlink_to(thesis)
    for path in (thesis, thesis / "thesis.txt", tmp_path / "link"):
        with pytest.raises(InputError, match="holds what PocketBERT did not write .*; nothing was removed"):
            remove(path)
    with pytest.raises(InputError, match="nothing was removed"):
        remove_listed_files(thesis, ["thesis.txt"])
    with pytest.raises(InputError, match="nothing was removed"):
        replace_file(thesis / "thesis.txt", tmp_path / "elsewhere")
    assert tree(tmp_path) == ["link", "mine", "mine/thesis.txt"]


def test_an_empty_folder_and_nothing_at_all_are_no_loss(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "never-there"):
        remove(tmp_path / name)
    assert tree(tmp_path) == []


def test_what_lies_in_a_held_folder_is_removed_while_it_is_held(tmp_path: Path, thesis: Path) -> None:
    work = tmp_path / "work"
    with claim_folder(work, "test folder"):
        (work / "sub").mkdir()
        (work / "sub" / "a").write_text("1")
        remove(work / "sub")
        (work / "b").write_text("2")
        (work / "link").symlink_to(thesis)
        with pytest.raises(InputError, match="nothing was removed"):
            remove(work / "link" / "thesis.txt")
        remove(work / "link")  # the link itself is ours
    assert tree(work) == [LOCK_FILE, MARKER, "b"]
    with pytest.raises(InputError, match="nothing was removed"):
        remove(work / "b")
    assert (thesis / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize("mark", ["", "another kind", "not JSON", "a folder"])
def test_only_new_empty_and_marked_folders_are_claimed(thesis: Path, mark: str) -> None:
    if mark == "another kind":
        write_marker(thesis, "cake")
    elif mark == "not JSON":
        (thesis / MARKER).write_text("mine too")
    elif mark:
        (thesis / MARKER).mkdir()
    before = tree(thesis)
    refused = pytest.raises(InputError, match="exists and is not a test folder; nothing was written")
    with refused, claim_folder(thesis, "test folder"):
        pass
    assert tree(thesis) == before


def test_a_folder_with_an_empty_marker_is_claimed_and_then_held_alone(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / MARKER).touch()
    with claim_folder(tmp_path / "work", "test folder"):
        assert is_marked(tmp_path / "work", "test folder")
    work = tmp_path / "work"
    with claim_folder(work, "test folder"):
        (work / "a").touch()
        refused = pytest.raises(MachineError, match="another process is working in")
        with refused, claim_folder(work, "test folder"):
            pass
        remove(work / "a")


def test_a_finished_folder_is_recognised_by_its_files(tmp_path: Path) -> None:
    cache, contents = tmp_path / "cache", FolderContents("cache.json", ("records.bin", "part-*"))
    cache.mkdir()
    (cache / "records.bin").touch()
    assert contents(cache) == ["records.bin"]  # without its sign nothing is known
    for name in ("cache.json", "part-1"):
        (cache / name).touch()
    assert contents(cache) == []
    (cache / "sub").mkdir()
    (cache / "sub" / "notes.txt").touch()
    assert contents(cache) == ["sub/notes.txt"]
    with pytest.raises(InputError, match=r"sub/notes.txt"):
        remove(cache, contents)
    (cache / "sub" / "notes.txt").unlink()
    remove(cache, contents)
    assert not cache.exists()


def test_install_keeps_the_older_folder_aside(tmp_path: Path, thesis: Path) -> None:
    with claim_folder(tmp_path / "work", "test folder"):
        new = tmp_path / "work" / "new"
        new.mkdir()
        with pytest.raises(InputError, match="nothing was removed"):
            install_folder(new, thesis, tmp_path / "work" / "old")
        install_folder(new, thesis, tmp_path / "work" / "old", lambda _: [])
        assert tree(thesis) == []
        assert (tmp_path / "work" / "old" / "thesis.txt").read_text() == "precious"


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
    assert (tmp_path / "a").read_text() == "1"
    assert tree(tmp_path) == ["a", "work", f"work/{LOCK_FILE}", f"work/{MARKER}"]


def test_temporary_names_are_random_and_only_those_of_killed_processes_go(tmp_path: Path) -> None:
    with temporary_file(tmp_path / "a") as one, temporary_file(tmp_path / "a") as two:
        assert one != two
        assert {p.name.rpartition(".")[2] for p in (one, two)} == {"pocketbert-tmp"}
    with pytest.raises(KeyError), temporary_file(tmp_path / "a") as one:
        raise KeyError
    assert tree(tmp_path) == []
    others = [".other.html.abcdefgh.pocketbert-tmp", ".page.html.notes"]
    for name in (".page.html.abcdefgh.pocketbert-tmp", *others):
        (tmp_path / name).touch()
    with temporary_file(tmp_path / "page.html") as running:
        remove_abandoned(tmp_path / "page.html")
        assert tree(tmp_path) == sorted([running.name, *others])


def test_a_file_of_the_users_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / ".cache.lock").write_text("mine")
    with pytest.raises(InputError, match="is not a lock file of PocketBERT"):
        lock_beside(tmp_path / "cache")
    assert (tmp_path / ".cache.lock").read_text() == "mine"
    assert isinstance(lock_beside(tmp_path / "other"), FileLock)


def deletions(path: Path) -> Iterator[str]:
    """Calls in a module that remove or rename something on disk."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        called, of_os = node.func.attr, isinstance(node.func.value, ast.Name) and node.func.value.id == "os"
        one_argument = len(node.args) == 1 and not node.keywords  # a text's `replace` has two, a dataclass's names
        if called in DELETING or (called == "replace" and (one_argument or of_os)) or (called == "remove" and of_os):
            yield f"{path.relative_to(REPOSITORY)}:{node.lineno} {ast.unparse(node.func)}"


def test_every_deletion_of_the_library_passes_through_one_module() -> None:
    own = Path(ownership.__file__).name
    sources = {p.relative_to(REPOSITORY).as_posix(): p for top in LIBRARY for p in (REPOSITORY / top).rglob("*.py")}
    assert len(sources) > 200
    assert [
        call for name, path in sources.items() if name not in ALONE and path.name != own for call in deletions(path)
    ] == []
    [of_own] = [path for path in sources.values() if path.name == own]
    assert {call.rpartition(".")[2] for call in deletions(of_own)} >= {"unlink", "rmtree", "rmdir", "replace", "rename"}
