"""How far each role by itself takes a smaller file from the exported one."""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict

from pocketbert.core.types import Format, Role, Scheme


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="strings")


class RoleError(_Record):
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


class Sensitivity(_Record):
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


class Sensitivities(_Record):
    """What was measured of a folder.

    Attributes:
        rows: Number of calibration rows.
        machine: CPU and ISA of the figures.
        schemes: One for each format and scheme.
    """

    rows: int
    machine: str
    schemes: list[Sensitivity]
