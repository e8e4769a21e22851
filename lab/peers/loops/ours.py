"""The toolkit's own loop on a case of the distillation comparison."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loops.cases import LENGTH, SEED, Case

if TYPE_CHECKING:
    from pocketbert.distill.training.loop import TrainingLoop


def ours(made: Case) -> TrainingLoop:
    """The loop, before its first step."""
    from pocketbert.distill.training.loop import TrainingLoop

    work = Path(tempfile.mkdtemp(prefix="pocketbert-bench-"))
    objective = _objective(made, work)
    loop = TrainingLoop(made.student, objective, made.rows, made.stage, SEED, "distill.0", work / "run")
    loop.progress.step = made.first
    return loop


def _objective(made: Case, work: Path) -> Any:
    from pocketbert.core.families import family_of
    from pocketbert.core.tasks import task_of
    from pocketbert.distill.methods.distilbert import DistilBertDistillation
    from pocketbert.distill.methods.minilm import MiniLmDistillation
    from pocketbert.distill.methods.mobilebert import MobileBertDistillation
    from pocketbert.distill.methods.task import TaskDistillation
    from pocketbert.distill.methods.tinybert import TinyBertDistillation
    from pocketbert.distill.students.layer_map import layer_map
    from pocketbert.distill.teacher.cache import cached_teacher

    models, stage = (made.teacher, made.student, made.family), made.stage
    student = {"student_family": family_of(made.student.config.model_type)}
    if made.name == "distilbert":
        return DistilBertDistillation(*models, stage)
    if made.name == "tinybert":
        return TinyBertDistillation(*models, stage, **student)
    if made.name == "minilm":
        return MiniLmDistillation(*models, stage, **student)
    if made.name == "mobilebert":
        return MobileBertDistillation(*models, stage, **student)
    signals = None
    if made.name == "task-cached":
        wanted = TaskDistillation.wanted(stage, layer_map(3, 6, None, "layers"))
        signals = cached_teacher(made.teacher, made.family, made.rows, wanted, work / "cache")
    return TaskDistillation(*models, task_of("text-classification"), stage, signals=signals)


def reference_loss(made: Case) -> float:
    """TinyBERT's loss of the first batch, padded to 128, averaged as the released code does (``reference: true``)."""
    import torch

    from pocketbert.distill.methods.tinybert import TinyBertDistillation

    stage = made.stage.model_copy(update={"reference": True})
    objective = TinyBertDistillation(made.teacher, made.student, made.family, stage)
    with torch.no_grad():
        terms = objective(made.student, next(made.batches(LENGTH)))
    return float(sum(objective.weights[name] * term.mean for name, term in terms.items()))
