"""A tiny model that is exact: what files of it are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Layout
from pocketbert.export.prepare import PreparedPredictor, prepare


def exact_bert(
    open_tiny: Callable[..., Any], layers: int, format: Format, layout: Layout = Layout.PLAIN
) -> PreparedPredictor:
    """The classifier that the fixture `open_tiny` makes, rewritten as an exporter does."""
    task = TASKS[TaskName.TEXT_CLASSIFICATION]
    model, folder, _ = open_tiny("bert", layers)
    return PreparedPredictor(prepare(model, folder.family, task, format, layout), folder.family, task)
