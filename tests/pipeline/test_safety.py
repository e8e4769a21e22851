"""What --overwrite must never destroy, and heads that must not be scored wrongly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert import ExportOptions, api
from pocketbert.core.data.streams import read_texts
from pocketbert.core.errors import InputError


def listing(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))


def test_overwrite_replaces_artefact_folders_only_and_never_the_source(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    source = Path(shutil.copytree(tiny_model("bert"), tmp_path / "outer" / "model"))
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("mine")
    before = listing(tmp_path)
    for output in (source, source.parent):
        with pytest.raises(InputError, match="which is read; nothing was written"):
            api.export(str(source), output, overwrite=True)
    with pytest.raises(InputError, match="is not an artefact folder"):
        api.export(str(source), tmp_path / "letters", overwrite=True)
    assert listing(tmp_path) == before


def test_pack_never_replaces_its_run(run_copy: Path) -> None:
    before = listing(run_copy)
    with pytest.raises(InputError, match="which is read"):
        api.pack(run_copy, run_copy, overwrite=True)
    assert [n for n in listing(run_copy) if n != ".lock"] == [n for n in before if n != ".lock"]


def test_demo_leaves_a_foreign_corpus_folder_alone(tmp_path: Path, cli: Callable[..., Any]) -> None:
    corpus = tmp_path / "my-corpus"
    corpus.mkdir()
    (corpus / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="holds more than a demo corpus"):
        api.demo(tmp_path / "my")
    with pytest.raises(InputError, match="unknown key 'foo'"):
        api.demo(tmp_path / "other", overrides=["foo=1"])
    assert listing(tmp_path) == ["my-corpus", "my-corpus/thesis.txt"]
    (corpus / "thesis.txt").rename(corpus / "train.jsonl.gz")
    assert cli("data", "demo", "-o", corpus).exit_code == 2
    assert (corpus / "train.jsonl.gz").read_text() == "mine", "files with the names of a demo corpus"
    (corpus / "train.jsonl.gz").unlink()
    for _ in range(2):
        assert cli("data", "demo", "-o", corpus).exit_code == 0
    (corpus / "dev.jsonl.gz").write_bytes(b"changed by its user")
    assert cli("data", "demo", "-o", corpus).exit_code == 2
    assert (corpus / "dev.jsonl.gz").read_bytes() == b"changed by its user"


OTHER = r"trained for {} .3 outputs., not for text-classification"


@pytest.mark.parametrize(
    ("problem", "task", "message"),
    [
        ("multi_label_classification", "text-classification", OTHER.format("multi-label")),
        ("regression", "text-classification", OTHER.format("regression")),
        ("regression", None, "answers 3 numbers to a text; regression is one number per text"),
    ],
)
def test_heads_of_other_tasks_and_several_numbers_per_text_are_refused(
    tiny_model: Callable[..., Path], tmp_path: Path, problem: str, task: str | None, message: str
) -> None:
    model = Path(shutil.copytree(tiny_model("bert"), tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "problem_type": problem}))
    with pytest.raises(InputError, match=message):
        api.export(str(model), tmp_path / "phone", ExportOptions(task=task))
    assert not (tmp_path / "phone").exists()


def test_lines_are_separated_by_line_feeds_only(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_bytes("one\u2028still one\r\ntwo\n".encode())
    assert read_texts(file) == ["one\u2028still one", "two"]
    file.write_bytes(b"\xff\x81\x00")
    with pytest.raises(InputError, match="null byte"):
        read_texts(file)
