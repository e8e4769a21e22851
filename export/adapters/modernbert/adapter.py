"""ModernBERT: a mask of padding for its global layers, one with a window for its local ones, rotary positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import ADAPTERS
from pocketbert.core.predict.pooling import Pooling, PoolingKind
from pocketbert.core.types import Format, Layout
from pocketbert.export.adapters.known_parts import known_parts
from pocketbert.export.adapters.lean.slim import slim
from pocketbert.export.adapters.mask_4d import MASKED
from pocketbert.export.adapters.modernbert.rotary import RotaryAngles, RotaryTable
from pocketbert.export.adapters.parts import encoder_layers
from pocketbert.export.adapters.plan import ExportPlan
from pocketbert.export.heads import pooled

GLOBAL, LOCAL = "full_attention", "sliding_attention"
"""What config.json calls the two kinds of layers."""


def with_two_masks(model: Any, plan: ExportPlan) -> nn.Module:
    """Wrap a ModernBERT into a module with explicit named inputs and plain tensor outputs, ready for torch.export.

    Args:
        model: A transformers model with a head in eval mode; rewritten in place.
        plan: What the graph is for.

    Returns:
        The module, in eval mode.

    Raises:
        InputError: If the plan's layout is not possible for the model, or its layers are not ModernBERT's.
    """
    if plan.layout is Layout.ANE:
        what = f"'ane' has no rewrite for the encoder of '{model.config.model_type}' ({type(model).__name__})."
        raise InputError(Problem("export.coreml.layout", what, "Set export.coreml.layout: plain."))
    if encoder_layers(model.base_model, plan.family, known_parts(plan.family))[1] is None:
        kinds = sorted({type(layer).__name__ for layer in model.base_model.layers})
        what = f"{type(model).__name__} has layers of the classes {', '.join(kinds)}; allowed: ModernBertEncoderLayer."
        raise InputError(Problem("model", what, "Register an adapter for these with register_adapter."))
    model.set_attn_implementation("eager")
    return _TwoMasks(slim(model, plan.family, plan.format), plan).eval()


class _TwoMasks(nn.Module):
    def __init__(self, model: Any, plan: ExportPlan) -> None:
        super().__init__()
        self.model, self.outputs, self.pooling = model, plan.outputs, plan.pooling
        config = model.config
        self.window = config.local_attention // 2
        angles = RotaryAngles(model.base_model.rotary_emb, tuple(sorted(set(config.layer_types))))
        table = plan.format is Format.COREML
        self.rotary = RotaryTable(angles, config.max_position_embeddings) if table else angles
        kind = getattr(config, "classifier_pooling", PoolingKind.CLS)
        self.classified = Pooling(kind=PoolingKind(kind), normalize=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        states = self._encoded(input_ids, attention_mask)
        if "sentence_embedding" in self.outputs:
            return states, pooled(states, attention_mask, self.pooling)
        if "last_hidden_state" in self.outputs:
            return (states,)
        if "start_logits" in self.outputs:
            logits: Tensor = self.model.classifier(self.model.head(states))
            return tuple(part.squeeze(-1) for part in torch.split(logits, 1, -1))
        if type(self.model).__name__.endswith("ForSequenceClassification"):
            states = pooled(states, attention_mask, self.classified)
        decoder = getattr(self.model, "decoder", None)
        return ((self.model.classifier if decoder is None else decoder)(self.model.head(states)),)

    def _encoded(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        base, masks = self.model.base_model, self._masks(attention_mask)
        positions = self.rotary(input_ids.shape[1])
        states: Tensor = base.embeddings(input_ids)
        for layer in base.layers:
            states = layer(states, masks[layer.attention_type], positions[layer.attention_type])
        return base.final_norm(states)  # type: ignore[no-any-return]

    def _masks(self, attention_mask: Tensor) -> dict[str, Tensor]:
        """What is added to scores: [B, 1, 1, L] for padding, [B, 1, L, L] for padding and the window."""
        real = attention_mask[:, None, None, :].to(torch.float32)
        places = torch.arange(attention_mask.shape[1], dtype=torch.float32)
        distance = (places[:, None] - places[None, :]).abs()
        band = (self.window + 1 - distance).clamp(0, 1)[None, None]
        return {GLOBAL: (1.0 - real) * MASKED, LOCAL: (1.0 - real * band) * MASKED}


ADAPTERS.add("two-masks", with_two_masks)
