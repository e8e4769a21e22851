"""Verification of a run's files or of an artefact folder: the task metric on the file itself, and golden rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from pocketbert.core.artefacts import FILE_NAME as ARTEFACTS_FILE
from pocketbert.core.artefacts import (
    Artefacts,
    FileRecord,
    SeenRight,
    changed_files,
    integrity_problems,
    read_artefacts,
)
from pocketbert.core.compare.evaluate import EvalSet, evaluate
from pocketbert.core.compare.golden import FILE_NAME, TOKENS_FILE_NAME, GoldenRow, read_golden
from pocketbert.core.disk.files import read_json, sha256_path
from pocketbert.core.errors import MissingBackendError
from pocketbert.core.host.progress import say
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.predictor import Predictor
from pocketbert.core.predict.score import Score
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import VerifySection
from pocketbert.core.tasks import TASKS, Task, task_of
from pocketbert.core.types import Format, Scheme, Status
from pocketbert.pipeline.formats.model_files import ModelFile
from pocketbert.pipeline.formats.writing import named_labels
from pocketbert.pipeline.gates.common import (
    chance_gate,
    drop_gate,
    golden_gates,
    kept_gate,
    labels_gate,
    metadata_gate,
    padding_gate,
    seen_right,
    tokens_gate,
    types_gate,
    weights_gate,
)
from pocketbert.pipeline.gates.coreml import coreml_gates
from pocketbert.pipeline.gates.gate import Gate, Subject
from pocketbert.runtime.engines import open_file

FP16_DROP = 0.003
"""Most that an exported file may lose to the torch model where it computes in fp16."""


class Verification(BaseModel):
    """Result of a verification.

    Attributes:
        status: Passed when every gate is.
        gates: All checks.
        scores: By file, then by set.
        teacher: Score of the teacher in torch, if there is one.
        reference: Score of the exported torch model.
        files: sha256 of every file that was verified or decided the verdict, by path in the artefact folder.
        seen_right: Engines that computed a file right, by path.
        protocol: How scores were computed.
    """

    status: Status
    gates: list[Gate]
    scores: dict[str, dict[str, Score]] = {}
    teacher: Score | None = None
    reference: Score | None = None
    files: dict[str, str] = {}
    seen_right: dict[str, SeenRight] = {}
    protocol: str = "every row alone and unpadded (batch 1): dynamic int8 depends on batch and padding"

    @property
    def failures(self) -> list[str]:
        """Lines on closed gates."""
        return [g.failure for g in self.gates if not g.passed]

    def passed(self, file: str) -> bool:
        """Whether every gate of one file, and those of the folder, is open."""
        return all(g.passed for g in self.gates if g.file in (file, "tokenizer.json", "config.json", ""))


def verify_files(
    subjects: Sequence[Subject],
    golden: Sequence[GoldenRow],
    golden_tokens: Path,
    vocabulary: int | None,
    sets: Sequence[EvalSet],
    settings: VerifySection,
    teacher: Score | None = None,
    reference: Score | None = None,
    labels: Sequence[str] | None = None,
    tokenizer: TextTokenizer | None = None,
) -> Verification:
    """Put every file through every gate.

    Args:
        subjects: Opened files, the fp32 one first.
        golden: Golden rows.
        golden_tokens: Golden rows of the tokenizer.
        vocabulary: Rows of the model's embedding table.
        sets: Labelled rows; empty without data.
        settings: Bounds.
        teacher: The teacher's score on ``eval``.
        reference: The torch model's score on ``eval``.
        labels: Label names as another source has them, to compare the subjects' with.
        tokenizer: The folder's tokenizer, which cuts where the folder does; default the first subject's, which may cut
            earlier.
    """
    whole = tokenizer or subjects[0].tokenizer
    gates = [tokens_gate(whole, golden_tokens, vocabulary)]
    if labels is not None:
        gates.append(labels_gate(subjects[0].labels, labels))
    files = {s.name: sha256_path(s.path) for s in subjects}
    if vocabulary is not None and whole.vocabulary_size > vocabulary:
        # ids beyond the embedding table would stop the runtime before the other gates could speak
        return Verification(status=Status.FAILED, gates=gates, teacher=teacher, reference=reference, files=files)
    scores: dict[str, dict[str, Score]] = {}
    right = {}
    if teacher is not None:
        gates.append(chance_gate("teacher", teacher, "eval"))
    for subject in subjects:
        own = [weights_gate(subject), *golden_gates(subject, golden), padding_gate(subject, golden)]
        own += [g for g in (types_gate(subject), metadata_gate(subject)) if g]
        own += coreml_gates(subject, golden)
        if all(g.passed for g in own if g.name in ("finite", "golden", "reference")):
            right[subject.name] = seen_right(subject.predictor)
        scores[subject.name] = {}
        for rows in sets:
            score, _ = evaluate(
                subject.predictor,
                subject.tokenizer,
                rows.within(subject.tokenizer.max_length),
                label=f"{subject.name} on {rows.name}",
            )
            scores[subject.name][rows.name] = score
            own.append(chance_gate(subject.name, score, rows.name))
            own += _against(subject, rows.name, score, scores, subjects, settings, teacher, reference)
        gates += own
    return Verification(
        status=Status.PASSED if all(g.passed for g in gates) else Status.FAILED,
        gates=gates,
        scores=scores,
        teacher=teacher,
        reference=reference,
        files=files,
        seen_right=right,
    )


def _against(
    subject: Subject,
    rows: str,
    score: Score,
    scores: dict[str, dict[str, Score]],
    subjects: Sequence[Subject],
    settings: VerifySection,
    teacher: Score | None,
    reference: Score | None,
) -> list[Gate]:
    """What a score is compared with: exported files with the torch model, smaller ones with what they were made from."""
    out = []
    if subject.exported:
        if rows == "eval" and reference is not None:
            # they compute what torch computes; a row or two near a tie may flip by rounding
            bound = max(0.001 if subject.scheme is Scheme.FP32 else FP16_DROP, 2 / score.rows)
            out.append(drop_gate(subject.name, score, reference, bound, "the torch model"))
    else:
        same = [s for s in subjects if s.exported and s.format is subject.format]
        base = next((s for s in same if s.client is subject.client), subjects[0])
        before = scores[base.name][rows]
        what = f"{base.scheme} on {rows}"
        out.append(drop_gate(subject.name, score, before, settings.max_drop, what))
    if rows == "eval" and teacher is not None and settings.min_kept is not None:
        out.append(kept_gate(subject.name, score, teacher, settings.min_kept))
    return out


def run_subjects(run: Path, files: Sequence[ModelFile], weights: Path, length: int, task: Task) -> list[Subject]:
    """Open the files of a run folder."""
    folder = open_model_folder(str(weights))
    out = []
    for f in files:
        predictor = open_file(run / f.source, f.format, runtime=f.runtime)
        out.append(
            Subject(
                f.path,
                run / f.source,
                f.format,
                f.scheme,
                f.client,
                f.runtime,
                predictor,
                file_tokenizer(weights, length, predictor),
                list(named_labels(folder, task)),
                task,
                weights,
            )
        )
    return out


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
    changed = changed_files(folder, artefacts)
    broken = integrity_problems(folder, artefacts, changed)
    integrity = Gate(
        name="integrity",
        file="",
        passed=not broken,
        value=float(len(broken)),
        bound=0.0,
        detail="; ".join(broken[:10]) or f"{len(artefacts.files)} files are as listed.",
    )
    models = artefacts.models()
    needed = [*(r.path for r in models), FILE_NAME, TOKENS_FILE_NAME, "tokenizer.json"]
    if any(name in changed for name in needed):
        # nothing is opened: damaged model files end the process inside their engines
        return Verification(status=Status.FAILED, gates=[integrity])
    lost = [name for name in needed if not (folder / name).exists()]
    if lost or not models:
        complete = Gate(
            name="complete",
            file="",
            passed=False,
            value=float(len(lost)),
            bound=0.0,
            detail=f"cannot be verified without {', '.join(lost) or 'a model file'}.",
        )
        return Verification(status=Status.FAILED, gates=[integrity, complete])
    failed = [r.path for r in models if r.status is Status.FAILED]
    if failed:
        marked = Gate(
            name="status",
            file="",
            passed=False,
            value=float(len(failed)),
            bound=0.0,
            detail=f"{', '.join(failed)}: marked failed in {ARTEFACTS_FILE}.",
        )
        return Verification(status=Status.FAILED, gates=[integrity, marked])
    subjects, unopened = [], []
    for record in models:
        try:
            subjects.append(_subject(folder, artefacts, record))
        except MissingBackendError as error:
            unopened.append(
                Gate(name="engine", file=record.path, passed=True, skipped=True, detail=f"not checked: {error}")
            )
            if len(unopened) == len(models):
                raise
    result = verify_files(
        subjects,
        read_golden(folder / FILE_NAME),
        folder / TOKENS_FILE_NAME,
        vocabulary_rows(folder),
        sets,
        settings or VerifySection(),
        labels=artefacts.labels if TASKS[artefacts.task].names_labels else None,
        tokenizer=TextTokenizer(folder, artefacts.processing.max_length),
    )
    gates = [integrity, *result.gates, *unopened]
    return result.model_copy(
        update={"gates": gates, "status": Status.PASSED if all(g.passed for g in gates) else Status.FAILED}
    )


def _subject(folder: Path, artefacts: Artefacts, record: FileRecord) -> Subject:
    task = task_of(artefacts.task)
    labels = (config_labels(folder) or artefacts.labels) if task.names_labels else []
    format, processing = record.format or Format.ONNX, artefacts.processing
    predictor = open_file(folder / record.path, format, runtime=record.runtime)
    return Subject(
        record.path,
        folder / record.path,
        format,
        record.scheme or Scheme.FP32,
        record.client,
        record.runtime,
        predictor,
        file_tokenizer(folder, processing.max_length, predictor),
        labels,
        task,
        folder,
    )


def vocabulary_rows(folder: Path) -> int | None:
    """Rows of the embedding table, as config.json says."""
    path = folder / "config.json"
    rows = read_json(path).get("vocab_size") if path.is_file() else None
    return int(rows) if rows else None


def config_labels(folder: Path) -> list[str] | None:
    """Label names as config.json has them; None where it has none."""
    path = folder / "config.json"
    names = read_json(path).get("id2label") if path.is_file() else None
    return [str(names[k]) for k in sorted(names, key=int)] if names else None


def report_gates(result: Verification) -> None:
    """Say what passed and what did not."""
    for gate in result.gates:
        name = f"{gate.file or 'folder'} {gate.name}"
        verdict = "skipped" if gate.skipped else "passed" if gate.passed else "FAILED"
        say(f"  {verdict}  {name}: {gate.detail}")


def read_verification(path: Path) -> Verification:
    """Read ``verify.json``."""
    return Verification.model_validate(json.loads(path.read_text(encoding="utf-8")))
