"""Golden rows: text and the outputs each file gave, to check a file without labels, anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.tokenization import Text

FILE_NAME = "golden.jsonl"
TOKENS_FILE_NAME = "golden_tokens.jsonl"
MAX_ROWS = 4096


class GoldenRow(BaseModel):
    """One row of ``golden.jsonl``.

    Attributes:
        text: The text, or the two texts of a pair.
        label: The label that the reference model (torch, fp32) answers.
        reference: Logits of the reference model.
        outputs: Logits of each file, by path.
        tolerance: Largest absolute difference a right runtime may show, by path.
        padded: Logits of the reference model when 19 padding tokens stand beside the text (fewer where that would be
            too long); empty where nobody recorded them.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    text: str | tuple[str, str]
    label: str
    reference: list[float]
    outputs: dict[str, list[float]]
    tolerance: dict[str, float]
    padded: list[float] = []

    @property
    def input(self) -> Text:
        """What the tokenizer takes."""
        return self.text

    def expected(self, path: str) -> NDArray[np.float32]:
        """Logits of one file, shape [labels]."""
        return np.array(self.outputs[path], np.float32)


def write_golden(path: Path, rows: list[GoldenRow]) -> None:
    """Write golden rows, one JSON object a line."""
    path.write_text("".join(r.model_dump_json() + "\n" for r in rows), encoding="utf-8")


def read_golden(path: Path) -> list[GoldenRow]:
    """Read golden rows.

    Raises:
        InputError: If the file is missing, too long, or a row is wrong.
    """
    if not path.is_file():
        raise InputError(Problem(str(path), "file not found."))
    out = []
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if number > MAX_ROWS:
                raise InputError(Problem(str(path), f"more than {MAX_ROWS} rows, refused."))
            try:
                out.append(GoldenRow.model_validate(json.loads(line)))
            except (ValueError, ValidationError) as error:
                raise InputError(
                    Problem(f"{path}:{number}", f"not a golden row: {str(error).splitlines()[0]}.")
                ) from error
    if not out:
        raise InputError(Problem(str(path), "no rows."))
    return out
