"""Which role a stored weight of an encoder has, told from the path of its module; what a file records of each weight."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from pocketbert.core.types import Role, Scheme

_RULES: tuple[tuple[str, Role], ...] = (
    (r"embed|\.(offsets|entry)\.", Role.EMBEDDING),
    (r"\.(pooler|pre_classifier|sequence_summary)\.", Role.POOLER),
    (r"attention|attn|\.(qkv|query|key|value)\.|\.bottleneck\.(input|attention)\.", Role.ATTENTION_PROJECTION),
    (r"\.(up|intermediate|Wi)\.", Role.FFN_UP),
    (r"\.(down|output|Wo)\.", Role.FFN_DOWN),
)
"""The first pattern that the path of an encoder's weight has; weights outside the layers are the head's."""
_LAYER = re.compile(r"\.\d+\.")
_OUTSIDE = (Role.EMBEDDING, Role.POOLER)


class WeightRole(BaseModel):
    """One stored weight of a model, and what a file makes of it.

    Attributes:
        name: Path of the weight in the torch module that the file was exported from.
        role: What it does.
        digest: Digest of its fp32 numbers, see `pocketbert.core.families.digests.digest_of`.
        numbers: How many numbers it has; 0 where an earlier version wrote the list.
        scheme: How it is stored; None where it was left as it was exported.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=1 << 10)]
    role: Role
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    numbers: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    scheme: Scheme | None = None

    def matches(self, pattern: str) -> bool:
        """Whether a pattern of `quantize.names` means it: its path, or the end of its path from a module on."""
        return any(fnmatchcase(self.name, p) for p in (pattern, f"*.{pattern}", f"{pattern}.*", f"*.{pattern}.*"))


def role_of(name: str) -> Role:
    """Tell the role of a weight from its path in an encoder with a head."""
    for pattern, role in _RULES:
        if (role in _OUTSIDE or _LAYER.search(name)) and re.search(pattern, name):
            return role
    return Role.HEAD
