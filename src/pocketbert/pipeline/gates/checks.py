"""The gates a file must pass before it is packed. Each is proven by a broken model in tests/pipeline/gates/test_common.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pocketbert.core.artefacts import SeenRight
from pocketbert.core.compare.evaluate import EvalSet, agreement, evaluate, rms_error, worst_difference, yardstick
from pocketbert.core.compare.golden import GoldenRow, read_golden_tokens
from pocketbert.core.compare.parity import padding_difference
from pocketbert.core.host.hardware import machine
from pocketbert.core.host.progress import say
from pocketbert.core.metrics import CHANCE, METRICS, confusion, most_confused
from pocketbert.core.models.checkpoints import missing_for_weights
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.predictor import Matrix, Predictor, TorchPredictor, whole
from pocketbert.core.predict.scores import Score
from pocketbert.core.predict.tokenization import TextTokenizer, cut
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import LabelKind, Task, TaskName
from pocketbert.core.types import Provenance, Scheme
from pocketbert.pipeline.formats.base import bounds_of
from pocketbert.pipeline.learn.finishing import Training
from pocketbert.pipeline.reference import decided, reference_model, shown_labels, unreached
from pocketbert.pipeline.results import Gate, Subject, unread_gate
from pocketbert.runtime.coreml import REFERENCE


def tokens_gate(tokenizer: TextTokenizer, golden_tokens: Path, vocabulary: int | None) -> Gate:
    """Whether the tokenizer is the one the model was made with."""
    largest = tokenizer.largest_id
    if vocabulary is not None and largest >= vocabulary:
        return Gate(
            name="tokenizer",
            file="tokenizer.json",
            passed=False,
            value=largest,
            bound=vocabulary - 1,
            detail=f"the tokenizer's largest token id is {largest:,}, the model has only {vocabulary:,} rows: "
            "it belongs to another model.",
        )
    rows = read_golden_tokens(golden_tokens)
    wrong = [r.text for r in rows if tokenizer.golden(r.input)["ids"] != r.ids]
    detail = f"{len(rows)} golden texts give the recorded token ids."
    if wrong:
        detail = f"{len(wrong)} of {len(rows)} golden texts give other token ids, e.g. {str(wrong[0])[:60]!r}: another model's tokenizer?"
    return Gate(
        name="tokenizer", file="tokenizer.json", passed=not wrong, value=float(len(wrong)), bound=0.0, detail=detail
    )


def golden_gates(subject: Subject, rows: Sequence[GoldenRow]) -> list[Gate]:
    """Recorded outputs again, the reference's outputs, and its labels by name."""
    rows = subject.rows(rows)
    answers, references = subject.answers(rows), subject.reference(rows)
    bad = sum(not np.isfinite(a).all() for a in answers)
    if bad:
        return [
            Gate(
                name="finite",
                file=subject.name,
                passed=False,
                value=float("nan"),
                detail=f"{bad} of {len(rows)} golden rows give NaN or infinite logits.",
            )
        ]
    wrong_shape = [(a.shape, r.shape) for a, r in zip(answers, references, strict=True) if a.shape != r.shape]
    if wrong_shape:
        return [
            Gate(
                name="golden",
                file=subject.name,
                passed=False,
                detail=f"logits have shape {wrong_shape[0][0]}, the golden rows {wrong_shape[0][1]}.",
            )
        ]
    logits, reference = whole(answers), whole(references)
    gates = [
        Gate(name="finite", file=subject.name, passed=True, detail=f"all logits of {len(rows)} golden rows are finite.")
    ]
    if subject.name in rows[0].outputs:
        expected = whole([r.expected(subject.name) for r in rows])
        bound, worst = rows[0].tolerance[subject.name], worst_difference(logits, expected)
        gates.append(
            Gate(
                name="golden",
                file=subject.name,
                passed=worst <= bound,
                value=worst,
                bound=bound,
                detail=f"recorded logits differ by {worst:.3g}, allowed {bound:.3g}.",
            )
        )
    gates.append(_fidelity(subject, logits, reference))
    if subject.task.names_labels:
        gates.append(_names(subject, rows))
    return gates


def _names(subject: Subject, rows: Sequence[GoldenRow]) -> Gate:
    """Whether the recorded answers are still called what they were called; the torch model's, so that no rounding flips one."""
    names = [decided(r.shaped(r.reference), subject.task, r.names(subject.labels)) for r in rows]
    wrong = [(r.label, n) for r, n in zip(rows, names, strict=True) if r.label != n]
    missing = unreached(rows, subject.task, subject.labels)
    reach = (
        f" {len(missing)} of {len(subject.labels)} labels are not reached: {shown_labels(missing)}." if missing else ""
    )
    detail = f"the labels of {len(rows)} golden rows have the recorded names.{reach}"
    if wrong:
        detail = f"{len(wrong)} of {len(rows)} golden rows are called '{wrong[0][1]}' instead of '{wrong[0][0]}' (first): label order changed?"
    return Gate(name="labels", file=subject.name, passed=not wrong, value=float(len(wrong)), bound=0.0, detail=detail)


def _fidelity(subject: Subject, logits: Matrix, reference: Matrix) -> Gate:
    same = (
        f", same label on {agreement(logits, reference):.1%} of the rows"
        if subject.task.labels in (LabelKind.NAME, LabelKind.SPANS)
        else ""
    )
    bound = bounds_of(subject).allowed(subject.simulated)
    if subject.scheme is Scheme.FP32:
        worst = worst_difference(logits, reference) / yardstick(reference)
        return Gate(
            name="reference",
            file=subject.name,
            passed=worst <= bound,
            value=worst,
            bound=bound,
            detail=f"differs from the torch model by {worst:.3g} of the logits' spread{same}.",
        )
    error = rms_error(logits, reference)
    expected = "" if subject.simulated is None else f"; its scheme, simulated in torch: {subject.simulated:.3g}"
    return Gate(
        name="reference",
        file=subject.name,
        passed=error <= bound,
        value=error,
        bound=bound,
        detail=f"RMS difference from the torch model: {error:.3g} of the logits' spread, allowed {bound:.3g}{same}{expected}.",
    )


def padding_gate(subject: Subject, rows: Sequence[GoldenRow]) -> Gate:
    """Whether padding changes the answer: proof that the file uses its mask."""
    bound = bounds_of(subject).padding
    rows = subject.rows(rows)
    encoded = subject.tokenizer.encode([r.input for r in rows], places=True)
    longest = subject.tokenizer.max_length
    short = [i for i, e in enumerate(encoded) if len(e) < longest]
    own, keep = None, None
    if len(short) < 2:  # a length so small that the golden rows fill it: make room for one padding token
        inputs = [cut(e, longest - 1) for e in encoded]
    else:
        inputs, chosen = [encoded[i] for i in short], [rows[i] for i in short]

        def keep(i: int, matrix: Matrix) -> Matrix:
            return chosen[i].pick(matrix)

        if all(r.padded for r in chosen):
            padded = whole([subject.recorded(r, r.padded) for r in chosen])
            own = padded - whole(subject.reference(chosen))
    moved = padding_difference(subject.predictor, subject.tokenizer, inputs, subject.task, own, keep)
    return Gate(
        name="padding",
        file=subject.name,
        passed=moved <= bound,
        value=moved,
        bound=bound,
        detail=f"padding moves the logits by {moved:.3g} of their spread more than the torch model's, allowed {bound:g}"
        f"{'.' if moved <= bound else ': is the attention mask ignored?'}",
    )


def labels_gate(have: Sequence[str], want: Sequence[str]) -> Gate:
    """Whether config.json calls the outputs what data or artifacts.json call them; golden rows may miss a rare label."""
    wrong = [
        f"output {i} is '{h}' instead of '{w}'" for i, (h, w) in enumerate(zip(have, want, strict=False)) if h != w
    ]
    if len(have) != len(want):
        wrong.insert(0, f"{len(have)} labels instead of {len(want)}")
    return Gate(
        name="labels",
        file="config.json",
        passed=not wrong,
        value=float(len(wrong)),
        bound=0.0,
        detail=f"{'; '.join(wrong[:3])}: label order changed?" if wrong else f"{len(have)} labels in the right order.",
    )


def weights_gate(subject: Subject) -> Gate:
    """Whether every stored number is finite, also those that no golden row reaches."""
    unread = unread_gate(subject, "weights")
    if unread is not None:
        return unread
    from pocketbert.quantize import stored_numbers

    count, broken = 0, []
    for name, value in stored_numbers(subject.path, subject.format):
        count += 1
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            broken.append(name)
    return Gate(
        name="weights",
        file=subject.name,
        passed=not broken,
        value=float(len(broken)),
        bound=0.0,
        detail=f"NaN or infinite numbers in {', '.join(broken[:3])} ({len(broken)} in all)."
        if broken
        else f"all numbers of {count} tensors are finite.",
    )


def types_gate(subject: Subject) -> Gate | None:
    """Whether a smaller file holds what its name says, operator by operator; None for fp32 files."""
    if subject.scheme is Scheme.FP32:
        return None
    unread = unread_gate(subject, "types")
    if unread is not None:
        return unread
    from pocketbert.quantize import row_of, weight_types
    from pocketbert.quantize.files import file_problems

    types = weight_types(subject.path, subject.format)
    row = row_of(subject.format, subject.scheme, subject.runtime)
    problems = file_problems(subject.path, row, types, subject.name, subject.weights)
    return Gate(name="types", file=subject.name, passed=not problems, detail=" ".join(problems) or f"{types.summary}.")


def chance_gate(name: str, score: Score, rows: str) -> Gate:
    """Whether a score tells anything at all."""
    better = bool(score.finite and METRICS[score.metric].beats(score.value, score.chance))
    verdict = "better than" if better else "at"
    return Gate(
        name="chance",
        file=name,
        passed=better,
        value=score.value,
        bound=score.chance,
        detail=f"{score.metric} {score.value:.4f} on {rows} is {verdict} chance level {score.chance:.4f}, "
        f"the best score of a model that does not read its input ({CHANCE[score.metric]}).",
    )


def drop_gate(name: str, score: Score, reference: Score, bound: float, what: str) -> Gate:
    """Whether a file loses more than allowed against a reference's score on the same rows."""
    metric = METRICS[score.metric]
    drop = metric.drop(reference.value, score.value)
    return Gate(
        name="drop",
        file=name,
        passed=bool(drop <= bound),
        value=drop,
        bound=bound,
        detail=f"{score.metric} {metric.format(score.value)}, {what} has {metric.format(reference.value)}: "
        f"{metric.lost(drop)}, allowed {metric.lost(bound)}{_grain(score)}.",
    )


def _grain(score: Score) -> str:
    """What one row counts, and how far the score itself is uncertain; empty for metrics that are no share of rows."""
    if score.metric != "accuracy" or not score.finite:
        return ""
    error = math.sqrt(score.value * (1 - score.value) / score.rows)
    return f"; 1 of {score.rows:,} rows is {100 / score.rows:.2f} points, one standard error of the score {100 * error:.2f}"


def kept_gate(name: str, score: Score, teacher: Score, bound: float) -> Gate:
    """Whether a file keeps the wanted share of the teacher's score."""
    kept = METRICS[score.metric].kept(teacher.value, score.value)
    return Gate(
        name="kept",
        file=name,
        passed=bool(kept >= bound),
        value=kept,
        bound=bound,
        detail=f"keeps {kept:.1%} of the teacher's {score.metric}, required {bound:.1%}.",
    )


def seen_right(predictor: Predictor) -> SeenRight:
    """A record that this engine computed a file right on this machine."""
    emulated = predictor.engine == REFERENCE
    return SeenRight(
        engine=predictor.engine,
        version=predictor.engine_version,
        isa=machine().isa,
        provenance=Provenance.EMULATED if emulated else Provenance.MEASURED,
    )


# --- torch_scores ---
# Scores of the torch model on labelled rows, which those of exported files are compared with.


WEIGHTS = "model.safetensors"


def folder_model(folder: Path, task: Task, changed: Sequence[str]) -> tuple[TorchPredictor | None, str]:
    """Open the torch model that an artefact folder's files were made of.

    Args:
        folder: The artefact folder.
        task: What it does.
        changed: Files that are not as the folder lists them.

    Returns:
        The model, or None and the reason why it cannot be run here.
    """
    if not (folder / WEIGHTS).is_file() or WEIGHTS in changed:
        return None, f"the folder has no {WEIGHTS}, or another one than it lists."
    if missing := missing_for_weights():
        return None, f"{' and '.join(missing)} cannot be found here."
    return reference_model(open_model_folder(str(folder)), task), ""


class TorchScores:
    """Compares exported files with the torch model on labelled rows; it scores each set once for each length.

    Args:
        tokenizer: Pads.
        known: Its score on ``eval``, where a run recorded it.
        model: The torch model, where it can be run.
        absent: Why it cannot be; empty where it can, or where no folder promises it.
    """

    def __init__(self, tokenizer: TextTokenizer, known: Score | None, model: Predictor | None, absent: str) -> None:
        self.tokenizer, self.known, self.model, self.absent = tokenizer, known, model, absent
        self._scores: dict[tuple[str, int], Score] = {}

    def gates(self, subject: Subject, rows: EvalSet, score: Score) -> list[Gate]:
        """Compare the score of one file on a set; nothing for files that are made from exported ones."""
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
        return [drop_gate(subject.name, score, reference, bound, "the torch model")]

    def _reference(self, rows: EvalSet, subject: Subject) -> Score | None:
        if rows.name == "eval" and self.known is not None:
            return self.known
        if self.model is None:
            return None
        length = subject.tokenizer.max_length
        if (rows.name, length) not in self._scores:
            label = f"the torch model on {rows.name}"
            self._scores[rows.name, length] = evaluate(self.model, self.tokenizer, rows.within(length), label=label)[0]
        return self._scores[rows.name, length]


# --- student ---
# Judge a student right after its training, before any file is made of it.


_FEW_PASSES = 2.0
_USUAL_RATES = (1e-5, 1e-3)
STUDENT = "student"


def student_gates(
    student: Score | None, teacher: Score | None, min_kept: float | None, rows: str = "eval"
) -> list[Gate]:
    """The gates that each file of the student has to pass, put to the torch model.

    Args:
        student: Its score; None where there are no rows to score.
        teacher: The teacher's.
        min_kept: `verify.min_kept` of the recipe.
        rows: Name of the rows that both scores are of.
    """
    gates = [chance_gate("teacher", teacher, rows)] if teacher is not None else []
    if student is not None:
        gates.append(chance_gate(STUDENT, student, rows))
    if student is not None and teacher is not None and min_kept is not None:
        gates.append(kept_gate(STUDENT, student, teacher, min_kept))
    return gates


def judged(recipe: Recipe, rows: Callable[[], int], student: Training, teacher: Training) -> Sequence[str]:
    """What closes a run after the training of its student: failed gates, the scores so far, and what to change.

    Args:
        recipe: What was done.
        rows: Counts the training rows, for the advice.
        student: How the student was trained, with its score.
        teacher: The same of the teacher.

    Returns:
        The failures and the advice, a line each; nothing where the student is good enough.
    """
    gates = student_gates(student.score, teacher.score, recipe.verify.min_kept)
    failed = [g.failure for g in gates if not g.passed]
    if not failed:
        return ()
    for line in score_lines(student, teacher):
        say(f"  {line}")
    weak = teacher.score is not None and not gates[0].passed
    return [*failed, *_advice(recipe, student, rows(), weak)]


def score_lines(student: Training, teacher: Training) -> list[str]:
    """A small table of the teacher and the student: parameters, score, and what the student keeps of it."""
    lines = []
    for name, made in (("teacher", teacher), (STUDENT, student)):
        score = made.score
        if score is None:
            continue
        metric = METRICS[score.metric]
        kept = (
            f", keeps {metric.kept(teacher.score.value, score.value):.1%}" if made is student and teacher.score else ""
        )
        lines.append(
            f"{name:8} {made.parameters / 1e6:5.1f} M parameters  {metric.name} {metric.format(score.value)}{kept}"
        )
    return lines


def _advice(recipe: Recipe, student: Training, rows: int, weak_teacher: bool) -> list[str]:
    """What to change, the most likely cause first."""
    if weak_teacher:
        where = "teacher.finetune.epochs" if recipe.teacher.finetune else "teacher.model"
        return [
            f"Advice: the teacher itself does no better than chance: look at the labels of the data, then at {where}."
        ]
    advice = []
    for number, stage in enumerate(recipe.distill):
        curve = next((c for c in student.curves if c.stage == f"distill.{number}"), None)
        if stage.general or curve is None or not curve.steps:
            continue
        key, steps = f"distill.{number}", curve.steps[-1]
        passes = steps * stage.batch / max(rows, 1)
        if passes < _FEW_PASSES:
            unit = (
                "epochs=4"
                if stage.epochs is not None
                else f"steps={max(1, round(4 * rows / stage.batch)):,}".replace(",", "")
            )
            advice.append(
                f"train longer than {steps:,} steps of {stage.batch:,} rows ({passes:.2g} passes over {rows:,} rows): try {key}.{unit}"
            )
        if not _USUAL_RATES[0] <= stage.lr <= _USUAL_RATES[1]:
            advice.append(f"another learning rate: {key}.lr is {stage.lr:g}, try 1e-4 to 5e-4")
    if recipe.task is not TaskName.FEATURE_EXTRACTION:
        advice.append("more layers: student.layers; or a teacher that was fine-tuned longer")
    advice.append("a lower verify.min_kept, if this score is enough for you")
    return [f"Advice: {'; '.join(advice)}."]


# --- confusions ---
# Which labels a file takes for one another.


def confusions_of(subject: Subject, rows: EvalSet, names: Sequence[str]) -> list[tuple[str, str, int]]:
    """Label pairs that a file confuses most: gold, predicted, rows.

    Args:
        subject: The file.
        rows: Labelled rows of a classification task.
        names: Labels in the order of the logits.
    """
    _, logits = evaluate(subject.predictor, subject.tokenizer, rows, batch=32)
    gold = np.asarray(rows.rows.truth, np.int64)
    counts = confusion(gold, whole(logits).argmax(-1).astype(np.int64), len(names))
    return most_confused(counts, names)
