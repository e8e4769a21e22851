"""PocketBERT: distil, export, quantize, verify and measure BERT-family encoders for phones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pocketbert.core.families import CHECKPOINTS
from pocketbert.core.host.telemetry import switch_off_telemetry

if TYPE_CHECKING:
    from pocketbert.core.predict.answers import Prediction
    from pocketbert.runtime.model import Model, load

__all__ = ["Model", "Prediction", "load"]

switch_off_telemetry()  # before any submodule can import a library that reads the variables when it is imported


def _checkpoints_of_distill() -> None:
    from pocketbert.distill.students import checkpoints  # noqa: F401 - core reads them, and may not import the wing


CHECKPOINTS.add_wing(_checkpoints_of_distill)


def __getattr__(name: str) -> Any:
    # Lazy, so that `pocketbert --help` imports neither numpy nor an engine.
    if name == "Prediction":
        from pocketbert.core.predict.answers import Prediction

        return Prediction
    if name in __all__:
        from pocketbert.runtime import model

        return getattr(model, name)
    raise AttributeError(f"module 'pocketbert' has no attribute '{name}'")
