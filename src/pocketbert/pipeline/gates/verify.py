"""Verification: every gate on every file of a run or of an artefact folder.

- `verify_files` runs the gates on opened files (`Subject`) with the `Evidence` that they are compared with: golden
  rows, labelled rows, the teacher's and the torch model's scores, answers of the original library,
- a run opens its files with `open_run_files` and reads its evidence with `read_evidence`,
- `verify_artefacts` does both for an artefact folder, after checking that its files are as listed,
- `report_gates` prints the result.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pocketbert.core.artefacts import (
    ARTEFACTS_FILE,
    Artefacts,
    ModelRecord,
    list_changed_files,
    list_edited_documents,
    list_integrity_problems,
    read_artefacts,
    read_checked_config,
)
from pocketbert.core.compare.evaluate import EvalSet, evaluate
from pocketbert.core.compare.golden import (
    GOLDEN_FILE,
    GOLDEN_TOKENS_FILE,
    LEAST_GOLDEN_ROWS,
    SIMULATED_FILE,
    GoldenRow,
    LibraryAnswers,
    SimulatedErrors,
    read_golden,
    read_library,
    read_simulated,
)
from pocketbert.core.disk.files import sha256_path
from pocketbert.core.errors import MissingBackendError
from pocketbert.core.families.config import CONFIG_FILE, label_names, read_config
from pocketbert.core.heads import Head
from pocketbert.core.host.progress import note_stage, print_note, report_parts
from pocketbert.core.host.system import leave_out_of_collection, release_memory
from pocketbert.core.predict.predictor import Matrix, Predictor, TorchPredictor, check_outputs
from pocketbert.core.predict.scores import Confidence, Score
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import VerifySection
from pocketbert.core.types import Status
from pocketbert.pipeline.formats.base import ModelFile, RunModel, format_place
from pocketbert.pipeline.formats.weight_roles import resolve_file_weights
from pocketbert.pipeline.gates.checks import (
    TorchScores,
    check_chance,
    check_drop,
    check_each_head,
    check_finite_weights,
    check_golden_rows,
    check_kept,
    check_labels,
    check_padding,
    check_tokenizer,
    check_weight_types,
    open_torch_model,
    record_engine,
)
from pocketbert.pipeline.gates.confidence import (
    FIT_TEMPERATURE,
    SELFTEST_FILE,
    KnownConfidence,
    check_temperatures,
    check_unknown_threshold,
    fit_confidence,
)
from pocketbert.pipeline.gates.library import check_library_answers, check_library_texts
from pocketbert.pipeline.gates.stored import PreparedModels, check_stored_numbers
from pocketbert.pipeline.results import Gate, Subject, Verification, choose_recorded_rows
from pocketbert.runtime.coreml import REFERENCE_ENGINE
from pocketbert.runtime.engines import FileOnDemand, describe_file, open_file

log = logging.getLogger("pocketbert")


@dataclass(frozen=True)
class Evidence:
    """The data that model files are checked against: golden rows, labelled rows and reference scores.

    Attributes:
        golden: Golden rows.
        golden_tokens: File of texts with the token ids that were recorded for them.
        vocabulary: Rows of the model's embedding table; None if config.json does not name them.
        tokenizer: The folder's tokenizer, which cuts texts at the folder's longest input.
        sets: Labelled rows; empty without data.
        teacher: The teacher's score on ``eval``.
        reference: The torch model's score on ``eval``.
        torch: The torch model, to score on the sets if `reference` is not known.
        no_torch: Reason why there is no torch model to compare scores with; empty if there is, or if none is needed.
        labels: Label names of another source, with which those of the files are compared.
        settled: Temperature and threshold that are known, by file. What is not known is fitted on the held-out rows.
        selection: Held-out rows that are fitted on and not scored; empty if a held-out set is among `sets`.
        library: Recorded answers of the library that the checkpoint was published for; None if there are none.
        head: Task head that turns outputs into answers, to compare these with the library's; None to compare none.
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
    settled: Mapping[str, KnownConfidence] = field(default_factory=dict)
    selection: Sequence[EvalSet] = ()
    library: LibraryAnswers | None = None
    head: Head | None = None


def read_evidence(recorded: Path, weights: Path, tokenizer: TextTokenizer) -> Evidence:
    """Read what a folder's files are checked against: golden rows, vocabulary size, tokenizer and recorded library answers.

    The library answers are those of the library that the checkpoint was published for; None if none were recorded.

    Args:
        recorded: Folder with the golden rows and the library answers.
        weights: Folder with config.json and the tokenizer.
        tokenizer: The tokenizer of that folder.
    """
    config = weights / CONFIG_FILE
    vocabulary = read_config(config).get("vocab_size") if config.is_file() else None
    return Evidence(
        golden=read_golden(recorded / GOLDEN_FILE, LEAST_GOLDEN_ROWS),
        golden_tokens=recorded / GOLDEN_TOKENS_FILE,
        vocabulary=int(vocabulary) if vocabulary else None,
        tokenizer=tokenizer,
        library=read_library(recorded),
    )


# --- every gate on every file -----------------------------------------------------------------------------------------


@leave_out_of_collection()
def verify_files(subjects: Sequence[Subject], evidence: Evidence, settings: VerifySection) -> Verification:
    """Run all checks on all model files and return the verification: gates, scores, confidences and status.

    If the tokenizer has ids beyond the embedding table, only the first gates run, because such ids would end the
    process inside an engine.

    Args:
        subjects: Opened files. Each exported file comes before the quantized files made from it.
        evidence: The data that the files are compared with.
        settings: Largest allowed losses; the section `verify` of a recipe.
    """
    gates = [check_tokenizer(evidence.tokenizer, evidence.golden_tokens, evidence.vocabulary)]
    if evidence.labels is not None:
        gates.append(check_labels(subjects[0].labels, evidence.labels))
    result = Verification(
        status=Status.FAILED,
        gates=gates,
        teacher=evidence.teacher,
        reference=evidence.reference,
        files={s.name: sha256_path(s.path) for s in subjects},
    )
    if evidence.vocabulary is not None and evidence.tokenizer.largest_id >= evidence.vocabulary:
        return result
    if evidence.teacher is not None:
        gates += check_each_head(check_chance, "teacher", evidence.teacher, "eval")
    if evidence.head is not None:
        gates.append(check_library_texts(evidence.library, evidence.tokenizer, subjects))
    scores: dict[str, dict[str, Score]] = {}
    engines, confidences, asked_all = {}, dict[str, Confidence](), _choose_fully_asked(subjects)
    torch_scores = TorchScores(evidence.tokenizer, evidence.reference, evidence.torch, evidence.no_torch)
    own_gates = dict[str, list[Gate]]()
    by_name = {subject.name: subject for subject in subjects}
    for subject in report_parts("gates", by_name):
        own_gates[subject.name] = own = list[Gate]()
        if evidence.head is not None:
            labels, is_asked_all = len(evidence.labels or ()), subject.name == asked_all
            own += check_library_answers(evidence.library, evidence.head, labels, subject, is_asked_all)
        answered = check_answers(subject, evidence.golden)
        if all(g.passed for g in answered if g.name.partition(" ")[0] in ("finite", "golden", "reference")):
            engines[subject.name] = record_engine(subject.predictor)
        own += answered
        scored, outputs = _check_scores(subject, evidence, settings, scores, subjects, torch_scores)
        own += scored
        outputs += [(rows, _score(subject, rows)[1]) for rows in evidence.selection]
        known = evidence.settled.get(subject.name, FIT_TEMPERATURE)
        confidence = fit_confidence(subject, outputs, known)
        if confidence is not None:
            confidences[subject.name] = confidence
        own += check_unknown_threshold(subject.name, confidence, known)
        subject.close()
        own += check_content(subject, evidence.golden)
    # only now, since engines and the torch model are not in memory at the same time then
    torch_model = evidence.torch.model if evidence.torch is not None else None
    models = PreparedModels(subjects[0].folder, subjects[0].task, evidence.tokenizer.max_length, torch_model)
    for subject in report_parts("gate stored", by_name):
        gates += [*own_gates[subject.name], check_stored_numbers(subject, models)]
        release_memory(subject.path)
    status = Status.PASSED if all(g.passed for g in gates) else Status.FAILED
    return result.model_copy(
        update={"status": status, "gates": gates, "scores": scores, "seen_right": engines, "confidence": confidences}
    )


def _choose_fully_asked(subjects: Sequence[Subject]) -> str | None:
    """Return the name of the file that is run on all texts of the library: the first that an engine runs.

    The result is None if there is no such file. A few texts are enough for the others: the tokens of a text are the same
    for all files, and a wrong way from outputs to answers shows in every text. Core ML's reference evaluator is not chosen,
    since it takes seconds for each text.
    """
    return next((s.name for s in subjects if s.predictor.engine != REFERENCE_ENGINE), None)


def check_answers(subject: Subject, golden: Sequence[GoldenRow]) -> list[Gate]:
    """Run the checks of one file's outputs on golden rows: as they are, and with padding."""
    note_stage("gates golden and reference")
    gates = check_golden_rows(subject, golden)
    note_stage("gate padding")
    return [*gates, check_padding(subject, golden)]


def check_content(subject: Subject, golden: Sequence[GoldenRow]) -> list[Gate]:
    """Run the checks of what one file holds: those of all formats, then those of its own format."""
    note_stage("gates weights, types" + ", overflow" * (subject.predictor.engine == REFERENCE_ENGINE))
    types = check_weight_types(subject)
    own = format_place(subject.format).gates(subject, golden)
    return [check_finite_weights(subject), *([types] if types else []), *own]


def check_file(subject: Subject, golden: Sequence[GoldenRow]) -> list[Gate]:
    """Run the checks of one file that need neither labelled rows nor the torch model."""
    return [*check_answers(subject, golden), *check_content(subject, golden)]


def _score(subject: Subject, rows: EvalSet) -> tuple[Score, list[Matrix]]:
    """Score a file on labelled rows cut to its longest input; return the score and the outputs of each row."""
    cut, label = rows.within(subject.tokenizer.max_length), f"{subject.name} on {rows.name}"
    return evaluate(subject.predictor, subject.tokenizer, cut, label=label)


def _check_scores(
    subject: Subject,
    evidence: Evidence,
    settings: VerifySection,
    scores: dict[str, dict[str, Score]],
    subjects: Sequence[Subject],
    torch_scores: TorchScores,
) -> tuple[list[Gate], list[tuple[EvalSet, list[Matrix]]]]:
    """Score a file on the labelled rows, and add its scores to those of the other files.

    Returns:
        The gates on the scores, and for each set of rows the outputs.
    """
    gates, outputs = list[Gate](), list[tuple[EvalSet, list[Matrix]]]()
    note_stage("gates chance and drop")
    scores[subject.name] = {}
    for rows in evidence.sets:
        score, logits = _score(subject, rows)
        scores[subject.name][rows.name] = score
        outputs.append((rows, logits))
        gates += check_each_head(check_chance, subject.name, score, rows.name)
        gates += torch_scores.gates(subject, rows, score)
        gates += _compare_scores(subject, rows.name, scores, subjects, evidence, settings)
    return gates, outputs


def _compare_scores(
    subject: Subject,
    rows: str,
    scores: Mapping[str, Mapping[str, Score]],
    subjects: Sequence[Subject],
    evidence: Evidence,
    settings: VerifySection,
) -> list[Gate]:
    """Check a quantized file's score against the exported file's, and on ``eval`` any file's score against the teacher's.

    The teacher's score counts only if there is one and `settings` say what share of it must be kept.

    Args:
        subject: The opened file whose score is checked.
        rows: Name of the rows.
        scores: Scores by file, then by rows.
        subjects: All opened files.
        evidence: The data of the verification, with the teacher's score on ``eval``.
        settings: Largest allowed losses.
    """
    gates, score = [], scores[subject.name][rows]
    if not subject.exported:
        exported = [s for s in subjects if s.exported and s.format is subject.format]
        base = next((s for s in exported if s.client is subject.client), subjects[0])
        before = scores[base.name][rows]
        what = f"{base.scheme} on {rows}"
        gates += check_each_head(check_drop, subject.name, score, before, settings.max_drop, what)
    if rows == "eval" and evidence.teacher is not None and settings.min_kept is not None:
        gates += check_each_head(check_kept, subject.name, score, evidence.teacher, settings.min_kept)
    return gates


# --- files of a run ---------------------------------------------------------------------------------------------------


def open_run_files(model: RunModel, files: Sequence[ModelFile], recorded: Sequence[GoldenRow] = ()) -> list[Subject]:
    """Open model files of a run for verification, each with the error and activation ranges simulated in torch.

    Args:
        model: The model that the files were exported from.
        files: The files to open.
        recorded: Golden rows with outputs that were recorded from these files. Most of these rows are then not run
            again, see `Subject.take_recorded`.
    """
    simulated, subjects = read_simulated(model.run / "golden"), []
    for file in files:
        error, ranges = simulated.errors.get(file.path), simulated.ranges.get(file.path, {})
        subject = open_model_file(model, file, model.source(file))
        subjects.append(replace(subject, simulated=error, ranges=ranges))
        subjects[-1].take_recorded(recorded)
    return subjects


def open_model_file(model: RunModel, file: ModelFile, path: Path) -> Subject:
    """Open one model file of a run for verification, with the tokenizer, labels and task of the model.

    Args:
        model: The model that the file was exported from.
        file: Format, scheme and purpose of the file.
        path: Path of the file, which need not be in the run folder.
    """
    opener = partial(open_file, path, file.format, runtime=file.runtime)
    predictor = FileOnDemand(opener, describe_file(path, file.format, file.runtime))
    return Subject(
        name=file.path,
        path=path,
        format=file.format,
        scheme=file.scheme,
        client=file.client,
        runtime=file.runtime,
        predictor=predictor,
        tokenizer=_cut_for_file(model.tokenizer, model.weights, predictor),
        labels=list(model.labels),
        task=model.task,
        folder=model.weights,
        weights=resolve_file_weights(model, file),
    )


def _cut_for_file(tokenizer: TextTokenizer, folder: Path, predictor: Predictor) -> TextTokenizer:
    """Return the folder's tokenizer, or one that cuts at the file's longest input if that is shorter.

    Opening a large vocabulary takes a second and 40 MB, so that files of the same length share one.
    """
    longest = max(predictor.lengths, default=tokenizer.max_length)
    return tokenizer if longest >= tokenizer.max_length else TextTokenizer(folder, longest)


# --- an artefact folder -----------------------------------------------------------------------------------------------


def verify_artefacts(folder: Path, sets: Sequence[EvalSet] = (), settings: VerifySection | None = None) -> Verification:
    """Verify an artefact folder: its checksums, golden rows and stored numbers, and its scores on labelled rows.

    The folder is not changed. Damaged files are not opened, because they may end the process inside their engines.

    Args:
        folder: The folder.
        sets: Labelled rows to score on, tokenized with the folder's tokenizer; empty to score nothing.
        settings: Largest allowed losses; None for those of a recipe that sets none.

    Raises:
        MissingBackendError: If no engine is installed for any of its files.
    """
    artefacts = read_artefacts(folder)
    models, changed = artefacts.models(), list_changed_files(folder, artefacts)
    broken, notes = list_integrity_problems(folder, artefacts, changed), list_edited_documents(folder, artefacts)
    integrity = Gate(
        name="integrity",
        file="",
        passed=not broken,
        value=float(len(broken)),
        bound=0.0,
        detail="; ".join(broken[:10]) or f"{len(artefacts.files)} files are as listed.",
    )
    described = [f.path for f in artefacts.files if f.path == CONFIG_FILE]
    needed = [*(r.path for r in models), GOLDEN_FILE, GOLDEN_TOKENS_FILE, "tokenizer.json", *described]
    if any(name in changed for name in (*needed, SIMULATED_FILE)):
        return Verification(status=Status.FAILED, gates=[integrity], notes=notes)
    refusal = _check_complete(models, [name for name in needed if not (folder / name).exists()])
    if refusal is not None:
        return Verification(status=Status.FAILED, gates=[integrity, refusal], notes=notes)
    evidence = read_evidence(folder, folder, TextTokenizer(folder, artefacts.processing.max_length))
    subjects, unopened = _open_artefact_files(folder, artefacts, evidence.tokenizer)
    torch, no_torch = open_torch_model(folder, artefacts.task_row, changed) if sets else (None, "")
    evidence = replace(
        evidence,
        sets=sets,
        torch=torch,
        no_torch=no_torch,
        head=artefacts.head(),
        labels=artefacts.labels if artefacts.task_row.names_labels else None,
        settled={r.path: KnownConfidence(r.temperature, artefacts.unknown_below(r)) for r in models},
    )
    result = verify_files(subjects, evidence, settings or VerifySection())
    gates = [integrity, *result.gates, *unopened, *_check_recorded(subjects, evidence)]
    gates += check_temperatures(folder, artefacts) if SELFTEST_FILE not in changed else []
    status = Status.PASSED if all(g.passed for g in gates) else Status.FAILED
    return result.model_copy(update={"gates": gates, "notes": notes, "status": status})


def _check_complete(models: Sequence[ModelRecord], lost: Sequence[str]) -> Gate | None:
    """Check that an artefact folder can be verified; return a failed gate if not, else None.

    Args:
        models: Records of the folder's model files, none of which may be marked failed.
        lost: Needed files that are missing.
    """
    if lost or not models:
        detail = f"cannot be verified without {', '.join(lost) or 'a model file'}."
        return Gate(name="complete", file="", passed=False, value=float(len(lost)), bound=0.0, detail=detail)
    failed = [r.path for r in models if r.status is Status.FAILED]
    if failed:
        detail = f"{', '.join(failed)}: marked failed in {ARTEFACTS_FILE}."
        return Gate(name="status", file="", passed=False, value=float(len(failed)), bound=0.0, detail=detail)
    return None


def _open_artefact_files(
    folder: Path, artefacts: Artefacts, tokenizer: TextTokenizer
) -> tuple[list[Subject], list[Gate]]:
    """Open the model files of an artefact folder.

    Returns:
        The opened files, and a skipped gate for each file that no installed engine can run.

    Raises:
        MissingBackendError: If no file can be opened.
    """
    config, simulated = read_checked_config(folder, artefacts), read_simulated(folder)
    models, subjects, unopened = artefacts.models(), list[Subject](), list[Gate]()
    for record in models:
        try:
            subjects.append(open_artefact_file(folder, artefacts, record, config, simulated, tokenizer))
        except MissingBackendError as error:
            detail = f"not checked: {error}"
            unopened.append(Gate(name="engine", file=record.path, passed=True, skipped=True, detail=detail))
            if len(unopened) == len(models):
                raise
    return subjects, unopened


def open_artefact_file(
    folder: Path,
    artefacts: Artefacts,
    record: ModelRecord,
    config: Mapping[str, object] | None,
    simulated: SimulatedErrors,
    tokenizer: TextTokenizer | None = None,
) -> Subject:
    """Open a model file of an artefact folder for verification, with the folder's tokenizer, labels and task.

    Args:
        folder: The folder.
        artefacts: Content of the folder's ``artifacts.json``.
        record: The file's record in ``artifacts.json``.
        config: Content of config.json, whose label names are used; None to use the names in ``artifacts.json``.
        simulated: Errors and ranges that were simulated in torch.
        tokenizer: The folder's tokenizer, if it is open already.
    """
    task, length = artefacts.task_row, artefacts.processing.max_length
    tokenizer = tokenizer if tokenizer is not None else TextTokenizer(folder, length)
    predictor = FileOnDemand(partial(open_file, folder / record.path, record.format, runtime=record.runtime))
    check_outputs(predictor, task, folder / record.path)
    return Subject(
        name=record.path,
        path=folder / record.path,
        format=record.format,
        scheme=record.scheme,
        client=record.client,
        runtime=record.runtime,
        predictor=predictor,
        tokenizer=_cut_for_file(tokenizer, folder, predictor),
        labels=(label_names(config or {}) or artefacts.labels) if task.names_labels else [],
        task=task,
        folder=folder,
        simulated=simulated.errors.get(record.path),
        ranges=simulated.ranges.get(record.path, {}),
        weights=record.weights,
    )


def _check_recorded(subjects: Sequence[Subject], evidence: Evidence) -> list[Gate]:
    """Return a failed gate for each file that lacks recorded outputs for a golden row that is chosen for it."""
    gates, golden = [], evidence.golden
    tokens = [len(row) for row in evidence.tokenizer.encode([row.input for row in golden])]
    for subject in subjects:
        chosen = choose_recorded_rows(golden, tokens, subject.predictor.lengths, subject.format)
        lost = sum(subject.name not in golden[i].outputs for i in chosen)
        if lost:
            detail = f"{lost} of {len(chosen)} golden rows record no answer of this file."
            gate = Gate(name="recorded", file=subject.name, passed=False, value=float(lost), bound=0.0, detail=detail)
            gates.append(gate)
    return gates


def report_gates(result: Verification) -> None:
    """Print each failed or skipped check, the notes and a summary of each file, and log all checks, which `-v` shows."""
    for gate in result.gates:
        verdict = "skipped" if gate.skipped else "passed" if gate.passed else "FAILED"
        line = f"{verdict}  {gate.file or 'folder'} {gate.name}: {gate.detail}"
        log.info("%s", line)
        if verdict != "passed":
            print_note(f"  {line}")
    for note in result.notes:
        print_note(f"  {note}")
    for line, failed in result.summary():
        print_note(f"  {line}", style="red" if failed else "green")
