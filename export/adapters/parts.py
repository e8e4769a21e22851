"""What the stock post-norm encoder layers are made of, whatever their classes call it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from pocketbert.core.families import Family, LayerParts


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
