"""An exact rewrite of BERT-like encoders for Apple's Neural Engine. No claim about latency: nobody measured it here.

Between the embeddings and the head, activations lie channels first, [B, C, 1, L]. Classes are matched by full name, as
in `lean`; a model that this file does not know is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.types import Format
from pocketbert.export.adapters import mask_4d
from pocketbert.export.adapters.ane_layers import ChannelsFirstLayer
from pocketbert.export.adapters.ane_mobilebert import channels_first_layer
from pocketbert.export.adapters.lean_layers import Parts


def wrap(model: Any, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> nn.Module:
    """A module with explicit named inputs and plain tensor outputs, its encoder channels first.

    Args:
        model: A transformers model with a head in eval mode. **It is changed in place**: pass a deep copy.
        inputs: Names of the graph's inputs, of the family table.
        outputs: Names of the graph's outputs, of the task table.

    Returns:
        The module, in eval mode.

    Raises:
        InputError: If the model has a layer that this file has no rewrite for.
    """
    base = getattr(model, "base_model", model)
    stack, layers = _stack(base)
    if layers is None or getattr(base.config, "is_decoder", False):
        raise InputError(_unknown(model))
    first_token = _full_name(model) in _READ_FIRST_TOKEN
    for i, layer in enumerate(layers):
        layers[i] = _LAYERS[_full_name(layer)](layer, first_token and i == len(layers) - 1)
    setattr(base, stack, ChannelsFirst(getattr(base, stack)))
    return mask_4d.wrap(model, inputs, outputs, Format.COREML)


class ChannelsFirst(nn.Module):
    """A stock encoder whose layers work channels first: states and mask are turned once, and the result back."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, **_: Any) -> Any:
        """Run the encoder.

        Args:
            hidden_states: [B, L, C].
            attention_mask: Added to attention scores, [B, 1, 1, L].

        Returns:
            What the stock encoder returns, its last hidden state [B, L, C], or [B, 1, C] where no head reads more.
        """
        states = hidden_states.transpose(1, 2)[:, :, None]
        out = self.encoder(states, attention_mask=attention_mask.transpose(1, 3))
        out["last_hidden_state"] = out["last_hidden_state"][:, :, 0].transpose(1, 2)
        return out


def _bert(layer: Any, first_token: bool) -> nn.Module:
    own, out = layer.attention.self, layer.attention.output
    parts = Parts(
        own.query, own.key, own.value, own.num_attention_heads, own.scaling, out.dense, out.LayerNorm,
        layer.intermediate.dense, layer.intermediate.intermediate_act_fn, layer.output.dense, layer.output.LayerNorm,
    )  # fmt: skip
    return ChannelsFirstLayer(parts, first_token)


def _distilbert(layer: Any, first_token: bool) -> nn.Module:
    own = layer.attention
    parts = Parts(
        own.q_lin, own.k_lin, own.v_lin, own.n_heads, own.scaling, own.out_lin, layer.sa_layer_norm,
        layer.ffn.lin1, layer.ffn.activation, layer.ffn.lin2, layer.output_layer_norm,
    )  # fmt: skip
    return ChannelsFirstLayer(parts, first_token)


def _mobilebert(layer: Any, _: bool) -> nn.Module:
    return channels_first_layer(layer)  # one of 24 layers: not worth a form of its own for the first token


_MODELS = "transformers.models."
_LAYERS: dict[str, Callable[[Any, bool], nn.Module]] = {
    f"{_MODELS}bert.modeling_bert.BertLayer": _bert,
    f"{_MODELS}roberta.modeling_roberta.RobertaLayer": _bert,
    f"{_MODELS}distilbert.modeling_distilbert.TransformerBlock": _distilbert,
    f"{_MODELS}mobilebert.modeling_mobilebert.MobileBertLayer": _mobilebert,
}
_READ_FIRST_TOKEN = {
    f"{_MODELS}bert.modeling_bert.BertForSequenceClassification",
    f"{_MODELS}roberta.modeling_roberta.RobertaForSequenceClassification",
    f"{_MODELS}distilbert.modeling_distilbert.DistilBertForSequenceClassification",
}
"""Models whose outputs depend on the first token's last state alone."""


def _full_name(module: Any) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _stack(base: Any) -> tuple[str, nn.ModuleList | None]:
    """The encoder's attribute and its list of layers; None unless every layer is known."""
    for stack in ("encoder", "transformer"):
        layers = getattr(getattr(base, stack, None), "layer", None)
        if isinstance(layers, nn.ModuleList) and len(layers):
            return stack, layers if all(_full_name(m) in _LAYERS for m in layers) else None
    return "", None


def _unknown(model: Any) -> Problem:
    family = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    return Problem(
        "export.coreml.layout",
        f"'ane' has no rewrite for the encoder of '{family}' ({type(model).__name__}); "
        "allowed: encoders of bert, roberta, distilbert and mobilebert.",
        "Set export.coreml.layout: plain.",
    )
