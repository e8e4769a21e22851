"""Exact rewrites of the stock encoders into cheaper graphs.

Every rewrite gives the same numbers up to rounding; what is kept is what paid when measured in the engine that runs
the format. Classes are matched by full name: a layer that is not the one that was registered is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.families import LAYER_PARTS, Family, LayerParts
from pocketbert.core.types import Format

# --- parts ---
# What the stock post-norm encoder layers are made of, whatever their classes call it.


@dataclass(frozen=True)
class Parts:
    """Modules of one post-norm encoder layer.

    Attributes:
        query: Projection to queries.
        key: Projection to keys.
        value: Projection to values.
        heads: Number of heads.
        scaling: What attention scores are multiplied with.
        attention_out: Projection of the context.
        attention_norm: Normalization after the first residual.
        up: First feed-forward projection.
        act: Activation between the two.
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
    """An encoder that runs its layers more often than it stores them.

    Attributes:
        entry: What the embeddings go through first.
        layers: The layers that are stored.
        order: Which of them runs, step by step.
    """

    entry: nn.Module
    layers: tuple[Any, ...]
    order: tuple[int, ...]


def full_name(module: Any) -> str:
    """Module and class: classes are matched by it, so that a subclass is another layer."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def encoder_layers(base: Any, family: Family, known: LayerParts | None) -> tuple[str, nn.ModuleList | None]:
    """The path of the encoder's stack and its list of layers; None unless all are known and none is a decoder's.

    Args:
        base: A transformers model without its head.
        family: Its row of the family table.
        known: How layers of the family are taken apart; None where nothing is registered.
    """
    stack, _, name = family.layer_path.partition(".")[2].rpartition(".")
    try:
        layers = base.get_submodule(stack).get_submodule(name)
    except AttributeError:
        return "", None
    if known is None or not isinstance(layers, nn.ModuleList) or not len(layers):
        return stack, None
    fine = all(full_name(m) == known.layer for m in layers) and not getattr(base.config, "is_decoder", False)
    return stack, layers if fine else None


def reads_first_token(model: Any, family: Family, known: LayerParts) -> bool:
    """Tell whether the outputs of a model depend only on the first token's last state."""
    module = known.layer.rpartition(".")[0]
    if getattr(model.config, "classifier_pooling", "cls") != "cls":
        return False
    return full_name(model) in {f"{module}.{family.classes}{suffix}" for suffix in known.first_token_heads}


# --- known_parts ---
# The parts of the layers of each family: those that the package knows, and those that were registered.


def known_parts(family: Family) -> LayerParts | None:
    """What is registered under the key of a family's row; None where the row names none.

    Raises:
        InputError: If the row names what is not registered.
    """
    if family.layer_parts is None:
        return None
    return LAYER_PARTS.find(family.layer_parts, f"family {family.name}")


# --- attention ---
# Attention with fewer operations than the stock modules have, and the same result.


class AllRows(nn.Module):
    """Attention of every token, its scale folded into the query's weights.

    Takes over the modules that it is given and changes the query's weights in place.
    """

    def __init__(self, query: nn.Linear, key: nn.Linear, value: nn.Linear, heads: int, scaling: float) -> None:
        super().__init__()
        self.query, self.key, self.value, self.heads = query, key, value, heads
        _fold_scale(query, scaling)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attend.

        Args:
            queries: What queries are made from, [B, L, D].
            keys: What keys are made from, [B, L, D].
            values: What values are made from, [B, L, E].
            mask: Added to the scores, [B, 1, 1, L].

        Returns:
            Context, the heads side by side, [B, L, heads * depth].
        """
        query, key, value = (
            self.split(self.query(queries)),
            self.split(self.key(keys)),
            self.split(self.value(values)),
        )
        weights = torch.softmax(torch.matmul(query, key.transpose(2, 3)) + mask, -1)
        return torch.matmul(weights, value).transpose(1, 2).flatten(2)

    def split(self, states: Tensor) -> Tensor:
        """Part the heads, [B, L, heads * depth] to [B, heads, L, depth]."""
        batch, length, width = states.shape
        return states.view(batch, length, self.heads, width // self.heads).transpose(1, 2)


class FirstRow(nn.Module):
    """Attention of the first token, without keys and values of the others.

    A single query q turns the two large projections round: q·(K x + k) is (Kᵀ q)·x plus a number that is the same
    for all tokens, which softmax drops; and the mean of V x + v under weights that sum to 1 is V (mean of x) + v.
    Both then act on one row per head instead of one per token.
    """

    def __init__(
        self, query: nn.Linear, key: nn.Linear, value: nn.Linear, heads: int, scaling: float, opaque: bool = False
    ) -> None:
        """Take over the projections of an attention module.

        Args:
            query: Changed in place: the scale is folded into it.
            key: Its transpose is stored instead.
            value: Kept.
            heads: Number of heads.
            scaling: What scores are multiplied with.
            opaque: Add a head that is cut off again. The cut keeps litert-torch from seeing a product with a
                transposed operand, which it would write as FULLY_CONNECTED with computed weights; XNNPACK refuses
                that, and its part of the graph falls in two.
        """
        super().__init__()
        self.query, self.value, self.heads = query, value, heads
        _fold_scale(query, scaling)
        self.key = nn.Linear(key.out_features, key.in_features, bias=False, dtype=key.weight.dtype)
        self.key.weight = nn.Parameter(key.weight.detach().t().contiguous())
        own = torch.eye(heads, dtype=key.weight.dtype).repeat_interleave(key.out_features // heads, 1)
        self.own = nn.Buffer(own)
        """1 where a column belongs to the row's head, [heads, heads * depth]."""
        self.probing = nn.Buffer(torch.cat([own, own[:1]]) if opaque else own)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attend from the first token.

        Args:
            queries: The first token, [B, 1, D].
            keys: All tokens, [B, L, D].
            values: All tokens, [B, L, E].
            mask: Added to the scores, [B, 1, 1, L].

        Returns:
            Context of the first token, [B, 1, heads * depth].
        """
        probes = self.key(self.query(queries) * self.probing).transpose(1, 2)
        scores = torch.matmul(keys, probes[:, :, : self.heads]).transpose(1, 2)
        weights = torch.softmax(scores + mask[:, 0], -1)
        context: Tensor = self.value(torch.matmul(weights, values))
        return (context * self.own).sum(1, keepdim=True)


def _fold_scale(query: nn.Linear, scaling: float) -> None:
    with torch.no_grad():
        query.weight.mul_(scaling)
        if query.bias is not None:
            query.bias.mul_(scaling)


# --- shortcut ---
# The tensor that a post-norm layer adds to the result of one of its parts.


class Shortcut(nn.Module):
    """Hands on the states that a part was given, multiplied channel by channel where they were divided before.

    Args:
        channels_first: Whether states are [B, C, 1, L]; else [B, L, C].
    """

    factors: Tensor | None

    def __init__(self, channels_first: bool = False) -> None:
        super().__init__()
        self.channels_first = channels_first
        self.register_buffer("factors", None)

    def forward(self, states: Tensor) -> Tensor:
        """Return the states as they were before their channels were divided."""
        return states if self.factors is None else states * self.factors

    def multiply(self, factors: Tensor) -> None:
        """Multiply by further factors, [C]."""
        more = factors[:, None, None] if self.channels_first else factors
        self.factors = more.clone() if self.factors is None else self.factors * more


# --- layers ---
# Post-norm encoder layers put together from the parts of the stock ones.


@dataclass(frozen=True)
class Shape:
    """How to write the layers.

    Attributes:
        flat_ffn: Run the feed-forward part on [B * L, H]. ONNX Runtime then cannot prove that its output has the shape
            of the residual, and leaves Add and LayerNormalization as they are; its SkipLayerNormalization, which it
            would put in their place, takes several times as long as both.
        opaque: See `FirstRow`.
    """

    flat_ffn: bool = False
    opaque: bool = False


class PostNormLayer(nn.Module):
    """A layer of BERT, RoBERTa or DistilBERT, for all rows or for the first one only."""

    def __init__(self, parts: Parts, first_row: bool, shape: Shape, attention: nn.Module | None = None) -> None:
        """Take over the modules of a stock layer.

        Args:
            parts: The modules.
            first_row: Whether only the first row of the output is read.
            shape: How to write the layer.
            attention: What computes the context, in place of `AllRows` or `FirstRow`.
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
        """Run the layer; what else the stock encoder passes is for decoders.

        Args:
            hidden_states: [B, L, H].
            attention_mask: Added to attention scores, [B, 1, 1, L]; or what the layer's own attention takes.
            first_row: Whether this run is for the first row only, of a layer that has runs for all rows too.

        Returns:
            [B, L, H], or [B, 1, H] where only the first row is wanted.
        """
        rows = hidden_states[:, :1] if self.first_row or first_row else hidden_states
        return self.after(self.attention(rows, hidden_states, hidden_states, attention_mask), rows)

    def after(self, context: Tensor, rows: Tensor) -> Tensor:
        """Run what follows the attention.

        Args:
            context: [B, L, H], or [B, 1, H] of a first-row layer.
            rows: What the layer was given for these tokens, of the same shape.

        Returns:
            [B, L, H], or [B, 1, H].
        """
        attended = self.attention_norm(self.attention_out(context) + self.rows_shortcut(rows))
        inner = attended.flatten(0, 1) if self.flat_ffn else attended
        change = self.down(self.act(self.up(inner)))
        if self.flat_ffn:
            change = change.view(attended.shape)
        return self.output_norm(change + self.attended_shortcut(attended))  # type: ignore[no-any-return]


# --- shared ---
# An encoder whose layers run more often than they are stored.


class SharedStack(nn.Module):
    """Runs a few stored layers in an order, and the last run for the first token only where no head reads more.

    Every run uses the same parameters, so that a file holds them once: a run for the first token is a way to call a
    layer, not a layer with weights in another form, which `pocketbert.export.adapters.lean.FirstRow` would be.

    Args:
        stack: What the embeddings go through first, and which layer runs when.
        layers: The stored layers as they are to run; they take ``first_row``.
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
        """Run the encoder.

        Args:
            hidden_states: Embeddings, [B, L, E].
            attention_mask: Added to attention scores, [B, 1, 1, L].

        Returns:
            The last hidden state, [B, L, H], or [B, 1, H] where no head reads more.
        """
        states: Tensor = self.entry(hidden_states)
        if self.channels_first:
            states, attention_mask = states.transpose(1, 2)[:, :, None], attention_mask.transpose(1, 3)
        for step, number in enumerate(self.order, 1):
            only_first = self.first_row and step == len(self.order)
            states = self.layers[number](states, attention_mask, first_row=only_first)
        return (states[:, :, 0].transpose(1, 2) if self.channels_first else states,)


def slim(model: Any, family: Family, format: Format) -> Any:
    """Rewrite the encoder of a model for export.

    In every format: the attention scale is folded into the query's weights, NoNorm into the linear layer before it, and
    where the head reads nothing but the first token, the last layer computes nothing but that (`FirstRow`, or the last run
    of a `SharedStack`). In ONNX
    also `Shape.flat_ffn`. In TFLite, whose operators know no layer normalization, also `SpelledNorm`, and
    `SpelledSegments` where there are two.

    Args:
        model: A transformers model in eval mode with a head and eager attention, fed with an additive mask
            [B, 1, 1, L]. **It is changed in place**: pass a deep copy.
        family: Its row of the family table; a family without layer parts is left as it is.
        format: What the graph is going to be written as.

    Returns:
        The model.
    """
    encoder, known = getattr(model, "base_model", model), known_parts(family)
    path, layers = encoder_layers(encoder, family, known)
    if layers is None or known is None:
        return model
    shape = Shape(flat_ffn=format is Format.ONNX, opaque=format is Format.TFLITE)
    first_row = reads_first_token(model, family, known)
    if known.stack is not None and known.post_norm is not None:
        stack = known.stack(encoder.get_submodule(path))
        runs = [PostNormLayer(known.post_norm(layer), False, shape) for layer in stack.layers]
        encoder.set_submodule(path, SharedStack(stack, runs, first_row))
        layers = nn.ModuleList()
    for i, layer in enumerate(layers):
        only_first = first_row and i == len(layers) - 1
        if known.post_norm is not None:
            layers[i] = PostNormLayer(known.post_norm(layer), only_first, shape)
        elif known.lean is not None:
            layers[i] = known.lean(layer, only_first, shape)
    if format is Format.TFLITE:
        spell(model)
    return model


def spell(model: Any) -> None:
    """Write normalization and segments of a model as arithmetic, as TFLite needs it; the model is changed in place."""
    _spell_segments(getattr(getattr(model, "base_model", model), "embeddings", None))
    spell_norms(model)


def spell_norms(model: nn.Module) -> None:
    """Put `SpelledNorm` in the place of every layer normalization of a model."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.LayerNorm and child.elementwise_affine:
                setattr(parent, name, SpelledNorm(child))


class SpelledNorm(nn.Module):
    """Layer normalization as arithmetic over the last axis.

    litert-torch's own lowering takes one pass over the tensor more, and its converter folds weight and bias into the
    linear layers behind, which then lose precision in int8: the factors differ between the inputs of a channel, and
    a channel has one scale.
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
    """Embedding of segments 0 and 1 as a line through both: what differs between them times the id.

    TFLite looks up int8 rows one number at a time; two vectors need no table. The embedding of segment 0 is every
    token's, so it is added to the position table.
    """

    def __init__(self, segments: nn.Embedding) -> None:
        super().__init__()
        self.difference = nn.Parameter((segments.weight[1] - segments.weight[0]).detach().clone())

    def forward(self, ids: Tensor) -> Tensor:
        """What to add in addition to the position, [B, L] to [B, L, H]."""
        return ids[:, :, None].to(self.difference.dtype) * self.difference


def _spell_segments(embeddings: Any) -> None:
    segments = getattr(embeddings, "token_type_embeddings", None)
    positions = getattr(embeddings, "position_embeddings", None)
    if type(segments) is nn.Embedding and type(positions) is nn.Embedding and segments.num_embeddings == 2:
        with torch.no_grad():
            positions.weight.add_(segments.weight[0])
        embeddings.token_type_embeddings = SpelledSegments(segments)
