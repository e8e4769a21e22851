"""Records of a budget search, of the sensitivities of roles and of the roles in a file, for folders and reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from pocketbert.core.types import Calibration, Format, Role, Runtime, Scheme

SEARCH_FILE = "search.json"
"""File of a `BudgetSearch` in a run folder."""


class _Record(BaseModel):
    # the outputs of a broken candidate may be NaN, which JSON cannot represent
    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="strings")


class Candidate(_Record):
    """One quantized file that a search within a budget considered.

    Attributes:
        path: Its path in the artefact folder, if it were chosen.
        format: Its format.
        scheme: How its numbers are stored.
        runtime: The runtime that it is made for; None for any.
        left: Roles whose weights stay as they were exported.
        student: The student that it is made of, if several were considered.
        sha256: Digest of the file; None if none was written.
        bytes: Size of the file; None if none was written.
        rel: RMS difference from the exported file's outputs on calibration rows, relative to their spread.
        agreement: Share of calibration rows with the same first label; None if the task has no labels.
        drop: Loss of the deciding metric against the exported file on the rows for choosing, a fraction; None if not
            scored.
        p90_ms: 90th percentile of the latency, one thread, real texts; None if no time was limited.
        front: Whether no other candidate is both smaller and closer to the exported file.
        inside: Whether it is within every limit; None if that was not determined.
        chosen: Whether it is in the folder.
        note: Why it was not written, not measured or not chosen, in words.
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
        name: Its name in the candidates.
        parameters: Number of its weights; None if it was not trained.
        lost: Loss of the deciding metric against the recipe's own student, both in fp32, on the rows for choosing, a
            fraction; None if not scored.
        chosen: Whether the folder is of this student.
        note: Why its files were not searched, in words.
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
        """Name of the chosen student; None if only one was considered."""
        return next((s.name for s in self.students if s.chosen), None)

    def as_written(self, digests: Mapping[str, str]) -> BudgetSearch:
        """Return a copy of the search in which the chosen files have new sha256 digests, given by path."""
        updated = [c.model_copy(update={"sha256": digests[c.path]}) if c.chosen else c for c in self.candidates]
        return self.model_copy(update={"candidates": updated})


# --- sensitivity of roles ------------------------------------------------------------


class RoleError(_Record):
    """The error of a file in which only the weights of one role (such as ffn_down) are quantized.

    Attributes:
        role: The role.
        rel: RMS difference from the exported file's outputs on calibration rows, relative to their spread; None if
            no such file could be written.
        saved: Bytes that the file is smaller than the exported one.
        note: Why there is no figure; else empty.
    """

    role: Role
    rel: float | None = None
    saved: int = 0
    note: str = ""


class Sensitivity(_Record):
    """How sensitive a model is to quantization of each role (kind of weights), for one format and scheme.

    Attributes:
        format: The format.
        scheme: The scheme.
        roles: One for each role with weights, the most sensitive first.
        whole: The same difference of the file with all roles compressed; None if it could not be written.
        saved: Bytes that this file is smaller than the exported one.
        note: Why there are no figures: the reason of the policy, or what is wrong with the whole file; else empty.
    """

    format: Format
    scheme: Scheme
    roles: list[RoleError] = []
    whole: float | None = None
    saved: int = 0
    note: str = ""

    @property
    def predicted(self) -> float | None:
        """Predicted error of the file with all roles quantized: the root of the sum of the roles' squared errors."""
        return self.without()

    def without(self, *left: Role) -> float | None:
        """Predict the error of a file that leaves some roles (kinds of weights) unquantized; None without figures."""
        rels = [r.rel for r in self.roles if r.role not in left]
        return None if None in rels or not rels else math.hypot(*(rel for rel in rels if rel is not None))

    def share(self, role: RoleError) -> float | None:
        """Return a role's share of the sum of squared errors; None without a figure."""
        total = self.predicted
        return None if not total or role.rel is None else (role.rel / total) ** 2


class Sensitivities(_Record):
    """The sensitivities to quantization of the files in an artefact folder.

    Attributes:
        rows: Number of calibration rows.
        machine: CPU and ISA of the measurements.
        schemes: One for each format and scheme.
    """

    rows: int
    machine: str
    schemes: list[Sensitivity]


# --- table of roles ------------------------------------------------------------


class RoleRow(BaseModel):
    """Weights of one role (such as ffn_down) that a file stores alike, or a role without stored weights.

    Attributes:
        role: Role of the operators.
        name: The pattern of `quantize.names` that decided; empty if the role or the file did.
        scheme: The scheme of the weights; None if they have the numbers of the exported file.
        stored: The type in which the numbers are stored, e.g. ``int8``; empty if the role has no weights.
        weights: Number of matrices.
        numbers: Numbers in them.
        bytes: Bytes of these numbers, with the scales of blocks.
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
    """Describe in one sentence which roles (kinds of weights) of a file are quantized and which stay float."""
    compressed = dict.fromkeys(r.role.value for r in rows if r.weights and not r.stored.startswith("float"))
    floats = dict.fromkeys(r.role.value for r in rows if r.stored.startswith("float"))
    others = dict.fromkeys(r.role.value for r in rows if not r.weights)
    parts = [f"{', '.join(compressed)} compressed"] if compressed else []
    in_floats = [name if name not in compressed else f"a part of {name}" for name in floats]
    parts += [f"{', '.join(in_floats)} in floats"] if in_floats else []
    parts += [f"without weights: {', '.join(others)}"] if others else []
    return "; ".join(parts)
