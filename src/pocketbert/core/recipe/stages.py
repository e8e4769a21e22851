"""The sections of the distillation methods that come with the package, in the order of their registration."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from pocketbert.core.recipe.sections import (
    NO_TRANSFER,
    Fraction,
    GeneralText,
    Optimisation,
    Rate,
    Section,
    Stage,
    StagePlace,
    Updates,
    register_stage,
)
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import (
    Format,
    MaskingKind,
    Precision,
    Projection,
    Runtime,
    Schedule,
    Scheme,
    Signal,
    Transfer,
)


class TermWeights(Section):
    """Weight of each term of a loss; a term of weight 0 is left out."""

    @model_validator(mode="after")
    def _check_some_weight(self) -> TermWeights:
        """Raise ValueError if all weights are 0."""
        if not self.weighted():
            raise ValueError("all weights are 0: the student would learn nothing")
        return self

    def weighted(self) -> dict[str, float]:
        """Return the weights above 0, by name of the term."""
        return {name: weight for name, weight in self.model_dump().items() if weight > 0}


class SignalWeights(TermWeights):
    """Weight of each term of the loss of method `task`; a term of weight 0 is left out."""

    logits: float = Field(1.0, ge=0, description="KL of the temperature-softened class distributions, times T^2.")
    hidden: float = Field(1.0, ge=0, description="Squared error of the hidden states of mapped layers.")
    attention: float = Field(1.0, ge=0, description="KL of the attention distributions of mapped layers.")
    labels: float = Field(
        0.0, ge=0, description="Cross-entropy with the gold labels; of vectors: the order of scored pairs (CoSENT)."
    )
    margins: float = Field(
        0.0,
        ge=0,
        description="Of vectors: squared error of the differences of a query's scores, such as a reranker's (MarginMSE).",
    )
    negatives: float = Field(
        0.0, ge=0, description="Of vectors: cross-entropy of finding a query's text among those of the batch (InfoNCE)."
    )

    @property
    def from_pairs(self) -> tuple[str, ...]:
        """Names of those terms among labels, margins and negatives that have a weight above 0.

        For feature extraction they compare the texts of pairs; for other tasks `labels` is the loss on gold labels.
        """
        return tuple(name for name in ("labels", "margins", "negatives") if getattr(self, name))

    def active(self) -> tuple[Signal, ...]:
        """Return the signals (logits, hidden states, attention) with a weight above 0."""
        return tuple(s for s in Signal if getattr(self, s.value, 0) > 0)


@register_stage
class TaskStage(Stage, Optimisation):
    """Method `task`: the student learns a fine-tuned teacher's outputs and layers on the task's own text."""

    teaches_words: ClassVar[bool] = True

    method: Literal["task"] = Field(description="Distillation method.")
    temperature: float = Field(2.0, gt=0, description="Softens both class distributions.")
    signals: SignalWeights = Field(default_factory=lambda: SignalWeights(), description="Terms of the loss.")
    margin_scale: float | None = Field(
        None,
        gt=0,
        description="What the scores of signals.margins are divided by; default 1 for vectors compared by the dot product, and for those of "
        "length 1 the margin that 99 % of the training rows do not exceed, at least 1.",
    )
    layers: list[PositiveInt] | None = Field(
        None, description="Teacher layer (from 1) that each student layer learns from; default round(m*N/M)."
    )
    cache_teacher: Literal["fp32", "fp16"] | None = Field(
        None,
        description="Ask the teacher once per row and keep its answers on disk, in fp32 or, rounded by up to 5e-4 of "
        "each number, in fp16: pays where rows are seen several times. Default: ask it at every step.",
    )
    augmented: bool = Field(False, description="Learn on the augmented rows; needs data.augment.")

    @property
    def predicts(self) -> bool:
        """Whether the stage learns logits, gold labels or pairs."""
        return bool(self.signals.logits or self.signals.from_pairs)

    @property
    def by_text(self) -> bool:
        """Whether the stage compares outputs only, neither hidden states nor attention."""
        return not (self.signals.hidden or self.signals.attention)

    def is_taught(self, task: TaskName) -> bool:
        """Return whether a signal of the teacher has a weight, and the task can use texts without labels."""
        return bool(self.signals.active()) and task not in NO_TRANSFER

    def needs_labels(self, task: TaskName) -> bool:
        """Return whether the loss on gold labels or pairs has a weight."""
        return bool(self.signals.from_pairs)

    def problems(self, place: StagePlace) -> list[str]:
        """Return sentences about a layer map of the wrong length, terms on pairs for another task, or several such terms."""
        problems, terms = _layer_map_problems(self.layers, place), self.signals.from_pairs
        if place.task is not TaskName.FEATURE_EXTRACTION and {*terms} - {"labels"}:
            problems.append(
                f"{place.where}.signals.{terms[-1]}: compares vectors of texts, and the task is {place.task}: set it to 0"
            )
        elif place.task is TaskName.FEATURE_EXTRACTION and len(terms) > 1:
            problems.append(
                f"{place.where}.signals: {' and '.join(terms)} read pairs in different ways: set all but one to 0"
            )
        return problems


class TripleWeights(TermWeights):
    """Weight of each term of DistilBERT's loss; 0 leaves a term out. The defaults are those of the original command."""

    logits: float = Field(5.0, ge=0, description="KL of the softened vocabulary distributions, times T^2.")
    mlm: float = Field(2.0, ge=0, description="Cross-entropy of the hidden tokens.")
    cosine: float = Field(1.0, ge=0, description="1 - cos of the last hidden states.")


class SparseCache(Section):
    """How much of a teacher's distribution over the vocabulary is stored for each masked token."""

    top: PositiveInt = Field(32, description="Most probable tokens, kept exactly.")
    samples: int = Field(
        32,
        ge=0,
        description="Tokens drawn from the others, so that every mean over the vocabulary is right in expectation; "
        "with 0 the others count as impossible.",
    )


@register_stage
class DistilBertStage(GeneralText, Optimisation):
    """Method `distilbert`: the student learns a pre-trained teacher's masked-token predictions and last hidden states.

    It reads plain text.
    """

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
        description="Ask the teacher about all steps beforehand and keep its guesses at hidden tokens on disk; needs "
        "masked_only: true and weights.cosine: 0. Default: ask at every step.",
    )

    def problems(self, place: StagePlace) -> list[str]:
        """Return what is wrong with the stage: sentences, empty if nothing is.

        Found are ``masking: none`` although masked tokens are to be learnt, and a cache of predictions that does not
        fit the loss.
        """
        problems = []
        if self.masking is MaskingKind.NONE and (self.weights.mlm or self.masked_only):
            fix = "set weights.mlm: 0 and masked_only: false, or name another"
            problems.append(f"{place.where}.masking: none hides no tokens to learn from: {fix}")
        if self.cache is None:
            return problems
        key = f"{place.where}.cache"
        if not self.masked_only:
            problems.append(f"{key}: holds guesses at hidden tokens only: set masked_only: true")
        if self.weights.cosine:
            fix = "set weights.cosine: 0, or leave cache out"
            problems.append(f"{key}: holds no hidden states, asking the teacher again is cheaper: {fix}")
        if not self.weights.logits:
            fix = "raise it, or leave cache out"
            problems.append(f"{key}: is read by the term weights.logits only, which is 0: {fix}")
        return problems


class LayerWeights(TermWeights):
    """Weight of each term of TinyBERT's loss; a term of weight 0 is left out. The original has 1 everywhere."""

    attention: float = Field(1.0, ge=0, description="Squared error of the attention scores of mapped layers.")
    hidden: float = Field(1.0, ge=0, description="Squared error of the hidden states of mapped layers.")
    embeddings: float = Field(1.0, ge=0, description="Squared error of the embeddings.")


class LayerStage(Stage, Optimisation):
    """Settings that TinyBERT's general and intermediate stages have in common."""

    weights: LayerWeights = Field(default_factory=lambda: LayerWeights(), description="Terms of the loss.")
    projection: Projection = Field(
        Projection.SHARED,
        description="From the student's width to the teacher's: one for all layers (shared) or one for each "
        "(per_layer).",
    )
    layers: list[PositiveInt] | None = Field(
        None, description="Teacher layer (from 1) that each student layer learns from; default round(m*N/M)."
    )
    reference: bool = Field(
        False,
        description="Average as the original code does: padding up to the longest input (data.corpus.length, "
        "data.max_length) counts, and masked scores count as 0.",
    )

    def problems(self, place: StagePlace) -> list[str]:
        """Return sentences about a layer map of the wrong length, or another projection than that of earlier stages."""
        earlier = [s.projection for s in place.stages[: place.number] if isinstance(s, LayerStage)]
        problems = _layer_map_problems(self.layers, place)
        if earlier and self.projection is not earlier[0] and len(set(earlier)) == 1:
            problems.append(
                "distill: TinyBERT's stages go on with one projection: give all of them shared, or all per_layer"
            )
        return problems


@register_stage
class TinyBertGeneralStage(GeneralText, LayerStage):
    """Method `tinybert-general`: the student learns a pre-trained teacher's layers on plain text."""

    method: Literal["tinybert-general"] = Field(description="Distillation method.")
    batch: PositiveInt = Field(256, description="Rows per step.")
    lr: Rate = Field(5e-5, description="Peak learning rate.")
    warmup: Fraction = Field(0.1, description="Share of the steps with rising learning rate.")
    pairs: bool = Field(
        True,
        description="Cut rows into two segments, of which every other second one is from elsewhere, as for "
        "next-sentence prediction.",
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

    def is_taught(self, task: TaskName) -> bool:
        """Return whether the task can use texts without labels, since the stage learns the teacher's layers only."""
        return task not in NO_TRANSFER


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
    def predicts(self) -> bool:
        """Always true, since the stage learns outputs."""
        return True

    @property
    def by_text(self) -> bool:
        """Always true, since the stage compares outputs only."""
        return True

    def is_taught(self, task: TaskName) -> bool:
        """Return whether the task can use texts without labels; not for regression, which learns gold scores."""
        return task is not TaskName.REGRESSION and task not in NO_TRANSFER

    def needs_labels(self, task: TaskName) -> bool:
        """Return whether the stage learns gold scores, as it does for regression."""
        return task is TaskName.REGRESSION


class RelationWeights(TermWeights):
    """Weight of each term of MiniLM's loss; 0 leaves a term out.

    The defaults are those of version 2; version 1 has the terms attention and value.
    """

    attention: float = Field(0.0, ge=0, description="KL of the attention distributions; as many heads as the teacher.")
    query: float = Field(1.0, ge=0, description="KL of the relations between queries.")
    key: float = Field(1.0, ge=0, description="KL of the relations between keys.")
    value: float = Field(1.0, ge=0, description="KL of the relations between values.")


@register_stage
class MiniLmStage(GeneralText, Optimisation):
    """Method `minilm`: the student's last layer learns a teacher layer's relations between the tokens of plain text."""

    method: Literal["minilm"] = Field(description="Distillation method.")
    batch: PositiveInt = Field(256, description="Rows per step.")
    lr: Rate = Field(6e-4, description="Peak learning rate.")
    weights: RelationWeights = Field(default_factory=lambda: RelationWeights(), description="Terms of the loss.")
    relation_heads: PositiveInt | None = Field(
        None,
        description="Heads that queries, keys and values are cut into for the comparison; both widths are multiples of "
        "it. Default: the original's 48, or the largest number that divides both widths and is not above it; with "
        "weights.attention the heads that the models have.",
    )
    teacher_layer: PositiveInt | None = Field(
        None, description="Teacher layer (from 1) to learn from; default its last, of 24 layers the 21st."
    )


class TransferWeights(TermWeights):
    """Weight of each term of MobileBERT's losses; 0 leaves a term out. The defaults are the original command's."""

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
    """Method `mobilebert`: the student learns a pre-trained teacher's blocks, then its masked-token predictions.

    The text is plain text, and the optimiser is LAMB. `strategy` decides the order, and how the learning rate of each
    layer changes.
    """

    teaches_words: ClassVar[bool] = True
    teacher_passes: ClassVar[Literal["whole", "cut", "none"]] = "cut"

    method: Literal["mobilebert"] = Field(description="Distillation method.")
    strategy: Transfer = Field(Transfer.PROGRESSIVE, description="In which order layers and guesses are learnt.")
    transfer_steps: PositiveInt | None = Field(
        None,
        description="Steps for the layers, the others being for the guesses; default as published: 10,000 a layer to "
        "500,000.",
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
    reference: bool = Field(
        False,
        description="Average as the original code does: padding up to the longest row (data.corpus.length) counts.",
    )
    masking: MaskingKind = Field(MaskingKind.DYNAMIC, description="How tokens to hide are chosen.")
    pairs: bool = Field(
        True,
        description="Cut rows into two segments, of which every other second one is from elsewhere, as for "
        "next-sentence prediction.",
    )

    @model_validator(mode="after")
    def _check_phases(self) -> MobileBertStage:
        """Raise ValueError for weights, masking, pairs or steps with which a phase of the training would learn nothing."""
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
        """Return a sentence, in a list, if the layer map has more or fewer entries than the student has layers."""
        return _layer_map_problems(self.layers, place)


def _layer_map_problems(layers: list[int] | None, place: StagePlace) -> list[str]:
    """Return a sentence, in a list, if a layer map does not have one entry for each student layer; else an empty list.

    Nothing is wrong with None, the default map, nor with any map while the number of layers is unknown.
    """
    if layers is None or place.depth is None or len(layers) == place.depth:
        return []
    return [f"{place.where}.layers: lists {len(layers)} layers, the student has {place.depth}"]


class GeneratorSection(Section):
    """The model that draws the tokens by which others are replaced."""

    model: str = Field(description="Folder or Hub name of a masked-language model with the teacher's vocabulary.")
    revision: str | None = Field(None, description="Hub revision.")


class ReplacedWeights(TermWeights):
    """Weight of each term of the loss; 0 leaves a term out. The defaults of the first two are ELECTRA's."""

    generator: float = Field(
        1.0, ge=0, description="Cross-entropy of the generator's guesses of hidden tokens; 0 leaves it as it is."
    )
    replaced: float = Field(50.0, ge=0, description="Cross-entropy of whether each token was replaced.")
    logits: float = Field(
        50.0, ge=0, description="Divergence from what the teacher says of each token, with temperature, times T^2."
    )


@register_stage
class ReplacedTokensStage(GeneralText, Optimisation):
    """Method `replaced-tokens`: the student learns to find the tokens of plain text that a generator replaced."""

    method: Literal["replaced-tokens"] = Field(description="Distillation method.")
    generator: GeneratorSection = Field(description="The generator, which is trained too.")
    lr: Rate = Field(5e-4, description="Peak learning rate.")
    batch: PositiveInt = Field(128, description="Rows per step.")
    warmup: Fraction = Field(0.01, description="Share of the steps with rising learning rate.")
    temperature: float = Field(1.0, gt=0, description="Softens what both models say of a token.")
    weights: ReplacedWeights = Field(default_factory=lambda: ReplacedWeights(), description="Terms of the loss.")
    masking: MaskingKind = Field(MaskingKind.DYNAMIC, description="How tokens to replace are chosen.")

    @model_validator(mode="after")
    def _check_terms(self) -> ReplacedTokensStage:
        """Raise ValueError for masking that replaces no tokens, or weights with which the student learns nothing."""
        problems = []
        if self.masking in (MaskingKind.NONE, MaskingKind.SIMILAR):
            problems.append(f"masking: {self.masking} leaves the generator nothing to replace: name another")
        if not (self.weights.replaced or self.weights.logits):
            problems.append("weights.replaced and weights.logits are 0: the student would learn nothing")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def problems(self, place: StagePlace) -> list[str]:
        """Return a sentence for each general stage that trains a fill-mask head, which a student of this method lacks."""
        others = [n for n, s in enumerate(place.stages) if s.general and getattr(s, "teaches_words", False)]
        return [
            f"{place.where}: the student judges tokens and guesses none, distill.{n} trains guesses: leave one of both "
            "out"
            for n in others
        ]


@register_stage
class PretrainStage(GeneralText, Optimisation):
    """Method `pretrain`: the student learns masked tokens and next sentences from plain text, and nothing from a teacher."""

    teaches_words: ClassVar[bool] = True
    teacher_passes: ClassVar[Literal["whole", "cut", "none"]] = "none"

    method: Literal["pretrain"] = Field(description="Distillation method.")
    batch: PositiveInt = Field(256, description="Rows per step.")
    warmup: Fraction = Field(0.01, description="Share of the steps with rising learning rate.")
    optimizer: Literal["adamw", "lamb"] = Field("adamw", description="lamb for batches of thousands of rows.")
    masking: MaskingKind = Field(MaskingKind.DYNAMIC, description="How tokens to hide are chosen.")
    pairs: bool = Field(
        True,
        description="Cut rows into two segments, of which every other second one is from elsewhere, and learn which: "
        "next-sentence prediction.",
    )

    def problems(self, place: StagePlace) -> list[str]:
        """Return a sentence, in a list, if ``masking: none`` hides no tokens to learn; else an empty list."""
        if self.masking is not MaskingKind.NONE:
            return []
        return [f"{place.where}.masking: none hides no tokens to learn from: name another, such as dynamic"]


@register_stage
class QatStage(Stage, Optimisation):
    """Method `qat`: the student learns its own fp32 outputs while its numbers are rounded as in a quantized file."""

    teacher_passes: ClassVar[Literal["whole", "cut", "none"]] = "none"

    method: Literal["qat"] = Field(description="Distillation method.")
    scheme: Literal[Scheme.A8W8, Scheme.W4] = Field(
        Scheme.A8W8,
        description="Scheme that is trained for: a8w8 (weights and ranges of activations) or w4 (weights only).",
    )
    format: Format = Field(
        Format.ONNX,
        description="Format whose rounding is simulated, and whose figure decides whether the trained student is kept. "
        "Files of other formats store the same ranges where they have them.",
    )
    runtime: Runtime | None = Field(
        None,
        description="Runtime whose file is trained for, with scheme a8w8: openvino or qnn (format onnx), npu (format "
        "tflite). Only that file stores the learned ranges then. Default: the files for any runtime.",
    )
    batch: PositiveInt = Field(32, description="Rows per step.")
    lr: Rate = Field(2e-5, description="Peak learning rate of the weights; 1e-4 moves a trained student too far.")
    range_lr: Rate = Field(1e-2, description="Peak learning rate of the ranges.")
    warmup: Fraction = Field(0.0, description="Share of the steps with rising learning rate.")
    activation: Literal["relu6"] | None = Field(
        None,
        description="relu6 takes the place of the student's relu, so that the numbers of its feed-forward parts lie "
        "between 0 and 6 and their ranges need not be learned (MobileBERT's published recipe). Default: the activation "
        "stays.",
    )
    freeze_embeddings: Literal[True] = Field(True, description="Embedding tables stay as they are.")

    @property
    def by_text(self) -> bool:
        """Always true, since the stage compares outputs only."""
        return True

    @property
    def exported_format(self) -> Format | None:
        """The file format that the stage trains for."""
        return self.format

    def problems(self, place: StagePlace) -> list[str]:
        """Return what is wrong with the stage: sentences, empty if nothing is.

        Found are a stage after it, ``precision: bf16``, a file that the recipe does not write, and settings (runtime,
        activation, format) that its scheme does not have.
        """
        where, scheme, runtime, problems = place.where, self.scheme, self.runtime, []
        if place.number != len(place.stages) - 1:
            problems.append(
                f"{where}: qat trains the finished student, a stage after it would undo that: make it the last of "
                "distill"
            )
        if self.precision is Precision.BF16:
            problems.append(f"{where}.precision: qat computes in fp32, where rounding is exact: leave it out")
        if runtime is not None and scheme is Scheme.W4:
            fix = f"leave it out, or set scheme: {Scheme.A8W8}"
            problems.append(f"{where}.runtime: {runtime} has no {scheme} file: {fix}")
        elif runtime is not None and place.files is None:
            problems.append(f"{where}.runtime: a budget chooses among files for any runtime: leave it out")
        elif place.files is not None and (self.format, scheme, runtime) not in place.files:
            entry = f"{{scheme: {scheme}, runtime: {runtime}}}" if runtime else str(scheme)
            file = f"{scheme} for {runtime}" if runtime else str(scheme)
            problems.append(
                f"{where}: trains for {file} in {self.format}, which the recipe does not write: add {entry} to "
                f"quantize.files and {self.format} to export.formats, or name another scheme, format or runtime"
            )
        if self.activation is not None and scheme is not Scheme.A8W8:
            problems.append(
                f"{where}.activation: {self.activation} fixes ranges of activations, and {scheme} has none: leave it "
                f"out, or set scheme: {Scheme.A8W8}"
            )
        if scheme is Scheme.W4 and self.format is Format.COREML:
            problems.append(
                f"{where}.format: w4 of Core ML is not trained, its blocks are rounded in fp16: name onnx or tflite"
            )
        return problems
