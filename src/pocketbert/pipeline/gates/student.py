"""Judge a student right after its training, before any file is made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pocketbert.core.host.progress import say
from pocketbert.core.metrics import METRICS
from pocketbert.core.predict.score import Score
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import TaskName
from pocketbert.pipeline.formats.gate import Gate
from pocketbert.pipeline.gates.common import chance_gate, kept_gate
from pocketbert.pipeline.learn.finishing import Training

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
