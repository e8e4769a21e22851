"""Where commands write: into links and mount points, never over what is there, and nothing new after exit code 2."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.artefacts import list_integrity_problems, read_artefacts
from support.commands import command, one_core

Cli = Callable[..., Any]


def whole(folder: Path) -> bool:
    """Whether a folder is an artefact folder with just what it lists."""
    return not list_integrity_problems(folder, read_artefacts(folder))


def test_export_into_a_mount_point(cli: Cli, finished: Path, disk: Any) -> None:
    arguments = ["export", "-m", finished / "student", "-o", disk.path, "--format", "onnx", "--scheme", "fp32"]
    made = cli(*arguments)
    assert made.exit_code == 0, made.output
    assert whole(disk.path)
    assert [p.name for p in disk.path.iterdir() if p.name.startswith(".")] == []
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
        assert whole(real)
    assert {p.name for p in tmp_path.iterdir()} - {
        "pocketbert-cache",
        "real",
        "link",
        "dangling",
        "deep",
        name,
    } == set()
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
)
def test_a_file_in_the_way_is_found_before_the_first_step(
    cli: Cli, task: Any, finished: Path, tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "out").write_text("mine")
    filled = [a.format(run=finished, recipe=task.recipe) for a in arguments]
    for output, said in (
        (tmp_path / "out", "is a file, and a folder is written"),
        (tmp_path / "out" / "x", "no folder"),
    ):
        result = cli(*filled, "-o", output, *(["--overwrite"] if arguments[0] != "data" else []))
        assert result.exit_code == 2, result.output
        assert said in result.stderr
    assert {p.name for p in tmp_path.iterdir()} - {"pocketbert-cache"} == {"out"}
    assert (tmp_path / "out").read_text() == "mine"


def test_single_files_are_replaced_only_when_asked(cli: Cli, run_copy: Path, tmp_path: Path) -> None:
    commands = {
        "page.html": ["report", "-m", run_copy, "-o"],
        "figures.json": [
            "benchmark",
            "-m",
            run_copy / "phone",
            "--runs",
            "10",
            "--budget",
            "1",
            "--gaps",
            "none",
            "-o",
        ],
        "mine.yaml": ["recipes", "cp", "demo"],
    }
    for name, arguments in commands.items():
        path = tmp_path / "new" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
        refused = cli(*arguments, path)
        assert refused.exit_code == 2, refused.output
        assert f"{path}: exists; nothing was written." in refused.stderr
        assert path.read_text() == "mine"
        listed = run_copy / "phone" / "artifacts.json"
        before = listed.read_bytes()
        assert cli(*arguments, listed, "--overwrite").exit_code == 2
        assert listed.read_bytes() == before
        assert cli(*arguments, path.parent, "--overwrite").exit_code == 2
    for name in ("page.html", "mine.yaml"):
        assert cli(*commands[name], tmp_path / "new" / name, "--overwrite").exit_code == 0
        assert cli(*commands[name], tmp_path / "deep" / "er" / name).exit_code == 0


def test_wrong_input_leaves_no_run_folder(cli: Cli, task: Any, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("no rows\n")
    recipe = task.variant(tmp_path / "r.yaml", data={"train": {"path": str(tmp_path / "train.jsonl")}})
    (tmp_path / "empty").mkdir()
    for output in (tmp_path / "a" / "run", tmp_path / "empty"):
        result = cli("run", recipe, "-o", output)
        assert result.exit_code == 2, result.output
    assert {p.name for p in tmp_path.iterdir()} - {"pocketbert-cache"} == {"train.jsonl", "r.yaml", "empty"}
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_failed_export_tells_where_its_work_is(
    cli: Cli, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pocketbert.pipeline.make import golden

    arguments = [
        "export",
        "-m",
        finished / "student",
        "-o",
        tmp_path / "p",
        "--format",
        "onnx",
        "--scheme",
        "fp32",
        "-q",
    ]
    with monkeypatch.context() as patch:
        patch.setattr(golden, "make_golden", lambda *_: 1 / 0)
        failed = cli(*arguments)
    assert failed.exit_code == 1, failed.output
    [work] = tmp_path.glob(".p.*")
    assert failed.stderr.splitlines()[0] == f"Unfinished work is kept in {work}; the same command continues there."
    assert cli(*arguments).exit_code == 0
    assert not work.exists()


@pytest.mark.parametrize(
    ("sent", "code", "said"),
    [
        ([signal.SIGINT, signal.SIGINT], 130, "Stopped"),
        ([signal.SIGTERM], 143, "Stopped by SIGTERM. Finished work is kept; run the same command to continue."),
    ],
)
def test_signals_end_a_command_in_order(
    task: Any, tmp_path: Path, sent: list[signal.Signals], code: int, said: str
) -> None:
    recipe = task.variant(tmp_path / "r.yaml", teacher={"finetune": {"steps": 20000}})
    run = tmp_path / "run"
    process = subprocess.Popen(
        one_core(command("run", recipe, "-o", run)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        while not list(run.glob(".work/teacher-*/latest")) and process.poll() is None:
            time.sleep(0.1)
        for one in sent:
            process.send_signal(one)
            time.sleep(0.05)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code, err
    assert said in err
    assert "Traceback" not in err
    assert list(run.glob(".work/teacher-*/step-*"))
