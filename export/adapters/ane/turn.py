"""An exact rewrite of BERT-like encoders for Apple's Neural Engine. No claim about latency: nobody measured it here.

Between the embeddings and the head, activations lie channels first, [B, C, 1, L]. Classes are matched by full name, as
in `lean`; a model with another layer than the one that was registered is refused.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family, LayerParts, all_families
from pocketbert.export.adapters.ane.layers import ChannelsFirstLayer
from pocketbert.export.adapters.known_parts import known_parts
from pocketbert.export.adapters.lean.shared import SharedStack
from pocketbert.export.adapters.parts import encoder_layers, reads_first_token


def turn(model: Any, family: Family) -> Any:
    """Rewrite the encoder of a model to work channels first.

    Args:
        model: A transformers model with a head in eval mode. **It is changed in place**: pass a deep copy.
        family: Its row of the family table.

    Returns:
        The model.

    Raises:
        InputError: If the model has a layer that nothing is registered for.
    """
    base, known = getattr(model, "base_model", model), known_parts(family)
    stack, layers = encoder_layers(base, family, known)
    if layers is None or known is None or not _turns(known):
        raise InputError(_unknown(model))
    first_token = reads_first_token(model, family, known)
    if known.stack is not None and known.post_norm is not None:
        shared = known.stack(base.get_submodule(stack))
        runs = [ChannelsFirstLayer(known.post_norm(layer), False) for layer in shared.layers]
        base.set_submodule(stack, SharedStack(shared, runs, first_token, channels_first=True))
        return model
    for i, layer in enumerate(layers):
        if known.post_norm is not None:
            layers[i] = ChannelsFirstLayer(known.post_norm(layer), first_token and i == len(layers) - 1)
        elif known.channels_first is not None:
            # all tokens: MobileBERT's last layer is one of 24, not worth a form of its own for the first token
            layers[i] = known.channels_first(layer)
    base.set_submodule(stack, ChannelsFirst(base.get_submodule(stack)))
    return model


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


def _turns(known: LayerParts | None) -> bool:
    return known is not None and (known.post_norm is not None or known.channels_first is not None)


def _unknown(model: Any) -> Problem:
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    names = [
        f.name for f in all_families() if f.loads_as is None and f.instead_of_export is None and _turns(known_parts(f))
    ]
    return Problem(
        "export.coreml.layout",
        f"'ane' has no rewrite for the encoder of '{kind}' ({type(model).__name__}); "
        f"allowed: encoders of {', '.join(names[:-1])} and {names[-1]}.",
        "Set export.coreml.layout: plain.",
    )
