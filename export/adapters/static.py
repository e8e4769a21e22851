"""Wrap a static student for export: it has no layers to rewrite, only a lookup, a mean or windows over neighbours, and a small head."""

from __future__ import annotations

from typing import Any

from torch import nn

from pocketbert.core.families import ADAPTERS
from pocketbert.export.adapters.mask_4d import ExportPlan, check_computed, wrap_model


def without_layers(model: Any, plan: ExportPlan) -> nn.Module:
    """Wrap a static student with named inputs [B, L] and plain tensor outputs.

    Raises:
        InputError: If the plan's layout is not ``plain``, or config.json has a value that is not supported.
    """
    check_computed(model, plan)
    return wrap_model(model, plan, additive=False)


ADAPTERS.add("static", without_layers)
