"""Run model files: one predictor over the engines of a phone, and a Core ML evaluator for every operating system.

Needs neither torch nor transformers. `pocketbert.load` is all that an app needs; the names here open a single file.
They are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketbert.core.plugins import make_facade_dir, make_facade_getattr

if TYPE_CHECKING:
    from pocketbert.core.predict.predictor import Predictor, feed
    from pocketbert.core.predict.tokenization import TextTokenizer
    from pocketbert.runtime.coreml.evaluator import Evaluator, EvaluatorPrecision
    from pocketbert.runtime.coreml.predictor import CoremlPredictor
    from pocketbert.runtime.coreml.scan import activation_statistics, layer_differences, overflow_scan
    from pocketbert.runtime.model import Model, load

__all__ = [
    "CoremlPredictor",
    "Evaluator",
    "EvaluatorPrecision",
    "Model",
    "Predictor",
    "TextTokenizer",
    "activation_statistics",
    "feed",
    "layer_differences",
    "load",
    "overflow_scan",
]

_PLACES = {
    "core.predict.predictor": (
        "Predictor",
        "feed",
    ),
    "core.predict.tokenization": ("TextTokenizer",),
    "runtime.coreml.evaluator": (
        "Evaluator",
        "EvaluatorPrecision",
    ),
    "runtime.coreml.predictor": ("CoremlPredictor",),
    "runtime.coreml.scan": (
        "activation_statistics",
        "layer_differences",
        "overflow_scan",
    ),
    "runtime.model": (
        "Model",
        "load",
    ),
}
"""Names by the module that defines them."""

__getattr__ = make_facade_getattr(__name__, _PLACES)

__dir__ = make_facade_dir(__name__, __all__)
