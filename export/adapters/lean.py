"""Rewrite the transformers encoders into cheaper graphs with the same results up to rounding.

`rewrite_layers` replaces the layers of a model by `PostNormLayer`, or by what a family registered for its own layers;
ALBERT's stack, which runs a few stored layers several times, becomes a `SharedStack`. Their attention is `AllRows`, or
`FirstRow` in the last layer of a model whose head reads nothing but the first token. For TFLite,
`decompose_norms_and_segments` writes normalization and segments as arithmetic. Only rewrites that were measured to be
faster in the engine of a format are kept.

`LAYER_PARTS` (see `find_layer_parts`) holds each family's functions that return a layer's modules as `Parts`, and those
of an encoder with shared layers as `Stack`. Classes are matched by their full name: a layer of any other class stays as
it is.

Class and attribute names of the modules are part of tensor names in exported files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.families import LAYER_PARTS, Family, LayerParts
from pocketbert.core.types import Format


@dataclass(frozen=True)
class Parts:
    """The modules of one post-norm encoder layer.

    Attributes:
        query: Projection to queries.
        key: Projection to keys.
        value: Projection to values.
        heads: Number of heads.
        scaling: Factor of the attention scores.
        attention_out: Projection of the context.
        attention_norm: Normalization after the first residual.
        up: First feed-forward projection.
        act: Activation between `up` and `down`.
        down: Second feed-forward projection.
        output_norm: Normalization after the second residual.
    """

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    heads: int
    scaling: float
    attention_out: nn.Linear
    attention_norm: nn.Module
    up: nn.Linear
    act: nn.Module
    down: nn.Linear
    output_norm: nn.Module


@dataclass(frozen=True)
class Stack:
    """An encoder that runs its stored layers several times, as ALBERT's does.

    Attributes:
        entry: The module that the embeddings go through first.
        layers: The stored layers.
        order: Index in `layers` of the layer that runs in each step.
    """

    entry: nn.Module
    layers: tuple[Any, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """How rewritten layers compute what one engine runs faster in another form.

    Attributes:
        flat_ffn: Whether to run the feed-forward part on [B * L, H]. ONNX Runtime then cannot prove that its output has
            the shape of the residual, and leaves Add and LayerNormalization as they are, instead of fusing them to
            SkipLayerNormalization, which takes several times as long as both.
        opaque: See `FirstRow`.
    """

    flat_ffn: bool = False
    opaque: bool = False


def rewrite_layers(model: Any, family: Family, format: Format) -> Any:
    """Replace the encoder layers of a model by faster ones with the same results, and return the model.

    In every format, the scale of the attention scores is multiplied into the query's weights, and NoNorm into the
    linear layer before it. If the head reads the first token only, the last layer computes only that (`FirstRow`, or
    the last run of a `SharedStack`). ONNX files also get `Shape.flat_ffn`. TFLite, which has no operator for layer
    normalization, gets `SpelledNorm`, and `SpelledSegments` if there are two segments.

    Args:
        model: A transformers model in eval mode with a head and eager attention, fed with an additive mask [B, 1, 1,
            L]. **It is changed in place**: pass a deep copy.
        family: The model's family. If it names no layer parts, or the model has layers of another class than they are
            for, the model is not changed.
        format: Format of the file.

    Returns:
        The changed model.
    """
    encoder, parts = getattr(model, "base_model", model), find_layer_parts(family)
    path, layers = find_layers(encoder, family, parts)
    if layers is None or parts is None:
        return model
    shape = Shape(flat_ffn=format is Format.ONNX, opaque=format is Format.TFLITE)
    first_row = reads_first_token(model, family, parts)
    if parts.stack is not None and parts.post_norm is not None:
        stack = parts.stack(encoder.get_submodule(path))
        shared = [PostNormLayer(parts.post_norm(layer), False, shape) for layer in stack.layers]
        encoder.set_submodule(path, SharedStack(stack, shared, first_row))
        layers = nn.ModuleList()
    for i, layer in enumerate(layers):
        only_first = first_row and i == len(layers) - 1
        if parts.post_norm is not None:
            layers[i] = PostNormLayer(parts.post_norm(layer), only_first, shape)
        elif parts.lean is not None:
            layers[i] = parts.lean(layer, only_first, shape)
    if format is Format.TFLITE:
        decompose_norms_and_segments(model)
    return model


# --- finding layers ---


def find_layer_parts(family: Family) -> LayerParts | None:
    """Return the registered functions that rewrite a family's layers; None if the family names none.

    Raises:
        InputError: If the family names layer parts that are not registered.
    """
    if family.layer_parts is None:
        return None
    return LAYER_PARTS.find(family.layer_parts, f"family {family.name}")


def find_layers(base: Any, family: Family, parts: LayerParts | None) -> tuple[str, nn.ModuleList | None]:
    """Return the path of the module that holds a model's encoder layers, and the list of layers.

    Args:
        base: A transformers model without its head.
        family: The model's family, which names the path.
        parts: The functions that are registered for the family's layers; None if there are none.

    Returns:
        The path and the layers. The layers are None if `parts` is, if there is no list of layers at the path, if a
        layer is of another class than `parts` is for, or if the model is a decoder. The path is empty if the model has
        no such modules.
    """
    stack, _, name = family.layer_path.partition(".")[2].rpartition(".")
    try:
        layers = base.get_submodule(stack).get_submodule(name)
    except AttributeError:
        return "", None
    if parts is None or not isinstance(layers, nn.ModuleList) or not len(layers):
        return stack, None
    is_known = all(class_path(m) == parts.layer for m in layers) and not getattr(base.config, "is_decoder", False)
    return stack, layers if is_known else None


def reads_first_token(model: Any, family: Family, parts: LayerParts) -> bool:
    """Return whether a model's head reads nothing but the first token's last hidden state."""
    module = parts.layer.rpartition(".")[0]
    if getattr(model.config, "classifier_pooling", "cls") != "cls":
        return False
    return class_path(model) in {f"{module}.{family.classes}{suffix}" for suffix in parts.first_token_heads}


def class_path(module: Any) -> str:
    """Return the full name of an object's class, by which layers are matched: a subclass is another layer."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


# --- attention ---


class AllRows(nn.Module):
    """Multi-head attention of all tokens. The scale of the scores is multiplied into the query's weights, in place."""

    def __init__(self, query: nn.Linear, key: nn.Linear, value: nn.Linear, heads: int, scaling: float) -> None:
        super().__init__()
        self.query, self.key, self.value, self.heads = query, key, value, heads
        _fold_scale(query, scaling)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Compute the attention output of every token.

        Args:
            queries: States from which queries are computed, [B, L, D].
            keys: States from which keys are computed, [B, L, D].
            values: States from which values are computed, [B, L, E].
            mask: Added to the scores, [B, 1, 1, L].

        Returns:
            The context, with the heads side by side, [B, L, heads * depth].
        """
        query, key, value = (
            self.split(self.query(queries)),
            self.split(self.key(keys)),
            self.split(self.value(values)),
        )
        weights = torch.softmax(torch.matmul(query, key.transpose(2, 3)) + mask, -1)
        return torch.matmul(weights, value).transpose(1, 2).flatten(2)

    def split(self, states: Tensor) -> Tensor:
        """Split states into heads, [B, L, heads * depth] to [B, heads, L, depth]."""
        batch, length, width = states.shape
        return states.view(batch, length, self.heads, width // self.heads).transpose(1, 2)


class FirstRow(nn.Module):
    """Multi-head attention of the first token only, for which keys and values of the other tokens are not computed.

    A single query q lets both large projections act on one row per head instead of one per token: q·(K x + k) is (Kᵀ
    q)·x plus a number that is the same for all tokens, which softmax ignores; and the mean of V x + v under weights
    that sum to 1 is V (mean of x) + v.
    """

    def __init__(
        self, query: nn.Linear, key: nn.Linear, value: nn.Linear, heads: int, scaling: float, opaque: bool = False
    ) -> None:
        """Reuse the query, key and value projections of an attention module.

        Args:
            query: Projection to queries; changed in place: the scale is multiplied into its weights.
            key: Projection to keys; the transpose of its weights is stored, and its bias is dropped.
            value: Projection to values, used as it is.
            heads: Number of heads.
            scaling: Factor of the scores.
            opaque: Whether to add a head that is cut off again. The cut keeps litert-torch from recognizing a product
                with a transposed operand, which it would write as FULLY_CONNECTED with computed weights. XNNPACK does
                not run such an operator, so that the part of the graph that it runs would be split in two.
        """
        super().__init__()
        self.query, self.value, self.heads = query, value, heads
        _fold_scale(query, scaling)
        self.key = make_linear(key.weight.t())
        own = torch.eye(heads, dtype=key.weight.dtype).repeat_interleave(key.out_features // heads, 1)
        self.own = nn.Buffer(own)
        """1 where a column belongs to the row's head, [heads, heads * depth]."""
        self.probing = nn.Buffer(torch.cat([own, own[:1]]) if opaque else own)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Compute the attention output of the first token.

        Args:
            queries: State of the first token, [B, 1, D].
            keys: States of all tokens, from which keys are computed, [B, L, D].
            values: States of all tokens, from which values are computed, [B, L, E].
            mask: Added to the scores, [B, 1, 1, L].

        Returns:
            The context of the first token, [B, 1, heads * depth].
        """
        probes = self.key(self.query(queries) * self.probing).transpose(1, 2)
        scores = torch.matmul(keys, probes[:, :, : self.heads]).transpose(1, 2)
        weights = torch.softmax(scores + mask[:, 0], -1)
        context: Tensor = self.value(torch.matmul(weights, values))
        return (context * self.own).sum(1, keepdim=True)


def make_linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """Build a linear layer with copies of these weights [out, in] and bias [out], without drawing random ones."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    made.weight = nn.Parameter(weight.detach().clone(memory_format=torch.contiguous_format))
    if bias is not None:
        made.bias = nn.Parameter(bias.detach().clone())
    return made


def _fold_scale(query: nn.Linear, scaling: float) -> None:
    """Multiply weight and bias of the query projection by the scale of the scores, in place."""
    with torch.no_grad():
        query.weight.mul_(scaling)
        if query.bias is not None:
            query.bias.mul_(scaling)


# --- layers ---


class Shortcut(nn.Module):
    """The residual connection of a post-norm layer. It multiplies channels that were divided because of outliers.

    Args:
        channels_first: Whether states are [B, C, 1, L]; else [B, L, C].
    """

    factors: Tensor | None

    def __init__(self, channels_first: bool = False) -> None:
        super().__init__()
        self.channels_first = channels_first
        self.register_buffer("factors", None)

    def forward(self, states: Tensor) -> Tensor:
        """Multiply states by the factors by which their channels were divided; return them unchanged if none were."""
        return states if self.factors is None else states * self.factors

    def multiply(self, factors: Tensor) -> None:
        """Multiply the channels by further factors, [C]."""
        more = factors[:, None, None] if self.channels_first else factors
        self.factors = more.clone() if self.factors is None else self.factors * more


class PostNormLayer(nn.Module):
    """A post-norm encoder layer (BERT, RoBERTa, DistilBERT), computed for all tokens or for the first one only."""

    def __init__(self, parts: Parts, first_row: bool, shape: Shape, attention: nn.Module | None = None) -> None:
        """Reuse the modules of a transformers layer. Attention is `AllRows`, or `FirstRow` for the first token only.

        Args:
            parts: The modules.
            first_row: Whether only the first token's output is used; then only that is computed.
            shape: Settings of the rewritten layer that depend on the file format.
            attention: Module that computes the context, in place of `AllRows` or `FirstRow`.
        """
        super().__init__()
        self.first_row, self.flat_ffn = first_row, shape.flat_ffn
        projections = (parts.query, parts.key, parts.value, parts.heads, parts.scaling)
        if attention is None:
            attention = FirstRow(*projections, opaque=shape.opaque) if first_row else AllRows(*projections)
        self.attention = attention
        self.attention_out, self.attention_norm = parts.attention_out, parts.attention_norm
        self.up, self.act, self.down = parts.up, parts.act, parts.down
        self.output_norm = parts.output_norm
        self.rows_shortcut, self.attended_shortcut = Shortcut(), Shortcut()

    def forward(
        self, hidden_states: Tensor, attention_mask: Any, *_: Any, first_row: bool = False, **__: Any
    ) -> Tensor:
        """Run the encoder layer. Further arguments of the transformers encoder are ignored.

        Args:
            hidden_states: States of the tokens, [B, L, H].
            attention_mask: Added to attention scores, [B, 1, 1, L]; or the mask that the layer's own attention takes.
            first_row: Whether to compute the first token only in this run. A layer that runs several times computes it
                only in its last run.

        Returns:
            New states, [B, L, H], or [B, 1, H] of the first token.
        """
        rows = hidden_states[:, :1] if self.first_row or first_row else hidden_states
        return self.after(self.attention(rows, hidden_states, hidden_states, attention_mask), rows)

    def after(self, context: Tensor, rows: Tensor) -> Tensor:
        """Compute the layer from the attention's context on: output projection, norm, feed-forward part, norm.

        Args:
            context: Output of the attention, [B, L, H], or [B, 1, H] of the first token.
            rows: The layer's input for these tokens, of the same shape.

        Returns:
            The layer's output, [B, L, H], or [B, 1, H].
        """
        attended = self.attention_norm(self.attention_out(context) + self.rows_shortcut(rows))
        inner = attended.flatten(0, 1) if self.flat_ffn else attended
        change = self.down(self.act(self.up(inner)))
        if self.flat_ffn:
            change = change.view(attended.shape)
        return self.output_norm(change + self.attended_shortcut(attended))  # type: ignore[no-any-return]


class SharedStack(nn.Module):
    """An encoder that runs a few stored layers in a given order. The last run may be for the first token only.

    Every run uses the same parameters, so that a file holds them once. For this reason the run for the first token only
    calls a stored layer with ``first_row``, and is no `FirstRow` layer, which would store the weights a second time in
    another form.

    Args:
        stack: The module before the layers, and the order of the layers.
        layers: The stored layers, rewritten; they take ``first_row``.
        first_row: Whether only the first token's last state is read.
        channels_first: Whether the layers work on states [B, C, 1, L] and a mask [B, L, 1, 1].
    """

    def __init__(
        self, stack: Stack, layers: Sequence[nn.Module], first_row: bool, channels_first: bool = False
    ) -> None:
        super().__init__()
        self.entry, self.layers, self.order = stack.entry, nn.ModuleList(layers), stack.order
        self.first_row, self.channels_first = first_row, channels_first

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, **_: Any) -> tuple[Tensor]:
        """Run the stored layers in the given order, some several times.

        Args:
            hidden_states: Embeddings, [B, L, E].
            attention_mask: Added to attention scores, [B, 1, 1, L].

        Returns:
            A tuple of the last hidden state, [B, L, H], or [B, 1, H] if only the first token's is read.
        """
        states: Tensor = self.entry(hidden_states)
        if self.channels_first:
            states, attention_mask = states.transpose(1, 2)[:, :, None], attention_mask.transpose(1, 3)
        for step, number in enumerate(self.order, 1):
            only_first = self.first_row and step == len(self.order)
            states = self.layers[number](states, attention_mask, first_row=only_first)
        return (states[:, :, 0].transpose(1, 2) if self.channels_first else states,)


# --- arithmetic for TFLite ---


def decompose_norms_and_segments(model: Any) -> None:
    """Replace layer normalizations and the embedding of two segments by plain arithmetic, in place, for TFLite.

    Segments are replaced only in a model with a table of positions, to which the embedding of segment 0 is added.
    """
    embeddings: Any = getattr(getattr(model, "base_model", model), "embeddings", None)
    segments = getattr(embeddings, "token_type_embeddings", None)
    positions = getattr(embeddings, "position_embeddings", None)
    if type(segments) is nn.Embedding and type(positions) is nn.Embedding and segments.num_embeddings == 2:
        with torch.no_grad():
            positions.weight.add_(segments.weight[0])
        embeddings.token_type_embeddings = SpelledSegments(segments)
    decompose_norms(model)


def decompose_norms(model: nn.Module) -> None:
    """Replace every `nn.LayerNorm` with weights inside a model by `SpelledNorm`, in place."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.LayerNorm and child.elementwise_affine:
                setattr(parent, name, SpelledNorm(child))


class SpelledNorm(nn.Module):
    """Layer normalization over the last axis as subtractions, products and a mean, for TFLite.

    litert-torch's own form reads the tensor once more, and its converter multiplies weight and bias into the linear
    layers that follow. These then lose precision in int8: the factors differ between the inputs of a channel, and a
    channel has one scale.
    """

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, states: Tensor) -> Tensor:
        """Normalize, [..., H] to [..., H]."""
        centred = states - states.mean(-1, keepdim=True)
        variance = (centred * centred).mean(-1, keepdim=True)
        scaled = centred * torch.rsqrt(variance + self.eps) * self.weight
        return scaled if self.bias is None else scaled + self.bias


class SpelledSegments(nn.Module):
    """The embedding of segment ids 0 and 1 as the id times the difference of the two vectors.

    TFLite looks up int8 rows one number at a time; two vectors need no table. The embedding of segment 0 is added to
    every token anyway, so it is merged into the position table.
    """

    def __init__(self, segments: nn.Embedding) -> None:
        super().__init__()
        self.difference = nn.Parameter((segments.weight[1] - segments.weight[0]).detach().clone())

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors to add to the position embeddings, [B, L] to [B, L, H]."""
        return ids[:, :, None].to(self.difference.dtype) * self.difference
