"""Score, cost and size of files on each device, and what the report shows of a search inside a budget."""

import math
import re

import pytest

from pocketbert.benchmarks.records import Estimate
from pocketbert.benchmarks.report import plots, render_report
from pocketbert.benchmarks.report.sections import (
    describe_limits,
    draw_searches,
    make_front_figures,
    make_search_table,
    make_student_table,
)
from pocketbert.benchmarks.report.sources import Citation, Sources
from pocketbert.benchmarks.statistics import Statistics
from pocketbert.core.artefacts import BudgetSearch, Candidate, ConsideredStudent
from pocketbert.core.predict.scores import Score
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, Provenance, Scheme
from support.compilations import compilation

SLOW, QUICK = "teacher fp32", "student int8"
HERE = Citation("measured", 1)


@pytest.fixture
def make_figures(make_data):
    """`make_figures(result, scores, **more)`: the data with scores by file, and its plots."""

    def make(result, scores, metric="accuracy", **more):
        data = make_data(benchmark=result, **more)
        made = {
            name: Score(metric=metric, value=value, others={}, rows=872, chance=0.5, finite=math.isfinite(value))
            for name, value in scores.items()
        }
        rows = [row.model_copy(update={"eval_score": made.get(row.name)}) for row in data.rows]
        data = data.model_copy(update={"rows": rows})
        numbers = {row.name: number for number, row in enumerate(rows)}
        return data, make_front_figures(data, numbers, Sources())

    return make


@pytest.fixture
def timed(result):
    """The teacher takes twice the time of the student, which is the smaller file, too."""
    walls = {SLOW: Statistics.of([2.0, 2.2, 1.8]), QUICK: Statistics.of([1.0, 1.1, 0.9])}
    made = [m.model_copy(update={"wall": walls[m.variant], "wall_interval": None}) for m in result.measurements]
    return result.model_copy(update={"measurements": made})


def make_estimate(name, time_ms, products_left=0):
    made = compilation("vela:a", variant=name)
    expected: Estimate = made.estimate.model_copy(update={"time_ms": time_ms, "products_left": products_left})
    return made.model_copy(update={"estimate": expected})


def test_each_device_has_its_own_plot_and_its_name(result, change_all, make_figures):
    there = change_all(result, device="ssh:pi")
    counts = {"wall": None, "wall_ms": [], "guest_instructions": Statistics.of([2e6, 2.1e6, 1.9e6])}
    emulated = change_all(result, device="qemu-arm64", provenance=Provenance.EMULATED, **counts)
    estimates = [make_estimate(SLOW, 9.0), make_estimate(QUICK, 3.0, products_left=2)]
    joint = result.model_copy(update={"others": [there, emulated], "compilations": estimates})
    data, found = make_figures(joint, {SLOW: 0.96, QUICK: 0.95})
    assert [(f.caption.split(". ")[0], f.sources[-1].provenance) for f in found] == [
        ("Score against latency on local", "measured"),
        ("Score against latency on ssh:pi", "measured"),
        ("Score against instructions on qemu-arm64 (emulated)", "emulated"),
        ("Score against estimated time on vela:a (estimated)", "estimated"),
    ]
    axes = [re.findall(r">([^<]*log scale[^<]*)</text>", f.svg)[0] for f in found]
    assert "ms" not in axes[2]
    assert axes[2].startswith("million guest instructions, emulated")
    assert axes[3].startswith("estimated ms on the NPU")
    assert "On no front, since matrix products stay on the CPU: student int8." in found[3].caption
    assert all(f.sources[0].provenance == "measured" for f in found), "the scores"
    ids = re.findall(r'\bid="([^"]*)"', render_report(data))
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("scores", "task", "beaten"),
    [
        ({SLOW: 0.96, QUICK: 0.95}, TaskName.TEXT_CLASSIFICATION, []),
        ({SLOW: 0.94, QUICK: 0.95}, TaskName.TEXT_CLASSIFICATION, [SLOW]),
        ({SLOW: 0.95, QUICK: 0.95}, TaskName.TEXT_CLASSIFICATION, [SLOW]),
        ({SLOW: 1.5, QUICK: 1.2}, TaskName.FILL_MASK, [SLOW]),  # of nats the lower ones are better
        ({SLOW: 1.2, QUICK: 1.5}, TaskName.FILL_MASK, []),
    ],
)
def test_a_file_that_another_one_beats_is_pale_and_not_on_the_line(
    timed, make_figures, monkeypatch, scores, task, beaten
):
    drawn, draw = [], plots.draw_score_over_cost
    monkeypatch.setattr(
        plots, "draw_score_over_cost", lambda points, *more: drawn.extend(points) or draw(points, *more)
    )
    metric = "cross_entropy" if task is TaskName.FILL_MASK else "accuracy"
    _, (figure,) = make_figures(timed, scores, metric, task=task)
    assert [p.name for p in drawn if p.beaten] == [p.name for p in drawn if not p.line] == beaten
    assert ("The dashed line joins" in figure.caption) is not bool(beaten)
    pale = "Of pale ones another file is at least as good in score, latency and size."
    assert (pale in figure.caption) is bool(beaten)


# --- search inside a budget ------------------------------------------------------------------------------------------------------


def make_search(students=(), **limits):
    def candidate(format, scheme, **figures):
        return Candidate(path=f"{format}/model_{scheme}", format=format, scheme=scheme, **figures)

    found = {"bytes": 12_450_000, "rel": 0.0457, "agreement": 0.965, "drop": 0.0121, "front": True}
    candidates = [
        candidate(Format.ONNX, Scheme.SMALL, **found, inside=True, chosen=True),
        candidate(Format.ONNX, Scheme.W4, bytes=11_000_000, rel=0.06, drop=-0.002, front=True, inside=False),
        candidate(Format.ONNX, Scheme.INT8, note="not written: <b>about 17.5 MB</b>", inside=False),
        candidate(Format.TFLITE, Scheme.SMALL, bytes=13_000_000, rel=0.04, p90_ms=3.25),
    ]
    if students:
        names = ("own", "narrow", "own", "own")
        candidates = [c.model_copy(update={"student": n}) for c, n in zip(candidates, names, strict=True)]
    about = {"wins": "the smallest file inside", "metric": "accuracy", "rows": "578 rows of dev.csv chose."}
    counts = {"ranked_on": 300, "chosen_on": 578, "scored_on": 614}
    return BudgetSearch(budget=limits, candidates=candidates, students=list(students), **about, **counts)


def test_the_table_has_every_candidate_and_says_why_figures_are_missing(make_data, words):
    search = make_search(max_drop=0.02)
    rows = make_search_table(search)
    assert [r["verdict"] for r in rows] == ["inside", "outside", "outside", "not scored"]
    assert (rows[0]["lost"], rows[1]["lost"]) == ("1.21 points worse", "0.20 points better")
    assert (rows[0]["same"], rows[3]["p90"]) == ("96.5%", "3.25")
    limits = describe_limits(make_search(max_drop=0.02, max_size_mb=8))
    assert limits == "loss at most 2 points, size at most 8 MB"
    page = render_report(make_data(search=search))
    assert "578 rows of dev.csv chose." in words(page)
    assert "&lt;b&gt;about 17.5 MB" in page
    assert 'href="#budget"' in page
    assert 'href="#budget"' not in render_report(make_data())


def test_students_have_shapes_a_legend_and_a_table_of_their_figures():
    own = ConsideredStudent(name="own", parameters=17_000_000, lost=0.0)
    told = make_search([own, ConsideredStudent(name="narrow", note="not exported: <b>")], max_drop=0.02)
    (figure,) = draw_searches(told, HERE)
    assert "student own" in figure.svg
    assert "student narrow" in figure.svg
    assert "student own" not in draw_searches(make_search(max_drop=0.02), HERE)[0].svg
    assert make_student_table(told)[0] == ("own", "17.00 M", "no difference", "")
    assert make_student_table(told)[1][3] == "not exported: <b>"
    assert [r["student"] for r in make_search_table(told)][:2] == ["own", "narrow"]
