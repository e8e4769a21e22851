"""ERNIE (Tsinghua) with entities: both streams at all places, with masks as arithmetic.

The graph takes the entities' numbers in a table that it holds, or their vectors. Which places are open follows from that input;
that of [CLS] is open in any case. The entity stream of the last layer has no reader and is left out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from pocketbert.export.adapters.lean.attention import AllRows, FirstRow
from pocketbert.export.adapters.lean.layers import PostNormLayer, Shape
from pocketbert.export.adapters.mask_4d import MASKED, Wrapped
from pocketbert.export.adapters.post_norm_parts import bert_layer

IDS, VECTORS = "entity_ids", "entity_vectors"
"""Inputs that name the entities: [B, L] and [B, L, E]."""


class EntityStream(nn.Module):
    """What the feed-forward part of a layer reads of the entities."""

    def __init__(self, attention: Any, first_row: bool, shape: Shape) -> None:
        super().__init__()
        self.first_row, self.attends = first_row, hasattr(attention, "self_ent")
        if self.attends:
            own, out = attention.self_ent, attention.output_ent
            scaling = (own.query.out_features // own.heads) ** -0.5
            projections = (own.query, own.key, own.value, own.heads, scaling)
            self.attention = FirstRow(*projections, opaque=shape.opaque) if first_row else AllRows(*projections)
            self.dense, self.norm = out.dense, out.LayerNorm

    def forward(self, entities: Tensor, open_places: Tensor) -> Tensor:
        """Attend, [B, L, E] and the mask [B, L] to [B, L, E], or to [B, 1, E] where the first row is read."""
        rows = entities[:, :1] if self.first_row else entities
        if self.attends:
            closed = (1.0 - open_places[:, None, None, :]) * MASKED
            rows = self.norm(self.dense(self.attention(rows, entities, entities, closed)) + rows)
        return rows * open_places[:, : rows.shape[1], None]


class EntityLayer(nn.Module):
    """A layer that knows entities, for all rows or for the first one only."""

    def __init__(self, layer: Any, first_row: bool, last: bool, shape: Shape) -> None:
        """Take over the modules of a stock layer.

        Args:
            layer: The stock layer.
            first_row: Whether only the first row of its output is read.
            last: Whether no layer reads its entities.
            shape: How to write it.
        """
        super().__init__()
        parts = bert_layer(layer)
        self.first_row, self.flat_ffn, self.last = first_row, shape.flat_ffn, last
        projections = (parts.query, parts.key, parts.value, parts.heads, parts.scaling)
        self.attention = FirstRow(*projections, opaque=shape.opaque) if first_row else AllRows(*projections)
        self.attention_out, self.attention_norm = parts.attention_out, parts.attention_norm
        self.up, self.act, self.down, self.output_norm = parts.up, parts.act, parts.down, parts.output_norm
        self.entities, self.up_entity = (
            EntityStream(layer.attention, first_row and last, shape),
            layer.intermediate.dense_ent,
        )
        if not last:
            self.down_entity, self.entity_norm = layer.output.dense_ent, layer.output.LayerNorm_ent

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor, entities: Tensor, open_places: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run the layer.

        Args:
            hidden_states: [B, L, H].
            attention_mask: Added to attention scores, [B, 1, 1, L].
            entities: [B, L, E].
            open_places: 1 where an entity is, [B, L].

        Returns:
            Text [B, L, H], or [B, 1, H] of a first-row layer, and the entities of the next layer [B, L, E].
        """
        rows = hidden_states[:, :1] if self.first_row else hidden_states
        context = self.attention(rows, hidden_states, hidden_states, attention_mask)
        attended = self.attention_norm(self.attention_out(context) + rows)
        given = self.entities(entities, open_places)
        hidden = self.act(self.up(attended) + self.up_entity(given))
        states = self.output_norm(self._back(self.down, hidden) + attended)
        if self.last:
            return states, entities
        return states, self.entity_norm(self._back(self.down_entity, hidden) + given)

    def _back(self, dense: nn.Module, hidden: Tensor) -> Tensor:
        if not self.flat_ffn:
            return dense(hidden)  # type: ignore[no-any-return]
        return dense(hidden.flatten(0, 1)).view(*hidden.shape[:2], -1)  # type: ignore[no-any-return]


class EntityEncoder(nn.Module):
    """The layers, in the place of the stock encoder."""

    def __init__(self, encoder: Any, first_token: bool, shape: Shape) -> None:
        super().__init__()
        knowing = [i for i, layer in enumerate(encoder.layer) if hasattr(layer.intermediate, "dense_ent")]
        end = len(encoder.layer) - 1
        # where plain layers follow, they read all rows of the last one that knows entities
        self.layer = nn.ModuleList(
            EntityLayer(layer, first_token and i == end, i == knowing[-1], shape)
            if i in knowing
            else PostNormLayer(bert_layer(layer), first_token and i == end, shape)
            for i, layer in enumerate(encoder.layer)
        )

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor, entity_vectors: Tensor, entity_mask: Tensor, **_: Any
    ) -> BaseModelOutput:
        """Run all layers, [B, L, H] with an additive mask [B, 1, 1, L], vectors [B, L, E] and their mask [B, L]."""
        first = entity_mask[:, :1] * 0.0 + 1.0  # [CLS]; not ones_like, which Core ML turns into an operation of its own
        open_places, entities = torch.cat([first, entity_mask[:, 1:]], 1), entity_vectors
        for layer in self.layer:
            if isinstance(layer, EntityLayer):
                hidden_states, entities = layer(hidden_states, attention_mask, entities, open_places)
            else:
                hidden_states = layer(hidden_states, attention_mask)
        return BaseModelOutput(last_hidden_state=hidden_states)


class WithIds(Wrapped):
    """Inputs of every text, and the number of each entity."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, entity_ids: Tensor
    ) -> tuple[Tensor, ...]:
        """Run the model; all inputs are [B, L]."""
        return self.run(attention_mask, input_ids=input_ids, token_type_ids=token_type_ids, entity_ids=entity_ids)


class WithVectors(Wrapped):
    """Inputs of every text, and the vector of each entity."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, entity_vectors: Tensor
    ) -> tuple[Tensor, ...]:
        """Run the model; inputs are [B, L], and [B, L, E] of vectors."""
        more = {"token_type_ids": token_type_ids, "entity_vectors": entity_vectors}
        return self.run(attention_mask, input_ids=input_ids, **more)
