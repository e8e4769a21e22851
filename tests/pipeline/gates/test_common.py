"""Gates on what surrounds the model files: tokenizer, labels, what was verified, and the packed folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest

from support.defects import ONNX as FP32
from support.defects import ONNX_INT8 as INT8
from support.defects import break_file, relist, source
from support.defects.onnx import edit, lose_a_word

Cli = Callable[..., Any]
Refused = Callable[..., list[str]]


@pytest.fixture
def lossy(finished: Path) -> Callable[[onnx.ModelProto], None]:
    """`lose_a_word` with the run's vocabulary."""
    return partial(lose_a_word, vocabulary=(finished / "student" / "vocab.txt").read_text().split())


def test_a_good_run_passes_and_packs(cli: Cli, run_copy: Path, finished: Path, tmp_path: Path) -> None:
    verified = cli("verify", "-m", run_copy)
    assert verified.exit_code == 0, verified.output
    assert verified.stdout.startswith("passed: ")
    packed = cli("pack", "-m", run_copy, "-o", tmp_path / "again")
    assert packed.exit_code == 0, packed.output
    from_run = {p.name: p.read_bytes() for p in (finished / "phone" / "onnx").iterdir()}
    assert {p.name: p.read_bytes() for p in (tmp_path / "again" / "onnx").iterdir()} == from_run
    assert cli("verify", "-m", tmp_path / "again").exit_code == 0


def swap_labels(config: Any, one: str, other: str) -> None:
    """Swap two names in a configuration, both ways, as a tool does that sorts the labels anew."""
    names = config["id2label"]
    names[one], names[other] = names[other], names[one]
    config["label2id"] = {name: int(i) for i, name in names.items()}


def test_two_labels_swapped_in_config_json(refused: Refused, run_copy: Path) -> None:
    path = run_copy / "student" / "config.json"
    config = json.loads(path.read_text())
    swap_labels(config, "0", "2")
    path.write_text(json.dumps(config))
    refused(run_copy, f"{FP32} labels", f"{INT8} labels", "config.json labels")


def other_vocabulary(path: Path, extra: int = 0) -> None:
    """The same words in another order, as another model's tokenizer has them."""
    content = json.loads(path.read_text())
    words = sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)
    special, rest = words[:5], [*words[5:], *(f"more{i}" for i in range(extra))]
    content["model"]["vocab"] = {w: i for i, w in enumerate([*special, *reversed(rest)])}
    path.write_text(json.dumps(content))


def test_tokenizer_of_another_model(refused: Refused, run_copy: Path) -> None:
    other_vocabulary(run_copy / "student" / "tokenizer.json")
    refused(run_copy, "tokenizer.json tokenizer", f"{FP32} reference", f"{FP32} drop")


def test_tokenizer_of_a_larger_model(cli: Cli, run_copy: Path, tmp_path: Path) -> None:
    # ids beyond the embedding table would stop the runtime; the gate must come first and say why
    other_vocabulary(run_copy / "student" / "tokenizer.json", extra=300)
    target = tmp_path / "packed"
    verified = cli("verify", "-m", run_copy)
    assert verified.exit_code == 3, verified.output
    assert "it belongs to another model" in verified.stderr
    assert cli("pack", "-m", run_copy, "-o", target).exit_code == 3
    assert not target.exists()


def test_int8_that_loses_too_much(refused: Refused, run_copy: Path, lossy: Callable[[onnx.ModelProto], None]) -> None:
    edit(source(run_copy, INT8), lossy)
    failed = refused(run_copy, f"{INT8} drop")
    assert f"{INT8} chance" not in failed


@pytest.mark.parametrize(
    "name",
    [
        "onnx/model.onnx",
        "onnx-int8/model_int8.onnx",
        "student/tokenizer.json",
        "student/config.json",
        "student/model.safetensors",
        "golden/golden.jsonl",
    ],
)
def test_a_file_changed_after_verification(cli: Cli, run_copy: Path, tmp_path: Path, name: str) -> None:
    path, target = run_copy / name, tmp_path / "packed"
    path.write_bytes(path.read_bytes() + b"\n")
    packed = cli("pack", "-m", run_copy, "-o", target)
    assert packed.exit_code == 3
    assert f"{name}: changed since it was verified; run: pocketbert verify -m {run_copy}" in packed.stderr
    assert not target.exists()
    assert not list(tmp_path.glob(".packed*"))


def test_a_file_lost_after_verification(cli: Cli, run_copy: Path, tmp_path: Path) -> None:
    source(run_copy, INT8).unlink()
    packed = cli("pack", "-m", run_copy, "-o", tmp_path / "packed")
    assert packed.exit_code == 3
    assert "onnx/model_int8.onnx: not there" in packed.stderr
    assert not (tmp_path / "packed").exists()


def test_repaired_and_verified_again_it_packs(
    refused: Refused, cli: Cli, run_copy: Path, finished: Path, tmp_path: Path
) -> None:
    break_file(source(run_copy, FP32), "ignore_mask")
    refused(run_copy, f"{FP32} padding")
    shutil.copyfile(source(finished, FP32), source(run_copy, FP32))
    assert cli("verify", "-m", run_copy).exit_code == 0
    assert cli("pack", "-m", run_copy, "-o", tmp_path / "packed").exit_code == 0
    assert cli("verify", "-m", tmp_path / "packed").exit_code == 0


# The packed folder: what somebody else finds on their machine.


def gates_of(folder: Path) -> list[str]:
    from pocketbert import api

    return [f"{g.file} {g.name}".strip() for g in api.verify(folder).gates if not g.passed]


def test_folder_with_a_changed_byte(cli: Cli, phone: Path) -> None:
    path = phone / "parity.json"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    result = cli("verify", "-m", phone)
    assert result.exit_code == 3
    assert "Error: folder: gate 'integrity' failed: parity.json: changed since it was packed" in result.stderr
    assert gates_of(phone) == ["integrity"]


@pytest.mark.parametrize("what", ["edited", "deleted"])
def test_a_user_may_edit_or_delete_the_card(what: str, cli: Cli, phone: Path) -> None:
    path = phone / "README.md"
    path.unlink() if what == "deleted" else path.write_text("# Ours\n\nLicence: ask us.\n")
    result = cli("verify", "-m", phone)
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count("README.md") == 1
    assert f"README.md: {what} since it was packed" in result.stderr


def test_a_card_that_is_no_file_any_more_is_refused(cli: Cli, phone: Path) -> None:
    path = phone / "README.md"
    path.unlink()
    path.symlink_to(phone / "parity.json")
    result = cli("verify", "-m", phone)
    assert result.exit_code == 3
    assert "folder: gate 'integrity' failed: README.md: changed since it was packed" in result.stderr


def test_folder_with_a_changed_weight(cli: Cli, phone: Path) -> None:
    break_file(phone / INT8, "swap_labels")
    result = cli("verify", "-m", phone)
    assert result.exit_code == 3
    assert set(gates_of(phone)) == {"integrity"}, "a file that is not the listed one is not opened"
    relist(phone, INT8)
    assert cli("verify", "-m", phone).exit_code == 3
    assert {f"{INT8} golden", f"{INT8} reference"} <= set(gates_of(phone))


@pytest.mark.parametrize(
    "name", ["vocab.txt", INT8, "golden.jsonl", "golden_tokens.jsonl", "config.json", "tokenizer.json"]
)
def test_folder_with_a_missing_file(cli: Cli, phone: Path, name: str) -> None:
    (phone / name).unlink()
    result = cli("verify", "-m", phone)
    assert result.exit_code == 3, result.output
    assert f"{name}: listed, but not there" in result.stderr


def test_folder_that_lists_no_golden_rows(cli: Cli, phone: Path) -> None:
    (phone / "golden.jsonl").unlink()
    path = phone / "artifacts.json"
    content = json.loads(path.read_text())
    content["files"] = [r for r in content["files"] if r["path"] != "golden.jsonl"]
    path.write_text(json.dumps(content))
    result = cli("verify", "-m", phone)
    assert result.exit_code == 3
    assert "cannot be verified without golden.jsonl" in result.stderr


def test_folder_with_an_unlisted_file(cli: Cli, phone: Path) -> None:
    (phone / "onnx" / "model_fp16.onnx").write_bytes(b"x")
    result = cli("verify", "-m", phone)
    assert result.exit_code == 3
    assert "onnx/model_fp16.onnx: there, but not listed" in result.stderr


def test_folder_with_labels_swapped_and_listed(cli: Cli, phone: Path) -> None:
    path = phone / "config.json"
    config = json.loads(path.read_text())
    swap_labels(config, "0", "1")
    path.write_text(json.dumps(config))
    relist(phone, "config.json")
    assert cli("verify", "-m", phone).exit_code == 3
    assert {"config.json labels", f"{FP32} labels"} <= set(gates_of(phone))


def test_folder_with_another_tokenizer_listed(cli: Cli, phone: Path) -> None:
    other_vocabulary(phone / "tokenizer.json")
    relist(phone, "tokenizer.json")
    assert cli("verify", "-m", phone).exit_code == 3
    assert "tokenizer.json tokenizer" in gates_of(phone)


def test_folder_with_labelled_data(
    cli: Cli, phone: Path, task: Any, tmp_path: Path, lossy: Callable[[onnx.ModelProto], None]
) -> None:
    data = task.folder / "eval.jsonl"
    good = cli("verify", "-m", phone, "--data", data, "--json")
    assert good.exit_code == 0, good.output
    scores = json.loads(good.stdout.splitlines()[-1])["scores"]
    assert scores[INT8]["eval.jsonl"]["value"] > 0.9

    rows = [json.loads(line) for line in data.read_text().splitlines()]
    shift = {"lamp": "music", "music": "timer", "timer": "lamp"}
    wrong = tmp_path / "shifted.csv"
    wrong.write_text("sentence,gold\n" + "".join(f"{r['text']},{shift[r['label']]}\n" for r in rows))
    bad = cli("verify", "-m", phone, "--data", wrong, "--text", "sentence", "--label", "gold")
    assert bad.exit_code == 3
    assert f"{INT8}: gate 'chance' failed:" in bad.stderr

    edit(phone / INT8, lossy)
    relist(phone, INT8)
    drop = cli("verify", "-m", phone, "--data", data)
    assert drop.exit_code == 3
    assert f"{INT8}: gate 'drop' failed:" in drop.stderr


def test_verify_with_data_on_a_run_folder_is_refused(cli: Cli, run_copy: Path, task: Any) -> None:
    result = cli("verify", "-m", run_copy, "--data", task.folder / "eval.jsonl")
    assert result.exit_code == 2
    assert "a run folder is verified with its recipe's data" in result.stderr


def test_prediction_refuses_a_file_that_computes_wrongly(cli: Cli, phone: Path) -> None:
    break_file(phone / INT8, "swap_labels")
    relist(phone, INT8)
    result = cli("predict", "-m", phone, "turn the lamp on")
    assert result.exit_code == 3
    assert "computes this file wrongly on this machine" in result.stderr
