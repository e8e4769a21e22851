"""Verification of a run's files or of an artefact folder: the task metric on the file itself, and golden rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pocketbert.core.artefacts import FILE_NAME as ARTEFACTS_FILE
from pocketbert.core.artefacts import (
    Artefacts,
    ModelRecord,
    changed_files,
    checked_config,
    edited_documents,
    integrity_problems,
    read_artefacts,
)
from pocketbert.core.compare.evaluate import EvalSet, evaluate
from pocketbert.core.compare.golden import (
    GOLDEN_FILE,
    LEAST_ROWS,
    TOKENS_FILE_NAME,
    GoldenRow,
    LibraryAnswers,
    Simulated,
    read_golden,
    read_library,
    read_simulated,
)
from pocketbert.core.compare.golden import SIMULATED_FILE as SIMULATED_FILE
from pocketbert.core.disk.files import sha256_path
from pocketbert.core.errors import MissingBackendError
from pocketbert.core.families.config import FILE_NAME as CONFIG_FILE
from pocketbert.core.families.config import label_names, read_config
from pocketbert.core.heads import Head
from pocketbert.core.host.progress import say
from pocketbert.core.predict.predictor import Matrix, Predictor, TorchPredictor, check_outputs
from pocketbert.core.predict.scores import Confidence, Score
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import VerifySection
from pocketbert.core.tasks import TASKS, task_of
from pocketbert.core.types import Status
from pocketbert.pipeline.formats.base import ModelFile, RunModel, place_of
from pocketbert.pipeline.formats.weight_roles import roles_of
from pocketbert.pipeline.gates.checks import (
    TorchScores,
    chance_gate,
    drop_gate,
    folder_model,
    golden_gates,
    kept_gate,
    labels_gate,
    padding_gate,
    seen_right,
    tokens_gate,
    types_gate,
    weights_gate,
)
from pocketbert.pipeline.gates.confidence import FILE_NAME as SELFTEST_FILE
from pocketbert.pipeline.gates.confidence import NOTHING, Settled, confidence_of, temperature_gates, unknown_gates
from pocketbert.pipeline.gates.stored import PreparedModels, stored_gate
from pocketbert.pipeline.make.library import library_gates
from pocketbert.pipeline.results import Gate, Subject, Verification
from pocketbert.runtime.engines import open_file

log = logging.getLogger("pocketbert")


@dataclass(frozen=True)
class Evidence:
    """What files are verified against.

    Attributes:
        golden: Golden rows.
        golden_tokens: Golden rows of the tokenizer.
        vocabulary: Rows of the model's embedding table; None where config.json does not tell.
        tokenizer: The folder's tokenizer, which cuts where the folder does.
        sets: Labelled rows; empty without data.
        teacher: The teacher's score on ``eval``.
        reference: The torch model's score on ``eval``.
        torch: The torch model, to score on the sets too where `reference` is not known.
        no_torch: Why there is none to compare scores with; empty where there is, or where none is needed.
        labels: Label names as another source has them, to compare the files' with.
        settled: Temperature and threshold that are known, by file; what is not is fitted on the held-out rows.
        selection: Held-out rows that are fitted on and not scored; empty where a held-out set is among `sets`.
        library: What the library that the checkpoint was published for answers to texts; None where none is recorded.
        head: Makes answers of outputs, to compare with the library's; None where these are not compared.
    """

    golden: Sequence[GoldenRow]
    golden_tokens: Path
    vocabulary: int | None
    tokenizer: TextTokenizer
    sets: Sequence[EvalSet] = ()
    teacher: Score | None = None
    reference: Score | None = None
    torch: TorchPredictor | None = None
    no_torch: str = ""
    labels: Sequence[str] | None = None
    settled: Mapping[str, Settled] = field(default_factory=dict)
    selection: Sequence[EvalSet] = ()
    library: LibraryAnswers | None = None
    head: Head | None = None


def recorded_evidence(recorded: Path, weights: Path, length: int) -> Evidence:
    """Read what a folder recorded itself: golden rows, tokenizer, size of the embedding table.

    Args:
        recorded: Folder of the golden rows.
        weights: Folder with config.json and tokenizer.
        length: Longest input in tokens.
    """
    return Evidence(
        golden=read_golden(recorded / GOLDEN_FILE, LEAST_ROWS),
        golden_tokens=recorded / TOKENS_FILE_NAME,
        vocabulary=vocabulary_rows(weights),
        tokenizer=TextTokenizer(weights, length),
        library=read_library(recorded),
    )


def verify_files(subjects: Sequence[Subject], evidence: Evidence, settings: VerifySection) -> Verification:
    """Put every file through every gate.

    Args:
        subjects: Opened files, each exported one before what was made from it.
        evidence: What they are compared with.
        settings: Bounds.
    """
    gates = [tokens_gate(evidence.tokenizer, evidence.golden_tokens, evidence.vocabulary)]
    if evidence.labels is not None:
        gates.append(labels_gate(subjects[0].labels, evidence.labels))
    result = Verification(
        status=Status.FAILED,
        gates=gates,
        teacher=evidence.teacher,
        reference=evidence.reference,
        files={s.name: sha256_path(s.path) for s in subjects},
    )
    if evidence.vocabulary is not None and evidence.tokenizer.largest_id >= evidence.vocabulary:
        return result  # ids beyond the embedding table would stop the runtime before the other gates could speak
    if evidence.teacher is not None:
        gates.append(chance_gate("teacher", evidence.teacher, "eval"))
    if evidence.head is not None:
        labels = len(evidence.labels or ())
        gates += library_gates(evidence.library, evidence.tokenizer, evidence.head, labels, subjects)
    scores: dict[str, dict[str, Score]] = {}
    right, sure = {}, dict[str, Confidence]()
    loaded = evidence.torch.model if evidence.torch is not None else None
    models = PreparedModels(subjects[0].folder, subjects[0].task, evidence.tokenizer.max_length, loaded)
    torch = TorchScores(evidence.tokenizer, evidence.reference, evidence.torch, evidence.no_torch)
    for subject in subjects:
        own = [*own_gates(subject, evidence.golden), stored_gate(subject, models)]
        if all(g.passed for g in own if g.name in ("finite", "golden", "reference")):
            right[subject.name] = seen_right(subject.predictor)
        gates += own
        scores[subject.name] = {}
        outputs = list[tuple[EvalSet, list[Matrix]]]()
        for rows in evidence.sets:
            score, kept = _score(subject, rows)
            scores[subject.name][rows.name] = score
            outputs.append((rows, kept))
            gates.append(chance_gate(subject.name, score, rows.name))
            gates += torch.gates(subject, rows, score)
            gates += _against(subject, rows.name, scores, subjects, evidence, settings)
        outputs += [(rows, _score(subject, rows)[1]) for rows in evidence.selection]
        settled = evidence.settled.get(subject.name, NOTHING)
        confidence = confidence_of(subject, outputs, settled)
        sure |= {subject.name: confidence} if confidence is not None else {}
        gates += unknown_gates(subject.name, confidence, settled)
    status = Status.PASSED if all(g.passed for g in gates) else Status.FAILED
    told = {"status": status, "gates": gates, "scores": scores, "seen_right": right, "confidence": sure}
    return result.model_copy(update=told)


def own_gates(subject: Subject, golden: Sequence[GoldenRow]) -> list[Gate]:
    """Put one file through the gates that need no labelled rows: first those of every format, then those of its format."""
    types = types_gate(subject)
    return [
        weights_gate(subject),
        *golden_gates(subject, golden),
        padding_gate(subject, golden),
        *([types] if types else []),
        *place_of(subject.format).gates(subject, golden),
    ]


def _score(subject: Subject, rows: EvalSet) -> tuple[Score, list[Matrix]]:
    cut, label = rows.within(subject.tokenizer.max_length), f"{subject.name} on {rows.name}"
    return evaluate(subject.predictor, subject.tokenizer, cut, label=label)


def _against(
    subject: Subject,
    rows: str,
    scores: Mapping[str, Mapping[str, Score]],
    subjects: Sequence[Subject],
    evidence: Evidence,
    settings: VerifySection,
) -> list[Gate]:
    """What a score is compared with: of smaller files what they were made from, of all the teacher."""
    out, score = [], scores[subject.name][rows]
    if not subject.exported:
        same = [s for s in subjects if s.exported and s.format is subject.format]
        base = next((s for s in same if s.client is subject.client), subjects[0])
        before = scores[base.name][rows]
        out.append(drop_gate(subject.name, score, before, settings.max_drop, f"{base.scheme} on {rows}"))
    if rows == "eval" and evidence.teacher is not None and settings.min_kept is not None:
        out.append(kept_gate(subject.name, score, evidence.teacher, settings.min_kept))
    return out


def run_subjects(model: RunModel, files: Sequence[ModelFile]) -> list[Subject]:
    """Open files of a run folder."""
    simulated = read_simulated(model.run / "golden")

    def subject(file: ModelFile) -> Subject:
        error, ranges = simulated.errors.get(file.path), simulated.ranges.get(file.path, {})
        return replace(subject_of(model, file, model.source(file)), simulated=error, ranges=ranges)

    return [subject(file) for file in files]


def subject_of(model: RunModel, file: ModelFile, path: Path) -> Subject:
    """Open one file of a model, wherever it is.

    Args:
        model: What it was exported from.
        file: What it is.
        path: Where it is.
    """
    predictor = open_file(path, file.format, runtime=file.runtime)
    return Subject(
        name=file.path,
        path=path,
        format=file.format,
        scheme=file.scheme,
        client=file.client,
        runtime=file.runtime,
        predictor=predictor,
        tokenizer=file_tokenizer(model.weights, model.length, predictor),
        labels=list(model.labels),
        task=model.task,
        folder=model.weights,
        weights=roles_of(model, file),
    )


def file_tokenizer(folder: Path, length: int, predictor: Predictor) -> TextTokenizer:
    """A tokenizer that cuts at the longest input that folder and file both take."""
    return TextTokenizer(folder, min(length, max(predictor.lengths, default=length)))


def verify_artefacts(folder: Path, sets: Sequence[EvalSet] = (), settings: VerifySection | None = None) -> Verification:
    """Verify an artefact folder: its list, its golden rows, and with data the task metric.

    Args:
        folder: The folder.
        sets: Labelled rows, tokenized with the folder's tokenizer.
        settings: Bounds; default the recipe's.

    Returns:
        The result; nothing in the folder is changed.
    """
    artefacts = read_artefacts(folder)
    models, changed = artefacts.models(), changed_files(folder, artefacts)
    integrity, notes = _integrity(folder, artefacts, changed), edited_documents(folder, artefacts)
    described = [f.path for f in artefacts.files if f.path == CONFIG_FILE]
    needed = [*(r.path for r in models), GOLDEN_FILE, TOKENS_FILE_NAME, "tokenizer.json", *described]
    if any(name in changed for name in (*needed, SIMULATED_FILE)):
        # nothing is opened: damaged model files end the process inside their engines
        return Verification(status=Status.FAILED, gates=[integrity], notes=notes)
    refusal = _refusal(models, [name for name in needed if not (folder / name).exists()])
    if refusal is not None:
        return Verification(status=Status.FAILED, gates=[integrity, refusal], notes=notes)
    config = checked_config(folder, artefacts)
    subjects, unopened, simulated = [], [], read_simulated(folder)
    for record in models:
        try:
            subjects.append(open_subject(folder, artefacts, record, config, simulated))
        except MissingBackendError as error:
            unopened.append(
                Gate(name="engine", file=record.path, passed=True, skipped=True, detail=f"not checked: {error}")
            )
            if len(unopened) == len(models):
                raise
    torch, no_torch = folder_model(folder, task_of(artefacts.task), changed) if sets else (None, "")
    evidence = replace(
        recorded_evidence(folder, folder, artefacts.processing.max_length),
        sets=sets,
        torch=torch,
        no_torch=no_torch,
        head=artefacts.head(),
        labels=artefacts.labels if TASKS[artefacts.task].names_labels else None,
        settled={r.path: Settled(r.temperature, artefacts.unknown_below(r)) for r in models},
    )
    result = verify_files(subjects, evidence, settings or VerifySection())
    gates = [integrity, *result.gates, *unopened, *_unrecorded(subjects, evidence.golden)]
    gates += temperature_gates(folder, artefacts) if SELFTEST_FILE not in changed else []
    return result.model_copy(
        update={
            "gates": gates,
            "notes": notes,
            "status": Status.PASSED if all(g.passed for g in gates) else Status.FAILED,
        }
    )


def _unrecorded(subjects: Sequence[Subject], golden: Sequence[GoldenRow]) -> list[Gate]:
    """A failed gate for each file whose answers to texts that it takes are not recorded: the other gates would skip them."""
    out = []
    for subject in subjects:
        lengths = [len(e) for e in subject.tokenizer.encode([r.input for r in golden])]
        longest = max(subject.predictor.lengths, default=None)
        lost = sum(
            subject.name not in row.outputs and (longest is None or tokens < longest)
            for row, tokens in zip(golden, lengths, strict=True)
        )
        if lost:
            detail = f"{lost} of {len(golden)} golden rows record no answer of this file."
            out.append(
                Gate(name="recorded", file=subject.name, passed=False, value=float(lost), bound=0.0, detail=detail)
            )
    return out


def _integrity(folder: Path, artefacts: Artefacts, changed: Sequence[str]) -> Gate:
    """Whether the folder holds what its list names, and nothing else."""
    broken = integrity_problems(folder, artefacts, changed)
    return Gate(
        name="integrity",
        file="",
        passed=not broken,
        value=float(len(broken)),
        bound=0.0,
        detail="; ".join(broken[:10]) or f"{len(artefacts.files)} files are as listed.",
    )


def _refusal(models: Sequence[ModelRecord], lost: Sequence[str]) -> Gate | None:
    """The failed gate of a folder that lacks what verification needs, or whose files failed before; None otherwise."""
    if lost or not models:
        return Gate(
            name="complete",
            file="",
            passed=False,
            value=float(len(lost)),
            bound=0.0,
            detail=f"cannot be verified without {', '.join(lost) or 'a model file'}.",
        )
    failed = [r.path for r in models if r.status is Status.FAILED]
    if failed:
        return Gate(
            name="status",
            file="",
            passed=False,
            value=float(len(failed)),
            bound=0.0,
            detail=f"{', '.join(failed)}: marked failed in {ARTEFACTS_FILE}.",
        )
    return None


def open_subject(
    folder: Path,
    artefacts: Artefacts,
    record: ModelRecord,
    config: Mapping[str, object] | None,
    simulated: Simulated,
) -> Subject:
    """Open a file of an artefact folder."""
    task = task_of(artefacts.task)
    predictor = open_file(folder / record.path, record.format, runtime=record.runtime)
    check_outputs(predictor, task, folder / record.path)
    return Subject(
        name=record.path,
        path=folder / record.path,
        format=record.format,
        scheme=record.scheme,
        client=record.client,
        runtime=record.runtime,
        predictor=predictor,
        tokenizer=file_tokenizer(folder, artefacts.processing.max_length, predictor),
        labels=(label_names(config or {}) or artefacts.labels) if task.names_labels else [],
        task=task,
        folder=folder,
        simulated=simulated.errors.get(record.path),
        ranges=simulated.ranges.get(record.path, {}),
        weights=record.weights,
    )


def vocabulary_rows(folder: Path) -> int | None:
    """Rows of the embedding table, as config.json says."""
    path = folder / CONFIG_FILE
    rows = read_config(path).get("vocab_size") if path.is_file() else None
    return int(rows) if rows else None


def report_gates(result: Verification) -> None:
    """Print one line for each file, and one for each check that failed or was skipped; with `-v` one for every check."""
    for gate in result.gates:
        verdict = "skipped" if gate.skipped else "passed" if gate.passed else "FAILED"
        line = f"{verdict}  {gate.file or 'folder'} {gate.name}: {gate.detail}"
        log.info("%s", line)
        if verdict != "passed":
            say(f"  {line}")
    for note in result.notes:
        say(f"  {note}")
    for line, failed in result.summary():
        say(f"  {line}", style="red" if failed else "green")
