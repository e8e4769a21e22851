"""Configuration of IB-BERT, the inverted-bottleneck BERT that MobileBERT learns from."""

from __future__ import annotations

from typing import Any

from transformers import MobileBertConfig

from pocketbert.core.errors import InputError, Problem

_FIXED = {"use_bottleneck": True, "use_bottleneck_attention": False, "key_query_shared_bottleneck": False}
"""What makes an IB-BERT one: blocks with a width of their own, whose queries, keys and values read the block's input."""


class IbBertConfig(MobileBertConfig):  # type: ignore[misc]
    """Sizes of an IB-BERT; the defaults are IB-BERT-large (Sun et al. 2020, arXiv 2004.02984, table 1).

    It is a configuration of MobileBERT with other values (config/uncased_L-24_H-1024_B-512_A-4.json of the original
    code), save that transformers' MobileBERT cannot run them. GELU is the tanh form, as in the original code.

    Attributes:
        hidden_size: Width between blocks, which the student shares.
        intra_bottleneck_size: Width within a block, all heads together.
        intermediate_size: Width of the feed-forward part.
        embedding_size: Width of the embedding table.

    Raises:
        InputError: If the values describe another architecture, or a width is not a multiple of the heads.
    """

    model_type = "ib_bert"

    intermediate_size: int = 4096
    hidden_act: str = "gelu_pytorch_tanh"
    hidden_dropout_prob: float | int = 0.1
    intra_bottleneck_size: int = 1024
    key_query_shared_bottleneck: bool = False
    num_feedforward_networks: int = 1
    normalization_type: str = "layer_norm"

    def __post_init__(self, **kwargs: Any) -> None:
        """Refuse what is no IB-BERT."""
        super().__post_init__(**kwargs)
        found = {name: getattr(self, name) for name in _FIXED}
        problems = [
            Problem(
                f"config.json {name}",
                f"{found[name]} is another architecture; an IB-BERT has {value}.",
                "Use transformers' MobileBertConfig for it.",
            )
            for name, value in _FIXED.items()
            if found[name] != value
        ]
        if self.intra_bottleneck_size % self.num_attention_heads:
            problems.append(
                Problem(
                    "config.json intra_bottleneck_size",
                    f"{self.intra_bottleneck_size} is not a multiple of {self.num_attention_heads} heads.",
                )
            )
        if problems:
            raise InputError(problems)
