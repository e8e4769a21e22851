"""What a user does wrong, and what the machine does: exit code, message, and what is left on disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.folders import tree
from support.tiny_texts import task_rows, write_lines

Cli = Callable[..., Any]
Tree = dict[str, bytes]

# 2: usage, recipe, input


def test_three_mistakes_in_one_recipe(cli: Cli, task: Any, tmp_path: Path) -> None:
    text = task.recipe.read_text()
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        text.replace("  layers: 1", "  layer: 1")
        .replace("method: task", "method: tasks")
        .replace("lr: 0.003", "lr: fast", 1)
    )
    lines = {i: line.strip() for i, line in enumerate(bad.read_text().splitlines(), 1)}
    for arguments in (["recipes", "validate", bad], ["run", bad, "-o", tmp_path / "run"]):
        result = cli(*arguments)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr.startswith("3 problems:\n")
        for number, what in (
            (next(i for i, x in lines.items() if x == "lr: fast"), "teacher.finetune.lr: 'fast': "),
            (
                next(i for i, x in lines.items() if x == "layer: 1"),
                "student.layer: unknown key 'layer'; did you mean 'layers'?",
            ),
            (
                next(i for i, x in lines.items() if x.endswith("method: tasks")),
                "distill.0: method 'tasks' is unknown; did you mean 'task'?",
            ),
        ):
            assert f"  {bad}:{number} {what}" in result.stderr
    assert not (tmp_path / "run").exists()


def test_mistakes_in_overrides(cli: Cli, task: Any) -> None:
    result = cli("recipes", "validate", task.recipe, "student.layers=none", "seeds=3", "nonsense")
    assert result.exit_code == 2
    assert "student.layers" in result.stderr
    assert "unknown key 'seeds'; did you mean 'seed'?" in result.stderr
    assert "override 'nonsense': not of the form key.sub=value." in result.stderr


def test_bad_rows(cli: Cli, task: Any, tmp_path: Path) -> None:
    rows = task_rows(100, 5)
    lines = [json.dumps(r) for r in rows]
    for i in range(30):
        lines[2 * i + 1] = ('{"text": ', '{"text": 5, "label": "lamp"}', '{"txt": "x", "label": "lamp"}')[i % 3]
    (tmp_path / "train.jsonl").write_text("\n".join(lines) + "\n")
    recipe = task.variant(
        tmp_path / "r.yaml",
        data={"train": {"path": str(tmp_path / "train.jsonl")}, "eval": {"path": "gone.jsonl"}},
    )
    result = cli("run", recipe, "-o", tmp_path / "run")
    assert result.exit_code == 2
    assert result.stderr.count(f"{tmp_path}/train.jsonl:") == 21  # 20 rows and the line that counts the rest
    assert f"{tmp_path}/train.jsonl:2: not valid JSON" in result.stderr
    assert f"{tmp_path}/train.jsonl:4: column 'text' holds int, not text." in result.stderr
    assert f"{tmp_path}/train.jsonl:6: no column 'text'; " in result.stderr
    assert "and 10 more bad rows (30 in all)." in result.stderr
    assert "gone.jsonl: file not found." in result.stderr  # both files' problems at once
    assert not (tmp_path / "run" / "teacher").exists()


def test_a_label_missing_from_the_map(cli: Cli, task: Any, tmp_path: Path) -> None:
    recipe = task.variant(tmp_path / "r.yaml", data={"labels": ["lamp", "music"]})
    result = cli("run", recipe, "-o", tmp_path / "run")
    assert result.exit_code == 2
    assert "train.jsonl:3: label 'timer' is not in the label set; allowed: lamp, music." in result.stderr
    assert "Fix: Correct the row or the name of the label column, or add the label under data.labels." in result.stderr
    assert "and 180 more bad rows (200 in all)." in result.stderr
    assert not (tmp_path / "run" / "teacher").exists()


def test_a_label_without_rows(cli: Cli, task: Any, tmp_path: Path) -> None:
    recipe = task.variant(tmp_path / "r.yaml", data={"labels": ["lamp", "music", "timer", "door"]})
    result = cli("run", recipe, "-o", tmp_path / "run")
    assert result.exit_code == 2
    assert "no training row has the label door." in result.stderr


def test_label_order_permuted(cli: Cli, task: Any, finished: Path, tmp_path: Path) -> None:
    import torch
    import transformers

    recipe = task.variant(
        tmp_path / "r.yaml",
        student=None,
        distill=None,
        data={"labels": ["timer", "lamp", "music"]},
        teacher={"model": str(finished / "teacher"), "finetune": None},
    )
    result = cli("run", recipe, "-o", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert (
        "labels permuted: the model's order ['lamp', 'music', 'timer'] became the data's order ['timer', 'lamp', 'music']"
        in result.stderr
    )
    texts = ["dim the bulb in the hall", "my song again please", "wake the friend at just now", "chair"]
    answers = [
        json.loads(x)
        for x in cli(
            "predict", "-m", tmp_path / "run" / "phone", "--scheme", "fp32", "--top", "3", "--json", *texts
        ).stdout.splitlines()
    ]
    untouched = transformers.AutoModelForSequenceClassification.from_pretrained(finished / "teacher").eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(finished / "teacher" / "tokenizer.json"))
    for text, answer in zip(texts, answers, strict=True):
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.inference_mode():
            expected = untouched(ids).logits.softmax(-1)[0]
        got = {t["label"]: t["score"] for t in answer["top"]}
        assert list(got.values()) == sorted(got.values(), reverse=True)
        for i, name in untouched.config.id2label.items():
            assert got[name] == pytest.approx(float(expected[i]), abs=1e-4)
        assert answer["label"] == untouched.config.id2label[int(expected.argmax())]


def test_other_label_set_is_refused_before_the_first_step(cli: Cli, task: Any, finished: Path, tmp_path: Path) -> None:
    other = {"lamp": "light", "music": "sound", "timer": "timer"}
    paths = {}
    for name, seed in (("train", 7), ("eval", 8)):
        rows = [{**r, "label": other[r["label"]]} for r in task_rows(60, seed)]
        paths[name] = {"path": str(write_lines(tmp_path / f"{name}.jsonl", rows))}
    recipe = task.variant(
        tmp_path / "r.yaml",
        data={"labels": ["light", "sound", "timer"], **paths},
        teacher={"model": str(finished / "teacher"), "finetune": None},
    )
    result = cli("run", recipe, "-o", tmp_path / "run")
    assert result.exit_code == 2
    assert "only in the data ['light', 'sound'], only in the model ['lamp', 'music']" in result.stderr
    assert "Fix: Use data.labels with the model's names, or fine-tune the teacher on these labels." in result.stderr
    assert not (tmp_path / "run" / "teacher").exists()
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_teacher_without_a_head(cli: Cli, task: Any, tmp_path: Path) -> None:
    recipe = task.variant(tmp_path / "r.yaml", teacher={"finetune": None})
    result = cli("run", recipe, "-o", tmp_path / "run")
    assert result.exit_code == 2
    assert "has no trained head for text-classification" in result.stderr
    assert "teacher.finetune in the recipe" in result.stderr


@pytest.mark.parametrize("keep", [0.5, 0.0])
def test_truncated_safetensors(cli: Cli, finished: Path, tmp_path: Path, keep: float) -> None:
    model = Path(shutil.copytree(finished / "student", tmp_path / "model"))
    weights = model / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: int(len(whole) * keep)])
    result = cli("export", "-m", model, "-o", tmp_path / "phone")
    assert result.exit_code == 2
    expected = (
        f"truncated: {int(len(whole) * keep):,} bytes, its header describes {len(whole):,}."
        if keep
        else "its header is cut off."
    )
    assert f"Error: {weights}: " in result.stderr
    assert expected in result.stderr
    assert "Fix: Copy or download the file again." in result.stderr
    assert not (tmp_path / "phone").exists()
    assert not (tmp_path / ".phone.run").exists()


def test_existing_run_of_another_recipe(cli: Cli, task: Any, run_copy: Path, tmp_path: Path) -> None:
    before: Tree = tree(run_copy)
    for arguments, said in (
        (["run", task.recipe, "seed=4"], "seed was 3, is 4: teacher and the 7 steps behind it"),
        (["finetune", task.recipe, "teacher.finetune.lr=0.1"], "teacher.finetune.lr was 0.003, is 0.1: teacher"),
    ):
        result = cli(*arguments, "-o", run_copy)
        assert result.exit_code == 2
        assert result.stderr == (
            f"Error: {run_copy}: {said} would be made anew. Nothing was changed. Fix: Put the values back to go on, "
            "use another -o/--output, or --overwrite to make them anew.\n"
        )
    dry = cli("run", task.recipe, "seed=4", "-o", run_copy, "--overwrite", "--dry-run")
    assert dry.exit_code == 0
    assert "teacher\t" in dry.stdout
    assert tree(run_copy) == before


def test_a_dry_run_names_every_data_file_that_is_not_there(cli: Cli, task: Any, tmp_path: Path) -> None:
    recipe = task.variant(
        tmp_path / "recipe.yaml", data={"train": {"path": "none.jsonl"}, "eval": {"path": "nor.jsonl"}}
    )
    dry = cli("run", recipe, "-o", tmp_path / "run", "--dry-run")
    assert dry.exit_code == 2
    for key, name in (("train", "none.jsonl"), ("eval", "nor.jsonl")):
        assert f"data.{key}.path: {tmp_path / name}: file not found." in dry.stderr
    assert not (tmp_path / "run").exists()


def test_existing_folder_that_is_no_run(cli: Cli, task: Any, finished: Path, tmp_path: Path) -> None:
    target = tmp_path / "thesis"
    target.mkdir()
    (target / "chapter.tex").write_text("years of work")
    before: Tree = tree(target)
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["exprot"], "No such command 'exprot'"),
        (["export", "--modle", "x"], "No such option: --modle"),
        (["export", "-m", "."], "Missing option"),
        (["run"], "no recipe and no data"),
        (["export", "-m", ".", "-o", "x", "--scheme", "int4"], "--scheme: 'int4' is not allowed; did you mean 'int8'?"),
        (["export", "-m", ".", "-o", "x", "--format", "onx"], "--format: 'onx' is not allowed; did you mean 'onnx'?"),
        (["export", "-m", ".", "-o", "x", "--format", ","], "--format: is empty; give at least 1."),
        (["export", "-m", ".", "-o", "x", "--runtime", "tflite261"], "--runtime: 'tflite261' is not allowed; did you mean 'tflite216'?"),
        (["export", "-m", ".", "-o", "x", "--scheme", "w8"], "--scheme: onnx has no 'w8' in this version, only fp32, int8, small, a8w8, int8-b32, w4; leave onnx out of --format, or choose another scheme."),
        (["export", "-m", ".", "-o", "x", "--format", "onnx", "--runtime", "tflite216"], "--scheme, --runtime: 'int8' for tflite216 is a file of tflite; add tflite to --format."),
        (["export", "-m", ".", "-o", "x", "--format", "tflite", "--scheme", "fp32", "--runtime", "tflite216"], "--scheme, --runtime: 'fp32' for tflite216 does not exist in this version; tflite216 has only int8 (tflite); choose this scheme."),
        (["export", "-m", ".", "-o", "x", "--runtime", "openvino"], "--scheme, --runtime: 'int8' for openvino does not exist in this version; openvino has only a8w8 (onnx); choose this scheme, which measures ranges on training texts, and name these in --calibrate."),
        (["export", "-m", ".", "-o", "x", "--scheme", "int8,a8w8"], "--scheme, --runtime: 'a8w8' measures ranges on training texts; name them in --calibrate."),
        (["export", "-m", ".", "-o", "x", "--scheme", "int8,a8w8", "--runtime", "openvino"], "--scheme, --runtime: 'a8w8' for openvino measures ranges on training texts; name them in --calibrate."),
        (["export", "-m", ".", "-o", "x", "--scheme", "int8,fp16", "--format", "onnx"], "--scheme, --runtime: no exported format has 'fp16', only tflite, coreml; add one to --format."),
        (["export", "-m", ".", "-o", "x", "--scheme", ","], "--scheme, --runtime: is empty; give at least 1."),
        (["export", "-m", ".", "-o", "x", "--task", "text-clasification"], "--task: 'text-clasification' is not allowed; did you mean 'text-classification'?"),
        (["export", "-m", ".", "-o", "x", "--task", "summarise"], "--task: 'summarise' is not allowed; allowed: feature-extraction, fill-mask"),
        (["export", "-m", "nowhere", "-o", "x"], "--model: no model folder 'nowhere'."),
        (["run", "sst3"], "no recipe file here and no shipped recipe of that name; did you mean 'sst2'?"),
        (["verify", "-m", "nowhere"], "not an artefact folder: it has no artifacts.json."),
        (["pack", "-m", "nowhere", "-o", "x"], "nowhere: is not a run folder"),
        (["predict", "-m", "nowhere", "text"], "not an artefact folder"),
        (["verify", "-m", "nowhere", "--max-drop", "1.5"], "Invalid value for '--max-drop'"),
        (["benchmark", "-m", "nowhere", "--threads", "two"], "--threads: 'two' is not a list of positive numbers."),
    ],
)  # fmt: skip
def test_wrong_usage(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    before = set(tmp_path.iterdir())
    result = cli(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stdout == ""
    assert set(tmp_path.iterdir()) == before


def test_opset_out_of_range_is_wrong_usage(cli: Cli, finished: Path, tmp_path: Path) -> None:
    result = cli("export", "-m", finished / "student", "-o", tmp_path / "x", "--opset", "21", "--atol", "-1")
    assert result.exit_code == 2
    assert result.stderr.startswith("2 problems:\n")
    assert "--opset: 21: input should be less than or equal to 20." in result.stderr
    assert "--atol: -1.0: input should be greater than 0." in result.stderr
    assert not (tmp_path / "x").exists()


def test_wrong_choices_are_listed_together(cli: Cli, finished: Path, tmp_path: Path) -> None:
    result = cli(
        "export",
        "-m",
        finished / "student",
        "-o",
        tmp_path / "x",
        "--format",
        "onnx,openvino",
        "--scheme",
        "int4",
        "--runtime",
        "tflite216,ios",
    )
    assert result.exit_code == 2
    assert result.stderr.startswith("3 problems:\n")
    for said in ("--format: 'openvino' is not allowed", "--scheme: 'int4' is", "--runtime: 'ios' is"):
        assert said in result.stderr
    twice = cli("export", "-m", finished / "student", "-o", tmp_path / "x", "--format", "onnx, onnx")
    assert twice.exit_code == 2
    assert "--format: lists a format twice" in twice.stderr
    for more in (["--scheme", "w8"], ["--runtime", "tflite216"]):  # a folder that has ONNX files only
        small = cli("quantize", "-m", finished / "phone", "-o", tmp_path / "x", *more)
        assert small.exit_code == 2
        assert "Error: --" in small.stderr
    assert not list(tmp_path.glob("*x*"))
