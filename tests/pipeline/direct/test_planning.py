"""Estimated sizes against really exported files, and plans in which nothing fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.errors import GateError
from pocketbert.core.recipe.file import parse_recipe
from pocketbert.core.recipe.ladder import rung_recipe
from pocketbert.core.recipe.planned import PlanLimits, PlannedFile, PlannedStudent, PlannedTime, StudentPlan
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.types import Format, Provenance, Scheme
from pocketbert.pipeline.direct import plan_probes, planning
from pocketbert.pipeline.formats.base import exported_file
from pocketbert.pipeline.options import DataFiles, PlanOptions
from support.tiny import task_vocabulary, tiny_classifier, write_wordpiece
from support.tiny_texts import task_rows, write_lines


@pytest.fixture
def settings(tmp_path: Path) -> list[str]:
    """A teacher of four layers 64 wide, whose files take 16 tokens."""
    teacher, tokens = tmp_path / "teacher", task_vocabulary()
    sizes = {"vocab_size": len(tokens), "num_attention_heads": 2, "hidden_size": 64, "intermediate_size": 128}
    tiny_classifier("bert", 4, (), 0, "AutoModel", **sizes).save_pretrained(teacher)
    write_wordpiece(teacher, tokens)
    return [f"teacher.model={teacher}", "export.lengths=[16]"]


@pytest.fixture
def data(tmp_path: Path) -> DataFiles:
    return DataFiles(write_lines(tmp_path / "rows.jsonl", task_rows(60, 1)))


def planned(student: PlannedStudent, **changes: Any) -> StudentPlan:
    """A plan of one student."""
    content = {"name": "my", "task": "text-classification", "teacher": "minilm-l6", "machine": "here", "threads": 1}
    return StudentPlan(**{**content, "devices": ["local"], "tokens": 9.0, "students": [student], **changes})


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "tflite"])
def test_estimated_sizes_are_within_two_per_cent_of_exported_files(
    format: str, settings: list[str], data: DataFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every student is exported; only those that a plan would export are used for the estimate."""
    exported = dict[tuple[str, Scheme], int]()
    export = plan_probes.export_probes

    def export_all(
        ground: plan_probes.PlanGround,
        probes: list[plan_probes.Probe],
        formats: list[Format],
        schemes: list[Scheme],
        work: Path,
    ) -> None:
        every = [plan_probes.Probe(name, rung, pieces, timed=False) for name, rung, pieces in ground.wanted]
        export(ground, every, formats, schemes, work / "every")
        exported.update({(p.name, s): size for p in every for (_, s), (_, _, size) in p.files.items()})
        for probe in probes:
            probe.files.update(next(p for p in every if p.name == probe.name).files)

    monkeypatch.setattr(planning, "export_probes", export_all)
    monkeypatch.setattr(planning, "time_files", lambda *_: ({}, 0.0))
    monkeypatch.setattr(planning, "time_training", lambda *_: ({}, None))
    options = PlanOptions(formats=[format], schemes=["int8"], max_size_mb=50)
    plan = planning.plan_students(data, options, settings)
    estimated = [f for s in plan.students for f in s.files if f.by is Provenance.ESTIMATED]
    assert {f.student for f in estimated} == {"layers-2", "layers-3", "layers-4-width-64"}
    assert plan.chosen == "layers-4"
    for file in estimated:
        assert file.bytes == pytest.approx(exported[file.student, file.scheme], rel=0.02), file


@pytest.mark.parametrize(
    ("limit", "named", "expected"),
    [(3.5, None, ["layers-3", "layers-2"]), (None, "layers-2", ["layers-2"]), (9.5, None, [])],
)
def test_the_chosen_student_is_measured_and_chosen_again_if_it_is_beyond_the_limit(
    limit: float | None,
    named: str | None,
    expected: list[str],
    settings: list[str],
    data: DataFiles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Latency is the number of layers, that of three of them more than estimated: the largest inside 3.5 ms has two."""
    measured = list[str]()

    def export(ground: Any, probes: list[plan_probes.Probe], formats: list[Format], *_: Any) -> None:
        measured.extend(probe.name for probe in probes)
        for probe in probes:
            for scheme in (Scheme.FP32, Scheme.INT8):
                file = exported_file(formats[0], scheme)
                probe.files[formats[0], scheme] = file, Path("none"), 1000 * (probe.rung.work + probe.pieces)

    def time(ground: Any, probes: list[plan_probes.Probe], *_: Any) -> tuple[plan_probes.FileTimes, float]:
        p50 = {probe.name: 4.0 if probe.rung.layers == 3 else probe.rung.layers + 0.1 for probe in probes}
        return {(name, Format.ONNX, Scheme.INT8, "local"): (ms, ms) for name, ms in p50.items()}, 9.0

    monkeypatch.setattr(planning, "export_probes", export)
    monkeypatch.setattr(planning, "time_files", time)
    monkeypatch.setattr(planning, "time_training", lambda *_: ({}, None))
    options = PlanOptions(schemes=["int8"], max_p90_ms=limit, choose=named)
    plan = planning.plan_students(data, options, settings)
    first = ["static", "layers-1", "layers-4", "static-vocabulary", "layers-1-vocabulary"]
    assert [name for name in measured if name not in first and "width" not in name] == expected
    chosen = next(student for student in plan.students if student.name == plan.chosen)
    assert plan.chosen == (expected[-1] if expected else "layers-4")
    assert {file.by for file in chosen.files} == {Provenance.MEASURED}


def test_a_plan_in_which_nothing_fits_names_the_nearest_files_and_fails() -> None:
    times = [PlannedTime(p50_ms=0.05, p90_ms=0.07)]
    path = "onnx/model_int8.onnx"
    file = PlannedFile(student="static", file=path, scheme=Scheme.INT8, bytes=700_000, times=times)
    own = StudentSection(layers=0)
    student = PlannedStudent(name="static", layers=0, width=None, pieces=9, work=0, student=own, files=[file])
    plan = planned(student, limits=PlanLimits(max_size_mb=0.5))
    with pytest.raises(GateError) as failed:
        planning.check_choice(plan)
    words = str(failed.value)
    assert "No student is inside the limits (at most 0.5 MB)" in words
    assert f"{path} of static with 0.70 MB, the fastest" in words
    planning.check_choice(plan.model_copy(update={"chosen": "static", "scheme": Scheme.INT8}))


def test_a_limit_that_a_run_cannot_keep_is_noted() -> None:
    assert planning._list_limit_notes(["local"], 1) == []
    assert "no limit of the latency" in planning._list_limit_notes(["adb"], 1)[0]
    other, threads = planning._list_limit_notes(["adb", "local"], 4)
    assert "not on adb" in other
    assert "with one thread, and its limit is of times with 4" in threads


@pytest.mark.parametrize(("overrides", "first"), [([], "static"), (["answer.pooling=cls"], "layers-1")])
def test_a_plan_has_the_students_that_a_run_trains(overrides: list[str], first: str, tmp_path: Path) -> None:
    ground = planning._open(None, PlanOptions(task="feature-extraction"), overrides, tmp_path)
    assert ground.rungs[0].name == first


@pytest.mark.parametrize("task", ["text-classification", "token-classification", "feature-extraction"])
def test_the_written_recipe_trains_the_chosen_student(task: str, tmp_path: Path) -> None:
    ground = planning._open(None, PlanOptions(task=task), ["distill.0.epochs=5"], tmp_path)
    for rung in ground.rungs:
        name = rung.name
        file = PlannedFile(student=name, file="onnx/model_w4.onnx", scheme=Scheme.W4, bytes=5)
        sizes = {"layers": rung.layers, "width": rung.width, "pieces": 9, "work": 1}
        student = PlannedStudent(name=name, student=rung.student, files=[file], **sizes)
        changes = {"task": task, "machine": 'a "CPU": 4 {cores}', "chosen": name, "scheme": Scheme.W4}
        plan, plain = planned(student, limits=PlanLimits(), **changes), rung_recipe(ground.recipe, rung)
        text = planning._recipe_text(plan, ground.start, plain)
        written = parse_recipe(text, tmp_path / "recipe.yaml")
        assert (written.student, written.distill) == (plain.student, plain.distill), name
        assert written.quantize.scheme is Scheme.W4
        assert (written.planned.machine, written.planned.files) == (plan.machine, [file])
        assert ("hidden states and attention" in text) == bool(rung.layers)
