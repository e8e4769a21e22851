"""Heads whose stock form keeps an engine from what is the same everywhere else."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pocketbert.export.adapters.parts import full_name

_SPLIT = "transformers.models.mobilebert.modeling_mobilebert.MobileBertLMPredictionHead"


def lean_head(model: Any) -> Any:
    """Rewrite the head of a model for export, in every format.

    Args:
        model: A transformers model with a head in eval mode. **It is changed in place**: pass a deep copy.

    Returns:
        The model; unchanged where there is nothing to gain.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if full_name(child) == _SPLIT:
                setattr(parent, name, SplitDecoder(child))
    return model


class SplitDecoder(nn.Module):
    """MobileBERT's decoder as the sum of two products.

    The stock module glues the transposed embedding table to a second matrix before each product. As one constant, the
    table would be stored twice in a file, and left to the engine, it is copied in every run and no quantizer sees a
    weight. The first product reads the table itself, which the embedding shares.
    """

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.transform, self.decoder = head.transform, head.decoder
        more, words = head.dense.weight.shape
        self.rest = nn.Linear(more, words, bias=False, device="meta") if more else None
        if self.rest is not None:
            self.rest.weight = nn.Parameter(head.dense.weight.detach().t().contiguous())

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Scores of every word, [B, L, H] to [B, L, V]."""
        states: Tensor = self.transform(hidden_states)
        width = self.decoder.in_features
        scores: Tensor = self.decoder(states[..., :width])
        return scores if self.rest is None else scores + self.rest(states[..., width:])
