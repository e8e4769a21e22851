"""A method as another package would bring it: section, objective, and the function that trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal
from unittest import mock

import torch
from pydantic import Field
from torch import Tensor, nn

from pocketbert.core.recipe import sections as registry
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.sections import Optimisation, Stage, StagePlace, stage_sections
from pocketbert.distill.methods import method as rows
from pocketbert.distill.methods.method import (
    CarriedPart,
    Method,
    StageJob,
    StageResult,
    register_method,
    registered_methods,
)


class LogitsStage(Stage, Optimisation):
    """Method `logits`: squared error of the class scores."""

    method: Literal["logits"] = Field(description="Distillation method.")
    scale: float = Field(1.0, gt=0, description="Factor on the loss.")

    def problems(self, place: StagePlace) -> list[str]:
        return [f"{place.where}.scale: above 9, the student runs away"] if self.scale > 9 else []


class Logits:
    """Its objective."""

    def __init__(self, job: StageJob[LogitsStage]) -> None:
        self.pair, self.weights = job.pair, {"logits": job.pair.stage.scale}

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        inputs = {name: batch[name] for name in self.pair.family.inputs}
        with torch.no_grad():
            taught = self.pair.teacher(**inputs).logits
        return {"logits": (model(**inputs).logits - taught).square().sum(-1).mean()}


def train(job: StageJob[LogitsStage]) -> StageResult:
    seen = [*job.carried["scales"].facts["all"]] if "scales" in job.carried else []
    facts = {"all": [*seen, job.pair.stage.scale]}
    return StageResult(job.fit(Logits(job)), {"scales": CarriedPart({}, facts)}, (f"scales {facts['all']}",))


LOGITS = Method(section=LogitsStage, train=train)


@contextmanager
def registered(method: Method = LOGITS) -> Iterator[Method]:
    """A method, registered in one call, and forgotten when the block ends."""
    from pocketbert.distill.methods import table  # noqa: F401  the rows of the package come first

    with (
        mock.patch.multiple(registry, _SECTIONS=stage_sections()),
        mock.patch.multiple(rows, _METHODS=registered_methods()),
    ):
        yield register_method(method)
    Recipe.model_rebuild(force=True)
