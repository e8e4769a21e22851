"""Which of transformers' attentions a class runs with."""

from __future__ import annotations

from typing import Any


def library_attention(kind: Any) -> str:
    """Name the fastest attention that transformers has for a class: a fused one, or the one that is spelled out.

    Args:
        kind: A model class of transformers.
    """
    return "sdpa" if kind._supports_sdpa else "eager"
