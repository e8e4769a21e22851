"""What a student learns in a stage of `distill`: the section of each method that comes with the package, but one."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from pocketbert.core.recipe.general_text import GeneralText
from pocketbert.core.recipe.methods import Stage, StagePlace, register_stage
from pocketbert.core.recipe.section import Fraction, Rate, Section
from pocketbert.core.recipe.updates import Optimisation, Updates
from pocketbert.core.types import MaskingKind, Projection, Schedule, Signal, Transfer


class TermWeights(Section):
    """Weight of each term of a loss; 0 leaves it out."""

    @model_validator(mode="after")
    def _something(self) -> TermWeights:
        if not self.weighted():
            raise ValueError("all weights are 0: the student would learn nothing")
        return self

    def weighted(self) -> dict[str, float]:
        """Weights above 0, by term."""
        return {name: weight for name, weight in self.model_dump().items() if weight > 0}


class SignalWeights(TermWeights):
    """Weight of each term of the loss; 0 leaves it out."""

    logits: float = Field(1.0, ge=0, description="KL of the temperature-softened class distributions, times T^2.")
    hidden: float = Field(1.0, ge=0, description="Squared error of the hidden states of mapped layers.")
    attention: float = Field(1.0, ge=0, description="KL of the attention distributions of mapped layers.")
    labels: float = Field(0.0, ge=0, description="Cross-entropy with the gold labels.")

    def active(self) -> tuple[Signal, ...]:
        """Teacher signals with a weight above 0."""
        return tuple(s for s in Signal if getattr(self, s.value, 0) > 0)


@register_stage
class TaskStage(Stage, Optimisation):
    """Method `task`: the student learns a fine-tuned teacher's behaviour on the task's own text."""

    teaches_words: ClassVar[bool] = True

    method: Literal["task"] = Field(description="Distillation method.")
    temperature: float = Field(2.0, gt=0, description="Softens both class distributions.")
    signals: SignalWeights = Field(default_factory=lambda: SignalWeights(), description="Terms of the loss.")
    layers: list[PositiveInt] | None = Field(
        None, description="Teacher layer (from 1) that each student layer learns from; default round(m*N/M)."
    )
    cache_teacher: Literal["fp32", "fp16"] | None = Field(
        None,
        description="Ask the teacher once per row and keep its answers on disk, in fp32 or, rounded by up to 5e-4 of each "
        "number, in fp16: pays where rows are seen several times. Default: ask it at every step.",
    )
    augmented: bool = Field(False, description="Learn on the augmented rows; needs data.augment.")

    @property
    def by_text(self) -> bool:
        """Whether neither hidden states nor attention are compared."""
        return not (self.signals.hidden or self.signals.attention)

    def problems(self, place: StagePlace) -> list[str]:
        """Refuse a layer map of another length than the student's depth."""
        return unmapped(self.layers, place)


class TripleWeights(TermWeights):
    """Weight of each term of DistilBERT's loss; 0 leaves it out. The defaults are those of the original training command."""

    logits: float = Field(5.0, ge=0, description="KL of the softened vocabulary distributions, times T^2.")
    mlm: float = Field(2.0, ge=0, description="Cross-entropy of the hidden tokens.")
    cosine: float = Field(1.0, ge=0, description="1 - cos of the last hidden states.")


class SparseCache(Section):
    """How much of a teacher's distribution over the vocabulary is kept at each hidden token."""

    top: PositiveInt = Field(32, description="Most probable tokens, kept exactly.")
    samples: int = Field(
        32,
        ge=0,
        description="Tokens drawn from the others, so that every mean over the vocabulary is right in expectation; with 0 "
        "the others count as impossible.",
    )


@register_stage
class DistilBertStage(GeneralText, Optimisation):
    """Method `distilbert`: the student learns a pre-trained teacher's guesses and last hidden states on plain text."""

    teaches_words: ClassVar[bool] = True

    method: Literal["distilbert"] = Field(description="Distillation method.")
    lr: Rate = Field(5e-4, description="Peak learning rate.")
    warmup: Fraction = Field(0.05, description="Share of the steps with rising learning rate.")
    weight_decay: float = Field(0.0, ge=0, le=1, description="AdamW weight decay, not on biases and norms.")
    clip: float = Field(5.0, gt=0, description="Largest global gradient norm.")
    beta2: Rate = Field(0.98, description="AdamW's decay of squared gradients.")
    eps: float = Field(1e-6, gt=0, description="AdamW's epsilon.")
    temperature: float = Field(2.0, gt=0, description="Softens both vocabulary distributions.")
    weights: TripleWeights = Field(default_factory=lambda: TripleWeights(), description="Terms of the loss.")
    masked_only: bool = Field(
        False, description="Learn soft targets at hidden tokens only, not at all: 6 times less memory."
    )
    masking: MaskingKind = Field(MaskingKind.FREQUENCY, description="How tokens to hide are chosen.")
    freeze_positions: bool = Field(False, description="Keep the position table as it is, as the original run did.")
    cache: SparseCache | None = Field(
        None,
        description="Ask the teacher about all steps beforehand and keep its guesses at hidden tokens on disk; needs masked_only: "
        "true and weights.cosine: 0. Default: ask at every step.",
    )

    def problems(self, place: StagePlace) -> list[str]:
        """Refuse to learn from hidden tokens where none are hidden, and a cache that does not hold what is learnt."""
        out = []
        if self.masking is MaskingKind.NONE and (self.weights.mlm or self.masked_only):
            out.append(
                f"{place.where}.masking: none hides no tokens to learn from: set weights.mlm: 0 and masked_only: false, or name another"
            )
        if self.cache is not None:
            out += [f"{place.where}.cache: {text}" for text in self._cache_problems()]
        return out

    def _cache_problems(self) -> list[str]:
        """What keeps the stage from learning from a cache, a sentence each."""
        out = []
        if not self.masked_only:
            out.append("holds guesses at hidden tokens only: set masked_only: true")
        if self.weights.cosine:
            out.append(
                "holds no hidden states, asking the teacher again is cheaper: set weights.cosine: 0, or leave cache out"
            )
        if not self.weights.logits:
            out.append("is read by the term weights.logits only, which is 0: raise it, or leave cache out")
        return out


class LayerWeights(TermWeights):
    """Weight of each term of TinyBERT's loss; 0 leaves it out. The original has 1 everywhere."""

    attention: float = Field(1.0, ge=0, description="Squared error of the attention scores of mapped layers.")
    hidden: float = Field(1.0, ge=0, description="Squared error of the hidden states of mapped layers.")
    embeddings: float = Field(1.0, ge=0, description="Squared error of the embeddings.")


class LayerStage(Stage, Optimisation):
    """What TinyBERT's general and intermediate stages share."""

    weights: LayerWeights = Field(default_factory=lambda: LayerWeights(), description="Terms of the loss.")
    projection: Projection = Field(
        Projection.SHARED,
        description="From the student's width to the teacher's: one for all layers (shared) or one for each (per_layer).",
    )
    layers: list[PositiveInt] | None = Field(
        None, description="Teacher layer (from 1) that each student layer learns from; default round(m*N/M)."
    )
    reference: bool = Field(
        False, description="Average as the original code does: padding counts, and masked scores count as 0."
    )

    def problems(self, place: StagePlace) -> list[str]:
        """Refuse a layer map of another length than the student's depth, and another projection than the stage before."""
        before = [s.projection for s in place.stages[: place.number] if isinstance(s, LayerStage)]
        out = unmapped(self.layers, place)
        if before and self.projection is not before[0] and len(set(before)) == 1:
            out.append(
                "distill: TinyBERT's stages go on with one projection: give all of them shared, or all per_layer"
            )
        return out


@register_stage
class TinyBertGeneralStage(GeneralText, LayerStage):
    """Method `tinybert-general`: the student learns a pre-trained teacher's layers on plain text."""

    method: Literal["tinybert-general"] = Field(description="Distillation method.")
    batch: PositiveInt = Field(256, description="Rows per step.")
    lr: Rate = Field(5e-5, description="Peak learning rate.")
    warmup: Fraction = Field(0.1, description="Share of the steps with rising learning rate.")
    pairs: bool = Field(
        True,
        description="Cut rows into two segments, of which every other second one is from elsewhere, as for next-sentence prediction.",
    )


@register_stage
class TinyBertIntermediateStage(LayerStage):
    """Method `tinybert-intermediate`: the student learns a fine-tuned teacher's layers on the task's own text."""

    method: Literal["tinybert-intermediate"] = Field(description="Distillation method.")
    batch: PositiveInt = Field(32, description="Rows per step.")
    lr: Rate = Field(5e-5, description="Peak learning rate.")
    warmup: Fraction = Field(0.0, description="Share of the steps with rising learning rate.")
    schedule: Schedule = Field(
        Schedule.CONSTANT,
        description="After the warm-up: linear, falling to 0 at the last step, or constant.",
    )
    augmented: bool = Field(False, description="Learn on the augmented rows; needs data.augment.")


@register_stage
class TinyBertPredictionStage(Stage, Optimisation):
    """Method `tinybert-prediction`: the student learns a fine-tuned teacher's outputs on the task's own text.

    For regression the gold scores are learnt, as in the original.
    """

    method: Literal["tinybert-prediction"] = Field(description="Distillation method.")
    batch: PositiveInt = Field(32, description="Rows per step.")
    lr: Rate = Field(3e-5, description="Peak learning rate.")
    warmup: Fraction = Field(0.1, description="Share of the steps with rising learning rate.")
    temperature: float = Field(1.0, gt=0, description="Softens both class distributions.")
    augmented: bool = Field(False, description="Learn on the augmented rows; needs data.augment.")

    @property
    def by_text(self) -> bool:
        """Always: only outputs are learnt."""
        return True


class RelationWeights(TermWeights):
    """Weight of each term of MiniLM's loss; 0 leaves it out. The defaults are version 2's; version 1 is attention and value."""

    attention: float = Field(0.0, ge=0, description="KL of the attention distributions; as many heads as the teacher.")
    query: float = Field(1.0, ge=0, description="KL of the relations between queries.")
    key: float = Field(1.0, ge=0, description="KL of the relations between keys.")
    value: float = Field(1.0, ge=0, description="KL of the relations between values.")


@register_stage
class MiniLmStage(GeneralText, Optimisation):
    """Method `minilm`: the student's last layer learns how a teacher's layer relates the tokens of plain text."""

    method: Literal["minilm"] = Field(description="Distillation method.")
    batch: PositiveInt = Field(256, description="Rows per step.")
    lr: Rate = Field(6e-4, description="Peak learning rate.")
    weights: RelationWeights = Field(default_factory=lambda: RelationWeights(), description="Terms of the loss.")
    relation_heads: PositiveInt | None = Field(
        None,
        description="Heads that queries, keys and values are cut into for the comparison; both widths are multiples of it. Default: "
        "the original's 48, or the largest number that divides both widths and is not above it; with weights.attention the heads "
        "that the models have.",
    )
    teacher_layer: PositiveInt | None = Field(
        None, description="Teacher layer (from 1) to learn from; default its last, of 24 layers the 21st."
    )


class TransferWeights(TermWeights):
    """Weight of each term of MobileBERT's losses; 0 leaves it out. The defaults are those of the original training command."""

    maps: float = Field(100.0, ge=0, description="Squared error of the normalised states of each layer.")
    means: float = Field(5000.0, ge=0, description="Squared error of the states' means over channels.")
    variances: float = Field(5.0, ge=0, description="Absolute error of the states' variances over channels.")
    attention: float = Field(
        1.0,
        ge=0,
        description="KL of the attention distributions of each layer; as many heads as the teacher.",
    )
    guesses: float = Field(
        1.0, ge=0, description="Cross-entropy of the hidden tokens, with the truth and the teacher's guesses."
    )
    next_sentence: float = Field(
        1.0, ge=0, description="Cross-entropy of whether the second segment follows the first; needs pairs."
    )


@register_stage
class MobileBertStage(GeneralText, Updates):
    """Method `mobilebert`: the student's blocks learn a pre-trained teacher's, then its guesses, on plain text.

    The optimiser is LAMB; how the learning rate of each layer runs is the strategy's.
    """

    teaches_words: ClassVar[bool] = True

    method: Literal["mobilebert"] = Field(description="Distillation method.")
    strategy: Transfer = Field(Transfer.PROGRESSIVE, description="In which order layers and guesses are learnt.")
    transfer_steps: PositiveInt | None = Field(
        None,
        description="Steps for the layers, the others being for the guesses; default as published: 10,000 a layer to 500,000.",
    )
    batch: PositiveInt = Field(2048, description="Rows per step.")
    lr: Rate = Field(1.5e-3, description="Peak learning rate.")
    eps: float = Field(1e-6, gt=0, description="The optimiser's epsilon.")
    dropout: float | None = Field(0.0, ge=0, lt=1, description="Dropout of the trained model.")
    weights: TransferWeights = Field(default_factory=lambda: TransferWeights(), description="Terms of the loss.")
    truth: Fraction = Field(
        0.5, description="Share of the original token, against the teacher's guess, in what is to be guessed."
    )
    layers: list[PositiveInt] | None = Field(
        None, description="Teacher layer (from 1) that each student layer learns from; default round(m*N/M)."
    )
    reference: bool = Field(False, description="Average as the original code does: padding counts.")
    masking: MaskingKind = Field(MaskingKind.DYNAMIC, description="How tokens to hide are chosen.")
    pairs: bool = Field(
        True,
        description="Cut rows into two segments, of which every other second one is from elsewhere, as for next-sentence prediction.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> MobileBertStage:
        problems = []
        if self.weights.next_sentence and not self.pairs:
            problems.append("pairs: false leaves no next sentence to tell: set weights.next_sentence: 0")
        if self.weights.guesses and self.masking is MaskingKind.NONE:
            problems.append("masking: none leaves nothing to guess: set weights.guesses: 0, or hide tokens")
        own = self.weights
        if not (own.maps or own.means or own.variances or own.attention):
            problems.append("weights.maps, means, variances and attention are 0: the layers would learn nothing")
        if not (self.weights.guesses or self.weights.next_sentence):
            problems.append("weights.guesses and weights.next_sentence are 0: the last phase would learn nothing")
        if self.transfer_steps is not None and self.strategy is Transfer.AUXILIARY:
            problems.append("transfer_steps has no meaning with strategy: auxiliary, which learns both at once")
        if self.transfer_steps is not None and self.steps and self.transfer_steps >= self.steps:
            problems.append(f"transfer_steps {self.transfer_steps} leaves none of {self.steps} steps for the guesses")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def problems(self, place: StagePlace) -> list[str]:
        """Refuse a layer map of another length than the student's depth."""
        return unmapped(self.layers, place)


def unmapped(layers: list[int] | None, place: StagePlace) -> list[str]:
    """The problem with a layer map that does not have one entry for each layer of the student, if it has that problem.

    Args:
        layers: The map of a stage; None for the default one.
        place: Where the stage is.
    """
    if layers is None or place.depth is None or len(layers) == place.depth:
        return []
    return [f"{place.where}.layers: lists {len(layers)} layers, the student has {place.depth}"]
