"""How MobileBERT's layers, with their bottlenecks, are rewritten."""

from __future__ import annotations

from pocketbert.core.families import LAYER_PARTS, LayerParts
from pocketbert.export.adapters import half_range
from pocketbert.export.adapters.ane.mobilebert import channels_first_layer
from pocketbert.export.adapters.lean.heads import lean_head
from pocketbert.export.adapters.lean.mobilebert import lean_layer

LAYER_PARTS.add(
    "mobilebert",
    LayerParts(
        layer=half_range.LAYER,
        lean=lean_layer,
        channels_first=channels_first_layer,
        head=lean_head,
        half_range=half_range.fit,
    ),
)
