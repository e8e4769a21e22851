"""Golden rows: text and the outputs each file gave, to check a file without labels, anywhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from pocketbert.core.disk.files import check_size
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.readout import Matrix
from pocketbert.core.predict.tokenization import Text

FILE_NAME = "golden.jsonl"
TOKENS_FILE_NAME = "golden_tokens.jsonl"
MAX_ROWS = 4096
MAX_MIB = 64


class GoldenRow(BaseModel):
    """One row of ``golden.jsonl``.

    Attributes:
        text: The text, or the two texts of a pair.
        label: The label, or the labels of the recorded tokens, that the reference model (torch, fp32) answers; empty for
            tasks without labels.
        reference: Answer of the reference model: numbers of the recorded places, row by row.
        outputs: Answer of each file, by path.
        tolerance: Largest absolute difference a right runtime may show, by path.
        padded: Answer of the reference model when 19 padding tokens stand beside the text (fewer where that would be
            too long); empty where nobody recorded them.
        places: Rows of the task's output that are recorded (tokens; of fill-mask: masked tokens); empty for all.
        columns: Columns that are recorded; empty for all. Of question-answering 0 is the start, 1 the end.
        drawn: Whether the text was made of drawn words, to read the whole vocabulary and the full length.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    text: str | tuple[str, str]
    label: str
    reference: list[float]
    outputs: dict[str, list[float]]
    tolerance: dict[str, float]
    padded: list[float] = []
    places: list[int] = []
    columns: list[int] = []
    drawn: bool = False

    @property
    def input(self) -> Text:
        """What the tokenizer takes."""
        return self.text

    def shaped(self, values: list[float]) -> Matrix:
        """Recorded numbers as a matrix, [recorded rows, recorded columns]."""
        rows = len(self.places) or 1
        return np.array(values, np.float32).reshape(rows, -1 if values else 0)

    def expected(self, path: str) -> Matrix:
        """Recorded answer of one file."""
        return self.shaped(self.outputs[path])

    def names(self, labels: Sequence[str]) -> list[str]:
        """Names of the recorded columns."""
        return [labels[c] for c in self.columns if c < len(labels)] if self.columns else list(labels)

    def pick(self, matrix: Matrix) -> Matrix:
        """The recorded places of an answer; NaN where it is too small to have them."""
        rows = self.places or list(range(len(matrix)))
        columns = self.columns or list(range(matrix.shape[1]))
        if matrix.size == 0 or max(rows) >= matrix.shape[0] or max(columns) >= matrix.shape[1]:
            return np.full((len(rows), len(columns)), np.nan, np.float32)
        return matrix[np.ix_(rows, columns)]


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
    check_size(path, MAX_MIB)
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
