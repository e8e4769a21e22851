"""What the stock post-norm encoder layers are made of, whatever their classes call it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn


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


def _bert(layer: Any) -> Parts:
    own, out = layer.attention.self, layer.attention.output
    return Parts(
        own.query,
        own.key,
        own.value,
        own.num_attention_heads,
        own.scaling,
        out.dense,
        out.LayerNorm,
        layer.intermediate.dense,
        layer.intermediate.intermediate_act_fn,
        layer.output.dense,
        layer.output.LayerNorm,
    )


def _distilbert(layer: Any) -> Parts:
    own = layer.attention
    return Parts(
        own.q_lin,
        own.k_lin,
        own.v_lin,
        own.n_heads,
        own.scaling,
        own.out_lin,
        layer.sa_layer_norm,
        layer.ffn.lin1,
        layer.ffn.activation,
        layer.ffn.lin2,
        layer.output_layer_norm,
    )


_MODELS = "transformers.models."
_POST_NORM: dict[str, Callable[[Any], Parts]] = {
    f"{_MODELS}bert.modeling_bert.BertLayer": _bert,
    f"{_MODELS}roberta.modeling_roberta.RobertaLayer": _bert,
    f"{_MODELS}distilbert.modeling_distilbert.TransformerBlock": _distilbert,
}
_BOTTLENECK = f"{_MODELS}mobilebert.modeling_mobilebert.MobileBertLayer"
READ_FIRST_TOKEN = frozenset(
    {
        f"{_MODELS}bert.modeling_bert.BertForSequenceClassification",
        f"{_MODELS}roberta.modeling_roberta.RobertaForSequenceClassification",
        f"{_MODELS}distilbert.modeling_distilbert.DistilBertForSequenceClassification",
        f"{_MODELS}mobilebert.modeling_mobilebert.MobileBertForSequenceClassification",
    }
)
"""Models whose outputs depend on the first token's last state alone."""


def full_name(module: Any) -> str:
    """Module and class: classes are matched by it, so that a subclass is another layer."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def parts_of(layer: Any) -> Parts | None:
    """Modules of a known post-norm layer (BERT, RoBERTa, DistilBERT); None of MobileBERT's, which has bottlenecks."""
    take = _POST_NORM.get(full_name(layer))
    return take(layer) if take is not None else None


def encoder_layers(base: Any) -> tuple[str, nn.ModuleList | None]:
    """The encoder's attribute and its list of layers; None unless each is known and none is a decoder's.

    Args:
        base: A transformers model without its head.
    """
    known = {*_POST_NORM, _BOTTLENECK}
    for stack in ("encoder", "transformer"):
        layers = getattr(getattr(base, stack, None), "layer", None)
        if isinstance(layers, nn.ModuleList) and len(layers):
            fine = all(full_name(m) in known for m in layers) and not getattr(base.config, "is_decoder", False)
            return stack, layers if fine else None
    return "", None
