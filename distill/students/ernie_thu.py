"""ERNIE (Tsinghua) for transformers: BERT with a second stream of entities, fused in the feed-forward parts.

The configuration `ErnieThuConfig` and the model classes. Importing this module registers them with transformers.

Zhang et al. 2019, "ERNIE: Enhanced Language Representation with Informative Entities", arXiv 1905.07129, section 3, and
the equations of the authors' code. With text states w [B, S, H], entity states e [B, S, E] and M [B, S, 1], which is 1
where a mention begins:

* sim: BERT's layer; e passes through.
* mix: w' = LN(attention(w) + w), e' = e M.
* norm: w' as above, e' = LN(attention(e) + e) M; keys are the places where M is 1.
* both: z = gelu(W w' + b + V e' + c), w = LN(W2 z + b2 + w'), e = LN(V2 z + c2 + e').

The position of [CLS], the first one, always counts as an entity (M = 1) with a zero vector, in pre-training and in
every fine-tuning script of the authors: without entities the second stream consists of that position. Inputs must
therefore not be padded on the left.

Weights have the names of the released ``pytorch_model.bin``. Nothing reads the entity stream of the last layer; its
weights are kept, so that a checkpoint is saved as it was loaded, and not trained.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertTokenizer,
)
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling
from transformers.models.bert.modeling_bert import (
    BertAttention,
    BertEmbeddings,
    BertIntermediate,
    BertOnlyMLMHead,
    BertOutput,
    BertPooler,
    BertPreTrainedModel,
    BertPreTrainingHeads,
    BertSelfAttention,
)
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from pocketbert.core.errors import InputError, Problem

_MASKED = -1e4
"""Added to attention scores of positions without an entity, as in the authors' code."""
_OPEN_FROM = 2.0**-6
"""Sum of the absolute values of a vector from which it is an entity; vectors of the released table have length 1."""


class LayerKind(StrEnum):
    """How a layer uses entities, by the names of the released ``ernie_config.json``."""

    SIM = "sim"
    """None: BERT's layer."""
    MIX = "mix"
    """Fuses entities into the feed-forward part."""
    NORM = "norm"
    """Applies attention between entities, then fuses them."""


class ErnieThuConfig(BertConfig):  # type: ignore[misc]
    """Configuration of ERNIE (Tsinghua; Zhang et al. 2019, arXiv 1905.07129); defaults are the released ERNIE-base.

    Attributes:
        layer_kinds: Kind of each layer, see `LayerKind`; layers that the list lacks are ``sim``. The released file
            calls it ``layer_types``, a name that transformers keeps for kinds of attention. The default is the released
            pattern (12 layers: 5 x sim, mix, 6 x norm), scaled to the model's depth.
        entity_size: Width of the entity stream.
        entity_heads: Number of heads of the attention between entities.
        entity_rows: Number of entities in the model's table; 0 for a model without a table.

    Raises:
        InputError: If a layer has an unknown kind, there are more kinds than layers, or `entity_size` is no multiple of
            `entity_heads`.
    """

    model_type = "ernie_thu"

    layer_kinds: list[str] | None = None
    entity_size: int = 100
    entity_heads: int = 4
    entity_rows: int = 0

    def __post_init__(self, **kwargs: Any) -> None:
        """Raise InputError if layer kinds or entity sizes do not fit together."""
        super().__post_init__(**kwargs)
        kinds, problems = list(self.layer_kinds or ()), []
        if unknown := sorted(set(kinds) - set(LayerKind)):
            what = f"has {', '.join(unknown)}; allowed: {', '.join(LayerKind)}."
            problems.append(Problem("config.json layer_kinds", what))
        if len(kinds) > self.num_hidden_layers:
            what = f"lists {len(kinds)} layers, the model has {self.num_hidden_layers}."
            problems.append(Problem("config.json layer_kinds", what))
        if self.entity_size % self.entity_heads:
            what = f"{self.entity_size} is no multiple of {self.entity_heads} entity heads."
            problems.append(Problem("config.json entity_size", what))
        if problems:
            raise InputError(problems)

    def kinds(self) -> list[LayerKind]:
        """Return how each layer uses entities, as a list of `LayerKind`."""
        depth = self.num_hidden_layers
        if self.layer_kinds is not None:
            listed = [LayerKind(k) for k in self.layer_kinds[:depth]]
            return [*listed, *[LayerKind.SIM] * (depth - len(listed))]
        norm = depth // 2
        return [*[LayerKind.SIM] * (depth - norm - 1), LayerKind.MIX, *[LayerKind.NORM] * norm]


def mask_of_vectors(vectors: Tensor) -> Tensor:
    """Return 1 where a token has an entity vector and 0 where the vector is all zeros, [B, S, E] to [B, S]."""
    # arithmetic, for exported graphs; a power of two, so that fp16 gives 1 exactly
    return vectors.abs().sum(-1).clamp(0.0, _OPEN_FROM) * (1 / _OPEN_FROM)


class _EntityAttention(nn.Module):
    """Self-attention between entity vectors, which recorders of the text's attention do not capture."""

    def __init__(self, config: ErnieThuConfig) -> None:
        super().__init__()
        size = config.entity_size
        self.heads = config.entity_heads
        self.query, self.key, self.value = nn.Linear(size, size), nn.Linear(size, size), nn.Linear(size, size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def forward(self, entities: Tensor, mask: Tensor) -> Tensor:
        """Compute self-attention between the entity vectors.

        Args:
            entities: Entity vectors, [B, S, E].
            mask: 1 at an entity, [B, S].

        Returns:
            Context vectors, [B, S, E].
        """
        batch, length, width = entities.shape
        split = (batch, length, self.heads, width // self.heads)
        query, key, value = (
            dense(entities).view(split).transpose(1, 2) for dense in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(2, 3) * (width // self.heads) ** -0.5
        weights = torch.softmax(scores + (1.0 - mask[:, None, None, :].to(scores.dtype)) * _MASKED, -1)
        context: Tensor = self.dropout(weights) @ value
        return context.transpose(1, 2).reshape(batch, length, width)


class _EntityOutput(nn.Module):
    """Linear layer, residual and layer normalization after the attention between entities."""

    def __init__(self, config: ErnieThuConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.entity_size, config.entity_size)
        self.LayerNorm = nn.LayerNorm(config.entity_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, context: Tensor, entities: Tensor) -> Tensor:
        """Add the attention's context to the entity states and normalize, [B, S, E] twice to [B, S, E]."""
        return self.LayerNorm(self.dropout(self.dense(context)) + entities)  # type: ignore[no-any-return]


class _ErnieThuAttention(BertAttention):  # type: ignore[misc]
    """BERT's attention between the tokens of the text, and in a `norm` layer also attention between the entities."""

    def __init__(self, config: ErnieThuConfig, kind: LayerKind) -> None:
        super().__init__(config)
        if kind is LayerKind.NORM:
            self.self_ent, self.output_ent = _EntityAttention(config), _EntityOutput(config)

    def entities(self, entities: Tensor, mask: Tensor) -> Tensor:
        """Return the entity states for the feed-forward part, 0 at other tokens, [B, S, E] and [B, S] to [B, S, E]."""
        if hasattr(self, "self_ent"):
            entities = self.output_ent(self.self_ent(entities, mask), entities)
        return entities * mask[:, :, None].to(entities.dtype)


class _ErnieThuIntermediate(BertIntermediate):  # type: ignore[misc]
    """First half of the feed-forward part, which adds up text and entity states."""

    def __init__(self, config: ErnieThuConfig, kind: LayerKind) -> None:
        super().__init__(config)
        if kind is not LayerKind.SIM:
            self.dense_ent = nn.Linear(config.entity_size, config.intermediate_size)

    def fused(self, states: Tensor, entities: Tensor) -> Tensor:
        """Add projected text and entity states, [B, S, H] and [B, S, E], and activate: [B, S, feed-forward width]."""
        return self.intermediate_act_fn(self.dense(states) + self.dense_ent(entities))  # type: ignore[no-any-return]


class _ErnieThuOutput(BertOutput):  # type: ignore[misc]
    """Second half of the feed-forward part, with one output for the text and one for the entities."""

    def __init__(self, config: ErnieThuConfig, kind: LayerKind) -> None:
        super().__init__(config)
        if kind is not LayerKind.SIM:
            self.dense_ent = nn.Linear(config.intermediate_size, config.entity_size)
            self.LayerNorm_ent = nn.LayerNorm(config.entity_size, eps=config.layer_norm_eps)

    def entities(self, hidden: Tensor, entities: Tensor) -> Tensor:
        """Return the layer's entity output from the fused states and a residual, [B, S, E]."""
        return self.LayerNorm_ent(self.dropout(self.dense_ent(hidden)) + entities)  # type: ignore[no-any-return]


class ErnieThuLayer(nn.Module):
    """One encoder layer of kind `sim`, `mix` or `norm`."""

    def __init__(self, config: ErnieThuConfig, kind: LayerKind) -> None:
        super().__init__()
        self.kind = kind
        self.attention = _ErnieThuAttention(config, kind)
        self.intermediate, self.output = _ErnieThuIntermediate(config, kind), _ErnieThuOutput(config, kind)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None, entities: Tensor, entity_mask: Tensor, **more: Any
    ) -> tuple[Tensor, Tensor]:
        """Compute the layer's new text and entity states.

        Args:
            hidden_states: States of the text, [B, S, H].
            attention_mask: Mask in the form of transformers' attention functions.
            entities: States of the entities, [B, S, E].
            entity_mask: 1 where a mention begins, [B, S].
            **more: Passed to the attention function.

        Returns:
            New states of the text [B, S, H] and of the entities [B, S, E].
        """
        states, _ = self.attention(hidden_states, attention_mask, **more)
        if self.kind is LayerKind.SIM:
            return self.output(self.intermediate(states), states), entities
        attended_entities = self.attention.entities(entities, entity_mask)
        hidden = self.intermediate.fused(states, attended_entities)
        return self.output(hidden, states), self.output.entities(hidden, attended_entities)


class _ErnieThuEncoder(nn.Module):
    """All encoder layers, one after the other."""

    def __init__(self, config: ErnieThuConfig) -> None:
        super().__init__()
        layers = [ErnieThuLayer(config, kind) for kind in config.kinds()]
        self.layer = nn.ModuleList(layers)
        self.entity_size = config.entity_size
        fusing = [layer for layer in layers if layer.kind is not LayerKind.SIM]
        for unread in (fusing[-1].output.dense_ent, fusing[-1].output.LayerNorm_ent) if fusing else ():
            unread.requires_grad_(False)  # they get no gradient, and DDP waits for every gradient

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        entity_vectors: Tensor | None = None,
        entity_mask: Tensor | None = None,
        **more: Any,
    ) -> BaseModelOutput:
        """Run all layers and return the last text states; see `ErnieThuModel.forward`."""
        if entity_vectors is None or entity_mask is None:
            entity_vectors = hidden_states.new_zeros(*hidden_states.shape[:2], self.entity_size)
            entity_mask = hidden_states.new_zeros(hidden_states.shape[:2])
        first = torch.ones_like(entity_mask[:, :1])
        entity_mask = torch.cat([first, entity_mask[:, 1:]], 1)  # [CLS] always counts as an entity
        for layer in self.layer:
            hidden_states, entity_vectors = layer(hidden_states, attention_mask, entity_vectors, entity_mask, **more)
        return BaseModelOutput(last_hidden_state=hidden_states)


class _ErnieThuPreTrainedModel(BertPreTrainedModel):  # type: ignore[misc]
    """Base class of all ERNIE (Tsinghua) models."""

    config_class = ErnieThuConfig
    _can_record_outputs = {"hidden_states": ErnieThuLayer, "attentions": BertSelfAttention}  # noqa: RUF012 - as transformers has it

    def __init__(self, config: ErnieThuConfig) -> None:
        config.layer_kinds = [
            kind.value for kind in config.kinds()
        ]  # explicit, because a student with fewer layers selects from the list
        super().__init__(config)

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        """Return True: the text's attention is BERT's, which transformers can switch.

        transformers guesses this from the source of the class's module, and `_EntityAttention` would make it guess
        False, because that module ignores the switch. The guess is stored on the class BERT if a BERT was switched
        before, so that the result would depend on what else the process has done.
        """
        return True


class ErnieThuModel(_ErnieThuPreTrainedModel):
    """The encoder without a head: from token ids, and optionally entities, to hidden states of the text.

    Args:
        config: Sizes.
        add_pooling_layer: Whether to have BERT's tanh pooler.
    """

    _no_split_modules = ["ErnieThuLayer"]  # noqa: RUF012 - as transformers has it

    def __init__(self, config: ErnieThuConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = BertEmbeddings(config)
        self.encoder = _ErnieThuEncoder(config)
        self.pooler = BertPooler(config) if add_pooling_layer else None
        rows = config.entity_rows
        self.entity_table = nn.Embedding(rows + 1, config.entity_size, padding_idx=0) if rows else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the module of the word embeddings."""
        return self.embeddings.word_embeddings  # type: ignore[no-any-return]

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the module of the word embeddings."""
        self.embeddings.word_embeddings = value

    @merge_with_config_defaults  # type: ignore[untyped-decorator]
    @capture_outputs  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        entity_vectors: Tensor | None = None,
        entity_mask: Tensor | None = None,
        entity_ids: Tensor | None = None,
        **more: Any,
    ) -> BaseModelOutputWithPooling:
        """Compute the states of a text's tokens from token ids, and from its entities if given.

        Args:
            input_ids: Token ids, [B, S].
            attention_mask: 1 for real tokens, [B, S], or an additive mask, [B, 1, 1, S].
            token_type_ids: Segment of each token, [B, S].
            position_ids: Position of each token, [B, S]; default 0 to S - 1.
            inputs_embeds: Word embeddings instead of ids, [B, S, H].
            entity_vectors: Vectors of the entities at the first word piece of each mention, zeros elsewhere, [B, S, E].
            entity_mask: 1 at the first word piece of each mention, 0 elsewhere, [B, S]; [CLS] always counts as 1. By
                default 1 where the vector is not zero, see `mask_of_vectors`. Without vectors, no other token is an
                entity.
            entity_ids: For a model with a table, instead of vectors: the entity's number from 1 at the first word piece
                of each mention, 0 elsewhere, [B, S].
            **more: Passed to the attention function.

        Returns:
            States of the text [B, S, H], and the pooled state [B, H].
        """
        if entity_ids is not None:
            assert self.entity_table is not None
            entity_vectors, entity_mask = self.entity_table(entity_ids), entity_ids.to(self.dtype).clamp(0.0, 1.0)
        elif entity_vectors is not None and entity_mask is None:
            entity_mask = mask_of_vectors(entity_vectors)
        states = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds)
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=states, attention_mask=attention_mask)
        encoded = self.encoder(states, mask, entity_vectors=entity_vectors, entity_mask=entity_mask, **more)
        last = encoded.last_hidden_state
        return BaseModelOutputWithPooling(
            last_hidden_state=last, pooler_output=self.pooler(last) if self.pooler is not None else None
        )


# --- the encoder with the heads of BERT: each class is BERT's of the same suffix with another encoder -----------------


class ErnieThuForMaskedLM(BertForMaskedLM, _ErnieThuPreTrainedModel):  # type: ignore[misc]
    """ERNIE with the masked-LM head."""

    config_class = ErnieThuConfig

    def __init__(self, config: ErnieThuConfig) -> None:
        _ErnieThuPreTrainedModel.__init__(self, config)
        self.bert, self.cls = ErnieThuModel(config, add_pooling_layer=False), BertOnlyMLMHead(config)
        self.post_init()


class ErnieThuForPreTraining(BertForPreTraining, _ErnieThuPreTrainedModel):  # type: ignore[misc]
    """ERNIE with the text heads of its pre-training: masked LM and next sentence."""

    config_class = ErnieThuConfig

    def __init__(self, config: ErnieThuConfig) -> None:
        _ErnieThuPreTrainedModel.__init__(self, config)
        self.bert, self.cls = ErnieThuModel(config), BertPreTrainingHeads(config)
        self.post_init()


class ErnieThuForSequenceClassification(BertForSequenceClassification, _ErnieThuPreTrainedModel):  # type: ignore[misc]
    """ERNIE with a linear classification head on the pooled state.

    The entity-typing head of the authors is one without a bias.
    """

    config_class = ErnieThuConfig

    def __init__(self, config: ErnieThuConfig) -> None:
        _ErnieThuPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.bert, self.dropout = ErnieThuModel(config), _head_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()


class ErnieThuForTokenClassification(BertForTokenClassification, _ErnieThuPreTrainedModel):  # type: ignore[misc]
    """ERNIE with a linear head on every token."""

    config_class = ErnieThuConfig

    def __init__(self, config: ErnieThuConfig) -> None:
        _ErnieThuPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.bert, self.dropout = ErnieThuModel(config, add_pooling_layer=False), _head_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()


class ErnieThuForQuestionAnswering(BertForQuestionAnswering, _ErnieThuPreTrainedModel):  # type: ignore[misc]
    """ERNIE with a head that gives every token a score as the start and as the end of the answer."""

    config_class = ErnieThuConfig

    def __init__(self, config: ErnieThuConfig) -> None:
        _ErnieThuPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.bert = ErnieThuModel(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()


def _head_dropout(config: ErnieThuConfig) -> nn.Dropout:
    """Return the dropout before a classification head, at the configured rate."""
    rate = config.classifier_dropout
    return nn.Dropout(config.hidden_dropout_prob if rate is None else rate)


# transformers' Auto classes open ERNIE folders in this process
AutoConfig.register(ErnieThuConfig.model_type, ErnieThuConfig, exist_ok=True)
AutoTokenizer.register(ErnieThuConfig, BertTokenizer, exist_ok=True)
for _auto, _model in (
    (AutoModel, ErnieThuModel),
    (AutoModelForMaskedLM, ErnieThuForMaskedLM),
    (AutoModelForPreTraining, ErnieThuForPreTraining),
    (AutoModelForSequenceClassification, ErnieThuForSequenceClassification),
    (AutoModelForTokenClassification, ErnieThuForTokenClassification),
    (AutoModelForQuestionAnswering, ErnieThuForQuestionAnswering),
):
    _auto.register(ErnieThuConfig, _model, exist_ok=True)
