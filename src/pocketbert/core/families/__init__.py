"""The systems of the family: one table of facts, and registries of the code that its rows name.

Users add a system with `register_family`, and what code it needs with `register_adapter`, `register_capture`,
`register_layer_parts` and `register_checkpoints`; an installed package does so through an entry point (`pocketbert.core.loading.plugins`).
"""

from pocketbert.core.families.code import (
    ADAPTERS,
    CAPTURES,
    CHECKPOINTS,
    LAYER_PARTS,
    CheckpointCode,
    LayerParts,
    register_adapter,
    register_capture,
    register_checkpoints,
    register_layer_parts,
)
from pocketbert.core.families.family import ATTENTION_KEY, Family, Objective, TokenizerKind
from pocketbert.core.families.forms import FORM_KEY, TEXT_ONLY, ExportForm, GraphInput, Meaning
from pocketbert.core.families.released import ReleasedConfig
from pocketbert.core.families.table import (
    all_families,
    check_exported,
    check_pruned,
    check_taught,
    chosen_row,
    family_named,
    family_of,
    register_family,
    suggested_row,
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
    "check_exported",
    "check_pruned",
    "check_taught",
    "chosen_row",
    "family_named",
    "family_of",
    "register_adapter",
    "register_capture",
    "register_checkpoints",
    "register_family",
    "register_layer_parts",
    "suggested_row",
]
