"""What a search inside a budget measured and chose, as ``artifacts.json`` and the report tell it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from pocketbert.core.types import Calibration, Format, Role, Runtime, Scheme

SEARCH_FILE = "search.json"
"""Where a run folder keeps it."""


class _Record(BaseModel):
    # a broken candidate may answer NaN, which JSON has no word for
    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="strings")


class Candidate(_Record):
    """One file that was considered.

    Attributes:
        path: Its path in the artefact folder, if it were chosen.
        format: What opens it.
        scheme: How its numbers are stored.
        runtime: The one runtime that it is made for.
        left: Roles whose weights stay as they were exported.
        student: The student that it is made of, where several were considered.
        sha256: Digest of the file; None where none was written.
        bytes: Size of the file; None where none was written.
        rel: RMS difference from the exported file's answers on calibration rows, relative to their spread.
        agreement: Share of calibration rows with the same first label; None where the task has no such label.
        drop: Loss of the deciding metric against the exported file on the rows that choose, a fraction; None where it was
            not scored.
        p90_ms: 90th percentile of the latency, one thread, real texts; None where no time was limited.
        front: Whether no other candidate is both smaller and closer to the exported file.
        inside: Whether it is inside every limit; None where that was not found out.
        chosen: Whether it is in the folder.
        note: Why it was not written, not measured or not taken, in words.
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
        """Its path with the roles that it leaves: files of one scheme have one path, whichever roles they leave."""
        return named(self.path, self.left)

    @property
    def sound(self) -> bool:
        """Whether it was written, passed the gates it met, and answers in numbers."""
        return self.bytes is not None and self.rel is not None and math.isfinite(self.rel) and not self.note


def named(path: str, left: Sequence[Role]) -> str:
    """A file with the roles that it leaves, in words."""
    return f"{path}, {' and '.join(left)} as exported" if left else path


class ConsideredStudent(_Record):
    """A student whose files were considered.

    Attributes:
        name: What the candidates call it.
        parameters: Number of its weights; None where it was not trained.
        lost: Loss of the deciding metric against the recipe's own student, both in fp32, on the rows that choose, a fraction;
            None where it was not scored.
        chosen: Whether the folder is of this student.
        note: Why its files were not searched, in words.
    """

    name: str
    parameters: int | None = None
    lost: float | None = None
    chosen: bool = False
    note: str = ""


class BudgetSearch(_Record):
    """A search inside a budget.

    Attributes:
        budget: The limits that were set, by name.
        wins: What decided between several files inside.
        metric: The deciding metric.
        ranked_on: Number of calibration rows that `Candidate.rel` is of.
        chosen_on: Number of rows that `Candidate.drop` is of.
        scored_on: Number of rows that had no part in the choice.
        rows: Which rows chose and which scored, in words.
        calibration: How the ranges of static candidates were chosen.
        machine: CPU and ISA of the figures.
        students: The students that were considered, the recipe's own first; empty where it was the only one.
        candidates: Every file that was considered.
        made_from: Digest of everything that decides the search.
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
        """The files that were chosen, one for each format."""
        return [c for c in self.candidates if c.chosen]

    @property
    def student(self) -> str | None:
        """The student that was chosen; None where there was no choice."""
        return next((s.name for s in self.students if s.chosen), None)

    def as_written(self, digests: Mapping[str, str]) -> BudgetSearch:
        """The same with the digests of the chosen files as they were written again; a format may not write the same bytes twice.

        Args:
            digests: By path.
        """
        now = [c.model_copy(update={"sha256": digests[c.path]}) if c.chosen else c for c in self.candidates]
        return self.model_copy(update={"candidates": now})


# --- sensitivity ---
# How far each role by itself takes a smaller file from the exported one.


class _SensitivityRecord(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="strings")


class RoleError(_SensitivityRecord):
    """A file in which only one role is compressed.

    Attributes:
        role: The role.
        rel: RMS difference from the exported file's answers on calibration rows, relative to their spread; None where no such
            file could be written.
        saved: Bytes that the file is smaller than the exported one.
        note: Why there is no figure; empty where there is.
    """

    role: Role
    rel: float | None = None
    saved: int = 0
    note: str = ""


class Sensitivity(_SensitivityRecord):
    """The roles of one format and scheme.

    Attributes:
        format: The format.
        scheme: The scheme.
        roles: One for each role with weights, the most sensitive first.
        whole: The same difference of the file with all roles compressed; None where it could not be written.
        saved: Bytes that this file is smaller than the exported one.
        note: Why there are no figures: the reason of the policy, or what is wrong with the whole file; empty where there are.
    """

    format: Format
    scheme: Scheme
    roles: list[RoleError] = []
    whole: float | None = None
    saved: int = 0
    note: str = ""

    @property
    def predicted(self) -> float | None:
        """What the difference of the whole file should be: errors of roles are independent, so their squares add."""
        return self.without()

    def without(self, *left: Role) -> float | None:
        """Predict the difference of a file that leaves some roles as exported; None where a role has no figure."""
        rels = [r.rel for r in self.roles if r.role not in left]
        return None if None in rels or not rels else math.hypot(*(rel for rel in rels if rel is not None))

    def share(self, role: RoleError) -> float | None:
        """Share of a role in the sum of squares."""
        total = self.predicted
        return None if not total or role.rel is None else (role.rel / total) ** 2


class Sensitivities(_SensitivityRecord):
    """What was measured of a folder.

    Attributes:
        rows: Number of calibration rows.
        machine: CPU and ISA of the figures.
        schemes: One for each format and scheme.
    """

    rows: int
    machine: str
    schemes: list[Sensitivity]


# --- role_table ---
# What a model file makes of the weights of each role, as the report and the model card tell it.


class RoleRow(BaseModel):
    """Some weights of one role that are stored alike in a file; or a role whose operators read no stored weights.

    Attributes:
        role: What the operators do.
        name: The pattern of `quantize.names` that decided; empty where the role or the file did.
        scheme: The scheme of the weights; None where they have the numbers of the exported file.
        stored: What the numbers are stored as, e.g. ``int8``; empty where the role has no weights.
        weights: Number of matrices.
        numbers: Numbers in them.
        bytes: Bytes of these numbers, with scales that blocks share.
        chosen: Whether the recipe chose this scheme for the role or the name.
        note: Why it cannot be otherwise, or why it is not as the scheme says.
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
        """What tables call it."""
        return f"{self.role} ({self.name})" if self.name else self.role.value

    @property
    def made(self) -> str:
        """The scheme in one word."""
        return self.scheme.value if self.scheme is not None else "as exported"


def in_one_line(rows: Sequence[RoleRow]) -> str:
    """Which roles of a file are compressed and which stay float, for the line above a folded table."""
    compressed = dict.fromkeys(r.role.value for r in rows if r.weights and not r.stored.startswith("float"))
    floats = dict.fromkeys(r.role.value for r in rows if r.stored.startswith("float"))
    others = dict.fromkeys(r.role.value for r in rows if not r.weights)
    parts = [f"{', '.join(compressed)} compressed"] if compressed else []
    partly = [name if name not in compressed else f"a part of {name}" for name in floats]
    parts += [f"{', '.join(partly)} in floats"] if partly else []
    parts += [f"without weights: {', '.join(others)}"] if others else []
    return "; ".join(parts)
