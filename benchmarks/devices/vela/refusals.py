"""Read from vela's log why operators stay on the CPU."""

from __future__ import annotations

import re

_REFUSED = re.compile(
    r"^Warning \([\w ]+\) operator: (?P<type>\w+), .*\n(?P<why>Reason: (?:.+\n?)+)",
    re.MULTILINE,
)
_TENSOR = re.compile(r" \([^()]*\)$", re.MULTILINE)
_LIST = "Feature-map dataTypes must be one of"
"""A list that follows a refused type and differs by NPU."""
UNTOLD = "the log of the compiler gives no reason"


def vela_reasons(log: str) -> dict[str, str]:
    """Why operators were refused, by their type; several reasons of one type are joined.

    Args:
        log: What vela printed.
    """
    found: dict[str, dict[str, None]] = {}
    for refused in _REFUSED.finditer(log):
        lines = _TENSOR.sub("", refused["why"].removeprefix("Reason: ").strip()).splitlines()
        told = [line.strip() for line in lines if not line.startswith(_LIST)]
        found.setdefault(refused["type"], {})[": ".join(told)] = None
    return {kind: "; ".join(why) for kind, why in found.items()}


def last_error(log: str) -> str:
    """The line that tells why vela failed: its own error, else the last one."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    told = [line for line in lines if re.match(r"(Error\b|[\w.]*(?:Error|Exception)\b)", line)]
    return (told or lines or ["no output"])[-1][:300]
