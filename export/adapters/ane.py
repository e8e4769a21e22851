"""An exact rewrite of BERT-like encoders for Apple's Neural Engine. No claim about latency: nobody measured it here.

Between the embeddings and the head, activations lie channels first, [B, C, 1, L]. Classes are matched by full name, as
in `lean`; a model that this file does not know is refused.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.pooling import DEFAULT_POOLING, Pooling
from pocketbert.core.types import Format
from pocketbert.export.adapters import mask_4d
from pocketbert.export.adapters.ane_layers import ChannelsFirstLayer
from pocketbert.export.adapters.ane_mobilebert import channels_first_layer
from pocketbert.export.adapters.parts import READ_FIRST_TOKEN, encoder_layers, full_name, parts_of


def wrap(
    model: Any,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    pooling: Pooling = DEFAULT_POOLING,
    carried: float = 1.0,
) -> nn.Module:
    """A module with explicit named inputs and plain tensor outputs, its encoder channels first.

    Args:
        model: A transformers model with a head in eval mode. **It is changed in place**: pass a deep copy.
        inputs: Names of the graph's inputs, of the family table.
        outputs: Names of the graph's outputs, of the task table.
        pooling: How `sentence_embedding` is made, where it is an output.
        carried: What the model's last states are multiplied with; see `half_range.fit`.

    Returns:
        The module, in eval mode.

    Raises:
        InputError: If the model has a layer that this file has no rewrite for.
    """
    base = getattr(model, "base_model", model)
    stack, layers = encoder_layers(base)
    if layers is None:
        raise InputError(_unknown(model))
    first_token = full_name(model) in READ_FIRST_TOKEN
    for i, layer in enumerate(layers):
        parts, only_first = parts_of(layer), first_token and i == len(layers) - 1
        # MobileBERT's last layer is one of 24: not worth a form of its own for the first token
        layers[i] = ChannelsFirstLayer(parts, only_first) if parts else channels_first_layer(layer)
    setattr(base, stack, ChannelsFirst(getattr(base, stack)))
    return mask_4d.wrap(model, inputs, outputs, Format.COREML, pooling, carried)


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


def _unknown(model: Any) -> Problem:
    family = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    return Problem(
        "export.coreml.layout",
        f"'ane' has no rewrite for the encoder of '{family}' ({type(model).__name__}); "
        "allowed: encoders of bert, roberta, distilbert and mobilebert.",
        "Set export.coreml.layout: plain.",
    )
