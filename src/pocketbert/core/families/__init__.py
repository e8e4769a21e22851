"""The systems of the family: one table of facts, and registries of the code that its rows name.

Users add a system with `register_family`, and what code it needs with `register_adapter`, `register_capture`,
`register_layer_parts` and `register_checkpoints`; an installed package does so through an entry point
(`pocketbert.core.plugins`).
"""

from pocketbert.core.families.family import (
    ATTENTION_KEY,
    FORM_KEY,
    TEXT_ONLY,
    ExportForm,
    Family,
    GraphInput,
    Meaning,
    Objective,
    ReleasedConfig,
    TokenizerKind,
)
from pocketbert.core.families.table import (
    ADAPTERS,
    CAPTURES,
    CHECKPOINTS,
    LAYER_PARTS,
    CheckpointCode,
    LayerParts,
    all_families,
    check_distillable,
    check_exportable,
    check_prunable,
    family_of,
    find_family,
    register_adapter,
    register_capture,
    register_checkpoints,
    register_family,
    register_layer_parts,
)

__all__ = [
    "ADAPTERS",
    "ATTENTION_KEY",
    "CAPTURES",
    "CHECKPOINTS",
    "FORM_KEY",
    "LAYER_PARTS",
    "TEXT_ONLY",
    "CheckpointCode",
    "ExportForm",
    "Family",
    "GraphInput",
    "LayerParts",
    "Meaning",
    "Objective",
    "ReleasedConfig",
    "TokenizerKind",
    "all_families",
    "check_distillable",
    "check_exportable",
    "check_prunable",
    "family_of",
    "find_family",
    "register_adapter",
    "register_capture",
    "register_checkpoints",
    "register_family",
    "register_layer_parts",
]
