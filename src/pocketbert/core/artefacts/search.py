"""Records for folders and reports: of a budget search, of the students that a run chose among, and of roles in a file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from pocketbert.core.metrics import METRICS
from pocketbert.core.types import Calibration, Format, Role, Runtime, Scheme

SEARCH_FILE = "search.json"
"""File of a `BudgetSearch` in a run folder."""
TRIED_FILE = "students.json"
"""File of the `TriedStudents` in a run folder."""


class _Record(BaseModel):
    # the outputs of a broken candidate may be NaN, which JSON cannot represent
    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="strings")


class Candidate(_Record):
    """One quantized file that a search within a budget considered.

    Attributes:
        path: The path that the file has in the artefact folder if it is chosen.
        format: Format of the file.
        scheme: How the file stores the model's numbers.
        runtime: The runtime that the file is made for; None for any.
        left: Roles (kinds of weights) whose weights stay as they were exported.
        student: The student that the file is made from, if several were considered.
        sha256: Digest of the file; None if none was written.
        bytes: Size of the file; None if none was written.
        rel: RMS difference from the exported file's outputs on calibration rows, divided by the spread of those
            outputs.
        agreement: Share of calibration rows to which this file and the exported one give the same first label; None if
            the task has no labels.
        drop: Loss of the deciding metric against the exported file, as a fraction, on the rows by which files are
            chosen; None if the file was not scored.
        p90_ms: 90th percentile of the latency of one thread on real texts; None if the budget limits no time.
        front: Whether no other candidate is both smaller and closer to the exported file.
        inside: Whether the file is within every limit; None if that was not determined.
        chosen: Whether the file is in the artefact folder.
        note: Why the file was not written, not measured or not chosen, in words.
    """

    path: str
    format: Format
    scheme: Scheme
    runtime: Runtime | None = None
    left: list[Role] = []
    student: str | None = None
    sha256: str | None = None
    bytes: int | None = None
    rel: float | None = None
    agreement: float | None = None
    drop: float | None = None
    p90_ms: float | None = None
    front: bool = False
    inside: bool | None = None
    chosen: bool = False
    note: str = ""

    @property
    def name(self) -> str:
        """The candidate's path, with the roles (kinds of weights) that stay unquantized, by which such files differ."""
        return candidate_name(self.path, self.left)

    @property
    def sound(self) -> bool:
        """Whether the file was written, passed its checks, and has finite outputs."""
        return self.bytes is not None and self.rel is not None and math.isfinite(self.rel) and not self.note


def candidate_name(path: str, left: Sequence[Role]) -> str:
    """Return a candidate's path, followed by the roles (kinds of weights) that it leaves unquantized."""
    return f"{path}, {' and '.join(left)} as exported" if left else path


class ConsideredStudent(_Record):
    """A student model whose files a search within a budget considered.

    Attributes:
        name: Name of the student in `Candidate.student`.
        parameters: Number of the student's weights; None if it was not trained.
        lost: Loss of the deciding metric against the recipe's own student, both in fp32, as a fraction, on the rows by
            which files are chosen; None if not scored.
        chosen: Whether the files in the folder are made from this student.
        note: Why the student's files were not searched, in words.
    """

    name: str
    parameters: int | None = None
    lost: float | None = None
    chosen: bool = False
    note: str = ""


class BudgetSearch(_Record):
    """The record of a search for the best files within a budget of size, accuracy loss and latency.

    Attributes:
        budget: The limits that were set, by name.
        wins: Criterion that decided between several files within the limits.
        metric: The deciding metric.
        ranked_on: Number of calibration rows for `Candidate.rel`.
        chosen_on: Number of rows for `Candidate.drop`.
        scored_on: Number of rows that had no part in the choice.
        rows: Which rows were used for choosing and for scoring, in words.
        calibration: How the ranges of static candidates were chosen.
        machine: CPU and ISA of the measurements.
        students: The students that were considered, the recipe's own first; empty if it was the only one.
        candidates: Every file that was considered.
        made_from: Digest of everything that the search depends on.
    """

    budget: dict[str, float]
    wins: str
    metric: str
    ranked_on: int
    chosen_on: int
    scored_on: int
    rows: str = ""
    calibration: Calibration = Calibration.MINMAX
    machine: str = ""
    students: list[ConsideredStudent] = []
    candidates: list[Candidate]
    made_from: str = ""

    @property
    def chosen(self) -> list[Candidate]:
        """The chosen candidates, one for each format."""
        return [c for c in self.candidates if c.chosen]

    @property
    def student(self) -> str | None:
        """Name of the chosen student; None if only one was considered, or none was chosen."""
        return next((s.name for s in self.students if s.chosen), None)

    def as_written(self, digests: Mapping[str, str]) -> BudgetSearch:
        """Return a copy of the search in which the chosen files have new sha256 digests, given by path."""
        updated = [c.model_copy(update={"sha256": digests[c.path]}) if c.chosen else c for c in self.candidates]
        return self.model_copy(update={"candidates": updated})


# --- sensitivity of roles ------------------------------------------------------------


class RoleError(_Record):
    """The error of a file in which only the weights of one role (such as ffn_down) are quantized.

    Attributes:
        role: The role of the quantized weights.
        rel: RMS difference from the exported file's outputs on calibration rows, divided by the spread of those
            outputs; None if no such file could be written.
        saved: Bytes that the file is smaller than the exported one.
        note: Why `rel` is None; empty if it is not.
    """

    role: Role
    rel: float | None = None
    saved: int = 0
    note: str = ""


class Sensitivity(_Record):
    """How sensitive a model is to quantization of each role (kind of weights), for one format and scheme.

    Attributes:
        format: Format of the files.
        scheme: Scheme of the quantized weights.
        roles: The error of each role that has weights, the most sensitive role first.
        whole: The same error of the file in which all roles are quantized; None if that file could not be written.
        saved: Bytes that the file with all roles quantized is smaller than the exported one.
        note: Why errors are missing: the reason why the scheme is not allowed, or what is wrong with the file with all
            roles quantized; else empty.
    """

    format: Format
    scheme: Scheme
    roles: list[RoleError] = []
    whole: float | None = None
    saved: int = 0
    note: str = ""

    @property
    def predicted(self) -> float | None:
        """Predicted error of the file with all roles quantized (root of the sum of squares); None if one is missing."""
        return self.without()

    def without(self, *left: Role) -> float | None:
        """Predict the error of a file that leaves the roles `left` unquantized; None if an error or any other role is missing."""
        rels = [r.rel for r in self.roles if r.role not in left]
        return None if None in rels or not rels else math.hypot(*(rel for rel in rels if rel is not None))

    def share(self, role: RoleError) -> float | None:
        """Return the share of one role in the sum of squared errors; None if an error is missing, or the sum is 0."""
        total = self.predicted
        return None if not total or role.rel is None else (role.rel / total) ** 2


class Sensitivities(_Record):
    """The sensitivities to quantization of the files in an artefact folder.

    Attributes:
        rows: Number of calibration rows.
        machine: CPU and ISA of the measurements.
        schemes: The sensitivities for each format and scheme.
    """

    rows: int
    machine: str
    schemes: list[Sensitivity]


# --- students that a run chose among ---


class TriedStudent(_Record):
    """A student that a run with `student: auto` considered, with its score on validation rows and the size of its file.

    Attributes:
        name: Its name, such as ``static`` or ``layers-2``.
        layers: Encoder layers; 0 for a static student.
        width: Feed-forward neurons of each layer, if fewer than the teacher's.
        trained: ``fully``, ``briefly``, or empty if it was not trained.
        score: Score in the deciding metric; None if it was not trained.
        kept: Share of the teacher's score that it keeps.
        low: Lower end of the interval of `kept`.
        high: Upper end.
        bytes: Size of its file.
        p50_ms: Median latency of that file.
        estimated: Whether size and latency are estimated from those of other students, by the work in their layers.
        parameters: Number of weights.
        cpu_s: CPU seconds that its trainings took.
        chosen: Whether the run goes on with it.
        note: Why it was not trained, not trained longer, or not taken.
    """

    name: str
    layers: int
    width: int | None = None
    trained: str = ""
    score: float | None = None
    kept: float | None = None
    low: float | None = None
    high: float | None = None
    bytes: int | None = None
    p50_ms: float | None = None
    estimated: bool = False
    parameters: int | None = None
    cpu_s: float = 0.0
    chosen: bool = False
    note: str = ""


class TriedStudents(_Record):
    """The students that a run with `student: auto` considered, smallest first.

    Attributes:
        limits: What a student had to keep and how large and slow its file could be, in words.
        keep: Share of the teacher's score that had to be kept.
        metric: The deciding metric.
        teacher: The teacher's score on the same rows.
        rows: Number of validation rows, which are in no reported score.
        confidence: Share of resamples of these rows that the intervals hold.
        file: Format and scheme of the measured files, in words.
        latency: How latencies were measured, in words.
        machine: CPU and ISA of the measurements.
        students: Every student.
    """

    limits: str
    keep: float
    metric: str
    teacher: float
    rows: int
    confidence: float
    file: str
    latency: str
    machine: str
    students: list[TriedStudent]

    @property
    def chosen(self) -> TriedStudent | None:
        """The student that the run goes on with; None if there is none."""
        return next((s for s in self.students if s.chosen), None)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return header and rows of the table for people, one row for each student."""
        metric = METRICS[self.metric]
        header = [
            "student",
            "trained",
            metric.name,
            f"kept ({self.confidence:.0%} interval)",
            "file",
            "p50",
            "CPU-s",
            "outcome",
        ]
        return header, [
            [
                s.name,
                s.trained or "-",
                "-" if s.score is None else metric.format(s.score),
                "-" if s.kept is None else f"{s.kept:.1%} ({s.low:.1%} to {s.high:.1%})",
                "-" if s.bytes is None else f"{'about ' * s.estimated}{s.bytes / 1e6:.2f} MB",
                "-" if s.p50_ms is None else f"{'about ' * s.estimated}{s.p50_ms:.2f} ms",
                f"{s.cpu_s:.0f}" if s.cpu_s else "-",
                ": ".join(["chosen"] * s.chosen + [s.note] * bool(s.note)),
            ]
            for s in self.students
        ]


# --- table of roles ------------------------------------------------------------


class RoleRow(BaseModel):
    """Weights of one role (such as ffn_down) that a file stores alike, or a role without stored weights.

    Attributes:
        role: Role of the operators that read the weights.
        name: The pattern of `quantize.names` that decided the scheme; empty if the role's or the file's scheme applies.
        scheme: The scheme of the weights; None if they have the numbers of the exported file.
        stored: The type in which the numbers are stored, e.g. ``int8``; empty if the role has no weights.
        weights: Number of weight matrices.
        numbers: Number of values in these matrices.
        bytes: Bytes of these values, with the scales of blocks.
        chosen: Whether the recipe chose this scheme for the role or the name.
        note: Why no other choice is possible, or why the weights differ from the scheme.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    role: Role
    name: str = ""
    scheme: Scheme | None = None
    stored: str = ""
    weights: int = 0
    numbers: int = 0
    bytes: int = 0
    chosen: bool = False
    note: str = ""

    @property
    def title(self) -> str:
        """The role, with the name pattern if there is one, for tables."""
        return f"{self.role} ({self.name})" if self.name else self.role.value

    @property
    def made(self) -> str:
        """The scheme of the weights in one word, or "as exported"."""
        return self.scheme.value if self.scheme is not None else "as exported"


def summarize_roles(rows: Sequence[RoleRow]) -> str:
    """Describe in phrases which roles (kinds of weights) a model file stores quantized and which as floats.

    A role that is stored both ways is named twice, in the second place with the words ``a part of``; roles that have no
    weights in the file come last.

    Args:
        rows: How the weights of each role are stored.

    Returns:
        Such as ``ffn_up, ffn_down compressed; embedding in floats; without weights: softmax``.
    """
    compressed = dict.fromkeys(r.role.value for r in rows if r.weights and not r.stored.startswith("float"))
    floats = dict.fromkeys(r.role.value for r in rows if r.stored.startswith("float"))
    others = dict.fromkeys(r.role.value for r in rows if not r.weights)
    parts = [f"{', '.join(compressed)} compressed"] if compressed else []
    in_floats = [name if name not in compressed else f"a part of {name}" for name in floats]
    parts += [f"{', '.join(in_floats)} in floats"] if in_floats else []
    parts += [f"without weights: {', '.join(others)}"] if others else []
    return "; ".join(parts)
