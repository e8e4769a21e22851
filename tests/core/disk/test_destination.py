"""Where output may go: links, mount points, odd names and things in the way, all found before the first step."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pocketbert.core.disk.destination import (
    keeps_place,
    remove_new_folders_on_error,
    resolve_output_file,
    resolve_output_folder,
)
from pocketbert.core.disk.ownership import write_marker
from pocketbert.core.disk.workspace import build_folder
from pocketbert.core.errors import InputError, MachineError, MissingBackendError, Problem

BOTH = (resolve_output_folder, lambda path: resolve_output_file(path, True))


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()} - {"pocketbert-cache"}


@contextmanager
def mounted(here: Path, there: Path) -> Iterator[None]:
    """One path mounted on another one of the same file system, as ``docker -v`` does."""
    command = ["mount", "--bind", here, there]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", there], check=True)


def test_links_are_followed(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "dangling").symlink_to(tmp_path / "deep" / "target")
    (tmp_path / "twice").symlink_to(tmp_path / "dangling")
    assert resolve_output_folder(tmp_path / "link") == real
    for name in ("dangling", "twice"):
        assert resolve_output_folder(tmp_path / name) == tmp_path / "deep" / "target"
    assert resolve_output_folder(tmp_path / "dangling" / "sub") == tmp_path / "deep" / "target" / "sub"
    assert resolve_output_folder(tmp_path / "link" / "sub") == tmp_path / "link" / "sub"  # as the user wrote it
    assert resolve_output_folder(tmp_path / "none" / ".." / "real") == real
    assert names(tmp_path) == {"real", "link", "dangling", "twice"}


def test_the_path_stays_as_the_user_wrote_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(resolve_output_folder(Path("out"))) == "out"
    assert str(resolve_output_file(Path("a/b.html"), False)) == "a/b.html"
    assert resolve_output_folder(Path()) == tmp_path
    assert names(tmp_path) == set()


def test_rings_of_links_and_places_that_cannot_be_written_are_found_before(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for resolve in BOTH:
        with pytest.raises(InputError, match="cannot be used: .*Fix: Choose another"):
            resolve(tmp_path / "a" / "out")
    for resolve in BOTH:
        with pytest.raises(MachineError, match="cannot write to /proc"):
            resolve(Path("/proc/out/deep"))


def bind_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


@pytest.mark.parametrize(
    ("words", "make"),
    [
        ("a named pipe", os.mkfifo),
        ("a socket", bind_socket),
        ("a device", lambda path: path.symlink_to("/dev/null")),
        ("a file", Path.touch),
        ("a file", lambda path: path.symlink_to(__file__)),
    ],
)
def test_what_is_in_the_way_is_named(tmp_path: Path, words: str, make: Callable[[Path], None]) -> None:
    path = tmp_path / "out"
    make(path)
    for folder in (path, path / "sub"):
        with pytest.raises(InputError, match=words):
            resolve_output_folder(folder)
    if words != "a file":
        with pytest.raises(InputError, match=f"is {words}, and a file is written"):
            resolve_output_file(path, overwrite=True)


@pytest.mark.parametrize("name", ["x" * 256, "é" * 128, "/".join(["y" * 200] * 21), "b\udcff", "n\0l"])
def test_names_that_no_file_system_takes_are_refused(tmp_path: Path, name: str) -> None:
    for resolve in BOTH:
        with pytest.raises(InputError, match="Fix: Choose "):
            resolve(tmp_path / name)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("name", ["two words", "new\nline", "quo\"te's", "-dash", "$HOME `x`", "Zo\u00eb", "👍" * 60])
def test_odd_names_are_names(tmp_path: Path, name: str) -> None:
    output = resolve_output_folder(tmp_path / name)
    with build_folder(output) as folder:
        (folder / "a").touch()
    assert names(tmp_path) == {name}
    with pytest.raises(InputError) as refused:
        resolve_output_file(output, True)
    assert "\n" not in str(refused.value)


def test_input_and_output_lie_apart(tmp_path: Path) -> None:
    source = tmp_path / "models" / "model"
    source.mkdir(parents=True)
    (tmp_path / "link").symlink_to(source)
    for output in (source, tmp_path / "models", tmp_path / "link"):
        with pytest.raises(InputError, match="is or contains .*model, which is read; nothing was written"):
            resolve_output_folder(output, source)
    for output in (source / "onnx", tmp_path / "link" / "deep" / "onnx"):
        with pytest.raises(InputError, match="lies in .*model, which is read; nothing was written"):
            resolve_output_folder(output, source)
    assert resolve_output_folder(tmp_path / "models" / "other", source) == tmp_path / "models" / "other"


def test_files_are_replaced_only_when_asked(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert resolve_output_file(page, False) == page
    page.touch()
    (tmp_path / "link.html").symlink_to(page)
    for path in (page, tmp_path / "link.html"):
        with pytest.raises(InputError, match="exists; nothing was written. Fix: .*--overwrite to replace it"):
            resolve_output_file(path, overwrite=False)
        assert resolve_output_file(path, overwrite=True) == page
    with pytest.raises(InputError, match="is a folder, and a file is written"):
        resolve_output_file(tmp_path, overwrite=True)
    with pytest.raises(InputError, match="is read by this command"):
        resolve_output_file(tmp_path / "link.html", True, page)


@pytest.mark.parametrize("overwrite", [False, True])
def test_files_of_an_artefact_folder_and_of_a_run_are_never_replaced(tmp_path: Path, overwrite: bool) -> None:
    phone, run = tmp_path / "phone", tmp_path / "run"
    (phone / "onnx").mkdir(parents=True)
    for name in ("artifacts.json", "onnx/model.onnx"):
        (phone / name).write_text("{}")
    for name in ("artifacts.json", "onnx/model.onnx", "new.html", "onnx/new.json"):
        with pytest.raises(InputError, match="lies in the artefact folder .*, whose artifacts.json lists every file"):
            resolve_output_file(phone / name, overwrite)
    (run / "teacher").mkdir(parents=True)
    write_marker(run, "run folder")
    for name in ("verify.json", "teacher/page.html", ".pocketbert.json"):
        with pytest.raises(InputError, match="lies in .*run, which PocketBERT keeps for itself"):
            resolve_output_file(run / name, overwrite)
    assert resolve_output_file(run / "report.html", overwrite) == run / "report.html"


def test_which_folders_keep_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume, point = tmp_path / "volume", tmp_path / "mount point"
    volume.mkdir()
    point.mkdir()
    assert not keeps_place(volume)
    assert not keeps_place(tmp_path / "none")
    with mounted(volume, point):
        assert keeps_place(point)
    monkeypatch.chdir(volume)
    assert keeps_place(volume)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert keeps_place(point)


def test_a_file_that_is_mounted_by_itself_is_refused(tmp_path: Path) -> None:
    for name in ("real.html", "page.html"):
        (tmp_path / name).touch()
    with (
        mounted(tmp_path / "real.html", tmp_path / "page.html"),
        pytest.raises(InputError, match="is mounted by itself .*Fix: Mount the folder"),
    ):
        resolve_output_file(tmp_path / "page.html", True)


@pytest.mark.parametrize(
    ("error", "full", "stays"),
    [
        (InputError(Problem("a", "b")), False, set()),
        (MissingBackendError("a", "b"), False, set()),
        (OSError(), False, {"a", "a/out"}),
        (InputError(Problem("a", "b")), True, {"a", "a/thesis.txt"}),
    ],
)
def test_wrong_input_leaves_no_empty_folders(tmp_path: Path, error: Exception, full: bool, stays: set[str]) -> None:
    with pytest.raises(type(error)), remove_new_folders_on_error(tmp_path / "a" / "out"):
        (tmp_path / "a" / "out").mkdir(parents=True)
        if full:
            (tmp_path / "a" / "thesis.txt").touch()
        raise error
    assert {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")} - {"pocketbert-cache"} == stays
