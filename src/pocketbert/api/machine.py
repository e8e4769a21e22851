"""What this machine has."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pocketbert.pipeline.doctor import Diagnosis


def doctor() -> Diagnosis:
    """Report versions, CPU features, the number type used in training, and which optional parts are installed."""
    from pocketbert.pipeline.doctor import diagnose

    return diagnose()
