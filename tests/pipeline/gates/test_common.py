"""Every gate against a model broken on purpose: verify exits 3 and names it, pack refuses and writes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

FP32, INT8 = "onnx/model.onnx", "onnx/model_int8.onnx"
SOURCES = {FP32: "onnx/model.onnx", INT8: "onnx-int8/model_int8.onnx"}

Cli = Callable[..., Any]
Refused = Callable[..., list[str]]


def edit(path: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    """Change a graph in place; the result must still be a valid model, or the runtime would do the gate's work."""
    model = onnx.load(path)
    change(model)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def ignore_mask(model: onnx.ModelProto) -> None:
    """The input stays, but every use of it reads ones."""
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            if name == "attention_mask":
                node.input[i] = "all_ones"
    one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
    model.graph.node.insert(0, helper.make_node("ConstantOfShape", ["mask_shape"], ["all_ones"], value=one))
    model.graph.node.insert(0, helper.make_node("Shape", ["attention_mask"], ["mask_shape"]))


def swap_classifier_rows(model: onnx.ModelProto) -> None:
    """Outputs 0 and 1 change places in the weights of the last layer."""
    changed = 0
    for tensor in model.graph.initializer:
        if "classifier" not in tensor.name:
            continue
        value = numpy_helper.to_array(tensor).copy()
        axes = [a for a, size in enumerate(value.shape) if size == 3]
        if axes:
            value = value.take([1, 0, 2], axis=axes[-1])
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
            changed += 1
    assert changed >= 2  # weight and bias


def swap_outputs(model: onnx.ModelProto) -> None:
    """The same for a quantized file, behind its last operator."""
    for node in model.graph.node:
        for i, name in enumerate(node.output):
            if name == "logits":
                node.output[i] = "logits_before"
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 0, 2]), "swapped"))
    model.graph.node.append(helper.make_node("Gather", ["logits_before", "swapped"], ["logits"], axis=1))


def one_nan(model: onnx.ModelProto) -> None:
    """One weight of the largest matrix that every text passes through."""
    tensor = max(
        (
            t
            for t in model.graph.initializer
            if len(t.dims) == 2 and t.data_type == TensorProto.FLOAT and "embeddings" not in t.name
        ),
        key=lambda t: t.dims[0] * t.dims[1],
    )
    value = numpy_helper.to_array(tensor).copy()
    value[3, 5] = np.nan
    tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))


def one_hidden_nan(model: onnx.ModelProto) -> None:
    """One weight in the embedding of [MASK], a token that no text has: only reading the weights finds it."""
    tensor = next(t for t in model.graph.initializer if "word_embeddings" in t.name)
    value = numpy_helper.to_array(tensor).copy()
    value[4, 0] = np.nan
    tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))


def always_the_same(model: onnx.ModelProto) -> None:
    """The classifier forgets everything: logits are its bias."""
    done = 0
    for tensor in model.graph.initializer:
        value = numpy_helper.to_array(tensor)
        if "classifier" in tensor.name and value.ndim == 2:
            tensor.CopyFrom(numpy_helper.from_array(np.zeros_like(value), tensor.name))
            done += 1
    assert done


def lose_a_word(model: onnx.ModelProto, vocabulary: list[str]) -> None:
    """One keyword of each label gets the int8 embedding of another label's keyword."""
    tensor = next(t for t in model.graph.initializer if "word_embeddings" in t.name and len(t.dims) == 2)
    value = numpy_helper.to_array(tensor).copy()
    assert value.dtype.kind in "iu"
    words = [i for i, token in enumerate(vocabulary) if token in ("bulb", "melody", "wake")]
    value[words] = value[np.roll(words, 1)]
    tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))


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


@pytest.mark.parametrize("file", [FP32, INT8])
def test_mask_ignored(refused: Refused, run_copy: Path, file: str) -> None:
    edit(run_copy / SOURCES[file], ignore_mask)
    failed = refused(run_copy, f"{file} padding")
    assert not [f for f in failed if not f.startswith(file)]


def test_two_labels_swapped_in_the_classifier(refused: Refused, run_copy: Path) -> None:
    edit(run_copy / SOURCES[FP32], swap_classifier_rows)
    refused(run_copy, f"{FP32} golden", f"{FP32} reference", f"{FP32} drop")


def test_two_labels_swapped_in_the_quantized_file(refused: Refused, run_copy: Path) -> None:
    edit(run_copy / SOURCES[INT8], swap_outputs)
    refused(run_copy, f"{INT8} golden", f"{INT8} reference", f"{INT8} drop")


def test_two_labels_swapped_in_config_json(refused: Refused, run_copy: Path) -> None:
    path = run_copy / "student" / "config.json"
    config = json.loads(path.read_text())
    config["id2label"]["0"], config["id2label"]["2"] = config["id2label"]["2"], config["id2label"]["0"]
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


@pytest.mark.parametrize("change", [one_nan, one_hidden_nan])
def test_one_nan_weight(refused: Refused, run_copy: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    edit(run_copy / SOURCES[FP32], change)
    failed = refused(run_copy, f"{FP32} weights")
    assert (f"{FP32} finite" in failed) == (change is one_nan)


def test_a_quantizer_that_does_nothing(refused: Refused, run_copy: Path) -> None:
    shutil.copyfile(run_copy / SOURCES[FP32], run_copy / SOURCES[INT8])
    refused(run_copy, f"{INT8} types")


def test_a_score_at_chance(refused: Refused, run_copy: Path) -> None:
    edit(run_copy / SOURCES[FP32], always_the_same)
    refused(run_copy, f"{FP32} chance", f"{FP32} drop")


def test_int8_that_loses_too_much(refused: Refused, run_copy: Path, lossy: Callable[[onnx.ModelProto], None]) -> None:
    edit(run_copy / SOURCES[INT8], lossy)
    failed = refused(run_copy, f"{INT8} drop")
    assert f"{INT8} chance" not in failed


@pytest.mark.parametrize(
    "name",
    [
        SOURCES[FP32],
        SOURCES[INT8],
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
    (run_copy / SOURCES[INT8]).unlink()
    packed = cli("pack", "-m", run_copy, "-o", tmp_path / "packed")
    assert packed.exit_code == 3
    assert "onnx/model_int8.onnx: not there" in packed.stderr
    assert not (tmp_path / "packed").exists()


def test_repaired_and_verified_again_it_packs(
    refused: Refused, cli: Cli, run_copy: Path, finished: Path, tmp_path: Path
) -> None:
    edit(run_copy / SOURCES[FP32], ignore_mask)
    refused(run_copy, f"{FP32} padding")
    shutil.copyfile(finished / SOURCES[FP32], run_copy / SOURCES[FP32])
    assert cli("verify", "-m", run_copy).exit_code == 0
    assert cli("pack", "-m", run_copy, "-o", tmp_path / "packed").exit_code == 0
    assert cli("verify", "-m", tmp_path / "packed").exit_code == 0


# The packed folder: what somebody else finds on their machine.


def gates_of(folder: Path) -> list[str]:
    from pocketbert import api

    return [f"{g.file} {g.name}".strip() for g in api.verify(folder).gates if not g.passed]


def test_folder_with_a_changed_byte(cli: Cli, phone: Path) -> None:
    path = phone / "README.md"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    result = cli("verify", "-m", phone)
    assert result.exit_code == 3
    assert "gate 'integrity' failed: README.md: changed since it was packed" in result.stderr
    assert gates_of(phone) == ["integrity"]


def test_folder_with_a_changed_weight(cli: Cli, phone: Path) -> None:
    edit(phone / INT8, swap_outputs)
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


def relist(folder: Path, name: str) -> None:
    """Bring artifacts.json up to date, as a careless hand would, so that only the other gates are left."""
    from pocketbert.core.disk.files import sha256_file

    path = folder / "artifacts.json"
    content = json.loads(path.read_text())
    for record in content["files"]:
        if record["path"] == name:
            record["sha256"], record["bytes"] = sha256_file(folder / name), (folder / name).stat().st_size
    path.write_text(json.dumps(content))


def test_folder_with_labels_swapped_and_listed(cli: Cli, phone: Path) -> None:
    path = phone / "config.json"
    config = json.loads(path.read_text())
    config["id2label"]["0"], config["id2label"]["1"] = config["id2label"]["1"], config["id2label"]["0"]
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
    edit(phone / INT8, swap_outputs)
    relist(phone, INT8)
    result = cli("predict", "-m", phone, "turn the lamp on")
    assert result.exit_code == 3
    assert "computes this file wrongly on this machine" in result.stderr
