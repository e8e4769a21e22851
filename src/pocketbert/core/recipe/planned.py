"""The plan of a student: sizes, latencies and training times of the students that a teacher can have, before any is trained.

`StudentPlan` is what `pocketbert plan` finds: a `PlannedStudent` for each shape, with a `PlannedFile` for each format and scheme.
`estimate_costs` estimates the figures of the shapes that were not exported from those of the shapes that were, and `choose_student`
takes the largest student inside the limits. `PlannedSection` is the part of it that stands in the recipe and that the report of the run
shows beside what was measured; `name_student` finds a recipe's own student in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import Field

from pocketbert.core.devices import LOCAL
from pocketbert.core.recipe.sections import Section
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.types import Provenance, Scheme

PRUNED_VOCABULARY = "-vocabulary"
"""End of the names of students whose vocabulary is pruned."""
AUTO = "auto"
"""Stands for the student that a run chooses by itself."""


class PlannedTime(Section):
    """Planned latency of a file on a device, for single real texts."""

    device: str = Field(LOCAL, description="The device, as in benchmark.devices.")
    threads: int = Field(1, description="Threads.")
    p50_ms: float = Field(description="Median in milliseconds.")
    p90_ms: float = Field(description="90th percentile in milliseconds.")
    by: Provenance = Field(Provenance.MEASURED, description="measured with random weights, or estimated from others.")


class PlannedFile(Section):
    """Planned size and latencies of one file of a student."""

    student: str = Field(description="Name of the student, such as layers-2.")
    file: str = Field(description="Path of the file in the artefact folder.")
    scheme: Scheme = Field(description="Scheme in the recipe's section quantize that makes the file.")
    bytes: int = Field(description="Size of the file.")
    by: Provenance = Field(
        Provenance.MEASURED, description="Size measured with random weights, or estimated from others."
    )
    times: list[PlannedTime] = Field(default_factory=list, description="Latencies.")


class PlannedSection(Section):
    """What `pocketbert plan` expected; the report shows it beside what was measured, and nothing else depends on it."""

    machine: str = Field("", description="The machine that the local latencies are of.")
    files: list[PlannedFile] = Field(default_factory=list, description="The files.")


class PlanLimits(Section):
    """The limits of a plan; None for no limit.

    Attributes:
        max_size_mb: Largest file in MB (1,000,000 bytes).
        max_p90_ms: Largest 90th percentile of the latency, on every device of the plan.
    """

    max_size_mb: float | None = None
    max_p90_ms: float | None = None

    def exceeded(self, file: PlannedFile) -> list[str]:
        """Return which limits a file exceeds, in words: ``size``, and ``p90 on DEVICE``; a device without a latency exceeds none."""
        over = ["size"] if self.max_size_mb is not None and file.bytes > self.max_size_mb * 1e6 else []
        if self.max_p90_ms is not None:
            over += [f"p90 on {time.device}" for time in file.times if time.p90_ms > self.max_p90_ms]
        return over

    @property
    def text(self) -> str:
        """The limits in words, such as ``at most 8 MB, p90 at most 3 ms``; empty without limits."""
        parts = [f"at most {self.max_size_mb:g} MB"] if self.max_size_mb is not None else []
        return ", ".join([*parts, *([f"p90 at most {self.max_p90_ms:g} ms"] if self.max_p90_ms is not None else [])])


class PlannedStudent(Section):
    """A student that the teacher can have.

    Attributes:
        name: Its name, such as ``layers-2-width-768-vocabulary``.
        layers: Encoder layers; 0 for a static student.
        width: Feed-forward neurons of each layer, if fewer than the teacher's.
        pieces: Pieces of its vocabulary.
        work: Multiplications for a token, relative to one of the teacher's layers.
        training_min: Estimated minutes of its training on this machine; None if not estimated.
        student: The section `student` of its recipe.
        files: Its files.
    """

    name: str
    layers: int
    width: int | None
    pieces: int
    work: float
    training_min: float | None = None
    student: StudentSection
    files: list[PlannedFile]


class StudentPlan(Section):
    """Sizes, latencies and training times of the students of a teacher, with limits and the choice.

    Attributes:
        name: Name of the run.
        task: Hub task name.
        teacher: The teacher as the recipe names it.
        machine: This machine.
        devices: Devices of the latencies.
        threads: Threads of the latencies.
        tokens: Mean number of tokens of the texts that were timed.
        limits: The limits.
        teacher_min: Estimated minutes of the teacher's fine-tuning; None if it is not fine-tuned, or that was not estimated.
        students: The students, the one with the least work first.
        chosen: Name of the chosen student; ``auto`` if the run is to choose among those inside, empty if none is inside the limits.
        keep: Share of the teacher's score that the student of a run with `student: auto` keeps.
        scheme: Scheme of the chosen student's files.
        notes: What a reader must know, a sentence each.
    """

    name: str
    task: str
    teacher: str
    machine: str
    devices: list[str]
    threads: int
    tokens: float
    limits: PlanLimits
    teacher_min: float | None = None
    students: list[PlannedStudent]
    chosen: str = ""
    keep: float | None = None
    scheme: Scheme | None = None
    notes: list[str] = Field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as a JSON-compatible dictionary, without what is None."""
        return self.model_dump(mode="json", exclude_none=True)

    def is_chosen(self, file: PlannedFile) -> bool:
        """Return whether a file has the chosen scheme and is of the chosen student, or of one that the run chooses among."""
        if file.scheme is not self.scheme:
            return False
        if self.chosen == AUTO:
            return not file.student.endswith(PRUNED_VOCABULARY) and not self.limits.exceeded(file)
        return file.student == self.chosen

    @property
    def choice(self) -> PlannedStudent | None:
        """The chosen student; None if the run is to choose, or none is inside the limits."""
        return next((student for student in self.students if student.name == self.chosen), None)


# --- figures of shapes that were not exported -------------------------------------------------------------------------


class StudentShape(NamedTuple):
    """The sizes of a student that decide what its files take.

    Attributes:
        layers: Encoder layers.
        neurons: Feed-forward neurons of all layers together.
        pieces: Pieces of the vocabulary.
    """

    layers: int
    neurons: int
    pieces: int = 0


def estimate_costs(known: Mapping[StudentShape, float], wanted: Sequence[StudentShape]) -> list[float]:
    """Estimate a figure of some shapes, such as bytes or milliseconds, from the shapes for which it was measured.

    The figure is taken as linear: each layer, neuron and piece of the vocabulary adds the same, and none takes something away.

    Args:
        known: The figure by shape.
        wanted: Shapes to estimate it for; those that are known get what was measured.
    """
    import numpy as np

    rows = np.array([(1, *shape) for shape in known], np.float64)
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-12)
    used = [0, 1, 2, 3]
    while True:
        terms, *_ = np.linalg.lstsq(rows[:, used] / scale[used], np.array(list(known.values()), np.float64), rcond=None)
        least = 1 + int(np.argmin(terms[1:])) if len(used) > 1 else 0
        if not least or terms[least] >= 0:  # a negative term is noise of the measurement
            break
        del used[least]
    each = np.zeros(4)
    each[used] = terms / scale[used]
    return [known[shape] if shape in known else max(0.0, float(np.array((1, *shape)) @ each)) for shape in wanted]


# --- the choice -------------------------------------------------------------------------------------------------------


def choose_student(
    students: Sequence[PlannedStudent], limits: PlanLimits, schemes: Sequence[Scheme]
) -> tuple[PlannedStudent, Scheme] | None:
    """Return the student with the most work whose files of one scheme are all inside the limits, and that scheme; None if there is none.

    Of students that differ in their vocabulary the one with all pieces is preferred, and of schemes the first.
    """
    fitting = [
        (student, scheme)
        for student in students
        for scheme in schemes
        if not any(limits.exceeded(file) for file in student.files if file.scheme is scheme)
    ]
    return max(fitting, key=lambda one: (one[0].work, one[0].pieces), default=None)


def name_student(section: StudentSection) -> str:
    """Return the name of a recipe's student in plans: ``static``, ``layers-2``, ``layers-2-width-768``; empty for other students.

    No student of a plan has another width, other heads or another family than the teacher, or, if it is static, a number of
    dimensions of its own.
    """
    own = (section.model, section.hidden, section.heads, section.family, section.dimensions)
    if section.layers is None or any(value is not None for value in own):
        return ""
    name = "static" if section.layers == 0 else f"layers-{section.layers}"
    if section.intermediate is not None:
        name += f"-width-{section.intermediate}"
    return name + (PRUNED_VOCABULARY if section.vocabulary is not None else "")
