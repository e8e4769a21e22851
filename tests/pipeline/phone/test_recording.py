"""Recording figures into an artefact folder: list, card and report have them, model files stay, and failures change nothing."""

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
from support.tiny_texts import task_rows

QUICK = BenchmarkOptions(threads=[1], lengths=["text"], runs=10, repeats=2, budget_s=5)


@pytest.fixture
def test_rows(tmp_path: Path, write_rows: Callable[..., Path]) -> Path:
    """Rows that the run has not seen."""
    return write_rows(tmp_path / "test.jsonl", task_rows(60, 7))


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_scores_of_a_verification(phone: Path, test_rows: Path) -> None:
    before = content(phone)
    result = api.verify(phone, test_rows, max_drop=0.1, record=True)
    artefacts, after = read_artefacts(phone), content(phone)
    for record in artefacts.models():
        assert record.scores["test.jsonl"] == result.scores[record.path]["test.jsonl"]
        assert record.scores["eval"].rows == 150, "the run's own score stays"
    assert list_integrity_problems(phone, artefacts) == []
    assert {name for name in after if after[name] != before.get(name)} == {
        "README.md",
        "artifacts.json",
        "report.html",
        "report.json",
    }
    shown = f"{100 * artefacts.default_model().scores['test.jsonl'].value:.2f}"
    assert shown in (phone / "README.md").read_text()
    assert re.search(rf"test\.jsonl.{{0,200}}{shown}", (phone / "report.html").read_text(), re.S)
    assert api.verify(phone).status is Status.PASSED


def test_recording_twice_changes_nothing_more(phone: Path, test_rows: Path) -> None:
    api.verify(phone, test_rows, max_drop=0.1, record=True)
    before = content(phone)
    api.verify(phone, test_rows, max_drop=0.1, record=True)
    assert content(phone) == before


def test_latencies_of_a_benchmark(phone: Path) -> None:
    result = api.benchmark([phone], QUICK, record=True)
    kept = BenchmarkResult.read(phone / "benchmark.json")
    assert [v.sha256 for v in kept.variants] == [v.sha256 for v in result.variants]
    assert {str(v.path) for v in kept.variants} == {"onnx/model.onnx", "onnx/model_int8.onnx"}, (
        "no path of this machine"
    )
    assert list_integrity_problems(phone, read_artefacts(phone)) == []
    median = f"{kept.headline.measurements[-1].wall.p50:.2f}"
    assert f"| {median} |" in (phone / "README.md").read_text()
    assert f"{kept.headline.measurements[-1].variant}" in (phone / "report.html").read_text()


def test_text_that_the_user_wrote_into_the_card_stays(phone: Path, test_rows: Path) -> None:
    card = phone / "README.md"
    card.write_text(card.read_text().replace("# tiny", "# tiny\n\nAsk Ada before you use it.", 1))
    api.verify(phone, test_rows, max_drop=0.1, record=True)
    assert "Ask Ada before you use it." in card.read_text()
    assert "test.jsonl" in card.read_text()


def test_nothing_is_recorded_where_a_gate_fails(phone: Path, tmp_path: Path, write_rows: Callable[..., Path]) -> None:
    labels, rows = read_artefacts(phone).labels, task_rows(60, 7)
    wrong = [{**r, "label": labels[(labels.index(r["label"]) + 1) % len(labels)]} for r in rows]
    before = content(phone)
    with pytest.raises(GateError, match="Nothing was recorded"):
        api.verify(phone, write_rows(tmp_path / "wrong.jsonl", wrong), record=True)
    assert content(phone) == before


def test_recording_without_rows_is_refused(phone: Path) -> None:
    before = content(phone)
    with pytest.raises(InputError, match="nothing was scored"):
        api.verify(phone, record=True)
    assert content(phone) == before


def test_run_folders_and_several_folders_are_refused(finished: Path, phone: Path) -> None:
    with pytest.raises(InputError, match="run folder"):
        api.verify(finished, record=True)
    with pytest.raises(InputError, match="is a run folder"):
        api.benchmark([finished], QUICK, record=True)
    with pytest.raises(InputError, match="one artefact folder"):
        api.benchmark([phone, phone], QUICK, record=True)


def test_a_folder_that_another_process_writes_is_left_alone(phone: Path, test_rows: Path) -> None:
    before = content(phone)
    with lock_folder(phone), pytest.raises(MachineError, match="another process is writing"):
        api.verify(phone, test_rows, max_drop=0.1, record=True)
    assert content(phone) == before


def test_from_the_command_line(phone: Path, test_rows: Path, cli: Callable[..., Any]) -> None:
    told = cli("verify", "-m", phone, "--data", test_rows, "--max-drop", "0.1", "--record")
    assert told.exit_code == 0, told.stderr
    assert "recorded in" in told.stderr
    assert "test.jsonl" in read_artefacts(phone).default_model().scores
