"""A run's results as the report and the model card want them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.artefacts import SEARCH_FILE, BudgetSearch, RoleRow
from pocketbert.core.compare.golden import FILE_NAME as GOLDEN_FILE
from pocketbert.core.compare.golden import read_golden
from pocketbert.core.data_report import DataReport
from pocketbert.core.disk.files import path_bytes, read_json, sha256_path
from pocketbert.core.families import Family
from pocketbert.core.host.hardware import machine
from pocketbert.core.host.versions import installed
from pocketbert.core.metrics import METRICS
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.models.model_card import ModelCard
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.types import Provenance, Scheme, Status
from pocketbert.pipeline.formats.model_files import ModelFile, default_file
from pocketbert.pipeline.formats.place import place_of
from pocketbert.pipeline.formats.recipe_files import model_files, open_run_model
from pocketbert.pipeline.formats.run_model import RunModel
from pocketbert.pipeline.gates.stored.gate import UNDIVIDED
from pocketbert.pipeline.gates.student import STUDENT, student_gates
from pocketbert.pipeline.gates.verification import Verification, read_verification
from pocketbert.pipeline.learn.finishing import read_training
from pocketbert.pipeline.learn.training import CARD_FILE
from pocketbert.pipeline.make.exporting import read_parity
from pocketbert.pipeline.make.measuring import TEACHER, row_name, teacher_file
from pocketbert.pipeline.make.outliers import outlier_notes
from pocketbert.pipeline.make.role_table import role_table
from pocketbert.pipeline.phone.card import CardFacts, CardFigures
from pocketbert.pipeline.reference import unreached

if TYPE_CHECKING:
    from pocketbert.benchmarks.measurement import BenchmarkResult
    from pocketbert.benchmarks.report.data import ModelRow, ReportData


def read_benchmark(run: Path) -> BenchmarkResult | None:
    """The benchmark of a run, if there is one."""
    from pocketbert.benchmarks.measurement import BenchmarkResult

    path = run / "benchmark.json"
    return BenchmarkResult.read(path) if path.is_file() else None


def card_facts(model: RunModel, figures: CardFigures, roles: Mapping[str, Sequence[RoleRow]]) -> CardFacts:
    """Collect figures and lineage for the model card.

    Args:
        model: What was exported, with its files.
        figures: What was measured.
        roles: What became of the weights of each role, by file.
    """
    recipe, run, family = model.recipe, model.run, model.folder.family
    card = ModelCard.read(run / "teacher" / CARD_FILE)
    sources = [*(recipe.data.corpus.sources if recipe.data.corpus else ()), recipe.data.train, recipe.data.eval]
    datasets = [s.dataset for s in sources if s is not None and s.dataset is not None and not Path(s.dataset).exists()]
    notes = [*honest_notes(recipe, family), *_outlier_notes(recipe, run), *_learning_notes(recipe, run)]
    file_notes = [place_of(format).file_notes(model) for format in recipe.export.formats]
    return CardFacts(
        family=family,
        licence=model.folder.licence,
        figures=figures,
        base_model=card.base_model,
        languages=card.languages,
        datasets=list(dict.fromkeys([*datasets, *card.datasets])),
        notes=notes,
        file_notes={path: note for own in file_notes for path, note in own.items()},
        unreached=unreached(read_golden(run / "golden" / GOLDEN_FILE), model.task, model.labels),
        roles=roles,
    )


def teacher_score(recipe: Recipe, result: Verification) -> str:
    """The teacher's score in words; empty where nothing was distilled or scored."""
    if result.teacher is None or recipe.student is None:
        return ""
    metric = METRICS[result.teacher.metric]
    return f"{metric.name} {metric.format(result.teacher.value)} on eval (fp32, torch)"


def honest_notes(recipe: Recipe, family: Family) -> list[str]:
    """What a reader of the figures must know."""
    out = []
    if recipe.data.eval is None:
        out.append(
            "No labelled data was given: the files were compared with the torch model on golden rows, and no task "
            "score was measured."
        )
    elif recipe.teacher.finetune is not None or recipe.student is not None:
        out.append("Trained with one seed; the last checkpoint was used, not the best one.")
    out += [note for format in recipe.export.formats for note in place_of(format).notes(recipe)]
    rows = recipe.data.eval_source
    if recipe.student is not None and not family.uses_segments and rows and rows.text_pair:
        out.append("The family has no segment ids: the model tells the two texts of a pair apart by separators only.")
    return out


def _outlier_notes(recipe: Recipe, run: Path) -> list[str]:
    """Which channels of the model were divided in the files; nothing of files that an earlier version exported."""
    if any(UNDIVIDED in gate.detail for gate in read_verification(run / "verify.json").gates):
        return []
    return outlier_notes([run / format for format in recipe.export.formats])


def _learning_notes(recipe: Recipe, run: Path) -> list[str]:
    """What the student's stages say of themselves, such as that a published schedule was reduced."""
    return [f"{note}." for note in read_training(run / "student").notes] if recipe.student else []


def read_search(run: Path, files: Sequence[ModelFile]) -> BudgetSearch | None:
    """Read the search that chose a run's files inside a budget; None where none did.

    Args:
        run: The run folder.
        files: Its model files; a search that chose others is an older one.
    """
    path = run / SEARCH_FILE
    if not path.is_file():
        return None
    found = BudgetSearch.model_validate(read_json(path))
    made = {f.path: run / f.source for f in files if f.plain and not f.exported}
    if {c.path for c in found.chosen} != set(made):
        return None
    return found.as_written({name: sha256_path(place) for name, place in made.items()})


def report_data(recipe: Recipe, run: Path, command: str, confusion: list[tuple[str, str, int]]) -> ReportData:
    """Everything the HTML report shows."""
    from pocketbert.benchmarks.report.data import GateRow, ParityRow, ReportData
    from pocketbert.core.recipe.file import dump_recipe

    result = read_verification(run / "verify.json")
    weights = run / ("student" if recipe.student else "teacher")
    family = open_model_folder(str(weights)).family
    teacher = teacher_file(recipe)
    parities = [p for folder in (teacher.step, *recipe.export.formats) for p in read_parity(run / folder)]
    files = model_files(recipe, weights)
    data = run / "data.json"
    return ReportData(
        title=recipe.name,
        description=recipe.description,
        task=recipe.task,
        machine=machine(),
        versions=installed(),
        rows=_rows(recipe, run, weights, result),
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
        curves=_curves(run),
        search=read_search(run, files),
        confusion=confusion,
        confusion_of=f"{row_name(default_file(files), recipe)} on eval" if confusion else "",
        notes=[
            result.protocol,
            *honest_notes(recipe, family),
            *_outlier_notes(recipe, run),
            *_learning_notes(recipe, run),
            *(f"{family.title}: {x}" for x in family.limits),
        ],
        recipe=dump_recipe(recipe),
        command=command,
    )


def early_report_data(recipe: Recipe, run: Path, command: str) -> ReportData:
    """What the HTML report shows of a run that ended after the training of its student: no file was exported."""
    from pocketbert.benchmarks.report.data import GateRow, ModelRow, ReportData
    from pocketbert.core.recipe.file import dump_recipe

    teacher, student = (read_training(run / name) for name in ("teacher", STUDENT))
    gates = student_gates(student.score, teacher.score, recipe.verify.min_kept)
    failed = any(g.file == STUDENT and not g.passed for g in gates)
    judged = [g for g in gates if g.name == "kept"]
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
            (TEACHER, "teacher", teacher, 1.0),
            ("student torch fp32", STUDENT, student, judged[0].value if judged else None),
        )
    ]
    return ReportData(
        title=recipe.name,
        description=recipe.description,
        task=recipe.task,
        machine=machine(),
        versions=installed(),
        rows=rows,
        gates=[GateRow(**g.model_dump()) for g in gates],
        data=DataReport.model_validate(read_json(run / "data.json")) if recipe.data.eval else None,
        curves=_curves(run),
        notes=["The run ended after the training of the student, which failed a gate: no file was exported."],
        recipe=dump_recipe(recipe),
        command=command,
    )


def _rows(recipe: Recipe, run: Path, weights: Path, result: Verification) -> list[ModelRow]:
    from pocketbert.benchmarks.report.data import ModelRow

    rows = []
    teacher = teacher_file(recipe)
    if (run / teacher.source).exists():
        rows.append(
            ModelRow(
                name=TEACHER,
                scheme=teacher.scheme,
                bytes=path_bytes(run / teacher.source),
                parameters=read_training(run / "teacher").parameters,
                eval_score=result.teacher,
                kept=1.0 if result.teacher else None,
                is_teacher=True,
                path=teacher.source,
            )
        )
    model = open_run_model(recipe, run, weights, 0)
    files = model.files
    for file in files:
        scores = result.scores.get(file.path, {})
        score = scores.get("eval")
        kept = (
            METRICS[score.metric].kept(result.teacher.value, score.value)
            if score and result.teacher and recipe.student
            else None
        )
        rows.append(
            ModelRow(
                name=row_name(file, recipe),
                scheme=file.scheme,
                bytes=path_bytes(run / file.source),
                parameters=read_training(weights).parameters,
                eval_score=score,
                holdout_score=scores.get("holdout"),
                confidence=result.confidence.get(file.path),
                kept=kept,
                status=Status.PASSED if result.passed(file.path) else Status.FAILED,
                is_default=file is default_file(files),
                path=file.path,
                sha256=result.files[file.path],
                provenance=right.provenance if (right := result.seen_right.get(file.path)) else Provenance.MEASURED,
                roles=role_table(model, file),
            )
        )
    return rows


def _curves(run: Path) -> dict[str, list[tuple[int, float]]]:
    out: dict[str, list[tuple[int, float]]] = {}
    for folder, name in (("teacher", "teacher"), ("student", "student")):
        for curve in read_training(run / folder).curves:
            many = curve.stage.removeprefix("distill.")
            base = name if many in ("finetune", "0") else f"{name} {many}"
            out[base] = list(zip(curve.steps, curve.loss, strict=True))
            if len(curve.terms) > 1:
                out |= {
                    f"{base}/{term}": [(s, v) for s, v in zip(curve.steps, values, strict=True) if v is not None]
                    for term, values in curve.terms.items()
                }
    return out
