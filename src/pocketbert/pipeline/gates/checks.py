"""The gates that a file must pass before it is packed, and those of a student after its training.

- `check_tokenizer` and `check_labels` compare what all files of a folder share,
- `check_finite_weights`, `check_golden_rows`, `check_padding` and `check_weight_types` check one file without
  labelled rows,
- `check_chance`, `check_drop`, `check_kept` and `TorchScores` compare scores on labelled rows,
- `judge_student` applies the gates to a student before any file is made of it, with advice if it fails,
- `count_confusions` counts the labels that a file confuses.

Each gate is proven by a broken model in tests/pipeline/gates/test_checks.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pocketbert.core.artefacts import PassedEngine
from pocketbert.core.compare.evaluate import (
    EvalSet,
    evaluate,
    head_scales,
    label_agreement,
    logit_scale,
    rms_error,
    worst_difference,
)
from pocketbert.core.compare.golden import GoldenRow, read_golden_tokens, tolerance_shares
from pocketbert.core.compare.parity import count_padded_tokens, measure_padding_effect
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.host.progress import print_note
from pocketbert.core.metrics import CHANCE, METRICS, confusion_counts, describe_details, most_confused_labels
from pocketbert.core.models.checkpoints import missing_libraries
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.inputs import truncate_row
from pocketbert.core.predict.predictor import Matrix, Predictor, TorchPredictor, join_texts
from pocketbert.core.predict.scores import Score
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import LabelKind, Task, TaskName
from pocketbert.core.types import Provenance, Scheme
from pocketbert.pipeline.formats.base import bounds_of
from pocketbert.pipeline.learn.finishing import Training
from pocketbert.pipeline.reference import answer_label_names, load_reference_model, quote_labels, unreached_labels
from pocketbert.pipeline.results import Gate, Subject, choose_spread_rows, skipped_gate_without_reader
from pocketbert.runtime.coreml import REFERENCE_ENGINE


def _count_gate(name: str, file: str, wrong: Sequence[object], detail: str) -> Gate:
    """Return a gate (one recorded check of a file) that passes if `wrong` is empty; its value is the length."""
    return Gate(name=name, file=file, passed=not wrong, value=float(len(wrong)), bound=0.0, detail=detail)


def _error_gate(name: str, file: str, error: float, bound: float, detail: str) -> Gate:
    """Return a gate (one recorded check of a file) that passes if `error` is at most `bound`. NaN does not pass."""
    return Gate(name=name, file=file, passed=bool(error <= bound), value=error, bound=bound, detail=detail)


# --- what all files of a folder share ---------------------------------------------------------------------------------


def check_tokenizer(tokenizer: TextTokenizer, golden_tokens: Path, vocabulary: int | None) -> Gate:
    """Check that a tokenizer fits the embedding table and gives the recorded token ids for the golden texts.

    Args:
        tokenizer: The folder's tokenizer.
        golden_tokens: File of texts with the token ids that were recorded for them.
        vocabulary: Rows of the model's embedding table; None if unknown.
    """
    name, file, largest = "tokenizer", "tokenizer.json", tokenizer.largest_id
    if vocabulary is not None and largest >= vocabulary:
        detail = (
            f"the tokenizer's largest token id is {largest:,}, the model has only {vocabulary:,} rows: "
            "it belongs to another model."
        )
        return _error_gate(name, file, largest, vocabulary - 1, detail)
    rows = read_golden_tokens(golden_tokens)
    wrong = [r.text for r in rows if tokenizer.golden(r.input)["ids"] != r.ids]
    detail = f"{len(rows)} golden texts give the recorded token ids."
    if wrong:
        detail = f"{len(wrong)} of {len(rows)} golden texts give other token ids, e.g. {str(wrong[0])[:60]!r}: another model's tokenizer?"
    return _count_gate(name, file, wrong, detail)


def check_labels(labels: Sequence[str], expected: Sequence[str]) -> Gate:
    """Check that the label names in config.json equal the expected names, in the same order."""
    pairs = enumerate(zip(labels, expected, strict=False))
    wrong = [f"output {i} is '{label}' instead of '{other}'" for i, (label, other) in pairs if label != other]
    if len(labels) != len(expected):
        wrong.insert(0, f"{len(labels)} labels instead of {len(expected)}")
    detail = f"{len(labels)} labels in the right order."
    if wrong:
        detail = f"{'; '.join(wrong[:3])}: label order changed?"
    return _count_gate("labels", "config.json", wrong, detail)


# --- one file ---------------------------------------------------------------------------------------------------------


def check_finite_weights(subject: Subject) -> Gate:
    """Check that no tensor stored in a model file has NaN or infinite numbers; skipped if nothing here can read the file."""
    unread = skipped_gate_without_reader(subject, "weights")
    if unread is not None:
        return unread
    from pocketbert.quantize import read_stored_numbers

    count, broken = 0, []
    for name, value in read_stored_numbers(subject.path, subject.format):
        count += 1
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            broken.append(name)
    detail = f"all numbers of {count} tensors are finite."
    if broken:
        detail = f"NaN or infinite numbers in {', '.join(broken[:3])} ({len(broken)} in all)."
    return _count_gate("weights", subject.name, broken, detail)


def check_golden_rows(subject: Subject, rows: Sequence[GoldenRow]) -> list[Gate]:
    """Run a file on golden rows (recorded inputs and outputs), and check its outputs and its label names.

    Outputs are compared with the torch model's and, if they are recorded, with the file's own.

    Returns:
        The gates ``finite``, ``golden`` (if the file's outputs are recorded), ``reference`` of each head, and ``labels`` (if the
        task names labels). If outputs are not finite or have another shape, one failed gate.
    """
    shares, rows = tolerance_shares(rows, subject.task.heads), subject.rows(rows)
    answers, references = subject.answers(rows), subject.reference(rows)
    bad = sum(not np.isfinite(a).all() for a in answers)
    if bad:
        detail = f"{bad} of {len(rows)} golden rows give NaN or infinite logits."
        return [Gate(name="finite", file=subject.name, passed=False, value=float("nan"), detail=detail)]
    wrong_shape = [(a.shape, r.shape) for a, r in zip(answers, references, strict=True) if a.shape != r.shape]
    if wrong_shape:
        detail = f"logits have shape {wrong_shape[0][0]}, the golden rows {wrong_shape[0][1]}."
        return [Gate(name="golden", file=subject.name, passed=False, detail=detail)]
    logits, reference = join_texts(answers), join_texts(references)
    detail = f"all logits of {len(rows)} golden rows are finite."
    gates = [Gate(name="finite", file=subject.name, passed=True, detail=detail)]
    if subject.name in rows[0].outputs:
        expected = join_texts([r.expected(subject.name) for r in rows])
        bound, worst = rows[0].tolerance[subject.name], worst_difference(logits, expected, shares)
        detail = f"recorded logits differ by {worst:.3g}, allowed {bound:.3g}."
        gates.append(_error_gate("golden", subject.name, worst, bound, detail))
    gates += _check_fidelity(subject, logits, reference)
    if subject.task.names_labels:
        gates.append(_check_label_names(subject, rows))
    return gates


def _check_fidelity(subject: Subject, logits: Matrix, reference: Matrix) -> list[Gate]:
    """Check how far a file's logits [N, labels] are from the torch model's (`reference`) on the same rows, head by head.

    For fp32 files the largest difference counts, for all others the RMS difference, both as a share of the logits'
    spread (standard deviation).
    """
    if not subject.task.heads:
        return [_check_head_fidelity(subject, logits, reference)]
    gates = []
    for head in subject.task.heads:
        gate = _check_head_fidelity(subject, logits[:, head.columns], reference[:, head.columns])
        gates.append(gate.model_copy(update={"name": f"{gate.name} {head.name}"}))
    return gates


def _check_head_fidelity(subject: Subject, logits: Matrix, reference: Matrix) -> Gate:
    """Check how far the logits of one head are from the torch model's, as a share of their spread.

    For fp32 files it is the largest difference, for all others the RMS difference.
    """
    same_labels = ""
    if subject.task.labels in (LabelKind.NAME, LabelKind.SPANS):
        same_labels = f", same label on {label_agreement(logits, reference):.1%} of the rows"
    bound = bounds_of(subject).allowed(subject.simulated)
    if subject.scheme is Scheme.FP32:
        error = worst_difference(logits, reference) / logit_scale(reference)
        detail = f"differs from the torch model by {error:.3g} of the logits' spread{same_labels}."
    else:
        error = rms_error(logits, reference)
        difference = f"{error:.3g} of the logits' spread, allowed {bound:.3g}"
        simulated = "" if subject.simulated is None else f"; its scheme, simulated in torch: {subject.simulated:.3g}"
        detail = f"RMS difference from the torch model: {difference}{same_labels}{simulated}."
    return _error_gate("reference", subject.name, error, bound, detail)


def _check_label_names(subject: Subject, rows: Sequence[GoldenRow]) -> Gate:
    """Check that the file's own label names turn the torch model's recorded outputs into the recorded label names."""
    names = [answer_label_names(r.shaped(r.reference), subject.task, r.names(subject.labels)) for r in rows]
    wrong = [(r.label, n) for r, n in zip(rows, names, strict=True) if r.label != n]
    missing = unreached_labels(rows, subject.task, subject.labels)
    detail = f"the labels of {len(rows)} golden rows have the recorded names."
    if missing:
        detail += f" {len(missing)} of {len(subject.labels)} labels are not reached: {quote_labels(missing)}."
    if wrong:
        detail = f"{len(wrong)} of {len(rows)} golden rows are called '{wrong[0][1]}' instead of '{wrong[0][0]}' (first): label order changed?"
    return _count_gate("labels", subject.name, wrong, detail)


def check_padding(subject: Subject, rows: Sequence[GoldenRow]) -> Gate:
    """Check that padding changes a file's logits by at most its bound more than the torch model's, as the mask should ensure.

    A few golden rows of each length are run; the torch model's change is subtracted if all of them record it. If fewer than two
    rows have room for padding, all rows are cut by one token instead.
    """
    bound = bounds_of(subject).padding
    rows = subject.rows(rows)
    encoded = subject.tokenizer.encode([r.input for r in rows], places=True)
    longest = subject.tokenizer.max_length
    short = [i for i, e in enumerate(encoded) if len(e) < longest]
    torch_difference, pick, alone, spread = None, None, None, None
    if len(short) < 2:  # a length so small that the golden rows fill it: make room for one padding token
        inputs = [truncate_row(e, longest - 1) for e in encoded]
    else:
        # a lost mask moves the answers of every row, and each length has a graph and a mask of its own
        spread = head_scales(join_texts(subject.answers([rows[i] for i in short])), subject.task.heads)
        counts = count_padded_tokens(subject.predictor, subject.tokenizer, [encoded[i] for i in short])
        wide = dict(zip(short, counts, strict=True))
        # the shortest row of a graph first: one that nearly fills it has next to no padding
        padded = choose_spread_rows(wide, subject.predictor.lengths, {i: -len(encoded[i]) for i in short})
        inputs, chosen = [encoded[i] for i in padded], [rows[i] for i in padded]
        alone = subject.answers(chosen)

        def pick(i: int, matrix: Matrix) -> Matrix:
            return chosen[i].pick(matrix)

        if all(r.padded for r in chosen):
            recorded = join_texts([subject.recorded(r, r.padded) for r in chosen])
            torch_difference = recorded - join_texts(subject.reference(chosen))
    moved = measure_padding_effect(
        subject.predictor, subject.tokenizer, inputs, subject.task, torch_difference, pick, alone, spread
    )
    difference = f"{moved:.3g} of their spread more than the torch model's, allowed {bound:g}"
    end = "." if moved <= bound else ": is the attention mask ignored?"
    return _error_gate("padding", subject.name, moved, bound, f"padding moves the logits by {difference}{end}")


def check_weight_types(subject: Subject) -> Gate | None:
    """Check that the weight types stored in a file are those of its scheme; None for fp32 files, skipped without a reader."""
    if subject.scheme is Scheme.FP32:
        return None
    unread = skipped_gate_without_reader(subject, "types")
    if unread is not None:
        return unread
    from pocketbert.quantize import find_row, read_weight_types
    from pocketbert.quantize.files import find_weight_problems

    types = read_weight_types(subject.path, subject.format)
    row = find_row(subject.format, subject.scheme, subject.runtime)
    problems = find_weight_problems(subject.path, row, types, subject.name, subject.weights)
    return Gate(name="types", file=subject.name, passed=not problems, detail=" ".join(problems) or f"{types.summary}.")


def record_engine(predictor: Predictor) -> PassedEngine:
    """Return a record of the engine that ran a file in the checks.

    It has the engine's name and version, the CPU features, and whether the engine only emulates the target.
    """
    emulated = predictor.engine == REFERENCE_ENGINE
    return PassedEngine(
        engine=predictor.engine,
        version=predictor.engine_version,
        isa=describe_machine().isa,
        provenance=Provenance.EMULATED if emulated else Provenance.MEASURED,
    )


# --- scores -----------------------------------------------------------------------------------------------------------


def check_each_head(check: Callable[..., Gate], name: str, score: Score, *others: object) -> list[Gate]:
    """Run a check of a score once, or if the score has several heads once for each; then the gate's name ends with the head's.

    The gate of a head is skipped if `score` or a score among `others` has no value for this head.

    Args:
        check: `check_chance`, `check_drop` or `check_kept`.
        name: Name of the file or model that has the score.
        score: The score.
        others: The check's further arguments; instead of a score among them, its score of the same head is passed on.
    """
    if not score.heads:
        return [check(name, score, *others)]
    gates, compared = list[Gate](), [other for other in others if isinstance(other, Score)]
    for head in dict.fromkeys(head for each in (score, *compared) for head in each.heads):
        of_head = [each.heads.get(head) for each in (score, *compared)]
        if all(own is not None and own.rows for own in of_head):
            parts = [other.heads[head] if isinstance(other, Score) else other for other in others]
            gate = check(name, score.heads[head], *parts)
        else:
            has_own = of_head[0] is not None and of_head[0].rows
            which = (
                "what it is compared with has no score of it"
                if has_own
                else "none of the scored rows has a label of it"
            )
            detail = f"the head '{head}' is not checked: {which}."
            kind = check.__name__.removeprefix("check_")
            gate = Gate(name=kind, file=name, passed=True, skipped=True, detail=detail)
        gates.append(gate.model_copy(update={"name": f"{gate.name} {head}"}))
    return gates


def check_chance(name: str, score: Score, rows: str) -> Gate:
    """Check that a score beats chance level: what a model that does not read its input may reach on these rows by luck.

    Args:
        name: Name of the file or model that has the score.
        score: The score.
        rows: Name of the rows.
    """
    better = bool(score.finite and METRICS[score.metric].beats(score.value, score.chance))
    verdict = "better than" if better else "at"
    detail = (
        f"{score.metric} {score.value:.4f} on {rows} is {verdict} chance level: "
        f"a model that does not read its input ({CHANCE[score.metric]}) may reach {score.chance:.4f} by luck."
    )
    return Gate(name="chance", file=name, passed=better, value=score.value, bound=score.chance, detail=detail)


def check_drop(name: str, score: Score, reference: Score, bound: float, what: str) -> Gate:
    """Check that a file's score is at most `bound` below the score of a reference on the same rows.

    Args:
        name: Name of the file.
        score: Score of the file.
        reference: Score of the reference.
        bound: Largest loss, as a fraction of the metric.
        what: Name of the reference in the message, such as "the fp32 file".
    """
    metric, uncertainty = METRICS[score.metric], ""
    drop = metric.drop(reference.value, score.value)
    if score.metric == "accuracy" and score.finite:
        error = math.sqrt(score.value * (1 - score.value) / score.rows)
        row = f"1 of {score.rows:,} rows is {100 / score.rows:.2f} points"
        uncertainty = f"; {row}, one standard error of the score {100 * error:.2f}"
    if found := describe_details(score.others):
        uncertainty = f"; {found}"
    detail = (
        f"{score.metric} {metric.format(score.value)}, {what} has {metric.format(reference.value)}: "
        f"{metric.lost(drop)}, allowed {metric.lost(bound)}{uncertainty}."
    )
    return _error_gate("drop", name, drop, bound, detail)


def check_kept(name: str, score: Score, teacher: Score, bound: float) -> Gate:
    """Check that a file's score is at least the fraction `bound` of the teacher's score."""
    kept = score.share_kept(teacher)
    detail = f"keeps {kept:.1%} of the teacher's {score.metric}, required {bound:.1%}."
    return Gate(name="kept", file=name, passed=bool(kept >= bound), value=kept, bound=bound, detail=detail)


# --- scores of the torch model ----------------------------------------------------------------------------------------

_WEIGHTS = "model.safetensors"


def open_torch_model(folder: Path, task: Task, changed: Sequence[str]) -> tuple[TorchPredictor | None, str]:
    """Open the torch model from which an artefact folder's files were made.

    Args:
        folder: The artefact folder.
        task: The task of the model.
        changed: Files that differ from the folder's list.

    Returns:
        The model, or None and the reason why it cannot be run here.
    """
    if not (folder / _WEIGHTS).is_file() or _WEIGHTS in changed:
        return None, f"the folder has no {_WEIGHTS}, or another one than it lists."
    if missing := missing_libraries():
        return None, f"{' and '.join(missing)} cannot be found here."
    return load_reference_model(open_model_folder(str(folder)), task), ""


class TorchScores:
    """Compares scores of exported files with the torch model's, which is computed once per set of rows and length.

    Args:
        tokenizer: Tokenizer that pads the rows.
        known: Score of the torch model on ``eval``, if a run recorded it.
        model: The torch model, if it can be run.
        absent: Reason why it cannot be run; empty if it can, or if no score of it is required.
    """

    def __init__(self, tokenizer: TextTokenizer, known: Score | None, model: Predictor | None, absent: str) -> None:
        self.tokenizer, self.known, self.model, self.absent = tokenizer, known, model, absent
        self._scores: dict[tuple[str, int], Score] = {}

    def gates(self, subject: Subject, rows: EvalSet, score: Score) -> list[Gate]:
        """Check an exported file's score against the torch model's on the same rows.

        Returns:
            The gates, skipped if the torch model cannot be run; none for quantized files, and if there is no score of it.
        """
        if not subject.exported:
            return []
        if self.absent:
            detail = f"not compared with the torch model on {rows.name}: {self.absent}"
            return [Gate(name="drop", file=subject.name, passed=True, skipped=True, detail=detail)]
        reference = self._reference(rows, subject)
        if reference is None:
            return []
        # they compute what torch computes; a row or two near a tie may flip by rounding
        bound = max(bounds_of(subject).drop, 2 / score.rows)
        return check_each_head(check_drop, subject.name, score, reference, bound, "the torch model")

    def _reference(self, rows: EvalSet, subject: Subject) -> Score | None:
        """Return the torch model's score on rows cut to a file's longest input; None without a score or a model.

        A score on ``eval`` that is known already is returned as it is.
        """
        if rows.name == "eval" and self.known is not None:
            return self.known
        if self.model is None:
            return None
        length = subject.tokenizer.max_length
        if (rows.name, length) not in self._scores:
            label = f"the torch model on {rows.name}"
            self._scores[rows.name, length] = evaluate(self.model, self.tokenizer, rows.within(length), label=label)[0]
        return self._scores[rows.name, length]


# --- the student ------------------------------------------------------------------------------------------------------

STUDENT = "student"
_FEW_PASSES = 2.0
"""Passes over the training rows below which the advice is to train longer."""
_USUAL_RATES = (1e-5, 1e-3)


def check_student(
    student: Score | None, teacher: Score | None, min_kept: float | None, rows: str = "eval"
) -> list[Gate]:
    """Check that teacher and student, as far as they have scores, beat chance, and that the student keeps enough of the teacher's.

    Args:
        student: The student's score; None if there are no rows to score.
        teacher: The teacher's score; None if it has none.
        min_kept: Smallest fraction of the teacher's score to keep (`verify.min_kept` of the recipe); None to check
            none.
        rows: Name of the rows on which both scores were measured.
    """
    gates = check_each_head(check_chance, "teacher", teacher, rows) if teacher is not None else []
    if student is not None:
        gates += check_each_head(check_chance, STUDENT, student, rows)
    if student is not None and teacher is not None and min_kept is not None:
        gates += check_each_head(check_kept, STUDENT, student, teacher, min_kept)
    return gates


def judge_student(recipe: Recipe, rows: Callable[[], int], student: Training, teacher: Training) -> Sequence[str]:
    """Check a trained student's score; if a check fails, print the scores and return the failures with advice.

    Args:
        recipe: The recipe of the run.
        rows: Function that counts the training rows, for the advice.
        student: The student's training record, with its score.
        teacher: The teacher's training record, with its score.

    Returns:
        The failures and the advice, one line each; empty if all checks pass.
    """
    gates = check_student(student.score, teacher.score, recipe.verify.min_kept)
    failed = [g.failure for g in gates if not g.passed]
    if not failed:
        return ()
    for name, training in (("teacher", teacher), (STUDENT, student)):
        score = training.score
        if score is None:
            continue
        metric, kept = METRICS[score.metric], ""
        if training is student and teacher.score:
            kept = f", keeps {score.share_kept(teacher.score):.1%}"
        size = f"{training.parameters / 1e6:5.1f} M parameters"
        if not recipe.asks_model and training is teacher:
            size = " of the heads' teachers" if recipe.tasks else " of the column "
        print_note(f"  {name:8} {size}  {metric.name} {metric.format(score.value)}{kept}")
    if any(g.file == "teacher" and not g.passed for g in gates):
        where = "teacher.finetune.epochs" if recipe.teacher.finetune else "teacher.model"
        where = where if recipe.asks_model else " and ".join(recipe.column_keys)
        reason = f"the teacher itself does no better than chance: look at the labels of the data, then at {where}"
        return [*failed, f"Advice: {reason}."]
    return [*failed, f"Advice: {'; '.join(_advise(recipe, student, rows()))}."]


def _advise(recipe: Recipe, student: Training, rows: int) -> list[str]:
    """Return suggested recipe changes for a student with a weak score, the most likely cause first."""
    advice = []
    for number, stage in enumerate(recipe.distill):
        key = f"distill.{number}"
        curve = next((c for c in student.curves if c.stage == key), None)
        if stage.general or curve is None or not curve.steps:
            continue
        steps = curve.steps[-1]
        passes = steps * stage.batch / max(rows, 1)
        if passes < _FEW_PASSES:
            longer = "epochs=4" if stage.epochs is not None else f"steps={max(1, round(4 * rows / stage.batch))}"
            trained = f"{steps:,} steps of {stage.batch:,} rows ({passes:.2g} passes over {rows:,} rows)"
            advice.append(f"train longer than {trained}: try {key}.{longer}")
        if not _USUAL_RATES[0] <= stage.lr <= _USUAL_RATES[1]:
            advice.append(f"another learning rate: {key}.lr is {stage.lr:g}, try 1e-4 to 5e-4")
    if recipe.task is not TaskName.FEATURE_EXTRACTION:
        advice.append("more layers: student.layers; or a teacher that was fine-tuned longer")
    advice.append("a lower verify.min_kept, if this score is enough for you")
    return advice


def count_confusions(subject: Subject, rows: EvalSet, names: Sequence[str]) -> list[tuple[str, str, int]]:
    """Run a file on labelled rows and return the label pairs that it confuses most.

    Args:
        subject: The file.
        rows: Labelled rows of a classification task.
        names: Labels in the order of the logits.

    Returns:
        For each pair the gold label, the predicted label and the number of rows.
    """
    _, logits = evaluate(subject.predictor, subject.tokenizer, rows, batch=32)
    gold = np.asarray(rows.rows.truth, np.int64)
    counts = confusion_counts(gold, join_texts(logits).argmax(-1).astype(np.int64), len(names))
    return most_confused_labels(counts, names)
