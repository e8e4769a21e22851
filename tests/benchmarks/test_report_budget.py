"""What the report shows of a search inside a budget: a plot for each format, and a table of everything considered."""

from __future__ import annotations

import re

from pocketbert.benchmarks.report import ReportData, render_report
from pocketbert.benchmarks.report.sections import describe_limits, draw_searches, make_search_table, make_student_table
from pocketbert.core.artefacts import BudgetSearch, Candidate, ConsideredStudent
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, Scheme


def candidate(format: Format, scheme: Scheme, **figures: object) -> Candidate:
    return Candidate(path=f"{format}/model_{scheme}", format=format, scheme=scheme, **figures)


def search(**limits: float) -> BudgetSearch:
    onnx, tflite = Format.ONNX, Format.TFLITE
    found = {"bytes": 12_450_000, "rel": 0.0457, "agreement": 0.965, "drop": 0.0121, "front": True}
    return BudgetSearch(
        budget=limits,
        wins="the smallest file inside",
        metric="accuracy",
        ranked_on=300,
        chosen_on=578,
        scored_on=614,
        rows="578 rows of dev.csv chose.",
        candidates=[
            candidate(onnx, Scheme.SMALL, **found, inside=True, chosen=True),
            candidate(onnx, Scheme.W4, bytes=11_000_000, rel=0.06, drop=-0.002, front=True, inside=False),
            candidate(onnx, Scheme.INT8, note="not written: <b>about 17.5 MB</b>", inside=False),
            candidate(tflite, Scheme.SMALL, bytes=13_000_000, rel=0.04, p90_ms=3.25),
        ],
    )


def test_each_format_with_scores_has_a_plot_with_the_limits() -> None:
    (plot,) = draw_searches(search(max_drop=0.02, max_size_mb=13.5))
    assert "small, chosen" in plot.svg
    assert plot.svg.count("var(--c5)") >= 3, "two limits and their legend"
    assert "578 rows" in plot.caption
    (free,) = draw_searches(search(max_p90_ms=4))
    assert "limit</text>" not in free.svg, "neither size nor loss is limited"


def test_the_table_has_every_candidate_and_says_why_figures_are_missing() -> None:
    rows = make_search_table(search(max_drop=0.02))
    assert [r["verdict"] for r in rows] == ["inside", "outside", "outside", "not scored"]
    assert (rows[0]["lost"], rows[1]["lost"]) == ("1.21 points worse", "0.20 points better")
    assert (rows[0]["same"], rows[3]["p90"]) == ("96.5%", "3.25")
    assert describe_limits(search(max_drop=0.02, max_size_mb=8)) == "loss at most 2 points, size at most 8 MB"
    data = ReportData(
        title="t", task=TaskName.TEXT_CLASSIFICATION, machine=describe_machine(), rows=[], search=search(max_drop=0.02)
    )
    page = render_report(data)
    text = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    assert "578 rows of dev.csv chose." in text
    assert "&lt;b&gt;about 17.5 MB" in page
    assert 'href="#budget"' in page
    assert 'href="#budget"' not in render_report(data.model_copy(update={"search": None}))


def test_students_have_shapes_a_legend_and_a_table_of_their_figures() -> None:
    students = [
        ConsideredStudent(name="own", parameters=17_000_000, lost=0.0),
        ConsideredStudent(name="narrow", note="not exported: <b>"),
    ]
    one = search(max_drop=0.02)
    told = one.model_copy(
        update={
            "students": students,
            "candidates": [
                c.model_copy(update={"student": n})
                for c, n in zip(one.candidates, ("own", "narrow", "own", "own"), strict=True)
            ],
        }
    )
    (figure,) = draw_searches(told)
    assert "student own" in figure.svg
    assert "student narrow" in figure.svg
    assert "student own" not in draw_searches(one)[0].svg
    assert make_student_table(told)[0] == ("own", "17.00 M", "no difference", "")
    assert make_student_table(told)[1][3] == "not exported: <b>"
    assert [r["student"] for r in make_search_table(told)][:2] == ["own", "narrow"]
