"""Rewrite ERNIE (Tsinghua), which has a text stream and an entity stream, for export with entities or without.

`_two_streams` is the adapter. With entities (`_EntityEncoder`), an input of the graph holds the entities' numbers in a
table that the graph contains, or their vectors, and both streams run at all positions. A position counts as an entity
if the input has one there; [CLS] always counts. The entity stream of the last layer is left out, because nothing reads
it.

Without entities (`_TextOnlyEncoder`), only the position of [CLS] counts as an entity, with a zero vector as in the
authors' training. Attention over a single key is the projection of its value, whatever the query, so that the entity
stream of a layer is one row [B, 1, E] and a few small linear layers: exactly what the whole model computes, not an
approximation. Up to the first layer with entities that row is zero, so that its contribution to this layer is a
constant.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import ADAPTERS
from pocketbert.core.types import Format, Layout
from pocketbert.export.adapters.lean import (
    AllRows,
    FirstRow,
    PostNormLayer,
    Shape,
    class_path,
    decompose_norms_and_segments,
    make_linear,
)
from pocketbert.export.adapters.mask_4d import MASK_VALUE, ExportPlan, Wrapped, wrap_model
from pocketbert.export.adapters.post_norm import bert_layer

_IDS = "entity_ids"
"""Input with the number of each entity, [B, L]; the other form has vectors, [B, L, E]."""


class _EntityStream(nn.Module):
    """Attention of one layer's entity stream. Its outputs are the entity states that the feed-forward part reads."""

    def __init__(self, attention: Any, first_row: bool, shape: Shape) -> None:
        """Reuse the entity attention of a transformers layer. A layer without it only clears states without an entity.

        With `first_row`, only the first token's entity state is computed. `shape` depends on the file format.
        """
        super().__init__()
        self.first_row, self.attends = first_row, hasattr(attention, "self_ent")
        if self.attends:
            own, out = attention.self_ent, attention.output_ent
            scaling = (own.query.out_features // own.heads) ** -0.5
            projections = (own.query, own.key, own.value, own.heads, scaling)
            self.attention = FirstRow(*projections, opaque=shape.opaque) if first_row else AllRows(*projections)
            self.dense, self.norm = out.dense, out.LayerNorm

    def forward(self, entities: Tensor, open_places: Tensor) -> Tensor:
        """Compute the layer's entity states, [B, L, E], or [B, 1, E] if only the first is read.

        `open_places` is 1 at positions that have an entity, [B, L]; at all others the states are zero.
        """
        rows = entities[:, :1] if self.first_row else entities
        if self.attends:
            closed = (1.0 - open_places[:, None, None, :]) * MASK_VALUE
            rows = self.norm(self.dense(self.attention(rows, entities, entities, closed)) + rows)
        return rows * open_places[:, : rows.shape[1], None]


class _EntityLayer(nn.Module):
    """An encoder layer with a text and an entity stream, computed for all rows or for the first one only."""

    def __init__(self, layer: Any, first_row: bool, last: bool, shape: Shape) -> None:
        """Reuse text and entity modules of a transformers layer.

        Args:
            layer: The layer of the transformers model.
            first_row: Whether only the first token's output is used; then only that is computed.
            last: Whether no later layer reads the entity states of this one; then they are not computed.
            shape: Settings of the rewritten layer that depend on the file format.
        """
        super().__init__()
        parts = bert_layer(layer)
        self.first_row, self.flat_ffn, self.last = first_row, shape.flat_ffn, last
        projections = (parts.query, parts.key, parts.value, parts.heads, parts.scaling)
        self.attention = FirstRow(*projections, opaque=shape.opaque) if first_row else AllRows(*projections)
        self.attention_out, self.attention_norm = parts.attention_out, parts.attention_norm
        self.up, self.act, self.down, self.output_norm = parts.up, parts.act, parts.down, parts.output_norm
        self.entities, self.up_entity = (
            _EntityStream(layer.attention, first_row and last, shape),
            layer.intermediate.dense_ent,
        )
        if not last:
            self.down_entity, self.entity_norm = layer.output.dense_ent, layer.output.LayerNorm_ent

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor, entities: Tensor, open_places: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the layer's new states of the text and of the entities.

        Args:
            hidden_states: States of the text, [B, L, H].
            attention_mask: Mask that is added to the attention scores of the text, [B, 1, 1, L].
            entities: States of the entities, [B, L, E].
            open_places: 1 at positions that have an entity, 0 at all others, whose entity states are ignored,
                [B, L].

        Returns:
            (States of the text, states of the entities). Those of the text are [B, L, H], or [B, 1, H] if
            only the first token is computed. Those of the entities are [B, L, E]; the last layer with
            entities returns `entities` unchanged, because no later layer reads them.
        """
        rows = hidden_states[:, :1] if self.first_row else hidden_states
        context = self.attention(rows, hidden_states, hidden_states, attention_mask)
        attended = self.attention_norm(self.attention_out(context) + rows)
        given = self.entities(entities, open_places)
        hidden = self.act(self.up(attended) + self.up_entity(given))
        states = self.output_norm(self._project(self.down, hidden) + attended)
        if self.last:
            return states, entities
        return states, self.entity_norm(self._project(self.down_entity, hidden) + given)

    def _project(self, dense: nn.Module, hidden: Tensor) -> Tensor:
        """Apply the second feed-forward projection. For ONNX, the states are flattened to [B * L, I] before it."""
        if not self.flat_ffn:
            return dense(hidden)  # type: ignore[no-any-return]
        return dense(hidden.flatten(0, 1)).view(*hidden.shape[:2], -1)  # type: ignore[no-any-return]


class _EntityEncoder(nn.Module):
    """All encoder layers with entities at every position, in place of the transformers encoder."""

    def __init__(self, encoder: Any, first_token: bool, shape: Shape) -> None:
        """Rewrite all layers of the loaded encoder; with `first_token`, the last one computes the first token only."""
        super().__init__()
        with_entities = [i for i, layer in enumerate(encoder.layer) if hasattr(layer.intermediate, "dense_ent")]
        end = len(encoder.layer) - 1
        # plain layers that follow read all rows of the last one with entities
        self.layer = nn.ModuleList(
            _EntityLayer(layer, first_token and i == end, i == with_entities[-1], shape)
            if i in with_entities
            else PostNormLayer(bert_layer(layer), first_token and i == end, shape)
            for i, layer in enumerate(encoder.layer)
        )

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor, entity_vectors: Tensor, entity_mask: Tensor, **_: Any
    ) -> BaseModelOutput:
        """Run all layers on text and entities, and return the last text states.

        Args:
            hidden_states: States of the text, [B, L, H].
            attention_mask: Added to the scores, [B, 1, 1, L].
            entity_vectors: Vectors of the entities, [B, L, E].
            entity_mask: 1 at positions that have an entity, [B, L]; [CLS] always counts as one.
        """
        first = entity_mask[:, :1] * 0.0 + 1.0  # [CLS]; not ones_like, which Core ML turns into an operation of its own
        open_places, entities = torch.cat([first, entity_mask[:, 1:]], 1), entity_vectors
        for layer in self.layer:
            if isinstance(layer, _EntityLayer):
                hidden_states, entities = layer(hidden_states, attention_mask, entities, open_places)
            else:
                hidden_states = layer(hidden_states, attention_mask)
        return BaseModelOutput(last_hidden_state=hidden_states)


class _WithIds(Wrapped):
    """The exported model with the usual inputs of a text and `entity_ids`, the number of the entity at each token."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, entity_ids: Tensor
    ) -> tuple[Tensor, ...]:
        """Run the model. All inputs are [B, L]."""
        return self.run(attention_mask, input_ids=input_ids, token_type_ids=token_type_ids, entity_ids=entity_ids)


class _WithVectors(Wrapped):
    """The exported model with the usual inputs of a text and `entity_vectors`, the entity's vector at each token."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, entity_vectors: Tensor
    ) -> tuple[Tensor, ...]:
        """Run the model. Inputs are [B, L], entity vectors [B, L, E]."""
        more = {"token_type_ids": token_type_ids, "entity_vectors": entity_vectors}
        return self.run(attention_mask, input_ids=input_ids, **more)


_CODE = "pocketbert.distill.students.ernie_thu"
_LAYER = f"{_CODE}.ErnieThuLayer"
_FIRST_TOKEN = f"{_CODE}.ErnieThuForSequenceClassification"


def _two_streams(model: Any, plan: ExportPlan) -> nn.Module:
    """Wrap an ERNIE (Tsinghua) model for export, without entities or with entity ids or vectors as an input.

    Args:
        model: One of the classes of ERNIE (Tsinghua) in eval mode. **It is changed in place.**
        plan: Settings of the export; the form of its family decides whether there are entities.

    Returns:
        The module, in eval mode.

    Raises:
        InputError: If the plan asks for another layout than ``plain``, or a layer is not ERNIE's own.
    """
    if plan.layout is not Layout.PLAIN:
        what = f"'{plan.layout}' has no rewrite for the encoder of '{model.config.model_type}'."
        raise InputError(Problem("export.coreml.layout", what, "Set export.coreml.layout: plain."))
    encoder = model.base_model.encoder
    if strange := [class_path(layer) for layer in encoder.layer if class_path(layer) != _LAYER]:
        raise InputError(Problem("model", f"has layers that no adapter knows: {strange[0]}."))
    model.set_attn_implementation("eager")
    shape = Shape(flat_ffn=plan.format is Format.ONNX, opaque=plan.format is Format.TFLITE)
    first_token, wrapper = class_path(model) == _FIRST_TOKEN, None
    if plan.family.form is None:
        model.base_model.encoder = _TextOnlyEncoder(encoder, first_token, shape)
        model.base_model.entity_table = None
    else:
        model.base_model.encoder = _EntityEncoder(encoder, first_token, shape)
        wrapper = _WithIds if _IDS in plan.family.inputs else _WithVectors
    if plan.format is Format.TFLITE:
        decompose_norms_and_segments(model)
    return wrap_model(model, plan, wrapper=wrapper)


class _FirstTokenEntity(nn.Module):
    """The entity state [B, 1, E] that a layer's feed-forward part reads if [CLS] is the only entity."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.attends = hasattr(layer.attention, "self_ent")
        if self.attends:
            value, out = layer.attention.self_ent.value, layer.attention.output_ent
            self.projection, self.norm = _fuse(out.dense, value), out.LayerNorm

    def forward(self, entity: Tensor) -> Tensor:
        """Compute the entity state by attention to itself, which is a linear projection.

        In a layer without entity attention the state is returned unchanged.
        """
        return self.norm(self.projection(entity) + entity) if self.attends else entity


class _FusedLayer(nn.Module):
    """An encoder layer whose only entity is that of [CLS], computed for all text rows or for the first one only."""

    def __init__(self, layer: Any, first_row: bool, first: bool, last: bool, shape: Shape) -> None:
        """Reuse the modules of a transformers layer. Entity biases and constant entity states move to other biases.

        Args:
            layer: The layer of the transformers model.
            first_row: Whether only the first token's output is used; then only that is computed.
            first: Whether it is the first layer with entities, whose entity state is constant.
            last: Whether no later layer reads the entity state of this one; then it is not computed.
            shape: Settings of the rewritten layer that depend on the file format.
        """
        super().__init__()
        parts = bert_layer(layer)
        self.first_row, self.flat_ffn, self.last = first_row, shape.flat_ffn, last
        projections = (parts.query, parts.key, parts.value, parts.heads, parts.scaling)
        self.attention = FirstRow(*projections, opaque=shape.opaque) if first_row else AllRows(*projections)
        self.attention_out, self.attention_norm = parts.attention_out, parts.attention_norm
        self.up, self.act, self.down = parts.up, parts.act, parts.down
        self.output_norm = parts.output_norm
        self.entity, self.up_entity = _FirstTokenEntity(layer), layer.intermediate.dense_ent
        self.down_entity, self.entity_norm = layer.output.dense_ent, layer.output.LayerNorm_ent
        self.constant = nn.Buffer(torch.zeros(0))
        """Added to the first row where the entity does not depend on the text."""
        with torch.no_grad():
            # the entities of all other tokens are zero, so that this bias is every token's
            self.up.bias.add_(self.up_entity.bias)
            self.up_entity.bias = None
            if first:
                given = self.entity(self.up_entity.weight.new_zeros(1, 1, self.up_entity.in_features))
                self.down_entity.bias.add_(given.flatten())
                if self.entity.attends:
                    self.constant = nn.Buffer(self.up_entity(given).flatten())
                del self.entity, self.up_entity
        if last:
            del self.down_entity, self.entity_norm

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor, entity: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Run the layer on the text states and the entity state of [CLS].

        Args:
            hidden_states: States of the text, [B, L, H].
            attention_mask: Added to attention scores, [B, 1, 1, L].
            entity: Entity state of [CLS], [B, 1, E]; None in the first layer with entities.

        Returns:
            New states of the text, [B, L, H], or [B, 1, H] of the first token, and the entity state for the next layer,
            [B, 1, E]; None in the last layer with entities.
        """
        rows = hidden_states[:, :1] if self.first_row else hidden_states
        context = self.attention(rows, hidden_states, hidden_states, attention_mask)
        attended = self.attention_norm(self.attention_out(context) + rows)
        inner = self.up(attended)
        given = None if entity is None else self.entity(entity)
        if given is not None:
            inner = self._add_to_first(inner, self.up_entity(given))
        elif self.constant.numel():
            inner = self._add_to_first(inner, self.constant)
        hidden = self.act(inner)
        change = self.down(hidden.flatten(0, 1)).view(attended.shape) if self.flat_ffn else self.down(hidden)
        states = self.output_norm(change + attended)
        if self.last:
            return states, None
        own = self.down_entity(hidden[:, :1])
        return states, self.entity_norm(own if given is None else own + given)

    def _add_to_first(self, inner: Tensor, change: Tensor) -> Tensor:
        """Add `change` to the first row of the feed-forward input."""
        if self.first_row:
            return inner + change
        return torch.cat([inner[:, :1] + change, inner[:, 1:]], 1)


class _TextOnlyEncoder(nn.Module):
    """All encoder layers for texts without entities, in place of the transformers encoder."""

    def __init__(self, encoder: Any, first_token: bool, shape: Shape) -> None:
        """Rewrite all layers of the loaded encoder; with `first_token`, the last one computes the first token only."""
        super().__init__()
        with_entities = [i for i, layer in enumerate(encoder.layer) if hasattr(layer.intermediate, "dense_ent")]
        end = len(encoder.layer) - 1
        self.layer = nn.ModuleList(
            _FusedLayer(layer, first_token and i == end, i == with_entities[0], i == with_entities[-1], shape)
            if i in with_entities
            else PostNormLayer(bert_layer(layer), first_token and i == end, shape)
            for i, layer in enumerate(encoder.layer)
        )

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, **_: Any) -> BaseModelOutput:
        """Run all layers on hidden states [B, L, H] and an additive mask [B, 1, 1, L]."""
        entity: Tensor | None = None
        for layer in self.layer:
            if isinstance(layer, _FusedLayer):
                hidden_states, entity = layer(hidden_states, attention_mask, entity)
            else:
                hidden_states = layer(hidden_states, attention_mask)
        return BaseModelOutput(last_hidden_state=hidden_states)


def _fuse(second: nn.Linear, first: nn.Linear) -> nn.Linear:
    """Return one linear layer that computes two linear layers, `first` and then `second`."""
    return make_linear(second.weight @ first.weight, second.weight @ first.bias + second.bias)


ADAPTERS.add("ernie-thu", _two_streams)
