"""What `load` remembers of a folder, and that nothing which changed is taken for what was checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pocketbert.core.artefacts import FolderListing, read_artefacts
from pocketbert.core.errors import InputError
from pocketbert.runtime import remembered
from pocketbert.runtime.model import load

FILE = "onnx/model_int8.onnx"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all files whose digest was computed; the files count as older than they are."""
    names, compute, clock = list[str](), remembered.sha256_path, time.time_ns

    def note(path: Path) -> str:
        names.append(path.name)
        return compute(path)

    monkeypatch.setattr(remembered, "sha256_path", note)
    monkeypatch.setattr(remembered.time, "time_ns", lambda: clock() + 10**10)
    return names


def swap_byte(path: Path) -> None:
    """Change one byte in place, and give the file its old time of change back."""
    before, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_file(path: Path) -> None:
    """Put another file of the same size and time of change in its place."""
    other, content = path.with_name("other"), bytearray(path.read_bytes())
    content[-1] ^= 1
    other.write_bytes(content)
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)


def test_unchanged_files_are_read_once(phone: Path, read: list[str]) -> None:
    first = load(phone).predict("good song")
    assert "model_int8.onnx" in read
    read.clear()
    assert load(phone).predict("good song") == first
    assert not read


@pytest.mark.parametrize("change", [swap_byte, replace_file])
@pytest.mark.parametrize("name", [FILE, "tokenizer.json", "config.json"])
def test_a_changed_file_of_the_same_size_and_time_is_refused(
    phone: Path, read: list[str], change: Callable[[Path], None], name: str
) -> None:
    load(phone)
    change(phone / name)
    with pytest.raises(InputError, match=r"changed since it was packed|bytes, the folder's list says"):
        load(phone)


def test_a_young_file_is_read_again(phone: Path, read: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "_YOUNG_NS", 10**12)
    load(phone)
    read.clear()
    load(phone)
    assert "model_int8.onnx" in read


def test_an_edited_list_is_validated_again(phone: Path, read: list[str]) -> None:
    load(phone)
    path = phone / "artifacts.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "labels": content["labels"][::-1]}))
    with pytest.raises(InputError, match="differ from those of config.json"):
        load(phone)
    path.write_text(json.dumps({**content, "labels": []}))
    with pytest.raises(InputError, match="names no labels"):
        load(phone)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"digests": 1, "checks": [], "listing": {}}', "deeper"])
def test_a_damaged_memory_is_none(phone: Path, own_cache: Path, read: list[str], damage: str) -> None:
    answers = load(phone).predict("good song")
    [file] = (own_cache / "checked").glob("*.json")
    content = json.loads(file.read_text())
    content["listing"]["listing"] = {"models": [{"format": "none"}]}
    content["digests"] = dict.fromkeys(content["digests"], "?")
    file.write_text(json.dumps(content) if damage == "deeper" else damage)
    assert load(phone).predict("good song") == answers


@pytest.mark.parametrize(
    "changes", [{}, {"unknown": 0.4}, {"prompts": {"query": "query: "}, "default_prompt": "query"}]
)
def test_a_listing_survives_json(phone: Path, changes: dict[str, Any]) -> None:
    artefacts = read_artefacts(phone)
    artefacts = artefacts.model_copy(update={"processing": artefacts.processing.model_copy(update=changes)})
    listing = FolderListing.of(artefacts)
    again = FolderListing.from_dict(json.loads(json.dumps(listing.to_dict())))
    assert again == listing
    assert [m.path for m in again.models] == [m.path for m in artefacts.models()]
    assert again.default.path == artefacts.default_model().path
    assert again.head().task == artefacts.head().task


def test_what_another_user_wrote_is_not_believed(
    phone: Path, own_cache: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(phone)
    [file] = (own_cache / "checked").glob("*.json")
    assert file.stat().st_uid == os.getuid()
    status = SimpleNamespace(st_uid=os.getuid() + 4242)
    monkeypatch.setattr(remembered, "os", SimpleNamespace(fstat=lambda _: status, getuid=os.getuid))
    read.clear()
    load(phone)
    assert "model_int8.onnx" in read


def test_a_frozen_program_remembers_nothing(
    phone: Path, own_cache: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "_CODE", phone / "program.zip" / "remembered.py")
    for _ in range(2):
        read.clear()
        load(phone)
        assert "model_int8.onnx" in read
    assert not (own_cache / "checked").exists()


def test_a_list_without_end_is_not_read(phone: Path, read: list[str]) -> None:
    load(phone)
    os.truncate(phone / "artifacts.json", 1 << 30)  # a hole: it takes no space
    with pytest.raises(InputError, match="MiB"):
        load(phone)


def test_few_folders_are_kept(phone: Path, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "_MOST_FOLDERS", 2)
    for number in range(4):
        link = tmp_path / f"phone-{number}"
        link.symlink_to(phone)
        load(link)
    assert len(list((own_cache / "checked").glob("*.json"))) == 2


def test_the_second_process_validates_without_the_schema_library(phone: Path) -> None:
    later = (
        "import time; clock = time.time_ns; time.time_ns = lambda: clock() + 10**10"  # files are seconds old, as usual
    )
    code = f"{later}; import pocketbert, sys; m = pocketbert.load(sys.argv[1]); m.predict('good'); print(*sys.modules)"
    modules = [
        subprocess.run(
            [sys.executable, "-c", code, str(phone)], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert "pydantic" in modules[0]
    assert not {"pydantic", "rich", "psutil", "yaml", "importlib.metadata"} & {*modules[1]}
    # nor with what reads data files, OpenSSL's library, and what only writing needs
    assert not {"pocketbert.core.data.reading", "csv", "_hashlib", "logging", "tempfile", "zipfile"} & {*modules[1]}
