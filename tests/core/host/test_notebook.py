"""Results in a notebook: a short text, a table in which nothing is markup, numbers for programs."""

from __future__ import annotations

from pathlib import Path

from pocketbert import Gate, RunResult, Verification
from pocketbert.benchmarks.report import ModelFigures
from pocketbert.core.host.terminal import html_table
from pocketbert.core.types import Status


def test_cells_are_no_markup(tmp_path: Path) -> None:
    shown = html_table(("<b>",), [("<script>alert(1)</script>",)], "a & b", tmp_path / "re port.html")
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "a &amp; b" in shown
    assert "re%20port.html" in shown


def test_a_run_shows_its_closing_table() -> None:
    figures = ModelFigures("ONNX int8", "onnx/model_int8.onnx", True, 17_000_000, "accuracy", score=0.91)
    table = [["ONNX int8", "17 MB"]]
    result = RunResult(Path("runs/x"), Path("runs/x/phone"), None, ["model", "size"], table, [figures])
    assert repr(result) == "<RunResult of 1 models, folder='runs/x', phone='runs/x/phone'>"
    assert "ONNX int8" in result._repr_html_()
    told = result.to_dict()
    (model,) = told.pop("models")
    assert told == {"folder": "runs/x", "phone": "runs/x/phone", "report": None}
    assert (model["bytes"], model["score"], model["p50_ms"]) == (17_000_000, 0.91, None)


def test_a_verification_shows_failures_by_file() -> None:
    gates = [
        Gate(name="finite", file="a.onnx", passed=True),
        Gate(name="golden", file="a.onnx", passed=False, detail="differs by 3"),
        Gate(name="integrity", file="", passed=True),
    ]
    found = Verification(status=Status.FAILED, gates=gates)
    assert repr(found) == "<Verification failed: 3 gates, 1 failed, 0 files scored>"
    assert "differs by 3" in found._repr_html_()
    assert found.to_dict()["gates"][1]["name"] == "golden"
    assert found.summary() == [("a.onnx: 1 check passed, 1 failed", True), ("folder: 1 check passed", False)]
    found.gates[0].skipped = found.gates[1].skipped = True
    assert found.summary()[0] == ("a.onnx: not checked", False)
