"""What commands answer: on stdout the answer alone, progress on stderr, JSON that parses."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.runs import undo
from support.tiny_texts import task_rows, write_lines

Cli = Callable[..., Any]

# predict


def labels(result: Any) -> list[str]:
    assert result.exit_code == 0, result.output
    return [json.loads(line)["label"] for line in result.stdout.splitlines()]


def test_predict_from_arguments(cli: Cli, finished: Path) -> None:
    result = cli("predict", "-m", finished / "phone", "dim the bulb now", "a nice old song")
    assert result.exit_code == 0, result.output
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [(r[0], r[2]) for r in rows] == [("lamp", "dim the bulb now"), ("music", "a nice old song")]
    assert all(0.5 < float(r[1]) <= 1 for r in rows)


def test_predict_from_stdin(cli: Cli, finished: Path) -> None:
    result = cli("predict", "-m", finished / "phone", "--json", input="a nice old song\nwake the friend at\n")
    assert labels(result) == ["music", "timer"]


def test_predict_from_files(cli: Cli, finished: Path, tmp_path: Path) -> None:
    texts = ["a nice old song", "wake the friend, at now", "the bright table"]
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    (tmp_path / "a.csv").write_text("id,sentence\n" + "".join(f'{i},"{t}"\n' for i, t in enumerate(texts)))
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "".join(f"{t}\tx\n" for t in texts))
    for name, more in (("a.txt", []), ("a.jsonl", []), ("a.csv", ["--text", "sentence"]), ("a.tsv", [])):
        answer = cli("predict", "-m", finished / "phone", "--file", tmp_path / name, "--json", *more)
        assert labels(answer) == ["music", "timer", "lamp"]


def test_predict_pairs(cli: Cli, finished: Path, tmp_path: Path) -> None:
    rows = [{"a": "the song", "b": "my chair"}, {"a": "my door", "b": "the timer"}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    from_file = cli(
        "predict",
        "-m",
        finished / "phone",
        "--file",
        tmp_path / "p.jsonl",
        "--text",
        "a",
        "--text-pair",
        "b",
        "--json",
    )
    from_arguments = cli(
        "predict",
        "-m",
        finished / "phone",
        "--text-pair",
        "b",
        "--json",
        "the song",
        "my chair",
        "my door",
        "the timer",
    )
    assert labels(from_file) == labels(from_arguments)
    assert from_file.stdout == from_arguments.stdout
    assert json.loads(from_file.stdout.splitlines()[0])["text"] == ["the song", "my chair"]
    odd = cli("predict", "-m", finished / "phone", "--text-pair", "b", "one", "two", "three")
    assert odd.exit_code == 2
    assert "3 texts do not form pairs" in odd.stderr


def test_predict_flags_what_was_cut_off(cli: Cli, finished: Path) -> None:
    long = "song " + "very " * 60
    result = cli("predict", "-m", finished / "phone", "--json", "the song", long.strip())
    assert [json.loads(line)["truncated"] for line in result.stdout.splitlines()] == [False, True]
    plain = cli("predict", "-m", finished / "phone", "the song", long.strip())
    assert [line.endswith("[truncated]") for line in plain.stdout.splitlines()] == [False, True]


def test_predict_top_scheme_and_threads(cli: Cli, finished: Path) -> None:
    result = cli(
        "predict",
        "-m",
        finished / "phone",
        "--top",
        "3",
        "--scheme",
        "fp32",
        "--threads",
        "1",
        "--json",
        "the song",
    )
    top = json.loads(result.stdout)["top"]
    assert top[0]["label"] == "music"
    assert sum(t["score"] for t in top) == pytest.approx(1, abs=1e-5)
    wrong = cli("predict", "-m", finished / "phone", "--scheme", "w4", "the song")
    assert wrong.exit_code == 2
    assert "no 'w4' file in the folder" in wrong.stderr


def test_predict_wrong_inputs(cli: Cli, finished: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (["--file", tmp_path / "gone.txt"], "file not found."),
        (["--file", tmp_path / "gone.jsonl"], "file not found."),
        (["--file", tmp_path / "gone.txt", "text"], "--file: was given together with texts."),
        (["--file", tmp_path / "a.parquet"], "file not found."),
    ):
        result = cli("predict", "-m", finished / "phone", *arguments)
        assert result.exit_code == 2
        assert message in result.stderr
        assert result.stdout == ""


def test_predict_of_nothing_answers_nothing(cli: Cli, finished: Path) -> None:
    result = cli("predict", "-m", finished / "phone", input="")
    assert result.exit_code == 0
    assert result.stdout == ""


# stdout and stderr


def test_run_prints_the_answer_on_stdout_and_progress_on_stderr(finished: Path) -> None:
    out = finished.with_suffix(".stdout").read_text().splitlines()
    err = finished.with_suffix(".stderr").read_text()
    assert out[0].split("\t")[0] == "model"
    assert [line.split("\t")[0] for line in out[1:3]] == ["student ONNX fp32", "student ONNX int8 *"]
    assert out[3:] == [
        f"artefact folder: {finished / 'phone'}",
        f"report:          {finished / 'report.html'}",
    ]
    for said in (
        "data",
        "train: 600 rows, 0 duplicates",
        "student",
        "export to ONNX",
        "quantize ONNX to int8",
        "verify",
        "pack",
    ):
        assert said in err
    assert "Warning" not in err
    assert "Traceback" not in err


def test_run_with_two_formats(finished_tflite: Path) -> None:
    out = finished_tflite.with_suffix(".stdout").read_text().splitlines()
    assert [line.split("\t")[0] for line in out if "\t" in line] == [
        "model",
        "student TFLite fp32",
        "student TFLite fp32 for mediapipe",
        "student TFLite int8 *",
        "student TFLite int8 for mediapipe",
        "student TFLite int8 for tflite216",
        "student ONNX fp32",
        "student ONNX int8",
    ]
    said_lines = finished_tflite.with_suffix(".stderr").read_text().splitlines()
    err = [re.sub(r"^\[\d+/\d+\] ", "", line) for line in said_lines]
    numbers = [(int(m[1]), int(m[2])) for line in said_lines if (m := re.match(r"\[(\d+)/(\d+)\] ", line))]
    for said in (
        "student: finished before, skipped",
        "export to TFLite",
        "quantize TFLite to int8",
        "export to ONNX: finished before, skipped",
        "golden rows",
        "pack",
    ):
        assert said in err
    assert {count for _, count in numbers} == {len(numbers)} == {max(n for n, _ in numbers)}, "step 3 of 14"
    # libraries that print from C++ and from Python are kept off the terminal, in a fresh process too
    known = (
        "data",
        "teacher ",
        "distill.",
        "student",
        "export ",
        "quantize ",
        "golden rows",
        "verify",
        "pack",
        "  ",
        "* is",
        "Try it: ",
    )
    assert [line for line in err if line and not line.startswith(known)] == []
    assert "Warning" not in "\n".join(err)


def test_predict_with_each_file_of_a_folder(cli: Cli, finished_tflite: Path) -> None:
    texts = ["dim the bulb now", "a nice old song", "wake me"]
    listed = json.loads((finished_tflite / "phone" / "artifacts.json").read_text())
    assert listed["absent"] == {}
    for more in (
        [],
        ["--scheme", "fp32"],
        ["--format", "onnx"],
        ["--format", "onnx", "--scheme", "fp32"],
        ["--format", "tflite", "--threads", "1"],
    ):
        result = cli("predict", "-m", finished_tflite / "phone", "--json", *more, *texts)
        assert labels(result) == ["lamp", "music", "timer"], more
        assert result.stderr == ""


def test_again_everything_is_finished_and_said(cli: Cli, task: Any, run_copy: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in (run_copy / "phone").rglob("*")}
    result = cli("run", task.recipe, "-o", run_copy, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("finished before, skipped") == 9
    answer = json.loads(result.stdout.splitlines()[-1])
    assert answer["phone"] == str(run_copy / "phone")
    small, smaller = answer["models"]
    assert [small["name"], smaller["name"]] == ["student ONNX fp32", "student ONNX int8"]
    assert (small["default"], smaller["default"]) == (False, True)
    assert small["bytes"] > smaller["bytes"] == (run_copy / "phone" / smaller["file"]).stat().st_size
    assert 0.5 < smaller["score"] <= 1 and smaller["metric"] == "accuracy"
    assert small["p50_ms"] is None, "this recipe measures nothing"
    assert {p: p.stat().st_mtime_ns for p in (run_copy / "phone").rglob("*")} == before


def test_quiet_says_nothing_but_the_answer(cli: Cli, task: Any, run_copy: Path) -> None:
    result = cli("run", task.recipe, "-o", run_copy, "-q")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "artefact folder:" in result.stdout
    loud = cli("run", task.recipe, "-o", run_copy)  # quiet is not remembered
    assert "finished before" in loud.stderr


def test_json_answers_parse(cli: Cli, task: Any, run_copy: Path, tmp_path: Path) -> None:
    phone = shutil.copytree(run_copy / "phone", tmp_path / "phone")
    undo(run_copy, "pack")
    last = {}
    for name, arguments in {
        "finetune": ["finetune", task.recipe, "-o", run_copy],
        "distill": ["distill", task.recipe, "-o", run_copy],
        "dry": ["run", task.recipe, "-o", run_copy, "--dry-run"],
        "verify": ["verify", "-m", run_copy],
        "pack": ["pack", "-m", run_copy, "-o", tmp_path / "packed"],
        "report": ["report", "-m", run_copy, "-o", tmp_path / "r.html"],
        "check": ["data", "check", task.recipe],
        "ls": ["recipes", "ls"],
        "families": ["families"],
        "devices": ["devices"],
        "doctor": ["doctor"],
        "benchmark": [
            "benchmark",
            "-m",
            phone,
            "--threads",
            "1",
            "--lengths",
            "16",
            "--runs",
            "10",
            "--repeats",
            "2",
            "--gaps",
            "1",
        ],
    }.items():
        result = cli(*arguments, "--json")
        assert result.exit_code == 0, result.output
        last[name] = json.loads(result.stdout.splitlines()[-1])
    assert last["finetune"] == {"teacher": str(run_copy / "teacher")}
    assert last["distill"] == {"student": str(run_copy / "student")}
    assert {s["name"]: s["state"] for s in last["dry"]}["pack"] == "to do"
    assert last["verify"]["status"] == "passed"
    assert last["pack"]["files"] == ["onnx/model.onnx", "onnx/model_int8.onnx"]
    assert (tmp_path / "r.html").is_file()
    assert [s["rows"] for s in last["check"]["splits"]] == [600, 150]
    assert {r["name"] for r in last["ls"]} >= {"demo", "sst2"}
    assert {f["name"] for f in last["families"]} >= {"bert", "roberta", "distilbert", "mobilebert"}
    assert last["devices"][0]["name"] == "local"
    assert {b["present"] for b in last["doctor"]["backends"]} <= {True, False}
    assert len(last["benchmark"]["measurements"]) == 8  # two files, real text and one length, each also after idle time


# looking around


def test_recipes(cli: Cli, tmp_path: Path) -> None:
    listed = cli("recipes", "ls")
    assert listed.exit_code == 0
    assert listed.stdout.splitlines()[0] == "name\ttask\tdescription"
    shown = cli("recipes", "show", "sst2")
    assert "teacher:" in shown.stdout
    mine = tmp_path / "mine.yaml"
    assert cli("recipes", "cp", "sst2", mine).exit_code == 0
    header = mine.read_text().splitlines()[0]
    schema = Path(header.removeprefix("# yaml-language-server: $schema="))
    assert json.loads(schema.read_text())["title"] == "PocketBERT recipe"
    again = cli("recipes", "cp", "sst2", mine)
    assert again.exit_code == 2
    assert "exists; nothing was written." in again.stderr
    valid = cli("recipes", "validate", mine, "seed=5", "student.layers=2")
    assert valid.exit_code == 0
    assert "valid, task text-classification, 1 distillation stage\n" in valid.stdout
    assert cli("recipes", "show", "sst3").exit_code == 2
    assert json.loads(cli("recipes", "schema").stdout)["title"] == "PocketBERT recipe"


def test_families_and_devices_and_doctor(cli: Cli) -> None:
    families = cli("families").stdout
    for name in ("BERT", "RoBERTa", "DistilBERT", "MobileBERT"):
        assert f"{name}\t" in families
    assert cli("devices").stdout.splitlines()[1].startswith("local")
    doctor = cli("doctor")
    assert doctor.exit_code == 0
    for said in (
        "machine:",
        "training:",
        "float32" if "float32" in doctor.stdout else "bfloat16",
        "HTML report",
        "onnxruntime",
    ):
        assert said in doctor.stdout


def test_data_check_reads_without_training(cli: Cli, task: Any, tmp_path: Path) -> None:
    rows = task_rows(30, 9)
    rows += [rows[0], {**rows[1], "label": "timer"}, {"text": "song " + "very " * 60, "label": "music"}]
    train = write_lines(tmp_path / "train.jsonl", rows)
    held = write_lines(tmp_path / "eval.jsonl", [*task_rows(12, 10), rows[3]])
    recipe = task.variant(tmp_path / "r.yaml", data={"train": {"path": str(train)}, "eval": {"path": str(held)}})
    result = cli("data", "check", recipe)
    assert result.exit_code == 0, result.output
    assert "train: 32 rows, 2 duplicates (1 of them with another label), 1 truncated at 40" in result.stdout
    assert "train rows that also occur in eval: 1 (left out of training)" in result.stdout
    assert not list(tmp_path.glob("run*"))
