"""One hostile folder of each class on the command line: exit 2 with one line for each problem, 3 where a gate failed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.disk.files import path_bytes, sha256_path

Cli = Callable[..., Any]
TEXT = "dim the lamp in the hall"


def relist(folder: Path, change: Callable[[Any], None] = lambda _: None) -> None:
    """Write the list anew, as an attacker does who has changed a file."""
    path = folder / "artifacts.json"
    content = json.loads(path.read_text())
    for record in content["files"]:
        file = folder / record["path"]
        if file.is_file() or file.is_dir():
            record |= {"sha256": sha256_path(file), "bytes": path_bytes(file)}
    change(content)
    path.write_text(json.dumps(content))


def edit(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def without_answers(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "golden.jsonl").read_text().splitlines()]
    for row in rows[1:]:
        del row["outputs"]["onnx/model.onnx"], row["tolerance"]["onnx/model.onnx"]
    (folder / "golden.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


FOLDERS: dict[str, tuple[Callable[[Path], Any], int, int]] = {
    "a configuration that is a list": (lambda f: (f / "config.json").write_text("[]"), 2, 2),
    "a billion labels": (lambda f: edit(f / "config.json", lambda c: c.update(num_labels=10**9, id2label=None)), 2, 2),
    "a junk row": (lambda f: (f / "golden_tokens.jsonl").write_text("junk\n"), 2, 0),
    "golden rows that are lists": (lambda f: (f / "golden.jsonl").write_text("[]\n"), 2, 2),
    "an id beyond the table": (
        lambda f: edit(f / "tokenizer.json", lambda c: c["model"]["vocab"].update(zzz=100_000)),
        3,
        2,
    ),
    "answers that are not recorded": (without_answers, 3, 0),
}
"""What was done to a folder, and how `verify` and `predict` end."""


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_whose_list_was_written_anew(cli: Cli, phone: Path, name: str) -> None:
    change, verified, predicted = FOLDERS[name]
    change(phone)
    relist(phone)
    for code, ended in ((verified, cli("verify", "-m", phone)), (predicted, cli("predict", "-m", phone, TEXT))):
        assert ended.exit_code == code, ended.output
        assert "Traceback" not in ended.output


def test_nonsense_in_the_list_is_refused_by_every_command(cli: Cli, phone: Path) -> None:
    relist(phone, lambda c: c["processing"].update(stride=-1))
    for ended in (cli("verify", "-m", phone), cli("predict", "-m", phone, TEXT)):
        assert ended.exit_code == 2, ended.output
        assert "processing.stride" in ended.stderr
    relist(phone, lambda c: (c["processing"].update(stride=None), c["labels"].reverse()))
    ended = cli("predict", "-m", phone, TEXT)
    assert (ended.exit_code, "differ from those of config.json" in ended.stderr) == (2, True), ended.output
    assert cli("verify", "-m", phone).exit_code == 3


def test_a_listed_fifo_is_never_waited_for(cli: Cli, phone: Path) -> None:
    (phone / "onnx" / "model.onnx").unlink()
    os.mkfifo(phone / "onnx" / "model.onnx")
    verified = cli("verify", "-m", phone)
    assert verified.exit_code == 3
    assert "a FIFO, which is never opened" in verified.stderr
    assert cli("predict", "-m", phone, "--scheme", "fp32", TEXT).exit_code == 2


def test_a_model_that_must_not_be_exported_leaves_nothing(cli: Cli, finished: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    model = Path(shutil.copytree(finished / "student", tmp_path / "in" / "model"))
    state = load_file(model / "model.safetensors")
    state["bert.embeddings.position_embeddings.weight"][-1] = torch.nan
    save_file(state, model / "model.safetensors")
    (tmp_path / "out").mkdir()
    ended = cli("export", "-m", model, "-o", tmp_path / "out" / "phone", "--format", "onnx")
    assert ended.exit_code == 2, ended.output
    assert "NaN, infinite or immense numbers" in ended.stderr
    assert not list((tmp_path / "out").iterdir())
