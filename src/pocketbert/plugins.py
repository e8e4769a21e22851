"""Names for packages that add families, methods, formats, schemes or devices; see docs/extending.md.

Names are imported when they are first used, because some of them need torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketbert.core.plugins import make_facade_dir, make_facade_getattr

if TYPE_CHECKING:
    from pocketbert.benchmarks.devices.protocol import Connection, Device, OpenedFile, Sample, Watch
    from pocketbert.benchmarks.devices.table import register_device
    from pocketbert.core.devices import DeviceInfo, Figure
    from pocketbert.core.families import (
        CheckpointCode,
        Family,
        LayerParts,
        Objective,
        TokenizerKind,
        register_adapter,
        register_capture,
        register_checkpoints,
        register_family,
        register_layer_parts,
    )
    from pocketbert.core.formats import Bounds, FormatInfo, register_format
    from pocketbert.core.recipe.sections import GeneralText, Optimisation, Stage, StagePlace
    from pocketbert.core.types import Format, Provenance, Runtime, Scheme
    from pocketbert.distill.capture.recorder import AttentionRecorder, QueryKeyValue, active_recorder
    from pocketbert.distill.methods.method import (
        CarriedPart,
        Heads,
        Method,
        MethodSource,
        Needs,
        StageJob,
        StageResult,
        register_method,
    )
    from pocketbert.distill.students.build import ClassChange, register_class_change
    from pocketbert.export.adapters.mask_4d import ExportPlan, with_additive_mask
    from pocketbert.export.adapters.post_norm import bert_layer
    from pocketbert.pipeline.formats.base import Extras, FormatPlace, ModelFile, RunModel, register_format_place
    from pocketbert.quantize.table import Plan, Reader, SchemeRow, register_reader, register_scheme
    from pocketbert.quantize.weights import ExpectedWeights
    from pocketbert.runtime.engines import register_engine

__all__ = [
    "AttentionRecorder",
    "Bounds",
    "CarriedPart",
    "CheckpointCode",
    "ClassChange",
    "Connection",
    "Device",
    "DeviceInfo",
    "ExpectedWeights",
    "ExportPlan",
    "Extras",
    "Family",
    "Figure",
    "Format",
    "FormatInfo",
    "FormatPlace",
    "GeneralText",
    "Heads",
    "LayerParts",
    "Method",
    "MethodSource",
    "ModelFile",
    "Needs",
    "Objective",
    "OpenedFile",
    "Optimisation",
    "Plan",
    "Provenance",
    "QueryKeyValue",
    "Reader",
    "RunModel",
    "Runtime",
    "Sample",
    "Scheme",
    "SchemeRow",
    "Stage",
    "StageJob",
    "StagePlace",
    "StageResult",
    "TokenizerKind",
    "Watch",
    "active_recorder",
    "bert_layer",
    "register_adapter",
    "register_capture",
    "register_checkpoints",
    "register_class_change",
    "register_device",
    "register_engine",
    "register_family",
    "register_format",
    "register_format_place",
    "register_layer_parts",
    "register_method",
    "register_reader",
    "register_scheme",
    "with_additive_mask",
]

_PLACES = {
    "benchmarks.devices.protocol": ("Connection", "Device", "OpenedFile", "Sample", "Watch"),
    "benchmarks.devices.table": ("register_device",),
    "core.devices": ("DeviceInfo", "Figure"),
    "core.families": (
        "CheckpointCode",
        "Family",
        "LayerParts",
        "Objective",
        "TokenizerKind",
        "register_adapter",
        "register_capture",
        "register_checkpoints",
        "register_family",
        "register_layer_parts",
    ),
    "core.formats": ("Bounds", "FormatInfo", "register_format"),
    "core.recipe.sections": ("GeneralText", "Optimisation", "Stage", "StagePlace"),
    "core.types": ("Format", "Provenance", "Runtime", "Scheme"),
    "distill.capture.recorder": ("AttentionRecorder", "QueryKeyValue", "active_recorder"),
    "distill.methods.method": (
        "CarriedPart",
        "Heads",
        "Method",
        "MethodSource",
        "Needs",
        "StageJob",
        "StageResult",
        "register_method",
    ),
    "distill.students.build": ("ClassChange", "register_class_change"),
    "export.adapters.mask_4d": ("ExportPlan", "with_additive_mask"),
    "export.adapters.post_norm": ("bert_layer",),
    "pipeline.formats.base": ("Extras", "FormatPlace", "ModelFile", "RunModel", "register_format_place"),
    "quantize.table": ("Plan", "Reader", "SchemeRow", "register_reader", "register_scheme"),
    "quantize.weights": ("ExpectedWeights",),
    "runtime.engines": ("register_engine",),
}
"""Names by the module that defines them."""

__getattr__ = make_facade_getattr(__name__, _PLACES)

__dir__ = make_facade_dir(__name__, __all__)
