"""Stages that make weights: the teacher's folder and the student's folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbert.core.checkpoints import load_model
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.labels import Labels, placeholder_names
from pocketbert.core.model_folder import ModelFolder, open_model_folder
from pocketbert.core.progress import say
from pocketbert.core.recipe import Recipe
from pocketbert.core.stages import DistilBertStage, Optimisation, TaskStage
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.tokenization import TextTokenizer
from pocketbert.pipeline.corpora import open_corpora
from pocketbert.pipeline.data import RunData
from pocketbert.pipeline.finishing import Curve, Finished, finish, pooling_for

if TYPE_CHECKING:
    from pocketbert.distill.train_set import TrainData


def make_teacher(
    recipe: Recipe, model: ModelFolder, data: RunData, length: int, target: Path, work: Path
) -> Sequence[str]:
    """Write the teacher: fine-tuned where the recipe says so, its labels in the run's order."""
    task = data.head.task
    finetune = recipe.teacher.finetune
    teacher = load_model(model, task, data.labels, new_head=finetune is not None)
    notes, curves = [], []
    if finetune is not None:
        from pocketbert.distill.finetune import Finetune

        job = TrainingJob(recipe, model, data, length, target, work)
        curves.append(job.train(teacher, Finetune(model.family, task), finetune, "finetune"))
    elif task.names_labels:
        note = permute_head(teacher, _head_labels(model, recipe, data.labels), data.labels)
        notes += [note] if note else []
    pooling = pooling_for(recipe, model)
    finish(Finished(teacher, recipe, model, data, length, pooling, tuple(curves), tuple(notes)), target)
    (target / "LICENCE.txt").write_text(model.licence + "\n", encoding="utf-8")
    return ()


def _head_labels(model: ModelFolder, recipe: Recipe, ours: Labels) -> Labels:
    """Labels of a trained head. LABEL_0, LABEL_1, ... say nothing: names that the user declares are theirs, in order."""
    names = tuple(model.labels or ours.names)
    if recipe.data.labels and placeholder_names(names) and len(names) == len(ours):
        return ours
    return Labels(names)


def make_student(
    recipe: Recipe, teacher_folder: Path, model: ModelFolder, data: RunData, length: int, target: Path, work: Path,
    corpora: Path,
) -> Sequence[str]:  # fmt: skip
    """Distil the student through the recipe's stages.

    Args:
        recipe: What to do.
        teacher_folder: Folder of the task's teacher.
        model: What the recipe starts from: the teacher of general stages.
        data: The run's data.
        length: Longest input in tokens.
        target: The folder that is made.
        work: Where checkpoints go.
        corpora: Where the run's corpora are.
    """
    from pocketbert.core.families import family_of
    from pocketbert.distill.cache_build import cached_teacher
    from pocketbert.distill.loop import frozen
    from pocketbert.distill.students import build_student
    from pocketbert.distill.task import TaskDistillation

    assert recipe.student is not None
    task = data.head.task
    source = open_model_folder(str(teacher_folder))
    teacher, pooling = load_model(source, task), pooling_for(recipe, source)
    curves: list[Curve] = []
    student = build_student(teacher, source.family, recipe.student, recipe.seed)
    general = [s for s in recipe.distill if isinstance(s, DistilBertStage)]
    if general:
        job = TrainingJob(recipe, model, data, length, target, work)
        learnt, curves = general_student(job, general, corpora)
        student = learnt if task.name is TaskName.FILL_MASK else with_encoder(student, learnt)
    family = family_of(student.config.model_type)
    with frozen(teacher):
        for number, stage in enumerate(recipe.distill):
            if not isinstance(stage, TaskStage):
                continue
            where = f"distill.{number}"
            job = TrainingJob(recipe, source, data, length, target, work / where)
            objective = TaskDistillation(
                teacher, student, source.family, task, stage, where, student_family=family, pooling=pooling
            )
            if stage.cache_teacher:
                objective.signals = cached_teacher(
                    teacher, source.family, job.rows(where), objective.signals.wanted, work / f"{where}-cache",
                    half=stage.cache_teacher == "fp16", where=f"{where}.cache_teacher",
                )  # fmt: skip
            curves.append(job.train(student, objective, stage, where))
    student.set_attn_implementation("sdpa")
    finish(Finished(student, recipe, source, data, length, pooling, tuple(curves)), target, teacher_folder)
    return ()


def general_student(
    job: TrainingJob, stages: Sequence[DistilBertStage], corpora: Path
) -> tuple[Any, list[Curve]]:
    """A student that has learnt from a pre-trained teacher on plain text, with the head that guesses hidden tokens."""
    from pocketbert.distill.batches import BatchOrder
    from pocketbert.distill.distilbert import DistilBertDistillation
    from pocketbert.distill.general_set import GeneralSet
    from pocketbert.distill.loop import frozen
    from pocketbert.distill.masking import Masking
    from pocketbert.distill.sparse_teacher import sparse_teacher
    from pocketbert.distill.students import build_student, freeze_positions

    recipe, source = job.recipe, job.source
    assert recipe.student is not None and recipe.data.corpus is not None
    section, task = recipe.data.corpus, TASKS[TaskName.FILL_MASK]
    teacher = load_model(source, task)
    student = build_student(teacher, source.family, recipe.student, recipe.seed)
    tokenizer = TextTokenizer(source.path, min(section.length, source.positions))
    if tokenizer.mask_id is None:
        raise InputError(
            Problem("teacher.model", "its tokenizer has no mask token, which general stages need.")
        )
    rows = open_corpora(section, source.path, corpora, recipe.seed)
    curves = []
    with frozen(teacher):
        for number, stage in enumerate(stages):
            where = f"distill.{number}"
            if stage.freeze_positions:
                freeze_positions(student)
            masking = Masking(
                rows.counts,
                tokenizer.mask_id,
                tokenizer.special_ids,
                recipe.seed,
                where,
                stage.mask_share,
                stage.smoothing,
            )
            own = GeneralSet(rows, tokenizer, masking, source.family.padding_side)
            objective = DistilBertDistillation(teacher, student, source.family, stage, where)
            if stage.cache is not None:
                order = BatchOrder(own.lengths, stage.batch, recipe.seed, where)
                cached = sparse_teacher(
                    teacher, own, order, stage.steps, stage.cache, stage.temperature, job.work / f"{where}-cache",
                    where=f"{where}.cache",
                )  # fmt: skip
                objective.replay(cached)
            curves.append(replace(job, work=job.work / where).train(student, objective, stage, where, own))
            student.requires_grad_(True)
    return student, curves


def with_encoder(model: Any, learnt: Any) -> Any:
    """A model whose encoder is another one's; its head stays."""
    encoders = [getattr(m, m.base_model_prefix, m) for m in (model, learnt)]
    theirs = encoders[1].state_dict()
    lost = encoders[0].load_state_dict(theirs, strict=False)
    missing = [k for k in lost.missing_keys if not k.startswith("pooler.")]
    if missing or lost.unexpected_keys:
        raise RuntimeError(f"the encoders differ: {missing[:3]} {lost.unexpected_keys[:3]}")
    return model


@dataclass(frozen=True)
class TrainingJob:
    """What the training stages of one folder share.

    Attributes:
        recipe: What to do.
        source: Where the tokenizer comes from.
        data: The run's data.
        length: Longest input in tokens.
        target: The folder that is made.
        work: Where checkpoints go.
    """

    recipe: Recipe
    source: ModelFolder
    data: RunData
    length: int
    target: Path
    work: Path

    def rows(self, purpose: str) -> TrainData:
        """Training rows as the task learns from them: of fill-mask with words hidden anew at every step."""
        from pocketbert.distill.encoded_rows import EncodedRows
        from pocketbert.distill.general_set import GeneralSet
        from pocketbert.distill.masking import Masking
        from pocketbert.distill.train_set import TrainSet

        rows, side = self.data.splits["train"], self.source.family.padding_side
        tokenizer = TextTokenizer(self.source.path, self.length)
        if self.data.head.task.name is not TaskName.FILL_MASK:
            return TrainSet(rows, tokenizer, side)
        assert tokenizer.mask_id is not None
        encoded = EncodedRows(rows.encoded, tokenizer.vocabulary_size)
        masking = Masking(
            encoded.counts, tokenizer.mask_id, tokenizer.special_ids, self.recipe.seed, purpose, smoothing=0.0
        )
        return GeneralSet(encoded, tokenizer, masking, side)

    def train(
        self, model: Any, objective: Any, settings: Optimisation, purpose: str, rows: TrainData | None = None
    ) -> Curve:
        """Train a model in place, on the task's rows where no others are given."""
        from pocketbert.distill.loop import train

        metrics = self.target.parent / "metrics.jsonl"
        outcome = train(
            model,
            objective,
            rows or self.rows(purpose),
            settings,
            self.recipe.seed,
            purpose,
            self.work,
            metrics,
        )
        history = outcome.history
        return Curve(
            stage=purpose, steps=[r.step for r in history], loss=[r.loss for r in history],
            terms={k: [r.terms[k] for r in history] for k in (history[0].terms if history else {})},
            dtype=outcome.dtype, threads=outcome.threads,
        )  # fmt: skip


def permute_head(model: Any, have: Labels, want: Labels) -> str | None:
    """Reorder the classifier's rows so that its outputs follow another order of the same labels.

    Args:
        model: A model with a classification head.
        have: Its label order.
        want: The wanted order.

    Returns:
        A sentence for the user, or None when the order is the same.

    Raises:
        InputError: If the label sets differ, or the head cannot be found.
    """
    import torch

    order = want.permutation_from(have, "teacher")
    if order is None:
        return None
    rows = len(have)
    last = [m for n, m in model.named_modules()
            if isinstance(m, torch.nn.Linear) and m.out_features == rows and not n.startswith(model.base_model_prefix)]  # fmt: skip
    if not last:
        raise InputError(Problem("teacher", "its classifier has no last linear layer to reorder.",
                                 f"Set data.labels to the teacher's own order: {list(have.names)}."))  # fmt: skip
    with torch.no_grad():
        last[-1].weight.copy_(last[-1].weight[order])
        if last[-1].bias is not None:
            last[-1].bias.copy_(last[-1].bias[order])
    note = f"labels permuted: the model's order {list(have.names)} became the data's order {list(want.names)}"
    say(f"  {note}")
    return note
