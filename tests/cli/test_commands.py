"""What commands print: the answer alone on stdout, progress on stderr, JSON that parses."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.cli.output import print_folder
from pocketbert.core.artefacts import write_artefacts
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format
from support.card_folders import folder as listed_folder
from support.runs import undo
from support.tiny_texts import task_rows, write_lines

Cli = Callable[..., Any]


def test_run_prints_the_answer_on_stdout_and_progress_on_stderr(finished: Path) -> None:
    out = finished.with_suffix(".stdout").read_text().splitlines()
    err = finished.with_suffix(".stderr").read_text()
    assert [line.split("\t")[0] for line in out[:3]] == ["model", "student ONNX fp32", "student ONNX int8 *"]
    assert out[3:] == [f"artefact folder: {finished / 'phone'}", f"report:          {finished / 'report.html'}"]
    assert all(said in err for said in ("train: 600 rows, 0 duplicates", "export to ONNX", "quantize ONNX to int8"))
    assert "Warning" not in err
    assert "Traceback" not in err


def test_run_with_two_formats_numbers_its_steps_and_keeps_libraries_quiet(finished_tflite: Path) -> None:
    out = finished_tflite.with_suffix(".stdout").read_text()
    assert "student TFLite int8 *\t" in out and "student TFLite int8 for tflite216\t" in out
    said = finished_tflite.with_suffix(".stderr").read_text().splitlines()
    numbers = [(int(m[1]), int(m[2])) for line in said if (m := re.match(r"\[(\d+)/(\d+)\] ", line))]
    assert [number for number, _ in numbers] == [*range(1, len(numbers) + 1)]
    assert {count for _, count in numbers} == {len(numbers)}
    said = [re.sub(r"^\[\d+/\d+\] ", "", line) for line in said]
    skipped = ("student: finished before, skipped", "export to ONNX: finished before, skipped")
    assert {*skipped, "export to TFLite", "quantize TFLite to int8", "golden rows", "pack"} <= set(said)
    # libraries that print from C++ and from Python are kept off the terminal, in a fresh process too
    steps = ("data", "teacher ", "distill.", "student", "export ", "quantize ", "golden rows", "verify", "pack")
    assert [line for line in said if line and not line.startswith((*steps, "  ", "* is", "Try it: "))] == []
    assert "Warning" not in "\n".join(said)


def test_again_everything_is_finished_and_said(cli: Cli, task: Any, run_copy: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in (run_copy / "phone").rglob("*")}
    result = cli("run", task.recipe, "-o", run_copy, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("finished before, skipped") == 9
    answer = json.loads(result.stdout.splitlines()[-1])
    assert answer["phone"] == str(run_copy / "phone")
    small, smaller = answer["models"]
    assert [(m["name"], m["default"]) for m in answer["models"]] == [
        ("student ONNX fp32", False),
        ("student ONNX int8", True),
    ]
    assert small["bytes"] > smaller["bytes"] == (run_copy / "phone" / smaller["file"]).stat().st_size
    assert 0.5 < smaller["score"] <= 1 and smaller["metric"] == "accuracy"
    assert small["p50_ms"] is None, "this recipe measures nothing"
    quiet = cli("run", task.recipe, "-o", run_copy, "-q")
    assert (quiet.exit_code, quiet.stderr) == (0, "")
    assert "artefact folder:" in quiet.stdout
    assert {p: p.stat().st_mtime_ns for p in (run_copy / "phone").rglob("*")} == before


@pytest.mark.parametrize(("formats", "platform"), [((Format.COREML,), "ios"), (tuple(Format), "android")])
def test_the_next_command_names_a_platform_that_has_a_file(
    formats: tuple[Format, ...], platform: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artefacts = listed_folder(TaskName.TEXT_CLASSIFICATION)
    files = [r.model_copy(update={"default": False}) for r in artefacts.models() if r.format in formats]
    files[0] = files[0].model_copy(update={"default": True})
    write_artefacts(tmp_path, artefacts.model_copy(update={"files": files}))
    print_folder(tmp_path, json=False)
    said = capsys.readouterr()
    assert f"-o ASSETS --for {platform}" in said.out + said.err


def test_json_answers_parse(cli: Cli, task: Any, run_copy: Path, tmp_path: Path) -> None:
    phone = shutil.copytree(run_copy / "phone", tmp_path / "phone")
    undo(run_copy, "pack")

    def ask(*arguments: object) -> Any:
        result = cli(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout.splitlines()[-1])

    assert ask("distill", task.recipe, "-o", run_copy) == {"student": str(run_copy / "student")}
    planned = ask("run", task.recipe, "-o", run_copy, "--dry-run")
    assert {s["name"]: s["state"] for s in planned}["pack"] == "to do"
    assert ask("verify", "-m", run_copy)["status"] == "passed"
    packed = ask("pack", "-m", run_copy, "-o", tmp_path / "packed")
    assert packed["files"] == ["onnx/model.onnx", "onnx/model_int8.onnx"]
    assert Path(ask("report", "-m", run_copy, "-o", tmp_path / "r.html")["report"]).is_file()
    assert [s["rows"] for s in ask("data", "check", task.recipe)["splits"]] == [600, 150]
    assert {r["name"] for r in ask("recipes", "ls")} >= {"demo", "sst2"}
    assert {f["name"] for f in ask("families")} >= {"bert", "roberta", "distilbert", "mobilebert"}
    assert ask("devices")[0]["name"] == "local"
    assert {b["present"] for b in ask("doctor")["backends"]} <= {True, False}
    few = ("--threads", "1", "--lengths", "16", "--runs", "10", "--repeats", "2", "--gaps", "1")
    # two files, real text and one length, each also after idle time
    assert len(ask("benchmark", "-m", phone, *few)["measurements"]) == 8


def test_recipes(cli: Cli, tmp_path: Path) -> None:
    listed = cli("recipes", "ls")
    assert listed.exit_code == 0
    assert listed.stdout.splitlines()[0] == "name\ttask\tdescription"
    assert "teacher:" in cli("recipes", "show", "sst2").stdout
    mine = tmp_path / "mine.yaml"
    assert cli("recipes", "cp", "sst2", mine).exit_code == 0
    schema = Path(mine.read_text().splitlines()[0].removeprefix("# yaml-language-server: $schema="))
    assert json.loads(schema.read_text()) == json.loads(cli("recipes", "schema").stdout)
    assert json.loads(schema.read_text())["title"] == "PocketBERT recipe"
    again = cli("recipes", "cp", "sst2", mine)
    assert again.exit_code == 2
    assert "exists; nothing was written." in again.stderr
    valid = cli("recipes", "validate", mine, "seed=5", "student.layers=2")
    assert valid.exit_code == 0
    assert "valid, task text-classification, 1 distillation stage\n" in valid.stdout
    assert cli("recipes", "show", "sst3").exit_code == 2


def test_families_devices_and_doctor(cli: Cli) -> None:
    families = cli("families").stdout
    assert all(f"{name}\t" in families for name in ("BERT", "RoBERTa", "DistilBERT", "MobileBERT"))
    assert cli("devices").stdout.splitlines()[1].startswith("local")
    doctor = cli("doctor")
    assert doctor.exit_code == 0
    assert all(said in doctor.stdout for said in ("machine:", "training:", "HTML report", "onnxruntime"))
    assert "float32" in doctor.stdout or "bfloat16" in doctor.stdout


def test_data_check_reads_without_training(cli: Cli, task: Any, tmp_path: Path) -> None:
    rows = task_rows(30, 9)
    rows += [rows[0], {**rows[1], "label": "timer"}, {"text": "song " + "very " * 60, "label": "music"}]
    train = write_lines(tmp_path / "train.jsonl", rows)
    held = write_lines(tmp_path / "eval.jsonl", [*task_rows(12, 10), rows[3]])
    recipe = task.variant(tmp_path / "r.yaml", data={"train": {"path": str(train)}, "eval": {"path": str(held)}})
    result = cli("data", "check", recipe)
    assert result.exit_code == 0, result.output
    assert "train: 32 rows, 2 duplicates (1 of them with another label), 1 truncated at 40" in result.stdout
    assert "train rows that occur in eval or overlap with its texts: 1 (left out of training)" in result.stdout
    assert not list(tmp_path.glob("run*"))
