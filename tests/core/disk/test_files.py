"""Writing atomically, reading JSON within bounds, digests, and paths that stay inside their folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.disk import files
from pocketbert.core.disk.files import (
    check_writable,
    copy_path,
    path_bytes,
    read_json,
    safe_join,
    sha256_file,
    sha256_json,
    sha256_path,
    write_atomic,
    write_json,
)
from pocketbert.core.errors import InputError, MachineError


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()} - {"pocketbert-cache"}


def test_a_file_is_replaced_with_the_permissions_of_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    old = os.umask(0o027)
    try:
        write_atomic(path, "one")
        write_atomic(path, b"two \xff")
    finally:
        os.umask(old)
    assert path.read_bytes() == b"two \xff"
    assert path.stat().st_mode & 0o777 == 0o640
    assert names(tmp_path) == {"a.txt"}


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    write_atomic(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == {"a.txt"}


def test_a_folder_that_cannot_be_written_is_reported_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(MachineError, match="cannot write to .*Fix: choose another folder"):
        check_writable(tmp_path / "file" / "out")
    check_writable(tmp_path / "new")
    assert names(tmp_path) == {"file"}


def test_json_goes_there_and_back(tmp_path: Path) -> None:
    value = {"name": "naïve 👍", "list": [1, 2.5, None, True]}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    assert "naïve" in (tmp_path / "a.json").read_text(encoding="utf-8")
    (tmp_path / "a.json").write_text(r'["\ud83d\ude00"]')
    assert read_json(tmp_path / "a.json") == ["😀"]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (rb'{"a": ["x", "x\udfffy"]}', r"a\.1: half of a surrogate pair"),
        (rb'{"\uD83D": 1}', r"'.ud83d': half of a surrogate pair"),
        (rb'"\ude00\ud83d"', "the text: half of a surrogate pair"),
        (b'"' + b"x" * (1 << 20) + b'"', "larger than 1 MiB"),
        (None, "file not found"),
    ],
)
def test_json_that_is_refused(tmp_path: Path, raw: bytes | None, message: str) -> None:
    path = tmp_path / "a.json"
    if raw is not None:
        path.write_bytes(raw)
    with pytest.raises(InputError, match=rf"a\.json: .*{message}"):
        read_json(path, limit_mib=1)
    if message.startswith("larger"):
        assert len(read_json(path, limit_mib=2)) == 1 << 20


@pytest.mark.parametrize("bad", ["../x", "a/../../x", "/etc/passwd", "link/x", "link", "model.onnx"])
def test_paths_that_leave_the_folder_are_refused(tmp_path: Path, bad: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("x")
    (root / "link").symlink_to(tmp_path)
    (root / "model.onnx").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match=r"artifacts.json: path '.*' leaves the folder"):
        safe_join(root, bad, "artifacts.json")


def test_paths_that_stay_inside_are_joined(tmp_path: Path) -> None:
    assert safe_join(tmp_path, "onnx/model.onnx", "f") == tmp_path / "onnx" / "model.onnx"
    assert safe_join(tmp_path, "a/../b", "f").resolve() == tmp_path / "b"
    assert safe_join(tmp_path, f"a/../../{tmp_path.name}/x", "f").resolve() == tmp_path / "x"


# Digests and copies


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.booleans(), max_size=6))
def test_json_digests_ignore_the_order_of_keys(value: dict[str, Any]) -> None:
    turned = dict(reversed(value.items()))
    assert sha256_json(value) == sha256_json(turned) == sha256_json(json.loads(json.dumps(value)))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder that stands for one file, as a Core ML package does."""
    made = tmp_path / "Model.mlpackage"
    (made / "Data" / "weights").mkdir(parents=True)
    (made / "Manifest.json").write_bytes(b"{}")
    (made / "Data" / "weights" / "weight.bin").write_bytes(b"12345")
    return made


def test_the_digest_of_a_folder_is_made_of_names_and_bytes(package: Path, tmp_path: Path) -> None:
    # spelt out: artefact folders that lie around are compared with it for ever
    named = [[n, sha256_file(package / n)] for n in ("Data/weights/weight.bin", "Manifest.json")]
    assert sha256_path(package) == sha256_json(named)
    assert path_bytes(package) == 7
    copy_path(package, tmp_path / "Other.mlpackage")
    assert sha256_path(tmp_path / "Other.mlpackage") == sha256_path(package)  # whatever the folder is called
    assert (tmp_path / "Other.mlpackage" / "Data" / "weights" / "weight.bin").read_bytes() == b"12345"


WEIGHTS, MANIFEST = "Data/weights/weight.bin", "Manifest.json"


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / WEIGHTS).write_bytes(b"12346"),
        lambda folder: (folder / WEIGHTS).rename(folder / "Data/weights/weights.bin"),
        lambda folder: (folder / "Data").rename(folder / "data"),
        lambda folder: (folder / "Data/empty").touch(),
        lambda folder: (folder / WEIGHTS).unlink(),
        # the same names, the same bytes in all
        lambda folder: ((folder / WEIGHTS).write_bytes(b"{}"), (folder / MANIFEST).write_bytes(b"12345")),
    ],
)
def test_every_change_in_a_folder_changes_its_digest(package: Path, change: Callable[[Path], object]) -> None:
    before = sha256_path(package)
    change(package)
    assert sha256_path(package) != before


def test_a_large_file_is_read_once_and_again_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, reads = tmp_path / "model.bin", []
    hashed = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *a: reads.append(1) or hashed(*a))
    monkeypatch.setattr(files.time, "time_ns", lambda: 2 * 10**18)  # long after the file was written
    path.write_bytes(bytes(2 << 20))
    before, digest = path.stat(), sha256_file(path)
    assert sha256_file(path) == digest
    assert len(reads) == 1
    path.write_bytes(b"1" * (2 << 20))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert sha256_file(path) != digest


def test_the_digest_of_a_file_is_that_of_its_bytes_now(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(bytes(2 << 20))
    digest = sha256_file(path)
    with path.open("r+b") as stream:
        stream.write(b"1")
    assert sha256_file(path) != digest
    (tmp_path / "a").write_bytes(b"abc")
    copy_path(tmp_path / "a", tmp_path / "b")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256_file(tmp_path / "a") == sha256_path(tmp_path / "a") == sha256_path(tmp_path / "b") == digest
    assert path_bytes(tmp_path / "a") == 3
