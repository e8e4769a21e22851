"""What the report shows at a glance: gates as a matrix, and which file is the fastest."""

from __future__ import annotations

import re
from typing import Any

from pocketbert.benchmarks.report import GateRow, ModelRow, ReportData, render_report
from pocketbert.benchmarks.report.page import _arrange_gates, _find_fastest_file
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.tasks import TaskName


def report(**more: Any) -> ReportData:
    return ReportData(title="t", task=TaskName.TEXT_CLASSIFICATION, machine=describe_machine(), **{"rows": [], **more})


def words(data: ReportData) -> str:
    """What a reader sees of the page, without its styles and tags."""
    page = re.sub(r"<style>.*?</style>", "", render_report(data), flags=re.S)
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def test_gates_are_a_matrix_with_failures_first() -> None:
    gates = [
        GateRow(name="golden", file="a.onnx", passed=True, detail="equal"),
        GateRow(name="golden", file="b.onnx", passed=False, value=0.5, bound=0.1, detail="0.5 off"),
        GateRow(name="engine", file="c.mlpackage", passed=True, skipped=True, detail="no engine"),
    ]
    names, files = _arrange_gates(gates)
    assert names == ["golden", "engine"]
    assert files == [
        ("a.onnx", ["passed", ""]),
        ("b.onnx", ["failed", ""]),
        ("c.mlpackage", ["", "skipped"]),
    ]
    text = words(report(gates=gates))
    assert text.index("failed gate") < text.index("0.5 off") < text.index("skipped")


def test_of_two_gates_with_one_name_the_failed_one_decides() -> None:
    twice = [GateRow(name="drop", file="a", passed=p) for p in (True, False, True)]
    assert _arrange_gates(twice)[1] == [("a", ["failed"])]


def test_the_fastest_file_is_marked_where_several_were_timed(result: Any) -> None:
    rows = [ModelRow(name=v.name, bytes=v.bytes) for v in result.variants]
    data = report(rows=rows, benchmark=result)
    threads, length = 1, "text"
    medians = {row.name: result.find(row.name, threads, length).wall.p50 for row in rows}
    assert len(medians) > 1
    assert _find_fastest_file(data) == min(medians, key=lambda name: medians[name])
    assert words(data).count("fastest") == words(report(rows=rows[:1], benchmark=result)).count("fastest") + 1
