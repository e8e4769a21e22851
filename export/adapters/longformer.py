"""Rewrite Longformer for export: attention in sliding windows with global tokens, over all pairs or in blocks.

`_with_dense_bands` and `_with_block_bands` are the adapters. The encoder is built from the modules of the loaded model,
without branches on data: transformers' own code branches on whether a batch has global tokens, and gathers them. If a
text is cut into blocks of half a window, all tokens of a token's window lie in the token's block and the two blocks
next to it. The length occurs only in sizes, not in the choice of operations, so that a graph may leave it free. `Masks`
holds windows, padding and global tokens as numbers that layers add to attention scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import ADAPTERS
from pocketbert.core.predict.predictor import split_heads
from pocketbert.core.types import Format, Layout
from pocketbert.export.adapters.lean import AllRows, FirstRow, Parts, PostNormLayer, Shape, decompose_norms
from pocketbert.export.adapters.mask_4d import MASK_VALUE, ExportPlan, sentence_pooling


def _own_blocks(states: Tensor, size: int) -> Tensor:
    """Cut the token states of a text into blocks of `size` tokens, filled up with zeros.

    Args:
        states: States of the tokens, [B, L, W].
        size: Number of tokens in a block.

    Returns:
        The blocks, [B, N, size, W]; the last block ends with zeros.
    """
    return _cut_blocks(functional.pad(states, (0, 0, 0, size)), 0, _block_count(states, size), size)


def _near_blocks(states: Tensor, size: int, front: bool) -> Tensor:
    """Return, for each block, the rows of the block before, the block itself and the block after, side by side.

    Args:
        states: States of the tokens, [B, L, W].
        size: Number of tokens in a block.
        front: Whether to append the first row of the whole text to every block.

    Returns:
        [B, N, 3 * size, W], or with the first row [B, N, 3 * size + 1, W]; zeros where there is no row.
    """
    count, padded = _block_count(states, size), functional.pad(states, (0, 0, size, 2 * size))
    parts = [_cut_blocks(padded, i, count, size) for i in range(3)]
    if front:
        parts.append(states[:, None, :1].expand(-1, count, -1, -1))
    return torch.cat(parts, 2)


def _join_blocks(blocks: Tensor, length: int) -> Tensor:
    """Join blocks [B, N, size, W] to rows [B, L, W], without the rows that filled up the last block."""
    return blocks.flatten(1, 2)[:, :length]


def _block_count(states: Tensor, size: int) -> int:
    return (states.shape[1] + (size - 1)) // size  # one sum: `pocketbert.export.coreml` looks for it


def _cut_blocks(padded: Tensor, first: int, count: int, size: int) -> Tensor:
    """Cut `count` blocks of `size` rows out of padded rows, from block number `first` on: [B, count, size, W]."""
    part = padded[:, first * size : (first + count) * size]
    return part.reshape(padded.shape[0], count, size, padded.shape[2])


@dataclass(frozen=True)
class Masks:
    """The masks that layers add to attention scores, and which tokens are global.

    Attributes:
        near: Mask of the keys that a token may attend to, global tokens among them, by half the size of the window.
            Over all pairs it is [B, 1, S, S] or [B, 1, 1, S]; over blocks [B * N, 1, R, 3 * R], where R is half the
            window, with one key more if the first token is global.
        real: Mask of the keys that a global token may attend to, [B, 1, 1, S].
        globals: 1 at global tokens, [B, S, 1]; None if no token is global, or the first one only.
        blocks: Whether attention is over blocks.
        front: Whether every block attends to the first token, which is global.
    """

    near: dict[int, Tensor]
    real: Tensor
    globals: Tensor | None
    blocks: bool = False
    front: bool = False


def _pair_masks(reaches: Sequence[int], attention_mask: Tensor, wide: Tensor | None, several: bool) -> Masks:
    """Build the masks for attention of every token to every token: padding, and distance beyond the window.

    Args:
        reaches: Half the window of each layer, in tokens.
        attention_mask: 1 at real tokens, [B, S].
        wide: 1 at global tokens (those that attend to all tokens), [B, S]; None for a task without global tokens.
        several: Whether other tokens than the first may be global.
    """
    real, places = _real(attention_mask)
    additive = (1.0 - real[:, None, None, :]) * MASK_VALUE
    near, length = {}, attention_mask.shape[1]
    for reach in sorted(set(reaches)):
        if isinstance(length, int) and length <= reach + 1:
            near[reach] = additive
            continue
        allowed = _within(reach, places[:, :, None], places[:, None, :])
        if wide is not None:
            allowed = torch.clamp(allowed + wide[:, None, :], min=0.0, max=1.0)
        near[reach] = ((allowed * real[:, None, :] - 1.0) * -MASK_VALUE)[:, None]
    return Masks(near, additive, wide[:, :, None] if wide is not None and several else None)


def _block_masks(reaches: Sequence[int], attention_mask: Tensor, wide: Tensor | None) -> Masks:
    """Build the masks for attention in blocks of half a window. The global token is an additional key of each block.

    Args:
        reaches: Half the window of each layer, in tokens.
        attention_mask: 1 at real tokens, [B, S].
        wide: 1 at the first token, if it is global (attends to all tokens), [B, S]; None for a task without global
            tokens.
    """
    real, places = _real(attention_mask)
    additive = (1.0 - real[:, None, None, :]) * MASK_VALUE
    marks = torch.stack([places, real] if wide is None else [places, real, wide], -1)
    near = {}
    for reach in sorted(set(reaches)):
        own, seen = _own_blocks(marks[:, :, :1], reach), _near_blocks(marks, reach, wide is not None)[:, :, None]
        beside = seen[:, :, :, : 3 * reach]
        allowed = _within(reach, own, beside[..., 0]) * beside[..., 1]
        if wide is not None:
            first = seen[:, :, :, 3 * reach :, 2].expand(-1, -1, reach, -1)
            allowed = torch.cat([allowed * (1.0 - beside[..., 2]), first], -1)
        near[reach] = ((allowed - 1.0) * -MASK_VALUE).flatten(0, 1)[:, None]
    return Masks(near, additive, None, True, wide is not None)


def _real(attention_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the attention mask as floats, 1 at real tokens, and each token's position, counted from 1: [B, S] both."""
    real = attention_mask.to(torch.float32)
    # counted instead of numbered: a constant of all pairs would be stored in files of fixed lengths
    return real, torch.cumsum(real, 1)


def _within(reach: int, places: Tensor, others: Tensor) -> Tensor:
    """Return 1 where two positions are at most `reach` apart, else 0.

    The clamp has both bounds, because Core ML writes infinity for a missing one.
    """
    return torch.clamp(reach + 1.0 - torch.abs(places - others), min=0.0, max=1.0)


class _LocalAttention(nn.Module):
    """Attention of every token to its window, combined with attention of the global tokens to all tokens."""

    def __init__(self, parts: Parts, wide: Any, first: bool, shape: Shape) -> None:
        """Reuse the local and global query, key and value projections of a transformers layer.

        Args:
            parts: The modules of the layer.
            wide: The module with the projections of global attention; None if no token is global.
            first: Whether the first token, and no other, is global (it attends to all tokens, and all to it).
            shape: Settings of the rewritten layer that depend on the file format.
        """
        super().__init__()
        self.near = _Near(parts.query, parts.key, parts.value, parts.heads, parts.scaling)
        self.wide: nn.Module | None = None
        self.first = first
        if wide is not None:
            projections = (wide.query_global, wide.key_global, wide.value_global, parts.heads, parts.scaling)
            self.wide = FirstRow(*projections, opaque=shape.opaque) if first else AllRows(*projections)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: tuple[Masks, int]) -> Tensor:
        """Compute Longformer's attention: each token attends to its window and the global tokens, global ones to all.

        Args:
            queries: States from which the queries are computed, [B, S, D].
            keys: States from which the keys are computed, [B, S, D].
            values: States from which the values are computed, [B, S, D].
            mask: The masks of all layers (`Masks`), and half of this layer's window in tokens, by which its mask is
                found among them.

        Returns:
            The context, [B, S, D].
        """
        masks, reach = mask
        context = (
            self.near.of_blocks(queries, masks, reach)
            if masks.blocks
            else self.near(queries, keys, values, masks.near[reach])
        )
        if self.wide is None:
            return context
        if self.first:
            return torch.cat([self.wide(queries[:, :1], keys, values, masks.real), context[:, 1:]], 1)
        assert masks.globals is not None
        wide: Tensor = self.wide(queries, keys, values, masks.real)
        return context + (wide - context) * masks.globals


class _FirstOnly(nn.Module):
    """Attention of the first token, which is global, to all tokens: all that the last layer of a classifier needs."""

    def __init__(self, wide: Any, heads: int, scaling: float, shape: Shape) -> None:
        super().__init__()
        projections = (wide.query_global, wide.key_global, wide.value_global)
        self.wide = FirstRow(*projections, heads, scaling, opaque=shape.opaque)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: tuple[Masks, int]) -> Tensor:
        """Compute the attention output [B, 1, D] of the first token; see `_LocalAttention`."""
        context: Tensor = self.wide(queries, keys, values, mask[0].real)
        return context


class _Near(AllRows):
    """Attention within the window, computed over all pairs of tokens or in blocks of half a window."""

    def of_blocks(self, states: Tensor, masks: Masks, reach: int) -> Tensor:
        """Compute attention within the window in blocks of half a window, [B, S, D] to [B, S, D].

        `reach` is half the window in tokens.
        """
        query = self._heads(_own_blocks(self.query(states), reach))
        key, value = (
            self._heads(_near_blocks(project(states), reach, masks.front)) for project in (self.key, self.value)
        )
        weights = torch.softmax(torch.matmul(query, key.transpose(2, 3)) + masks.near[reach], -1)
        context = torch.matmul(weights, value).transpose(1, 2).flatten(2)
        return _join_blocks(context.reshape(states.shape[0], -1, reach, context.shape[2]), states.shape[1])

    def _heads(self, blocks: Tensor) -> Tensor:
        """Split projected blocks into heads, [B, N, R, heads * depth] to [B * N, heads, R, depth]."""
        return self.split(blocks.flatten(0, 1))


_FIRST, _QUESTION = "ForSequenceClassification", "ForQuestionAnswering"
"""Ends of the names of the classes that have global tokens: the first one, or all of the question."""
DENSE = 1024
"""With attention over blocks, graphs of known lengths up to this one use all pairs of tokens, which is as fast."""


def _with_block_bands(model: Any, plan: ExportPlan) -> nn.Module:
    """Wrap a Longformer for export with attention in blocks, whose memory grows linearly with the length.

    Graphs of a known length up to `DENSE` have attention over all pairs of tokens.

    Args:
        model: A transformers model with a head in eval mode; its modules are reused and changed.
        plan: Settings of the export.

    Raises:
        InputError: In the cases of `_with_dense_bands`, and for question answering: every token of a question is
            global, so that each block would have to attend to the whole question, which may be as long as the text.
    """
    if type(model).__name__.endswith(_QUESTION):
        what = "'blocks' is not possible for question-answering: every token of a question is global, and each block would see them all."
        raise InputError(Problem("export.attention", what, "Set export.attention: pairs."))
    return _with_dense_bands(model, plan, DENSE)


def _with_dense_bands(model: Any, plan: ExportPlan, dense: int | None = None) -> nn.Module:
    """Wrap a Longformer for export, with attention over all pairs of tokens or in blocks, and a mask for the window.

    The module has named inputs and plain tensor outputs.

    Args:
        model: A transformers model with a head in eval mode; its modules are reused and changed.
        plan: Settings of the export.
        dense: Longest input length for which attention is over all pairs of tokens. It is in blocks beyond that, and in
            graphs with a free length. None for pairs at every length.

    Raises:
        InputError: If the plan's layout is not possible, or the model answers questions and its configuration does not
            name the separator after a question.
    """
    if plan.layout is Layout.ANE:
        what = f"'ane' has no rewrite for the encoder of '{model.config.model_type}'."
        raise InputError(Problem("export.coreml.layout", what, "Set export.coreml.layout: plain."))
    kind = type(model).__name__
    if kind.endswith(_QUESTION) and not isinstance(model.config.sep_token_id, int):
        what = "has no sep_token_id, by which the model finds the end of the question."
        raise InputError(
            Problem("config.json", what, "Add the id of the token that ends a text (2 in published models).")
        )
    made = _Banded(model, plan, dense)
    if plan.format is Format.TFLITE:
        decompose_norms(made)
    return made.eval()


class _Banded(nn.Module):
    """A Longformer with `input_ids` and `attention_mask` as inputs and a tuple of tensors as output."""

    def __init__(self, model: Any, plan: ExportPlan, dense: int | None) -> None:
        """Build the module from the embeddings, layers and head of a transformers Longformer."""
        super().__init__()
        self.dense = dense
        kind = type(model).__name__
        self.first, self.question = kind.endswith(_FIRST), kind.endswith(_QUESTION)
        self.task, self.pooling = plan.task, sentence_pooling(plan)
        encoder = getattr(model, model.base_model_prefix, model)
        self.embeddings = _Embeddings(encoder.embeddings)
        shape = Shape(flat_ffn=plan.format is Format.ONNX, opaque=plan.format is Format.TFLITE)
        last = len(encoder.encoder.layer) - 1
        self.layers = nn.ModuleList(
            _rewrite_layer(layer, self.first, self.question, i == last, shape)
            for i, layer in enumerate(encoder.encoder.layer)
        )
        self.reaches = [layer.attention.self.one_sided_attn_window_size for layer in encoder.encoder.layer]
        self.separator = model.config.sep_token_id if self.question else 0
        names = ("classifier", "qa_outputs", "lm_head")
        self.head = next((getattr(model, n) for n in names if hasattr(model, n)), None)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Run the model on inputs [B, S], and return the task's outputs in order."""
        wide = self._global_tokens(input_ids, attention_mask)
        masks = self._masks(attention_mask, wide)
        states = self.embeddings(input_ids)
        for layer, reach in zip(self.layers, self.reaches, strict=True):
            states = layer(states, (masks, reach))
        if self.head is None:
            vector = [] if self.pooling is None else [self.pooling(states, attention_mask)]
            return (states, *vector)
        answer = self.head(states)
        if self.task.heads:
            return tuple(split_heads(answer, self.task).values())
        return tuple(answer.unbind(-1)) if self.question else (answer,)

    def _global_tokens(self, ids: Tensor, attention_mask: Tensor) -> Tensor | None:
        """Mark the global tokens with 1, [B, S]: the first one, or the whole question; None if the task has none."""
        real = attention_mask.to(torch.float32)
        if self.question:
            return real * torch.clamp(1.0 - torch.cumsum(_equal(ids, self.separator), 1), min=0.0, max=1.0)
        return real * torch.clamp(2.0 - torch.cumsum(real, 1), min=0.0, max=1.0) if self.first else None

    def _masks(self, attention_mask: Tensor, wide: Tensor | None) -> Masks:
        length = attention_mask.shape[1]
        if self.dense is None or (isinstance(length, int) and length <= self.dense):
            return _pair_masks(self.reaches, attention_mask, wide, self.question)
        return _block_masks(self.reaches, attention_mask, wide)


class _Embeddings(nn.Module):
    """Word and position embeddings, added and normalized. The segment embedding is merged into the positions."""

    def __init__(self, stock: Any) -> None:
        super().__init__()
        self.words, self.places, self.norm = stock.word_embeddings, stock.position_embeddings, stock.LayerNorm
        with torch.no_grad():
            self.places.weight.add_(stock.token_type_embeddings.weight[0])
        self.padding: int = stock.padding_idx

    def forward(self, ids: Tensor) -> Tensor:
        real = torch.clamp(torch.abs(ids - self.padding), min=0, max=1)
        places = torch.cumsum(real, 1).to(ids.dtype) * real + self.padding
        states: Tensor = self.norm(self.words(ids) + self.places(places))
        return states


def _rewrite_layer(layer: Any, first: bool, question: bool, last: bool, shape: Shape) -> PostNormLayer:
    """Build a layer for export from the modules of a Longformer layer of transformers.

    Every token attends to its window. Global tokens, if there are any, also attend to all tokens, and all tokens to
    them. If only the first token is global and this is the last layer, the new layer computes the first token's output
    only, because a classifier reads nothing else.

    Args:
        layer: The layer of the transformers model. Its modules are reused and changed in place.
        first: Whether the first token, and no other, is global.
        question: Whether the tokens of the question are global.
        last: Whether this is the last layer of the encoder.
        shape: Settings of the rewritten layer that depend on the file format.

    Returns:
        The layer; it replaces `layer` in the encoder.
    """
    own, out = layer.attention.self, layer.attention.output
    parts = Parts(
        query=own.query,
        key=own.key,
        value=own.value,
        heads=own.num_heads,
        scaling=own.head_dim**-0.5,
        attention_out=out.dense,
        attention_norm=out.LayerNorm,
        up=layer.intermediate.dense,
        act=layer.intermediate.intermediate_act_fn,
        down=layer.output.dense,
        output_norm=layer.output.LayerNorm,
    )
    if first and last:
        attention: nn.Module = _FirstOnly(own, parts.heads, parts.scaling, shape)
    else:
        attention = _LocalAttention(parts, own if first or question else None, first, shape)
    return PostNormLayer(parts, first and last, shape, attention)


def _equal(ids: Tensor, id: int) -> Tensor:
    """Return 1 where a token id equals `id`, else 0, as floats."""
    return 1.0 - torch.clamp(torch.abs(ids - id), min=0, max=1).to(torch.float32)


ADAPTERS.add("dense-bands", _with_dense_bands)
ADAPTERS.add("block-bands", _with_block_bands)
