"""The Python that runs this process."""

from __future__ import annotations

import sys


def can_start_python() -> bool:
    """Whether a process of this Python can be started; a frozen application would start itself once more."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)
