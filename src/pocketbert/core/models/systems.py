"""Tasks, files and limits of a model family, from its row of the family table and the tables of tasks and formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pocketbert.core.families import Family
from pocketbert.core.formats import FORMATS
from pocketbert.core.tasks import TASKS
from pocketbert.core.types import Format


@dataclass(frozen=True)
class SystemFacts:
    """What one model family supports, for the table of model families in the docs.

    Attributes:
        tasks: Names of the tasks that the family has a head for.
        other_tasks: The reason for each task that the family does not support.
        files: Quantization schemes of each file format; empty if no exporter supports the family.
        notes: Limits, and reasons for missing signals and tasks, one text each.
    """

    tasks: tuple[str, ...]
    other_tasks: Mapping[str, str]
    files: Mapping[Format, tuple[str, ...]]
    notes: tuple[str, ...]

    @property
    def written(self) -> str:
        """The formats and their quantization schemes in one line; ``none`` if no exporter supports the family."""
        by_title = {FORMATS[name].title: schemes for name, schemes in self.files.items()}
        return "; ".join(f"{title} {', '.join(schemes)}" for title, schemes in by_title.items()) or "none"


def system_facts(row: Family) -> SystemFacts:
    """Collect the tasks, formats, schemes and limits of a model family from the tables of families and formats."""
    exported = row.instead_of_export is None
    tasks = tuple(t.value for t in TASKS if t.value not in row.invalid_tasks)
    notes = [*row.limits, *([] if exported else [f"no exporter writes it: {row.instead_of_export}"])]
    notes += [f"signal {signal}: {why}" for signal, why in row.invalid_signals.items()]
    notes += [f"task {task}: {why}" for task, why in row.invalid_tasks.items()]
    files: dict[Format, tuple[str, ...]] = {}
    for name, info in FORMATS.items() if exported else ():
        schemes = (f"{scheme} for {runtime}" if runtime else scheme.value for scheme, runtime in info.every_form)
        files[name] = tuple(schemes)
    return SystemFacts(tasks=tasks, other_tasks=dict(row.invalid_tasks), files=files, notes=tuple(notes))
