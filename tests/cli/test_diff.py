"""`pocketbert diff`: what a user reads and gets, and the gate of somebody's CI."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.tiny_task import Task

Cli = Callable[..., Any]


@pytest.fixture
def worse(finished: Path, tmp_path: Path) -> Path:
    """The student of a run, spoilt: its last layer is that of another label for two of three labels."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = Path(shutil.copytree(finished / "student", tmp_path / "worse"))
    weights = load_file(folder / "model.safetensors")
    weights["classifier.weight"] = weights["classifier.weight"][torch.tensor([1, 0, 2])].contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_worse_model_fails_the_gate_and_an_equal_one_passes(
    cli: Cli, finished: Path, task: Task, worse: Path, tmp_path: Path
) -> None:
    data, page = task.folder / "eval.jsonl", tmp_path / "diff.html"
    result = cli("diff", finished, worse, "--data", data, "--fail-on-drop", "0.01", "--threads", 1, "--html", page)
    assert result.exit_code == 3, result.output
    assert re.search(r"Error: accuracy .* against .*: .* points worse, allowed 1", result.stderr)
    assert "lost (only OLD is right)" in result.stdout
    assert "music\tlamp\t" in result.stdout or "lamp\tmusic\t" in result.stdout
    assert page.stat().st_size < 2_000_000
    same = cli("diff", finished, f"{finished}:int8", "--data", data, "--fail-on-drop", "0", "--threads", 1)
    assert same.exit_code == 0, same.output
    assert "no difference" in same.stdout
    assert "0 of 150 answers differ" in same.stdout


def test_json_has_everything(cli: Cli, finished: Path, task: Task) -> None:
    data = task.folder / "eval.jsonl"
    result = cli(
        "diff", f"{finished}:fp32", f"{finished}:onnx/model_int8.onnx", "--data", data, "--json", "--threads", 1
    )
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    verified = json.loads((finished / "verify.json").read_text())["scores"]
    scores = content["differences"]["score"]
    assert content["passed"] is True
    assert scores["old"] == pytest.approx(verified["onnx/model.onnx"]["eval"]["value"])
    assert scores["new"] == pytest.approx(verified["onnx/model_int8.onnx"]["eval"]["value"])
    assert [content[side]["file"] for side in ("old", "new")] == ["onnx/model.onnx", "onnx/model_int8.onnx"]
    assert content["old"]["p50_ms"] > 0
    assert content["time_ratio"][0] > 0


@pytest.mark.parametrize(
    ("new", "more", "message"),
    [
        ("{run}:int9", (), "no 'int9' file in the folder"),
        ("{run}:tflite", (), "no 'tflite' file in the folder"),
        ("{run}/student:int8", (), "'int8' names a file of an artefact folder, and .*student has no artifacts.json"),
        ("nowhere/at/all", (), "NEW: no model folder 'nowhere/at/all'"),
        ("{run}", ("--html", "{data}", "--overwrite"), "eval.jsonl"),
        ("{run}", ("--label", "gold"), "no column 'gold'"),
    ],
)
def test_wrong_inputs_are_refused(
    cli: Cli, finished: Path, task: Task, new: str, more: tuple[str, ...], message: str
) -> None:
    data = task.folder / "eval.jsonl"
    before = data.read_bytes()
    given = [part.format(run=finished, data=data) for part in (new, *more)]
    result = cli("diff", finished, given[0], "--data", data, *given[1:])
    assert result.exit_code == 2, result.output
    assert re.search(message, result.stderr)
    assert data.read_bytes() == before


def test_bad_rows_are_refused_and_not_read_without_their_labels(cli: Cli, finished: Path, tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    rows = [{"text": f"the lamp {i}", "label": "lamp"} for i in range(20)] + [{"text": "a song", "label": "polka"}]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = cli("diff", finished, finished, "--data", data, "--no-latency")
    assert result.exit_code == 2
    assert "label 'polka'" in result.stderr


def test_a_run_that_packed_nothing_names_its_models(cli: Cli, run_copy: Path, task: Task) -> None:
    shutil.rmtree(run_copy / "phone")
    result = cli("diff", run_copy, run_copy, "--data", task.folder / "eval.jsonl")
    assert result.exit_code == 2
    assert f"{run_copy}/student" in result.stderr


def test_the_workflow_of_the_docs_fails_for_a_worse_model_and_keeps_its_page(
    cli: Cli, finished: Path, task: Task, worse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(__file__).parents[2] / "docs" / "ci" / "compare-models.yml"
    steps = yaml.safe_load(path.read_text("utf-8"))["jobs"]["diff"]["steps"]
    [run] = [step["run"] for step in steps if "pocketbert diff" in step.get("run", "")]
    program, *arguments = shlex.split(run)
    assert program == "pocketbert"
    (tmp_path / "models").mkdir()
    shutil.copy(task.folder / "eval.jsonl", tmp_path / "test.csv.jsonl")
    arguments = [a.replace("test.csv", "test.csv.jsonl") for a in arguments]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "released").symlink_to(finished / "phone")
    (tmp_path / "models" / "candidate").symlink_to(worse)
    assert cli(*arguments).exit_code == 3
    assert (tmp_path / "diff.html").is_file(), "the next step of the workflow keeps it"
