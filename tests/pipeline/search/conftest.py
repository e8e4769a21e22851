"""What the searches of a test wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pocketbert.quantize
from pocketbert.quantize import Plan


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The plans that were written, as they are written."""
    out: list[str] = []
    write = pocketbert.quantize.quantize

    def count(source: Path, destination: Path, plan: Plan) -> Any:
        out.append(plan.scheme.value)
        return write(source, destination, plan)

    monkeypatch.setattr(pocketbert.quantize, "quantize", count)
    return out
