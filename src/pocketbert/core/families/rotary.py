"""Checks what config.json says of rotary positions, whatever the version of transformers that wrote it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

KINDS = ("full_attention", "sliding_attention")
TYPES = ("default", "linear")
"""Kinds of scaling whose angles depend on nothing but the position: others change with the length of the input."""
_LARGEST = 1e9
ENTRIES = ("rope_parameters", "rope_scaling")
_NUMBERS = ("rope_theta", "global_rope_theta", "local_rope_theta")


def rotary_problems(content: Mapping[str, Any]) -> Iterator[str]:
    """List what no rotary positions can be, one sentence each.

    Args:
        content: The content of config.json.
    """
    for key in _NUMBERS:
        if key in content:
            yield from _number(key, content[key])
    for key in ENTRIES:
        value = content.get(key)
        if value is None:
            continue
        nested = isinstance(value, dict) and set(value) <= set(KINDS)
        for part in value.values() if nested else [value]:
            yield from _parameters(key, part)
    kinds, layers = content.get("layer_types"), content.get("num_hidden_layers")
    if kinds is not None and (
        not isinstance(kinds, list) or any(k not in KINDS for k in kinds) or len(kinds) != (layers or len(kinds))
    ):
        yield f"layer_types is {str(kinds)[:60]}; a list of {' and '.join(KINDS)}, one for each layer, is expected."


def _parameters(key: str, part: Any) -> Iterator[str]:
    if not isinstance(part, dict):
        yield f"{key} holds {str(part)[:40]}; an object with rope_type and rope_theta is expected."
        return
    kind = part.get("rope_type", part.get("type", TYPES[0]))
    if kind not in TYPES:
        yield f"{key} has the rope_type {str(kind)[:40]}; only {' and '.join(TYPES)} are computed."
    for name in ("rope_theta", "factor"):
        if name in part:
            yield from _number(f"{name} of {key}", part[name])
    odd = sorted(str(n)[:40] for n in set(part) - {"rope_type", "type", "rope_theta", "factor"})
    if odd:
        yield f"{key} has {', '.join(odd[:3])}, which nothing here computes."


def _number(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= _LARGEST:
        yield f"{key} is {str(value)[:40]}; a number from 1 to {_LARGEST:g} is expected."
