"""Small teachers, students and stages for tests of TinyBERT."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pocketbert.core.families import family_of
from pocketbert.core.recipe.stages import LayerStage, LayerWeights, TinyBertGeneralStage, TinyBertIntermediateStage
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.types import Projection
from pocketbert.distill.losses.common import Term
from pocketbert.distill.methods.tinybert import TinyBertDistillation
from pocketbert.distill.students.build import build_student
from pocketbert.distill.students.projection import attach_projection

TERMS = ("attention", "hidden", "embeddings")


def stage_of(*terms: str, general: bool = False, **more: Any) -> LayerStage:
    """A stage with these terms; with all of them by default."""
    weights = LayerWeights(**{name: float(name in (terms or TERMS)) for name in TERMS})
    keys = {"steps": 1, "weights": weights, **more}
    if general:
        return TinyBertGeneralStage(method="tinybert-general", **keys)
    return TinyBertIntermediateStage(method="tinybert-intermediate", **keys)


def stage_for(name: str, **more: Any) -> LayerStage:
    """All terms that the family allows."""
    return stage_of(*(("attention",) if name == "mobilebert" else TERMS), **more)


def batch_of(rows: int = 5, length: int = 12, extra: int = 0) -> dict[str, Tensor]:
    """Rows of unequal length, one of them full; the second half of each is of segment 1."""
    random = np.random.default_rng(0)
    real = [*random.integers(3, length, rows - 1), length]
    mask = np.zeros((rows, length + extra), np.int64)
    ids, types = mask.copy(), mask.copy()
    for i, n in enumerate(real):
        mask[i, :n], ids[i, :n], types[i, n // 2 : n] = 1, random.integers(5, 100, n), 1
    made = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {k: torch.from_numpy(v) for k, v in made.items()}


def encoder(make: Callable[..., Any], family: str = "bert", layers: int = 3, **more: Any) -> Any:
    return make(family, layers, ("a", "b"), auto_class="AutoModel", **more)


def student_of(teacher: Any, layers: int = 2, projection: Projection = Projection.SHARED, **more: Any) -> Any:
    """In eval mode: without dropout. Its projection, if any, is drawn wide enough to matter."""
    wanted = StudentSection(layers=layers, **more)
    made = build_student(teacher, family_of(teacher.config.model_type), wanted, 0).eval()
    attached = attach_projection(made, teacher.config.hidden_size, projection, 0)
    if attached is not None:
        with torch.no_grad():
            for number, parameter in enumerate(attached.parameters()):
                parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(number))
    return made


def narrow_student(teacher: Any, layers: int = 2, projection: Projection = Projection.SHARED, **more: Any) -> Any:
    return student_of(teacher, layers, projection, init="random", hidden=24, **more)


def objective_of(teacher: Any, student: Any, stage: LayerStage, **more: Any) -> TinyBertDistillation:
    return TinyBertDistillation(teacher, student, family_of(teacher.config.model_type), stage, **more)


def values(terms: Mapping[str, Term]) -> dict[str, float]:
    return {name: float(t.mean.detach()) for name, t in terms.items()}


def total(objective: TinyBertDistillation, terms: Mapping[str, Term]) -> Tensor:
    return torch.stack([t.mean * objective.weights[n] for n, t in terms.items()]).sum()
