"""A plan in words, as a page, and beside what was measured."""

from __future__ import annotations

from pathlib import Path

from pocketbert.benchmarks.report.figures import ModelRow
from pocketbert.benchmarks.report.planning import describe_plan, make_plan_table, write_plan
from pocketbert.benchmarks.report.sections import compare_with_plan
from pocketbert.core.recipe.planned import PlanLimits, PlannedFile, PlannedStudent, PlannedTime, StudentPlan
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.types import Provenance, Scheme


def student(name: str, layers: int, size: int, p90: float, by: Provenance) -> PlannedStudent:
    """A student with an int8 file of so many bytes and so many ms."""
    file = PlannedFile(
        student=name,
        file="onnx/model_int8.onnx",
        scheme=Scheme.INT8,
        bytes=size,
        by=by,
        times=[PlannedTime(p50_ms=p90 / 2, p90_ms=p90, by=by), PlannedTime(device="adb", p50_ms=p90, p90_ms=2 * p90)],
    )
    section = StudentSection(layers=layers)
    return PlannedStudent(
        name=name, layers=layers, width=None, pieces=900, work=layers, student=section, files=[file], training_min=0.5
    )


PLAN = StudentPlan(
    name="my<rows>",
    task="text-classification",
    teacher="minilm-l6",
    machine="a machine",
    devices=["local", "adb"],
    threads=1,
    tokens=11.0,
    limits=PlanLimits(max_size_mb=9),
    teacher_min=3.0,
    students=[
        student("layers-1", 1, 8_000_000, 1.0, Provenance.MEASURED),
        student("layers-2", 2, 10_000_000, 2.0, Provenance.ESTIMATED),
    ],
    chosen="layers-1",
    scheme=Scheme.INT8,
)


def test_the_table_marks_what_is_estimated_outside_and_chosen() -> None:
    header, rows = make_plan_table(PLAN)
    assert header == ["student", "pieces", "training", "onnx int8"]
    assert [row[-1] for row in rows] == ["8.0 MB, 1.00 / 2.00 ms *", "(~10.0 MB, ~2.00 / 4.00 ms)"]
    words = " ".join(describe_plan(PLAN))
    assert "the teacher is fine-tuned: ~3 min" in words
    assert "Chosen: layers-1 in int8 (the largest inside the limits)" in words
    named = PLAN.model_copy(update={"chosen": "layers-2"})
    assert "Chosen: layers-2 in int8 (outside the limits)" in " ".join(describe_plan(named))
    roomy = PLAN.model_copy(update={"limits": PlanLimits(max_size_mb=90)})
    assert "Chosen: layers-1 in int8 (inside the limits)" in " ".join(describe_plan(roomy))


def test_columns_are_of_formats_without_times_too_but_not_of_exported_files() -> None:
    (first, *_), files = PLAN.students, dict[str, PlannedFile]()
    for name, scheme in (("onnx/model.onnx", Scheme.FP32), ("coreml/Model.mlpackage", Scheme.INT8)):
        files[name] = first.files[0].model_copy(update={"file": name, "scheme": scheme, "times": []})
    every = first.model_copy(update={"files": [*first.files, *files.values()]})
    header, _ = make_plan_table(PLAN.model_copy(update={"students": [every]}))
    assert header[3:] == ["onnx int8", "coreml int8"]


def test_the_page_has_a_picture_for_each_device_and_escapes_names(tmp_path: Path) -> None:
    write_plan(PLAN, tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert page.count("<svg") == 2
    assert "my&lt;rows&gt;" in page
    assert page.count("<script") == 1, "the one that sorts tables, which the page allows by its digest"
    assert '<span class="failed">size</span>' in page


def test_planned_sizes_stand_beside_written_ones() -> None:
    rows = [ModelRow(name="student", scheme=Scheme.INT8, path="onnx/model_int8.onnx", bytes=8_080_000)]
    planned = PLAN.students[0].files
    assert compare_with_plan(planned, rows, None) == [
        ["onnx/model_int8.onnx", "size", "8.0 MB", "8.1 MB", "+1.0 %"],
    ]
    assert compare_with_plan([], rows, None) == []
    assert compare_with_plan(planned, [], None) == []
