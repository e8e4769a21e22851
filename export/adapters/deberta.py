"""Rewrite the encoders of DeBERTa v1, v2 and v3 for export, without a gather of relative-position scores.

`_disentangled` is the adapter. Disentangled attention (He et al. 2021, DeBERTa) adds scores of content and of position.
The position scores of a pair of tokens depend only on their distance i - j, so the relative table is looked up once for
each distance (`Distances`), and not for each pair: query i times the tables of all distances gives row i of a matrix
[L, 2 L], in which the needed entries lie on a diagonal. A slice of the flattened matrix turns diagonals into columns
(`shift_diagonals`). The last layer computes only the first token if the head reads nothing else
(`_DisentangledFirstRow`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import ADAPTERS
from pocketbert.core.types import Format, Layout
from pocketbert.export.adapters.ane import rewrite_channels_first
from pocketbert.export.adapters.lean import (
    AllRows,
    Parts,
    PostNormLayer,
    Shape,
    class_path,
    decompose_norms_and_segments,
    make_linear,
)
from pocketbert.export.adapters.mask_4d import MASK_VALUE, ExportPlan, wrap_model


class Distances(nn.Module):
    """The rows of the relative-position tables that belong to each distance i - j of query i and key j."""

    def __init__(self, rows: Tensor, opaque: bool) -> None:
        """Store the table row of each distance, once from the largest distance down and once from the smallest up.

        Args:
            rows: Table row of each distance from -R to R, [2 R + 1]. R is larger than the longest input, because
                torch.export would treat an input of length R as a special case.
            opaque: Whether to add a zero that is computed from the inputs. Without it, converters for fixed lengths
                would look the rows up in advance, and store every table once for each length, in fp32.
        """
        super().__init__()
        self.largest, self.opaque = len(rows) // 2, opaque
        self.falling = nn.Buffer(rows.flip(0)[:-1].to(torch.int32).contiguous())
        """Rows of the distances R to 1 - R."""
        self.rising = nn.Buffer(rows[:-1].to(torch.int32).contiguous())
        """Rows of the distances -R to R - 1."""

    def forward(self, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the table rows of all distances that occur in a text of the mask's length.

        Args:
            mask: Added to the scores, [B, 1, 1, L], nowhere above 0.

        Returns:
            Rows of the distances L to 1 - L, [2 L]; of the distances -L to L - 1, [2 L]; and of the distances between
            the first token and each token, [L].
        """
        length = mask.shape[-1]
        zero = torch.relu(mask[0, 0, 0, :1]).to(torch.int32) if self.opaque else 0
        start, end = self.largest - length, self.largest + length
        falling = self.falling[start:end] + zero
        return falling, self.rising[start:end] + zero, falling[length:]


class _DisentangledRows(nn.Module):
    """Disentangled attention of every token: content to content, content to position, position to content.

    It uses the projections of `parts`, and multiplies the scale of the scores into the query's weights, in place.
    """

    def __init__(self, parts: Parts, keys: Tensor | None, queries: Tensor | None) -> None:
        """Reuse a layer's projections and the projected relative-position tables.

        Args:
            parts: Modules of the layer.
            keys: Table of the positions, projected as keys, [rows, heads * depth]; None if the model has no scores of
                content to position.
            queries: Table of the positions, projected as queries, [rows, heads * depth]; None if the model has no
                scores of position to content.
        """
        super().__init__()
        self.content = AllRows(parts.query, parts.key, parts.value, parts.heads, parts.scaling)
        self.keys, self.queries = _table(keys), _table(None if queries is None else queries * parts.scaling)

    def forward(self, states: Tensor, mask: Tensor, rows: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Compute the attention output of every token.

        Args:
            states: States of the tokens, [B, L, H].
            mask: Added to the scores, [B, 1, 1, L].
            rows: Rows of the relative-position table for all distances, from `Distances`.

        Returns:
            The context, with the heads next to each other, [B, L, heads * depth].
        """
        content = self.content
        query = content.split(content.query(states))
        key, value = content.split(content.key(states)), content.split(content.value(states))
        scores = torch.matmul(query, key.transpose(2, 3))
        if self.keys is not None:
            scores = scores + shift_diagonals(torch.matmul(query, self._heads(self.keys(rows[0]))))
        if self.queries is not None:
            scores = scores + shift_diagonals(torch.matmul(key, self._heads(self.queries(rows[1])))).transpose(2, 3)
        weights = torch.softmax(scores + mask, -1)
        return torch.matmul(weights, value).transpose(1, 2).flatten(2)

    def _heads(self, table: Tensor) -> Tensor:
        """Split a position table into heads, [n, heads * depth] to [1, heads, depth, n]."""
        count, width = table.shape
        heads = self.content.heads
        return table.view(1, count, heads, width // heads).permute(0, 2, 3, 1)


class _DisentangledFirstRow(nn.Module):
    """Disentangled attention of the first token only. Values of the other tokens are not computed.

    The score of key j is (q + Q_j)·k_j + q·K_j, where K and Q are the tables' rows for the distance -j.
    """

    def __init__(self, parts: Parts, keys: Tensor | None, queries: Tensor | None) -> None:
        """Reuse a layer's projections and position tables; see `_DisentangledRows`."""
        super().__init__()
        self.content = AllRows(parts.query, parts.key, parts.value, parts.heads, parts.scaling)
        self.keys, self.queries = _table(keys), _table(None if queries is None else queries * parts.scaling)
        depth = parts.value.out_features // parts.heads
        self.own = nn.Buffer(torch.eye(parts.heads, dtype=parts.value.weight.dtype).repeat_interleave(depth, 1))
        """1 where a column belongs to the row's head, [heads, heads * depth]."""

    def forward(self, states: Tensor, mask: Tensor, rows: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Compute the attention output of the first token, [B, 1, heads * depth].

        Arguments are those of `_DisentangledRows.forward`; only the third entry of `rows` is read.
        """
        query, key = self.content.query(states[:, :1]), self.content.key(states)
        products = key * query if self.queries is None else key * (query + self.queries(rows[2]))
        if self.keys is not None:
            products = products + query * self.keys(rows[2])
        batch, length, width = products.shape
        heads = self.content.heads
        scores = products.view(batch, length, heads, width // heads).sum(-1).transpose(1, 2)
        weights = torch.softmax(scores + mask[:, 0], -1)
        context: Tensor = self.content.value(torch.matmul(weights, states))
        return (context * self.own).sum(1, keepdim=True)


def shift_diagonals(products: Tensor) -> Tensor:
    """Turn scores per distance, [.., L, 2 L], into scores per pair of tokens, [.., L, L].

    Args:
        products: Scores per distance, [B, heads, L, 2 L]; column c of row i is the score of token i with token i + c -
            L.

    Returns:
        Scores per pair, [B, heads, L, L]: column j of row i is the score of token i with token j.
    """
    batch, heads, length, _ = products.shape
    flat = products.reshape(batch, heads, -1)[..., length:]
    # not -1: torch.export cannot prove for every range of lengths that the quotient is whole
    return flat.reshape(batch, heads, length, 2 * length - 1)[..., :length]


def _table(rows: Tensor | None) -> nn.Embedding | None:
    """Return an embedding table with these rows, or None if there are none."""
    if rows is None:
        return None
    made = nn.Embedding(rows.shape[0], rows.shape[1], device="meta")
    made.weight = nn.Parameter(rows.detach().contiguous())
    return made


_Tables = tuple[Tensor | None, Tensor | None]
"""Projected positions as keys and as queries of a layer, each [rows, heads * depth], or None if it has no such term."""


def _disentangled(model: Any, plan: ExportPlan) -> nn.Module:
    """Rewrite a DeBERTa model for export and wrap it with named inputs and plain tensor outputs.

    Args:
        model: A transformers model with a head in eval mode; it is changed in place.
        plan: Settings of the export.

    Returns:
        A module with explicit inputs and tensor outputs, in eval mode.

    Raises:
        InputError: If the model has layers or settings that the rewritten layers cannot compute, or the plan asks for
            the layout ``ane``.
    """
    if plan.layout is Layout.ANE:
        rewrite_channels_first(model, plan.family)  # raises InputError: nothing is registered for the family
    base = getattr(model, "base_model", model)
    read_layer = _find_version(base)
    with torch.no_grad():
        relative = base.encoder.get_rel_embedding()
        layers = [read_layer(layer, relative) for layer in base.encoder.layer]
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if class_path(child) == _NORM:
                    setattr(parent, name, _plain_norm(child))
        only_first = type(model).__name__ == f"{plan.family.classes}ForSequenceClassification"
        base.encoder = _LeanEncoder(base, layers, only_first, plan.format)
        if hasattr(model, "lm_predictions"):
            model.lm_predictions.lm_head = _TiedHead(model.lm_predictions.lm_head, base.embeddings.word_embeddings)
    if plan.format is Format.TFLITE:
        decompose_norms_and_segments(model)
    base.embeddings = _MaskedEmbeddings(base.embeddings, masks=base.encoder.conv is not None)
    return wrap_model(model, plan)


class _MaskedEmbeddings(nn.Module):
    """The transformers embeddings; if the model has a convolution, the embeddings of padded tokens become zeros."""

    def __init__(self, embeddings: nn.Module, masks: bool) -> None:
        super().__init__()
        self.embeddings, self.masks = embeddings, masks
        self.word_embeddings = embeddings.word_embeddings  # the fill-mask head takes it from here

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor, **_: Any) -> Tensor:
        """Look up the embeddings of the tokens; if the model has a convolution, set those of padding to zeros.

        Args:
            input_ids: Token ids, [B, L].
            token_type_ids: Segment ids, [B, L]; not read if the model has no segments.
            mask: Added to attention scores, [B, 1, 1, L].

        Returns:
            The embeddings, [B, L, H].
        """
        states: Tensor = self.embeddings(input_ids=input_ids, token_type_ids=token_type_ids)
        return states * (1.0 - mask[:, 0, 0, :, None] / MASK_VALUE) if self.masks else states


class _TiedHead(nn.Module):
    """The fill-mask head as a linear layer that shares the embedding table, so that exporters store it once."""

    def __init__(self, head: Any, words: nn.Embedding) -> None:
        super().__init__()
        self.dense, self.act, self.norm = head.dense, head.transform_act_fn, head.LayerNorm
        self.decoder = nn.Linear(words.embedding_dim, words.num_embeddings, device="meta")
        self.decoder.weight, self.decoder.bias = words.weight, head.bias

    def forward(self, hidden_states: Tensor, _words: nn.Module) -> Tensor:
        """Compute the scores of every word, [B, L, H] to [B, L, V]."""
        scores: Tensor = self.decoder(self.norm(self.act(self.dense(hidden_states))))
        return scores


class _LeanEncoder(nn.Module):
    """The rewritten encoder. Its last layer computes only the first token if no head reads more."""

    def __init__(self, base: Any, layers: list[tuple[Parts, _Tables]], only_first: bool, format: Format) -> None:
        """Build layers for a file format; with `only_first`, the last layer computes the first token only."""
        super().__init__()
        shape = Shape(flat_ffn=format is Format.ONNX)
        last = len(layers) - 1
        self.layer = nn.ModuleList(
            _DisentangledLayer(parts, tables, only_first and i == last, shape)
            for i, (parts, tables) in enumerate(layers)
        )
        conv = getattr(base.encoder, "conv", None)
        self.conv = None if conv is None else Neighbours(conv)
        self.distances = Distances(_rows_of_distances(base), opaque=format is not Format.ONNX)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, **_: Any) -> BaseModelOutput:
        """Run all encoder layers, and the convolution after the first one if the model has it.

        Args:
            hidden_states: States of the tokens, [B, L, H].
            attention_mask: Added to attention scores, [B, 1, 1, L].

        Returns:
            The last states, [B, L, H], or [B, 1, H] if the last layer computes the first token only. They are also the
            only entry of `hidden_states`, where transformers' fill-mask head reads them.
        """
        rows = self.distances(attention_mask)
        states = hidden_states
        for i, layer in enumerate(self.layer):
            states = layer(states, attention_mask, rows)
            if i == 0 and self.conv is not None:
                states = self.conv(hidden_states, states)
        return BaseModelOutput(last_hidden_state=states, hidden_states=(states,))


class _DisentangledLayer(PostNormLayer):
    """A post-norm encoder layer with disentangled attention."""

    def __init__(self, parts: Parts, tables: _Tables, first_row: bool, shape: Shape) -> None:
        kind = _DisentangledFirstRow if first_row else _DisentangledRows
        super().__init__(parts, first_row, shape, kind(parts, *tables))

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, rows: tuple[Tensor, Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        """Run the layer on states [B, L, H]; return [B, L, H], or [B, 1, H] if it computes the first token only.

        `attention_mask` [B, 1, 1, L] is added to the scores. `rows` are the rows of all distances, from `Distances`.
        """
        context = self.attention(hidden_states, attention_mask, rows)
        return self.after(context, hidden_states[:, :1] if self.first_row else hidden_states)


class Neighbours(nn.Module):
    """The convolution over neighbouring embeddings as one linear layer, whose weight quantizers recognize."""

    def __init__(self, stock: Any) -> None:
        """Reuse weight, bias and norm of the transformers convolution. Its groups become blocks of one matrix."""
        super().__init__()
        conv = stock.conv
        outputs, inputs, size = conv.weight.shape
        dense = torch.zeros(outputs, size, conv.in_channels)
        for group in range(conv.groups):
            own = slice(group * outputs // conv.groups, (group + 1) * outputs // conv.groups)
            dense[own, :, group * inputs : (group + 1) * inputs] = conv.weight[own].transpose(1, 2)
        self.size, self.norm, self.act = size, stock.LayerNorm, _activation(stock.conv_act)
        self.dense = nn.Linear(size * conv.in_channels, outputs)
        self.dense.weight, self.dense.bias = nn.Parameter(dense.flatten(1)), conv.bias

    def forward(self, embedded: Tensor, states: Tensor) -> Tensor:
        """Add the convolution of the embeddings to the states, and normalize.

        Args:
            embedded: Input of the first layer, with zeros at padding, [B, L, H].
            states: Output of the first layer, [B, L, H].

        Returns:
            New states, [B, L, H].
        """
        reach = (self.size - 1) // 2
        length = embedded.shape[1]
        padded = F.pad(embedded, (0, 0, reach, reach))
        near = torch.cat([padded[:, i : i + length] for i in range(self.size)], -1)
        added: Tensor = self.norm(states + self.act(self.dense(near)))
        return added


def _activation(name: str) -> nn.Module:
    from transformers.activations import ACT2FN

    return ACT2FN[name]  # type: ignore[no-any-return]


def _rows_of_distances(base: Any) -> Tensor:
    """Return, for each distance between two tokens, the index of its row in the relative-position table.

    The distance is the query's position minus the key's. Large distances share a row if the model groups them
    in buckets.

    Args:
        base: The model without its head.

    Returns:
        Indices of rows, int64 [2 R + 1], for the distances -R to R, where R is the longest input + 1. All are
        0 if the model has no relative attention.
    """
    encoder, largest = base.encoder, base.config.max_position_embeddings + 1
    if not encoder.relative_attention:
        return torch.zeros(2 * largest + 1, dtype=torch.int64)
    one, many = torch.empty(1, 1, 1), torch.empty(1, largest + 1, 1)
    below = encoder.get_rel_pos(many, query_states=one).reshape(-1)  # 0, -1, ...
    above = encoder.get_rel_pos(one, query_states=many).reshape(-1)  # 0, 1, ...
    span = encoder.rel_embeddings.num_embeddings // 2
    rows: Tensor = torch.cat([below.flip(0), above[1:]]) + span
    return rows.clamp(0, 2 * span - 1)


def _plain_norm(norm: Any) -> nn.LayerNorm:
    """Convert DeBERTa v1's own normalization to nn.LayerNorm, which every exporter recognizes."""
    made = nn.LayerNorm(len(norm.weight), eps=norm.variance_epsilon)
    made.weight, made.bias = norm.weight, norm.bias
    return made


def _read_layer_v1(layer: Any, relative: Tensor | None) -> tuple[Parts, _Tables]:
    """Return the modules of a DeBERTa v1 layer, whose fused query, key and value are split, and its position tables.

    `relative` is the table of relative positions; the layer's own projections of it are returned.
    """
    own = layer.attention.self
    weights = own.in_proj.weight.view(own.num_attention_heads, 3, own.attention_head_size, -1)
    query, key, value = (
        make_linear(weights[:, i].flatten(0, 1), b) for i, b in enumerate((own.q_bias, None, own.v_bias))
    )
    keys = own.pos_proj(relative) if _has(own, "c2p") else None
    queries = own.pos_q_proj(relative) if _has(own, "p2c") else None
    return _parts(layer, (query, key, value), 1 + len(own.pos_att_type)), (keys, queries)


def _read_layer_v2(layer: Any, relative: Tensor | None) -> tuple[Parts, _Tables]:
    """Return the modules of a DeBERTa v2 or v3 layer and its position tables.

    `relative` is the table of relative positions. It is projected by the layer's query and key if the model shares them
    (``share_att_key``), else by projections for positions.
    """
    own = layer.attention.self
    kinds = [kind for kind in ("c2p", "p2c") if kind in own.pos_att_type]
    shared = own.share_att_key
    keys = (own.key_proj if shared else own.pos_key_proj)(relative) if _has(own, "c2p") else None
    queries = (own.query_proj if shared else own.pos_query_proj)(relative) if _has(own, "p2c") else None
    return _parts(layer, (own.query_proj, own.key_proj, own.value_proj), 1 + len(kinds)), (keys, queries)


def _has(attention: Any, kind: str) -> bool:
    return bool(attention.relative_attention and kind in attention.pos_att_type)


def _parts(layer: Any, projections: tuple[nn.Linear, nn.Linear, nn.Linear], terms: int) -> Parts:
    """Return the modules of a DeBERTa layer as `Parts`, with the given projections for queries, keys and values.

    `terms` is the number of terms in an attention score (content and positions), which decides the scale of the scores.
    """
    attention = layer.attention.self
    query, key, value = projections
    out = layer.attention.output
    return Parts(
        query=query,
        key=key,
        value=value,
        heads=attention.num_attention_heads,
        scaling=(attention.attention_head_size * terms) ** -0.5,
        attention_out=out.dense,
        attention_norm=out.LayerNorm,
        up=layer.intermediate.dense,
        act=layer.intermediate.intermediate_act_fn,
        down=layer.output.dense,
        output_norm=layer.output.LayerNorm,
    )


_V1 = "transformers.models.deberta.modeling_deberta"
_V2 = "transformers.models.deberta_v2.modeling_deberta_v2"
_NORM = f"{_V1}.DebertaLayerNorm"
_VERSIONS: dict[tuple[str, str], Callable[[Any, Tensor | None], tuple[Parts, _Tables]]] = {
    (f"{_V1}.DebertaLayer", f"{_V1}.DisentangledSelfAttention"): _read_layer_v1,
    (f"{_V2}.DebertaV2Layer", f"{_V2}.DisentangledSelfAttention"): _read_layer_v2,
}
"""Functions that return a layer's modules and tables, by the class names of the layer and of its attention."""


def _find_version(base: Any) -> Callable[[Any, Tensor | None], tuple[Parts, _Tables]]:
    """Return the function that reads the modules and position tables of this model's layers, for v1 or for v2 and v3.

    Raises:
        InputError: If the model has other layers, or settings that the rewritten layers cannot compute.
    """
    layers = getattr(getattr(base, "encoder", None), "layer", ())
    kinds = {(class_path(m), class_path(m.attention.self)) for m in layers if hasattr(m, "attention")}
    where = f"model {type(base).__name__}"
    if len(kinds) != 1 or not kinds <= set(_VERSIONS):
        names = ", ".join(sorted(name for name, _ in kinds)) or "no layers"
        raise InputError(Problem(where, f"its encoder has {names}; allowed: layers of {_V1} or {_V2}."))
    if getattr(base.config, "talking_head", False):
        what = "talking_head is set: heads that mix their scores are not rewritten for export; no published model has them."
        raise InputError(Problem(where, what, "Train a model without talking_head."))
    if getattr(base, "z_steps", 0) > 1:
        what = f"z_steps is {base.z_steps}: the last layer would run several times, which no file does."
        raise InputError(Problem(where, what, "Set z_steps to 0, as transformers does."))
    return _VERSIONS[kinds.pop()]


ADAPTERS.add("disentangled", _disentangled)
