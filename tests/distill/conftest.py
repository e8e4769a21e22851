from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def own_precision() -> Iterator[None]:
    """Accelerate keeps the first precision for the whole process: a test that asks for fp32 must not choose it for others."""
    yield
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)
