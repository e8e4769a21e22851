"""The objectives of all methods on tiny models, and the rows on which they are tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbert.core.families import family_of
from pocketbert.core.recipe.stages import (
    DistilBertStage,
    LayerWeights,
    MiniLmStage,
    MobileBertStage,
    RelationWeights,
    ReplacedTokensStage,
    SignalWeights,
    TaskStage,
    TinyBertGeneralStage,
    TinyBertIntermediateStage,
    TripleWeights,
)
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import MobileBertSize, Projection
from pocketbert.distill.losses.common import Term
from pocketbert.distill.methods.distilbert import DistilBertDistillation
from pocketbert.distill.methods.method import TeacherStudent
from pocketbert.distill.methods.minilm import MiniLmDistillation
from pocketbert.distill.methods.mobilebert import MobileBertDistillation
from pocketbert.distill.methods.pretrain import Pretraining
from pocketbert.distill.methods.replaced_tokens import ReplacedTokens
from pocketbert.distill.methods.task import TaskDistillation
from pocketbert.distill.methods.tinybert import TinyBertDistillation
from pocketbert.distill.students.build import build_student
from pocketbert.distill.students.mobilebert import transfer_student
from pocketbert.distill.students.projection import attach_projection
from support.tiny import tiny_classifier
from support.tiny_tokenizers import vocabulary

CLASSIFY = TASKS[TaskName.TEXT_CLASSIFICATION]
MASK_ID = vocabulary(0).index("[MASK]")
SIZES = (12, 5, 8, 3, 10)
"""Tokens of the rows, again and again."""


def make_batch(rows: Sequence[int] = range(5), extra: int = 0, step: int = 0) -> dict[str, Tensor]:
    """Rows whose second half is of segment 1, with labels at one or two tokens of each but every fifth."""
    columns: dict[str, list[Tensor]] = {n: [] for n in ("input_ids", "attention_mask", "token_type_ids", "labels")}
    width = max(SIZES[row % 5] for row in rows) + extra
    for row in rows:
        size, random = SIZES[row % 5], torch.Generator().manual_seed(row)
        labels = torch.full((size,), -100)
        if row % 5 < 4:
            labels[[1, size - 1] if row % 2 else [size // 2]] = int(torch.randint(5, 100, (), generator=random))
        made = (
            (torch.randint(5, 100, (size,), generator=random), 0),
            (torch.ones(size, dtype=torch.long), 0),
            ((torch.arange(size) >= size // 2).long(), 0),
            (labels, -100),
        )
        for name, (value, fill) in zip(columns, made, strict=True):
            columns[name].append(F.pad(value, (0, width - size), value=fill))
    batch = {name: torch.stack(values) for name, values in columns.items()}
    batch["next_sentence_label"] = torch.tensor([(0, 1, -100, 1, 0)[row % 5] for row in rows])
    return batch | {"rows": torch.tensor(list(rows)), "steps": torch.full((len(rows),), step)}


def make_student(teacher: Any, layers: int = 2, projection: Projection | None = None, **section: Any) -> Any:
    """In eval mode: without dropout. Its projection, if any, is drawn wide enough to matter."""
    wanted = StudentSection(layers=layers, **section)
    made = build_student(teacher, family_of(teacher.config.model_type), wanted, 0).eval()
    if projection is not None:
        attached = attach_projection(made, teacher.config.hidden_size, projection, 0)
        assert attached is not None
        with torch.no_grad():
            for number, parameter in enumerate(attached.parameters()):
                parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(number))
    return made


NARROW = {"init": "random", "hidden": 24}


def means(terms: Mapping[str, Term]) -> dict[str, float]:
    return {name: float(t.mean.detach()) for name, t in terms.items()}


def total(objective: Any, terms: Mapping[str, Term]) -> Tensor:
    return torch.stack([t.mean * objective.weights[n] for n, t in terms.items()]).sum()


@dataclass(frozen=True)
class Trial:
    """An objective with its models and settings; the teacher came in training mode, the student is in eval mode."""

    objective: Any
    teacher: Any
    student: Any
    stage: Any

    def batch(self, rows: Sequence[int] = range(5), extra: int = 0, step: int = 0) -> dict[str, Tensor]:
        made = make_batch(rows, extra, step)
        classes = {"labels": made["rows"] % 3} if isinstance(self.objective, TaskDistillation) else {}
        return made | classes

    def terms(self, **batch: Any) -> dict[str, Term]:
        found: dict[str, Term] = self.objective(self.student, self.batch(**batch))
        return found


Section = dict[str, Any]


def _try(objective: Callable[..., Any], settings: Any, teacher: Any, student: Any, **more: Any) -> Trial:
    family = family_of(teacher.config.model_type)
    return Trial(objective(teacher.train(), student, family, stage=settings, **more), teacher, student, settings)


def try_task(section: Section | None = None, family: str = "bert", **stage: Any) -> Trial:
    teacher = tiny_classifier(family, 3, ("a", "b", "c"))
    hidden = float(family != "mobilebert")
    signals = SignalWeights(logits=1, hidden=hidden, attention=1, labels=1)
    settings = TaskStage(**{"method": "task", "steps": 1, "signals": signals, **stage})
    return _try(TaskDistillation, settings, teacher, make_student(teacher, **section or {}), task=CLASSIFY)


def language_model(family: str = "bert", layers: int = 3, **more: Any) -> Any:
    return tiny_classifier(family, layers, ("a", "b"), auto_class="AutoModelForMaskedLM", **more)


def try_distilbert(section: Section | None = None, **stage: Any) -> Trial:
    teacher, settings = language_model(), DistilBertStage(**{"method": "distilbert", "steps": 1, **stage})
    return _try(DistilBertDistillation, settings, teacher, make_student(teacher, **section or {}))


def try_minilm(section: Section | None = None, **stage: Any) -> Trial:
    """Version 1 and 2 at once."""
    weights = RelationWeights(attention=1, query=1, key=1, value=1)
    settings = MiniLmStage(**{"method": "minilm", "steps": 1, "weights": weights, **stage})
    teacher = language_model()
    return _try(MiniLmDistillation, settings, teacher, make_student(teacher, **section or {}))


def try_tinybert(section: Section | None = None, general: bool = False, **stage: Any) -> Trial:
    """With a projection where the student is narrower."""
    section, kind = section or NARROW, stage.get("projection", Projection.SHARED)
    teacher = tiny_classifier("bert", 3, ("a", "b"), auto_class="AutoModel")
    student = make_student(teacher, **section, projection=kind if "hidden" in section else None)
    plan = {"steps": 1, "weights": LayerWeights(attention=1, hidden=1, embeddings=1), **stage}
    if general:
        return _try(TinyBertDistillation, TinyBertGeneralStage(method="tinybert-general", **plan), teacher, student)
    settings = TinyBertIntermediateStage(method="tinybert-intermediate", **plan)
    return _try(TinyBertDistillation, settings, teacher, student)


def try_mobilebert(strategy: str = "auxiliary", **stage: Any) -> Trial:
    teacher = tiny_classifier("ib-bert", 3, (), auto_class="AutoModelForPreTraining")
    student = transfer_student(teacher, MobileBertSize.MINI, 3).eval()
    plan = {"steps": 100, **({} if strategy == "auxiliary" else {"transfer_steps": 60}), **stage}
    settings = MobileBertStage(**{"method": "mobilebert", "strategy": strategy, **plan})
    return _try(MobileBertDistillation, settings, teacher, student)


def try_pretraining(family: str = "ib-bert", **stage: Any) -> Trial:
    model = tiny_classifier(family, 2, (), auto_class="AutoModelForPreTraining")
    settings = MiniLmStage(
        **{"method": "minilm", "steps": 1, **stage}
    )  # of which the loop reads the optimisation alone
    return Trial(Pretraining(model, family_of(model.config.model_type)), None, model, settings)


def try_replaced_tokens(**stage: Any) -> Trial:
    teacher, student = (tiny_classifier("electra", n, (), n, "AutoModelForPreTraining") for n in (2, 1))
    generator = tiny_classifier("electra", 1, (), 5, "AutoModelForMaskedLM")
    named = {"method": "replaced-tokens", "generator": {"model": "generator"}, "steps": 4, "dropout": 0.0}
    settings = ReplacedTokensStage.model_validate(named | stage)
    pair = TeacherStudent(teacher.train(), student, family_of("electra"), settings, "distill.1")
    student.add_module("token_generator", generator)
    return Trial(ReplacedTokens(pair, generator, MASK_ID, 3), teacher, student, settings)


OTHER_CLASS = {"layers": 3, "family": "distilbert", "fold_segments": True}
TRIALS: dict[str, Callable[..., Trial]] = {
    "task": try_task,
    "task, mobilebert": partial(try_task, family="mobilebert"),
    "distilbert": try_distilbert,
    "distilbert, masked tokens": partial(try_distilbert, masked_only=True),
    "distilbert, other class": partial(try_distilbert, {**OTHER_CLASS, "layers": 2}),
    "minilm": try_minilm,
    "minilm, narrow": partial(try_minilm, NARROW),
    "tinybert": try_tinybert,
    "tinybert, per layer": partial(try_tinybert, general=True, projection=Projection.PER_LAYER),
    "tinybert, reference": partial(try_tinybert, reference=True),
    "mobilebert": try_mobilebert,
    "mobilebert, reference": partial(try_mobilebert, reference=True),
    "pretraining": try_pretraining,
    "replaced tokens": try_replaced_tokens,
}
"""One trial of each objective, and of each way to take its means."""
WEIGHTS = {
    "task": ("signals", SignalWeights),
    "distilbert": ("weights", TripleWeights),
    "minilm": ("weights", RelationWeights),
    "tinybert": ("weights", LayerWeights),
    "replaced tokens": ("weights", ReplacedTokensStage.model_fields["weights"].annotation),
}
"""Key and class of the weights of the terms."""
