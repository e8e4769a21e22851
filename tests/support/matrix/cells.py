"""Which cells the matrix has, which of them are empty and why, and how they are dealt out to several machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import transformers

from pocketbert.core.families import Family, all_families
from pocketbert.core.formats import FORMATS
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Scheme
from support.tiny import tiny_config

PAIRS = "pairs"
"""The task text-classification of two texts: the same file, other inputs."""
TASK_CELLS: dict[str, TaskName] = {
    "text-classification": TaskName.TEXT_CLASSIFICATION,
    PAIRS: TaskName.TEXT_CLASSIFICATION,
    **{name.value: name for name in TASKS if name is not TaskName.TEXT_CLASSIFICATION},
}
"""Task of every column of the matrix."""
EXTRA: dict[Format, tuple[Scheme, ...]] = {Format.COREML: (Scheme.FP16,)}
"""Schemes of a format between fp32 and 8 bits."""


def schemes(format: Format) -> tuple[Scheme, ...]:
    """What is measured of a format: fp32, and what a recipe gets that asks for int8."""
    smaller = FORMATS[format].smaller(Scheme.INT8)
    assert smaller is not None
    return (Scheme.FP32, *EXTRA.get(format, ()), smaller)


@dataclass(frozen=True, order=True)
class Cell:
    """One cell: the name of the system, column of `TASK_CELLS`, names of the format and the scheme."""

    row: str
    task: str
    format: str
    scheme: str

    def __str__(self) -> str:
        return f"{self.row} {self.task} {self.format} {self.scheme}"


@dataclass(frozen=True)
class Unit:
    """Cells of a system that are measured together, because their files are made from one another."""

    row: str
    task: TaskName
    format: Format

    @property
    def columns(self) -> list[str]:
        """Columns of the matrix that these files fill."""
        return [column for column, task in TASK_CELLS.items() if task is self.task]

    @property
    def cells(self) -> list[Cell]:
        """The cells."""
        return [Cell(self.row, c, str(self.format), str(s)) for s in schemes(self.format) for c in self.columns]

    def __str__(self) -> str:
        return f"{self.row}-{self.task}-{self.format}"


def empty(row: Family, task: TaskName) -> str | None:
    """Why a system has no cell for a task; None where it has."""
    if row.instead_of_export is not None:
        return f"no exporter writes it: {row.instead_of_export}"
    return row.invalid_tasks.get(task.value)


def has_class(row: Family, task: TaskName) -> bool:
    """Whether transformers has a class with the head of a task for a system."""
    auto = getattr(transformers, TASKS[task].auto_class)
    return type(tiny_config(row.name, 1, ())) in auto._model_mapping


def graph_of(row: Family) -> str:
    """Name of the row whose cells a system shares: its files are the same."""
    return row.graph


def rows() -> list[Family]:
    """The systems of the table with layers and a graph of their own."""
    return [row for row in all_families() if graph_of(row) == row.name and row.has_layers]


def units(names: Sequence[str] | None = None) -> list[Unit]:
    """All units in a fixed order, or those of some systems."""
    chosen = [r for r in rows() if names is None or r.name in names]
    return [
        Unit(row.name, task, format)
        for format in (Format.ONNX, Format.TFLITE, Format.COREML)
        for task in dict.fromkeys(TASK_CELLS.values())
        for row in chosen
        if empty(row, task) is None
    ]


def one_per_rewrite() -> list[Unit]:
    """The cheapest unit for each adapter: the first system that names it."""
    first: dict[str, str] = {}
    for row in rows():
        if empty(row, TaskName.TEXT_CLASSIFICATION) is None:
            first.setdefault(row.adapter, row.name)
    return [Unit(name, TaskName.TEXT_CLASSIFICATION, Format.ONNX) for name in first.values()]


def empty_cells() -> Iterator[tuple[str, str, str]]:
    """System, column and reason of every empty cell."""
    for row in rows():
        for column, task in TASK_CELLS.items():
            why = empty(row, task)
            if why is not None:
                yield row.name, column, why
