"""Make a model of any family record its attention inputs: `record_attention`.

`pocketbert.core.families` names the capture of each family, which the imported modules register.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pocketbert.core.families import CAPTURES, Family, check_distillable
from pocketbert.distill.capture import (
    dense_bands,
    disentangled,  # noqa: F401 - it registers itself
    own_attention,  # noqa: F401 - it registers itself
    recorder,
    xlnet,  # noqa: F401 - it registers itself
)
from pocketbert.distill.capture.recorder import AttentionRecorder, CapturingModule


def record_attention(
    model: Any, family: Family, layers: Iterable[int], relations: Iterable[int] = (), *, stop: bool = False
) -> AttentionRecorder:
    """Make a model's attention layers record scores, queries, keys and values of chosen layers; return the recorder.

    Args:
        model: A transformers model; its attention is replaced by one that records.
        family: Names, layer paths and inputs of the model's family.
        layers: Layers whose scores to keep, from 0.
        relations: Layers whose queries, keys and values to keep.
        stop: Whether a pass ends within the last of these layers; see `AttentionRecorder`.

    Returns:
        The recorder, a context manager for each forward pass.

    Raises:
        InputError: If the family names a way to record attention that no plugin has registered, or if an entry of the
            model's configuration rules out recording or distillation.
        ValueError: If the model has no such layer.
    """
    check_distillable(family, model.config.to_dict())
    CAPTURES.find(family.capture, f"family {family.name}")(model)
    return AttentionRecorder(layers, model.config.num_hidden_layers, relations, stop=stop)


def records_attention(model: Any) -> bool:
    """Return whether a model's attention was replaced by one that records; see `record_attention`.

    Args:
        model: A transformers model.
    """
    if model.config._attn_implementation == recorder.ATTENTION_NAME or dense_bands.is_installed(model):
        return True
    return any(isinstance(module, CapturingModule) for module in model.modules())


def query_width(config: Any) -> int:
    """Return the number of channels of a token's query over all heads, from a model's configuration.

    It is the width of the model, except for MobileBERT, whose attention lies within the bottleneck.
    """
    return int(getattr(config, "true_hidden_size", config.hidden_size))
