"""Rewrite XLNet's encoder for export, batch first and without a gather in its relative positions.

`_relative_encoder` is the adapter; `_RelativeEncoder` is built from the parameters of the transformers encoder.

With q, k, v the content of a token, R(o) the projected sines and cosines of an offset o, and t its segment:

    score_ij = ((q_i + r_w) k_j + (q_i + r_r) R(i - j) + [t_i != t_j] (q_i + r_s) (s_1 - s_0)) / sqrt(d)

The transformers model adds s_0 or s_1; s_0 is the same along a row, so softmax drops it.

Source: Yang et al. 2019 (XLNet), equations of relative attention as in Dai et al. 2019 (Transformer-XL), section 3.3.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.families import ADAPTERS
from pocketbert.core.types import Format
from pocketbert.export.adapters.lean import make_linear
from pocketbert.export.adapters.mask_4d import MASK_VALUE, ExportPlan, check_computed, computed_zero, with_own_encoder


class Row(Enum):
    """The tokens whose states the last layer computes: all, the first or the last."""

    ALL = "all"
    FIRST = "first"
    LAST = "last"

    def of(self, states: Tensor) -> Tensor:
        """Select the states of these tokens, [B, L, H] to [B, L, H] or [B, 1, H]."""
        if self is Row.ALL:
            return states
        return states[:, :1] if self is Row.FIRST else states[:, -1:]


class _RelativeEncoder(nn.Module):
    """XLNet's encoder with relative positions, for texts of up to `longest` tokens.

    Args:
        model: An `XLNetModel` in eval mode; its parameters are reused.
        longest: Largest number of tokens of an input.
        row: The tokens whose last states are read.
        flat: See `pocketbert.export.adapters.lean.Shape.flat_ffn`.
    """

    def __init__(self, model: Any, longest: int, row: Row, flat: bool) -> None:
        """Reuse the embeddings and layers of a transformers encoder, and store sines and cosines of all offsets."""
        super().__init__()
        self.word_embedding, self.longest = model.word_embedding, longest
        offsets = torch.arange(longest, -longest, -1.0)
        if model.clamp_len > 0:
            offsets = offsets.clamp(-model.clamp_len, model.clamp_len)
        self.offsets = nn.Embedding(2 * longest, model.d_model, _weight=sines(offsets, model.d_model), _freeze=True)
        """Row c is the offset `longest` - c."""
        self.places = nn.Buffer(torch.arange(2 * longest), persistent=False)
        last = len(model.layer) - 1
        self.layers = nn.ModuleList(
            _RelativeLayer(layer, row if i == last else Row.ALL, flat) for i, layer in enumerate(model.layer)
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Compute the encoder's last hidden states from token ids, attention mask and segment ids.

        Args:
            input_ids: Token ids, [B, L].
            attention_mask: 1 for real tokens and 0 for padding, [B, L]. Other tokens do not attend to
                padding.
            token_type_ids: Segment ids, [B, L]. Attention depends only on whether two tokens have the same
                id.

        Returns:
            The hidden states of all tokens, [B, L, H]. If the encoder was built with a `row` other than
            `Row.ALL`, only those of the first or the last token, [B, 1, H].
        """
        length, zero = input_ids.shape[1], computed_zero(attention_mask)
        places = self.places[: 2 * length] + zero.to(torch.int64)
        positions = self.offsets(places + (self.longest - length))
        types = token_type_ids.to(torch.float32)
        other_segment = torch.clamp(torch.abs(types[:, None, :, None] - types[:, None, None, :]), 0.0, 1.0)
        positions_of_tokens = places[:length].to(torch.float32)
        elsewhere = torch.clamp(torch.abs(positions_of_tokens[:, None] - positions_of_tokens[None, :]), 0.0, 1.0)
        # a padded key is attended to by its own token only
        mask = (1.0 - attention_mask[:, None, None, :].to(torch.float32)) * elsewhere * MASK_VALUE
        states = self.word_embedding(input_ids)
        for layer in self.layers:
            states = layer(states, positions, other_segment, mask)
        return states  # type: ignore[no-any-return]


class _RelativeLayer(nn.Module):
    """An XLNet layer: relative attention and a feed-forward part, each followed by a residual and a norm."""

    def __init__(self, layer: Any, row: Row, flat: bool) -> None:
        """Reuse the parameters of a transformers layer. States are computed for the tokens in `row`."""
        super().__init__()
        own, feed = layer.rel_attn, layer.ff
        self.row, self.flat = row, flat
        self.attention = _RelativeAttention(own, row)
        self.attention_out = make_linear(own.o.detach().reshape(own.d_model, -1))
        self.attention_norm = own.layer_norm
        self.up, self.act, self.down = feed.layer_1, feed.activation_function, feed.layer_2
        self.output_norm = feed.layer_norm

    def forward(self, states: Tensor, positions: Tensor, other_segment: Tensor, mask: Tensor) -> Tensor:
        """Run the encoder layer with relative positions and segments.

        Args:
            states: States of the tokens, [B, L, H].
            positions: Sines and cosines of the offsets L to 1 - L, [2L, H].
            other_segment: 1 where two tokens are of different segments, [B, 1, L, L].
            mask: Added to the scores, [B, 1, L, L].

        Returns:
            New states, [B, L, H], or [B, 1, H] if one token is read.
        """
        rows = self.row.of(states)
        context = self.attention(rows, states, positions, other_segment, mask)
        attended = self.attention_norm(self.attention_out(context) + rows)
        inner = attended.flatten(0, 1) if self.flat else attended
        change = self.down(self.act(self.up(inner)))
        if self.flat:
            change = change.view(attended.shape)
        return self.output_norm(change + attended)  # type: ignore[no-any-return]


class _RelativeAttention(nn.Module):
    """Attention with scores for content, offset and segment. The scale is multiplied into the queries' weights.

    Args:
        own: An `XLNetRelativeAttention`. Its raw parameters [H, heads, depth] become linear layers, so that quantizers
            compress them like any other weights.
        row: The tokens for which queries are computed.
    """

    def __init__(self, own: Any, row: Row) -> None:
        """Convert the raw parameters of a transformers attention module to linear layers."""
        super().__init__()
        self.row, self.heads, self.depth = row, own.n_head, own.d_head
        query = _matrix(own.q) * own.scale
        self.query = make_linear(query, own.r_w_bias.detach().flatten() * own.scale)
        self.key, self.value, self.position = (make_linear(_matrix(p)) for p in (own.k, own.v, own.r))
        self.to_offset = nn.Parameter((own.r_r_bias - own.r_w_bias).detach().flatten() * own.scale)
        """The vector that turns a query for content into a query for offsets when it is added."""
        apart = (own.seg_embed[1] - own.seg_embed[0]).detach()
        own_segment = query.view(self.heads, self.depth, -1) * apart[:, :, None]
        self.segment = make_linear(own_segment.sum(1), (own.r_s_bias.detach() * apart).sum(1) * own.scale)
        """Computes what each head of a token adds to the scores of keys of another segment."""

    def forward(self, rows: Tensor, states: Tensor, positions: Tensor, other_segment: Tensor, mask: Tensor) -> Tensor:
        """Compute the attention output of the query tokens.

        Args:
            rows: States from which queries are computed, [B, Q, H]; Q is L or 1.
            states: States from which keys and values are computed, [B, L, H].
            positions: Sines and cosines of the offsets L to 1 - L, [2L, H].
            other_segment: 1 where two tokens are of different segments, [B, 1, L, L].
            mask: Added to the scores, [B, 1, L, L].

        Returns:
            The context, with the heads side by side, [B, Q, H].
        """
        length = states.shape[1]
        queries = self.query(rows)
        key, value = self._split(self.key(states)), self._split(self.value(states))
        content = torch.matmul(self._split(queries), key.transpose(2, 3))
        offsets = self.position(positions).view(2 * length, self.heads, self.depth).permute(1, 2, 0)
        by_offset = torch.matmul(self._split(queries + self.to_offset), offsets)
        segment = self.segment(rows).transpose(1, 2)[..., None]
        scores = content + self._shifted(by_offset, length) + segment * self._query_rows(other_segment)
        weights = torch.softmax(scores + self._query_rows(mask), -1)
        return torch.matmul(weights, value).transpose(1, 2).flatten(2)

    def _split(self, states: Tensor) -> Tensor:
        batch, length, _ = states.shape
        return states.view(batch, length, self.heads, self.depth).transpose(1, 2)

    def _query_rows(self, pairs: Tensor) -> Tensor:
        """Select the rows of the tokens whose queries are computed from a matrix over pairs of tokens [B, 1, L, L]."""
        if self.row is Row.ALL:
            return pairs
        return pairs[:, :, :1] if self.row is Row.FIRST else pairs[:, :, -1:]

    def _shifted(self, scores: Tensor, length: int) -> Tensor:
        """Select, from scores for all offsets [B, heads, Q, 2L], the score of each pair of tokens, [B, heads, Q, L].

        Column c has the scores of offset L - c, so the score of token i and key j is in column L - i + j. If the flattened
        matrix, without its first L numbers, is cut into rows of 2L - 1, each row starts one column earlier, and the needed scores
        are its first L.
        """
        if self.row is Row.FIRST:
            return scores[..., length:]
        if self.row is Row.LAST:
            return scores[..., 1 : length + 1]
        flat = scores.flatten(2)[..., length:]
        return flat.view(*flat.shape[:2], length, 2 * length - 1)[..., :length]


def sines(offsets: Tensor, width: int) -> Tensor:
    """Return sinusoidal position encodings of offsets: all sines, then all cosines, [n] to [n, width]."""
    frequencies = 1.0 / torch.pow(10000, torch.arange(0, width, 2.0) / width)
    angles = offsets[:, None] * frequencies
    return torch.cat([torch.sin(angles), torch.cos(angles)], -1)


def _matrix(parameter: Tensor) -> Tensor:
    """Reshape a parameter [H, heads, depth] to the weight of a linear layer, [heads * depth, H]."""
    return parameter.detach().flatten(1).t().contiguous()


_ROWS = {"last": Row.LAST, "cls_index": Row.LAST, "first": Row.FIRST}
"""The token that a summary reads, by the summary's type. `cls_index` reads the last token if no index is given, and no
exported graph has an index."""


def _relative_encoder(model: Any, plan: ExportPlan) -> nn.Module:
    """Wrap an XLNet model for export, with named inputs and plain tensor outputs.

    Args:
        model: A transformers model in eval mode. **It is changed in place.**
        plan: Settings of the export.

    Returns:
        The module, in eval mode.

    Raises:
        InputError: If config.json or the plan asks for something that the rewritten encoder cannot compute, such as
            attention to earlier tokens only.
    """
    from transformers.models.xlnet.modeling_xlnet import XLNetModelOutput

    check_computed(model, plan)
    summary = getattr(model, "sequence_summary", None)
    row = Row.ALL if summary is None else _ROWS.get(summary.summary_type, Row.ALL)
    encoder = _RelativeEncoder(model.base_model, plan.family.longest, row, flat=plan.format is Format.ONNX)
    return with_own_encoder(model, plan, encoder, XLNetModelOutput)


ADAPTERS.add("relative-encoder", _relative_encoder)
