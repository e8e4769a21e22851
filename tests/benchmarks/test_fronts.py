"""Score, latency and size on each device: which files are on the front, where scores come from, and that kinds of figures are not mixed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pocketbert.benchmarks.measurement import BenchmarkResult, Measurement
from pocketbert.benchmarks.records import Compilation, EmulatedAnswers
from pocketbert.benchmarks.report import ModelRow, ReportData, render_report
from pocketbert.benchmarks.report.output import write_result
from pocketbert.benchmarks.report.sections import _mark_unbeaten, make_front_figures
from pocketbert.benchmarks.statistics import Statistics
from pocketbert.core.artefacts import read_artefacts, write_artefacts
from pocketbert.core.predict.scores import Score
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Provenance
from support.compilations import compilation

NAMES = ("teacher fp32", "student int8")


def score(value: float, rows: int = 872, metric: str = "accuracy") -> Score:
    return Score(metric=metric, value=value, others={}, rows=rows, chance=0.5, finite=value == value)


@pytest.fixture
def timed(result: BenchmarkResult) -> BenchmarkResult:
    """The teacher takes twice the time of the student, which is the smaller file, too."""

    def slower(m: Measurement) -> Measurement:
        wall = Statistics.of([2.0, 2.2, 1.8] if m.variant == NAMES[0] else [1.0, 1.1, 0.9])
        return m.model_copy(update={"wall": wall, "wall_interval": None})

    return result.model_copy(update={"measurements": [slower(m) for m in result.measurements]})


def report(
    result: BenchmarkResult, scores: dict[str, Score], task: TaskName = TaskName.TEXT_CLASSIFICATION
) -> ReportData:
    rows = [
        ModelRow(name=v.name, bytes=v.bytes, sha256=v.sha256, eval_score=scores.get(v.name)) for v in result.variants
    ]
    return ReportData(title="t", task=task, machine=result.machine, rows=rows, benchmark=result)


def figures(data: ReportData) -> list[Any]:
    return make_front_figures(data, {row.name: number for number, row in enumerate(data.rows)} | {"x": 7})


def estimate(name: str, time_ms: float, products_left: int = 0, sha256: str = "") -> Compilation:
    made = compilation("vela:a", variant=name, sha256=sha256)
    assert made.estimate is not None
    expected = made.estimate.model_copy(update={"time_ms": time_ms, "products_left": products_left})
    return made.model_copy(update={"estimate": expected})


def test_what_no_other_row_beats() -> None:
    assert _mark_unbeaten([(1, 5), (2, 4), (3, 4), (2, 4), (9, 9)]) == [True, True, False, True, False]
    assert _mark_unbeaten([(1,)]) == [True]


def test_each_device_has_its_own_plot_and_its_name(result: BenchmarkResult) -> None:
    there = result.model_copy(
        update={"measurements": [m.model_copy(update={"device": "ssh:pi"}) for m in result.measurements]}
    )
    counts = Statistics.of([2e6, 2.1e6, 1.9e6])
    emulated = result.model_copy(
        update={
            "measurements": [
                m.model_copy(
                    update={
                        "device": "qemu-arm64",
                        "provenance": Provenance.EMULATED,
                        "wall": None,
                        "wall_ms": [],
                        "guest_instructions": counts,
                    }
                )
                for m in result.measurements
            ]
        }
    )
    made = [estimate(NAMES[0], 9.0), estimate(NAMES[1], 3.0, products_left=2)]
    joint = result.model_copy(update={"others": [there, emulated], "compilations": made})
    data = report(joint, {NAMES[0]: score(0.96), NAMES[1]: score(0.95)})
    found = figures(data)
    assert [f.caption.split(". ")[0] for f in found] == [
        "Score against latency on local",
        "Score against latency on ssh:pi",
        "Score against instructions on qemu-arm64 (emulated)",
        "Score against estimated time on vela:a (estimated)",
    ]
    assert [f.stamp.split(" · ")[0] for f in found] == ["measured", "measured", "emulated", "estimated"]
    axes = [re.findall(r">([^<]*log scale[^<]*)</text>", f.svg)[0] for f in found]
    assert "ms" not in axes[2]
    assert axes[2].startswith("million guest instructions, emulated")
    assert axes[3].startswith("estimated ms on the NPU")
    assert "On no front, since matrix products stay on the CPU: student int8." in found[3].caption
    assert all("scores: measured" in f.stamp and "872 rows" in f.stamp for f in found)
    page = render_report(data)
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))


def test_a_file_that_another_one_beats_is_pale_and_not_on_the_line(timed: BenchmarkResult) -> None:
    slow, quick = NAMES
    (even,) = figures(report(timed, {slow: score(0.96), quick: score(0.95)}))
    assert "The dashed line joins" in even.caption
    assert "pale" not in even.caption
    (worse,) = figures(report(timed, {slow: score(0.94), quick: score(0.95)}))
    assert "The dashed line joins" not in worse.caption
    assert "Of pale ones another file is at least as good in score, latency and size." in worse.caption


def test_of_nats_the_lower_ones_are_better(timed: BenchmarkResult) -> None:
    slow, quick = NAMES
    nats = {slow: score(1.5, metric="cross_entropy"), quick: score(1.2, metric="cross_entropy")}
    (found,) = figures(report(timed, nats, TaskName.FILL_MASK))
    assert "pale" in found.caption


def test_files_without_a_score_and_devices_without_a_time_have_no_plot(result: BenchmarkResult) -> None:
    assert figures(report(result, {})) == []
    (one,) = figures(report(result, {NAMES[0]: score(0.9), NAMES[1]: score(float("nan"))}))
    assert [name.split(",")[0] for name, _ in one.legend] == [NAMES[0]]
    failed = estimate(NAMES[0], 1.0).model_copy(update={"failed": "it crashed"})
    bare = result.model_copy(update={"measurements": [], "compilations": [failed]})
    assert figures(report(bare, {NAMES[0]: score(0.9)})) == []


def recorded(phone: Any, rows: int = 872) -> None:
    artefacts = read_artefacts(phone)
    files = [
        f.model_copy(update={"scores": {"holdout": score(0.8), "eval": score(0.9, rows)}})
        if f.path.endswith(".onnx")
        else f
        for f in artefacts.files
    ]
    write_artefacts(phone, artefacts.model_copy(update={"files": files, "machine": "The Scoring Machine"}))


@pytest.fixture
def own(phone: Any, tmp_path: Any) -> Any:
    import shutil

    return shutil.copytree(phone, tmp_path / "phone")


def test_the_page_of_a_benchmark_has_the_scores_that_the_folder_records(
    own: Any, result: BenchmarkResult, tmp_path: Any
) -> None:
    (file,) = [f for f in read_artefacts(own).models() if f.path.endswith(".onnx")]
    student = result.variants[1]
    assert file.sha256 == student.sha256
    write_result(result, tmp_path / "bare.html", [own])
    assert "Score against" not in (tmp_path / "bare.html").read_text()
    recorded(own)
    write_result(result, tmp_path / "page.html", [own])
    page = (tmp_path / "page.html").read_text()
    assert "Score against latency on local" in page
    assert "measured · recorded in artifacts.json · The Scoring Machine" in page
    models = page.split('<section id="models">')[1].split("</table>")[0]
    assert "accuracy<br>eval" in models
    assert "90.00" in models


def test_without_recorded_scores_those_of_the_labelled_rows_are_taken(
    own: Any, result: BenchmarkResult, tmp_path: Any
) -> None:
    answers = EmulatedAnswers(
        variant=NAMES[1],
        rows=40,
        largest=0.1,
        tolerance=0.2,
        finite=True,
        provenance=Provenance.EMULATED,
        available=872,
        same=1.0,
        score=score(0.5, 40),
        score_here=score(0.75, 40),
    )
    made = estimate(NAMES[1], 1.0, sha256=result.variants[1].sha256)
    emulated = made.model_copy(update={"device": "qnn-host:A", "answers": answers, "estimate": None})
    joint = result.model_copy(update={"compilations": [emulated]})
    write_result(joint, tmp_path / "page.html", [own])
    page = (tmp_path / "page.html").read_text()
    assert "accuracy<br>rows of --data" in page
    assert "measured on the rows of --data that were emulated" in page
    front = page.split("Score against latency on local")[1].split("</figcaption>")[0]
    assert "40 rows" in front
    models = page.split('<section id="models">')[1].split("</table>")[0]
    assert "75.00" in models
    assert "50.00" not in models  # what the emulator scored is in its own table
