"""Assembling the artefact folder out of the files that passed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.artefacts import (
    CARD,
    FILE_NAME,
    SEARCH_FILE,
    Artefacts,
    BudgetSearch,
    FileRecord,
    Kind,
    ModelRecord,
    Processing,
    RoleRow,
    checked_config,
    write_artefacts,
)
from pocketbert.core.compare.golden import GOLDEN_FILE as GOLDEN_FILE
from pocketbert.core.compare.golden import LIBRARY_FILE as LIBRARY_FILE
from pocketbert.core.compare.golden import SIMULATED_FILE as SIMULATED_FILE
from pocketbert.core.compare.golden import read_golden, read_library, read_simulated
from pocketbert.core.data_report import DataReport
from pocketbert.core.disk.files import copy_path, path_bytes, read_json, sha256_path, write_json
from pocketbert.core.errors import GateError
from pocketbert.core.families import Family
from pocketbert.core.heads.table import thresholds_of
from pocketbert.core.host.hardware import machine
from pocketbert.core.host.system import installed
from pocketbert.core.metrics import METRICS
from pocketbert.core.models.folder import ModelCard, open_model_folder
from pocketbert.core.models.tokenizers import OTHER_FILES, SENTENCE_FILE
from pocketbert.core.predict.inputs import ENTITIES_FILE
from pocketbert.core.predict.sentence_settings import (
    DEFAULT_POOLING,
    MODULES_FILE,
    POOLING_FILE,
    SETTINGS_FILE,
    pooling_of,
    similarity_of,
)
from pocketbert.core.predict.tokenization import TextTokenizer, pad_id_of
from pocketbert.core.recipe.file import dump_recipe
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import LabelKind, TaskName
from pocketbert.core.types import Provenance, Scheme, Status
from pocketbert.pipeline.formats.base import (
    ModelFile,
    RunModel,
    absent_files,
    default_file,
    model_files,
    open_run_model,
    place_of,
)
from pocketbert.pipeline.formats.weight_roles import role_table, roles_of
from pocketbert.pipeline.gates.checks import STUDENT, student_gates
from pocketbert.pipeline.gates.confidence import FILE_NAME as SELFTEST_FILE
from pocketbert.pipeline.gates.confidence import write_selftest
from pocketbert.pipeline.gates.stored import UNDIVIDED
from pocketbert.pipeline.gates.verify import open_subject
from pocketbert.pipeline.learn.finishing import read_training
from pocketbert.pipeline.learn.training import CARD_FILE
from pocketbert.pipeline.make.library import library_gates
from pocketbert.pipeline.make.measuring import TEACHER, is_measured, row_name, teacher_file
from pocketbert.pipeline.make.model_files import PARITY_FILE, outlier_notes, read_parity
from pocketbert.pipeline.phone.card import TEACHER_SCORE, CardFacts, CardFigures, measured_figures, render_card
from pocketbert.pipeline.phone.recording import FACTS_FILE, write_facts
from pocketbert.pipeline.phone.tokenizers.sources import java_gates, pack_sources
from pocketbert.pipeline.reference import unreached
from pocketbert.pipeline.results import Gate, Verification, read_verification
from pocketbert.runtime.engines import open_file

if TYPE_CHECKING:
    from pocketbert.benchmarks.measurement import BenchmarkResult
    from pocketbert.benchmarks.report.figures import ModelRow, ReportData


# --- facts ---
# A run's results as the report and the model card want them.


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
    from pocketbert.benchmarks.report.figures import GateRow, ParityRow, ReportData
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
    from pocketbert.benchmarks.report.figures import GateRow, ModelRow, ReportData
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
    from pocketbert.benchmarks.report.figures import ModelRow

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


_TOKENIZER_FILES = ("tokenizer.json", *OTHER_FILES)
_VECTOR_FILES = (MODULES_FILE, POOLING_FILE, SENTENCE_FILE, SETTINGS_FILE)
"""What sentence-transformers reads beside the model."""
_KINDS = {
    "config.json": Kind.CONFIG,
    ENTITIES_FILE: Kind.CONFIG,
    "recipe.resolved.yaml": Kind.CONFIG,
    "model.safetensors": Kind.WEIGHTS,
    "golden.jsonl": Kind.GOLDEN,
    "golden_tokens.jsonl": Kind.GOLDEN,
    LIBRARY_FILE: Kind.GOLDEN,
    SIMULATED_FILE: Kind.FIGURES,
    SELFTEST_FILE: Kind.GOLDEN,
    CARD: Kind.DOCUMENT,
    "parity.json": Kind.FIGURES,
    "benchmark.json": Kind.FIGURES,
    FACTS_FILE: Kind.FIGURES,
    **dict.fromkeys(_TOKENIZER_FILES, Kind.TOKENIZER),
    **dict.fromkeys(_VECTOR_FILES, Kind.CONFIG),
}


@dataclass(frozen=True)
class Origin:
    """What decides an artefact folder.

    Attributes:
        weights: sha256 of the weights that the run started from.
        everything: Digest of recipe, model, data and library versions: equal, and the same folder would be written.
        accepted: Steps whose results were made with other library versions and taken as they are, each with the versions.
    """

    weights: str
    everything: str
    accepted: tuple[str, ...] = ()


def sources(model: RunModel) -> dict[str, Path]:
    """Files that are packed as they are, by their path in the artefact folder."""
    out = {file.path: model.source(file) for file in model.files}
    names = ("config.json", "model.safetensors", ENTITIES_FILE, *_TOKENIZER_FILES, *_VECTOR_FILES)
    out |= {name: model.weights / name for name in names}
    recorded = ("golden.jsonl", "golden_tokens.jsonl", LIBRARY_FILE, SIMULATED_FILE)
    out |= {name: model.run / "golden" / name for name in recorded}
    return {name: path for name, path in out.items() if path.exists()}


def check_packable(model: RunModel) -> Verification:
    """Refuse a run whose files did not pass, or changed since they did.

    Raises:
        GateError: Saying which, and what to do.
    """
    run = model.run
    path = run / "verify.json"
    if not path.is_file():
        raise GateError([f"{run} was never verified; run: pocketbert verify -m {run}"])
    result = read_verification(path)
    failures = result.failures
    now = sources(model)
    failures += [
        f"{name}: not there, though it was when the run was verified" for name in result.files if name not in now
    ]
    for name, path in now.items():
        if sha256_path(path) != result.files.get(name):
            failures.append(f"{path.relative_to(run)}: changed since it was verified; run: pocketbert verify -m {run}")
    if result.status is not Status.PASSED or failures:
        raise GateError([*failures, "Nothing was packed."])
    return result


def make_pack(
    model: RunModel, pair: bool, origin: Origin, destination: Path, confusions: Sequence[tuple[str, str, int]] = ()
) -> Sequence[str]:
    """Write the artefact folder; ``artifacts.json`` last.

    Args:
        model: What was exported, with its files.
        pair: Whether inputs are pairs.
        origin: What decides the folder.
        destination: Where to write.
        confusions: Pairs of labels that the default file confuses most on eval: gold, predicted, rows.

    Returns:
        What the packed folder answers otherwise than the library of the checkpoint, one line for each gate.

    Raises:
        GateError: If a file did not pass, or changed since.
    """
    result, recipe, run = check_packable(model), model.recipe, model.run
    for name, path in sources(model).items():
        (destination / name).parent.mkdir(exist_ok=True)
        copy_path(path, destination / name)
    write_json(
        destination / PARITY_FILE,
        [json.loads(p.model_dump_json()) for f in recipe.export.formats for p in read_parity(run / f)],
    )
    kinds, aliases = dict(_KINDS), dict[str, str]()
    for format in recipe.export.formats:
        own = [f for f in model.files if f.format is format]
        extras = place_of(format).pack(own, model.folder, destination)
        kinds, aliases = {**kinds, **extras.kinds}, {**aliases, **extras.aliases}
    if (run / "benchmark.json").is_file() and recipe.benchmark is not None:
        _check_measured(run, result, [f.path for f in model.files if is_measured(f, recipe)])
        shutil.copyfile(run / "benchmark.json", destination / "benchmark.json")
    (destination / "recipe.resolved.yaml").write_text(dump_recipe(portable(recipe)), encoding="utf-8")
    shown = report_data(portable(recipe), run, "", list(confusions))
    write_facts(shown, destination)
    artefacts = _artefacts(model, pair, result, origin)
    tools = pack_sources(destination, artefacts.processing, pad_id_of(destination))
    artefacts = artefacts.model_copy(update={"absent": {**artefacts.absent, **tools.absent}})
    kinds |= tools.kinds
    write_selftest(destination, artefacts)
    artefacts = _with_files(artefacts, destination, kinds, aliases)
    tables = {row.path: row.roles for row in shown.rows if row.roles}
    facts = card_facts(model, measured_figures(destination, artefacts), tables)
    (destination / CARD).write_text(render_card(artefacts, facts), encoding="utf-8")
    artefacts = _with_files(artefacts, destination, kinds, aliases)
    write_artefacts(destination, artefacts)
    return [g.failure for g in packed_gates(destination, artefacts) if not g.passed]


def packed_gates(folder: Path, artefacts: Artefacts) -> list[Gate]:
    """Compare a packed folder, read as an app reads it, with the library: its tokenizer, its list, its default file."""
    subject = open_subject(
        folder, artefacts, artefacts.default_model(), checked_config(folder, artefacts), read_simulated(folder)
    )
    tokenizer, library = TextTokenizer(folder, artefacts.processing.max_length), read_library(folder)
    return [
        *library_gates(library, tokenizer, artefacts.head(), len(artefacts.labels), [subject]),
        *java_gates(folder, artefacts, library),
    ]


def _with_files(
    artefacts: Artefacts, destination: Path, kinds: Mapping[str, Kind], aliases: Mapping[str, str]
) -> Artefacts:
    """The list with everything that lies in the folder."""
    records = [*artefacts.models(), *_others(destination, artefacts.models(), kinds, aliases)]
    return artefacts.model_copy(update={"files": sorted(records, key=lambda r: r.path)})


def _check_measured(run: Path, result: Verification, files: Sequence[str]) -> None:
    """Figures belong to the files they were measured on."""
    bench = read_benchmark(run)
    measured = {v.sha256 for s in (bench, *bench.others) for v in s.variants} if bench else set()
    strange = [name for name in files if result.files[name] not in measured]
    if strange:
        raise GateError([f"benchmark.json measured other files than {', '.join(strange)}; run the recipe again."])


def _artefacts(model: RunModel, pair: bool, result: Verification, origin: Origin) -> Artefacts:
    """What ``artifacts.json`` tells, with its model files only."""
    recipe, folder = model.recipe, model.folder
    return Artefacts(
        name=recipe.name,
        task=recipe.task,
        family=folder.family.name,
        form=folder.family.form.name if folder.family.form else None,
        labels=list(model.labels),
        pair=pair,
        processing=_processing(model),
        files=[*_records(model, result)],
        absent=absent_files(recipe, folder.path),
        lineage=_lineage(model, model.folder.licence, origin, teacher_score(recipe, result)),
        versions=installed(),
        machine=machine().summary,
        made_from=origin.everything,
        search=read_search(model.run, model.files),
    )


def _records(model: RunModel, result: Verification) -> list[ModelRecord]:
    """One record for each model file."""
    default = default_file(model.files)
    return [
        ModelRecord(
            path=f.path,
            sha256=result.files[f.path],
            bytes=path_bytes(model.source(f)),
            format=f.format,
            scheme=f.scheme,
            client=f.client,
            runtime=f.runtime,
            default=f is default,
            signature=open_file(model.source(f), f.format, runtime=f.runtime).signature,
            minimum=place_of(f.format).minimum(f, model.source(f)),
            status=Status.PASSED,
            lineage=model.folder.sha256,
            scores=result.scores.get(f.path, {}),
            seen_right=[result.seen_right[f.path]] if f.path in result.seen_right else [],
            confidence=result.confidence.get(f.path),
            weights=roles_of(model, f),
        )
        for f in model.files
    ]


def _lineage(model: RunModel, licence: str, origin: Origin, score: str = "") -> dict[str, str]:
    """Where the weights come from; of local folders and files the names only."""
    teacher, train = model.recipe.teacher, model.recipe.data.train
    lineage = {
        "teacher": Path(teacher.model).name if Path(teacher.model).is_absolute() else teacher.model,
        **({"revision": teacher.revision} if teacher.revision else {}),
        "source_sha256": origin.weights,
        "weights_sha256": model.folder.sha256,
        "licence": licence,
        **({TEACHER_SCORE: score} if score else {}),
    }
    if train is not None:
        lineage["training data"] = Path(train.title).name if train.path else train.title
    if origin.accepted:
        lineage["made with other library versions (--resume-anyway)"] = "; ".join(origin.accepted)
    return lineage


def _processing(model: RunModel) -> Processing:
    """What a client must do before and behind the files."""
    task, folder, answer = model.task, model.folder, model.recipe.answer
    own: dict[str, object] = {}
    if task.labels is LabelKind.NAMES:
        tuned = read_training(folder.path).thresholds
        chosen = answer if tuned is None else answer.model_copy(update={"thresholds": tuned})
        own["thresholds"] = list(thresholds_of(chosen, len(folder.labels or [])))
    if answer.unknown is not None:
        own |= {"unknown": answer.unknown_below, "unknown_accuracy": answer.unknown_accuracy}
    if task.labels is LabelKind.ANSWERS:
        own |= {
            "stride": answer.stride,
            "answer_length": answer.answer_length,
            "null_answers": answer.null_answers,
            "pair_order": ["question", "context"],
        }
    if task.name is TaskName.FEATURE_EXTRACTION:
        pooling = pooling_of(folder.path) or DEFAULT_POOLING
        own |= {
            "pooling": pooling.kind.value,
            "normalize": pooling.normalize,
            "similarity": answer.similarity or similarity_of(folder.path),
        }
    prompts = model.tokenizer.prompts
    if prompts.named:
        own |= {"prompts": dict(prompts.named), "default_prompt": prompts.default}
    return Processing(
        max_length=model.length,
        padding_side=folder.family.padding_side,
        truncation_side=model.tokenizer.truncation_side,
        score=task.score,
        **own,
    )


def _others(
    destination: Path, models: Sequence[ModelRecord], kinds: Mapping[str, Kind], aliases: Mapping[str, str]
) -> list[FileRecord]:
    """Records of all files that are no model files, and of further names of model files."""
    known = {r.path: r for r in models}
    packages = [destination / name for name in known if (destination / name).is_dir()]
    out: list[FileRecord] = []
    for path in sorted(p for p in destination.rglob("*") if p.is_file()):
        name = path.relative_to(destination).as_posix()
        if name in known or name == FILE_NAME or any(path.is_relative_to(p) for p in packages):
            continue
        if name in aliases:
            same = known[aliases[name]]
            out.append(same.model_copy(update={"path": name, "alias_of": same.path, "default": False, "scores": {}}))
        else:
            out.append(FileRecord.of(destination, name, kinds[name]))
    return out


def portable(recipe: Recipe) -> Recipe:
    """The recipe without paths of this machine: local files by name only."""
    content = recipe.model_dump(mode="json", by_alias=True)
    data, student = content["data"], content["student"] or {}
    sources = [data["train"], data["eval"], *(data["corpus"] or {}).get("sources", [])]
    for part, key in (
        *((s, "path") for s in sources),
        (data["augment"], "vectors"),
        (content["teacher"], "model"),
        (student, "model"),
        (content["export"], "entities"),
    ):
        if part and part.get(key) and (key != "model" or Path(part[key]).is_absolute()):
            part[key] = Path(part[key]).name
    return Recipe.model_validate(content)
