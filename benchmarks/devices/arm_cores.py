"""Names of Arm cores by the numbers that they give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_ARM = "0x41"
_PARTS = {
    "0xd03": "Cortex-A53",
    "0xd04": "Cortex-A35",
    "0xd05": "Cortex-A55",
    "0xd07": "Cortex-A57",
    "0xd08": "Cortex-A72",
    "0xd09": "Cortex-A73",
    "0xd0a": "Cortex-A75",
    "0xd0b": "Cortex-A76",
    "0xd0c": "Neoverse-N1",
    "0xd0d": "Cortex-A77",
    "0xd40": "Neoverse-V1",
    "0xd41": "Cortex-A78",
    "0xd42": "Cortex-A78AE",
    "0xd44": "Cortex-X1",
    "0xd46": "Cortex-A510",
    "0xd47": "Cortex-A710",
    "0xd48": "Cortex-X2",
    "0xd49": "Neoverse-N2",
    "0xd4d": "Cortex-A715",
    "0xd4e": "Cortex-X3",
    "0xd4f": "Neoverse-V2",
    "0xd80": "Cortex-A520",
    "0xd81": "Cortex-A720",
    "0xd82": "Cortex-X4",
}
"""Part numbers of Arm's own cores (field PartNum of MIDR_EL1 in their reference manuals), as ``/proc/cpuinfo`` prints them."""


def core_names(parts: Sequence[str]) -> str:
    """Kinds of cores in words: ``4 × Cortex-A55, 4 × Cortex-A76``; cores of other makers by their numbers."""
    counted = Counter(parts)
    return ", ".join(f"{count} × {_core(part)}" for part, count in counted.items())


def _core(part: str) -> str:
    implementer, _, number = part.partition(":")
    return _PARTS.get(number, part) if implementer == _ARM else part
