"""What a model file makes of the weights of each role, as the report and the model card tell it."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from pocketbert.core.types import Role, Scheme


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
