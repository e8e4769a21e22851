"""A recipe with `student: auto`: the smallest student that keeps enough wins, all are told of, and nothing is trained twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pocketbert import api
from pocketbert.core.artefacts.search import TRIED_FILE, TriedStudent, TriedStudents
from pocketbert.core.compare.answers import RowAnswer
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.recipe.file import load_recipe
from pocketbert.pipeline.direct import AutoStudentRun, student_trials
from pocketbert.pipeline.direct.student_trials import StudentFigures
from support.tiny_task import Task
from support.tiny_texts import KEYWORDS, LABELS, task_rows, write_lines

Run = Callable[..., Any]
Patch = pytest.MonkeyPatch
QUICK = ["student=auto", "teacher.finetune.steps=2", "distill.0.steps=20", "verify.max_drop=1"]
FULLY = 20
ROWS = 1000


def read_tried(folder: Path) -> TriedStudents:
    return TriedStudents.model_validate_json((folder / TRIED_FILE).read_text())


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Make students score what a table says, as a share of a teacher that is right on all rows; returns the trainings."""

    def script(**kept: float) -> list[str]:
        trained = list[str]()

        def answer(model: Any, most: int, thresholds: Any = None) -> list[RowAnswer]:
            student, config = model.recipe.student, model.model.config
            if not model.curves:  # the teacher
                return [RowAnswer("", terms=(1.0, 1.0))] * ROWS
            name = (
                "static"
                if student.layers == 0
                else f"layers_{student.layers}" + ("_narrow" if student.intermediate else "")
            )
            briefly = "" if model.recipe.distill[0].steps in (1, FULLY, 2 * FULLY) else "_briefly"
            assert config.num_hidden_layers == student.layers
            trained.append(name + briefly)
            right = round(ROWS * kept[name + briefly])
            return [RowAnswer("", terms=(float(i < right), 1.0)) for i in range(ROWS)]

        def measure(self: Any, recipe: Any, weights: Path, work: Path) -> tuple[int, float]:
            layers = recipe.student.layers
            return (layers + 1) * 1_000_000, 0.5 * (layers + 1)

        monkeypatch.setattr(student_trials, "answer_validation", answer)
        monkeypatch.setattr(student_trials.StudentTrials, "_measure_file", measure)
        return trained

    return script


HOPELESS = {"static": 0.6, "layers_1_briefly": 0.5}
ALL = {**HOPELESS, "layers_2": 1.0}
THREE = "static layers_1_briefly layers_2 layers_1"


@pytest.mark.parametrize(
    ("limits", "kept", "chosen", "trained"),
    [
        # the point estimate of a static student is enough, its interval is not; one layer needs the full training
        ("", {"static": 0.971, "layers_1_briefly": 0.95, "layers_1": 0.985, "layers_2": 1.0}, "layers-1", THREE),
        pytest.param(
            "",  # nothing between hopeless and the teacher itself but a narrow one, which does not keep enough either
            {**ALL, "layers_2_narrow_briefly": 0.945, "layers_2_narrow": 0.96},
            "layers-2",
            "static layers_1_briefly layers_2 layers_2_narrow_briefly layers_2_narrow",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "keep: 0.9, max_size_mb: 2.5",
            {**ALL, "layers_1_briefly": 0.85, "layers_1": 0.95},
            "layers-1",
            THREE,
            marks=pytest.mark.slow,
        ),
        ("max_latency_ms: 1.2", {**ALL, "layers_1": 0.7}, None, THREE),
        # two layers keep more and are too slow
        ("max_latency_ms: 1.2, if_none_keeps: best", {**ALL, "layers_1": 0.7}, "layers-1", THREE),
    ],
    ids=["interval", "narrow", "size", "none is fast enough", "best of the fast ones"],
)
def test_the_smallest_student_inside_the_limits_wins(
    limits: str,
    kept: dict[str, float],
    chosen: str | None,
    trained: str,
    task: Task,
    tmp_path: Path,
    scripted: Callable[..., list[str]],
) -> None:
    trainings, folder = scripted(**kept), tmp_path / "run"
    recipe = load_recipe(task.recipe, [*QUICK, f"student={{auto: {{{limits}}}}}"])
    if chosen is None:
        with pytest.raises(GateError, match=r"(?s)No student has.*layers-2: slower than 1.2 ms"):
            api.distill(recipe, folder)
        assert 'id="students"' in (folder / "report.html").read_text()
        assert load_recipe(folder / "recipe.resolved.yaml").student == recipe.student
    else:
        api.distill(recipe, folder)
    tried = read_tried(folder)
    assert trainings == trained.split()
    assert (tried.chosen.name if tried.chosen else None) == chosen
    assert tried.rows == ROWS
    assert all(s.note or s.chosen for s in tried.students if s.name != "layers-2"), "each has its reason"
    assert {s.name for s in tried.students if s.estimated} == ({"layers-1"} if "narrow" in trained else set())


@pytest.mark.parametrize(("metric", "chosen"), [("accuracy", "static"), ("macro_f1", "layers-1"), ("mcc", "layers-1")])
def test_students_are_compared_by_the_metric_of_the_recipe(
    metric: str, chosen: str, task: Task, tmp_path: Path, scripted: Callable[..., list[str]], monkeypatch: Patch
) -> None:
    gold = ["rare" if i % 100 == 0 else "usual" for i in range(ROWS)]

    def answer(model: Any, most: int, thresholds: Any = None) -> list[RowAnswer]:
        knows_rare = not model.curves or model.recipe.student.layers > 0
        given = gold if knows_rare else ["usual"] * ROWS
        return [RowAnswer("", {"": a}, {"": g}, terms=(float(a == g), 1.0)) for a, g in zip(given, gold, strict=True)]

    scripted()
    monkeypatch.setattr(student_trials, "answer_validation", answer)
    api.distill(load_recipe(task.recipe, [*QUICK, f"training.metric={metric}"]), tmp_path / "run")
    tried = read_tried(tmp_path / "run")
    assert (tried.metric, tried.chosen.name) == (metric, chosen)


def test_a_stopped_choice_goes_on_and_a_lower_bound_needs_no_training(
    task: Task, tmp_path: Path, scripted: Callable[..., list[str]], monkeypatch: Patch
) -> None:
    kept = {**HOPELESS, "layers_2_narrow_briefly": 0.95, "layers_2_narrow": 0.9, "layers_2": 0.945}
    folder, recipe = tmp_path / "run", load_recipe(task.recipe, QUICK)
    trainings, answer = scripted(**kept), student_trials.answer_validation

    def stop(model: Any, *more: Any) -> list[RowAnswer]:
        if model.curves and model.recipe.student.intermediate:
            raise KeyboardInterrupt
        return answer(model, *more)

    monkeypatch.setattr(student_trials, "answer_validation", stop)
    with pytest.raises(KeyboardInterrupt):
        api.distill(recipe, folder)
    before = [*trainings]
    monkeypatch.setattr(student_trials, "answer_validation", answer)
    with pytest.raises(GateError, match=r"(?s)The nearest is layers-2: accuracy 94.*--keep 0.9[34]"):
        api.distill(recipe, folder)
    assert before == ["static", "layers_1_briefly", "layers_2"]
    assert trainings[len(before) :] == ["layers_2_narrow_briefly", "layers_2_narrow"]

    done = len(trainings)
    api.distill(load_recipe(task.recipe, [*QUICK, "student={auto: {keep: 0.9}}"]), folder)
    assert len(trainings) == done, "all were trained before"
    chosen = read_tried(folder).chosen
    assert chosen.name == "layers-2"
    with pytest.raises(InputError, match="student.layers was 2, is 0"):
        api.distill(load_recipe(task.recipe, [*QUICK, "student={auto: {keep: 0.5}}"]), folder)


@pytest.mark.slow
def test_the_run_goes_on_as_that_of_a_plain_recipe(task: Task, tmp_path: Path) -> None:
    folder, recipe = tmp_path / "run", load_recipe(task.recipe, [*QUICK, "distill.0.steps=80"])
    api.distill(recipe, folder)
    tried = read_tried(folder)
    assert (tried.chosen.name, tried.chosen.trained) == ("static", "fully"), "a word decides the label"
    assert tried.chosen.bytes is not None
    assert 1_000 < tried.chosen.bytes < 100_000
    assert (tried.file, tried.rows) == ("ONNX int8", 60)
    plain = load_recipe(folder / "recipe.resolved.yaml")
    assert (plain.student.layers, plain.student.auto) == (0, None)
    states = {step.name: step.state for step in api.plan(plain, folder)}
    assert states["distill.0"] == states["student"] == "finished"
    assert {s.name: s.state for s in api.plan(recipe, folder)} == states
    again, name = api.distill(plain, tmp_path / "again"), "model.safetensors"
    assert (again / name).read_bytes() == (folder / "student" / name).read_bytes(), "the same weights"


@pytest.mark.slow
def test_students_are_compared_and_measured_with_the_vocabulary_that_they_keep(task: Task, tmp_path: Path) -> None:
    lines = (task.folder / "train.jsonl").read_text().splitlines()
    rows = write_lines(tmp_path / "train.jsonl", [row for row in map(json.loads, lines) if "slow" not in row["text"]])
    own = [f"data.train.path={rows}", "student={auto: {keep: 0.5}, vocabulary: {max_changed: 1}}"]
    folder = tmp_path / "run"
    api.distill(load_recipe(task.recipe, [*QUICK, "distill.0.steps=80", *own]), folder)
    chosen = read_tried(folder).chosen
    assert chosen is not None
    pieces = len(json.loads((folder / "vocabulary/kept.json").read_text())["ids"])
    assert json.loads((folder / "student/config.json").read_text())["vocab_size"] == pieces
    figures, training = (
        json.loads((folder / name).read_text())
        for name in (f"tried/{chosen.name}/figures.json", "student/training.json")
    )
    assert figures["parameters"] == training["parameters"]
    assert not list((folder / "tried").rglob("*.onnx"))


@pytest.mark.slow
def test_command_and_report_tell_of_all_students(task: Task, tmp_path: Path, succeed: Run) -> None:
    options = ["--student", "auto", "--keep", "0.9", "teacher.finetune={steps: 140, batch: 32, lr: 3.0e-3}"]
    more = ["export={formats: [onnx], lengths: [16]}", "benchmark=null", f"teacher.model={task.folder / 'teacher'}"]
    result = succeed("run", "--data", task.folder / "train.jsonl", "-o", tmp_path / "run", *options, *more)
    assert "\nstatic\tfully\t" in result.output
    assert "the same student from a plain recipe:" in result.output
    page = (tmp_path / "run/report.html").read_text()
    assert "Score against latency and size of the students that were tried" in page
    chosen = read_tried(tmp_path / "run").chosen
    assert chosen.name == "static"


def test_too_few_rows_to_compare_students_on_are_refused_before_training(task: Task, tmp_path: Path) -> None:
    recipe = load_recipe(task.recipe, ["student=auto", "data.validation={fraction: 0.05}"])
    with pytest.raises(InputError, match="compares students on validation rows, and there are 30; at least 50"):
        api.run(recipe, tmp_path / "run")
    assert not (tmp_path / "run/teacher").exists()


def test_a_budget_that_cannot_be_searched_is_refused_before_training(task: Task, tmp_path: Path) -> None:
    budget = "quantize.budget={max_drop: 0.01, max_p90_ms: 5}"
    recipe = load_recipe(task.recipe, [*QUICK, budget, "export.formats=[onnx, coreml]"])
    with pytest.raises(InputError, match=r"quantize\.budget\.max_p90_ms: coreml files cannot be timed"):
        api.run(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "teacher").exists()


def test_of_a_teacher_without_a_score_nothing_can_be_kept(task: Task, tmp_path: Path) -> None:
    recipe = load_recipe(task.recipe, ["student=auto"])
    choice = AutoStudentRun(recipe, tmp_path / "run")._choice
    (rung, *_) = choice.rungs
    choice.students = {rung.name: TriedStudent(name=rung.name, layers=rung.layers)}
    figures = StudentFigures(metric="span_f1", score=0.0, teacher=0.0, low=0.0, high=0.0, rows=60, parameters=9)
    choice.__dict__["trials"] = SimpleNamespace(train=lambda *_, **__: (figures, 1.0))
    with pytest.raises(GateError, match=r"(?s)on the 60 validation rows: nothing to keep.*Train the teacher longer"):
        choice._try(rung, fully=True)


def test_the_options_of_the_command(task: Task, tmp_path: Path, succeed: Run, refuse: Run) -> None:
    command = ("run", task.recipe, "-o", tmp_path / "run", "--dry-run")
    limit = ("--max-size-mb", "3", "--json")
    assert "allowed: auto" in refuse(*command, "--student", "small")
    for chosen in (["--student", "auto"], ["student=auto"], ["student={auto: {keep: 0.9}}"]):
        planned = succeed(*command, *chosen, *limit)
    assert [s["name"] for s in json.loads(planned.stdout)][:3] == ["data", "teacher", "students"]
    # a student of a given size is not silently replaced, and a limit changes that limit only
    assert "or give --student auto" in refuse(*command, *limit)
    assert "keep" in refuse(*command, "student={auto: {keep: 2}}", *limit)


def rows_of(task: str, count: int) -> list[dict[str, Any]]:
    """Rows of a task, in which a keyword decides the answer."""
    out = []
    for i, row in enumerate(task_rows(count, 3)):
        words = row["text"].split()
        key = next(w for w in words if w in KEYWORDS[row["label"]])
        answers = {"text": [key], "answer_start": [row["text"].index(key)]}
        columns: dict[str, dict[str, Any]] = {
            "multi-label": {"label": [row["label"]]},
            "regression": {"text_pair": "now", "label": float(LABELS.index(row["label"]))},
            "token-classification": {"text": words, "label": ["B-thing" if w == key else "O" for w in words]},
            "question-answering": {"text": f"what {i}", "text_pair": row["text"], "label": answers},
            "multiple-choice": {
                "choices": [key, "chair", "door"][i % 3 :] + [key, "chair", "door"][: i % 3],
                "label": -i % 3,
            },
            "feature-extraction": {},
        }
        out.append({"text": row["text"], **columns[task]})
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "metric", "first"),
    [
        ("multi-label", "micro_f1", "static"),
        ("regression", "pearson", "static"),
        ("token-classification", "span_f1", "static"),
        ("question-answering", "squad_f1", "layers-1"),
        ("multiple-choice", "accuracy", "layers-1"),
        ("feature-extraction", "mean_cosine", "static"),
    ],
)
def test_every_task_with_a_distilled_student_has_a_choice(
    name: str, metric: str, first: str, task: Task, tmp_path: Path
) -> None:
    pair = {"text_pair": "text_pair"} if name in ("regression", "question-answering") else {}
    columns = {**pair, **({"choices": "choices"} if name == "multiple-choice" else {})}
    source = {"path": str(write_lines(tmp_path / "rows.jsonl", rows_of(name, 600))), **columns}
    path = task.variant(
        tmp_path / "recipe.yaml",
        task=name,
        data={"train": source, "eval": {"path": None, "fraction": 0.1}, "labels": None},
        student={"auto": {"keep": 0.5}, "layers": None},
        teacher={"finetune": None if name == "feature-extraction" else {"steps": 100}},
        verify={"max_drop": 1.0},
    )
    api.distill(load_recipe(path), tmp_path / "run")
    tried = read_tried(tmp_path / "run")
    assert (tried.metric, tried.students[0].name) == (metric, first)
    assert tried.chosen.kept is not None
    assert tried.chosen.kept > 0.5
