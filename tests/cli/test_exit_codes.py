"""What a user does wrong, and training that meets a NaN: exit code 2 or 3, a message that names it, and nothing left on disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pocketbert.distill.losses.common import Term
from pocketbert.distill.methods import task as task_distillation
from pocketbert.distill.training import loop
from support.classifiers import expected
from support.folders import tree
from support.tiny_texts import LABELS, task_rows, write_lines

Cli = Callable[..., Any]

# 2: recipes and rows


def test_all_mistakes_of_a_recipe_are_told_with_their_lines(cli: Cli, task: Any, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    text = task.recipe.read_text().replace("  layers: 1", "  layer: 1").replace("method: task", "method: tasks")
    bad.write_text(text.replace("lr: 0.003", "lr: fast", 1))
    lines = [line.strip(" -") for line in bad.read_text().splitlines()]
    for arguments in (["recipes", "validate", bad], ["run", bad, "-o", tmp_path / "run"]):
        result = cli(*arguments, "nonsense")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("4 problems:\n")
        assert "'nonsense': not of the form key.sub=value." in result.stderr
        for line, what in (
            ("lr: fast", "teacher.finetune.lr: 'fast': "),
            ("layer: 1", "student.layer: unknown key 'layer'; did you mean 'layers'?"),
            ("method: tasks", "distill.0: method 'tasks' is unknown; did you mean 'task'?"),
        ):
            assert f"  {bad}:{lines.index(line) + 1} {what}" in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["distill.0=1.5", "distill.0.steps=3"], "'distill.0' is 1.5, which has no keys."),
        ([f"name{'.a' * 5000}=1"], "nested more than 20 deep"),
        ([f"distill.{'9' * 5000}=1"], "the recipe has no entry"),
    ],
    ids=["below a number", "too deep", "large index"],
)
def test_mistakes_in_overrides(cli: Cli, task: Any, overrides: list[str], message: str) -> None:
    result = cli("recipes", "validate", task.recipe, *overrides)
    assert (result.exit_code, message in result.stderr) == (2, True), result.output


def test_bad_rows_of_all_files_are_told_up_to_a_number(cli: Cli, task: Any, tmp_path: Path) -> None:
    lines = [json.dumps(r) for r in task_rows(100, 5)]
    for i in range(30):
        lines[2 * i + 1] = ('{"text": ', '{"text": 5, "label": "lamp"}', '{"txt": "x", "label": "lamp"}')[i % 3]
    train = tmp_path / "train.jsonl"
    train.write_text("\n".join(lines) + "\n")
    data = {"train": {"path": str(train)}, "eval": {"path": "gone.jsonl"}}
    recipe = task.variant(tmp_path / "r.yaml", data=data)
    assert cli("run", recipe, "-o", tmp_path / "run", "--dry-run").exit_code == 2
    result = cli("run", recipe, "-o", tmp_path / "run")
    assert result.exit_code == 2
    assert result.stderr.count(f"{train}:") == 21  # 20 rows and the line that counts the rest
    for said in (
        f"{train}:2: not valid JSON",
        f"{train}:4: column 'text' holds int, not text.",
        f"{train}:6: no column 'text'; ",
        "and 10 more bad rows (30 in all).",
        "gone.jsonl: file not found.",
    ):
        assert said in result.stderr
    assert not (tmp_path / "run" / "teacher").exists()


def test_wrong_labels_and_teachers_are_refused_before_the_first_step(
    cli: Cli, task: Any, finished: Path, tmp_path: Path
) -> None:
    other = dict(zip(LABELS, ("light", "sound", "timer"), strict=True))
    paths = {}
    for name, seed in (("train", 7), ("eval", 8)):
        rows = [{**r, "label": other[r["label"]]} for r in task_rows(60, seed)]
        paths[name] = {"path": str(write_lines(tmp_path / f"{name}.jsonl", rows))}
    ready = {"model": str(finished / "teacher"), "finetune": None}
    cases: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        (
            {"data": {"labels": ["lamp", "music"]}},
            ("train.jsonl:3: label 'timer' is not in the label set; allowed: lamp, music.", "(200 in all)"),
        ),
        ({"data": {"labels": [*LABELS, "door"]}}, ("no training row has the label door.",)),
        (
            {"data": {"labels": [*other.values()], **paths}, "teacher": ready},
            (
                "only in the data ['light', 'sound'], only in the model ['lamp', 'music']",
                "Fix: If the names are others for the same labels",
            ),
        ),
        ({"teacher": {"finetune": None}}, ("has no trained head for text-classification", "teacher.finetune")),
    ]
    for changes, messages in cases:
        result = cli("run", task.variant(tmp_path / "r.yaml", **changes), "-o", tmp_path / "run")
        assert result.exit_code == 2, result.output
        assert all(message in result.stderr for message in messages), result.stderr
        assert not (tmp_path / "run" / "teacher").exists()


def test_labels_in_another_order_are_permuted(cli: Cli, task: Any, finished: Path, tmp_path: Path) -> None:
    teacher, texts = finished / "teacher", ["dim the bulb in the hall", "my song again please", "wake the friend at"]
    recipe = task.variant(
        tmp_path / "r.yaml",
        student=None,
        distill=None,
        data={"labels": ["timer", "lamp", "music"]},
        teacher={"model": str(teacher), "finetune": None},
    )
    result = cli("run", recipe, "-o", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "labels permuted: the model's order ['lamp', 'music', 'timer'] became" in result.stderr
    asked = ("--scheme", "fp32", "--top", "3", "--json", *texts)
    told = cli("predict", "-m", tmp_path / "run" / "phone", *asked).stdout.splitlines()
    for line, row in zip(told, expected(teacher, texts), strict=True):
        got = {t["label"]: t["score"] for t in json.loads(line)["top"]}
        assert list(got.values()) == sorted(got.values(), reverse=True)
        assert [got[name] for name in LABELS] == pytest.approx(row.tolist(), abs=1e-4)


# 2: folders that are there


def test_a_folder_of_something_else_stays_as_it_is(cli: Cli, task: Any, finished: Path, tmp_path: Path) -> None:
    target = tmp_path / "thesis"
    target.mkdir()
    (target / "chapter.tex").write_text("years of work")
    before = tree(target)
    for arguments, message in (
        (["run", task.recipe, "--overwrite"], "exists and is not a run folder; nothing was written."),
        (["run", task.recipe, "--dry-run"], "exists and is not a run folder; nothing was written."),
        (["export", "-m", finished / "student"], "exists and holds something else; nothing was written."),
        (["quantize", "-m", finished / "phone"], "exists and holds something else; nothing was written."),
        (["pack", "-m", finished], "exists and holds something else; nothing was written."),
    ):
        result = cli(*arguments, "-o", target)
        assert result.exit_code == 2, result.output
        assert f"Error: {target}: {message}" in result.stderr
    assert cli("run", task.recipe, "-o", target / "chapter.tex").exit_code == 2
    assert tree(target) == before
    assert not list(tmp_path.glob(".thesis*"))


@pytest.mark.parametrize("keep", [0.5, 0.0])
def test_truncated_weights_are_told(cli: Cli, finished: Path, tmp_path: Path, keep: float) -> None:
    model = Path(shutil.copytree(finished / "student", tmp_path / "model"))
    weights = model / "model.safetensors"
    whole = weights.read_bytes()
    kept = int(len(whole) * keep)
    weights.write_bytes(whole[:kept])
    result = cli("export", "-m", model, "-o", tmp_path / "phone")
    assert result.exit_code == 2
    what = f"truncated: {kept:,} bytes, its header describes {len(whole):,}." if kept else "is empty."
    assert f"Error: {weights}: " in result.stderr
    assert what in result.stderr
    assert "Fix: Copy or download the file again." in result.stderr
    assert not list(tmp_path.glob("*phone*"))


def test_a_model_with_numbers_that_are_not_finite_leaves_nothing(cli: Cli, finished: Path, tmp_path: Path) -> None:
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


# 2: the command line

EXPORT = ["export", "-m", ".", "-o", "x"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["exprot"], "No such command 'exprot'"),
        (["export", "--modle", "x"], "No such option: --modle"),
        (["export", "-m", "."], "Missing option"),
        (["run"], "no recipe and no data"),
        ([*EXPORT, "--scheme", "int4"], "--scheme: 'int4' is not allowed; did you mean 'int8'?"),
        ([*EXPORT, "--format", ","], "--format: is empty; give at least 1."),
        ([*EXPORT, "--runtime", "tflite261"], "--runtime: 'tflite261' is not allowed; did you mean 'tflite216'?"),
        ([*EXPORT, "--scheme", "w8"], "--scheme: onnx has no 'w8' in this version, only fp32, int8,"),
        ([*EXPORT, "--scheme", "int8,fp16", "--format", "onnx"], "no exported format has 'fp16', only tflite, coreml"),
        ([*EXPORT, "--task", "summarise"], "'summarise' is not allowed; allowed: feature-extraction, fill-mask"),
        ([*EXPORT, "--opset", "21", "--atol", "-1"], "--atol: -1.0: input should be greater than 0."),
        (["export", "-m", "nowhere", "-o", "x"], "--model: no model folder 'nowhere'."),
        (["run", "sst3"], "no recipe file here and no shipped recipe of that name; did you mean 'sst2'?"),
        (["verify", "-m", "nowhere"], "there is no such folder"),
        (["pack", "-m", "nowhere", "-o", "x"], "nowhere: is not a run folder"),
        (["predict", "-m", "nowhere", "text"], "there is no such folder"),
        (["verify", "-m", "nowhere", "--max-drop", "1.5"], "Invalid value for '--max-drop'"),
        (["benchmark", "-m", "nowhere", "--threads", "two"], "--threads: 'two' is not a list of positive numbers."),
    ],
)
def test_wrong_usage(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    before = set(tmp_path.iterdir())
    result = cli(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert message in result.stderr
    assert set(tmp_path.iterdir()) == before


def test_what_a_folder_of_onnx_files_cannot_become_is_refused(cli: Cli, finished: Path, tmp_path: Path) -> None:
    for more in (["--scheme", "w8"], ["--runtime", "tflite216"]):
        small = cli("quantize", "-m", finished / "phone", "-o", tmp_path / "x", *more)
        assert (small.exit_code, "Error: --" in small.stderr) == (2, True), small.output
    assert not list(tmp_path.glob("*x*"))


HOMELESS = """
import os, pwd, sys
def unknown(*_):
    raise KeyError("uid not found")
pwd.getpwuid = pwd.getpwnam = unknown
from pocketbert.cli.main import main
main()
"""


@pytest.mark.parametrize("command", ["predict", pytest.param("export", marks=pytest.mark.slow)])
def test_commands_need_no_home_folder(finished: Path, tmp_path: Path, command: str) -> None:
    arguments = {
        "predict": ["-m", str(finished / "phone"), "the song"],
        "export": ["-m", str(finished / "student"), "-o", str(tmp_path / "out"), "--format", "onnx", "-q"],
    }[command]
    own = ("HOME", "POCKETBERT_CACHE", "XDG_CACHE_HOME", "HF_HOME", "USER", "LOGNAME")
    environment = {k: v for k, v in os.environ.items() if k not in own}
    words = [sys.executable, "-c", HOMELESS, command, *arguments]
    run = subprocess.run(words, check=False, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert {p.name for p in tmp_path.iterdir()} <= {"out", "pocketbert-cache"}


# 3: training that meets a NaN finishes nothing, and the same command resumes it

SHORT = {"steps": 12, "batch": 16, "lr": 1e-3, "checkpoint": 4}


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two threads that wait for each other on a busy machine take ten times as long; and precision stays as it was."""
    from accelerate.state import AcceleratorState

    before = torch.get_num_threads()
    monkeypatch.setattr(loop, "default_threads", lambda: 1)
    yield
    torch.set_num_threads(before)
    AcceleratorState._reset_state(reset_partial_state=True)


def test_the_same_command_resumes_after_a_nan(
    cli: Cli, task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    stages = {"teacher": {"finetune": SHORT}, "distill": [{"method": "task", **SHORT}]}
    recipe, run = task.variant(tmp_path / "r.yaml", **stages), tmp_path / "run"
    right, passes = task_distillation.TaskDistillation.__call__, 0

    def poisoned(self: Any, model: Any, batch: Any) -> Any:
        nonlocal passes
        passes += 1
        terms = dict(right(self, model, batch))
        if passes == 11:
            terms["hidden"] = Term(terms["hidden"].mean * float("inf"), terms["hidden"].count)
        return terms

    with monkeypatch.context() as patched:
        patched.setattr(task_distillation.TaskDistillation, "__call__", poisoned)
        stopped = cli("distill", recipe, "-o", run)
    assert stopped.exit_code == 3, stopped.output
    message = stopped.stderr.splitlines()[-1]
    assert message.startswith("Error: distill.0: step 11 of 12 was not made: the loss is inf (terms: hidden inf, ")
    work = next((run / ".work").glob("distill.0-*")) / "distill.0"
    assert f"The checkpoint of step 8 in {work} is kept: the same command resumes from it" in message
    assert sorted(p.name for p in work.iterdir()) == ["latest", "step-0000004", "step-0000008"]
    assert not (run / "student").exists()
    assert sorted(p.stem for p in (run / ".steps").iterdir()) == ["data", "teacher"]
    assert "Traceback" not in (run / "run.log").read_text()

    resumed = cli("distill", recipe, "-o", run)
    assert resumed.exit_code == 0, resumed.output
    assert "resumed" in resumed.stderr
    assert cli("distill", recipe, "-o", tmp_path / "whole").exit_code == 0
    for name in ("student/model.safetensors", "metrics.jsonl"):
        assert (run / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert bool(torch.isfinite(torch.tensor(losses)).all())
