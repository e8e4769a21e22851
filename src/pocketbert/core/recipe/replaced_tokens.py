"""The section of the method `replaced-tokens`, ELECTRA's objective."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from pocketbert.core.recipe.general_text import GeneralText
from pocketbert.core.recipe.methods import StagePlace, register_stage
from pocketbert.core.recipe.section import Fraction, Rate, Section
from pocketbert.core.recipe.stages import TermWeights
from pocketbert.core.recipe.updates import Optimisation
from pocketbert.core.types import MaskingKind


class GeneratorSection(Section):
    """The model that draws the tokens which take the place of others."""

    model: str = Field(description="Folder or Hub name of a masked-language model with the teacher's vocabulary.")
    revision: str | None = Field(None, description="Hub revision.")


class ReplacedWeights(TermWeights):
    """Weight of each term; 0 leaves it out. The defaults of the first two are ELECTRA's."""

    generator: float = Field(
        1.0, ge=0, description="Cross-entropy of the generator's guesses of hidden tokens; 0 leaves it as it is."
    )
    replaced: float = Field(50.0, ge=0, description="Cross-entropy of whether each token was replaced.")
    logits: float = Field(
        50.0, ge=0, description="Divergence from what the teacher says of each token, with temperature, times T^2."
    )


@register_stage
class ReplacedTokensStage(GeneralText, Optimisation):
    """Method `replaced-tokens`: the student learns to tell which tokens of plain text a generator replaced, as ELECTRA does."""

    method: Literal["replaced-tokens"] = Field(description="Distillation method.")
    generator: GeneratorSection = Field(description="The generator, which is trained too.")
    lr: Rate = Field(5e-4, description="Peak learning rate.")
    batch: PositiveInt = Field(128, description="Rows per step.")
    warmup: Fraction = Field(0.01, description="Share of the steps with rising learning rate.")
    temperature: float = Field(1.0, gt=0, description="Softens what both models say of a token.")
    weights: ReplacedWeights = Field(default_factory=lambda: ReplacedWeights(), description="Terms of the loss.")
    masking: MaskingKind = Field(MaskingKind.DYNAMIC, description="How tokens to replace are chosen.")

    @model_validator(mode="after")
    def _consistent(self) -> ReplacedTokensStage:
        problems = []
        if self.masking in (MaskingKind.NONE, MaskingKind.SIMILAR):
            problems.append(f"masking: {self.masking} leaves the generator nothing to replace: name another")
        if not (self.weights.replaced or self.weights.logits):
            problems.append("weights.replaced and weights.logits are 0: the student would learn nothing")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def problems(self, place: StagePlace) -> list[str]:
        """Refuse other stages that train heads which a model that judges tokens does not have."""
        words = [n for n, s in enumerate(place.stages) if s.general and getattr(s, "teaches_words", False)]
        return [
            f"{place.where}: the student judges tokens and guesses none, distill.{n} trains guesses: leave one of both out"
            for n in words
        ]
