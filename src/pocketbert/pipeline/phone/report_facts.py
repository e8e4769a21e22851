"""A run's results, as the HTML report and the model card show them.

`report_data` collects what the report of a finished run shows, `early_report_data` what it shows of a run that ended after the
student's training, and `card_facts` what the model card shows in addition to the folder's list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING

from pocketbert.core.artefacts import (
    SEARCH_FILE,
    BudgetSearch,
    RoleRow,
)
from pocketbert.core.artefacts.search import TRIED_FILE, TriedStudents
from pocketbert.core.compare.golden import GOLDEN_FILE, read_golden
from pocketbert.core.data_report import DataReport
from pocketbert.core.disk.files import path_bytes, read_json, sha256_path
from pocketbert.core.families import Family
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.host.system import installed_versions
from pocketbert.core.metrics import METRICS, describe_details
from pocketbert.core.models.folder import ModelCard, open_model_folder
from pocketbert.core.recipe.file import dump_recipe
from pocketbert.core.recipe.planned import PlannedFile, name_student
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.types import Provenance, Scheme, Status
from pocketbert.pipeline.formats.base import (
    ModelFile,
    RunModel,
    choose_default_file,
    format_place,
    list_model_files,
    open_run_model,
)
from pocketbert.pipeline.formats.weight_roles import build_role_table
from pocketbert.pipeline.gates.checks import STUDENT, check_student
from pocketbert.pipeline.gates.stored import UNDIVIDED_NOTE
from pocketbert.pipeline.learn.answers import describe_columns
from pocketbert.pipeline.learn.diagnosing import read_diagnosis
from pocketbert.pipeline.learn.finishing import read_training
from pocketbert.pipeline.learn.training import CARD_FILE
from pocketbert.pipeline.make.measuring import TEACHER_ROW_NAME, file_row_name, teacher_file
from pocketbert.pipeline.make.model_files import outlier_notes, read_parity
from pocketbert.pipeline.phone.card import CardFacts
from pocketbert.pipeline.phone.card_figures import CardFigures, list_platforms
from pocketbert.pipeline.reference import unreached_labels
from pocketbert.pipeline.results import Verification, read_verification

if TYPE_CHECKING:
    from pocketbert.benchmarks.measurement import BenchmarkResult
    from pocketbert.benchmarks.report.figures import ModelRow, ReportData, TrainingCourse


def report_data(recipe: Recipe, run: Path, command: str, confusion: list[tuple[str, str, int]]) -> ReportData:
    """Collect what the HTML report of a finished run shows.

    Args:
        recipe: The resolved recipe.
        run: The run folder.
        command: The command line that the report quotes; empty to leave it out.
        confusion: Pairs of labels that the default file confuses most on the evaluation rows, as (gold, predicted, number of
            rows).
    """
    from pocketbert.benchmarks.report.figures import GateRow, ParityRow, ReportData

    result = read_verification(run / "verify.json")
    weights = run / ("student" if recipe.student else "teacher")
    family = open_model_folder(str(weights)).family
    teacher = teacher_file(recipe)
    parities = [p for folder in (teacher.step, *recipe.export.formats) for p in read_parity(run / folder)]
    files = list_model_files(recipe, weights)
    data = run / "data.json"
    return ReportData(
        title=recipe.name,
        description=recipe.description,
        task=recipe.task,
        machine=describe_machine(),
        versions=installed_versions(),
        rows=_model_rows(recipe, run, weights, result),
        benchmark=read_benchmark(run) if recipe.benchmark else None,
        parity=[
            ParityRow(
                file=p.subject,
                worst=p.worst,
                bound=p.bound,
                lengths=sorted({s[1] for s in p.shapes}),
                passed=p.passed,
                against=p.reference,
            )
            for p in parities
        ],
        gates=[GateRow(**g.model_dump()) for g in result.gates],
        data=DataReport.model_validate(read_json(data)) if data.is_file() and recipe.data.eval else None,
        curves=_loss_curves(run),
        courses=_training_courses(run),
        diagnosis=read_diagnosis(run) if recipe.student else None,
        search=read_search(run, files),
        planned=_find_planned(recipe),
        tried=read_tried(recipe, run),
        confusion=confusion,
        confusion_of=f"{file_row_name(choose_default_file(files), recipe)} on eval" if confusion else "",
        notes=[
            result.protocol,
            *_limits_of_figures(recipe, run, family),
            *_outlier_notes(recipe, run),
            *_learning_notes(recipe, run),
            *(f"{family.title}: {x}" for x in family.limits),
        ],
        recipe=dump_recipe(recipe),
        command=command,
    )


def early_report_data(recipe: Recipe, run: Path, command: str, tried: TriedStudents | None = None) -> ReportData:
    """Collect what the HTML report shows of a run that ended after training, before a file was exported.

    Args:
        recipe: The resolved recipe.
        run: The run folder.
        command: The command line that the report quotes.
        tried: The students of which none kept enough, if the run ended with that.
    """
    from pocketbert.benchmarks.report.figures import GateRow, ModelRow, ReportData

    teacher, student = (read_training(run / name) for name in ("teacher", STUDENT))
    # a student of an earlier choice may still be there
    gates = check_student(student.score, teacher.score, recipe.verify.min_kept) if tried is None else []
    failed = any(g.file == STUDENT and not g.passed for g in gates)
    judged = sorted((g for g in gates if g.name.partition(" ")[0] == "kept"), key=lambda g: g.value or 0.0)
    rows = [
        ModelRow(
            name=name,
            scheme=Scheme.FP32,
            bytes=path_bytes(run / folder / "model.safetensors"),
            parameters=made.parameters,
            eval_score=made.score,
            kept=kept,
            is_teacher=folder == "teacher",
            status=Status.FAILED if folder == STUDENT and failed else Status.PASSED,
            path=f"{folder}/model.safetensors",
        )
        for name, folder, made, kept in (
            (TEACHER_ROW_NAME, "teacher", teacher, 1.0),
            ("student torch fp32", STUDENT, student, judged[0].value if judged else None),
        )
        if (recipe.asks_model if folder == "teacher" else tried is None)
    ]
    return ReportData(
        title=recipe.name,
        description=recipe.description,
        task=recipe.task,
        machine=describe_machine(),
        versions=installed_versions(),
        rows=rows,
        gates=[GateRow(**g.model_dump()) for g in gates],
        data=DataReport.model_validate(read_json(run / "data.json")) if recipe.data.eval else None,
        curves=_loss_curves(run),
        courses=_training_courses(run),
        diagnosis=read_diagnosis(run) if recipe.student and tried is None else None,
        tried=tried if tried is not None else read_tried(recipe, run),
        notes=[
            "The run ended after the training of the student, which failed a gate: no file was exported."
            if tried is None
            else "No student kept enough of the teacher within the limits: no file was exported."
        ],
        recipe=dump_recipe(recipe),
        command=command,
    )


def card_facts(model: RunModel, figures: CardFigures, roles: Mapping[str, Sequence[RoleRow]]) -> CardFacts:
    """Collect what the model card shows beside the content of ``artifacts.json``: licence, figures, notes, weights by role.

    Args:
        model: The exported model with its files.
        figures: Measured sizes, scores and latencies.
        roles: Rows of the table of weights by role (place in a layer), by path of the file.
    """
    recipe, run, family = model.recipe, model.run, model.folder.family
    card = ModelCard.read(run / "teacher" / CARD_FILE)
    unlabelled = [part.sources for part in (recipe.data.corpus, recipe.data.transfer) if part is not None]
    sources = [*(source for part in unlabelled for source in part), recipe.data.train, recipe.data.eval]
    datasets = [s.dataset for s in sources if s is not None and s.dataset is not None and not Path(s.dataset).exists()]
    notes = [*_limits_of_figures(recipe, run, family), *_outlier_notes(recipe, run), *_learning_notes(recipe, run)]
    file_notes = [format_place(format).file_notes(model) for format in recipe.export.formats]
    return CardFacts(
        family=family,
        licence=model.folder.licence,
        figures=figures,
        base_model=card.base_model,
        languages=card.languages,
        datasets=list(dict.fromkeys([*datasets, *card.datasets])),
        notes=notes,
        file_notes={path: note for own in file_notes for path, note in own.items()},
        unreached=unreached_labels(read_golden(run / "golden" / GOLDEN_FILE), model.task, model.labels),
        roles=roles,
    )


def _limits_of_figures(recipe: Recipe, run: Path, family: Family) -> list[str]:
    """Return sentences on how far a run's figures can be trusted, for example that one seed only was trained."""
    notes = []
    if recipe.data.eval is None:
        notes.append(
            "No labelled data was given: the files were compared with the torch model on golden rows, and no task "
            "score was measured."
        )
    elif recipe.teacher.finetune is not None or recipe.student is not None:
        notes.append(_seed_note(run))
    notes += [note for format in recipe.export.formats for note in format_place(format).notes(recipe)]
    rows = recipe.data.eval_source
    if recipe.student is not None and not family.uses_segments and rows and rows.text_pair:
        notes.append("The family has no segment ids: the model tells the two texts of a pair apart by separators only.")
    return notes


def _outlier_notes(recipe: Recipe, run: Path) -> list[str]:
    """Return sentences on outlier channels that were scaled down in the files; empty if none were, or if older versions made the files."""
    if any(UNDIVIDED_NOTE in gate.detail for gate in read_verification(run / "verify.json").gates):
        return []
    return outlier_notes([run / format for format in recipe.export.formats])


def _learning_notes(recipe: Recipe, run: Path) -> list[str]:
    """Return notes on the student's training: those that the training recorded, and that columns of answers taught it."""
    notes, columns = list[str](), describe_columns(recipe)
    if columns:
        others = "the teacher" if recipe.asks_model else "labels alone"
        has_others = len(recipe.head_columns) < len(recipe.tasks or {})
        beside = f"{others} taught the other heads" if has_others else "no teacher was run"
        notes.append(f"The student learned the {columns}; {beside}.")
    return notes + ([f"{note}." for note in read_training(run / "student").notes] if recipe.student else [])


def teacher_score(recipe: Recipe, result: Verification) -> str:
    """Return the teacher's score on the evaluation rows in words; empty without distillation or a score."""
    if result.teacher is None or recipe.student is None:
        return ""
    metric = METRICS[result.teacher.metric]
    more = f"; {found}" if (found := describe_details(result.teacher.others)) else ""
    return f"{metric.name} {metric.format(result.teacher.value)} on eval (fp32, torch){more}"


def read_benchmark(run: Path) -> BenchmarkResult | None:
    """Read the benchmark in a run folder; None if there is none."""
    from pocketbert.benchmarks.measurement import BenchmarkResult

    path = run / "benchmark.json"
    return BenchmarkResult.read(path) if path.is_file() else None


def _find_planned(recipe: Recipe) -> list[PlannedFile]:
    """Return the files that the recipe's plan expected of its student; none without a plan."""
    if recipe.planned is None or recipe.student is None:
        return []
    name = name_student(recipe.student)
    return [file for file in recipe.planned.files if file.student == name]


def read_search(run: Path, files: Sequence[ModelFile]) -> BudgetSearch | None:
    """Read the budget search that chose a run's files; None if there was none, or it chose other files.

    Args:
        run: The run folder.
        files: The run's model files.
    """
    path = run / SEARCH_FILE
    if not path.is_file():
        return None
    search = BudgetSearch.model_validate(read_json(path))
    smaller_files = {f.path: run / f.source for f in files if f.plain and not f.exported}
    if {c.path for c in search.chosen} != set(smaller_files):
        return None
    return search.as_written({name: sha256_path(file) for name, file in smaller_files.items()})


def read_tried(recipe: Recipe, run: Path) -> TriedStudents | None:
    """Read the students among which a run chose that of its recipe; None if it chose none, or another one than is there now."""
    path = run / TRIED_FILE
    if not path.is_file():
        return None
    tried = TriedStudents.model_validate(read_json(path))
    chosen, own = tried.chosen, recipe.student
    is_same = chosen is not None and own is not None and (own.layers, own.intermediate) == (chosen.layers, chosen.width)
    return tried if is_same else None


def _model_rows(recipe: Recipe, run: Path, weights: Path, result: Verification) -> list[ModelRow]:
    """Return rows of the report's table, one for the teacher if its file is there and one for each model file: size, scores, status."""
    from pocketbert.benchmarks.report.figures import ModelRow

    rows = []
    teacher = teacher_file(recipe)
    judged = (
        result.teacher if not recipe.head_columns else None
    )  # else columns answer for some heads, and not this file
    if (run / teacher.source).exists():
        rows.append(
            ModelRow(
                name=TEACHER_ROW_NAME,
                scheme=teacher.scheme,
                bytes=path_bytes(run / teacher.source),
                parameters=read_training(run / "teacher").parameters,
                eval_score=judged,
                kept=1.0 if judged else None,
                is_teacher=True,
                path=teacher.source,
            )
        )
    model = open_run_model(recipe, run, weights, 0)
    files = model.files
    platforms = list_platforms(files, text_only=model.folder.family.form is None)
    for file in files:
        scores = result.scores.get(file.path, {})
        score = scores.get("eval")
        kept = score.share_kept(result.teacher) if score and result.teacher and recipe.student else None
        rows.append(
            ModelRow(
                name=file_row_name(file, recipe),
                scheme=file.scheme,
                bytes=path_bytes(run / file.source),
                parameters=read_training(weights).parameters,
                eval_score=score,
                holdout_score=scores.get("holdout"),
                confidence=result.confidence.get(file.path),
                kept=kept,
                status=Status.PASSED if result.passed(file.path) else Status.FAILED,
                is_default=file is choose_default_file(files),
                path=file.path,
                sha256=result.files[file.path],
                provenance=right.provenance if (right := result.seen_right.get(file.path)) else Provenance.MEASURED,
                roles=build_role_table(model, file),
                platforms=platforms.get(file.path, []),
            )
        )
    return rows


def _loss_curves(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the losses of each training stage as (step, loss) pairs, by the stage's name; several terms have a curve each."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for folder, name in (("teacher", "teacher"), ("student", "student")):
        for curve in read_training(run / folder).curves:
            base = _course_name(name, curve.stage)
            curves[base] = list(zip(curve.steps, curve.loss, strict=True))
            if len(curve.terms) > 1:
                curves |= {
                    f"{base}/{term}": [(s, v) for s, v in zip(curve.steps, values, strict=True) if v is not None]
                    for term, values in curve.terms.items()
                }
    return curves


def _course_name(model: str, stage: str) -> str:
    """Return how plots call a training: the model, with the number of its stage from the second one on."""
    number = stage.removeprefix("distill.")
    return model if number in ("finetune", "0") else f"{model} {number}"


def _training_courses(run: Path) -> list[TrainingCourse]:
    """Return learning rates and scores of each training of a run."""
    from pocketbert.benchmarks.report.figures import TrainingCourse

    return [
        TrainingCourse(
            name=_course_name(name, curve.stage),
            metric=curve.metric,
            rates=list(zip(curve.steps, curve.rates, strict=False)),
            scores=curve.scores,
            best_step=curve.best_step,
        )
        for name in ("teacher", STUDENT)
        for curve in read_training(run / name).curves
    ]


def _seed_note(run: Path) -> str:
    """Return a sentence on the seeds of the student's trainings and on which of its weights were kept."""
    made = [read_training(run / name) for name in (STUDENT, "teacher")]
    seeds = made[0].seeds
    chosen = any(curve.best_step for training in made for curve in training.curves)
    weights = "the weights with the best score on validation rows" if chosen else "the weights of the last step"
    if len(seeds) < 2:
        return f"Trained with one seed; {weights} were kept."
    metric, values = METRICS[seeds[0].metric], [s.value for s in seeds]
    kept = next(s for s in seeds if s.chosen)
    low, high = (metric.format(v) for v in (min(values), max(values)))
    return (
        f"The student was trained with {len(seeds)} seeds, and {weights} were kept: {metric.name} on eval "
        f"{metric.format(mean(values))} on average, {low} to {high} (standard deviation {metric.format(stdev(values))}). The one with the "
        f"best score on validation rows, seed {kept.seed} with {metric.format(kept.value)}, is shipped."
    )
