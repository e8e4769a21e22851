"""`pocketbert plan`: what a user reads and gets before anything is trained."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.recipe.planned import PlannedSection
from support.tiny_task import Task
from support.tiny_texts import task_rows, write_lines

Cli = Callable[..., Any]
QUICK = (
    "teacher.finetune={steps: 20, batch: 16, lr: 3.0e-3}",
    "distill=[{method: task, steps: 20, batch: 16, lr: 3.0e-3}]",
    "export.lengths=[16]",
)


@pytest.mark.slow
def test_from_rows_to_the_recipe_of_the_chosen_student(cli: Cli, task: Task, tmp_path: Path) -> None:
    data, plan = write_lines(tmp_path / "rows.jsonl", task_rows(200, 1)), tmp_path / "plan"
    settings = (*QUICK, f"teacher.model={task.folder / 'teacher'}")
    command = ("plan", "--data", data, "--max-size-mb", 30, "--max-p90-ms", 900, "--scheme", "int8", "-o", plan)
    result = cli(*command, *settings)
    assert result.exit_code == 0, result.output
    header, *rows = [line.split("\t") for line in result.stdout.splitlines() if "\t" in line]
    assert header == ["student", "pieces", "training", "onnx int8"]
    assert {"static", "layers-1", "layers-2"} <= {row[0] for row in rows}
    assert all(re.fullmatch(r"\(?~?[\d.]+ [kM]B, ~?[\d.]+ ms\)?( \*)?", row[3]) for row in rows), rows
    assert [row[0] for row in rows if row[3].endswith("*")] == ["layers-2"], "the largest inside"
    assert f"Next: pocketbert run {plan}/recipe.yaml -o runs/rows" in result.stderr

    written = json.loads((plan / "plan.json").read_text())
    assert written["chosen"] == "layers-2"
    measured = {s["name"]: s["files"][1] for s in written["students"]}
    assert measured["layers-1"]["by"] == measured["layers-1"]["times"][0]["by"] == "measured"
    assert measured["static"]["bytes"] < measured["layers-1"]["bytes"] < measured["layers-2"]["bytes"]
    page = (plan / "plan.html").read_text()
    assert all(word in page for word in ("<svg", "layers-2", "inside", "at most 30 MB"))

    recipe = load_recipe(plan / "recipe.yaml", settings)
    assert recipe.student is not None
    assert (recipe.student.layers, recipe.quantize.scheme) == (2, "int8")
    assert recipe.planned is not None
    assert {file.file for file in recipe.planned.files} == {"onnx/model.onnx", "onnx/model_int8.onnx"}

    again = cli(*command, *settings)
    assert again.exit_code == 2
    assert all(f"{plan / name}: exists" in again.stderr for name in ("recipe.yaml", "plan.json", "plan.html"))
    none = cli(*command[:3], "--max-size-mb", 0.001, "--scheme", "int8", "-o", plan, "--overwrite", *settings)
    assert none.exit_code == 3
    assert f"{plan}/recipe.yaml is left from an earlier plan" in none.stderr


def test_a_task_is_planned_without_rows_and_says_what_is_missing(cli: Cli, task: Task) -> None:
    settings = (*QUICK, f"teacher.model={task.folder / 'teacher'}")
    options = ("--task", "text-classification", "--scheme", "fp32", "--choose", "static", "--json")
    result = cli("plan", *options, *settings)
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert (plan["chosen"], plan["scheme"]) == ("static", "fp32")
    assert "Without rows: no training times" in plan["notes"][0]
    assert all("training_min" not in student for student in plan["students"])


def test_all_wrong_options_are_named_at_once(cli: Cli, tmp_path: Path) -> None:
    options = {
        "--max-size-mb": ("8000000", "for 8,000,000 bytes write 8"),
        "--max-p90-ms": ("0.003", "for 0.003 seconds write 3"),
        "--device": ("vela:ethos-u55-128", "gives no latency; allowed: local"),
        "--format": ("onyx", "'onyx' is no format"),
        "--scheme": ("int9,w4", "'int9' is no scheme"),
    }
    words = [word for flag, (value, _) in options.items() for word in (flag, value)]
    result = cli("plan", *words, "-o", tmp_path / "plan")
    assert result.exit_code == 2
    assert "--data, --task: neither is given." in result.stderr
    assert [message for _, message in options.values() if message not in result.stderr] == []
    assert not (tmp_path / "plan").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--choose", "layers-9"), "--choose: no student 'layers-9'"),
        (("student=null", "distill=[]"), "distill: a plan is for one stage of method task"),
        (
            ("distill=[{method: tinybert-intermediate, steps: 4, reference: true}, {method: task, steps: 4}]",),
            "one stage of method task",
        ),
        (("--scheme", "int8-b32", "--format", "onnx,tflite"), "int8-b32 does not exist in TFLite"),
    ],
)
def test_what_cannot_be_planned_is_refused(cli: Cli, task: Task, options: tuple[str, ...], message: str) -> None:
    flags, settings = [o for o in options if "=" not in o], [o for o in options if "=" in o]
    model = f"teacher.model={task.folder / 'teacher'}"
    result = cli("plan", "--task", "text-classification", *flags, model, *settings)
    assert (result.exit_code, message in result.stderr) == (2, True), result.output


def test_the_report_of_a_run_shows_its_plan_beside_what_was_measured(finished: Path) -> None:
    from pocketbert.benchmarks.report import render_report
    from pocketbert.pipeline.phone.report_facts import report_data

    recipe = load_recipe(finished / "recipe.resolved.yaml")
    size = (finished / "onnx" / "model.onnx").stat().st_size
    shared = {"file": "onnx/model.onnx", "scheme": "fp32", "bytes": round(size / 1.01)}
    planned = {"files": [{"student": name, **shared} for name in ("layers-1", "layers-2")]}
    recipe = recipe.model_copy(update={"planned": PlannedSection.model_validate(planned)})
    page = render_report(report_data(recipe, finished, "", []))
    table = page[page.index("Planned and measured") :].partition("</table>")[0]
    assert re.findall(r">([-+][\d.]+) %<", table) == ["+1.0"], "the plan of this student only"
    assert "Planned and measured" not in render_report(
        report_data(load_recipe(finished / "recipe.resolved.yaml"), finished, "", [])
    )
