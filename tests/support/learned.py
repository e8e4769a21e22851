"""Learned ranges of a module that no training made: too small, so that nobody takes them for measured ones."""

from __future__ import annotations

from torch import nn

from pocketbert.core.families.weight_records import LearnedRanges, ProductRanges, product_fingerprint
from pocketbert.core.types import Format, Runtime, Scheme

SMALL = ProductRanges(inputs=(-0.25, 0.5), outputs=(-0.5, 0.25))


def learned_of(module: nn.Module, format: Format, runtime: Runtime | None = None) -> LearnedRanges:
    """The same small ranges for every linear layer of a module; for an NPU, for those that have 8 bits there."""
    linear = [m for m in module.modules() if isinstance(m, nn.Linear)]
    whole = runtime in (Runtime.NPU, Runtime.QNN)
    chosen = [m.weight for m in linear if not whole or m.weight.shape[0] >= m.weight.shape[1]]
    own = ProductRanges(outputs=SMALL.outputs) if runtime is Runtime.NPU else SMALL
    products = {product_fingerprint(w.detach().numpy()): own for w in chosen}
    return LearnedRanges(scheme=Scheme.A8W8, format=format, runtime=runtime, products=products)
