"""What smaller files are made from and compared on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pocketbert.core.disk.files import sha256_json
from pocketbert.core.predict.tokenization import Encoded
from pocketbert.core.types import Format
from pocketbert.pipeline.formats.run_model import RunModel


@dataclass(frozen=True)
class Sources:
    """What smaller files are made from and compared on.

    Attributes:
        model: The exported model.
        bases: The exported file of each format.
        calibration: Rows on which ranges are measured and candidates are ranked.
    """

    model: RunModel
    bases: Mapping[Format, Path]
    calibration: list[Encoded]

    @cached_property
    def calibration_digest(self) -> str:
        """Digest of the calibration rows as the model reads them."""
        return sha256_json([row.ids.tolist() for row in self.calibration])
