"""Rewrite ModernBERT for export: layers with fewer operations, a padding mask and a padding-and-window mask.

`_with_two_masks` is the adapter; `_lean_layer` rewrites a layer to `_GatedLayer`, or to `FirstRowGatedLayer` if the
head reads only the first token. Rotary positions are computed in the graph (`_RotaryAngles`), or for Core ML stored as
a table (`_RotaryTable`); both halves of a table are equal, so only one is kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import ADAPTERS, LAYER_PARTS, LayerParts
from pocketbert.core.predict.predictor import split_heads
from pocketbert.core.predict.sentence_settings import PoolingKind
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, Layout
from pocketbert.export.adapters.lean import Shape, find_layer_parts, find_layers, make_linear, rewrite_layers
from pocketbert.export.adapters.mask_4d import MASK_VALUE, ExportPlan, sentence_pooling
from pocketbert.export.adapters.pooling import pool_states


class _RotaryAngles(nn.Module):
    """Cosines and sines of rotary positions, computed in the graph for any length.

    Args:
        rotary: The transformers module, which has a buffer ``KIND_inv_freq`` for each kind of layer.
        kinds: Kinds of layers, such as ``full_attention``.
    """

    def __init__(self, rotary: Any, kinds: tuple[str, ...]) -> None:
        super().__init__()
        self.kinds = kinds
        for kind in kinds:
            self.register_buffer(kind, getattr(rotary, f"{kind}_inv_freq").detach().float(), persistent=False)

    def forward(self, length: int) -> dict[str, tuple[Tensor, Tensor]]:
        """Return (cosines, sines), each [1, 1, L, head size / 2], for each kind of layer.

        Args:
            length: Number of tokens L, which may be symbolic.
        """
        return {kind: self._rows(kind, torch.arange(length)) for kind in self.kinds}

    def _rows(self, kind: str, places: Tensor) -> tuple[Tensor, Tensor]:
        angles = (places[:, None].float() * self.get_buffer(kind))[None, None]
        return angles.cos(), angles.sin()


class _RotaryTable(nn.Module):
    """Cosines and sines of rotary positions, read from stored tables.

    They are not computed in the graph, because in fp16, in which Core ML computes, the angle of the 300th position is
    off by a tenth.

    Args:
        angles: Computes the tables.
        rows: Number of positions.
    """

    def __init__(self, angles: _RotaryAngles, rows: int) -> None:
        super().__init__()
        self.kinds = angles.kinds
        for kind, tables in angles(rows).items():
            for name, table in zip(("cos", "sin"), tables, strict=True):
                self.register_buffer(f"{kind}_{name}", table.detach().clone(), persistent=False)

    def forward(self, length: int) -> dict[str, tuple[Tensor, Tensor]]:
        """Return (cosines, sines) of the first `length` positions by kind of layer; see `_RotaryAngles.forward`."""
        return {
            kind: (self.get_buffer(f"{kind}_cos")[:, :, :length], self.get_buffer(f"{kind}_sin")[:, :, :length])
            for kind in self.kinds
        }


def _rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions: rotate each pair of numbers by its position's angle, [B, H, L, d] to [B, H, L, d].

    Source: Su et al. 2021 (RoFormer, arXiv 2104.09864), section 3.4.2; the pairs are number i and number i + d / 2.
    """
    first, second = states.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
"""Names of the two kinds of layers in config.json."""


def _with_two_masks(model: Any, plan: ExportPlan) -> nn.Module:
    """Wrap a ModernBERT for export, with masks for global and local layers, named inputs and tensor outputs.

    Args:
        model: A transformers model with a head in eval mode; changed in place.
        plan: Settings of the export.

    Returns:
        The module, in eval mode.

    Raises:
        InputError: If the plan's layout is not possible for the model, or its layers are not ModernBERT's.
    """
    if plan.layout is Layout.ANE:
        what = f"'ane' has no rewrite for the encoder of '{model.config.model_type}' ({type(model).__name__})."
        raise InputError(Problem("export.coreml.layout", what, "Set export.coreml.layout: plain."))
    if find_layers(model.base_model, plan.family, find_layer_parts(plan.family))[1] is None:
        kinds = sorted({type(layer).__name__ for layer in model.base_model.layers})
        what = f"{type(model).__name__} has layers of the classes {', '.join(kinds)}; allowed: ModernBertEncoderLayer."
        raise InputError(Problem("model", what, "Register an adapter for these with register_adapter."))
    model.set_attn_implementation("eager")
    return _TwoMasks(rewrite_layers(model, plan.family, plan.format), plan).eval()


class _TwoMasks(nn.Module):
    """A ModernBERT with `input_ids` and `attention_mask` as inputs and a tuple of tensors as output."""

    def __init__(self, model: Any, plan: ExportPlan) -> None:
        """Reuse a model with rewritten layers.

        Rotary positions are computed in the graph, or for Core ML stored as tables.
        """
        super().__init__()
        self.model, self.task, self.outputs, self.pooling = model, plan.task, plan.outputs, sentence_pooling(plan)
        config = model.config
        self.window = config.local_attention // 2
        angles = _RotaryAngles(model.base_model.rotary_emb, tuple(sorted(set(config.layer_types))))
        table = plan.format is Format.COREML
        self.rotary = _RotaryTable(angles, config.max_position_embeddings) if table else angles
        kind = getattr(config, "classifier_pooling", PoolingKind.CLS)
        self.classified = PoolingKind(kind)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Run encoder and head on inputs [B, L], and return the task's outputs in order."""
        states = self._encode(input_ids, attention_mask)
        if self.pooling is not None:
            return states, self.pooling(states, attention_mask)
        if "last_hidden_state" in self.outputs:
            return (states,)
        if self.task.name is TaskName.QUESTION_ANSWERING:
            both: Tensor = self.model.classifier(self.model.head(states))
            return tuple(part.squeeze(-1) for part in torch.split(both, 1, -1))
        if type(self.model).__name__.endswith("ForSequenceClassification"):
            states = pool_states(states, attention_mask, self.classified)
        decoder = getattr(self.model, "decoder", None)
        logits = (self.model.classifier if decoder is None else decoder)(self.model.head(states))
        return tuple(split_heads(logits, self.task).values()) if self.task.heads else (logits,)

    def _encode(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Run embeddings and layers, and return the last hidden states, [B, L, H] or [B, 1, H]."""
        base, masks = self.model.base_model, self._masks(attention_mask)
        positions = self.rotary(input_ids.shape[1])
        states: Tensor = base.embeddings(input_ids)
        for layer in base.layers:
            states = layer(states, masks[layer.attention_type], positions[layer.attention_type])
        return base.final_norm(states)  # type: ignore[no-any-return]

    def _masks(self, attention_mask: Tensor) -> dict[str, Tensor]:
        """Return the masks that are added to attention scores, by kind of layer.

        Layers with full attention have [B, 1, 1, L], layers with windows [B, 1, L, L].
        """
        real = attention_mask[:, None, None, :].to(torch.float32)
        places = torch.arange(attention_mask.shape[1], dtype=torch.float32)
        distance = (places[:, None] - places[None, :]).abs()
        band = (self.window + 1 - distance).clamp(0, 1)[None, None]
        return {_GLOBAL: (1.0 - real) * MASK_VALUE, _LOCAL: (1.0 - real * band) * MASK_VALUE}


ADAPTERS.add("two-masks", _with_two_masks)


class _GatedLayer(nn.Module):
    """A ModernBERT layer for all tokens. The scale of the scores is multiplied into the query rows of its weights."""

    def __init__(self, layer: Any) -> None:
        """Reuse the modules of a transformers layer. The query rows of its fused projection are scaled in place."""
        super().__init__()
        own = layer.attn
        self.attention_type, self.depth = layer.attention_type, own.head_dim
        self.attn_norm, self.qkv, self.attention_out = layer.attn_norm, own.Wqkv, own.Wo
        self.mlp_norm, self.up, self.act, self.down = layer.mlp_norm, layer.mlp.Wi, layer.mlp.act, layer.mlp.Wo
        width = self.qkv.in_features
        with torch.no_grad():
            for parameter in self.qkv.parameters():
                parameter[:width].mul_(own.head_dim**-0.5)

    def forward(self, states: Tensor, mask: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
        """Run the encoder layer: attention with rotary positions, then the gated feed-forward part.

        Args:
            states: States of the tokens, [B, L, H].
            mask: Added to the scores, [B, 1, 1 or L, L].
            positions: Cosines and sines, each [1, 1, L, head size / 2].

        Returns:
            New states, [B, L, H].
        """
        width = states.shape[-1]
        paired, value = self.qkv(self.attn_norm(states)).split([2 * width, width], -1)
        # queries and keys side by side: both are rotated by the same angles
        query, key = _rotate(self._heads(paired), *positions).chunk(2, 1)
        weights = torch.softmax(torch.matmul(query, key.transpose(2, 3)) + mask, -1)
        context = torch.matmul(weights, self._heads(value)).transpose(1, 2).flatten(2)
        return self._feed_forward(states + self.attention_out(context))

    def _feed_forward(self, states: Tensor) -> Tensor:
        """Run the gated feed-forward part, [B, L, H] to [B, L, H]."""
        inner, gate = self.up(self.mlp_norm(states)).chunk(2, -1)
        return states + self.down(self.act(inner) * gate)  # type: ignore[no-any-return]

    def _heads(self, states: Tensor) -> Tensor:
        batch, length, width = states.shape
        return states.view(batch, length, width // self.depth, self.depth).transpose(1, 2)


class FirstRowGatedLayer(_GatedLayer):
    """The last ModernBERT layer for the first token only: keys are computed for all tokens, but only one query.

    The mean of V x under weights that sum to 1 is V (mean of x), so that no values are computed. A key is rotated by
    its own position, so that keys cannot be avoided in the same way; see `pocketbert.export.adapters.lean.FirstRow`.
    """

    def __init__(self, layer: Any) -> None:
        """Reuse a transformers layer's modules. Its fused projection is split into query, key and value."""
        super().__init__(layer)
        fused, width = self.qkv, self.qkv.in_features
        del self.qkv
        self.query, self.key, self.value = (_part(fused, i * width, width) for i in range(3))
        own = torch.eye(width // self.depth, dtype=fused.weight.dtype).repeat_interleave(self.depth, 1)
        self.own = nn.Buffer(own)
        """1 where a column belongs to the row's head, [heads, heads * depth]."""

    def forward(self, states: Tensor, mask: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
        """Run the encoder layer for the first token, [B, L, H] to [B, 1, H]; see `_GatedLayer.forward`."""
        normed = self.attn_norm(states)
        query = self._heads(self.query(normed[:, :1]))  # the first position's angle is 0
        key = _rotate(self._heads(self.key(normed)), *positions)
        weights = torch.softmax(torch.matmul(query, key.transpose(2, 3)) + mask[:, :, :1], -1)
        means = torch.matmul(weights.squeeze(2), normed)
        context = (self.value(means) * self.own).sum(1, keepdim=True)
        return self._feed_forward(states[:, :1] + self.attention_out(context))


def _part(fused: nn.Linear, start: int, rows: int) -> nn.Linear:
    """Return a linear layer that has `rows` output rows of the fused layer, from row `start` on."""
    own = slice(start, start + rows)
    return make_linear(fused.weight[own], fused.bias if fused.bias is None else fused.bias[own])


def _lean_layer(layer: Any, first_row: bool, shape: Shape) -> nn.Module:
    """Rewrite a ModernBertEncoderLayer to a layer with fewer operations, for all tokens or the first one only.

    Args:
        layer: The layer of the transformers model; its modules are reused and changed.
        first_row: Whether only the first token's output is used; then only that is computed.
        shape: Not used: the layer is the same in every format.
    """
    return FirstRowGatedLayer(layer) if first_row else _GatedLayer(layer)


LAYER_PARTS.add(
    "modernbert",
    LayerParts("transformers.models.modernbert.modeling_modernbert.ModernBertEncoderLayer", lean=_lean_layer),
)
