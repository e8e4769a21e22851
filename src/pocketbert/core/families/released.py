"""Configurations as authors release them, where these are no config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ReleasedConfig:
    """How the configuration of a released folder becomes a config.json.

    Attributes:
        file: Name of the file in the folder.
        renames: Entries that the file calls otherwise, old to new.
        defaults: Entries, by their new names, that mean this where the file leaves them out.
    """

    file: str
    renames: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def read(self, content: Mapping[str, Any], model_type: str) -> dict[str, Any]:
        """The entries of a config.json.

        Args:
            content: What the file holds.
            model_type: What config.json calls the family.
        """
        named = {self.renames.get(key, key): value for key, value in content.items()}
        return {**self.defaults, **named, "model_type": model_type}
