"""What the searches of a test read and write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pocketbert.quantize
from pocketbert.core.data.source import DataSource
from pocketbert.quantize import Plan
from support.tiny_texts import task_rows, write_lines


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Plan]]:
    """The plans of all files that were written, in order."""
    out: list[Plan] = []
    write = pocketbert.quantize.quantize

    def keep(source: Path, destination: Path, plan: Plan) -> Any:
        out.append(plan)
        return write(source, destination, plan)

    monkeypatch.setattr(pocketbert.quantize, "quantize", keep)
    yield out


@pytest.fixture
def schemes_of(plans: list[Plan]) -> Callable[[], list[str]]:
    """`schemes_of()`: their schemes."""
    return lambda: [plan.scheme.value for plan in plans]


@pytest.fixture
def rows(tmp_path: Path) -> tuple[DataSource, DataSource]:
    """Rows to score on, and rows to calibrate on."""
    data = write_lines(tmp_path / "dev.jsonl", task_rows(60, 5))
    train = write_lines(tmp_path / "train.jsonl", task_rows(80, 9))
    return DataSource.at(str(data)), DataSource.at(str(train))
