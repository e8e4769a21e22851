"""Recording figures into an artefact folder: list, card and report have them, model files stay, failures change nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert import api
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult
from pocketbert.core.artefacts import list_integrity_problems, read_artefacts
from pocketbert.core.disk.ownership import lock_folder
from pocketbert.core.errors import GateError, InputError, MachineError
from pocketbert.core.types import Status
from pocketbert.pipeline.phone.recording import record_benchmark
from support.folders import tree
from support.tiny_texts import task_rows, write_lines

QUICK = BenchmarkOptions(threads=[1], lengths=["text"], runs=10, repeats=2, budget_s=5)


@pytest.fixture
def new_rows(tmp_path: Path) -> Path:
    """Rows that the run has not seen."""
    return write_lines(tmp_path / "test.jsonl", task_rows(60, 7))


def test_scores_of_a_verification_in_an_edited_card(phone: Path, new_rows: Path, cli: Callable[..., Any]) -> None:
    card = phone / "README.md"
    card.write_text(card.read_text().replace("# tiny", "# tiny\n\nAsk Ada before you use it.", 1))
    before = tree(phone)
    recorded = ("verify", "-m", phone, "--data", new_rows, "--max-drop", "0.1", "--record")
    told = cli(*recorded)
    assert told.exit_code == 0, told.stderr
    assert "recorded in" in told.stderr
    artefacts, after = read_artefacts(phone), tree(phone)
    result = api.verify(phone, new_rows, max_drop=0.1)
    assert result.status is Status.PASSED
    for record in artefacts.models():
        assert record.scores["test.jsonl"] == result.scores[record.path]["test.jsonl"]
        assert record.scores["eval"].rows == 150, "the run's own score stays"
    assert list_integrity_problems(phone, artefacts) == []
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"README.md", "artifacts.json", "report.html", "report.json"}
    shown = f"{100 * artefacts.default_model().scores['test.jsonl'].value:.2f}"
    assert shown in card.read_text()
    assert "Ask Ada before you use it." in card.read_text()
    assert re.search(rf"test\.jsonl.{{0,200}}{shown}", (phone / "report.html").read_text(), re.S)
    cli(*recorded)
    assert tree(phone) == after, "recording twice changes nothing more"


def test_latencies_of_a_benchmark(phone: Path) -> None:
    result = api.benchmark([phone], QUICK, record=True)
    kept = BenchmarkResult.read(phone / "benchmark.json")
    assert [v.sha256 for v in kept.variants] == [v.sha256 for v in result.variants]
    assert [told.variants for told in kept.post_processing] == [[v.name for v in result.variants]]
    # no path of this machine
    assert {str(v.path) for v in kept.variants} == {"onnx/model.onnx", "onnx/model_int8.onnx"}
    assert list_integrity_problems(phone, read_artefacts(phone)) == []
    measured = kept.headline.measurements[-1]
    assert f"| {measured.wall.p50:.2f} |" in (phone / "README.md").read_text()
    assert measured.variant in (phone / "report.html").read_text()
    # a browser measures a file on several accelerators: the name has one, the path is that of the list
    named = {v.name: f"{v.name} webgpu" for v in result.variants}
    variants = [v.model_copy(update={"name": named[v.name]}) for v in result.variants]
    times = [m.model_copy(update={"variant": named[m.variant], "device": "browser: one"}) for m in result.measurements]
    browser = result.model_copy(update={"variants": variants, "measurements": times, "comparisons": []})
    record_benchmark(phone, result.model_copy(update={"others": [browser]}))
    assert [s.device for s in BenchmarkResult.read(phone / "benchmark.json").sessions] == ["local", "browser: one"]


def test_nothing_is_recorded_where_a_gate_fails_or_nothing_was_scored(phone: Path, tmp_path: Path) -> None:
    labels, rows = read_artefacts(phone).labels, task_rows(60, 7)
    wrong = [{**r, "label": labels[(labels.index(r["label"]) + 1) % len(labels)]} for r in rows]
    before = tree(phone)
    with pytest.raises(GateError, match="Nothing was recorded"):
        api.verify(phone, write_lines(tmp_path / "wrong.jsonl", wrong), record=True)
    with pytest.raises(InputError, match="nothing was scored"):
        api.verify(phone, record=True)
    assert tree(phone) == before


def test_run_folders_and_several_folders_are_refused(finished: Path, phone: Path) -> None:
    with pytest.raises(InputError, match="run folder"):
        api.verify(finished, record=True)
    with pytest.raises(InputError, match="is a run folder"):
        api.benchmark([finished], QUICK, record=True)
    with pytest.raises(InputError, match="one artefact folder"):
        api.benchmark([phone, phone], QUICK, record=True)


def test_a_folder_that_another_process_writes_is_left_alone(phone: Path, new_rows: Path) -> None:
    before = tree(phone)
    with lock_folder(phone), pytest.raises(MachineError, match="another process is writing"):
        api.verify(phone, new_rows, max_drop=0.1, record=True)
    assert tree(phone) == before
